//! What can be wrong with a checkpoint that was found.

use std::fmt;

use super::names::FORMAT_VERSION;
use crate::report::units::mib;
use crate::storage::fault::FileFault;

/// What is wrong with a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// One of its files is damaged.
    #[error(transparent)]
    File(#[from] FileFault),
    /// A manifest that is none.
    #[error("manifest.json is cut off or no manifest")]
    NoManifest,
    /// A manifest whose bytes are others than those that were written.
    #[error("manifest.json was changed: its checksum does not fit")]
    ManifestChanged,
    /// A manifest whose checksum fits, and that can't be read.
    #[error("manifest.json can't be read: {reason}")]
    ManifestUnreadable {
        /// Why.
        reason: String,
    },
    /// A checkpoint of a later program.
    #[error("it has format version {format_version}; this program reads up to {}", FORMAT_VERSION)]
    LaterFormat {
        /// Its version.
        format_version: u64,
    },
    /// A marker (`latest` or `best`) that names no checkpoint.
    #[error("it names {}, and there is no such checkpoint", quoted(name))]
    NamesNothing {
        /// What it names.
        name: String,
    },
    /// What another rank found as it read its part.
    #[error("rank {rank} found: {reason}")]
    OnRank {
        /// The rank.
        rank: usize,
        /// What it found.
        reason: String,
    },
    /// A folder under another step's name.
    #[error("it is of step {step}, which is not what its folder's name says")]
    OtherStep {
        /// What the manifest says.
        step: u64,
    },
}

/// How much room a checkpoint needs and how much there is; told where room is what was wanting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    /// Bytes that this rank's part of the checkpoint takes.
    pub needed_bytes: u64,
    /// Bytes free on the disk when it failed, if known and if that is what matters.
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

/// The newest checkpoint that can be gone on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Newest(pub Option<u64>);

impl fmt::Display for Newest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(step) => write!(f, "the newest good one is step-{step}"),
            None => f.write_str("there is no good one yet"),
        }
    }
}

/// `"text"`, cut where it is long: what stands in a damaged file may be anything.
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
