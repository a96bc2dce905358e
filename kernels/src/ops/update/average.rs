//! Moving average of the weights, which an update moves in its pass.

use crate::cpu::Float;
use crate::{Result, TensorMut};

/// Exponential moving average of the weights: an optimizer's step moves it toward the new weights.
///
/// `ema += (1 - d)·(weights - ema)`; in step 1 `ema = weights`. `d` is `decay`, with a warm-up the smaller one of `decay` and
/// `step / (step + 9)`.
///
/// Source: `torch.optim.swa_utils.AveragedModel` with `get_ema_multi_avg_fn(decay)`, and `torch.lerp`, whose two forms
/// meet at a weight of 0.5; the warm-up is `num_updates` of `tf.train.ExponentialMovingAverage`, counted from 0 in step 1.
#[derive(Debug)]
#[doc(hidden)]
pub struct Average<'a> {
    /// Of the weights' shape and dtype; updated in place.
    pub ema: TensorMut<'a>,
    /// Fraction of the average that is kept, in [0, 1).
    pub decay: f64,
    /// Whether early steps keep less of the average, so that it forgets the first weights.
    pub warms_up: bool,
    /// Number of this step, from 1. Unused if the step gets [`UpdateInputs`](super::UpdateInputs).
    pub step: u64,
}

/// The average in host memory.
pub(super) struct CpuAverage<'a, T> {
    pub(super) ema: &'a mut [T],
    pub(super) rule: Rule,
}

/// The numbers of the formula.
#[derive(Clone, Copy)]
pub(super) struct Rule {
    decay: f64,
    warms_up: bool,
    step: u64,
}

impl<'a> Average<'a> {
    pub(super) fn on_cpu<T: Float>(self, op: &'static str) -> Result<CpuAverage<'a, T>> {
        let rule = Rule { decay: self.decay, warms_up: self.warms_up, step: self.step };
        Ok(CpuAverage { ema: self.ema.into_slice(op, "ema")?, rule })
    }
}

impl Rule {
    #[inline(always)]
    pub(super) fn apply<T: Float>(self, ema: &mut [T], weights: &[T]) {
        if self.step == 1 {
            return ema.copy_from_slice(weights);
        }
        let step = self.step as f64;
        let decay = if self.warms_up { self.decay.min(step / (step + 9.0)) } else { self.decay };
        let weight = T::from_f64(1.0 - decay);
        let rest = T::from_f64(1.0) - weight;
        let is_near = 1.0 - decay < 0.5;
        for (e, &w) in ema.iter_mut().zip(weights) {
            *e = if is_near { *e + weight * (w - *e) } else { w - (w - *e) * rest };
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::{assert_close, devices, random, tensor, traffic};
    use crate::ops::update::testing::Inputs;
    use crate::ops::{
        Average, LossSums, OptimizerKind, OptimizerParams, OptimizerTensors, UpdateInputs, optimizer_step,
    };
    use crate::{Device, Element};

    /// The average after a step that leaves the weights as they are, on elements `from..` of buffers of `n`.
    fn averaged<T: Element>(
        (decay, warms_up, step): (f64, bool, u64),
        (n, from): (usize, usize),
        inputs: Option<&UpdateInputs<'_>>,
        device: Device,
    ) -> Vec<T> {
        let (mut ema, mut weights) =
            (tensor(&random::<T>(n, 1), &[n], device), tensor(&random::<T>(n, 2), &[n], device));
        let grads = tensor(&vec![T::from_f64(0.0); n], &[n], device);
        let tensors = OptimizerTensors {
            master_weights: weights.view_mut().range(from, n).unwrap(),
            grads: grads.view().range(from, n).unwrap(),
            state: [None, None],
            average: Some(Average { ema: ema.view_mut().range(from, n).unwrap(), decay, warms_up, step }),
            compute_weights: None,
            norms: None,
        };
        optimizer_step(OptimizerKind::Sgd, &OptimizerParams::default(), tensors, inputs).unwrap();
        assert_eq!(weights.to_vec::<T>().unwrap(), random::<T>(n, 2));
        ema.to_vec().unwrap()
    }

    fn check_device<T: Element>(device: Device, tolerance: f64) {
        for (n, from) in [(1, 0), (1003, 0), (1003, 1), (40_000, 4)] {
            let (before, weights) = (random::<T>(n, 1), random::<T>(n, 2));
            for decay in [0.0, 0.4, 0.5, 0.999] {
                let got = averaged::<T>((decay, false, 2), (n, from), None, device);
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
            assert_eq!(
                averaged::<T>((0.999, false, 1), (n, from), None, device)[from..],
                weights[from..],
                "step 1"
            );
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
    fn a_warm_up_keeps_little_of_the_first_weights() {
        for device in devices() {
            let averaged = |step| averaged::<f64>((0.9, true, step), (1003, 0), None, device);
            let (before, weights) = (random::<f64>(1003, 1), random::<f64>(1003, 2));
            // In step 2 it is 2/11, in step 81 the decay itself.
            for (step, decay) in [(2, 2.0 / 11.0), (9, 0.5), (81, 0.9), (1000, 0.9)] {
                let want = before.iter().zip(&weights).map(|(e, w)| decay * e + (1.0 - decay) * w);
                assert_close(&averaged(step), &want.collect::<Vec<_>>(), 1e-15, 1e-15);
            }
        }
    }

    #[test]
    fn the_step_comes_from_device_memory_and_a_step_that_was_left_out_counts_for_nothing() {
        for device in devices() {
            let fine = LossSums { loss: 0.5, weight: 1.0 };
            // The step of the average is ignored.
            for (in_memory, by_value) in [(1, 2), (2, 1)] {
                let inputs = Inputs::new(0.1, in_memory, (0.0, 1.0), fine, None, device);
                assert_eq!(
                    averaged::<f32>((0.9, true, by_value), (1003, 0), Some(&inputs.view()), device),
                    averaged::<f32>((0.9, true, in_memory), (1003, 0), None, device)
                );
            }
            let no_loss = LossSums { loss: f64::NAN, weight: 1.0 };
            for (sums, squares) in [(no_loss, None), (fine, Some((f64::INFINITY, f64::INFINITY)))] {
                let inputs = Inputs::new(0.1, 2, (0.0, 1.0), sums, squares, device);
                let ema = averaged::<f32>((0.9, true, 2), (1003, 0), Some(&inputs.view()), device);
                assert_eq!(ema, random::<f32>(1003, 1));
            }
        }
    }

    /// The average follows the weights that the same pass has written, in every bit, and no buffer is read or written twice.
    #[test]
    fn an_optimizer_and_its_average_take_one_pass() {
        const N: usize = 5003;
        for device in devices() {
            for kind in OptimizerKind::ALL.iter().copied().filter(|kind| !kind.has_first_pass()) {
                let params =
                    OptimizerParams { momentum: 0.9, weight_decay: 0.1, step: 3, ..Default::default() };
                let new = |seed: u64| tensor(&random::<f32>(N, seed), &[N], device);
                let (mut weights, grads, mut ema) = (new(1), new(2), new(3));
                let mut state: Vec<_> =
                    kind.state_names(&params).iter().map(|_| tensor(&[0.5f32; N], &[N], device)).collect();
                let all = [&weights, &grads, &ema, &state[0]].map(traffic);
                let mut views = state.iter_mut().map(|state| state.view_mut());
                let tensors = OptimizerTensors {
                    master_weights: weights.view_mut(),
                    grads: grads.view(),
                    state: std::array::from_fn(|_| views.next()),
                    average: Some(Average { ema: ema.view_mut(), decay: 0.9, warms_up: false, step: 3 }),
                    compute_weights: None,
                    norms: None,
                };
                optimizer_step(kind, &params, tensors, None).unwrap();
                drop(views);
                let bytes = 4 * N as u64;
                let want = [[bytes; 2], [bytes, 0], [bytes; 2], [bytes; 2]];
                let after = [&weights, &grads, &ema, &state[0]].map(traffic);
                for ((before, after), want) in all.into_iter().zip(after).zip(want) {
                    let Some(([read, written], after)) = before.zip(after) else { continue };
                    assert_eq!([after[0] - read, after[1] - written], want, "{kind} on {device}");
                }
                let want: Vec<f64> = random::<f32>(N, 3)
                    .into_iter()
                    .zip(weights.to_vec::<f32>().unwrap())
                    .map(|(ema, w)| f64::from(ema) + 0.1 * (f64::from(w) - f64::from(ema)))
                    .collect();
                let got: Vec<f64> = ema.to_vec::<f32>().unwrap().into_iter().map(f64::from).collect();
                assert_close(&got, &want, 5e-7, 0.0);
            }
        }
    }
}
