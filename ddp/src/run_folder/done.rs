//! `done.json` marks the run in a folder as complete. Rank 0 of a run writes it last, atomically:
//! `{"run_id":"...","job_id":"...","step":N}`. A run that starts or resumes in the folder deletes it first.
//!
//! The launcher's exit status does not show whether a job succeeded: mpirun returns 0 for some jobs that were killed, and it may
//! hang after a complete run.
//!
//! ```
//! use ddp::run_folder::done::Done;
//!
//! let folder = tempfile::tempdir()?;
//! assert_eq!(Done::read(folder.path()), None);
//! let done = Done { run_id: None, job_id: Some("a-1".to_owned()), step: 7 };
//! done.write(folder.path())?;
//! assert_eq!(Done::read(folder.path()), Some(done));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::storage::atomic_write::{WriteError, write_atomic};
use crate::storage::user_file::read_regular;

/// Name of the file.
pub const DONE_FILE: &str = "done.json";

/// Maximum size of the file when it is read.
const MAX_BYTES: u64 = 4096;

/// Content of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// [Id](super::run_id) of the run.
    pub run_id: Option<String>,
    /// Id of the job that completed the run; a supervisor uses it to recognize the file of an earlier job.
    pub job_id: Option<String>,
    /// Steps of the run.
    pub step: u64,
}

impl Done {
    /// Writes the file into the folder of the run.
    ///
    /// # Errors
    /// `WriteError` if the file can't be replaced.
    pub fn write(&self, run: &Path) -> Result<(), WriteError> {
        let mut text = serde_json::to_string(self).expect("a text and a number");
        text.push('\n');
        write_atomic(&run.join(DONE_FILE), text.as_bytes())
    }

    /// Reads the file in the folder of a run; `None` if it is missing or can't be read.
    pub fn read(run: &Path) -> Option<Self> {
        serde_json::from_slice(&read_regular(&run.join(DONE_FILE), MAX_BYTES).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Done::read(folder.path()), None);
        let done = Done { run_id: None, job_id: Some("a-1".to_owned()), step: 7 };
        done.write(folder.path()).unwrap();
        let text = std::fs::read_to_string(folder.path().join(DONE_FILE)).unwrap();
        assert_eq!(text, "{\"run_id\":null,\"job_id\":\"a-1\",\"step\":7}\n");
        assert_eq!(Done::read(folder.path()), Some(done));
        std::fs::write(folder.path().join(DONE_FILE), "{\"run_id\":\"a").unwrap();
        assert_eq!(Done::read(folder.path()), None, "half a file says nothing");
    }
}
