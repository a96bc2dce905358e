//! State of a run without its tensors: everything else that a resumed run needs.
//!
//! ```
//! use ddp::checkpoint::RunState;
//!
//! let run = RunState { cursor: 25, n_rows: 10, ..RunState::default() };
//! assert_eq!((run.epoch(), run.rows_of_epoch()), (3, 5));
//! // At the end of an epoch the next row is one of the next epoch.
//! let run = RunState { cursor: 20, ..run };
//! assert_eq!((run.epoch(), run.epoch_under_way()), (3, 2));
//! ```

use ddp_kernels::ops::LossSums;
use serde::{Deserialize, Serialize};

use super::course::Course;
use super::exact;
use crate::data::order::epoch_proof::EpochProof;
pub use crate::optim::loss_scaler::LossScalerState;
use crate::report::{ClassUse, EvalMetrics};

/// State of a run after a step, the only place of each of its numbers but for those that [`Trainer::take`](crate::train::trainer::Trainer::take)
/// fills in. Floats round-trip through the file bit for bit, also non-finite ones.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    /// Optimizer steps done.
    pub step: u64,
    /// Rows of all ranks used since the start of the run.
    pub cursor: u64,
    /// Training rows: the length of an epoch.
    pub n_rows: u64,
    /// Rows of a global batch.
    pub global_rows: u64,
    /// Seed of the order of rows, of the initial weights and of dropout: with `cursor` and `step` the whole state of random
    /// numbers, since all are computed from their place.
    pub seed: u64,
    /// Loss of the epoch under way so far.
    pub epoch_loss: EpochLossState,
    /// Loss scaler of a run in f16.
    pub loss_scaler: Option<LossScalerState>,
    /// Progress of early stopping.
    pub early_stopping: EarlyStoppingState,
    /// The best evaluation so far.
    pub best: Option<Best>,
    /// Whether the weights of the best evaluation are kept, for the run's model file. Runs of earlier versions kept none.
    #[serde(default)]
    pub keeps_best_weights: bool,
    /// The last evaluation.
    #[serde(with = "exact::eval")]
    pub eval: EvalMetrics,
    /// The last evaluation of the weights themselves, where `eval` is of averaged ones.
    #[serde(default, with = "exact::eval", skip_serializing_if = "EvalMetrics::is_empty")]
    pub last_eval: EvalMetrics,
    /// Whether the evaluation after the last step is still to be done, because a signal stopped it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evaluation_is_due: bool,
    /// Steps whose updates were left out, as `train.on_nonfinite` and `train.on_spike` say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<LeftOut>,
    /// Losses with which `train.on_spike` compares the next ones.
    #[serde(default, skip_serializing_if = "RecentLosses::is_empty")]
    pub recent_losses: RecentLosses,
    /// Algorithms and forms of matmuls that were chosen by time on rank 0's GPU; the first line names GPU model and library.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matmul_choices: Vec<String>,
    /// Lines of `metrics.jsonl` of the last step, in a checkpoint of a rank that saved after another one was lost: the rank that writes
    /// the events may have ended before these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub last_events: Vec<String>,
    /// Course of the training loss, which the end of the run judges.
    #[serde(default, skip_serializing_if = "Course::is_empty")]
    pub course: Course,
    /// Proof of the rows that each epoch has used.
    pub proof: EpochProof,
}

impl RunState {
    /// Epoch of the next row, from 1.
    pub fn epoch(&self) -> u64 {
        self.cursor.checked_div(self.n_rows).unwrap_or(0) + 1
    }

    /// Epoch of the last used row, from 1.
    pub fn epoch_under_way(&self) -> u64 {
        (self.cursor.max(1) - 1) / self.n_rows.max(1) + 1
    }

    /// Rows of the epoch under way that were used.
    pub fn rows_of_epoch(&self) -> u64 {
        self.cursor.checked_rem(self.n_rows).unwrap_or(0)
    }
}

/// Sums over the rows of the epoch under way, of all ranks.
///
/// ```
/// use ddp::checkpoint::EpochLossState;
/// use ddp::ops::LossSums;
///
/// let mut loss = EpochLossState::default();
/// loss.add(LossSums { loss: 6.0, weight: 4.0 }, 4);
/// loss.add(LossSums { loss: 1.5, weight: 2.0 }, 2);
/// assert_eq!((loss.mean(), loss.n_rows), (1.25, 6));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochLossState {
    /// Sum of weight times loss.
    #[serde(with = "exact")]
    pub loss: f64,
    /// Sum of weights.
    #[serde(with = "exact")]
    pub weight: f64,
    /// Rows used in this epoch so far.
    pub n_rows: u64,
}

impl EpochLossState {
    /// Adds a step's sums over its `n_rows` rows.
    pub fn add(&mut self, sums: LossSums, n_rows: usize) {
        self.loss += sums.loss;
        self.weight += sums.weight;
        self.n_rows += n_rows as u64;
    }

    /// Mean loss; NaN if no row has trained.
    pub fn mean(&self) -> f64 {
        if self.weight == 0.0 && self.loss == 0.0 {
            return f64::NAN;
        }
        LossSums { loss: self.loss, weight: self.weight }.mean()
    }
}

/// A step whose update was left out: it has its number, and its rows count as used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// Number of the step, from 1.
    pub step: u64,
    /// The reason.
    pub why: WhyLeftOut,
}

/// Reason for which a step's update was left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyLeftOut {
    /// Its loss was not finite.
    Loss,
    /// Its gradient was not finite.
    Gradient,
    /// Its loss was a spike.
    Spike,
}

/// Mean losses of recent steps.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecentLosses {
    /// Finite losses up to the step before the last, oldest first.
    pub before_last: Vec<f64>,
    /// Loss of the last step, if it was finite.
    pub last: Option<f64>,
}

impl RecentLosses {
    fn is_empty(&self) -> bool {
        self.before_last.is_empty() && self.last.is_none()
    }
}

/// Progress of early stopping, and of a schedule that follows the evaluations.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EarlyStoppingState {
    /// Its best value.
    #[serde(with = "exact::option")]
    pub best: Option<f64>,
    /// Evaluations since then.
    pub n_worse: u64,
    /// Reductions of the learning rate by the schedule `plateau`.
    #[serde(default)]
    pub n_reductions: u64,
}

/// The best evaluation so far.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Best {
    /// Name of the metric, such as `eval_loss`.
    pub metric: String,
    /// Its value.
    #[serde(with = "exact")]
    pub value: f64,
    /// Step after which it was measured.
    pub step: u64,
    /// Epoch of that step, from 1; 0 in runs of earlier versions.
    #[serde(default)]
    pub epoch: u64,
    /// All its metrics; none in runs of earlier versions.
    #[serde(default, with = "exact::eval")]
    pub eval: EvalMetrics,
    /// Use that it made of the classes, where they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class_use: Option<ClassUse>,
    /// Whether it is of the weights after the step, where an average is kept too.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_last: bool,
}

impl Best {
    /// Identity of the evaluation in its run: metric, step and epoch, and whether it is of the weights after the step.
    pub(crate) fn place(&self) -> (&str, u64, u64, bool) {
        (&self.metric, self.step, self.epoch, self.is_last)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::config::EvalMetric;

    #[test]
    fn epochs_are_counted_from_one() {
        let at = |cursor| RunState { cursor, n_rows: 10, ..RunState::default() };
        assert_eq!((at(0).epoch(), at(9).epoch(), at(10).epoch(), at(25).epoch()), (1, 1, 2, 3));
        assert_eq!((at(0).rows_of_epoch(), at(10).rows_of_epoch(), at(25).rows_of_epoch()), (0, 0, 5));
        assert_eq!(RunState::default().epoch(), 1);
    }

    proptest! {
           #[test]
           fn floats_round_trip_bit_for_bit(a: u64, b: u64, c: u64, d: u64, step: u64, n in 0u64..5) {
               let [a, b, c, d] = [a, b, c, d].map(f64::from_bits);
               let state = RunState {
                   step,
                   seed: step.wrapping_mul(31),
                   epoch_loss: EpochLossState { loss: a, weight: b, n_rows: n },
                   loss_scaler: Some(LossScalerState { scale: 65536.0, n_good_in_row: n, n_skipped_in_row: 0, n_skipped: 1 }),
                   early_stopping: EarlyStoppingState { best: (n > 1).then_some(d), n_worse: n, n_reductions: n / 2 },
                   best: Some(Best { metric: "eval_loss".to_owned(), value: d, step: 3, epoch: 1, eval: EvalMetrics::default(), class_use: None,
    is_last: false }),
                   eval: EvalMetrics::default().with(EvalMetric::Loss, a).with(EvalMetric::Accuracy, (n > 2).then_some(c)),
                   ..RunState::default()
               };
               let json = serde_json::to_string_pretty(&state).unwrap();
               let back: RunState = serde_json::from_str(&json).unwrap();
               // NaN keeps being NaN; which of them does not matter.
               let bits = |x: f64| if x.is_nan() { f64::NAN.to_bits() } else { x.to_bits() };
               let floats = |s: &RunState| {
                   let best = s.early_stopping.best.map(bits);
                   let eval: Vec<_> = EvalMetric::ALL.iter().map(|metric| s.eval.get(*metric).map(bits)).collect();
                   let scale = s.loss_scaler.map(|s| bits(s.scale));
                   (bits(s.epoch_loss.loss), bits(s.epoch_loss.weight), scale, best, s.best.as_ref().map(|b| bits(b.value)), eval)
               };
               prop_assert_eq!(floats(&back), floats(&state));
               prop_assert_eq!((back.step, back.seed), (state.step, state.seed));
           }
       }
}
