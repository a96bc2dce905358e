//! Run folder: owned by one process, never overwritten by accident.

pub mod error;
pub mod folder;
pub mod logs;

pub use error::FolderError;
pub use folder::{Existing, RunDir};
