//! Run folder: owned by one process, never overwritten by accident.

pub mod error;
pub mod folder;

pub use error::FolderError;
pub use folder::{Existing, RunDir};
