//! Policies for steps whose update was withheld: `train.on_nonfinite` and `train.on_spike`.
//!
//! All ranks have the same outcomes, so they decide alike.

use crate::checkpoint::{LeftOut, RecentLosses, RunState, WhyLeftOut};
use crate::config::{BadStep, BadSteps};
use crate::train::error::{GiveUp, TrainError};
use crate::train::spikes::SpikeLimit;
use crate::train::step_info::{StepInfo, StepOutcome, Withheld};

/// Steps of a run whose updates may be left out.
const MAX_LEFT_OUT: usize = 10;

/// Decides on the steps of a run. The run's state has the losses that it compares, and the steps whose updates were left out or will be
/// when a replay meets them.
#[derive(Debug)]
pub(crate) struct StepPolicy {
    config: BadSteps,
    /// Where losses are compared.
    spikes: Option<SpikeLimit>,
}

/// An enqueued step.
#[derive(Debug, Clone, Copy)]
pub(crate) struct InFlight {
    /// Rows that all ranks used before it.
    pub(crate) cursor: u64,
    /// Largest loss with which it updates the weights.
    pub(crate) loss_limit: f64,
}

/// Consequence of a step's outcome.
#[derive(Debug)]
pub(crate) enum Decision {
    /// The run continues.
    Continue,
    /// The run continues without the step's update.
    Skip(TrainError),
    /// The run ends with this error.
    Fail(TrainError),
    /// The run continues from its newest checkpoint; the error applies if there is none.
    Rollback(TrainError),
}

impl StepPolicy {
    /// Continues after `state`, which keeps losses only where they are compared.
    pub(crate) fn new(config: &BadSteps, state: &mut RunState) -> Self {
        let limit = |_| SpikeLimit::new(config.spike_window, config.spike_threshold);
        let spikes = config.on_spike.treatment().map(limit);
        if spikes.is_none() {
            state.recent_losses = RecentLosses::default();
        }
        StepPolicy { config: *config, spikes }
    }

    /// Limit of the loss of step `step`; negative infinity if its update was left out before. `n_unknown` (0 or 1) is the number
    /// of enqueued steps whose outcome is unknown.
    pub(crate) fn loss_limit(&mut self, state: &RunState, step: u64, n_unknown: usize) -> f64 {
        if state.left_out.iter().any(|left_out| left_out.step == step) {
            return f64::NEG_INFINITY;
        }
        let limit = |spikes: &mut SpikeLimit| spikes.limit(&state.recent_losses, n_unknown);
        self.spikes.as_mut().map_or(f64::INFINITY, limit)
    }

    /// Decides on a step's outcome; `limit` was its limit.
    pub(crate) fn decide(
        &self,
        state: &mut RunState,
        info: &StepInfo,
        outcome: &StepOutcome,
        limit: f64,
    ) -> Decision {
        let StepInfo { step, .. } = *info;
        let loss = outcome.sums.mean();
        if let Some(spikes) = &self.spikes {
            spikes.record(&mut state.recent_losses, loss);
        }
        let (treatment, why) = match outcome.withheld {
            None | Some(Withheld::LeftOut) => return Decision::Continue,
            Some(Withheld::Loss) => (Some(self.config.on_nonfinite), WhyLeftOut::Loss),
            Some(Withheld::Gradient) => (Some(self.config.on_nonfinite), WhyLeftOut::Gradient),
            Some(Withheld::AboveLimit) => (self.config.on_spike.treatment(), WhyLeftOut::Spike),
        };
        let error = outcome.error(step).unwrap_or(TrainError::LossSpike { step, loss, limit });
        let treatment = treatment.unwrap_or(BadStep::Stop);
        if treatment == BadStep::Stop {
            return Decision::Fail(error);
        }
        if state.left_out.len() >= MAX_LEFT_OUT {
            return Decision::Fail(error.given_up(GiveUp::TooMany { n: MAX_LEFT_OUT }));
        }
        state.left_out.push(LeftOut { step, why });
        match treatment {
            BadStep::Rollback => Decision::Rollback(error),
            BadStep::Stop | BadStep::Skip => Decision::Skip(error),
        }
    }
}

/// The steps whose updates were left out, in one line, if there are any.
pub(crate) fn left_out_summary(left_out: &[LeftOut]) -> Option<String> {
    let steps: Vec<_> = left_out.iter().map(|left_out| left_out.step.to_string()).collect();
    (!steps.is_empty()).then(|| format!("trained without the updates of steps {}", steps.join(", ")))
}

#[cfg(test)]
mod tests {
    use ddp_kernels::ops::LossSums;

    use super::*;
    use crate::config::Spike;

    fn policy(on_nonfinite: BadStep, on_spike: Spike) -> (StepPolicy, RunState) {
        let config = BadSteps { on_nonfinite, on_spike, spike_window: 8, spike_threshold: 10.0 };
        let mut state = RunState::default();
        (StepPolicy::new(&config, &mut state), state)
    }

    fn outcome(loss: f64, withheld: Option<Withheld>) -> StepOutcome {
        let sums = LossSums { loss, weight: 1.0 };
        StepOutcome { sums, grad_norm: None, votes: 0, skipped: false, withheld }
    }

    fn info(step: u64) -> StepInfo {
        StepInfo { step, n_rows: 4, lr: 0.1 }
    }

    #[test]
    fn the_eleventh_step_ends_the_run() {
        for on_nonfinite in [BadStep::Skip, BadStep::Rollback] {
            let (mut policy, mut state) = policy(on_nonfinite, Spike::Off);
            let bad = outcome(f64::NAN, Some(Withheld::Loss));
            for step in 1..=10 {
                let decision = policy.decide(&mut state, &info(step), &bad, f64::INFINITY);
                assert!(!matches!(decision, Decision::Fail(_)), "{step}");
                assert_eq!(policy.loss_limit(&state, step, 0), f64::NEG_INFINITY);
            }
            // A replay counts nothing.
            let again = outcome(f64::NAN, Some(Withheld::LeftOut));
            assert!(matches!(
                policy.decide(&mut state, &info(3), &again, f64::NEG_INFINITY),
                Decision::Continue
            ));
            let Decision::Fail(error) = policy.decide(&mut state, &info(11), &bad, f64::INFINITY) else {
                panic!("ten are allowed")
            };
            let text = error.to_string();
            assert!(
                text.starts_with("the updates of 10 steps were left out before: loss is NaN at step 11"),
                "{text}"
            );
            assert_eq!(state.left_out.len(), 10);
        }
    }

    #[test]
    fn spikes_have_a_policy_of_their_own() {
        let (policy, mut state) = policy(BadStep::Stop, Spike::Skip);
        let spike = outcome(9.0, Some(Withheld::AboveLimit));
        assert!(matches!(
            policy.decide(&mut state, &info(1), &spike, 2.0),
            Decision::Skip(TrainError::LossSpike { .. })
        ));
        assert_eq!(state.left_out, [LeftOut { step: 1, why: WhyLeftOut::Spike }]);
        let bad = outcome(f64::NAN, Some(Withheld::Gradient));
        assert!(matches!(
            policy.decide(&mut state, &info(2), &bad, 2.0),
            Decision::Fail(TrainError::GradientNotFinite { .. })
        ));
        let json = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<RunState>(&json).unwrap().left_out, state.left_out);
    }
}
