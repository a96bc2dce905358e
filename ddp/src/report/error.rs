//! Errors of writing results and events.

use std::io;

use crate::storage::write_error::WriteError;

/// An error of writing results or events.
#[derive(Debug, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
pub enum ReportError {
    /// Stdout can't be written.
    #[error("can't write to stdout: {source}")]
    #[diagnostic(help("{}", stdout_hint(source)))]
    Stdout {
        /// Error of the operating system.
        source: io::Error,
    },
    /// The event file can't be written.
    #[error(transparent)]
    #[diagnostic(transparent)]
    Write(#[from] WriteError),
}

fn stdout_hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::StorageFull => {
            "the disk it is redirected to is full: free some space, or redirect it elsewhere"
        }
        _ => "check where it is redirected to",
    }
}
