//! Change of the learning rate where a resumed run has another length than before.

use std::fmt;
use std::ops::Range;

use super::Resumed;
use crate::config::{Config, Length};
use crate::optim::run_schedule::RunSchedule;
use crate::report::metrics::ScheduleEvent;
use crate::train::error::Result;
use crate::train::setup;

/// Share of `optimizer.lr` below which a rate that is kept hardly changes the weights.
const LEAST_SHARE: f64 = 0.01;
/// Steps whose rates by two schedules are compared.
const N_COMPARED: u64 = 1000;

/// Learning rate of the next step by the schedule of the checkpoint's run, and by that of the resumed run.
#[derive(Debug, Clone, PartialEq)]
pub struct RateChange {
    /// Completed steps.
    pub step: u64,
    /// Rate by the schedule of the checkpoint's run; after its end that of its last step.
    pub lr_before: f64,
    /// Rate by the schedule of the resumed run.
    pub lr: f64,
    /// Steps that the schedule spans.
    pub schedule_steps: u64,
    /// Length of the run, where the schedule spans it.
    spans: Option<Length>,
    base_lr: f64,
}

impl Resumed {
    /// Steps that the schedules of the checkpoint's run span.
    ///
    /// # Errors
    /// See [`Config::from_saved`].
    pub fn schedule_steps(&self) -> Result<u64> {
        Ok(self.span_of(&Config::from_saved(&self.manifest().config, self.checkpoint.path())?))
    }

    /// The change of the learning rate at the next step of `config`, if its schedules span other steps than those of the
    /// checkpoint's run or go on after their end.
    ///
    /// # Errors
    /// See [`Config::from_saved`] and [`setup::schedule`].
    pub fn rate_change(&self, config: &Config) -> Result<Option<RateChange>> {
        let saved = Config::from_saved(&self.manifest().config, self.checkpoint.path())?;
        let (step, n_before, n_now) = (self.state().step, self.span_of(&saved), self.span_of(config));
        let (before, now) = (self.schedule(&saved)?, self.schedule(config)?);
        let rates = |of: &RunSchedule, step| [vec![of.lr(step)], of.group_lrs(step)].concat();
        let differ = |steps: Range<u64>| {
            let every = ((steps.end.saturating_sub(steps.start)) / N_COMPARED).max(1) as usize;
            steps.step_by(every).any(|step| rates(&before, step) != rates(&now, step))
        };
        let n_both = n_before.min(n_now);
        let n_run = setup::n_steps(&config.train, self.n_rows(), self.global_rows());
        // A rate that is always the same has no end.
        let is_kept = n_now == n_before && n_run > n_now && rates(&now, 0) != rates(&now, n_now);
        let before = before.clone().held_after(n_before);
        let is_stretched = differ(0..n_both);
        let jumps = rates(&before, step) != rates(&now, step);
        if !is_kept && !(is_stretched && (jumps || differ(step..n_both))) {
            return Ok(None);
        }
        // Where only rates of groups differ, the first of those.
        let pairs: Vec<_> = rates(&before, step).into_iter().zip(rates(&now, step)).collect();
        let (lr_before, lr) = *pairs.iter().find(|(before, now)| before != now).unwrap_or(&pairs[0]);
        let spans = (config.train.schedule_steps.is_none()).then_some(config.train.length);
        let base_lr = config.optimizer.lr;
        Ok(Some(RateChange { step, lr_before, lr, schedule_steps: n_now, spans, base_lr }))
    }

    fn n_rows(&self) -> usize {
        self.state().n_rows as usize
    }

    fn global_rows(&self) -> usize {
        self.state().global_rows as usize
    }

    fn span_of(&self, config: &Config) -> u64 {
        let of_run = || setup::n_steps(&config.train, self.n_rows(), self.global_rows());
        config.train.schedule_steps.unwrap_or_else(of_run)
    }

    fn schedule(&self, config: &Config) -> Result<RunSchedule> {
        setup::schedule(config, self.n_rows(), self.global_rows())
    }
}

impl RateChange {
    /// The event of `metrics.jsonl`.
    pub fn event(&self) -> ScheduleEvent {
        let RateChange { step, lr_before, lr, schedule_steps, .. } = *self;
        ScheduleEvent { step, lr_before, lr, schedule_steps }
    }

    /// A warning if the schedule has ended at a rate that hardly changes the weights.
    pub fn warning(&self) -> Option<String> {
        let share = self.lr / self.base_lr;
        (self.spans.is_none() && self.step >= self.schedule_steps && share < LEAST_SHARE).then(|| {
            format!(
                "the schedule has ended at learning rate {:.1e}, {share:.1e} of optimizer.lr: the weights hardly change\n\
                 hint: without --keep-schedule the schedule spans the longer run",
                self.lr
            )
        })
    }
}

impl fmt::Display for RateChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let RateChange { lr_before, lr, schedule_steps, .. } = self;
        if lr_before == lr && self.step >= *schedule_steps {
            return write!(
                f,
                "learning rate stays at {lr:.1e}: the schedule of {schedule_steps} steps has ended"
            );
        }
        write!(f, "learning rate {lr_before:.1e} -> {lr:.1e}: the schedule now spans ")?;
        match self.spans {
            Some(Length::Epochs(n)) => write!(f, "{n} epochs"),
            Some(Length::Steps(_)) | None => write!(f, "{schedule_steps} steps"),
        }
    }
}
