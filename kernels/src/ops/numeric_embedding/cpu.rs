//! Rows over threads; for the gradients of parameters, columns of the input over threads, each in the order of the rows.

use super::{Dims, NumericEmbedding};
use crate::cpu::Stored;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::{Element as _, Result};

/// Cosines per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 12;

pub(super) struct Params<'a, T: Stored> {
    frequencies: &'a [T::Real],
    phases: &'a [T::Real],
    weight: &'a [T::Real],
    bias: &'a [T::Real],
}

impl<T: Stored> Clone for Params<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T: Stored> Copy for Params<'_, T> {}

impl<'a, T: Stored> Params<'a, T> {
    pub(super) fn new(op: &'static str, params: NumericEmbedding<'a>) -> Result<Self> {
        Ok(Params {
            frequencies: params.frequencies.as_slice(op, "frequencies")?,
            phases: params.phases.as_slice(op, "phases")?,
            weight: params.weight.as_slice(op, "weight")?,
            bias: params.bias.as_slice(op, "bias")?,
        })
    }

    /// The angle of cosine `at` of a column.
    #[inline(always)]
    fn angle(&self, at: usize, x: T::Real) -> f64 {
        (two_pi::<T>() * self.frequencies[at] * x + self.phases[at]).to_f64()
    }
}

fn two_pi<T: Stored>() -> T::Real {
    T::Real::from_f64(std::f64::consts::TAU)
}

fn real<T: Stored>(value: f64) -> T::Real {
    T::Real::from_f64(value)
}

pub(super) fn forward<T: Stored>(x: &[T], params: Params<'_, T>, y: &mut [T], dims: Dims) {
    let Dims { features, frequencies, outputs } = dims;
    if x.is_empty() {
        return;
    }
    let y = SharedMut::new(y);
    for_parts(x.len(), MIN_PART.div_ceil(frequencies.max(1)), 1, |part| {
        let width = 1 + outputs;
        // SAFETY: these numbers lie within `y` and are this thread's alone.
        let y = unsafe { y.slice(part.start * width..part.end * width) };
        for (i, y) in part.zip(y.chunks_exact_mut(width)) {
            let feature = i % features;
            y[0] = x[i];
            for (e, y) in y[1..].iter_mut().enumerate() {
                let mut sum = params.bias[feature * outputs + e];
                for k in feature * frequencies..(feature + 1) * frequencies {
                    let cos = real::<T>(params.angle(k, x[i].load()).cos());
                    sum += params.weight[k * outputs + e] * cos;
                }
                *y = T::store(sum);
            }
        }
    });
}

/// The gradient of the angle of cosine `k`.
#[inline(always)]
fn of_angle<T: Stored>(params: &Params<'_, T>, k: usize, x: T::Real, d: &[T]) -> T::Real {
    let weight = &params.weight[k * d.len()..][..d.len()];
    let of_cos: T::Real = d.iter().zip(weight).map(|(d, &w)| d.load() * w).sum();
    -of_cos * real::<T>(params.angle(k, x).sin())
}

pub(super) fn backward<T: Stored>(
    x: &[T],
    params: Params<'_, T>,
    d: &[T],
    grads: Vec<&mut [T::Real]>,
    dims: Dims,
) {
    let Dims { features, frequencies, outputs } = dims;
    let grads: Vec<_> = grads.into_iter().map(SharedMut::new).collect();
    let rows = x.len().checked_div(features).unwrap_or(0);
    for_parts(features, MIN_PART.div_ceil((rows * frequencies).max(1)), 1, |part| {
        for feature in part {
            let of_feature = |which: usize, len: usize| {
                // SAFETY: the gradients of this column's parameters lie within their tensors and are this thread's alone.
                unsafe { grads[which].slice(feature * len..(feature + 1) * len) }
            };
            let (d_frequencies, d_phases) = (of_feature(0, frequencies), of_feature(1, frequencies));
            let (d_weight, d_bias) = (of_feature(2, frequencies * outputs), of_feature(3, outputs));
            for row in 0..rows {
                let at = row * features + feature;
                let x = x[at].load();
                let d = &d[at * (1 + outputs) + 1..(at + 1) * (1 + outputs)];
                for (d_bias, d) in d_bias.iter_mut().zip(d) {
                    *d_bias += d.load();
                }
                for k in 0..frequencies {
                    let of_angle = of_angle(&params, feature * frequencies + k, x, d);
                    d_frequencies[k] += two_pi::<T>() * x * of_angle;
                    d_phases[k] += of_angle;
                    let cos = real::<T>(params.angle(feature * frequencies + k, x).cos());
                    for (d_weight, d) in d_weight[k * outputs..].iter_mut().zip(d) {
                        *d_weight += d.load() * cos;
                    }
                }
            }
        }
    });
}

pub(super) fn backward_input<T: Stored>(
    x: &[T],
    params: Params<'_, T>,
    d: &[T],
    d_x: &mut [T],
    accumulate: bool,
    dims: Dims,
) {
    let Dims { features, frequencies, outputs } = dims;
    let d_x = SharedMut::new(d_x);
    for_parts(x.len(), MIN_PART.div_ceil(frequencies.max(1)), 1, |part| {
        // SAFETY: these numbers lie within `d_x` and are this thread's alone.
        let d_x = unsafe { d_x.slice(part.clone()) };
        for (i, d_x) in part.zip(d_x) {
            let feature = i % features;
            let d = &d[i * (1 + outputs)..(i + 1) * (1 + outputs)];
            let mut sum = d[0].load();
            if accumulate {
                sum += d_x.load();
            }
            for k in feature * frequencies..(feature + 1) * frequencies {
                sum += two_pi::<T>() * params.frequencies[k] * of_angle(&params, k, x[i].load(), &d[1..]);
            }
            *d_x = T::store(sum);
        }
    });
}
