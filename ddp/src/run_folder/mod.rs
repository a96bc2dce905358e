//! Run folder: owned by one process, never overwritten by accident.

pub mod done;
pub mod error;
pub mod folder;
mod lease;
mod lock_file;
pub mod logs;
pub mod run_id;
pub(crate) mod time;

pub use error::FolderError;
pub use folder::{Existing, RunDir};
