//! Adam and AdamW.

mod cpu;
pub(crate) mod cuda;

pub(crate) use cuda::SOURCE;

use super::{UpdateInputs, check, working_copy as copies};
use crate::{DType, Result, TensorMut, TensorRef};

/// How weights decay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightDecay {
    /// As an L2 penalty in the gradient: Adam.
    Coupled,
    /// Directly, apart from the gradient: AdamW.
    Decoupled,
}

/// Hyper-parameters of one step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamConfig {
    /// Learning rate. This, `step` and `grad_scale` count only where an update is given no [`UpdateInputs`].
    pub lr: f64,
    /// Decay rates of the two moments.
    pub betas: [f64; 2],
    /// Added to the root of the second moment.
    pub eps: f64,
    /// Factor of the learning rate, wherever that comes from.
    pub lr_scale: f64,
    /// Weight decay.
    pub weight_decay: f64,
    /// Its kind.
    pub decay: WeightDecay,
    /// Number of this step, from 1.
    pub step: u64,
    /// The gradient is multiplied by this first (clipping, or what remains of a mean).
    pub grad_scale: f64,
}

/// The moments, both starting as zeros.
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
/// - `weights`, `grads`, `state.m`, `state.v`: one shape, f32 or f64
/// - `working_copy`: bf16 or f16, of that shape: the new weights rounded to nearest, ties to even
/// - with `inputs`, `lr` and `step` are read from its scalars and the gradient's factor is that of the step's sums and
///   norm; where the loss is not finite nothing is written. `config.{lr, step, grad_scale}` then count for nothing.
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
    weights: TensorMut<'_>,
    grads: TensorRef<'_>,
    state: AdamState<'_>,
    working_copy: Option<TensorMut<'_>>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    const OP: &str = "adam_step";
    let AdamState { m, v } = state;
    let (weights_op, grads_op) = (weights.operand("weights"), grads.operand("grads"));
    let (m_op, v_op) = (m.operand("m"), v.operand("v"));
    check::same_kind(OP, &[weights_op, grads_op, m_op, v_op])?;
    for operand in [grads_op, m_op, v_op] {
        check::shape(OP, operand, weights.shape())?;
    }
    copies::check(OP, weights_op, working_copy.as_ref())?;
    if let Some(inputs) = inputs {
        inputs.check(OP, weights_op)?;
    }
    if let Some(gpu) = weights.gpu() {
        check::dtype(OP, weights_op, &[DType::F32, DType::F64], "f32 and f64")?;
        let buffers = cuda::Buffers {
            w: weights.into_cuda()?,
            g: grads.cuda()?,
            m: m.into_cuda()?,
            v: v.into_cuda()?,
            copy: working_copy.map(TensorMut::into_cuda).transpose()?,
        };
        return cuda::step(gpu, config, buffers, inputs);
    }
    let mut config = *config;
    if let Some(inputs) = inputs {
        let (scalars, grads) = inputs.on_host(OP)?;
        if !grads.is_finite {
            return Ok(());
        }
        config = AdamConfig { lr: scalars.lr, step: scalars.step, grad_scale: grads.scale, ..config };
    }
    check::float_dispatch!(OP, weights_op, T => {
        let weights = weights.into_slice::<T>(OP, "weights")?;
        cpu::step::<T>(
            &config,
            weights,
            grads.as_slice(OP, "grads")?,
            m.into_slice(OP, "m")?,
            v.into_slice(OP, "v")?,
        );
        if let Some(copy) = working_copy {
            copies::round(OP, weights, copy)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::ops::LossSums;
    use crate::ops::testing::{assert_close, devices, random, tensor};
    use crate::ops::working_copy::testing::{Case, Inputs, cases};
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
                // The kernel contracts products and sums: each value is a rounding or two of numbers up to 2 apart.
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
                // Whatever the config says of these counts for nothing.
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
        assert!(error.contains("working_copy [4] f32 on cpu") && error.contains("bf16"), "{error}");
    }
}
