//! `sweep.json` in the folder of a sweep: the config of its runs without the values of points, by which a second start knows that
//! complete runs are of the same sweep.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use ddp::config::Config;
use ddp::run_folder::done::Done;
use ddp::storage::atomic_write::write_atomic;
use ddp::storage::user_file::read_regular;
use serde::{Deserialize, Serialize};

use super::points::Points;
use crate::error::Result;
use crate::error::command::CommandError;

/// Name of the file.
const FILE: &str = "sweep.json";
const MAX_BYTES: u64 = 64 << 20;

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    /// The config of all points, as TOML.
    config: String,
    /// Arguments of `--set` by folder.
    runs: BTreeMap<String, Vec<String>>,
    /// Runs that continued after each rung of `--prune`, by its epoch.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    rungs: BTreeMap<u64, Vec<String>>,
    /// The best point so far.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    best: Option<BestPoint>,
}

/// The best point so far.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BestPoint {
    /// Its complete runs.
    pub(super) runs: Vec<String>,
    /// Mean of the metric over them.
    pub(super) mean: f64,
}

/// Runs that continued after each rung so far, by its epoch.
pub(super) type Rungs = BTreeMap<u64, Vec<String>>;

/// Compares the sweep with the one that the folder `out` holds, and records it there. Returns the rungs that were decided.
///
/// - `rungs`: epochs of the rungs of this sweep
///
/// # Errors
/// [`CommandError::OtherSweep`]; the error of the write.
pub(super) fn check_and_write(out: &Path, config: &Config, points: &Points, rungs: &[u64]) -> Result<Rungs> {
    let path = out.join(FILE);
    let config = config.to_saved_toml();
    let runs = points.runs.iter().map(|run| (run.name.clone(), run.sets())).collect();
    let mut record = Record { config, runs, rungs: Rungs::new(), best: None };
    if let Ok(bytes) = read_regular(&path, MAX_BYTES) {
        let other = |what: String| CommandError::OtherSweep { path: out.to_owned(), what };
        let old: Record =
            serde_json::from_slice(&bytes).map_err(|error| other(format!("{FILE}: {error}")))?;
        let mut lines = record.config.lines().zip(old.config.lines());
        if let Some((new, old)) = lines.find(|(new, old)| new != old) {
            return Err(other(format!("`{}` was `{}`", setting(new), setting(old))).into());
        }
        let is_same = old.rungs.keys().all(|rung| rungs.contains(rung)) && old.runs == record.runs;
        if !rungs.is_empty() && !old.rungs.is_empty() && !is_same {
            let what = "its points were pruned among themselves, and this one has other points, seeds, folds or rungs";
            return Err(other(what.to_owned()).into());
        }
        (record.rungs, record.best) = (old.rungs, old.best);
        // Values may be added and left out.
        for (name, sets) in old.runs {
            let now = record.runs.entry(name.clone()).or_insert_with(|| sets.clone());
            if *now != sets {
                return Err(other(format!("{name} was the run of {}", sets.join(" "))).into());
            }
        }
    }
    write(&path, &record)?;
    Ok(record.rungs)
}

/// Records the runs that continue after a rung.
///
/// # Errors
/// The error of the write, or of reading what [`check_and_write`] has written.
pub(super) fn add_rung(out: &Path, rung: u64, kept: &[String]) -> Result<()> {
    let mut record = own(out)?;
    record.rungs.insert(rung, kept.to_vec());
    write(&out.join(FILE), &record)
}

/// Records the best point, unless an earlier start had a better one of as many runs, none of which is one of `points`.
///
/// # Errors
/// See [`add_rung`].
pub(super) fn set_best(out: &Path, points: &Points, best: BestPoint, grows: bool) -> Result<()> {
    let record = own(out)?;
    let stays = |old: &BestPoint| {
        let is_there = |name: &String| Done::read(&out.join(name)).is_some();
        let is_other = |name: &String| points.runs.iter().all(|run| run.name != *name);
        let is_better = if grows { old.mean > best.mean } else { old.mean < best.mean };
        is_better
            && old.runs.len() == best.runs.len()
            && old.runs.iter().all(|name| is_there(name) && is_other(name))
    };
    if record.best.as_ref().is_some_and(stays) {
        return Ok(());
    }
    write(&out.join(FILE), &Record { best: Some(best), ..record })
}

/// Folders of the complete runs of the best point, if `folder` is that of a sweep.
///
/// # Errors
/// [`CommandError::NoBest`] if the record can't be read or no run is complete.
pub(super) fn best_runs(folder: &Path) -> Result<Option<Vec<PathBuf>>> {
    if !folder.join(FILE).is_file() {
        return Ok(None);
    }
    let none = |reason: String| CommandError::NoBest { path: folder.to_owned(), reason };
    let Some(best) = read(folder).map_err(none)?.best else {
        return Err(none("none of its points is complete".to_owned()).into());
    };
    Ok(Some(best.runs.iter().map(|name| folder.join(name)).collect()))
}

/// The record of `out`, or why it can't be read.
fn read(out: &Path) -> Result<Record, String> {
    let bytes = read_regular(&out.join(FILE), MAX_BYTES).map_err(|error| format!("{FILE}: {error}"))?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{FILE}: {error}"))
}

/// The record that [`check_and_write`] has written.
fn own(out: &Path) -> Result<Record> {
    Ok(read(out).map_err(|what| CommandError::OtherSweep { path: out.to_owned(), what })?)
}

fn write(path: &Path, record: &Record) -> Result<()> {
    let mut text = serde_json::to_string(record).expect("texts");
    text.push('\n');
    Ok(write_atomic(path, text.as_bytes())?)
}

/// A line of a config without its note.
fn setting(line: &str) -> &str {
    line.trim_end().trim_end_matches("# default").trim_end()
}
