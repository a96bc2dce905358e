//! Results on stdout, and single lines on stderr.

use std::io::{self, Write as _};

use ddp::report::ReportError;

/// Writes all of `text` to stdout. A closed pipe is not an error, because the reader has stopped on purpose.
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

/// Writes a line to stderr with a single call, so that lines of several ranks don't mix.
pub fn say(text: &str) {
    // A closed stderr cannot be reported anywhere.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}
