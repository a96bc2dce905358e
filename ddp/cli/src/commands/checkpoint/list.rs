//! `ddp-train checkpoint ls`, `verify` and `prune`: lists checkpoints, reads every byte of one, deletes old ones.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::PathBuf;

use ddp::checkpoint::{
    Checkpoint, CheckpointError, CheckpointStore, Fault, Located, Manifest, Marker, step_name, step_of,
};
use ddp::config::EvalMetric;
use ddp::data::order::epoch_proof::Proved;
use ddp::report::EvalMetrics;
use ddp::report::metrics::json_line;
use ddp::report::units::mib;
use ddp::run_folder::error::FolderError;
use ddp::run_folder::folder;
use ddp::run_folder::folder::Held;
use serde::Serialize;
use tracing::info;

use super::{Named, all_at, print_result};
use crate::cli::{CheckpointLsArgs, CheckpointPruneArgs, CheckpointVerifyArgs};
use crate::error::Result;
use crate::report::log::Log;
use crate::report::stdout::table;

/// Titles of the columns, including the metrics that any checkpoint has; `<` aligns to the left.
fn titles(metrics: &[EvalMetric]) -> Vec<&'static str> {
    let mut titles = vec!["<checkpoint", "step", "epochs", "<written (UTC)", "size", "ranks", "<best so far"];
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
    /// The best evaluation so far, whose weights the checkpoint holds beside those after its step.
    #[serde(skip_serializing_if = "Option::is_none")]
    best: Option<BestEvaluation<'a>>,
    #[serde(flatten)]
    eval: EvalMetrics,
}

#[derive(Debug, Serialize)]
struct BestEvaluation<'a> {
    metric: &'a str,
    value: f64,
    step: u64,
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
            best: run.best.as_ref().filter(|_| run.keeps_best_weights).map(|best| BestEvaluation {
                metric: &best.metric,
                value: best.value,
                step: best.step,
            }),
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
        cells.push(self.best.as_ref().map_or(String::new(), |best| {
            let name = best.metric.trim_start_matches("eval_");
            format!("{name} {:.5}, step {}", best.value, best.step)
        }));
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

/// Deletes old checkpoints.
pub(super) fn prune(args: &CheckpointPruneArgs) -> Result<()> {
    let Located::Store(store) = Located::new(&args.path)? else {
        return Err(CheckpointError::OneOnly { path: args.path.clone() }.into());
    };
    // Held until everything is deleted.
    let held = if args.dry_run { Vec::new() } else { hold(&store)? };
    if held.iter().any(|held| matches!(held, Held::Unknown)) {
        print_result("this file system has no locks: cannot tell whether a run is active here\n")?;
    }
    // Of the newest one's run, too: the marker may be older.
    let newest = store.newest(u64::MAX, |_| Ok(()))?.found;
    let best_of_run = newest.and_then(|newest| newest.manifest().run.best.as_ref().map(|best| best.step));
    let best: Vec<u64> =
        store.marked_step(Marker::Best).into_iter().chain(best_of_run).filter(|_| !args.also_best).collect();
    // Verified only once, because verifying reads every byte.
    let known = RefCell::new(HashMap::new());
    let is_valid = |step| {
        let verify = || store.checkpoint(step).is_ok_and(|checkpoint| checkpoint.verify().is_ok());
        *known.borrow_mut().entry(step).or_insert_with(verify)
    };
    let superfluous = store.superfluous(u64::MAX, args.keep, &best, is_valid)?;
    for &step in &superfluous {
        let size = store.checkpoint(step).map_or_else(
            |fault| format!("broken: {fault}"),
            |checkpoint| mib(checkpoint.manifest().n_bytes()),
        );
        if !args.dry_run {
            store.delete(step)?;
        }
        let what = if args.dry_run { "would delete" } else { "deleted" };
        print_result(&format!("{what} {} ({size})\n", step_name(step)))?;
    }
    if superfluous.is_empty() {
        // A user who lowers the number expects deletions, so explain why there are none.
        let broken: Vec<_> =
            store.steps()?.into_iter().filter(|&step| !is_valid(step)).map(step_name).collect();
        print_result(&match broken.as_slice() {
            [] => "nothing to delete\n".to_owned(),
            names => format!("nothing to delete; broken checkpoints do not count: {}\n", names.join(", ")),
        })?;
    }
    Ok(())
}

/// Locks the run folder of the checkpoints so that no run can claim it, if none is active.
fn hold(store: &CheckpointStore) -> Result<Vec<Held>> {
    let folder = store.folder();
    // For a symbolic link, the parent of the link counts; for a name such as `.`, the parent of the folder that it resolves to.
    let by_name = folder.file_name().and(folder.parent()).and_then(|run| {
        if run.as_os_str().is_empty() { std::env::current_dir().ok() } else { Some(run.to_owned()) }
    });
    let by_place = folder.canonicalize().ok().and_then(|folder| Some(folder.parent()?.to_owned()));
    // This process can't take the same lock twice.
    let is_named =
        |place: &PathBuf| by_name.as_ref().and_then(|run| run.canonicalize().ok()).as_ref() == Some(place);
    let by_place = by_place.filter(|place| !is_named(place));
    let runs: Vec<PathBuf> = by_name.into_iter().chain(by_place).collect();
    let hold_one = |run: &PathBuf| match folder::hold(run) {
        Err(FolderError::Busy { path, holder }) => {
            Err(CheckpointError::RunInProgress { path, holder }.into())
        }
        lock => Ok(lock?),
    };
    runs.iter().map(hold_one).collect()
}

/// Result of verifying one checkpoint.
#[derive(Debug, Serialize)]
struct VerifyReport {
    checkpoint: String,
    ok: bool,
    n_files: usize,
    size_bytes: u64,
    /// Fault of the checkpoint's files.
    #[serde(skip_serializing_if = "Option::is_none")]
    fault: Option<String>,
    /// Proof of the rows that the epochs used.
    #[serde(skip_serializing_if = "Option::is_none")]
    proved: Option<Proved>,
    /// Faults of the epochs, one per line.
    #[serde(skip_serializing_if = "Option::is_none")]
    epochs_fault: Option<String>,
}

impl VerifyReport {
    fn new(named: &Named) -> Self {
        let mut report = VerifyReport {
            checkpoint: named.name.clone(),
            ok: false,
            n_files: 0,
            size_bytes: 0,
            fault: None,
            proved: None,
            epochs_fault: None,
        };
        let checkpoint = match &named.checkpoint {
            Ok(checkpoint) => checkpoint,
            Err(fault) => return VerifyReport { fault: Some(fault.to_string()), ..report },
        };
        let manifest = checkpoint.manifest();
        (report.n_files, report.size_bytes) = (manifest.files.len() + 1, manifest.n_bytes());
        report.fault = checkpoint.verify().err().map(|fault| fault.to_string());
        match checkpoint.verify_epochs() {
            Ok(proved) => report.proved = Some(proved),
            Err(fault) => report.epochs_fault = Some(fault),
        }
        report.ok = report.fault.is_none() && report.epochs_fault.is_none();
        report
    }

    fn lines(&self) -> String {
        let VerifyReport { checkpoint, n_files, size_bytes, fault, proved, epochs_fault, .. } = self;
        let bytes = match fault {
            Some(fault) => format!("BROKEN: {fault}"),
            None => format!("all {n_files} files ({}) match their checksums", mib(*size_bytes)),
        };
        let mut lines = format!("{checkpoint}: {bytes}\n");
        for line in epochs_fault.iter().flat_map(|fault| fault.lines()) {
            lines += &format!("  WRONG: {line}\n");
        }
        if let Some(proved) = proved {
            lines += &format!("  {proved}\n");
        }
        lines
    }
}

/// Verifies the checkpoints.
pub(super) fn verify(log: &Log, args: &CheckpointVerifyArgs) -> Result<()> {
    let (checkpoints, store) = all_at(&args.path)?;
    let mut n_bad = 0;
    for named in &checkpoints {
        let reading = log.terminal().show_busy(format!("reading {}", named.name));
        let report = VerifyReport::new(named);
        drop(reading);
        if !report.ok && named.is_gone(&store) {
            info!("{}: deleted by the run meanwhile", named.name);
            continue;
        }
        n_bad += usize::from(!report.ok);
        print_result(&if args.json { json_line(&report) } else { report.lines() })?;
    }
    // For information only: resuming checks the checkpoints themselves.
    for marker in [Marker::Latest, Marker::Best] {
        let Some(name) = store.marked(marker) else { continue };
        let is_there = store.steps()?.into_iter().any(|step| step_name(step) == name);
        if !is_there && !args.json {
            print_result(&format!("{}: {}\n", marker.name(), Fault::NamesNothing { name }))?;
        }
    }
    if n_bad > 0 {
        return Err(CheckpointError::VerifyFailed { n_bad, n: checkpoints.len() }.into());
    }
    Ok(())
}
