//! Errors of reporting: results and events that could not be written.

use std::io;

use crate::storage::atomic_write::WriteError;

/// An error of writing results to stdout or events to a file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReportError {
    /// Results that can't be written to where stdout leads.
    #[error("can't write to stdout: {source}\nhint: {}", stdout_hint(source))]
    Stdout {
        /// The system's answer.
        source: io::Error,
    },
    /// The file of events could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

fn stdout_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull => {
            "the disk that it leads to is full: free some space, or send it elsewhere"
        }
        _ => "check where it leads",
    }
}
