//! Results on stdout: for the commands whose results are what they are for.

use std::io::{self, Write as _};

use crate::report::ReportError;

/// Writes all of `text` to stdout. A pipe that its reader has closed is no error: the reader has seen enough.
///
/// # Errors
/// [`ReportError::Stdout`] if it can't be written.
pub(crate) fn print_result(text: &str) -> Result<(), ReportError> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(source) if source.kind() != io::ErrorKind::BrokenPipe => Err(ReportError::Stdout { source }),
        _ => Ok(()),
    }
}

/// One write to stderr, so that lines of several ranks don't mix.
pub fn say(text: &str) {
    // Nobody is left to hear that stderr is closed.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}
