//! Stochastic gradient descent with momentum.

mod cpu;

use super::{StepScalars, Tensors, Update, UpdateInputs, cuda, kernels, run, source};
use crate::cpu::Float;
use crate::cuda::launch::{Argument, Source};
use crate::{Result, TensorMut, TensorRef};

pub(crate) static SOURCE: Source = source("sgd", include_str!("kernel.cu"));

/// Hyper-parameters of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdConfig {
    /// Learning rate. Unused, like `grad_scale`, if the update gets [`UpdateInputs`].
    pub lr: f64,
    /// Fraction of the velocity that is kept; 0: no momentum.
    pub momentum: f64,
    /// Nesterov momentum.
    pub nesterov: bool,
    /// Factor of the learning rate, also of one from [`UpdateInputs`].
    pub lr_scale: f64,
    /// L2 penalty, added to the gradient.
    pub weight_decay: f64,
    /// Factor of the gradient (clipping, mean).
    pub grad_scale: f64,
}

/// One step on a flat range of parameters, in place.
///
/// `g = grad_scale·grad + weight_decay·w`, `v = momentum·v + g`, `w -= lr_scale·lr·(nesterov ? g + momentum·v : v)`
///
/// - `master_weights`, `grads`, `velocity`: one shape, f32 or f64; the velocity starts as zeros and may be absent if momentum
///   is 0
/// - `compute_weights`: bf16 or f16, of that shape: receives the new weights rounded to nearest, ties to even
/// - with `inputs`, the learning rate is read from their scalars and the gradient's factor from their sums and norm; if loss
///   or gradient is not finite, nothing is written
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`],
/// [`crate::KernelError::DTypeUnsupported`], [`crate::KernelError::Shape`].
///
/// Source: `torch.optim.SGD` with dampening 0.
pub fn sgd_step(
    config: &SgdConfig,
    master_weights: TensorMut<'_>,
    grads: TensorRef<'_>,
    velocity: Option<TensorMut<'_>>,
    compute_weights: Option<TensorMut<'_>>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let tensors = Tensors { target: master_weights, source: grads, state: [velocity], compute_weights };
    run(*config, tensors, inputs)
}

/// `Params` of `kernel.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct SgdParams {
    lr: f64,
    lr_scale: f64,
    momentum: f64,
    weight_decay: f64,
    scale: f64,
    nesterov: u64,
}

impl Argument for SgdParams {}

impl Update<1> for SgdConfig {
    const OP: &'static str = "sgd_step";
    const STATE: [&'static str; 1] = ["velocity"];
    const KERNELS: cuda::Kernels = kernels!("sgd");
    type Params = SgdParams;

    fn params(&self) -> SgdParams {
        SgdParams {
            lr: self.lr,
            lr_scale: self.lr_scale,
            momentum: self.momentum,
            weight_decay: self.weight_decay,
            scale: self.grad_scale,
            nesterov: self.nesterov.into(),
        }
    }

    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        SgdConfig { lr: scalars.lr, grad_scale, ..self }
    }

    #[inline(always)]
    fn apply<T: Float>(&self, w: &mut [T], g: &[T], [velocity]: [&mut [T]; 1]) {
        cpu::apply(self, w, g, velocity);
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::ops::LossSums;
    use crate::ops::testing::{assert_close, devices, random, tensor};
    use crate::ops::update::testing::{Case, Inputs, cases};
    use crate::{Device, Element, Tensor};

    const CONFIG: SgdConfig = SgdConfig {
        lr: 1e-2,
        momentum: 0.9,
        nesterov: false,
        lr_scale: 0.5,
        weight_decay: 0.1,
        grad_scale: 1.0,
    };

    /// Weights, velocity (where there is momentum) and the copy after a step on elements `from..` of buffers of `n`: from 1
    /// on, no wide access is aligned.
    fn step<T: Element, C: Element>(
        config: &SgdConfig,
        n: usize,
        from: usize,
        inputs: Option<&UpdateInputs<'_>>,
        device: Device,
    ) -> (Vec<T>, Vec<T>, Vec<C>) {
        let on = |seed: u64| tensor(&random::<T>(n, seed), &[n], device);
        let (mut w, g, mut v) = (on(1), on(2), on(3));
        let mut copy = Tensor::full(&[n], 7.0, C::DTYPE, device).unwrap();
        let velocity = (config.momentum > 0.0).then(|| v.view_mut().range(from, n).unwrap());
        let (w_view, copy_view) =
            (w.view_mut().range(from, n).unwrap(), copy.view_mut().range(from, n).unwrap());
        sgd_step(config, w_view, g.view().range(from, n).unwrap(), velocity, Some(copy_view), inputs)
            .unwrap();
        (w.to_vec().unwrap(), v.to_vec().unwrap(), copy.to_vec().unwrap())
    }

    fn check_device<T: Element, C: Element>(device: Device, tolerance: f64) {
        for (momentum, nesterov) in [(0.0, false), (0.9, false), (0.9, true)] {
            for (n, from) in [(1, 0), (1003, 0), (1003, 1), (5000, 4)] {
                let config = SgdConfig { momentum, nesterov, grad_scale: 0.5, ..CONFIG };
                let got = step::<T, C>(&config, n, from, None, device);
                let want = step::<T, C>(&config, n, from, None, Device::Cpu);
                // The kernel contracts to FMAs: values differ by a rounding or two of numbers up to 2.
                assert_close(&got.0, &want.0, tolerance, tolerance);
                assert_close(&got.1, &want.1, tolerance, tolerance);
                // The copy is of this device's weights, in every bit.
                let rounded_w: Vec<C> =
                    got.0[from..].iter().map(|w| C::from_f64(f64::from(w.to_f64() as f32))).collect();
                assert_eq!(got.2[from..], rounded_w);
                assert!(
                    got.2[..from].iter().all(|v| v.to_f64() == 7.0),
                    "nothing is written before the range"
                );
            }
        }
    }

    #[test]
    fn devices_agree_and_the_copy_is_the_rounded_weights() {
        for device in devices() {
            check_device::<f32, bf16>(device, 5e-7);
            check_device::<f64, bf16>(device, 1e-14);
            check_device::<f32, f16>(device, 5e-7);
            check_device::<f64, f16>(device, 1e-14);
        }
    }

    #[test]
    fn numbers_from_device_memory_do_the_same_as_numbers_by_value() {
        for device in devices() {
            for Case { expected_weight, unscale, sums, clip, factor } in cases() {
                // These fields of the config are ignored.
                let other = SgdConfig { lr: 5.0, grad_scale: 3.0, ..CONFIG };
                let inputs = Inputs::new(CONFIG.lr, 1, (expected_weight, unscale), sums, clip, device);
                let by_value = SgdConfig { grad_scale: factor, ..CONFIG };
                let got = step::<f32, bf16>(&other, 1003, 0, Some(&inputs.view()), device);
                assert_eq!(got, step::<f32, bf16>(&by_value, 1003, 0, None, device));
                let got = step::<f64, bf16>(&other, 1003, 0, Some(&inputs.view()), device);
                assert_eq!(got, step::<f64, bf16>(&by_value, 1003, 0, None, device));
            }
        }
    }

    #[test]
    fn nothing_is_written_where_the_loss_is_not_finite() {
        for device in devices() {
            for loss in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let inputs = Inputs::new(
                    1e-2,
                    5,
                    (0.0, 1.0),
                    LossSums { loss, weight: 1.0 },
                    Some((1.0, 1.0)),
                    device,
                );
                let (w, v, copy) = step::<f32, bf16>(&CONFIG, 1003, 0, Some(&inputs.view()), device);
                assert_eq!((w, v), (random(1003, 1), random(1003, 3)));
                assert!(copy.iter().all(|v| v.to_f64() == 7.0));
            }
        }
    }
}
