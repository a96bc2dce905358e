//! Run folder: owned by one process, and never overwritten by accident.
//!
//! Contains `config.toml`, `metrics.jsonl`, `checkpoints/`, [`logs/`](super::logs), `traces/` of a run that was traced, and at the end
//! `model.safetensors`, `report.html` and [`done.json`](super::done). A file lock on `.lock` in the folder shows that a live process owns
//! it; the operating system releases the lock of a killed process. The lease in that file shows the owner to other hosts.
//!
//! ```
//! use ddp::run_folder::FolderError;
//! use ddp::run_folder::folder::{CONFIG_FILE, Existing, check};
//!
//! let folder = tempfile::tempdir()?;
//! check(folder.path(), Existing::Refuse)?;
//! std::fs::write(folder.path().join(CONFIG_FILE), "")?;
//! let refused = check(folder.path(), Existing::Refuse);
//! assert!(matches!(refused, Err(FolderError::HoldsRun { .. })));
//! check(folder.path(), Existing::Overwrite)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::process::geteuid;
use tracing::{info, warn};

use crate::run_folder::done::DONE_FILE;
use crate::run_folder::error::{FolderError, Loss};
use crate::run_folder::lease::{self, Foreign, Lease, PACE, Pace};
use crate::run_folder::lock_file::{LOCK_FILE, Lock, open_lock, try_lock};
use crate::run_folder::logs;
use crate::run_folder::requests::{self, Asked};
use crate::run_folder::run_id::{self, RUN_ID_FILE};
use crate::run_folder::time::utc;
use crate::storage::atomic_write::{self, write_atomic};
use crate::storage::user_file::open_unlinked;

type Result<T, E = FolderError> = std::result::Result<T, E>;

/// File name of the resolved config.
pub const CONFIG_FILE: &str = "config.toml";
/// File name of the events, one JSON object per line.
pub const METRICS_FILE: &str = "metrics.jsonl";
/// File name of the trained model.
pub const MODEL_FILE: &str = "model.safetensors";
/// File name of the weights after the last step, written if the model file holds those of the best evaluation.
pub const LAST_FILE: &str = "last.safetensors";
/// File name of the page that shows the run.
pub const REPORT_FILE: &str = "report.html";

/// Folder of runs without a name.
pub const RUNS: &str = "runs";
/// Folder of the traces.
pub const TRACES: &str = "traces";
/// File name of the last operations of the ranks when one was lost.
pub const FLIGHT_FILE: &str = "flight.jsonl";
/// Folder of TensorBoard's files.
pub const TENSORBOARD: &str = "tb";
/// Folder of the checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";

/// File name of the trace of some steps.
pub fn trace_file(first: u64, last: u64) -> String {
    format!("steps-{first}-{last}.json")
}

fn is_trace(name: &str) -> bool {
    name.starts_with("steps-") && name.ends_with(".json")
}

/// Names of files and folders that identify a run folder.
const RUN_FILES: [&str; 7] =
    [CONFIG_FILE, METRICS_FILE, MODEL_FILE, LAST_FILE, DONE_FILE, CHECKPOINTS, logs::RANK_0];

/// Treatment of a run that the folder already holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Existing {
    /// Keep it and refuse the folder.
    Refuse,
    /// Delete its files.
    Overwrite,
    /// Resume it.
    Continue,
}

/// A folder that this process owns until the value is dropped.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    /// Kept open while this process owns the folder, because closing it releases the lock.
    lock: File,
    lease: Lease,
}

impl RunDir {
    /// Claims the folder `out`, or a new `runs/<name>-<time>`, and creates it if it is missing. [`Existing::Refuse`] refuses a
    /// folder that contains a run; nothing is deleted before [`RunDir::clear`].
    ///
    /// Call it on one rank only, after config and data are checked.
    ///
    /// # Errors
    /// [`FolderError::IsFile`], [`FolderError::HoldsRun`], [`FolderError::Busy`], [`FolderError::ForeignLink`],
    /// [`FolderError::Unwritable`];
    /// an existing folder is unchanged.
    pub fn open(out: Option<&Path>, name: &str, existing: Existing) -> Result<Self> {
        let path = match out {
            Some(path) => path.to_owned(),
            None => make_default(Path::new(RUNS), name, SystemTime::now())?,
        };
        Self::claim(path, existing, PACE)
    }

    fn claim(path: PathBuf, existing: Existing, pace: Pace) -> Result<Self> {
        let unwritable = |source| FolderError::Unwritable { path: path.clone(), source };
        if path.exists() && !path.is_dir() {
            return Err(FolderError::IsFile { path });
        }
        let mut watched = None;
        if path.is_dir() {
            // Report a live owner before the run that it writes.
            if let Ok(Some(lock)) = open_lock(&path) {
                watched = lock_and_judge(&path, &lock, None, pace)?.1;
            }
            refuse_run(&path, existing)?;
        }
        fs::create_dir_all(&path).map_err(unwritable)?;
        let of_lock = |source| FolderError::Unwritable { path: path.join(LOCK_FILE), source };
        let mut create = OpenOptions::new();
        create.read(true).write(true).create(true).truncate(false);
        let lock = Lock {
            file: open_unlinked(&mut create, &path.join(LOCK_FILE)).map_err(of_lock)?,
            is_writable: true,
        };
        // Check again, now that no other process can write here.
        let (is_locked, stale) = lock_and_judge(&path, &lock, watched.as_ref(), pace)?;
        refuse_run(&path, existing)?;
        for (name, target) in check_links(&path)? {
            info!("{name} is a link: its files are in `{}`", target.display());
        }
        if let Some(StaleLease { holder, .. }) = stale {
            warn!(
                "took over the output folder `{}` from {holder}, which shows no sign of life",
                path.display()
            );
        }
        let unkept = |source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock => FolderError::Thread { path: path.clone(), source },
            _ => unwritable(source),
        };
        let lease = Lease::take(path.join(LOCK_FILE), &lock.file, pace).map_err(unkept)?;
        if !is_locked {
            // Other processes of this host rely on the lock, once the file server releases the lock of the dead host.
            let file = lock.file.try_clone().map_err(unwritable)?;
            lease.also(move || drop(file.try_lock()));
        }
        let run = Self { path, lock: lock.file, lease };
        run.remove_leftovers();
        Ok(run)
    }

    /// Removes temporary files that earlier owners of this folder left when they were killed.
    fn remove_leftovers(&self) {
        let names = RUN_FILES.into_iter().chain([RUN_ID_FILE, REPORT_FILE]);
        let removed = names.flat_map(|name| atomic_write::remove_leftovers(&self.file(name)));
        let removed: Vec<_> = removed.chain(logs::remove_leftovers(&self.path)).collect();
        requests::remove_leftovers(&self.path);
        if !removed.is_empty() {
            info!("removed what an ended process left half-written: {}", removed.join(", "));
        }
    }

    /// Fails if the run has lost its folder since it was claimed: another process owns it, or it was deleted. Detects this within
    /// about a second; neither blocks nor calls the file system.
    ///
    /// # Errors
    /// [`FolderError::Lost`].
    pub fn check_owned(&self) -> Result<()> {
        match self.lease.loss() {
            None => Ok(()),
            Some(loss) => Err(FolderError::Lost { path: self.path.clone(), loss: loss.clone() }),
        }
    }

    /// Same as [`RunDir::check_owned`], for a folder that another run has taken over: one that was deleted can be made again.
    ///
    /// # Errors
    /// Same as [`RunDir::check_owned`].
    pub fn check_not_taken(&self) -> Result<()> {
        if matches!(self.lease.loss(), Some(Loss::TakenOver { .. })) { self.check_owned() } else { Ok(()) }
    }

    /// Passes requests to the run to `serve`, on a thread of its own, once per second. It must not block.
    pub fn attend(&self, serve: impl Fn(Asked) + Send + Sync + 'static) {
        let run = self.path.clone();
        self.lease.also(move || requests::take(&run).into_iter().for_each(&serve));
    }

    /// Assigns the run its id, unless it continues the run in the folder: the id of the checkpoint `resumed`, or a new one.
    ///
    /// # Errors
    /// [`FolderError::Unwritable`].
    pub fn identify(&self, existing: Existing, resumed: Option<&str>) -> Result<()> {
        let continues = existing == Existing::Continue;
        if continues && run_id::read(&self.path).is_some() {
            return Ok(());
        }
        let unwritable = |source| FolderError::Unwritable { path: self.path.clone(), source };
        let id = match resumed.filter(|_| continues) {
            Some(id) => id.to_owned(),
            None => run_id::random().map_err(unwritable)?,
        };
        let path = self.file(RUN_ID_FILE);
        write_atomic(&path, format!("{id}\n").as_bytes()).map_err(|error| unwritable(error.source))
    }

    /// Deletes the files of the earlier run that this run replaces, except its checkpoints, which the caller deletes first.
    ///
    /// # Errors
    /// [`FolderError::Unwritable`].
    pub fn clear(&self) -> Result<()> {
        let is_file = |name: &&str| *name != CHECKPOINTS || self.file(name).is_file();
        // Log files are deleted with those of the other ranks.
        let of_run = RUN_FILES
            .into_iter()
            .chain([RUN_ID_FILE, FLIGHT_FILE])
            .filter(|name| is_file(name) && *name != logs::RANK_0);
        of_run.into_iter().try_for_each(|name| self.remove(name))?;
        for trace in fs::read_dir(self.file(TRACES)).into_iter().flatten().flatten() {
            if trace.file_name().to_str().is_some_and(is_trace) {
                self.remove(&format!("{TRACES}/{}", trace.file_name().display()))?;
            }
        }
        logs::delete(&self.path)
    }

    /// Deletes a file of the run, if it exists.
    ///
    /// # Errors
    /// [`FolderError::Unwritable`].
    pub fn remove(&self, name: &str) -> Result<()> {
        match fs::remove_file(self.file(name)) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(FolderError::Unwritable { path: self.path.clone(), source })
            }
            _ => Ok(()),
        }
    }

    /// Whether the claimed folder is gone: deleted, moved, or replaced.
    pub fn is_gone(&self) -> bool {
        let id = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
        let now = fs::metadata(self.path.join(LOCK_FILE)).map(id).ok();
        let claimed = self.lock.metadata().map(id).ok();
        now != claimed
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Path of a file in the folder.
    pub fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

/// Checks whether [`RunDir::open`] would refuse the folder `out`, without changing anything.
///
/// # Errors
/// Same as [`RunDir::open`], except that it does not try to write.
pub fn check(out: &Path, existing: Existing) -> Result<()> {
    if out.exists() && !out.is_dir() {
        return Err(FolderError::IsFile { path: out.to_owned() });
    }
    match check_free(out) {
        // The host that keeps the lock may have died.
        Err(FolderError::Busy { .. }) if lease::is_of_other_boot(&out.join(LOCK_FILE)) => {
            check_lease(out, false, None, PACE.while_locked())?;
        }
        free => free?,
    }
    refuse_run(out, existing)
}

/// Checks that no run is active in the folder `run`; waits for none, and takes a host that keeps the lock for alive.
///
/// # Errors
/// Same as [`hold`].
pub fn check_free(run: &Path) -> Result<(), FolderError> {
    // A lock file that can't be opened counts as free.
    let Ok(Some(lock)) = open_lock(run) else { return Ok(()) };
    try_lock(&lock, run).map(|_| ())
}

/// The owner of the folder `run` while a run is active there, such as "process 1234 on HOST".
///
/// # Errors
/// [`FolderError::Unwritable`] if the lock file can't be locked.
pub fn active(run: &Path) -> Result<Option<String>> {
    // A lock file that can't be opened counts as free.
    let Ok(Some(lock)) = open_lock(run) else { return Ok(None) };
    match lock_and_judge(run, &lock, None, PACE) {
        Err(FolderError::Busy { holder, .. }) => Ok(Some(holder)),
        free => free.map(|_| None),
    }
}

/// Identifies the owner of the folder `run`, which its lease names; `None` if it has none.
pub fn owner(run: &Path) -> Option<String> {
    lease::owner(&run.join(LOCK_FILE))
}

/// The lease of another host whose owner no longer renews it.
struct StaleLease {
    /// Owner of the lease, such as "process 1234 on HOST".
    holder: String,
    text: String,
}

/// Locks the folder `run` and judges its lease: whether the file system has locked it, and the lease of an owner who shows no sign of
/// life. Another host that holds the lock may have died: a file server keeps its lock for a while or for ever. Then the
/// lease decides.
fn lock_and_judge(
    run: &Path,
    lock: &Lock,
    watched: Option<&StaleLease>,
    pace: Pace,
) -> Result<(bool, Option<StaleLease>)> {
    match try_lock(lock, run) {
        Err(FolderError::Busy { .. }) if lease::is_of_other_boot(&run.join(LOCK_FILE)) => {
            Ok((false, check_lease(run, false, watched, pace.while_locked())?))
        }
        locked => {
            let is_locked = locked?;
            Ok((is_locked, check_lease(run, is_locked, watched, pace)?))
        }
    }
}

/// Refuses a folder whose lease another host renews; waits until this is known. `watched` is a lease that was already found
/// stale.
fn check_lease(
    run: &Path,
    is_locked: bool,
    watched: Option<&StaleLease>,
    pace: Pace,
) -> Result<Option<StaleLease>> {
    let known = watched.map(|stale| stale.text.as_str());
    match lease::foreign(&run.join(LOCK_FILE), is_locked, known, pace) {
        (Foreign::None, _) => Ok(None),
        (Foreign::Live { holder }, _) => Err(FolderError::Busy { path: run.to_owned(), holder }),
        (Foreign::Stale { holder }, text) => Ok(Some(StaleLease { holder, text })),
    }
}

fn refuse_run(path: &Path, existing: Existing) -> Result<()> {
    match RUN_FILES.iter().find(|file| path.join(file).exists()) {
        Some(found) if existing == Existing::Refuse => {
            Err(FolderError::HoldsRun { path: path.to_owned(), found })
        }
        _ => Ok(()),
    }
}

/// Result of [`hold`].
#[derive(Debug)]
pub enum Held {
    /// The folder is locked while this value lives.
    Yes {
        #[doc(hidden)]
        _lease: Option<Lease>,
        #[doc(hidden)]
        _lock: File,
    },
    /// No run has used the folder, for example a copy of checkpoints.
    NoRun,
    /// The file system has no locks, or keeps the lock of a dead host, so that a run that starts can't be kept out.
    Unknown,
}

/// Locks the folder `run` so that no run can claim it, unless a run is active there.
///
/// # Errors
/// [`FolderError::ForeignLink`]; [`FolderError::Busy`]; [`FolderError::Unwritable`] if the lock file can't be opened.
pub fn hold(run: &Path) -> Result<Held, FolderError> {
    check_links(run)?;
    let unwritable = |source| FolderError::Unwritable { path: run.join(LOCK_FILE), source };
    let Some(lock) = open_lock(run).map_err(unwritable)? else { return Ok(Held::NoRun) };
    if !lock_and_judge(run, &lock, None, PACE)?.0 {
        return Ok(Held::Unknown);
    }
    // If the folder can't be written, no run can claim it meanwhile either.
    let lease = lock.is_writable.then(|| Lease::take(run.join(LOCK_FILE), &lock.file, PACE));
    Ok(Held::Yes { _lease: lease.transpose().map_err(unwritable)?, _lock: lock.file })
}

/// Folders in the folder `run` that are links, with their targets. Such a link is followed if this user, root or the owner of `run` has made
/// it, as the kernel follows links in folders that all may write (`fs.protected_symlinks`).
fn check_links(run: &Path) -> Result<Vec<(&'static str, PathBuf)>> {
    let is_trusted = |owner| {
        [geteuid().as_raw(), 0].contains(&owner) || run.metadata().is_ok_and(|run| run.uid() == owner)
    };
    let mut links = Vec::new();
    for name in [CHECKPOINTS, logs::LOGS, TRACES, TENSORBOARD] {
        let path = run.join(name);
        let Ok(target) = fs::read_link(&path) else { continue };
        match path.symlink_metadata().map(|link| link.uid()) {
            Ok(owner) if !is_trusted(owner) => return Err(FolderError::ForeignLink { path, owner }),
            _ => links.push((name, target)),
        }
    }
    Ok(links)
}

/// Creates `runs/<name>-<time>`; if another run started in the same second, a number is appended.
fn make_default(runs: &Path, name: &str, now: SystemTime) -> Result<PathBuf> {
    let unwritable = |path: &Path, source| FolderError::Unwritable { path: path.to_owned(), source };
    fs::create_dir_all(runs).map_err(|source| unwritable(runs, source))?;
    let base = format!("{name}-{}", utc(now));
    for number in 1.. {
        let path = runs.join(if number == 1 { base.clone() } else { format!("{base}-{number}") });
        match fs::create_dir(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(unwritable(&path, source)),
        }
    }
    unreachable!("a free number exists")
}

/// Whether a folder has a name that ends in a time, as the default ones do: such a name is not that of a run.
pub fn is_default_name(name: &str) -> bool {
    let mut parts = name.rsplit('-').skip_while(|part| part.len() < 6);
    let is_number = |part: Option<&str>, n: usize| {
        part.is_some_and(|part| part.len() == n && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    is_number(parts.next(), 6) && is_number(parts.next(), 8)
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;
