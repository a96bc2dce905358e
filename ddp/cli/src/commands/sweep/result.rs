//! The comparison of a sweep's points: mean and standard deviation of their metric over the seeds, best first.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ddp::config::EvalMetric;
use ddp::report::visible::shell_word;
use ddp::run_folder::folder::METRICS_FILE;
use serde::Serialize;
use serde_json::json;

use super::points::{Points, Run};
use super::record::BestPoint;
use crate::commands::runs::Summary;
use crate::report::page::chart::figure;
use crate::report::stdout::table;

/// Metric of runs without evaluation rows.
const TRAIN_LOSS: &str = "train_loss";

/// The points, the best one first.
#[derive(Debug)]
pub(super) struct Outcome {
    /// Metric by which the runs are judged.
    metric: Option<String>,
    points: Vec<Point>,
    /// Runs that were pruned, by the epoch after which.
    pruned: BTreeMap<u64, usize>,
    /// Epochs that they did not train, of all that the sweep has.
    saved_epochs: (u64, u64),
}

#[derive(Debug, Serialize)]
struct Point {
    values: BTreeMap<String, String>,
    /// Mean over the complete runs.
    mean: Option<f64>,
    /// Standard deviation, for two complete runs or more.
    sd: Option<f64>,
    n_complete: usize,
    runs: Vec<Summary>,
}

impl Point {
    fn is_complete(&self) -> bool {
        let counts = |run: &Summary| run.state == "complete" && run.value.is_some_and(f64::is_finite);
        self.runs.iter().all(counts)
    }
}

impl Outcome {
    /// Reads the runs in `out`; `failures` has the errors of those that this process saw fail, `pruned` those that were pruned, with the
    /// epoch after which.
    pub(super) fn new(
        points: &Points,
        out: &Path,
        failures: BTreeMap<usize, String>,
        pruned: &[(usize, u64)],
        n_epochs: u64,
    ) -> Self {
        let mut of: Vec<Point> = Vec::new();
        let (mut of_rungs, mut saved) = (BTreeMap::new(), 0);
        for (i, run) in points.runs.iter().enumerate() {
            let folder = out.join(&run.name);
            let mut summary = Summary::read(&folder);
            if let Some(error) = failures.get(&i) {
                (summary.state, summary.error) = ("failed", Some(error.clone()));
            } else if let Some((_, rung)) = pruned.iter().find(|(run, _)| *run == i)
                && summary.state != "complete"
            {
                if !summary.has_reached(*rung) {
                    let error = summary.error.take().map_or(String::new(), |error| format!(": {error}"));
                    (summary.state, summary.error) = ("failed", Some(format!("before epoch {rung}{error}")));
                    find_point(&mut of, run).runs.push(summary);
                    continue;
                }
                *of_rungs.entry(*rung).or_default() += 1;
                saved += n_epochs.saturating_sub(*rung);
                let value = summary.value.map_or(String::new(), |value| format!(", {}", figure(value)));
                (summary.state, summary.error) = ("pruned", Some(format!("after epoch {rung}{value}")));
            } else if !folder.exists() {
                (summary.state, summary.error) = ("not started", None);
            }
            find_point(&mut of, run).runs.push(summary);
        }
        let complete = |run: &&Summary| run.state == "complete";
        let metric =
            of.iter().flat_map(|point| &point.runs).filter(complete).find_map(|run| run.metric.clone());
        for point in &mut of {
            let values = point.runs.iter().filter(complete).filter_map(|run| run.value);
            let values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
            point.n_complete = point.runs.iter().filter(complete).count();
            (point.mean, point.sd) = mean_and_sd(&values);
        }
        let grows = metric.as_deref().is_some_and(grows);
        // Points without a value come last, and before them those whose mean lacks runs.
        let value = |point: &Point| point.mean.map_or(f64::INFINITY, |mean| if grows { -mean } else { mean });
        let lacks = |point: &Point| (point.mean.is_none(), !point.is_complete());
        of.sort_by(|a, b| lacks(a).cmp(&lacks(b)).then(value(a).total_cmp(&value(b))));
        let saved_epochs = (saved, n_epochs * points.runs.len() as u64);
        Outcome { metric, points: of, pruned: of_rungs, saved_epochs }
    }

    /// Whether a run failed.
    pub(super) fn has_failed(&self) -> bool {
        self.runs().any(|run| run.state == "failed")
    }

    /// The best complete run of the best point.
    fn best(&self) -> Option<&Summary> {
        let complete = self.points.first()?.runs.iter().filter(|run| run.state == "complete");
        let grows = self.metric.as_deref().is_some_and(grows);
        let key = |run: &Summary| run.value.map_or(f64::INFINITY, |value| if grows { -value } else { value });
        complete.min_by(|a, b| key(a).total_cmp(&key(b)))
    }

    /// The best point, if all of its runs are complete, and whether higher means are better.
    pub(super) fn best_point(&self) -> Option<(BestPoint, bool)> {
        let point = self.points.first().filter(|point| point.is_complete())?;
        let runs = point.runs.iter().map(|run| run.name.clone()).collect();
        Some((BestPoint { runs, mean: point.mean? }, self.metric.as_deref().is_some_and(grows)))
    }

    fn runs(&self) -> impl Iterator<Item = &Summary> {
        self.points.iter().flat_map(|point| &point.runs)
    }

    /// Folders of at most `max` runs that can be drawn, the best points first.
    pub(super) fn folders(&self, max: usize) -> Vec<PathBuf> {
        let folders = self.runs().map(|run| PathBuf::from(&run.path));
        folders.filter(|folder| folder.join(METRICS_FILE).exists()).take(max).collect()
    }

    pub(super) fn to_json(&self, page: Option<&Path>) -> String {
        let best = self.best().map(|best| &best.path);
        format!(
            "{}\n",
            json!({
                "metric": self.metric, "best": best, "points": self.points, "pruned": self.pruned, "saved_epochs": self.saved_epochs.0,
                "report": page,
            })
        )
    }

    /// - `next`: further commands, for a sweep with a complete run
    pub(super) fn to_text(&self, points: &Points, next: Option<String>, page: Option<&Path>) -> String {
        let keys: Vec<&String> =
            points.runs.first().into_iter().flat_map(|run| &run.values).map(|(key, _)| key).collect();
        let number = |value: Option<f64>| value.map_or(String::new(), figure);
        let row = |point: &Point| {
            let values = keys.iter().map(|key| point.values.get(*key).cloned().unwrap_or_default());
            let seeds = format!("{} of {}", point.n_complete, point.runs.len());
            values.chain([number(point.mean), number(point.sd), seeds]).collect::<Vec<_>>()
        };
        let titles = keys.iter().map(|key| format!("<{key}"));
        let metric = self.metric.clone().unwrap_or_else(|| "metric".to_owned());
        let titles: Vec<String> = titles.chain([metric, "sd".to_owned(), "complete".to_owned()]).collect();
        let titles: Vec<&str> = titles.iter().map(String::as_str).collect();
        let mut text = table(&titles, &self.points.iter().map(row).collect::<Vec<_>>());
        for run in self.runs().filter(|run| run.state != "complete") {
            let error = run.error.as_ref().map_or(String::new(), |error| format!(": {error}"));
            text += &format!("{}: {}{error}\n", run.name, run.state);
        }
        if !self.pruned.is_empty() {
            let of_rung = |(rung, n): (&u64, &usize)| format!("{n} after epoch {rung}");
            let shown: Vec<String> = self.pruned.iter().map(of_rung).collect();
            let (saved, all) = self.saved_epochs;
            text += &format!("pruned: {}, which saved {saved} of {all} epochs\n", shown.join(", "));
        }
        if self.metric.as_deref() == Some(TRAIN_LOSS) {
            text += "note: the loss of training rows says little about new ones; --eval-fraction 0.2 judges on a fifth of them\n";
        }
        if let Some(best) = self.best() {
            // Without evaluation rows there are none to evaluate.
            let rows = if self.metric.as_deref() == Some(TRAIN_LOSS) { " --data ROWS" } else { "" };
            let eval = || format!("next: ddp-train eval --checkpoint {}{rows}\n", shell_word(&best.path));
            text += &format!("best run: {}\n{}", best.path, next.unwrap_or_else(eval));
        }
        page.iter().for_each(|page| text += &format!("report: {}\n", page.display()));
        text
    }
}

/// Returns the point of a run, which is added if it is new: points come in their order.
fn find_point<'a>(points: &'a mut Vec<Point>, run: &Run) -> &'a mut Point {
    if points.len() <= run.point {
        let values = run.values.iter().cloned().collect();
        points.push(Point { values, mean: None, sd: None, n_complete: 0, runs: Vec::new() });
    }
    &mut points[run.point]
}

/// Whether higher values of a metric are better.
pub(super) fn grows(metric: &str) -> bool {
    let name = metric.rsplit('.').next().unwrap_or(metric);
    EvalMetric::ALL.iter().any(|of| of.name() == name && of.grows())
}

pub(super) fn mean_and_sd(values: &[f64]) -> (Option<f64>, Option<f64>) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let sum = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    ((n > 0.0).then_some(mean), (n > 1.0).then(|| (sum / (n - 1.0)).sqrt()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracies_grow_and_losses_fall() {
        assert!(grows("eval_accuracy") && grows("species.eval_roc_auc"));
        assert!(!grows("eval_loss") && !grows("train_loss") && !grows("price.eval_mae"));
    }

    #[test]
    fn the_standard_deviation_needs_two() {
        assert_eq!(mean_and_sd(&[]), (None, None));
        assert_eq!(mean_and_sd(&[2.0]), (Some(2.0), None));
        assert_eq!(mean_and_sd(&[1.0, 3.0]), (Some(2.0), Some(2.0_f64.sqrt())));
    }
}
