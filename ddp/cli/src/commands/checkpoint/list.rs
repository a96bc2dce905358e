//! `ddp-train checkpoint ls`: one line per checkpoint.

use ddp::checkpoint::{Checkpoint, Manifest, Marker, step_of};
use ddp::config::EvalMetric;
use ddp::report::EvalMetrics;
use ddp::report::metrics::json_line;
use ddp::report::units::mib;
use serde::Serialize;

use super::{Named, all_at, print_result};
use crate::cli::CheckpointLsArgs;
use crate::error::Result;
use crate::report::table::table;

/// Titles of the columns, including the metrics that any checkpoint has; `<` aligns to the left.
fn titles(metrics: &[EvalMetric]) -> Vec<&'static str> {
    let mut titles = vec!["<checkpoint", "step", "epochs", "<written (UTC)", "size", "ranks"];
    titles.extend(metrics.iter().map(|metric| metric.title()));
    titles.push("<");
    titles
}

/// Report of one checkpoint.
#[derive(Debug, Serialize)]
struct Line<'a> {
    checkpoint: &'a str,
    #[serde(flatten)]
    good: Option<Good<'a>>,
    /// Reason why it can't be used.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    /// `latest` and `best`.
    marks: Vec<&'static str>,
}

#[derive(Debug, Serialize)]
struct Good<'a> {
    step: u64,
    /// Number of completed epochs, including the fraction of the current one.
    epochs: f64,
    time: &'a str,
    size_bytes: u64,
    world_size: usize,
    #[serde(flatten)]
    eval: EvalMetrics,
}

impl<'a> Good<'a> {
    fn new(manifest: &'a Manifest) -> Self {
        let run = &manifest.run;
        let epochs = if run.n_rows == 0 { 0.0 } else { run.cursor as f64 / run.n_rows as f64 };
        Good {
            step: run.step,
            epochs,
            time: &manifest.time,
            size_bytes: manifest.n_bytes(),
            world_size: manifest.world_size,
            eval: run.eval.clone(),
        }
    }

    fn cells(&self, metrics: &[EvalMetric]) -> Vec<String> {
        let metric = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.5}"));
        let mut cells = vec![
            self.step.to_string(),
            format!("{:.2}", self.epochs),
            self.time.trim_end_matches('Z').replace('T', " "),
            mib(self.size_bytes),
            self.world_size.to_string(),
        ];
        cells.extend(metrics.iter().map(|name| metric(self.eval.get(*name))));
        cells
    }
}

/// Lists the checkpoints.
pub(super) fn list(args: &CheckpointLsArgs) -> Result<()> {
    let (checkpoints, store) = all_at(&args.path)?;
    let markers = [Marker::Latest, Marker::Best];
    let marked = markers.map(|marker| (marker.name(), store.marked_step(marker)));
    let line = |named: &Named| -> String {
        let step = step_of(&named.name);
        let marks = marked.iter().filter(|(_, of)| of.is_some() && *of == step).map(|(name, _)| *name);
        let manifest = named.checkpoint.as_ref().map(Checkpoint::manifest);
        let line = Line {
            checkpoint: &named.name,
            good: manifest.ok().map(Good::new),
            fault: manifest.err().map(ToString::to_string),
            marks: marks.collect(),
        };
        json_line(&line)
    };
    if args.json {
        return Ok(checkpoints.iter().try_for_each(|named| print_result(&line(named)))?);
    }
    let manifests = checkpoints.iter().filter_map(|named| Some(named.checkpoint.as_ref().ok()?.manifest()));
    let is_measured =
        |metric: &EvalMetric| manifests.clone().any(|manifest| manifest.run.eval.get(*metric).is_some());
    let metrics: Vec<EvalMetric> = EvalMetric::ALL.iter().copied().filter(is_measured).collect();
    let titles = titles(&metrics);
    let row = |named: &Named| {
        let step = step_of(&named.name);
        let marks = marked.iter().filter(|(_, of)| of.is_some() && *of == step).map(|(name, _)| *name);
        let mut cells = vec![named.name.clone()];
        let marks: Vec<_> = match &named.checkpoint {
            Ok(checkpoint) => {
                cells.extend(Good::new(checkpoint.manifest()).cells(&metrics));
                marks.map(str::to_owned).collect()
            }
            Err(fault) => {
                cells.resize(titles.len() - 1, String::new());
                marks.map(str::to_owned).chain([format!("BROKEN: {fault}")]).collect()
            }
        };
        cells.push(marks.join(", "));
        cells
    };
    Ok(print_result(&table(&titles, &checkpoints.iter().map(row).collect::<Vec<_>>()))?)
}
