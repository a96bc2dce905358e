//! The writer of the run at an address. Only one process is it: it writes an object that it renews, each time only if nobody else has.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ddp::run_folder::run_id;
use ddp::storage::unfinished::is_running;
use ddp_tables::open::remote::{Bucket, If};
use serde::{Deserialize, Serialize};
use tracing::{debug, info};

use crate::error::Result;
use crate::error::command::CommandError;

/// Name of the object.
pub(super) const OWNER: &str = ".owner";
/// Time between two renewals.
const BEAT: Duration = Duration::from_secs(10);
/// Time without a renewal after which a writer on another host is taken for dead.
const SILENCE: Duration = Duration::from_secs(35);
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
        let renew = move || loop {
            let has_ended = ended.recv_timeout(BEAT) != Err(RecvTimeoutError::Timeout);
            match owner.renew(&bucket, has_ended) {
                Ok(true) => {}
                Ok(false) => lost.store(true, Ordering::Relaxed),
                Err(error) => debug!("no sign of life: {error}"),
            }
            if has_ended || lost.load(Ordering::Relaxed) {
                return;
            }
        };
        let thread = std::thread::Builder::new().name("bucket beat".to_owned()).spawn(renew)?;
        Ok(Beat { nonce, is_lost, end, thread })
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Record {
    host: String,
    /// Boot and namespace of processes, in which `pid` means something.
    #[serde(default)]
    place: String,
    pid: u32,
    /// A random number, for each process another one.
    nonce: String,
    pub(super) job_id: Option<String>,
    n_renewed: u64,
    has_ended: bool,
}

impl Owner {
    /// Makes this process the writer, and returns the one before. Waits for the end of the silence of a writer that may be dead.
    ///
    /// # Errors
    /// [`CommandError::BucketBusy`] if another process writes; errors of the store.
    pub(super) fn take(
        bucket: &Bucket,
        address: &str,
        host: &str,
        job_id: Option<&str>,
    ) -> Result<(Self, Option<Record>)> {
        let busy = |of: Option<&Record>| {
            let holder =
                of.map_or("another process".to_owned(), |of| format!("process {} on {}", of.pid, of.host));
            CommandError::BucketBusy { address: address.to_owned(), holder }
        };
        let read = || -> Result<Option<(String, Record)>> {
            let object = bucket.get(OWNER)?;
            let parsed = |text: &[u8]| serde_json::from_slice::<Record>(text).ok();
            Ok(object.and_then(|object| Some((object.tag?, parsed(&object.bytes)?))))
        };
        let mut before = read()?;
        let place = place();
        let is_dead = |of: &Record| {
            let is_here = of.place == place && of.pid != std::process::id();
            of.has_ended || (is_here && !is_running(of.pid))
        };
        let since = Instant::now();
        while let Some((tag, record)) = before.as_ref().filter(|(_, record)| !is_dead(record)) {
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
                _ => before = now,
            }
        }
        let record = Record {
            host: host.to_owned(),
            place,
            pid: std::process::id(),
            nonce: run_id::random().unwrap_or_default(),
            job_id: job_id.map(str::to_owned),
            n_renewed: 0,
            has_ended: false,
        };
        let condition = before.as_ref().map_or(If::Absent, |(tag, _)| If::Unchanged(tag));
        let Some(tag) = write(bucket, &record, condition)? else {
            return Err(busy(read()?.map(|(_, record)| record).as_ref()).into());
        };
        let owner = Owner { record, tag };
        Ok((owner, before.map(|(_, record)| record)))
    }

    /// Says that this process writes no more. Best effort: whoever comes next waits otherwise.
    pub(super) fn end(mut self, bucket: &Bucket) {
        let _ = self.renew(bucket, true);
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
    let object = bucket.get(OWNER)?;
    let is_own =
        |text: &[u8]| serde_json::from_slice::<Record>(text).is_ok_and(|record| record.nonce == nonce);
    Ok(object.filter(|object| is_own(&object.bytes)).and_then(|object| object.tag))
}

/// Boot of this host and namespace of its processes. Containers may share the name of a host.
fn place() -> String {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}
