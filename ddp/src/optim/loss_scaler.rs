//! Dynamic loss scaling for f16: large enough that small gradients do not underflow, small enough that large ones stay finite.
//!
//! The gradient of the loss is multiplied by the scale before backward, and the gradients of the weights, in f32, by its
//! reciprocal in the update. A step whose gradients are not finite is skipped: it changes neither weights nor optimizer state and
//! is not counted. The scale is then halved; after [`LossScalerConfig::growth_interval`] finite steps in a row it is doubled. If
//! the factors are powers of two, the scale stays a power of two, so scaling causes no rounding.
//!
//! All ranks see the same reduced gradients, so their scalers stay equal without communication.
//!
//! Source: `torch.amp.GradScaler`, with two differences: the scale never falls below [`LossScalerConfig::min_scale`], and too
//! many skipped steps in a row at that scale are an error, because a smaller scale can't help.
//!
//! ```
//! use ddp::optim::{LossScaler, LossScalerConfig};
//!
//! let mut scaler = LossScaler::new(LossScalerConfig::default());
//! scaler.update(false)?;
//! assert_eq!((scaler.scale(), scaler.n_skipped()), (32768.0, 1));
//! for _ in 0..2000 {
//!     scaler.update(true)?;
//! }
//! assert_eq!(scaler.scale(), 65536.0);
//! # Ok::<(), ddp::optim::loss_scaler::LossScalerError>(())
//! ```

use serde::{Deserialize, Serialize};

use crate::config::AGAINST_DIVERGENCE;

/// Settings of the loss scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossScalerConfig {
    /// The initial scale.
    pub init_scale: f64,
    /// Factor after `growth_interval` finite steps in a row, above 1.
    pub growth_factor: f64,
    /// Factor after a step that is not finite, below 1.
    pub backoff_factor: f64,
    /// Finite steps in a row after which the scale grows.
    pub growth_interval: u64,
    /// The smallest scale.
    pub min_scale: f64,
    /// Number of skipped steps in a row at the smallest scale after which the run fails.
    pub max_skips: u64,
}

impl Default for LossScalerConfig {
    /// Defaults of `torch.amp.GradScaler`, with a minimum scale of 1 and at most 50 skips in a row at that scale.
    fn default() -> Self {
        LossScalerConfig {
            init_scale: 65536.0,
            growth_factor: 2.0,
            backoff_factor: 0.5,
            growth_interval: 2000,
            min_scale: 1.0,
            max_skips: 50,
        }
    }
}

/// State of a scaler in a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossScalerState {
    /// The scale of the next step.
    pub scale: f64,
    /// Finite steps since the scale last changed.
    pub n_good_in_row: u64,
    /// Number of most recent steps that were skipped in a row at the smallest scale.
    pub n_skipped_in_row: u64,
    /// Number of skipped steps since the start.
    pub n_skipped: u64,
}

/// An error of loss scaling.
#[derive(Debug, Clone, PartialEq, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
pub enum LossScalerError {
    /// Gradients are not finite even at the smallest scale.
    #[error(
        "gradients were not finite for {n_skipped_in_row} steps in a row, although the loss scale is down to {scale}"
    )]
    #[diagnostic(help(
        "\
         use `train.precision = \"bf16\"`, whose range is that of f32; or {AGAINST_DIVERGENCE}"
    ))]
    Exhausted {
        /// Steps skipped in a row.
        n_skipped_in_row: u64,
        /// The smallest scale.
        scale: f64,
    },
    /// The state is invalid.
    #[error("loss scale is {scale}, expected a finite number of at least {min_scale}")]
    State {
        /// Scale in the state.
        scale: f64,
        /// Smallest valid scale.
        min_scale: f64,
    },
}

/// Adapts the loss scale.
#[derive(Debug, Clone, PartialEq)]
pub struct LossScaler {
    config: LossScalerConfig,
    state: LossScalerState,
}

impl LossScaler {
    /// Creates a scaler before its first step.
    pub fn new(config: LossScalerConfig) -> Self {
        let state = LossScalerState {
            scale: config.init_scale.max(config.min_scale),
            n_good_in_row: 0,
            n_skipped_in_row: 0,
            n_skipped: 0,
        };
        LossScaler { config, state }
    }

    /// Creates a scaler that resumes from `state`.
    ///
    /// # Errors
    /// [`LossScalerError::State`] if the scale is not finite or is below the smallest scale.
    pub fn from_state(config: LossScalerConfig, state: LossScalerState) -> Result<Self, LossScalerError> {
        let (scale, min_scale) = (state.scale, config.min_scale);
        if !(scale.is_finite() && scale >= min_scale) {
            return Err(LossScalerError::State { scale, min_scale });
        }
        Ok(LossScaler { config, state })
    }

    /// Loss scale of the next step.
    pub fn scale(&self) -> f64 {
        self.state.scale
    }

    /// State for a checkpoint.
    pub fn state(&self) -> LossScalerState {
        self.state
    }

    /// Number of skipped steps since the start.
    pub fn n_skipped(&self) -> u64 {
        self.state.n_skipped
    }

    /// Adapts the scale after a step: `is_finite` says whether its reduced gradients were finite. If not, the caller skips the step.
    ///
    /// # Errors
    /// [`LossScalerError::Exhausted`] after [`LossScalerConfig::max_skips`] such steps in a row at the smallest scale.
    pub fn update(&mut self, is_finite: bool) -> Result<(), LossScalerError> {
        let (config, state) = (&self.config, &mut self.state);
        if is_finite {
            state.n_skipped_in_row = 0;
            state.n_good_in_row += 1;
            if state.n_good_in_row >= config.growth_interval {
                state.n_good_in_row = 0;
                let grown = state.scale * config.growth_factor;
                // The device receives the factor as f32.
                if (grown as f32).is_finite() {
                    state.scale = grown;
                }
            }
            return Ok(());
        }
        state.n_skipped += 1;
        state.n_good_in_row = 0;
        if state.scale > config.min_scale {
            state.scale = (state.scale * config.backoff_factor).max(config.min_scale);
            return Ok(());
        }
        state.n_skipped_in_row += 1;
        if state.n_skipped_in_row >= config.max_skips {
            let LossScalerState { n_skipped_in_row, scale, .. } = *state;
            return Err(LossScalerError::Exhausted { n_skipped_in_row, scale });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn after(scaler: &LossScaler, steps: impl IntoIterator<Item = bool>) -> LossScaler {
        let mut scaler = scaler.clone();
        steps.into_iter().for_each(|is_finite| scaler.update(is_finite).unwrap());
        scaler
    }

    fn state(scale: f64, n_good_in_row: u64, n_skipped_in_row: u64, n_skipped: u64) -> LossScalerState {
        LossScalerState { scale, n_good_in_row, n_skipped_in_row, n_skipped }
    }

    #[test]
    fn the_scale_doubles_after_2000_finite_steps_and_halves_after_one_that_is_not() {
        let new = LossScaler::new(LossScalerConfig::default());
        assert_eq!(new.state(), state(65536.0, 0, 0, 0));
        assert_eq!(after(&new, [true; 1999]).state(), state(65536.0, 1999, 0, 0));
        assert_eq!(after(&new, [true; 2000]).state(), state(131_072.0, 0, 0, 0));
        assert_eq!(after(&new, [true; 4001]).state(), state(262_144.0, 1, 0, 0));
        // A skip restarts the count.
        let steps = [true; 1999].into_iter().chain([false]).chain([true; 1999]);
        assert_eq!(after(&new, steps.clone()).state(), state(32768.0, 1999, 0, 1));
        assert_eq!(after(&new, steps.chain([true])).state(), state(65536.0, 0, 0, 1));
    }

    /// Simulates gradients that are finite up to `largest_scale`, and a weight that each step moves by one.
    #[test]
    fn recovers_from_overflows_and_a_skipped_step_is_not_done() {
        let mut scaler = LossScaler::new(LossScalerConfig { growth_interval: 10, ..Default::default() });
        let (mut weight, mut n_done, mut n_tried) = (0.0, 0, 0);
        while n_done < 100 {
            n_tried += 1;
            // An overflow in the middle of training, at any scale: a spike.
            let largest_scale = if n_tried == 50 { 0.5 } else { 1024.0 };
            let gradient = if scaler.scale() <= largest_scale { scaler.scale() } else { f64::INFINITY };
            let before = weight;
            if gradient.is_finite() {
                weight += gradient / scaler.scale();
                n_done += 1;
            }
            scaler.update(gradient.is_finite()).unwrap();
            assert_eq!(weight - before, f64::from(u8::from(gradient.is_finite())));
        }
        assert_eq!((weight, n_tried - n_done), (100.0, scaler.n_skipped()));
        assert!((256.0..=2048.0).contains(&scaler.scale()), "{}", scaler.scale());
        // Six halvings to 1024, the spike, and one halving for each attempt to grow beyond.
        assert!((7..=20).contains(&scaler.n_skipped()), "{}", scaler.n_skipped());
    }

    #[test]
    fn the_scale_stays_within_its_bounds() {
        let new = LossScaler::new(LossScalerConfig::default());
        assert_eq!(after(&new, [false; 16]).state(), state(1.0, 0, 0, 16));
        assert_eq!(after(&new, [false; 17]).state(), state(1.0, 0, 1, 17));
        let eager = LossScaler::new(LossScalerConfig { growth_interval: 1, ..Default::default() });
        assert_eq!(after(&eager, [true; 500]).scale(), 2f64.powi(127));
        let odd =
            LossScaler::new(LossScalerConfig { init_scale: 3.0, backoff_factor: 0.25, ..Default::default() });
        assert_eq!(after(&odd, [false]).scale(), 1.0);
    }

    #[test]
    fn too_many_skips_at_the_smallest_scale_say_what_to_do() {
        let new = LossScaler::new(LossScalerConfig::default());
        let mut last = after(&new, [false; 16 + 49]);
        // A finite step in between restarts the count.
        assert_eq!(after(&last, [true]).state(), state(1.0, 1, 0, 65));
        assert_eq!(after(&after(&last, [true]), [false; 49]).state(), state(1.0, 0, 49, 114));
        let message = ddp_kernels::hint::with_hint(&last.update(false).unwrap_err());
        for part in ["50 steps in a row", "loss scale is down to 1\n", "hint:", "bf16", "optimizer.lr"] {
            assert!(message.contains(part), "{message}");
        }
    }

    #[test]
    fn states_that_cannot_be_are_refused() {
        for scale in [0.5, 0.0, -1.0, f64::NAN, f64::INFINITY] {
            let error =
                LossScaler::from_state(LossScalerConfig::default(), state(scale, 0, 0, 0)).unwrap_err();
            assert!(error.to_string().contains("at least 1"), "{error}");
        }
        let unknown =
            r#"{"scale": 1.0, "n_good_in_row": 0, "n_skipped_in_row": 0, "n_skipped": 0, "more": 1}"#;
        assert!(serde_json::from_str::<LossScalerState>(unknown).is_err());
    }

    proptest! {
        /// Wherever a run is stopped, one that resumes from the state in JSON gives the same result.
        #[test]
        fn resumes_from_its_state_unchanged(steps: Vec<bool>, stop in 0usize..100) {
            let config = LossScalerConfig { growth_interval: 3, max_skips: u64::MAX, ..Default::default() };
            let stop = stop.min(steps.len());
            let stopped = after(&LossScaler::new(config), steps[..stop].iter().copied());
            let text = serde_json::to_string(&stopped.state()).unwrap();
            let resumed = LossScaler::from_state(config, serde_json::from_str(&text).unwrap()).unwrap();
            prop_assert_eq!(
                after(&resumed, steps[stop..].iter().copied()),
                after(&LossScaler::new(config), steps)
            );
        }
    }
}
