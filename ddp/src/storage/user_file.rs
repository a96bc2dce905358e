//! Opening files that the user named, with errors that say what is there instead.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// A file that the user named and that can't be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// There is nothing at the path.
    #[error("{what} `{}` does not exist\nhint: {}", path.display(), missing_hint(path))]
    Missing {
        /// Purpose of the file: "config file", "data file".
        what: &'static str,
        /// As the user wrote it.
        path: PathBuf,
    },
    /// A folder was named where a file is needed.
    #[error("{what} `{}` is a folder, expected a file\nhint: name the file inside it", path.display())]
    IsFolder {
        /// Purpose of the file.
        what: &'static str,
        /// As the user wrote it.
        path: PathBuf,
    },
    /// The system refused to open or read the file.
    #[error("{what} `{}` can't be read: {source}\nhint: check its permissions and the disk", path.display())]
    Unreadable {
        /// Purpose of the file.
        what: &'static str,
        /// As the user wrote it.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

/// Opens `path` for reading; `what` is its purpose in messages.
///
/// # Errors
/// [`FileError`].
pub fn open(what: &'static str, path: &Path) -> Result<File, FileError> {
    let unreadable = |source| FileError::Unreadable { what, path: path.to_owned(), source };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(FileError::Missing { what, path: path.to_owned() });
        }
        Err(error) => return Err(unreadable(error)),
    };
    if file.metadata().map_err(unreadable)?.is_dir() {
        return Err(FileError::IsFolder { what, path: path.to_owned() });
    }
    Ok(file)
}

/// Reads the whole of `path`; `what` is its purpose in messages.
///
/// # Errors
/// [`FileError`].
pub fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let read = open(what, path)?.read_to_end(&mut bytes);
    read.map_err(|source| FileError::Unreadable { what, path: path.to_owned(), source })?;
    Ok(bytes)
}

/// The way out for a path at which there is nothing.
pub(crate) fn missing_hint(path: &Path) -> String {
    match std::env::current_dir() {
        Ok(folder) if path.is_relative() => {
            let folder = folder.display();
            format!("relative paths start at the current folder, {folder}")
        }
        _ => "check the spelling; on several hosts, that each of them has it".to_owned(),
    }
}
