//! Successive halving: points train up to a rung, an epoch after which only the best of them continue.
//!
//! A run that continues resumes from its checkpoint with the schedule of the whole run, so it ends with the bits of a run that was never
//! stopped. Source: arXiv:1502.07943.

use std::path::Path;

use ddp::config::{Config, DataConfig, EvalSource, Length};
use ddp_tables::split::own_eval::holds_eval_rows;

use super::points::Points;
use super::result::{grows, mean_and_sd};
use crate::commands::runs::Summary;
use crate::error::Result;
use crate::error::command::CommandError;

/// Checks of the configs of a sweep that evaluations judge its runs.
#[derive(Debug)]
pub(super) struct Judges {
    /// Length of the runs, by which rungs are.
    length: Length,
    /// Whether runs that name no rows to evaluate on hold out some of a table.
    holds_out: bool,
    /// Rows that name no others to evaluate on and hold some.
    checked: Vec<DataConfig>,
}

impl Judges {
    /// - `bare`: config of a run that names a table and no config, with the settings for its rows
    pub(super) fn new(length: Length, bare: Option<&Config>) -> Self {
        let holds_out = bare.is_some_and(|config| config.data.eval != EvalSource::Unset);
        Judges { length, holds_out, checked: Vec::new() }
    }

    /// Checks the config of a run.
    ///
    /// # Errors
    /// [`CommandError::PruneNeedsEval`]; [`CommandError::NotInSweep`]; errors of files that cannot be found.
    pub(super) fn check(&mut self, config: &Config) -> Result<()> {
        if config.train.length != self.length {
            let why = "with --prune all points have the length of the config, which --set or --epochs gives";
            return Err(CommandError::NotInSweep { key: "train.epochs or train.steps", why }.into());
        }
        let data = &config.data;
        let has_rows = match data.eval {
            EvalSource::None => false,
            EvalSource::Unset if self.holds_out || self.checked.contains(data) => true,
            EvalSource::Unset => {
                let holds = holds_eval_rows(data, None)?;
                self.checked.extend(holds.then(|| data.clone()));
                holds
            }
            _ => true,
        };
        if has_rows && config.checkpoint.keep_best.is_some() {
            return Ok(());
        }
        Err(CommandError::PruneNeedsEval.into())
    }
}

/// Epochs of the rungs of `n_points` points, ascending: each is `factor` times shorter than the next one, and all are shorter than the runs.
///
/// # Errors
/// [`CommandError::PruneNeedsEpochs`] for runs whose length is in steps, or of one epoch.
pub(super) fn rungs(config: &Config, n_points: usize, factor: usize) -> Result<Vec<u64>, CommandError> {
    let Length::Epochs(n_epochs) = config.train.length else { return Err(CommandError::PruneNeedsEpochs) };
    let mut rungs = Vec::new();
    let (mut epochs, mut left) = (n_epochs, n_points);
    while left > 1 && epochs > 1 {
        epochs = epochs.div_ceil(factor);
        rungs.push(epochs as u64);
        left = left.div_ceil(factor);
    }
    rungs.reverse();
    if rungs.is_empty() && n_points > 1 { Err(CommandError::PruneNeedsEpochs) } else { Ok(rungs) }
}

/// The runs among `active` of the best points, one in `factor` of these, by the mean of their runs.
///
/// # Errors
/// [`CommandError::PruneNeedsEval`] if no run has an evaluation to judge it by.
pub(super) fn best(
    points: &Points,
    out: &Path,
    active: &[usize],
    factor: usize,
) -> Result<Vec<usize>, CommandError> {
    let summaries: Vec<Summary> =
        active.iter().map(|run| Summary::read(&out.join(&points.runs[*run].name))).collect();
    let Some(metric) = summaries.iter().find_map(|summary| summary.metric.clone()) else {
        return Err(CommandError::PruneNeedsEval);
    };
    let sign = if grows(&metric) { -1.0 } else { 1.0 };
    let mut ranked: Vec<(f64, usize)> = Vec::new();
    for point in 0..points.n {
        let runs = active.iter().zip(&summaries).filter(|(run, _)| points.runs[**run].point == point);
        let value = |of: &Summary| of.value.filter(|value| value.is_finite() && of.state != "failed");
        let values: Option<Vec<f64>> = runs.map(|(_, of)| value(of)).collect();
        match values {
            // A point of which a run failed comes last.
            None => ranked.push((f64::INFINITY, point)),
            Some(values) if values.is_empty() => {}
            Some(values) => ranked.push((sign * mean_and_sd(&values).0.expect("a value"), point)),
        }
    }
    let n_kept = ranked.len().div_ceil(factor);
    // Of equal points the first one is kept.
    ranked.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
    let kept: Vec<usize> = ranked[..n_kept].iter().map(|(_, point)| *point).collect();
    Ok(active.iter().copied().filter(|run| kept.contains(&points.runs[*run].point)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rungs_of(sets: &[&str], n_points: usize, factor: usize) -> Result<Vec<u64>, CommandError> {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        rungs(&Config::load(None, &sets).unwrap(), n_points, factor)
    }

    #[test]
    fn rungs_end_with_one_point_and_begin_with_an_epoch_at_least() {
        assert_eq!(rungs_of(&["train.epochs=27"], 27, 3).unwrap(), [1, 3, 9]);
        assert_eq!(rungs_of(&["train.epochs=27"], 4, 3).unwrap(), [3, 9]);
        assert_eq!(rungs_of(&["train.epochs=30"], 8, 2).unwrap(), [4, 8, 15]);
        assert_eq!(rungs_of(&["train.epochs=2"], 100, 4).unwrap(), [1]);
        assert_eq!(rungs_of(&["train.epochs=9"], 1, 3).unwrap(), [0_u64; 0]);
        for sets in [&["train.steps=100"][..], &["train.epochs=1"]] {
            assert!(matches!(rungs_of(sets, 9, 3), Err(CommandError::PruneNeedsEpochs)), "{sets:?}");
        }
    }
}
