//! The writer of the run at an address. Only one process is it: it writes an object that it renews, each time only if nobody else has.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ddp::run_folder::run_id;
use ddp::storage::unfinished::is_running;
use ddp_tables::open::remote::{Bucket, If, OWNER, Object};
use serde::{Deserialize, Serialize};
use tracing::{debug, info};

use crate::error::Result;
use crate::error::command::CommandError;

/// Time between two renewals.
const BEAT: Duration = Duration::from_secs(10);
/// Time since the last renewal after which a writer begins no request any more: one that is on its way ends within the rest of
/// [`SILENCE`], for a request is tried for 25 s, and its last try ends after 20 s.
pub(super) const FENCE: Duration = Duration::from_secs(25);
/// Time without a renewal after which a writer on another host is taken for dead.
const SILENCE: Duration = Duration::from_secs(72);
const LOOK: Duration = Duration::from_secs(2);

/// This process as the writer of the run at an address.
#[derive(Debug)]
pub(super) struct Owner {
    record: Record,
    tag: String,
}

/// Renews the object on a thread of its own, since a large file may be on its way for minutes.
#[derive(Debug)]
pub(super) struct Beat {
    nonce: String,
    is_lost: Arc<AtomicBool>,
    /// Whether the run that was there is deleted.
    has_replaced: Arc<AtomicBool>,
    /// Begin of the last renewal that succeeded.
    renewed: Arc<Mutex<Instant>>,
    end: Sender<()>,
    thread: JoinHandle<()>,
}

impl Beat {
    /// Renews `owner` from now on.
    ///
    /// # Errors
    /// Errors of a new thread.
    pub(super) fn start(mut owner: Owner, bucket: Bucket) -> std::io::Result<Self> {
        let (end, ended) = channel();
        let nonce = owner.record.nonce.clone();
        let is_lost = Arc::new(AtomicBool::new(false));
        let lost = is_lost.clone();
        let has_replaced = Arc::new(AtomicBool::new(false));
        let replaced = has_replaced.clone();
        let renewed = Arc::new(Mutex::new(Instant::now()));
        let last = renewed.clone();
        let renew = move || loop {
            let has_ended = ended.recv_timeout(BEAT) != Err(RecvTimeoutError::Timeout);
            let began = Instant::now();
            owner.record.replaces &= !replaced.load(Ordering::Relaxed);
            match owner.renew(&bucket, has_ended) {
                Ok(true) => *last.lock().unwrap_or_else(PoisonError::into_inner) = began,
                Ok(false) => lost.store(true, Ordering::Relaxed),
                Err(error) => debug!("no sign of life: {error}"),
            }
            if has_ended || lost.load(Ordering::Relaxed) {
                return;
            }
        };
        let thread = std::thread::Builder::new().name("bucket beat".to_owned()).spawn(renew)?;
        Ok(Beat { nonce, is_lost, has_replaced, renewed, end, thread })
    }

    /// Asks the store whether this process is still the writer.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) fn check(&self, bucket: &Bucket) -> Result<bool> {
        if own(bucket, &self.nonce)?.is_none() {
            self.is_lost.store(true, Ordering::Relaxed);
        }
        Ok(!self.is_lost())
    }

    /// The run that was there is deleted: the next renewal says so.
    pub(super) fn has_replaced(&self) {
        self.has_replaced.store(true, Ordering::Relaxed);
    }

    /// Time since the last sign of life, if it is too long.
    pub(super) fn silence(&self) -> Option<Duration> {
        let silence = self.renewed.lock().unwrap_or_else(PoisonError::into_inner).elapsed();
        (silence >= FENCE).then_some(silence)
    }

    /// Whether another process has become the writer.
    pub(super) fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Says that this process writes no more.
    pub(super) fn end(self) {
        drop(self.end);
        let _ = self.thread.join();
    }
}

/// The object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Record {
    host: String,
    /// Boot and namespace of processes, in which `pid` means something.
    #[serde(default)]
    place: String,
    pid: u32,
    /// Start of the process, for a later one may have its id.
    #[serde(default)]
    started: u64,
    /// A random number, for each process another one.
    nonce: String,
    job_id: Option<String>,
    /// Whether another run is still there, which is to be deleted.
    #[serde(default)]
    replaces: bool,
    n_renewed: u64,
    has_ended: bool,
}

impl Owner {
    /// Makes this process the writer. Waits for the end of the silence of a writer that may be dead.
    ///
    /// # Errors
    /// [`CommandError::BucketBusy`] if another process writes; errors of the store.
    pub(super) fn take(
        bucket: &Bucket,
        address: &str,
        host: &str,
        job_id: Option<&str>,
        replaces: bool,
    ) -> Result<Self> {
        let busy = |of: Option<&Record>| {
            let holder =
                of.map_or("another process".to_owned(), |of| format!("process {} on {}", of.pid, of.host));
            CommandError::BucketBusy { address: address.to_owned(), holder }
        };
        // One that cannot be read, as of a writer that was killed on a mount, says nothing.
        let read = || -> Result<Option<(String, Record)>> {
            let object = bucket.get(OWNER)?.and_then(|object| Some((object.tag?, object.bytes)));
            Ok(object.map(|(tag, text)| (tag, serde_json::from_slice(&text).unwrap_or_default())))
        };
        let mut before = read()?;
        if before.is_none() && bucket.is_mount() {
            // It may be being renewed: such a mount has no way to do that at once.
            std::thread::sleep(LOOK);
            before = read()?;
        }
        let place = place();
        let is_here = |of: &Record| of.place == place && of.pid != std::process::id();
        let is_same = |of: &Record| is_running(of.pid) && (of.started == 0 || start_of(of.pid) == of.started);
        let is_dead = |of: &Record| of.has_ended || (is_here(of) && !is_same(of));
        let since = Instant::now();
        while let Some((tag, record)) = before.as_ref().filter(|(_, record)| !is_dead(record)) {
            if is_here(record) {
                return Err(busy(Some(record)).into());
            }
            if since.elapsed() >= SILENCE {
                break;
            }
            if since.elapsed() < LOOK {
                let (pid, host) = (record.pid, &record.host);
                info!("{address} was last written by process {pid} on {host}: waiting for a sign of life");
            }
            std::thread::sleep(LOOK);
            let now = read()?;
            match &now {
                Some((now, record)) if now != tag && !record.has_ended => {
                    return Err(busy(Some(record)).into());
                }
                None if bucket.is_mount() => {}
                _ => before = now,
            }
        }
        let record = Record {
            host: host.to_owned(),
            place,
            pid: std::process::id(),
            started: start_of(std::process::id()),
            nonce: run_id::random().unwrap_or_default(),
            job_id: job_id.map(str::to_owned),
            replaces,
            n_renewed: 0,
            has_ended: false,
        };
        let condition = before.as_ref().map_or(If::Absent, |(tag, _)| If::Unchanged(tag));
        let Some(tag) = write(bucket, &record, condition)? else {
            return Err(busy(read()?.map(|(_, record)| record).as_ref()).into());
        };
        Ok(Owner { record, tag })
    }

    /// The job that has written what is there.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) fn job(bucket: &Bucket) -> Result<Option<String>> {
        let record =
            bucket.get(OWNER)?.and_then(|object| serde_json::from_slice::<Record>(&object.bytes).ok());
        Ok(record.filter(|record| !record.replaces).and_then(|record| record.job_id))
    }

    /// Shows a sign of life. Returns whether this process is still the writer.
    fn renew(&mut self, bucket: &Bucket, has_ended: bool) -> Result<bool> {
        self.record.n_renewed += 1;
        self.record.has_ended = has_ended;
        let tag = write(bucket, &self.record, If::Unchanged(&self.tag))?;
        let is_own = tag.is_some();
        self.tag = tag.unwrap_or_default();
        Ok(is_own)
    }
}

/// Writes the object; returns its entity tag, or none if `condition` did not hold.
fn write(bucket: &Bucket, record: &Record, condition: If<'_>) -> Result<Option<String>> {
    let text = serde_json::to_vec(record).unwrap_or_default();
    Ok(match bucket.put(OWNER, text.clone(), condition)? {
        Some(tag) => Some(tag),
        // A request whose answer was lost has been done all the same.
        None => own(bucket, &record.nonce)?,
    })
}

/// The entity tag of the object, if the process with this nonce has written it.
fn own(bucket: &Bucket, nonce: &str) -> Result<Option<String>> {
    let parsed = |object: &Object| serde_json::from_slice::<Record>(&object.bytes).ok();
    let mut object = bucket.get(OWNER)?;
    for _ in 0..3 {
        if !bucket.is_mount() || object.as_ref().and_then(parsed).is_some() {
            break;
        }
        // It is being written there, in several steps.
        std::thread::sleep(LOOK);
        object = bucket.get(OWNER)?;
    }
    Ok(match object.as_ref().and_then(parsed) {
        Some(record) if record.nonce == nonce => object.and_then(|object| object.tag),
        None if bucket.is_mount() => Some(object.and_then(|object| object.tag).unwrap_or_default()),
        _ => None,
    })
}

/// Start of a process in ticks since the boot; 0 if it is not known.
fn start_of(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Field 22; the name before it may contain any character.
    let rest = stat.rsplit(')').next().unwrap_or_default();
    rest.split_whitespace().nth(19).and_then(|field| field.parse().ok()).unwrap_or_default()
}

/// Boot of this host and namespace of its processes. Containers may share the name of a host.
fn place() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}
