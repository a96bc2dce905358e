//! A file of bounded size: full, it is renamed to `<name>.1`, and a new one begins.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use ddp::storage::user_file::open_no_link;

/// A file that is written line by line.
#[derive(Debug)]
pub(super) struct RotatingFile {
    path: PathBuf,
    file: File,
    n_bytes: u64,
    max_bytes: u64,
}

impl RotatingFile {
    /// Opens the file `path` to append to it.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) fn open(path: &Path, max_bytes: u64) -> io::Result<Self> {
        let file = append(path)?;
        let n_bytes = file.metadata()?.len();
        Ok(RotatingFile { path: path.to_owned(), file, n_bytes, max_bytes })
    }

    /// Path of the current file.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a line whole, to a new file if this one would grow beyond its limit.
    ///
    /// # Errors
    /// The error of the operating system.
    pub(super) fn write(&mut self, line: &str) -> io::Result<()> {
        let n_bytes = line.len() as u64;
        if self.n_bytes > 0 && self.n_bytes + n_bytes > self.max_bytes {
            fs::rename(&self.path, older(&self.path))?;
            self.file = append(&self.path)?;
            self.n_bytes = 0;
        }
        self.file.write_all(line.as_bytes())?;
        self.n_bytes += n_bytes;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    open_no_link(OpenOptions::new().append(true).create(true), path)
}

/// `<path>.1`
fn older(path: &Path) -> PathBuf {
    let mut older = OsString::from(path);
    older.push(".1");
    older.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_kept_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank-0.log");
        let mut file = RotatingFile::open(&path, 10).unwrap();
        let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        for line in ["one\n", "two\n", "three\n"] {
            file.write(line).unwrap();
        }
        assert_eq!(
            (text("rank-0.log"), text("rank-0.log.1")),
            ("three\n".to_owned(), "one\ntwo\n".to_owned())
        );
        file.write("four\n").unwrap();
        file.write("a line above the limit\n").unwrap();
        assert_eq!(text("rank-0.log.1"), "four\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        // A resumed run counts what is there.
        drop(file);
        let mut file = RotatingFile::open(&path, 10).unwrap();
        file.write("five\n").unwrap();
        assert_eq!(
            (text("rank-0.log"), text("rank-0.log.1")),
            ("five\n".to_owned(), "a line above the limit\n".to_owned())
        );
        file.write("six\n").unwrap();
        assert_eq!(text("rank-0.log"), "five\nsix\n");
    }
}
