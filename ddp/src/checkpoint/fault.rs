//! Faults of a checkpoint on disk.

use std::fmt;

use super::names::FORMAT_VERSION;
use crate::report::units::mib;
use crate::storage::fault::FileFault;

/// A fault of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum Fault {
    /// One of its files is damaged.
    #[error(transparent)]
    File(#[from] FileFault),
    /// The manifest is truncated or not a manifest.
    #[error("manifest.json is truncated or not a manifest")]
    NoManifest,
    /// The manifest's bytes changed after they were written.
    #[error("manifest.json was changed: its checksum does not match")]
    ManifestChanged,
    /// The manifest's checksum matches, but its content can't be parsed.
    #[error("manifest.json can't be read: {reason}")]
    ManifestUnreadable { reason: String },
    /// The checkpoint was written by a later version of the program.
    #[error("its format version is {format_version}; this program reads up to {}", FORMAT_VERSION)]
    LaterFormat { format_version: u64 },
    /// A marker (`latest` or `best`) names a checkpoint that does not exist.
    #[error("it names {}, and there is no such checkpoint", quoted(name))]
    NamesNothing {
        /// The name in the marker.
        name: String,
    },
    /// A fault found by another rank while it read its files.
    #[error("rank {rank} found: {reason}")]
    OnRank {
        rank: usize,
        /// The fault that it found.
        reason: String,
    },
    /// The checkpoint was written by another run than that of the folder.
    #[error("it belongs to another run: its run id is {run_id}, that of the folder {expected}")]
    OtherRun {
        /// The id in its manifest.
        run_id: String,
        /// The id in the run's folder.
        expected: String,
    },
    /// The folder's name is that of another step.
    #[error("it holds step {step}, but its folder's name says otherwise")]
    OtherStep {
        /// The step in the manifest.
        step: u64,
    },
}

/// Space that a checkpoint needs and space that is free, reported where the disk is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes of this rank's files.
    pub needed_bytes: u64,
    /// Free bytes on the disk at the failure, if known and relevant.
    pub free_bytes: Option<u64>,
}

impl fmt::Display for Room {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.free_bytes {
            Some(free) => write!(f, "; {} needed, {} free", mib(self.needed_bytes), mib(free)),
            None => Ok(()),
        }
    }
}

/// The newest checkpoint to resume from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newest(pub Option<u64>);

impl fmt::Display for Newest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(step) => write!(f, "the newest good checkpoint is step-{step}"),
            None => f.write_str("there is no good checkpoint yet"),
        }
    }
}

/// Quotes and truncates a text: a damaged file may hold anything.
fn quoted(text: &str) -> String {
    const MAX: usize = 60;
    let mut quoted = String::new();
    for char in text.chars() {
        let escaped = char.escape_debug().to_string();
        if quoted.len() + escaped.len() > MAX {
            return format!("\"{quoted}...\"");
        }
        quoted += &escaped;
    }
    format!("\"{quoted}\"")
}
