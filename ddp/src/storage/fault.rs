//! Files with known length and checksum, and the ways in which they can be damaged.
//!
//! ```
//! use ddp::storage::fault::FileFault;
//! use ddp::storage::tensor_file::TensorFile;
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("weights.safetensors");
//! assert!(matches!(TensorFile::open(&path), Err(FileFault::Missing { .. })));
//! std::fs::write(&path, "not tensors")?;
//! assert!(matches!(TensorFile::open(&path), Err(FileFault::Malformed { .. })));
//! # Ok::<(), std::io::Error>(())
//! ```

use std::fs::File;
use std::io::Seek as _;

use serde::{Deserialize, Serialize};

use super::checksum::Checksum;

/// Name, length and checksum of a file when it was written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Name within its folder.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
    /// XXH3-128 checksum of all bytes.
    pub xxh3_128: Checksum,
}

impl FileEntry {
    /// Reads all of an open file, and compares it with the entry.
    ///
    /// # Errors
    /// The fault found.
    pub fn check(&self, mut file: &File) -> Result<(), FileFault> {
        let name = || self.name.clone();
        let read = file.rewind().and_then(|()| Checksum::of_reader(file));
        let (got, sum) =
            read.map_err(|error| FileFault::Unreadable { name: name(), reason: error.to_string() })?;
        if got != self.bytes {
            return Err(FileFault::Length { name: name(), got, expected: self.bytes });
        }
        if sum != self.xxh3_128 {
            let (got, expected) = (sum.to_string(), self.xxh3_128.to_string());
            return Err(FileFault::Changed { name: name(), got, expected });
        }
        Ok(())
    }
}

/// A fault of a checkpoint or model file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileFault {
    /// The file is missing.
    #[error("{name} is missing")]
    Missing {
        /// Name of the file.
        name: String,
    },
    /// The file can't be read.
    #[error("{name} can't be read: {reason}")]
    Unreadable {
        /// Name of the file.
        name: String,
        /// Error of the operating system.
        reason: String,
    },
    /// The file is shorter or longer than when it was written.
    #[error("{name} has {got} bytes, expected {expected}")]
    Length {
        /// Name of the file.
        name: String,
        /// Length on disk.
        got: u64,
        /// Value in the manifest.
        expected: u64,
    },
    /// The content differs from the content that was written.
    #[error("{name} was changed: its checksum is {got}, expected {expected}")]
    Changed {
        /// Name of the file.
        name: String,
        /// Checksum on disk.
        got: String,
        /// Value in the manifest.
        expected: String,
    },
    /// The content is unchanged but invalid.
    #[error("{name}: {reason}")]
    Malformed {
        /// Name of the file.
        name: String,
        /// Defect of the content, such as the parser's message.
        reason: String,
    },
}

impl FileFault {
    /// The fault without the file's name.
    pub(crate) fn reason(&self) -> String {
        let text = self.to_string();
        let name = match self {
            Self::Missing { name } | Self::Unreadable { name, .. } | Self::Length { name, .. } => name,
            Self::Changed { name, .. } | Self::Malformed { name, .. } => name,
        };
        text.strip_prefix(name.as_str()).unwrap_or(&text).trim_start_matches([':', ' ']).to_owned()
    }
}
