//! Gradients with respect to the rows.

use ddp_kernels::ops::{LossSums, STEP_SUMS_LEN, SumsOutput};
use ddp_kernels::{DType, KernelError, MemoryUse, Tensor};

use super::backward::LocalGradients;
use super::loss_head::LossHead;
use super::network::Network;
use super::pass_rows::{PassRows, RowsOfStep, check_weights};
use super::plan::Plan;
use crate::config::precision::Precision;

impl Network {
    /// Gradient of the mean loss of these rows with respect to `x`, `[B, n_features]` in f32 (f64 for a model in f64), in evaluation mode,
    /// without dropout. Waits for the device.
    ///
    /// [`GradientSums`](super::GradientSums) are unchanged. The call allocates one flat gradient and frees it at its end. It overwrites the
    /// activations of the last forward pass, so a backward pass needs a new forward pass afterwards. Columns that an expression uses as indices
    /// have a gradient of zero.
    ///
    /// - Saliency of output `k`: a [`LossHead::expression`] that returns `outputs.narrow(1, k, 1)`, times the number of rows.
    /// - Generator of a GAN: with `d = critic.input_gradient((&fake, &ones), &loss)?` times the number of rows as its targets, it trains on the
    ///   loss `|fake, d| (fake * d).sum(1)`, whose gradient with respect to the outputs is `d`.
    ///
    /// # Errors
    /// [`KernelError::Misuse`] for a model with embedding tables, for f16, and for a first layer without a gradient of its input; [`KernelError`] of forward, loss and backward.
    ///
    /// ```
    /// use ddp::nn::{LossHead, Sequential, Sizes};
    /// use ddp::prelude::*;
    ///
    /// let mut model = Sequential::new(3).linear(1).build(Sizes::new(4, Device::Cpu), 0)?;
    /// let (x, y) = (Tensor::zeros(&[4, 3], DType::F32, "cpu")?, Tensor::zeros(&[4, 1], DType::F32, "cpu")?);
    /// let output = LossHead::expression(|outputs, _| outputs.sum(1));
    /// let d = model.input_gradient((&x, &y), &output)? * 4.0;
    /// let weight = model.named_parameters()?[0].1.to_vec::<f32>()?;
    /// assert_eq!(d.row(0)?.to_vec::<f32>()?, weight);
    /// # Ok::<(), KernelError>(())
    /// ```
    #[doc(alias("saliency"))]
    pub fn input_gradient<'a>(
        &mut self,
        rows: impl Into<PassRows<'a>>,
        loss: &LossHead,
    ) -> Result<Tensor, KernelError> {
        if !self.layout.embeddings().is_empty() {
            let problem = "the last columns index embedding tables and have no gradient";
            let remedy =
                "use a model without embeddings, or `GradientSums::named` for the gradients of the tables";
            return Err(KernelError::misuse("input_gradient", problem, remedy));
        }
        if self.precision() == Precision::F16 {
            let problem = "gradients in f16 without a loss scale: small ones would be 0";
            return Err(KernelError::misuse(
                "input_gradient",
                problem,
                "load the weights into a model in Precision::F32 or Bf16",
            ));
        }
        // Only this call plans it, so training steps do not compute it.
        self.plan_again(true)?;
        let gradient = self.gradient_of_rows(rows.into().rows, loss);
        self.plan_again(false)?;
        // A later backward pass must not use the activations of this pass.
        self.forward_rows = 0;
        gradient
    }

    /// Plans the passes with or without the gradient of the input. Reuses all buffers and adds gradient buffers that are missing.
    fn plan_again(&mut self, to_input: bool) -> Result<(), KernelError> {
        let (sizes, n_features) = (self.plan.sizes, self.n_features());
        let layers = self.plan.take_layers();
        self.plan = Plan::new(layers, &self.layout, n_features, sizes, to_input);
        while self.buffers.gradients.len() < self.plan.n_gradients {
            let like = &self.buffers.gradients[1];
            match Tensor::zeros_for(MemoryUse::Activations, like.dims(), like.dtype(), like.device()) {
                Ok(buffer) => self.buffers.gradients.push(buffer),
                Err(error) => {
                    self.plan_again(false)?;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    fn gradient_of_rows(
        &mut self,
        RowsOfStep { x, y, weights, .. }: RowsOfStep<'_>,
        loss: &LossHead,
    ) -> Result<Tensor, KernelError> {
        weights.map_or(Ok(()), check_weights)?;
        let (device, format) = (self.device(), self.precision().master());
        let mut sums = Tensor::zeros_for(MemoryUse::Workspace, &[STEP_SUMS_LEN], DType::F32, device)?;
        self.forward(x)?;
        let (outputs, d_outputs) = self.outputs_and_gradient()?;
        let output = SumsOutput { tail: sums.view_mut(), accumulate: false, extra: None };
        loss.apply(outputs, y, weights, 1.0, Some(d_outputs), output)?;
        let mut flat = Tensor::zeros_for(MemoryUse::Workspace, &[self.layout.flat_len()], format, device)?;
        self.backward(x, None, false, &mut LocalGradients(flat.view_mut()))?;
        let sums = LossSums::load(&sums.to_vec::<f32>()?);
        self.with_right_labels(sums.mean(), y, loss)?;
        let buffer = self.plan.input_gradient.expect("planned with it");
        let dims = [x.shape().rows_cols().0, self.n_features()];
        let d = self.buffers.gradients[buffer].view().range(0, dims[0] * dims[1])?.to_tensor()?;
        d.to_dtype(format)?.into_shape(&dims)?.mul(if sums.weight > 0.0 { 1.0 / sums.weight } else { 0.0 })
    }
}
