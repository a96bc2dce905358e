//! Largest relative difference of what two devices computed, and how large it may be.

use serde::{Deserialize, Serialize};

use crate::config::OptimizerKind;
use crate::config::precision::Precision;

/// A result of a step and how far the devices are apart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The result, such as `gradient of layers.0.weight`.
    pub result: String,
    /// Difference in the step with the largest: relative to the largest magnitude, of layers and gradients in short formats the root mean
    /// squares; infinite if a value is not a number.
    #[serde(serialize_with = "finite")]
    pub relative_difference: f64,
    /// Largest difference that rounding explains.
    pub tolerance: f64,
}

impl Comparison {
    /// Whether rounding explains the difference.
    pub fn agrees(&self) -> bool {
        self.relative_difference <= self.tolerance
    }

    /// The difference as a part of its tolerance.
    pub fn part_of_tolerance(&self) -> f64 {
        if self.relative_difference == 0.0 { 0.0 } else { self.relative_difference / self.tolerance }
    }
}

/// JSON has no infinity.
fn finite<S: serde::Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(value.min(f64::MAX))
}

/// Tolerances for a model in one number format.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tolerances {
    /// Outputs of layers, loss and gradients: the least that rounding explains.
    pub(super) computed: f64,
    /// Rounding errors of the format, with a margin, as a part of the difference between the model in bf16 and in f32 on the CPU: how a
    /// model amplifies them depends on its layers.
    pub(super) of_rounding: f64,
    /// Changes of weights, of state and of buffers: the update is in f32 in every format, and starts from the same gradients.
    pub(super) update: f64,
    /// Values of a parameter whose change may be any: Lion takes the sign of a sum, which rounding decides where it is almost 0.
    pub(super) n_flips: usize,
}

impl Tolerances {
    pub(super) fn of(precision: Precision, optimizer: OptimizerKind) -> Self {
        let (computed, of_rounding) = match precision {
            // Sums of some hundred products in another order, about 2^-22 each; exponentials of GPUs are off by 2^-21. bf16 rounds to
            // 2^-9, 2^15 times as much as f32, but of the largest of all errors a mean says little: the margin is 2^6.
            Precision::F32 | Precision::F64 => (1e-4, 1.0 / (1 << 9) as f64),
            // Factors that are off by up to 2^-22 in place of none.
            Precision::F32x3 => (1e-4, 1.0 / (1 << 7) as f64),
            // 11 bits in place of 8, with a margin of 32: where an activation has a kink, one row decides on a part of the gradient. The
            // CPU multiplies in f32.
            Precision::Tf32 => (2e-2, 4.0),
            Precision::F16 => (1e-2, 4.0),
            // Both devices round to 8 bits, but sums that differ in their last bits may be rounded apart.
            Precision::Bf16 => (5e-2, 8.0),
        };
        // Muon's iteration multiplies small singular values, and their errors, by up to 3.5 in each of its steps.
        let update = if optimizer == OptimizerKind::Muon { 1e-2 } else { 1e-4 };
        let n_flips = usize::from(optimizer == OptimizerKind::Lion);
        Tolerances { computed, of_rounding, update, n_flips }
    }

    /// Tolerance of a result that differs by `rounding` between bf16 and f32, and the mean of its kind by `mean`.
    pub(super) fn with_rounding(&self, rounding: f64, mean: f64) -> f64 {
        let rounding = rounding.max(mean);
        // A result that bf16 changes by a tenth is one in which errors grow from layer to layer, by far more or less in other bits.
        let is_unsteady = rounding > 0.1 && self.of_rounding >= 1.0;
        self.computed.max(if is_unsteady { 10.0 } else { 1.0 } * self.of_rounding * rounding)
    }
}

/// Largest magnitude of finite values.
pub(super) fn magnitude(values: &[f32]) -> f64 {
    values.iter().filter(|value| value.is_finite()).fold(0.0, |max, value| f64::from(value.abs()).max(max))
}

/// Root mean square of finite values.
pub(super) fn root_mean_square(values: &[f32]) -> f64 {
    let squares = values.iter().filter(|value| value.is_finite()).map(|value| f64::from(*value).powi(2));
    (squares.sum::<f64>() / values.len().max(1) as f64).sqrt()
}

/// Largest difference beyond `slack`, but for `n_flips` finite ones, relative to `scale`; infinite if a value is not a number.
pub(super) fn relative_difference(got: &[f32], want: &[f32], slack: f64, scale: f64, n_flips: usize) -> f64 {
    let mut largest = vec![0.0; n_flips + 1];
    for difference in differences(got, want) {
        if difference == f64::INFINITY {
            return difference;
        }
        if let Some(at) = largest.iter().position(|of| difference - slack > *of) {
            largest.insert(at, difference - slack);
            largest.pop();
        }
    }
    relative(largest[n_flips], scale)
}

/// Root mean square of the differences, relative to `scale`; infinite if a value is not a number. Where values are rounded to few
/// bits, single ones say little.
pub(super) fn mean_difference(got: &[f32], want: &[f32], scale: f64) -> f64 {
    let squares: f64 = differences(got, want).map(|of| of * of).sum();
    relative((squares / got.len().max(1) as f64).sqrt(), scale)
}

/// Absolute differences; infinite for what is not a number, and for values that one side lacks.
fn differences<'a>(got: &'a [f32], want: &'a [f32]) -> impl Iterator<Item = f64> + 'a {
    let finite = |difference: f64| if difference.is_finite() { difference } else { f64::INFINITY };
    let of_pairs =
        got.iter().zip(want).map(move |(got, want)| finite((f64::from(*got) - f64::from(*want)).abs()));
    of_pairs.chain((got.len() != want.len()).then_some(f64::INFINITY))
}

fn relative(difference: f64, scale: f64) -> f64 {
    if difference > 0.0 { difference / scale } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_a_number_never_passes_as_one() {
        let nan = f32::NAN;
        assert_eq!(relative_difference(&[1.0, nan], &[1.0, 2.0], 0.0, 2.0, 0), f64::INFINITY);
        assert_eq!(relative_difference(&[1.0, 2.0], &[1.0, nan], 0.0, 2.0, 0), f64::INFINITY);
        assert_eq!(relative_difference(&[f32::INFINITY], &[1.0], 0.0, 1.0, 0), f64::INFINITY);
        assert_eq!(relative_difference(&[nan], &[nan], 0.0, 2.0, 0), f64::INFINITY);
        assert_eq!(relative_difference(&[1.0], &[1.0, 2.0], 0.0, 1.0, 0), f64::INFINITY);
        assert_eq!(relative_difference(&[1.5], &[1.0], 0.0, 2.0, 0), 0.25);
        assert_eq!(relative_difference(&[0.0], &[0.0], 0.0, 0.0, 0), 0.0);
        assert_eq!(relative_difference(&[1e-9], &[0.0], 0.0, 0.0, 0), f64::INFINITY);
        assert_eq!(relative_difference(&[1.0, 2.0, 4.0], &[1.5, 2.0, 2.0], 0.0, 1.0, 1), 0.5);
        assert_eq!(relative_difference(&[nan, 2.0], &[1.5, 2.0], 0.0, 1.0, 1), f64::INFINITY);
        assert_eq!(mean_difference(&[1.0, 3.0], &[1.0, 3.0 - 2f32.sqrt()], 2.0) as f32, 0.5);
        assert_eq!(mean_difference(&[1.0, nan], &[1.0, 2.0], 2.0), f64::INFINITY);
        assert_eq!(magnitude(&[-3.0, 2.0, nan]), 3.0);
        assert_eq!(root_mean_square(&[3.0, -3.0]), 3.0);
    }
}
