//! Exponential moving average of the weights.

mod cpu;

use super::{StepScalars, Tensors, Update, UpdateInputs, cuda, kernels, run, source};
use crate::cpu::Float;
use crate::cuda::launch::{Argument, Source};
use crate::{Result, TensorMut, TensorRef};

pub(crate) static SOURCE: Source = source("ema", include_str!("kernel.cu"));

/// Parameters of one update of the average.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmaConfig {
    /// Fraction of the average that is kept, in [0, 1).
    pub decay: f64,
    /// Number of this step, from 1. Unused if the update gets [`UpdateInputs`].
    pub step: u64,
}

/// Moves the average towards the weights after a step, in place.
///
/// `ema += (1 - decay)·(weights - ema)`; in step 1 `ema = weights`
///
/// - `ema`, `weights`: one shape, f32 or f64
/// - with `inputs`, the step number is read from their scalars; if loss or gradient is not finite, nothing is written, as
///   in the update of the weights
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`],
/// [`crate::KernelError::DTypeUnsupported`], [`crate::KernelError::Shape`].
///
/// Source: `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn(decay)`, and `torch.lerp`, whose two forms
/// meet at a weight of 0.5.
pub fn ema_update(
    config: &EmaConfig,
    ema: TensorMut<'_>,
    weights: TensorRef<'_>,
    inputs: Option<&UpdateInputs<'_>>,
) -> Result<()> {
    run(*config, Tensors { target: ema, source: weights, state: [], compute_weights: None }, inputs)
}

/// `Params` of `kernel.cu`.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(super) struct EmaParams {
    decay: f64,
    step: u64,
}

impl Argument for EmaParams {}

impl Update<0> for EmaConfig {
    const OP: &'static str = "ema_update";
    const OPERANDS: [&'static str; 2] = ["ema", "weights"];
    const STATE: [&'static str; 0] = [];
    const KERNELS: cuda::Kernels = kernels!("ema");
    type Params = EmaParams;

    fn params(&self) -> EmaParams {
        EmaParams { decay: self.decay, step: self.step }
    }

    fn at_step(self, scalars: &StepScalars, _grad_scale: f64) -> Self {
        EmaConfig { step: scalars.step, ..self }
    }

    #[inline(always)]
    fn apply<T: Float>(&self, ema: &mut [T], weights: &[T], []: [&mut [T]; 0]) {
        cpu::apply(self.decay, self.step, ema, weights);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::LossSums;
    use crate::ops::testing::{assert_close, devices, random, tensor};
    use crate::ops::update::testing::Inputs;
    use crate::{Device, Element};

    /// The average after an update of elements `from..` of buffers of `n`.
    fn updated<T: Element>(
        (decay, step): (f64, u64),
        (n, from): (usize, usize),
        inputs: Option<&UpdateInputs<'_>>,
        device: Device,
    ) -> Vec<T> {
        let (mut ema, weights) =
            (tensor(&random::<T>(n, 1), &[n], device), tensor(&random::<T>(n, 2), &[n], device));
        let (ema_view, weights) =
            (ema.view_mut().range(from, n).unwrap(), weights.view().range(from, n).unwrap());
        ema_update(&EmaConfig { decay, step }, ema_view, weights, inputs).unwrap();
        ema.to_vec().unwrap()
    }

    fn check_device<T: Element>(device: Device, tolerance: f64) {
        for (n, from) in [(1, 0), (1003, 0), (1003, 1), (40_000, 4)] {
            let (before, weights) = (random::<T>(n, 1), random::<T>(n, 2));
            for decay in [0.0, 0.4, 0.5, 0.999] {
                let got = updated::<T>((decay, 2), (n, from), None, device);
                let want: Vec<f64> = before
                    .iter()
                    .zip(&weights)
                    .map(|(e, w)| decay * e.to_f64() + (1.0 - decay) * w.to_f64())
                    .collect();
                let got_f64: Vec<f64> = got.iter().map(|v| v.to_f64()).collect();
                // A few roundings of numbers below 2.
                assert_close(&got_f64[from..], &want[from..], tolerance, tolerance);
                assert_eq!(got[..from], before[..from], "nothing is written before the range");
            }
            assert_eq!(updated::<T>((0.999, 1), (n, from), None, device)[from..], weights[from..], "step 1");
        }
    }

    #[test]
    fn moves_towards_the_weights_and_begins_as_them() {
        for device in devices() {
            check_device::<f32>(device, 5e-7);
            check_device::<f64>(device, 1e-15);
        }
    }

    #[test]
    fn the_step_comes_from_device_memory_and_a_step_that_was_left_out_counts_for_nothing() {
        for device in devices() {
            let fine = LossSums { loss: 0.5, weight: 1.0 };
            // The step of the config is ignored.
            for (in_memory, by_value) in [(1, 2), (2, 1)] {
                let inputs = Inputs::new(0.1, in_memory, (0.0, 1.0), fine, None, device);
                assert_eq!(
                    updated::<f32>((0.9, by_value), (1003, 0), Some(&inputs.view()), device),
                    updated::<f32>((0.9, in_memory), (1003, 0), None, device)
                );
            }
            let no_loss = LossSums { loss: f64::NAN, weight: 1.0 };
            for (sums, squares) in [(no_loss, None), (fine, Some((f64::INFINITY, f64::INFINITY)))] {
                let inputs = Inputs::new(0.1, 2, (0.0, 1.0), sums, squares, device);
                let ema = updated::<f32>((0.9, 2), (1003, 0), Some(&inputs.view()), device);
                assert_eq!(ema, random::<f32>(1003, 1));
            }
        }
    }
}
