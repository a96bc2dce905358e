//! Files whose length and checksum are known, and what can be wrong with them.

use serde::{Deserialize, Serialize};

use super::checksum::Checksum;

/// A file as it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name in its folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// Of all its bytes.
    pub xxh3_128: Checksum,
}

/// A fault of a file that a checkpoint or model holds.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileFault {
    /// A file that belongs to it is missing.
    #[error("{name} is missing")]
    Missing {
        /// The file.
        name: String,
    },
    /// A file can't be read.
    #[error("{name} can't be read: {reason}")]
    Unreadable {
        /// The file.
        name: String,
        /// The system's answer.
        reason: String,
    },
    /// A file is shorter or longer than it was written.
    #[error("{name} has {got} bytes, expected {expected}")]
    Length {
        /// The file.
        name: String,
        /// Its length.
        got: u64,
        /// What the manifest says.
        expected: u64,
    },
    /// The bytes of a file are others than those that were written.
    #[error("{name} was changed: its checksum is {got}, expected {expected}")]
    Changed {
        /// The file.
        name: String,
        /// Its checksum.
        got: String,
        /// What the manifest says.
        expected: String,
    },
    /// A file whose bytes are those that were written, and make no sense.
    #[error("{name}: {reason}")]
    Malformed {
        /// The file.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
}
