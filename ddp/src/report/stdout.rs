//! Results on stdout: for the commands whose results are what they are for.

use std::io::{self, Write as _};

use crate::error::{Error, Result};

/// Writes all of `text` to stdout. A pipe that its reader has closed is no error: the reader has seen enough.
///
/// # Errors
/// [`Error::Stdout`] if it can't be written.
pub(crate) fn put(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(source) if source.kind() != io::ErrorKind::BrokenPipe => Err(Error::Stdout { source }),
        _ => Ok(()),
    }
}
