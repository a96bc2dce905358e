//! `sweep.json` in the folder of a sweep: the config of its runs without the values of points, by which a second start knows that
//! complete runs are of the same sweep.

use std::collections::BTreeMap;
use std::path::Path;

use ddp::config::Config;
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
    let mut record = Record { config, runs, rungs: Rungs::new() };
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
        record.rungs = old.rungs;
        // Values may be added and left out.
        for (name, sets) in old.runs {
            record.runs.entry(name).or_insert(sets);
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
    let path = out.join(FILE);
    let lost = |what: String| CommandError::OtherSweep { path: out.to_owned(), what };
    let bytes = read_regular(&path, MAX_BYTES).map_err(|error| lost(format!("{FILE}: {error}")))?;
    let mut record: Record =
        serde_json::from_slice(&bytes).map_err(|error| lost(format!("{FILE}: {error}")))?;
    record.rungs.insert(rung, kept.to_vec());
    write(&path, &record)
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
