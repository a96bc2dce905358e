//! Review of a complete run: signs that its model is worse than it should be, each a sentence with figures and the key to try.
//!
//! It needs no setting and judges the saved model, by what the run has measured anyway. Its limits are chosen so that a good run gets no
//! finding: each is beyond the noise of the rows it was measured on.

mod baseline;
mod course;
mod shared_rows;

use crate::checkpoint::{Best, RunState};
use crate::config::{Config, EvalSource, Loss};
use crate::data::Loaded;
use crate::report::{ClassUse, EvalMetrics};
use crate::train::error::Result;

/// Least evaluations after the best one for a proposal of early stopping.
const MIN_WORSE: u64 = 6;
/// Largest patience that is proposed.
const MAX_PATIENCE: u64 = 10;

/// Inputs of a review.
pub(super) struct Review<'a> {
    pub(super) config: &'a Config,
    pub(super) data: &'a Loaded,
    pub(super) state: &'a RunState,
}

/// An evaluation of weights.
#[derive(Debug, Clone, Copy)]
struct Judged<'a> {
    metrics: &'a EvalMetrics,
    class_use: Option<&'a ClassUse>,
}

impl<'a> Judged<'a> {
    fn new(metrics: &'a EvalMetrics) -> Self {
        Judged { metrics, class_use: metrics.class_use() }
    }
}

impl Review<'_> {
    /// The findings, the most serious first; none without evaluation rows but those of the training loss.
    ///
    /// # Errors
    /// [`TrainError::Data`](crate::train::TrainError::Data) of reading rows.
    pub(super) fn findings(&self) -> Result<Vec<String>> {
        let mut findings = course::findings(self.config, &self.state.course);
        let Some(rows) = &self.data.eval else { return Ok(findings) };
        let [last, unaveraged] = [&self.state.eval, &self.state.last_eval].map(Judged::new);
        let saved = self.saved().unwrap_or(last);
        let judge = baseline::Judge {
            data: &self.config.data,
            is_normalized: self.data.preprocessor.normalizer.is_some(),
            source: rows.source(),
        };
        let task = self.config.data.task;
        findings.extend(judge.finding(task, &self.config.loss, saved));
        let chosen_by = self.chosen_by();
        let chosen = chosen_by.as_deref().map(|by| (by, self.keep_key()));
        let is_better = baseline::last_is_better(task, saved, last, chosen);
        findings.extend(is_better.or_else(|| baseline::last_is_better(task, saved, unaveraged, chosen)));
        // Metrics of heads are not saved in checkpoints: those of the last evaluation stand for them.
        if let Loss::Heads(losses) = &self.config.loss {
            for (head, (name, metrics)) in self.config.data.heads.iter().zip(last.metrics.heads()) {
                let loss = losses.iter().find(|loss| loss.name == *name).map(|of| &of.loss);
                let finding = loss.and_then(|loss| judge.finding(head.task, loss, Judged::new(metrics)));
                findings.extend(finding.map(|finding| format!("head {name}: {finding}")));
            }
        }
        // Rows that were taken out of the training rows are none of them.
        if matches!(self.config.data.eval, EvalSource::Source(_)) {
            findings.extend(shared_rows::finding(&*self.data.plain, &**rows)?);
        }
        Ok(findings)
    }

    /// Proposal of early stopping for a run whose best evaluation was in its first half.
    pub(super) fn proposal(&self) -> Option<String> {
        let RunState { best, step, early_stopping, .. } = self.state;
        let (train, best) = (&self.config.train, best.as_ref()?);
        let (metric, n_after) = (train.early_stop_metric.to_string(), early_stopping.n_worse);
        let is_early = best.metric == metric && best.step.saturating_mul(2) <= *step;
        if train.early_stop_patience > 0 || !is_early || n_after < MIN_WORSE {
            return None;
        }
        let patience = (n_after / 2).clamp(MIN_WORSE / 2, MAX_PATIENCE);
        let of = self.state.epoch_under_way();
        Some(format!(
            "{metric} was best after step {} of {step}, epoch {} of {of}, and in none of the {n_after} evaluations since\n\
             hint: train.early_stop_patience={patience} ends such a run earlier",
            best.step, best.epoch
        ))
    }

    /// The evaluation of the weights that the run saves as its model, where it keeps the best ones.
    fn saved(&self) -> Option<Judged<'_>> {
        let best = self.best()?;
        // Runs of earlier versions have no further metrics of it.
        (best.eval != EvalMetrics::default())
            .then_some(Judged { metrics: &best.eval, class_use: best.class_use.as_ref() })
    }

    fn best(&self) -> Option<&Best> {
        let RunState { best, keeps_best_weights, .. } = self.state;
        let judge = self.config.checkpoint.keep_best.as_ref()?.to_string();
        best.as_ref().filter(|best| *keeps_best_weights && best.metric == judge)
    }

    /// The key of the metric that chooses the saved weights.
    fn keep_key(&self) -> &'static str {
        let stops_early = self.config.train.early_stop_patience > 0;
        if stops_early { "train.early_stop_metric" } else { "checkpoint.keep_best" }
    }

    /// The setting that chose the saved weights.
    fn chosen_by(&self) -> Option<String> {
        let is_averaged = self.config.optimizer.ema_decay > 0.0;
        let average = is_averaged.then(|| format!("train.ema_decay={}", self.config.optimizer.ema_decay));
        let key = self.keep_key();
        self.best().map(|best| format!("{key}={}", best.metric)).or(average)
    }
}
