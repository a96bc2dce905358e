//! Errors of building a model and of reading its file.

use std::path::PathBuf;

use ddp_kernels::KernelError;

use crate::storage::user_file::FileError;

/// The result of this room's functions.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

/// A model file that can't be used, or a failed operation.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModelError {
    /// A device, tensor or operation failed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The file can't be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file is no model file.
    #[error("model file `{}` can't be used: {reason}\nhint: expected the model.safetensors of a run, or one with the same names and shapes", path.display())]
    ModelFile {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// The file holds another model.
    #[error("model file `{}` belongs to a different model:\n  {differences}\nhint: compare `model` and the data's columns with those of the run that wrote it", path.display())]
    ModelMismatch {
        /// The file.
        path: PathBuf,
        /// Every difference, one per line.
        differences: String,
    },
}
