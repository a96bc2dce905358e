//! Names of the folders and files of checkpoints.

use std::path::Path;

/// Name of the folder in a run's folder.
pub const CHECKPOINTS_FOLDER: &str = "checkpoints";
const STEP_PREFIX: &str = "step-";
/// The file in a checkpoint's folder that names all others, written last.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Name of a checkpoint's model file.
pub const MODEL_FILE: &str = "model.safetensors";
/// Begin of the names of the files of optimizer state.
pub(super) const STATE_PREFIX: &str = "optimizer-";
/// The version of the manifest's format that this program writes.
pub(crate) const FORMAT_VERSION: u64 = 1;

/// A file that holds the name of one of the checkpoints.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    /// The newest. Only for people and scripts: a resumed run reads the checkpoints themselves.
    Latest,
    /// The one with the best evaluation.
    Best,
}

impl Marker {
    /// The file's name.
    pub fn name(self) -> &'static str {
        match self {
            Marker::Latest => "latest",
            Marker::Best => "best",
        }
    }
}

/// Returns the name of the folder of a step, `step-<N>`.
pub fn step_name(step: u64) -> String {
    format!("{STEP_PREFIX}{step}")
}

/// Name of the state file of a rank, of `n_savers` ranks that have state.
pub(super) fn state_file(rank: usize, n_savers: usize) -> String {
    format!("{STATE_PREFIX}{rank:05}-of-{n_savers:05}.safetensors")
}

/// Largest step of a checkpoint, beyond which no run comes; below it, the number of the next step is a number.
const MAX_STEP: u64 = i64::MAX as u64;

/// Returns the step that a folder's name stands for, if it is the name of a checkpoint's folder.
pub fn step_of(name: &str) -> Option<u64> {
    let step = name.strip_prefix(STEP_PREFIX)?.parse().ok().filter(|step| *step <= MAX_STEP)?;
    (step_name(step) == name).then_some(step)
}

/// Returns the folder that holds `path`.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
