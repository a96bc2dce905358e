//! Policies for steps whose update was withheld: `train.on_nonfinite` and `train.on_spike`.
//!
//! All ranks have the same outcomes, so they decide alike.

use crate::checkpoint::{LeftOut, RunState, WhyLeftOut};
use crate::config::{BadStep, BadSteps};
use crate::train::error::{GiveUp, TrainError};
use crate::train::spikes::SpikeLimit;
use crate::train::step_info::{StepInfo, StepOutcome, Withheld};

/// Steps of a run whose updates may be left out.
const MAX_LEFT_OUT: usize = 10;

/// Decides on the steps of a run.
#[derive(Debug)]
pub(crate) struct StepPolicy {
    config: BadSteps,
    /// Where losses are compared.
    spikes: Option<SpikeLimit>,
    /// Steps whose updates were left out, or will be when a replay meets them.
    left_out: Vec<LeftOut>,
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
    /// Continues after `state`.
    pub(crate) fn new(config: &BadSteps, state: &RunState) -> Self {
        let window = |_| SpikeLimit::new(config.spike_window, config.spike_threshold, &state.recent_losses);
        let spikes = config.on_spike.treatment().map(window);
        StepPolicy { config: *config, spikes, left_out: state.left_out.clone() }
    }

    /// Limit of the loss of step `step`; negative infinity if its update was left out before. `n_unknown` (0 or 1) is the number
    /// of enqueued steps whose outcome is unknown.
    pub(crate) fn loss_limit(&mut self, step: u64, n_unknown: usize) -> f64 {
        if self.left_out.iter().any(|left_out| left_out.step == step) {
            return f64::NEG_INFINITY;
        }
        self.spikes.as_mut().map_or(f64::INFINITY, |spikes| spikes.limit(n_unknown))
    }

    /// Decides on a step's outcome; `limit` was its limit.
    pub(crate) fn decide(&mut self, info: &StepInfo, outcome: &StepOutcome, limit: f64) -> Decision {
        let StepInfo { step, .. } = *info;
        let loss = outcome.sums.mean();
        if let Some(spikes) = &mut self.spikes {
            spikes.record(loss);
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
        if self.left_out.len() >= MAX_LEFT_OUT {
            return Decision::Fail(error.given_up(GiveUp::TooMany { n: MAX_LEFT_OUT }));
        }
        self.left_out.push(LeftOut { step, why });
        match treatment {
            BadStep::Rollback => Decision::Rollback(error),
            BadStep::Stop | BadStep::Skip => Decision::Skip(error),
        }
    }

    /// Steps whose updates were left out.
    pub(crate) fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// The steps whose updates were left out, in one line, if there are any.
    pub(crate) fn summary(&self) -> Option<String> {
        let steps: Vec<_> = self.left_out.iter().map(|left_out| left_out.step.to_string()).collect();
        (!steps.is_empty()).then(|| format!("trained without the updates of steps {}", steps.join(", ")))
    }

    /// Writes the state for a checkpoint, when the outcomes of all steps are known.
    pub(crate) fn note(&self, state: &mut RunState) {
        state.left_out.clone_from(&self.left_out);
        state.recent_losses = self.spikes.as_ref().map(SpikeLimit::state).unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use ddp_kernels::ops::LossSums;

    use super::*;
    use crate::config::Spike;

    fn policy(on_nonfinite: BadStep, on_spike: Spike) -> StepPolicy {
        let config = BadSteps { on_nonfinite, on_spike, spike_window: 8, spike_threshold: 10.0 };
        StepPolicy::new(&config, &RunState::default())
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
            let mut policy = policy(on_nonfinite, Spike::Off);
            let bad = outcome(f64::NAN, Some(Withheld::Loss));
            for step in 1..=10 {
                let decision = policy.decide(&info(step), &bad, f64::INFINITY);
                assert!(!matches!(decision, Decision::Fail(_)), "{step}");
                assert_eq!(policy.loss_limit(step, 0), f64::NEG_INFINITY);
            }
            // A replay counts nothing.
            let again = outcome(f64::NAN, Some(Withheld::LeftOut));
            assert!(matches!(policy.decide(&info(3), &again, f64::NEG_INFINITY), Decision::Continue));
            let Decision::Fail(error) = policy.decide(&info(11), &bad, f64::INFINITY) else {
                panic!("ten are allowed")
            };
            let text = error.to_string();
            assert!(
                text.starts_with("the updates of 10 steps were left out before: loss is NaN at step 11"),
                "{text}"
            );
            assert_eq!(policy.left_out().len(), 10);
        }
    }

    #[test]
    fn spikes_have_a_policy_of_their_own() {
        let mut policy = policy(BadStep::Stop, Spike::Skip);
        let spike = outcome(9.0, Some(Withheld::AboveLimit));
        assert!(matches!(policy.decide(&info(1), &spike, 2.0), Decision::Skip(TrainError::LossSpike { .. })));
        assert_eq!(policy.left_out(), [LeftOut { step: 1, why: WhyLeftOut::Spike }]);
        let bad = outcome(f64::NAN, Some(Withheld::Gradient));
        assert!(matches!(
            policy.decide(&info(2), &bad, 2.0),
            Decision::Fail(TrainError::GradientNotFinite { .. })
        ));
        let mut state = RunState::default();
        policy.note(&mut state);
        let json = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<RunState>(&json).unwrap().left_out, policy.left_out());
    }
}
