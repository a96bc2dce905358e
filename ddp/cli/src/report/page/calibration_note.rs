//! The note of `eval --calibrate` next to the model file that it has written, and whether this file is still the same one.

use std::path::{Path, PathBuf};

use ddp::model::file::ModelFile;
use ddp::run_folder::folder::MODEL_FILE;
use serde_json::Value;

/// Name of the note of a run's model.
pub(super) const FILE: &str = "calibration.json";

/// Path of the note of the model file `model`: each file of a folder has its own.
pub(crate) fn path(model: &Path) -> PathBuf {
    let name = match model.file_stem() {
        Some(stem) if model.file_name().is_some_and(|name| name != MODEL_FILE) => {
            format!("{}.{FILE}", stem.to_string_lossy())
        }
        _ => FILE.to_owned(),
    };
    model.with_file_name(name)
}

/// Fingerprint of a model file in a note; `None` if it can't be read.
pub(crate) fn fingerprint(model: &Path) -> Option<String> {
    Some(format!("{:016x}", ModelFile::read(model).ok()?.fingerprint()))
}

/// Whether a note is about the model of the run in `folder`, which may have been trained again or replaced since.
pub(super) fn is_of_model(note: &Value, folder: &Path) -> bool {
    match note["fingerprint"].as_str() {
        Some(of_note) => fingerprint(&folder.join(MODEL_FILE)).is_some_and(|of_model| of_model == of_note),
        // Earlier versions wrote none, and this file name for any model file.
        None => note["model"].as_str().is_some_and(|model| Path::new(model).ends_with(MODEL_FILE)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_file_has_a_note_of_its_own() {
        let name = |model: &str| path(Path::new(model)).display().to_string();
        assert_eq!(name("runs/a/model.safetensors"), "runs/a/calibration.json");
        assert_eq!(name("runs/a/last.safetensors"), "runs/a/last.calibration.json");
        assert_eq!(name("mine.safetensors"), "mine.calibration.json");
    }
}
