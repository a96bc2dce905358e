//! The numbers that change from step to step, and their layout in a tensor.

/// Numbers that change from step to step. Operations read them from device memory, so that a captured graph sees new ones at
/// each replay.
#[derive(Debug, Clone, Copy, PartialEq)]
#[doc(hidden)]
pub struct StepScalars {
    /// Learning rate.
    pub lr: f64,
    /// Number of the optimizer step, from 1.
    pub step: u64,
    /// Seed of the dropout masks.
    pub seed: u64,
    /// Index in the global batch of the first row that is computed here.
    pub first_row: u64,
    /// Divisor of the gradients, if the sum of weights may differ from it (class or row weights); else 0.
    pub expected_weight: f64,
    /// Factor that undoes loss scaling: 1 / loss_scale, a power of two; 1 without loss scaling.
    pub unscale: f64,
    /// `β^step` for the decay rates of Adam ([`super::OptimizerParams::beta_powers`]): GPUs take them from here.
    pub beta_powers: [f64; 2],
    /// A value of the caller, to be summed with the gradients at [`super::STEP_SUMS_EXTRA`].
    pub extra: f64,
    /// A step whose mean loss is above this limit does not update the weights; infinity lets every finite loss pass, negative
    /// infinity none.
    pub loss_limit: f64,
}

impl Default for StepScalars {
    /// The first step of a loss that is neither weighted nor scaled, without bias correction.
    fn default() -> Self {
        StepScalars {
            lr: 0.0,
            step: 1,
            seed: 0,
            first_row: 0,
            expected_weight: 0.0,
            unscale: 1.0,
            beta_powers: [0.0; 2],
            extra: 0.0,
            loss_limit: f64::INFINITY,
        }
    }
}

/// Elements (f64) of [`StepScalars`] in a tensor.
#[doc(hidden)]
pub const STEP_SCALARS_LEN: usize = 11;
/// Index of [`StepScalars::extra`] in a tensor; a loss copies it to [`super::STEP_SUMS_EXTRA`] ([`super::SumsOutput::extra`]).
#[doc(hidden)]
pub const STEP_SCALARS_EXTRA: usize = 7;
/// Index of [`StepScalars::loss_limit`] in a tensor.
const LOSS_LIMIT: usize = 10;

impl StepScalars {
    /// `[lr, step, seed's lower 32 bits, seed's upper 32 bits, first_row, expected_weight, unscale, extra, beta_powers...,
    /// loss_limit]`, each
    /// exact in f64.
    pub fn to_array(self) -> [f64; STEP_SCALARS_LEN] {
        let half = |v: u64| f64::from(v as u32);
        let (low, high) = (half(self.seed), half(self.seed >> 32));
        let (step, first_row, [power1, power2]) = (self.step as f64, self.first_row as f64, self.beta_powers);
        let StepScalars { lr, expected_weight, unscale, extra, loss_limit, .. } = self;
        [lr, step, low, high, first_row, expected_weight, unscale, extra, power1, power2, loss_limit]
    }

    /// The inverse of [`StepScalars::to_array`].
    pub fn from_slice(values: &[f64]) -> Self {
        StepScalars {
            lr: values[0],
            step: values[1] as u64,
            seed: values[2] as u64 | (values[3] as u64) << 32,
            first_row: values[4] as u64,
            expected_weight: values[5],
            unscale: values[6],
            extra: values[STEP_SCALARS_EXTRA],
            loss_limit: values[LOSS_LIMIT],
            beta_powers: [values[8], values[9]],
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn scalars_survive_the_array(
            lr in 0.0f64..10.0, step in 1u64..1 << 50, seed: u64, first_row in 0u64..1 << 50, extra in 0u32..9,
            loss_limit in -9.0f64..9.0,
        ) {
            let extra = f64::from(extra);
            let (expected_weight, unscale, beta_powers) = (0.5, 0.25, [0.9, 0.99]);
            let scalars = StepScalars {
                lr, step, seed, first_row, expected_weight, unscale, beta_powers, extra, loss_limit,
            };
            prop_assert_eq!(StepScalars::from_slice(&scalars.to_array()), scalars);
            prop_assert_eq!(scalars.to_array()[STEP_SCALARS_EXTRA], extra);
        }
    }
}
