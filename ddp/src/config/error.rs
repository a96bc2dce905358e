//! Errors of reading and checking a config. The user can fix all of them (exit status 2).

use std::path::PathBuf;

use super::origin::Origin;
use crate::storage::user_file::FileError;

/// Result of this room's functions.
pub(super) type Result<T, E = ConfigError> = std::result::Result<T, E>;

/// A config that can't be used. Messages name the place, the key, the expected and the given value, and end with a hint.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum ConfigError {
    /// The file can't be opened or read.
    #[error(transparent)]
    #[diagnostic(transparent)]
    File(#[from] FileError),
    /// The file is far larger than any config.
    #[error("config file `{}` has {n_bytes} bytes, expected at most {max_bytes}", path.display())]
    #[diagnostic(help("is it a data file? data go to `data.train` in the config"))]
    TooLarge { path: PathBuf, n_bytes: u64, max_bytes: u64 },
    /// The file is not UTF-8.
    #[error("config file {at}: not UTF-8 text")]
    #[diagnostic(help("save the file as UTF-8"))]
    NotUtf8 {
        /// Place of the first bad byte.
        at: Box<Origin>,
    },
    /// The file is not TOML.
    #[error("config file {at}: not valid TOML: {message}")]
    #[diagnostic(help("{}", syntax_hint(at)))]
    Syntax {
        /// Place of the first fault.
        at: Box<Origin>,
        message: String,
    },
    /// No key has this name.
    #[error("{at}: unknown key `{key}`")]
    #[diagnostic(help("{hint}"))]
    UnknownKey {
        /// Place of the key.
        at: Box<Origin>,
        /// The key, with its section.
        key: String,
        /// The nearest known key, or the list of keys.
        hint: String,
    },
    /// The value has a different type than the key.
    #[error("{at}: `{key}` must be {expected}, got {got}")]
    #[diagnostic(help("write `{example}`"))]
    WrongType {
        /// Place of the value.
        at: Box<Origin>,
        /// The key, with its section.
        key: String,
        expected: &'static str,
        /// Type and value found.
        got: String,
        /// A valid assignment for this key.
        example: String,
    },
    /// The value has the right type but is out of range, or does not fit the other keys.
    #[error("{at}: `{key}` must be {expected}, got {got}")]
    #[diagnostic(help("{hint}"))]
    BadValue {
        /// Place of the value.
        at: Box<Origin>,
        /// The key, with its section.
        key: &'static str,
        /// Values that are valid.
        expected: String,
        got: String,
        hint: String,
    },
    /// Two keys of which only one may be given.
    #[error("{at}: `{key}` and `{other}` are both given")]
    #[diagnostic(help("keep one of them: {hint}"))]
    Conflict {
        /// Place of the second key.
        at: Box<Origin>,
        key: &'static str,
        other: &'static str,
        /// The meaning of both keys.
        hint: &'static str,
    },
    /// The command line gives the same key twice.
    #[error("`{first}` and `{second}` both give `{key}`")]
    #[diagnostic(help("keep one of them"))]
    GivenTwice { key: &'static str, first: String, second: String },
    /// The config file names no data.
    #[error("config file {}: `data.train` is missing", path.display())]
    #[diagnostic(help(
        "write `train = \"FILE\"` under [data], or add --data FILE; --data builtin:digits trains on the bundled digits"
    ))]
    NoData { path: PathBuf },
    /// A `--set` argument is not an assignment.
    #[error("`--set {arg}`: expected SECTION.KEY=VALUE")]
    #[diagnostic(help("for example `--set optimizer.lr=0.001`"))]
    BadSet {
        /// The argument as given.
        arg: String,
    },
    /// No key's name begins with the given prefix.
    #[error("no key begins with `{prefix}`")]
    #[diagnostic(help("{hint}"))]
    NoSuchPrefix {
        /// The prefix as given.
        prefix: String,
        /// The nearest known key, or the sections.
        hint: String,
    },
}

fn syntax_hint(at: &Origin) -> &'static str {
    match at {
        Origin::File { path, .. } if path.extension().is_none_or(|ext| ext != "toml") => {
            "if it is data, name it by --data FILE; a config is TOML"
        }
        _ => "lines are `key = value` under `[section]`; texts need quotes",
    }
}
