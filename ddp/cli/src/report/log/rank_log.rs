//! The log file of this rank, `logs/rank-<r>.log` in the run folder. Its size is bounded: when it is full, it is renamed to
//! `<name>.1`, and a new one is started.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ddp::storage::user_file::open_unlinked;

use super::terminal::Terminal;

/// Size at which a log file is renamed and a new one is started.
const MAX_BYTES: u64 = 10 << 20;
/// Maximum number of bytes that wait for the file to be opened.
const MAX_WAITING_BYTES: usize = 256 << 10;

/// The log file, before and after it is opened. It is written line by line; a failure is reported once, on the terminal.
#[derive(Debug, Clone)]
pub(super) struct RankLog {
    state: Arc<Mutex<State>>,
    terminal: Arc<Terminal>,
}

#[derive(Debug)]
enum State {
    /// The run folder is not known yet, so lines wait.
    Waiting(Vec<u8>),
    Open(RotatingFile),
    /// Nothing more is written.
    Closed,
}

#[derive(Debug)]
struct RotatingFile {
    path: PathBuf,
    file: File,
    n_bytes: u64,
    max_bytes: u64,
}

impl RankLog {
    /// Creates the log; if `waits`, it keeps lines until the file is opened, otherwise it writes nothing.
    pub(super) fn new(terminal: &Arc<Terminal>, waits: bool) -> Self {
        let state = if waits { State::Waiting(Vec::new()) } else { State::Closed };
        RankLog { state: Arc::new(Mutex::new(state)), terminal: terminal.clone() }
    }

    /// Opens the file and writes the lines that are waiting.
    pub(super) fn open(&self, path: &Path) {
        let mut state = self.state();
        let waiting = match &mut *state {
            State::Waiting(waiting) => std::mem::take(waiting),
            _ => Vec::new(),
        };
        let opened = RotatingFile::open(path, MAX_BYTES);
        *state = match opened.and_then(|mut file| file.write(&waiting).map(|()| file)) {
            Ok(file) => State::Open(file),
            Err(error) => self.failed(path, &error),
        };
    }

    /// Discards the lines that are waiting for a file.
    pub(super) fn close(&self) {
        *self.state() = State::Closed;
    }

    fn failed(&self, path: &Path, error: &io::Error) -> State {
        let path = path.display();
        self.terminal.warn(&format!("can't write the log `{path}`: {error}; the run continues without it"));
        State::Closed
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Write for RankLog {
    /// Writes a line as a whole.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut state = self.state();
        match &mut *state {
            State::Waiting(waiting) if waiting.len() + line.len() <= MAX_WAITING_BYTES => {
                waiting.extend(line)
            }
            State::Open(file) => {
                if let Err(error) = file.write(line) {
                    *state = self.failed(&file.path.clone(), &error);
                }
            }
            _ => {}
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl RotatingFile {
    fn open(path: &Path, max_bytes: u64) -> io::Result<Self> {
        let file = open_unlinked(OpenOptions::new().append(true).create(true), path)?;
        let n_bytes = file.metadata()?.len();
        Ok(RotatingFile { path: path.to_owned(), file, n_bytes, max_bytes })
    }

    /// Writes lines, to a new file if the current one would exceed its limit.
    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let n_bytes = lines.len() as u64;
        if self.n_bytes > 0 && self.n_bytes + n_bytes > self.max_bytes {
            let mut older = self.path.clone().into_os_string();
            older.push(".1");
            fs::rename(&self.path, older)?;
            *self = Self::open(&self.path, self.max_bytes)?;
        }
        self.file.write_all(lines)?;
        self.n_bytes += n_bytes;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wait_for_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank-0.log");
        let (terminal, text) = Terminal::in_memory(false);
        let mut log = RankLog::new(&terminal, true);
        log.write_all(b"a\n").unwrap();
        log.open(&path);
        log.write_all(b"b\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "a\nb\n");
        RankLog::new(&terminal, false).write_all(b"a\n").unwrap();
        let mut closed = RankLog::new(&terminal, true);
        closed.write_all(b"a\n").unwrap();
        closed.close();
        closed.write_all(b"b\n").unwrap();
        assert_eq!(text(), "");
    }

    #[test]
    fn a_full_disk_is_reported_once() {
        let (terminal, text) = Terminal::in_memory(false);
        let mut log = RankLog::new(&terminal, true);
        let (path, file) = ("/dev/full".into(), OpenOptions::new().append(true).open("/dev/full").unwrap());
        *log.state() = State::Open(RotatingFile { path, file, n_bytes: 0, max_bytes: MAX_BYTES });
        log.write_all(b"a\n").unwrap();
        log.write_all(b"b\n").unwrap();
        assert_eq!(text().matches("can't write the log `/dev/full`: No space left").count(), 1, "{}", text());
        let (terminal, text) = Terminal::in_memory(false);
        RankLog::new(&terminal, true).open(Path::new("/nowhere/rank-0.log"));
        assert!(
            text().starts_with("warning: can't write the log `/nowhere/rank-0.log`: No such file"),
            "{}",
            text()
        );
    }

    #[test]
    fn a_full_file_is_kept_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank-0.log");
        let mut file = RotatingFile::open(&path, 10).unwrap();
        let text = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
        for line in ["one\n", "two\n", "three\n"] {
            file.write(line.as_bytes()).unwrap();
        }
        assert_eq!(
            (text("rank-0.log"), text("rank-0.log.1")),
            ("three\n".to_owned(), "one\ntwo\n".to_owned())
        );
        file.write(b"four\n").unwrap();
        file.write(b"a line above the limit\n").unwrap();
        assert_eq!(text("rank-0.log.1"), "four\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
        // A resumed run counts the existing bytes.
        drop(file);
        let mut file = RotatingFile::open(&path, 10).unwrap();
        file.write(b"five\n").unwrap();
        assert_eq!(
            (text("rank-0.log"), text("rank-0.log.1")),
            ("five\n".to_owned(), "a line above the limit\n".to_owned())
        );
        file.write(b"six\n").unwrap();
        assert_eq!(text("rank-0.log"), "five\nsix\n");
    }
}
