//! A disk that fails, or is cut off, at a call chosen by the test.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use ddp::storage::disk::{Disk, OpenFile, OsDisk};

/// Fault at the chosen call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The call fails with this error, and later calls succeed.
    FailOnce(rustix::io::Errno),
    /// This call and all later calls that need disk space fail with this error; removing succeeds.
    StaysFull(rustix::io::Errno),
    /// The process dies: nothing reaches the disk any more, and a write is only half done.
    Killed,
    /// The machine dies too: everything that was not synced is lost.
    PowerCut,
}

/// A disk with a fault, on top of the operating system's.
#[derive(Debug)]
pub(crate) struct FaultyDisk {
    at: usize,
    fate: Fate,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    n_calls: usize,
    /// Files whose bytes are not synced.
    unsynced: Vec<(PathBuf, File)>,
    /// Renames and other name changes that are not synced, in order.
    names: Vec<NameChange>,
}

#[derive(Debug)]
enum NameChange {
    Made(PathBuf),
    Renamed { from: PathBuf, to: PathBuf, replaced: Option<Vec<u8>> },
    Exchanged(PathBuf, PathBuf),
}

impl NameChange {
    fn folder(&self) -> &Path {
        let (NameChange::Made(path) | NameChange::Renamed { to: path, .. } | NameChange::Exchanged(path, _)) =
            self;
        path.parent().unwrap()
    }

    /// Undoes the change as far as possible; returns the old and the new name.
    fn undo(self) -> Option<(PathBuf, PathBuf)> {
        // The file may have been removed since.
        let _ = match &self {
            NameChange::Made(path) if path.is_dir() => fs::remove_dir_all(path),
            NameChange::Made(path) => fs::remove_file(path),
            NameChange::Renamed { from, to, replaced } => {
                fs::rename(to, from).and_then(|()| match replaced {
                    Some(bytes) => fs::write(to, bytes),
                    None => Ok(()),
                })
            }
            NameChange::Exchanged(one, other) => OsDisk.exchange(one, other),
        };
        match self {
            NameChange::Made(_) => None,
            NameChange::Renamed { from: to, to: from, .. } | NameChange::Exchanged(to, from) => {
                Some((from, to))
            }
        }
    }

    fn moved(&mut self, from: &Path, to: &Path) {
        let move_one = |path: &mut PathBuf| {
            if let Ok(rest) = path.strip_prefix(from) {
                *path = if rest.as_os_str().is_empty() { to.to_owned() } else { to.join(rest) };
            }
        };
        match self {
            NameChange::Made(path) => move_one(path),
            // Changes of the folder's own name are undone in reverse order, so that their paths are valid.
            NameChange::Renamed { from: f, to: t, .. } if f != from && t != from => {
                move_one(f);
                move_one(t);
            }
            NameChange::Renamed { .. } | NameChange::Exchanged(..) => {}
        }
    }
}

impl FaultyDisk {
    /// A disk whose call number `at`, counted from 0, has this fault.
    pub(crate) fn new(at: usize, fate: Fate) -> Self {
        FaultyDisk { at, fate, state: Mutex::default() }
    }

    /// A disk without faults, to count the calls.
    pub(crate) fn good() -> Self {
        FaultyDisk::new(usize::MAX, Fate::Killed)
    }

    /// Number of calls so far.
    pub(crate) fn n_calls(&self) -> usize {
        self.state.lock().unwrap().n_calls
    }

    /// Counts a call; returns false if it is a write that must stop halfway.
    fn call(&self, needs_room: bool) -> io::Result<bool> {
        let mut state = self.state.lock().unwrap();
        let n = state.n_calls;
        state.n_calls += 1;
        match self.fate {
            _ if n < self.at => Ok(true),
            Fate::FailOnce(errno) if n == self.at => Err(errno.into()),
            Fate::FailOnce(_) => Ok(true),
            Fate::StaysFull(errno) if needs_room => Err(errno.into()),
            Fate::StaysFull(_) => Ok(true),
            Fate::Killed | Fate::PowerCut if n == self.at => Ok(false),
            Fate::Killed | Fate::PowerCut => Err(io::Error::other("no more process")),
        }
    }

    /// The error of the call at which the process died.
    fn end(&self) -> io::Error {
        let mut state = self.state.lock().unwrap();
        if self.fate == Fate::PowerCut {
            for (_, file) in state.unsynced.drain(..) {
                file.set_len(file.metadata().unwrap().len() / 2).unwrap();
            }
            while let Some(change) = state.names.pop() {
                if let Some((from, to)) = change.undo() {
                    state.names.iter_mut().for_each(|earlier| earlier.moved(&from, &to));
                }
            }
        }
        io::Error::other("the process ends here")
    }

    fn changed(&self, change: NameChange) {
        self.state.lock().unwrap().names.push(change);
    }
}

impl Disk for FaultyDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let goes_on = self.call(true)?;
        let is_new = !path.exists();
        OsDisk.create_dir_all(path)?;
        if is_new {
            self.changed(NameChange::Made(path.to_owned()));
        }
        if goes_on { Ok(()) } else { Err(self.end()) }
    }

    fn create(&self, path: &Path) -> io::Result<OpenFile> {
        let goes_on = self.call(true)?;
        let file = OsDisk.create(path)?;
        self.state.lock().unwrap().unsynced.push((path.to_owned(), file.file.try_clone()?));
        self.changed(NameChange::Made(path.to_owned()));
        if goes_on { Ok(file) } else { Err(self.end()) }
    }

    fn write(&self, file: &mut OpenFile, bytes: &[u8]) -> io::Result<()> {
        if self.call(true)? {
            return OsDisk.write(file, bytes);
        }
        OsDisk.write(file, &bytes[..bytes.len() / 2])?;
        Err(self.end())
    }

    fn sync(&self, file: &OpenFile) -> io::Result<()> {
        if !self.call(true)? {
            return Err(self.end());
        }
        self.state.lock().unwrap().unsynced.retain(|(path, _)| *path != file.path);
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        if !self.call(true)? {
            return Err(self.end());
        }
        self.state.lock().unwrap().names.retain(|change| change.folder() != path);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let goes_on = self.call(true)?;
        let replaced = fs::read(to).ok();
        OsDisk.rename(from, to)?;
        let mut state = self.state.lock().unwrap();
        state.names.iter_mut().for_each(|change| change.moved(from, to));
        state.names.push(NameChange::Renamed { from: from.to_owned(), to: to.to_owned(), replaced });
        drop(state);
        if goes_on { Ok(()) } else { Err(self.end()) }
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        let goes_on = self.call(true)?;
        OsDisk.exchange(one, other)?;
        let mut state = self.state.lock().unwrap();
        state.names.iter_mut().for_each(|change| change.moved(one, other));
        state.names.push(NameChange::Exchanged(one.to_owned(), other.to_owned()));
        drop(state);
        if goes_on { Ok(()) } else { Err(self.end()) }
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let goes_on = self.call(false)?;
        OsDisk.remove_file(path)?;
        if goes_on { Ok(()) } else { Err(self.end()) }
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        if self.call(false)? {
            return OsDisk.remove_dir_all(path);
        }
        // Half of its content is gone.
        let entries: Vec<_> = fs::read_dir(path)?.collect::<io::Result<_>>()?;
        for entry in &entries[..entries.len().div_ceil(2)] {
            fs::remove_file(entry.path())?;
        }
        Err(self.end())
    }
}
