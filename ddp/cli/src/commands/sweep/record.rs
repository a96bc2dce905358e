//! `sweep.json` in the folder of a sweep: the config of its runs without the values of points, by which a second start knows that
//! complete runs are of the same sweep.

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
    runs: std::collections::BTreeMap<String, Vec<String>>,
}

/// Compares the sweep with the one that the folder `out` holds, and records it there.
///
/// # Errors
/// [`CommandError::OtherSweep`]; the error of the write.
pub(super) fn check_and_write(out: &Path, config: &Config, points: &Points) -> Result<()> {
    let path = out.join(FILE);
    let config = config.to_saved_toml();
    let mut record =
        Record { config, runs: points.runs.iter().map(|run| (run.name.clone(), run.sets())).collect() };
    if let Ok(bytes) = read_regular(&path, MAX_BYTES) {
        let other = |what: String| CommandError::OtherSweep { path: out.to_owned(), what };
        let old: Record =
            serde_json::from_slice(&bytes).map_err(|error| other(format!("{FILE}: {error}")))?;
        let mut lines = record.config.lines().zip(old.config.lines());
        if let Some((new, old)) = lines.find(|(new, old)| new != old) {
            return Err(other(format!("`{}` was `{}`", setting(new), setting(old))).into());
        }
        // Values may be added and left out.
        for (name, sets) in old.runs {
            record.runs.entry(name).or_insert(sets);
        }
    }
    let mut text = serde_json::to_string(&record).expect("texts");
    text.push('\n');
    Ok(write_atomic(&path, text.as_bytes())?)
}

/// A line of a config without its note.
fn setting(line: &str) -> &str {
    line.trim_end().trim_end_matches("# default").trim_end()
}
