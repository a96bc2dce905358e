//! Reasons why a path holds no checkpoint, with hints at what to name instead.

use std::path::Path;
use std::{fmt, io};

use super::names::{Marker, folder_of, step_of};
use crate::report::visible::shell_word;
use crate::run_folder::folder::{CHECKPOINTS, CONFIG_FILE, METRICS_FILE, MODEL_FILE};
use crate::storage::user_file::missing_hint;

/// The reason why a path holds no checkpoint, found when the message is written.
#[derive(Debug)]
pub(super) enum Absence {
    Nothing,
    Unreadable(io::Error),
    /// A file other than those that name a checkpoint.
    File,
    /// `latest` or `best`.
    Marker,
    /// The folder of a run.
    Run,
    Empty,
    Other,
}

impl Absence {
    pub(super) fn of(path: &Path) -> Self {
        let is_marker = || {
            let name = path.file_name().unwrap_or_default();
            [Marker::Latest, Marker::Best].iter().any(|marker| name == marker.name())
        };
        match path.metadata() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Absence::Nothing,
            Err(error) => return Absence::Unreadable(error),
            Ok(found) if !found.is_dir() => {
                return if is_marker() { Absence::Marker } else { Absence::File };
            }
            Ok(_) => {}
        }
        let mut names = match std::fs::read_dir(path) {
            Ok(names) => names.flatten().map(|entry| entry.file_name()).peekable(),
            Err(error) => return Absence::Unreadable(error),
        };
        if names.peek().is_none() {
            Absence::Empty
        } else if names.any(|name| [CONFIG_FILE, METRICS_FILE, CHECKPOINTS].iter().any(|of| name == *of)) {
            Absence::Run
        } else {
            Absence::Other
        }
    }

    pub(super) fn hint(&self, path: &Path) -> String {
        const NAME: &str = "name a run's folder, its checkpoints folder, or a step-N folder inside";
        let folder = folder_of(path);
        match self {
            Absence::Nothing if holds_checkpoints(folder) => {
                format!("`ddp-train checkpoint ls {}` lists the existing checkpoints", shell_word(folder))
            }
            Absence::Nothing => missing_hint(path),
            Absence::Unreadable(_) => "check who may read there".to_owned(),
            Absence::File if path.extension().is_some_and(|ending| ending == "safetensors") => {
                format!("{NAME}; --init-from starts a new run from weights alone")
            }
            Absence::Marker => "name the run's folder, or a step-N folder".to_owned(),
            Absence::Run if path.join(MODEL_FILE).is_file() => format!(
                "name another run; `--init-from {}` starts a new run from its weights",
                shell_word(path.join(MODEL_FILE))
            ),
            Absence::Run => {
                "name another run: this one has saved no checkpoint yet, or all were deleted".to_owned()
            }
            Absence::File | Absence::Empty | Absence::Other => NAME.to_owned(),
        }
    }
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absence::Nothing => f.write_str("no such file or folder"),
            Absence::Unreadable(error) => write!(f, "{error}"),
            Absence::File => f.write_str("it is a file"),
            Absence::Marker => f.write_str("the file names a checkpoint that does not exist"),
            Absence::Run => f.write_str("the run has no checkpoints"),
            Absence::Empty => f.write_str("the folder is empty"),
            Absence::Other => f.write_str("the folder holds no checkpoints"),
        }
    }
}

/// Whether a folder of this name holds checkpoints, by their folders' names.
fn holds_checkpoints(folder: &Path) -> bool {
    let mut entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.any(|entry| entry.file_name().to_str().is_some_and(|name| step_of(name).is_some()))
}
