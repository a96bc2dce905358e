//! The log file of this rank, `logs/rank-<r>.log` in the run's folder.

use std::io;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::rotating_file::RotatingFile;

/// Size at which a log file is renamed and a new one begins.
const MAX_BYTES: u64 = 10 << 20;
/// Most bytes that wait for the file to be opened.
const MAX_WAITING_BYTES: usize = 256 << 10;

/// The log file, before and after it is open.
#[derive(Debug)]
pub(super) struct RankLog(Mutex<State>);

#[derive(Debug)]
enum State {
    /// The run's folder is not known yet: lines wait.
    Waiting(String),
    Open(RotatingFile),
    /// Nothing is written any more.
    Closed,
}

impl RankLog {
    /// Keeps lines until the file is opened, if `waits`; else writes nothing.
    pub(super) fn new(waits: bool) -> Self {
        RankLog(Mutex::new(if waits { State::Waiting(String::new()) } else { State::Closed }))
    }

    /// Opens the file and writes the lines that waited.
    ///
    /// # Errors
    /// The path, and the error of the operating system; nothing is written from then on.
    pub(super) fn open(&self, path: &Path) -> Result<(), (PathBuf, io::Error)> {
        let mut state = self.state();
        let waiting = match mem::replace(&mut *state, State::Closed) {
            State::Waiting(waiting) => waiting,
            _ => String::new(),
        };
        let opened = RotatingFile::open(path, MAX_BYTES).and_then(|mut file| {
            if !waiting.is_empty() {
                file.write(&waiting)?;
            }
            Ok(file)
        });
        *state = State::Open(opened.map_err(|error| (path.to_owned(), error))?);
        Ok(())
    }

    /// Forgets the lines that wait for a file.
    pub(super) fn close(&self) {
        *self.state() = State::Closed;
    }

    /// Writes a line.
    ///
    /// # Errors
    /// The path and the system's error, the first time that writing fails; nothing is written from then on.
    pub(super) fn write(&self, line: &str) -> Result<(), (PathBuf, io::Error)> {
        let mut state = self.state();
        let failed = match &mut *state {
            State::Waiting(waiting) if waiting.len() + line.len() <= MAX_WAITING_BYTES => {
                waiting.push_str(line);
                return Ok(());
            }
            State::Open(file) => match file.write(line) {
                Ok(()) => return Ok(()),
                Err(error) => (file.path().to_owned(), error),
            },
            _ => return Ok(()),
        };
        *state = State::Closed;
        Err(failed)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wait_for_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank-0.log");
        let log = RankLog::new(true);
        log.write("a\n").unwrap();
        log.open(&path).unwrap();
        log.write("b\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a\nb\n");
        let none = RankLog::new(false);
        none.write("a\n").unwrap();
        let waits = RankLog::new(true);
        waits.write("a\n").unwrap();
        waits.close();
        waits.write("b\n").unwrap();
    }

    #[test]
    fn a_full_disk_is_reported_once() {
        let log = RankLog::new(true);
        log.open(Path::new("/dev/full")).unwrap();
        let (path, error) = log.write("a\n").unwrap_err();
        assert_eq!((path.to_str(), error.kind()), (Some("/dev/full"), io::ErrorKind::StorageFull));
        log.write("b\n").unwrap();
        let log = RankLog::new(true);
        log.write("waits\n").unwrap();
        log.open(Path::new("/dev/full")).unwrap_err();
        log.write("b\n").unwrap();
        RankLog::new(true).open(Path::new("/nowhere/rank-0.log")).unwrap_err();
    }
}
