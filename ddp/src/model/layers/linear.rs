//! Linear layer, including the activation after it if the plan fuses them.
//!
//! On a GPU, the matmul that computes the gradient of the weight also computes the gradient of the bias. If only an activation
//! separates two linear layers, its derivative is part of the matmul that computes the gradient of the second layer's input, as is the
//! gradient of the first layer's bias where that is faster: in the format of activations, from which it is passed on. On the CPU, and for ReLU if no matmul computes its derivative, the pass that computes the activation's derivative also computes
//! the gradient of the bias.

use std::cell::Cell;

use ddp_kernels::ops::{self, Activation, BiasBefore, LinearOutput, ThroughActivation};
use ddp_kernels::{DType, Device, Tensor, TensorMut, TensorRef};

use crate::model::layer::{BufferSpec, Layer, LayerKind, Result, Sizes};
use crate::model::layer_list::LayerList;
use crate::model::linear_spec::LinearSpec;
use crate::model::param::ParamSpec;
use crate::model::pass::{BackwardPass, ForwardPass, InputGradientPass};

pub(super) fn add(list: &mut LayerList, out_features: usize, activation: Option<Activation>, bias: bool) {
    let index = list.next_index("layers");
    list.push(Linear::new(LinearSpec::new(index, list.width, out_features, bias)));
    if let Some(activation) = activation {
        super::activation::add(list, activation);
    }
}

/// `y = f(x·Wᵀ + b)`, without `f` if nothing is fused in.
#[derive(Debug)]
pub struct Linear {
    spec: LinearSpec,
    /// Whether the last forward pass wrote the mask.
    is_masked: bool,
    /// Whether the next layer's matmul has computed the gradient of the bias, in the last buffer.
    has_bias_gradient: Cell<bool>,
}

impl Linear {
    /// The layer of `spec`.
    pub fn new(spec: LinearSpec) -> Self {
        Linear { spec, is_masked: false, has_bias_gradient: Cell::new(false) }
    }

    fn has_bias(&self) -> bool {
        self.spec.params.len() > 1
    }

    /// Whether the next layer's matmul computes the derivative of the activation. For ReLU it needs the mask; without one, the
    /// derivative is computed together with the gradient of the bias.
    fn derivative_is_in_next(&self) -> bool {
        self.spec.derivative_in_next && (self.is_masked || !self.spec.keeps_relu_mask())
    }

    /// Whether the matmul with the derivative of the activation can compute the gradient of the bias.
    fn bias_may_be_in_next(&self) -> bool {
        let has_epilogue = matches!(self.spec.activation, Some(Activation::Relu | Activation::GeluTanh));
        self.spec.derivative_in_next && has_epilogue && self.has_bias()
    }

    /// The weight is the last parameter.
    fn weight(&self) -> usize {
        self.spec.params.len() - 1
    }

    /// Tensor from which the derivative of the activation is computed.
    fn saved<'a>(&self, y: TensorRef<'a>, buffers: &'a [Tensor]) -> Result<TensorRef<'a>> {
        let (n_rows, _) = y.shape().rows_cols();
        if self.spec.keeps_pre_activation() { buffers[0].view().rows(0, n_rows) } else { Ok(y) }
    }
}

impl Layer for Linear {
    fn kind(&self) -> LayerKind<'_> {
        LayerKind::Linear(&self.spec)
    }

    fn describe(&self) -> String {
        let LinearSpec { in_features, out_features, activation, .. } = &self.spec;
        let bias = if self.has_bias() { "" } else { ", no bias" };
        let activation = activation.map_or(String::new(), |f| format!(", {f}"));
        format!("linear {in_features} -> {out_features}{bias}{activation}")
    }

    fn out_features(&self) -> usize {
        self.spec.out_features
    }

    fn parameters(&self) -> &[ParamSpec] {
        &self.spec.params
    }

    /// The pre-activation or the mask of ReLU, then the gradient of the bias.
    fn buffers(&self, sizes: Sizes) -> Vec<BufferSpec> {
        let Sizes { max_rows, precision, .. } = sizes;
        let (out_features, format) = (self.spec.out_features, precision.activations());
        let pre_activation = || BufferSpec::activations(&[max_rows, out_features], format);
        let mask = || BufferSpec::activations(&[ops::relu_mask_len(max_rows, out_features)], DType::I64);
        let d_bias = || BufferSpec::workspace(out_features, format);
        let buffers = [
            self.spec.keeps_pre_activation().then(pre_activation),
            self.spec.keeps_relu_mask().then(mask),
            self.bias_may_be_in_next().then(d_bias),
        ];
        buffers.into_iter().flatten().collect()
    }

    fn workspace_len(&self, sizes: Sizes) -> usize {
        let LinearSpec { in_features, out_features, .. } = self.spec;
        let Sizes { max_rows, device, precision } = sizes;
        let (mode, dtype) = (precision.matmul_mode(), precision.activations());
        ops::linear_workspace_len(mode, max_rows, in_features, out_features, dtype, device)
    }

    fn matmul_size(&self) -> usize {
        self.spec.in_features * self.spec.out_features
    }

    /// Only the bias, if it is added to f32 sums.
    fn reads_master(&self, index: usize, outputs: DType) -> bool {
        index != self.weight() && outputs == DType::F32
    }

    /// True if the device's matmuls can.
    fn can_round_gradients(&self) -> bool {
        true
    }

    fn keeps_output(&self) -> bool {
        self.spec.activation.is_some() && !self.spec.keeps_pre_activation()
    }

    fn backward_is_in_place(&self) -> bool {
        false
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        let ForwardPass { params, buffers, workspace, matmul_mode, .. } = pass;
        let (n_rows, _) = x.shape().rows_cols();
        // The bias is added to sums that are then converted to the format of y.
        let bias = match (self.has_bias(), y.dtype()) {
            (false, _) => None,
            (true, DType::F32 | DType::F64) => Some(params.master(0)?),
            (true, _) => Some(params.compute(0)?),
        };
        let (mut pre_activation, mut relu_mask) = (None, None);
        if let [buffer, ..] = buffers {
            if self.spec.keeps_pre_activation() {
                pre_activation = Some(buffer.view_mut().rows(0, n_rows)?);
            } else if self.spec.keeps_relu_mask() {
                relu_mask = Some(buffer.view_mut());
            }
        }
        let output = LinearOutput { y, pre_activation, relu_mask, workspace };
        let weight = params.compute(self.weight())?;
        self.is_masked = ops::linear_forward(matmul_mode, x, weight, bias, self.spec.activation, output)?;
        Ok(())
    }

    fn backward(&mut self, mut d: TensorMut<'_>, pass: BackwardPass<'_>) -> Result<()> {
        let BackwardPass { x, y, mut grads, buffers, workspace, matmul_mode, beside, .. } = pass;
        let mut bias = if self.has_bias() { Some(grads.take()?) } else { None };
        let weight = grads.take()?;
        if let (true, Some(d)) = (self.has_bias_gradient.take(), buffers.last())
            && let Some(bias) = bias.take()
        {
            let row = d.view().reshape(&[1, self.spec.out_features])?;
            ops::bias_backward(row, bias.d, bias.accumulate)?;
        }
        let activation = self.spec.activation.filter(|_| !self.derivative_is_in_next());
        let in_matmul = matches!(d.device(), Device::Cuda(_))
            // ReLU without a mask: one pass computes its derivative and the gradient of the bias.
            && !(activation == Some(Activation::Relu) && self.spec.derivative_in_next)
            && bias.as_ref().is_some_and(|bias| bias.accumulate == weight.accumulate);
        let (fused_bias, bias) = if in_matmul { (bias, None) } else { (None, bias) };
        match (activation, bias) {
            (Some(f), bias) => {
                let accumulate = bias.as_ref().is_some_and(|bias| bias.accumulate);
                let d_bias = bias.map(|bias| bias.d);
                ops::activation_backward(f, self.saved(y, buffers)?, d.reborrow(), d_bias, accumulate)?;
            }
            (None, Some(bias)) => ops::bias_backward(d.as_ref(), bias.d, bias.accumulate)?,
            (None, None) => {}
        }
        let d_bias = fused_bias.map(|bias| bias.d);
        ops::linear_backward_weight(
            matmul_mode,
            d.as_ref(),
            x,
            weight.d,
            d_bias,
            weight.accumulate,
            workspace,
            beside,
        )
    }

    fn backward_input(
        &mut self,
        d: TensorRef<'_>,
        d_x: TensorMut<'_>,
        pass: InputGradientPass<'_>,
    ) -> Result<()> {
        let InputGradientPass { params, workspace, matmul_mode, through, accumulate, .. } = pass;
        let weight = params.compute(self.weight())?;
        ops::linear_backward_input(matmul_mode, d, weight, d_x, through, accumulate, workspace)
    }

    fn activation_of<'a>(
        &'a self,
        y: TensorRef<'a>,
        buffers: &'a mut [Tensor],
    ) -> Result<Option<ThroughActivation<'a>>> {
        let Some(activation) = self.spec.activation.filter(|_| self.derivative_is_in_next()) else {
            return Ok(None);
        };
        let n_kept = buffers.len() - usize::from(self.bias_may_be_in_next());
        let (buffers, d_bias) = buffers.split_at_mut(n_kept);
        let is_written = &self.has_bias_gradient;
        let d_bias = d_bias.first_mut().map(|d| BiasBefore { d: d.view_mut(), is_written });
        let relu_mask = buffers.last().filter(|_| self.is_masked).map(Tensor::view);
        Ok(Some(ThroughActivation { activation, saved: self.saved(y, buffers)?, relu_mask, d_bias }))
    }
}
