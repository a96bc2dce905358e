//! Origin of a setting, for messages.

use std::fmt;
use std::path::{Path, PathBuf};

/// Origin of a setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// A place in a config file.
    File {
        /// Path as messages show it.
        path: PathBuf,
        /// From 1.
        line: usize,
        /// From 1, in characters.
        column: usize,
    },
    /// A `--set` argument, held as given.
    Set(String),
    /// A flag or argument that is a short form of the key.
    Short {
        /// The flag; "" for an argument without one.
        flag: &'static str,
        /// Flag and value as typed.
        shown: String,
    },
    /// No origin: the value is a default.
    Default,
}

impl Origin {
    /// Line and column of the byte `offset` of the file's `text`.
    pub(super) fn in_file(path: &Path, text: &str, offset: usize) -> Self {
        Self::in_bytes(path, text.as_bytes(), offset)
    }

    /// Line and column in bytes that are UTF-8 only up to `offset`.
    pub(super) fn in_bytes(path: &Path, bytes: &[u8], offset: usize) -> Self {
        let before = &bytes[..offset.min(bytes.len())];
        let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        Self::File {
            path: path.to_owned(),
            line: before.iter().filter(|&&byte| byte == b'\n').count() + 1,
            column: String::from_utf8_lossy(&before[line_start..]).chars().count() + 1,
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line, column } => {
                write!(f, "{}: line {line}, column {column}", path.display())
            }
            Self::Set(arg) => write!(f, "`--set {arg}`"),
            Self::Short { shown, .. } => write!(f, "`{shown}`"),
            Self::Default => f.write_str("default"),
        }
    }
}
