//! Opening files that the user named, with the errors that tell what is there instead.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use crate::error::{Error, Result};

/// Opens `path` for reading; `what` says in messages what it is for.
///
/// # Errors
/// [`Error::FileMissing`], [`Error::FileIsFolder`] or [`Error::FileUnreadable`].
pub fn open(what: &'static str, path: &Path) -> Result<File> {
    let unreadable = |source| Error::FileUnreadable { what, path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Error::FileMissing { what, path: path.to_owned() });
        }
        Err(error) => return Err(unreadable(error)),
    };
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(Error::FileIsFolder { what, path: path.to_owned() });
    }
    Ok(file)
}

/// The whole of `path`; `what` says in messages what it is for.
///
/// # Errors
/// As [`open`].
pub fn read(what: &'static str, path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = open(what, path)?.read_to_end(&mut bytes);
    read.map_err(|source| Error::FileUnreadable { what, path: path.to_owned(), source })?;
    Ok(bytes)
}
