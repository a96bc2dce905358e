//! Run folder: owned by one process, and never overwritten by accident.
//!
//! Processes on one host are excluded by a lock, processes on other hosts by a lease (`lease.rs`).
//!
//! ```
//! use ddp::run_folder::{Existing, FolderError, RunDir};
//!
//! let folder = tempfile::tempdir()?;
//! let out = folder.path().join("run");
//! let run = RunDir::open(Some(&out), "digits", Existing::Refuse)?;
//! std::fs::write(run.file("notes.txt"), "mine")?;
//!
//! // Nobody else gets it meanwhile, not even to overwrite it.
//! let second = RunDir::open(Some(&out), "digits", Existing::Overwrite);
//! assert!(matches!(second, Err(FolderError::Busy { .. })));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod done;
pub mod error;
mod lock_file;
pub mod logs;
pub mod run_id;
pub mod file_system;
pub(crate) mod time;
mod lease;
pub mod requests;
pub mod folder;

/// File in the folder of a run that is touched while its end is on the way to a bucket.
pub const UPLOADING_FILE: &str = ".uploading";

pub use error::FolderError;
pub use folder::{Existing, RunDir};
