//! The lease in `.lock`: host, process and time of the owner, renewed every second, for file systems on which hosts do not see
//! each other's locks.
//!
//! A host decides whether the lease of another host is alive by watching for renewals on its own monotonic clock, because the
//! clocks of hosts differ. The thread that renews the lease also detects that the folder was deleted, or taken over while this
//! host was suspended.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use ddp_kernels::cpu::start_thread::start_thread;

use crate::run_folder::error::Loss;
use crate::run_folder::time::utc;
use crate::storage::user_file::open_unlinked;

/// Intervals of leases; tests use shorter ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pace {
    /// Time between two renewals.
    pub(super) interval: Duration,
    /// Time without a renewal after which the owner is considered gone.
    pub(super) stale_after: Duration,
}

/// Intervals for hosts whose views of a file may differ by seconds.
pub(super) const PACE: Pace = Pace { interval: Duration::from_secs(1), stale_after: Duration::from_secs(6) };

impl Pace {
    /// For a lease whose owner holds the lock as well: it may be suspended or its host overloaded, and a process of this host that holds
    /// the lock, and judges the same lease, needs time to take it.
    pub(super) fn while_locked(self) -> Self {
        Pace { stale_after: self.stale_after * 5, ..self }
    }
}

/// Maximum size of a lease when it is read.
const MAX_BYTES: u64 = 1024;

/// Time within which a process that has emptied the file to take it writes its name.
const EMPTY_WAIT: Duration = Duration::from_millis(20);
/// A new owner that has ended and left no name.
const ENDED: &str = "another process, which has ended,";

/// State of another host's lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Foreign {
    /// No lease exists.
    None,
    /// The owner is alive.
    Live { holder: String },
    /// The owner has not renewed the lease.
    Stale { holder: String },
}

/// The lease of this process on one folder, renewed until it is dropped.
#[derive(Debug)]
pub struct Lease {
    /// Ends the thread when dropped.
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    loss: Arc<OnceLock<Loss>>,
    chores: Arc<Mutex<Vec<Chore>>>,
}

/// Further work of the thread of a lease, at each renewal. It must not block.
struct Chore(Box<dyn Fn() + Send + Sync>);

impl std::fmt::Debug for Chore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Chore")
    }
}

/// The text of a lease, except the number of renewals.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    /// Process and host, such as "process 1234 on HOST".
    holder: String,
    /// Identifies the boot of the host's kernel; two containers on one host share it, as well as the host's locks.
    boot: String,
}

impl Owner {
    fn this_process() -> Self {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Owner { holder: holder(), boot: boot.trim().to_owned() }
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let holder = lines.next()?.to_owned();
        let boot = lines.next()?.strip_prefix("boot ")?.to_owned();
        Some(Owner { holder, boot })
    }

    /// Text of constant length, so that a renewal replaces it in a single write.
    fn text(&self, n_renewals: u64) -> String {
        let Owner { holder, boot } = self;
        format!("{holder}\nboot {boot}\nrenewed {} ({n_renewals:010})\n", utc(SystemTime::now()))
    }
}

/// Describes this process and its host.
pub(super) fn holder() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match host.trim() {
        "" => format!("process {}", std::process::id()),
        host => format!("process {} on {host}", std::process::id()),
    }
}

/// Reads the lease, and watches it if it belongs to another host, or if `is_locked` is false because the file system has no
/// locks. A lease whose text equals `known` was already watched.
pub(super) fn foreign(path: &Path, is_locked: bool, known: Option<&str>, pace: Pace) -> (Foreign, String) {
    let first = read(path);
    let this = Owner::this_process();
    let owner =
        Owner::parse(&first).filter(|owner| !(is_locked && owner.boot == this.boot) && *owner != this);
    let Some(Owner { holder, .. }) = owner else { return (Foreign::None, first) };
    if known == Some(&first) {
        return (Foreign::Stale { holder }, first);
    }
    let since = Instant::now();
    while since.elapsed() < pace.stale_after {
        thread::sleep(pace.interval / 4);
        let now = read(path);
        if now.is_empty() {
            return (Foreign::None, now);
        }
        if now != first {
            return (Foreign::Live { holder }, now);
        }
    }
    (Foreign::Stale { holder }, first)
}

/// Whether the lease at `path` is of another host, or of a former boot of this one.
pub(super) fn is_of_other_boot(path: &Path) -> bool {
    Owner::parse(&read(path)).is_some_and(|owner| owner.boot != Owner::this_process().boot)
}

/// The text of the lease at `path`; empty if there is none. The file is reopened each time, so that a network file system asks
/// its server.
pub(super) fn read(path: &Path) -> String {
    let mut text = Vec::new();
    let opened = open_unlinked(OpenOptions::new().read(true), path);
    // A lease that can't be read is treated as missing: the lock decides.
    let _ = opened.and_then(|file| file.take(MAX_BYTES).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

/// The owner that the lease at `path` names, with the boot of its host; `None` if there is none.
pub(super) fn owner(path: &Path) -> Option<String> {
    Owner::parse(&read(path)).map(|Owner { holder, boot }| format!("{holder}, boot {boot}"))
}

impl Lease {
    /// Writes the lease of this process into the open lock file `lock` at `path`, and renews it from a thread.
    pub(super) fn take(path: PathBuf, lock: &File, pace: Pace) -> io::Result<Self> {
        let owner = Owner::this_process();
        let text = owner.text(0);
        lock.set_len(0)?;
        lock.write_all_at(text.as_bytes(), 0)?;
        let claimed = identity(lock)?;
        let (end, ended) = mpsc::channel();
        let loss = Arc::new(OnceLock::new());
        let found = loss.clone();
        let chores = Arc::new(Mutex::new(Vec::<Chore>::new()));
        let also = chores.clone();
        let renew = move || {
            for n_renewals in 1.. {
                if ended.recv_timeout(pace.interval) != Err(RecvTimeoutError::Timeout) {
                    return release(&path, claimed, &owner);
                }
                if let Some(loss) = renewed(&path, claimed, &owner, n_renewals) {
                    return found.set(loss).unwrap_or(());
                }
                let chores = also.lock().unwrap_or_else(PoisonError::into_inner);
                chores.iter().for_each(|Chore(chore)| chore());
            }
        };
        let thread = start_thread("lease", renew)?;
        Ok(Lease { end: Some(end), thread: Some(thread), loss, chores })
    }

    /// Lets the thread do this too, at each renewal from now on.
    pub(super) fn also(&self, chore: impl Fn() + Send + Sync + 'static) {
        self.chores.lock().unwrap_or_else(PoisonError::into_inner).push(Chore(Box::new(chore)));
    }

    /// The reason why the folder was lost, if it was.
    pub(super) fn loss(&self) -> Option<&Loss> {
        self.loss.get()
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            // If the thread panicked, the panic hook has reported it.
            let _ = thread.join();
        }
    }
}

/// Device and inode.
pub(super) type Identity = (u64, u64);

pub(super) fn identity(file: &File) -> io::Result<Identity> {
    file.metadata().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Renews the lease unless the folder is lost. After any other failure, such as a server that does not respond, it tries again
/// later.
fn renewed(path: &Path, claimed: Identity, owner: &Owner, n_renewals: u64) -> Option<Loss> {
    let file = match open_unlinked(OpenOptions::new().read(true).write(true), path) {
        Ok(file) => file,
        Err(_) => return is_replaced(path, claimed).then_some(Loss::Deleted),
    };
    if identity(&file).ok()? != claimed {
        return Some(Loss::Deleted);
    }
    let mut bytes = Vec::new();
    (&file).take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    // Only another owner empties the file, when it takes the folder and when it ends. One that takes it writes its name at once.
    let is_emptied = text.is_empty() && n_renewals > 1;
    if is_emptied {
        thread::sleep(EMPTY_WAIT);
        text = read(path);
    }
    match Owner::parse(&text) {
        Some(other) if other != *owner => Some(Loss::TakenOver { by: other.holder }),
        None if is_emptied && text.is_empty() => Some(Loss::TakenOver { by: ENDED.to_owned() }),
        _ => {
            // Closing the file sends it to the server of a network file system.
            let _ = file.write_all_at(owner.text(n_renewals).as_bytes(), 0);
            None
        }
    }
}

/// Whether the file is missing or was replaced by another one, such as a link, which is not opened.
fn is_replaced(path: &Path, claimed: Identity) -> bool {
    match fs::symlink_metadata(path) {
        Ok(now) => (now.dev(), now.ino()) != claimed,
        Err(error) => matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
    }
}

/// Empties the lock file, so that no other host waits for a process that has ended.
fn release(path: &Path, claimed: Identity, owner: &Owner) {
    let Ok(file) = open_unlinked(OpenOptions::new().read(true).write(true), path) else { return };
    let is_own = Owner::parse(&read(path)).is_some_and(|now| now == *owner);
    if is_own && identity(&file).is_ok_and(|now| now == claimed) {
        // If emptying fails, the lease expires.
        let _ = file.set_len(0);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const FAST: Pace = Pace { interval: Duration::from_millis(10), stale_after: Duration::from_millis(150) };

    fn other_host(n_renewals: u64) -> String {
        Owner { holder: "process 7 on node2".to_owned(), boot: "other".to_owned() }.text(n_renewals)
    }

    /// Written in place, like a renewal; an empty lock file counts as released.
    fn renew(path: &Path, n_renewals: u64) {
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(other_host(n_renewals).as_bytes(), 0).unwrap();
    }

    fn locked(folder: &Path) -> (PathBuf, File) {
        let path = folder.join(".lock");
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
        (path, file)
    }

    fn wait_for_loss(lease: &Lease) -> Loss {
        let since = Instant::now();
        loop {
            match lease.loss() {
                Some(loss) => return loss.clone(),
                None => assert!(since.elapsed() < Duration::from_secs(20), "no loss was noticed"),
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    fn a_lease_of_another_host_is_live_while_it_is_renewed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _file) = locked(folder.path());
        assert_eq!(foreign(&path, true, None, FAST).0, Foreign::None);
        fs::write(&path, other_host(1)).unwrap();
        let holder = "process 7 on node2".to_owned();
        let (stale, text) = foreign(&path, true, None, FAST);
        assert_eq!(stale, Foreign::Stale { holder: holder.clone() });
        // A lease that was watched once is not watched again.
        let patient = Pace { stale_after: Duration::from_secs(600), ..FAST };
        assert_eq!(foreign(&path, true, Some(&text), patient).0, Foreign::Stale { holder: holder.clone() });
        let renewing = path.clone();
        let renewer = thread::spawn(move || {
            thread::sleep(Duration::from_millis(30));
            renew(&renewing, 2);
        });
        assert_eq!(foreign(&path, true, None, patient).0, Foreign::Live { holder });
        renewer.join().unwrap();
    }

    /// Clocks of hosts differ, and may be set by hours, so only changes of the text count.
    #[test]
    fn times_in_a_lease_decide_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (path, file) = locked(folder.path());
        let put = |time: &str, n_renewals: u64| {
            let text = format!("process 7 on node2\nboot other\nrenewed {time} ({n_renewals:010})\n");
            file.write_all_at(text.as_bytes(), 0).unwrap();
        };
        for time in ["20991231-235959", "19700101-000000"] {
            put(time, 1);
            let watched = Instant::now();
            assert!(matches!(foreign(&path, true, None, FAST).0, Foreign::Stale { .. }), "{time}");
            assert!(watched.elapsed() >= FAST.stale_after, "{time}: {:?}", watched.elapsed());
        }
        // A clock that stands still.
        let patient = Pace { stale_after: Duration::from_secs(600), ..FAST };
        for time in ["20991231-235959", "19700101-000000"] {
            let is_seen = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for n in (2..).take_while(|_| !is_seen.load(Ordering::Relaxed)) {
                        put(time, n);
                        thread::sleep(Duration::from_millis(5));
                    }
                });
                let found = foreign(&path, true, None, patient).0;
                is_seen.store(true, Ordering::Relaxed);
                assert!(matches!(found, Foreign::Live { .. }), "{time}");
            });
        }
    }

    #[test]
    fn on_one_host_the_lock_decides_where_there_are_locks() {
        let folder = tempfile::tempdir().unwrap();
        let (path, _file) = locked(folder.path());
        let killed = Owner { holder: "process 1 on here".to_owned(), ..Owner::this_process() };
        fs::write(&path, killed.text(3)).unwrap();
        assert_eq!(foreign(&path, true, None, FAST).0, Foreign::None);
        assert_eq!(foreign(&path, false, None, FAST).0, Foreign::Stale { holder: killed.holder });
        for other in ["process 7 on node2", "", "\0\0\0"] {
            fs::write(&path, other).unwrap();
            assert_eq!(foreign(&path, true, None, FAST).0, Foreign::None, "that of an earlier version");
        }
    }

    #[test]
    fn it_is_renewed_and_released() {
        let folder = tempfile::tempdir().unwrap();
        let (path, file) = locked(folder.path());
        fs::write(&path, "x".repeat(500)).unwrap();
        let lease = Lease::take(path.clone(), &file, FAST).unwrap();
        let first = read(&path);
        assert!(first.starts_with(&format!("process {}", std::process::id())), "{first}");
        let since = Instant::now();
        while read(&path) == first {
            assert!(since.elapsed() < Duration::from_secs(20));
        }
        assert_eq!(read(&path).len(), first.len());
        assert_eq!(lease.loss(), None);
        drop(lease);
        assert_eq!(read(&path), "");
    }

    #[test]
    fn a_lost_folder_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, file) = locked(folder.path());
        let lease = Lease::take(path.clone(), &file, FAST).unwrap();
        let others = other_host(9);
        fs::write(&path, &others).unwrap();
        assert_eq!(wait_for_loss(&lease), Loss::TakenOver { by: "process 7 on node2".to_owned() });
        drop(lease);
        assert_eq!(read(&path), others, "the new owner's lease stays");
        // Taken over and released while this process was suspended.
        let lease = Lease::take(path.clone(), &file, FAST).unwrap();
        let (since, first) = (Instant::now(), read(&path));
        while read(&path) == first {
            assert!(since.elapsed() < Duration::from_secs(20));
        }
        fs::write(&path, "").unwrap();
        assert_eq!(wait_for_loss(&lease), Loss::TakenOver { by: ENDED.to_owned() });
        drop(lease);
        assert_eq!(read(&path), "");

        let lease = Lease::take(path.clone(), &file, FAST).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(wait_for_loss(&lease), Loss::Deleted);
        let (path, file) = locked(folder.path());
        let lease = Lease::take(path.clone(), &file, FAST).unwrap();
        fs::rename(&path, folder.path().join("moved")).unwrap();
        fs::write(&path, "").unwrap();
        assert_eq!(wait_for_loss(&lease), Loss::Deleted, "a replaced one");
        drop(lease);

        let lease = Lease::take(path.clone(), &File::open(&path).unwrap(), FAST);
        assert!(lease.is_err(), "it must be writable");
        let (path, file) = locked(folder.path());
        let lease = Lease::take(path.clone(), &file, FAST).unwrap();
        fs::rename(&path, folder.path().join("moved")).unwrap();
        std::os::unix::fs::symlink(folder.path().join("moved"), &path).unwrap();
        assert_eq!(wait_for_loss(&lease), Loss::Deleted, "a link");
    }
}
