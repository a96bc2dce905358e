//! Adam and AdamW.

mod cpu;

use super::{StepScalars, Tensors, Update, UpdateInputs, cuda, kernels, run, source};
use crate::cpu::Float;
use crate::cuda::launch::{Argument, Source};
use crate::{Result, TensorMut, TensorRef};

pub(crate) static SOURCE: Source = source("adam", include_str!("kernel.cu"));

/// Kind of weight decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightDecay {
    /// An L2 penalty added to the gradient: Adam.
    Coupled,
    /// Applied to the weights directly: AdamW.
    Decoupled,
}

/// Hyper-parameters of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamConfig {
    /// Learning rate. Unused, like `step` and `grad_scale`, if the update gets [`UpdateInputs`].
    pub lr: f64,
    /// Decay rates of the first and second moment.
    pub betas: [f64; 2],
    /// Added to the square root of the second moment.
    pub eps: f64,
    /// Factor of the learning rate, also of one from [`UpdateInputs`].
    pub lr_scale: f64,
    /// Weight decay coefficient.
    pub weight_decay: f64,
    /// Kind of weight decay.
    pub decay: WeightDecay,
    /// Number of this step, from 1.
    pub step: u64,
    /// Factor of the gradient (clipping, mean).
    pub grad_scale: f64,
}

/// The moments; both start as zeros.
#[derive(Debug)]
pub struct AdamState<'a> {
    /// First moment.
    pub m: TensorMut<'a>,
    /// Second moment.
    pub v: TensorMut<'a>,
}

/// One step on a flat range of parameters, in place.
///
/// `lr = lr_scale·config.lr`, `g = grad_scale·grad`; coupled decay: `g += wd·w`, decoupled: `w -= lr·wd·w`; then
/// `m = β1·m + (1-β1)·g`, `v = β2·v + (1-β2)·g²`, `w -= lr/c1 · m / (sqrt(v)/sqrt(c2) + eps)` with `ci = 1 - βi^step`
///
/// - `master_weights`, `grads`, `state.m`, `state.v`: one shape, f32 or f64
/// - `compute_weights`: bf16 or f16, of that shape: receives the new weights rounded to nearest, ties to even
/// - with `inputs`, learning rate and step number are read from their scalars and the gradient's factor from their sums and
///   norm; if loss or gradient is not finite, nothing is written
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`],
/// [`crate::KernelError::DTypeUnsupported`], [`crate::KernelError::Shape`].
///
/// Source: arXiv:1412.6980, arXiv:1711.05101; `torch.optim.{Adam, AdamW}`.
pub fn adam_step(
    config: &AdamConfig,
    master_weights: TensorMut<'_>,
    grads: TensorRef<'_>,
    state: AdamState<'_>,
    compute_weights: Option<TensorMut<'_>>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    let state = [Some(state.m), Some(state.v)];
    run(*config, Tensors { target: master_weights, source: grads, state, compute_weights }, inputs)
}

/// `Params` of `kernel.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct AdamParams {
    lr: f64,
    lr_scale: f64,
    betas: [f64; 2],
    eps: f64,
    weight_decay: f64,
    scale: f64,
    step: u64,
    coupled: u64,
}

impl Argument for AdamParams {}

impl Update<2> for AdamConfig {
    const OP: &'static str = "adam_step";
    const STATE: [&'static str; 2] = ["m", "v"];
    // A square root and a division per element: worth two threads earlier than the others.
    const MIN_PART: usize = 1 << 14;
    const KERNELS: cuda::Kernels = kernels!("adam");
    type Params = AdamParams;

    fn params(&self) -> AdamParams {
        AdamParams {
            lr: self.lr,
            lr_scale: self.lr_scale,
            betas: self.betas,
            eps: self.eps,
            weight_decay: self.weight_decay,
            scale: self.grad_scale,
            step: self.step,
            coupled: (self.decay == WeightDecay::Coupled).into(),
        }
    }

    fn at_step(self, scalars: &StepScalars, grad_scale: f64) -> Self {
        AdamConfig { lr: scalars.lr, step: scalars.step, grad_scale, ..self }
    }

    #[inline(always)]
    fn apply<T: Float>(&self, w: &mut [T], g: &[T], [m, v]: [&mut [T]; 2]) {
        cpu::apply(self, w, g, m, v);
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

    const CONFIG: AdamConfig = AdamConfig {
        lr: 1e-2,
        betas: [0.9, 0.999],
        eps: 1e-8,
        lr_scale: 0.5,
        weight_decay: 0.1,
        decay: WeightDecay::Decoupled,
        step: 5,
        grad_scale: 1.0,
    };

    /// Weights, both moments and the copy after a step on elements `from..` of buffers of `n`: from 1 on, no wide access
    /// is aligned.
    fn step<T: Element, C: Element>(
        config: &AdamConfig,
        n: usize,
        from: usize,
        inputs: Option<&UpdateInputs<'_>>,
        device: Device,
    ) -> (Vec<T>, Vec<T>, Vec<T>, Vec<C>) {
        let on = |seed: u64, scale: f64| {
            let values: Vec<T> =
                random::<T>(n, seed).iter().map(|v| T::from_f64(scale * v.to_f64())).collect();
            tensor(&values, &[n], device)
        };
        let (mut w, g, mut m) = (on(1, 1.0), on(2, 1.0), on(3, 0.1));
        let squares: Vec<T> =
            random::<T>(n, 4).iter().map(|v| T::from_f64(v.to_f64() * v.to_f64())).collect();
        let mut v = tensor(&squares, &[n], device);
        let mut copy = Tensor::full(&[n], 7.0, C::DTYPE, device).unwrap();
        let state =
            AdamState { m: m.view_mut().range(from, n).unwrap(), v: v.view_mut().range(from, n).unwrap() };
        let (w_view, copy_view) =
            (w.view_mut().range(from, n).unwrap(), copy.view_mut().range(from, n).unwrap());
        adam_step(config, w_view, g.view().range(from, n).unwrap(), state, Some(copy_view), inputs).unwrap();
        (w.to_vec().unwrap(), m.to_vec().unwrap(), v.to_vec().unwrap(), copy.to_vec().unwrap())
    }

    fn check_device<T: Element, C: Element>(device: Device, tolerance: f64) {
        for decay in [WeightDecay::Coupled, WeightDecay::Decoupled] {
            for (n, from) in [(1, 0), (1003, 0), (1003, 1), (5000, 4)] {
                let config = AdamConfig { decay, grad_scale: 0.5, ..CONFIG };
                let got = step::<T, C>(&config, n, from, None, device);
                let want = step::<T, C>(&config, n, from, None, Device::Cpu);
                // The kernel contracts to FMAs: values differ by a rounding or two of numbers up to 2.
                assert_close(&got.0, &want.0, tolerance, tolerance);
                assert_close(&got.1, &want.1, tolerance, tolerance);
                assert_close(&got.2, &want.2, tolerance, tolerance);
                // The copy is of this device's weights, in every bit.
                let rounded_w: Vec<C> =
                    got.0[from..].iter().map(|w| C::from_f64(f64::from(w.to_f64() as f32))).collect();
                assert_eq!(got.3[from..], rounded_w);
                assert!(
                    got.3[..from].iter().all(|v| v.to_f64() == 7.0),
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
                let other = AdamConfig { lr: 5.0, step: 9, grad_scale: 3.0, ..CONFIG };
                for step_number in [1, 2, 1000, 1 << 40] {
                    let inputs =
                        Inputs::new(CONFIG.lr, step_number, (expected_weight, unscale), sums, clip, device);
                    let by_value = AdamConfig { step: step_number, grad_scale: factor, ..CONFIG };
                    let got = step::<f32, bf16>(&other, 1003, 0, Some(&inputs.view()), device);
                    assert_eq!(got, step::<f32, bf16>(&by_value, 1003, 0, None, device));
                    let got = step::<f64, bf16>(&other, 1003, 0, Some(&inputs.view()), device);
                    assert_eq!(got, step::<f64, bf16>(&by_value, 1003, 0, None, device));
                }
            }
        }
    }

    #[test]
    fn nothing_is_written_where_the_loss_is_not_finite() {
        for device in devices() {
            for loss in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
                let sums = LossSums { loss, weight: 1.0 };
                let inputs = Inputs::new(1e-2, 5, (0.0, 1.0), sums, Some((1.0, 1.0)), device);
                let (w, m, _, copy) = step::<f32, bf16>(&CONFIG, 1003, 0, Some(&inputs.view()), device);
                assert_eq!(w, random::<f32>(1003, 1));
                // Scaled as `step` scales it.
                let m_before: Vec<f32> =
                    random::<f32>(1003, 3).iter().map(|v| (0.1 * f64::from(*v)) as f32).collect();
                assert_eq!(m, m_before);
                assert!(copy.iter().all(|v| v.to_f64() == 7.0));
            }
        }
    }

    #[test]
    fn wrong_copies_and_inputs_are_named() {
        let inputs = Inputs::new(1e-2, 5, (0.0, 1.0), LossSums::default(), None, Device::Cpu);
        let mut buffers = [[0.0f32; 4]; 4];
        let [w, g, m, v] = &mut buffers;
        let mut copy = [0.0f32; 4];
        let view = |v| TensorMut::from_slice(v, &[4]).unwrap();
        let g = TensorRef::from_slice(g, &[4]).unwrap();
        let state = AdamState { m: view(m), v: view(v) };
        let copy = Some(view(&mut copy));
        let error =
            adam_step(&CONFIG, view(w), g, state, copy, Some(&inputs.view())).unwrap_err().to_string();
        assert!(error.contains("compute_weights [4] f32 on cpu") && error.contains("bf16"), "{error}");
    }
}
