//! Opening and reading files that the user named.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// An error of opening or reading a file that the user named.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The named file does not exist.
    #[error(
        "{what} `{}` does not exist\n\
         hint: {}",
        path.display(), missing_hint(path)
    )]
    Missing {
        /// Purpose of the file, such as "config file".
        what: &'static str,
        /// Path as the user wrote it.
        path: PathBuf,
    },
    /// The path names a folder.
    #[error(
        "{what} `{}` is a folder, expected a file\n\
         hint: name the file inside it",
        path.display()
    )]
    IsFolder {
        /// Purpose of the file.
        what: &'static str,
        /// Path as the user wrote it.
        path: PathBuf,
    },
    /// The system refused to open or read the file.
    #[error(
        "{what} `{}` can't be read: {source}\n\
         hint: check its permissions and the disk",
        path.display()
    )]
    Unreadable {
        /// Purpose of the file.
        what: &'static str,
        /// Path as the user wrote it.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
}

/// Opens `path` for reading; `what` names its purpose in error messages, such as "data file".
pub(crate) fn open(what: &'static str, path: &Path) -> Result<File, FileError> {
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

/// Reads all of `path`; `what` names its purpose in error messages.
pub(crate) fn read(what: &'static str, path: &Path) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let read = open(what, path)?.read_to_end(&mut bytes);
    read.map_err(|source| FileError::Unreadable { what, path: path.to_owned(), source })?;
    Ok(bytes)
}

/// The hint for a path that does not exist.
pub(crate) fn missing_hint(path: &Path) -> String {
    match std::env::current_dir() {
        Ok(folder) if path.is_relative() => {
            let folder = folder.display();
            format!("relative paths start at the current folder, {folder}")
        }
        _ => "check the spelling; with several hosts, check that each has the file".to_owned(),
    }
}
