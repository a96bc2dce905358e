//! Brings the files of a run's home to its bucket, on a thread of its own while the run goes on, and all of them at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use ddp::checkpoint::{CheckpointStore, Fault, MANIFEST_FILE, Manifest, step_name, step_of};
use ddp::data::DataError;
use ddp::report::units::mib;
use ddp::run_folder::done::{DONE_FILE, Done};
use ddp::run_folder::folder::{
    CHECKPOINTS, CONFIG_FILE, FLIGHT_FILE, LAST_FILE, METRICS_FILE, MODEL_FILE, REPORT_FILE,
};
use ddp::run_folder::{FolderError, UPLOADING_FILE, run_id};
use ddp::storage::atomic_write::write_atomic;
use ddp::storage::fault::FileFault;
use ddp::storage::user_file::{FileError, open_regular, read_regular};
use ddp_comm::Watchdog;
use ddp_tables::open::remote::{Bucket, If, checkpoint, complete_checkpoints};
use tracing::{debug, info, warn};

use super::owner::{Beat, FENCE};
use crate::error::command::CommandError;
use crate::error::{Error, Result};

/// Time between two looks at the home.
const LOOK: Duration = Duration::from_millis(500);
/// Time between two copies of a file that grows.
const PACE: Duration = Duration::from_secs(10);
/// Most bytes per second for copies of a file that grows, since each one is whole.
const BYTES_PER_S: u64 = 1 << 20;
/// Time between two signs that the end of the run is on its way to the bucket.
const SIGN: Duration = Duration::from_secs(1);
/// Time between two looks at the end of the thread.
const POLL: Duration = Duration::from_millis(5);
/// Objects that disappear when the run no longer has the files.
const REMOVED: [&str; 4] = [DONE_FILE, LAST_FILE, MODEL_FILE, REPORT_FILE];
const BEST: &str = "best";
/// Time at the end of a run for a store to answer again.
const PATIENCE: Duration = Duration::from_secs(60);
/// Largest manifest.
const MAX_BYTES: u64 = 1 << 30;

/// Name of the fetched events until the run has claimed its home: otherwise a supervisor would take them for events of this attempt.
pub(super) const FETCHED: &str = ".metrics.jsonl";
/// Whether an object is one of a run, which a new run replaces.
pub(super) fn is_of_run(name: &str) -> bool {
    const FILES: [&str; 9] = [
        CONFIG_FILE,
        METRICS_FILE,
        MODEL_FILE,
        LAST_FILE,
        REPORT_FILE,
        DONE_FILE,
        FLIGHT_FILE,
        run_id::RUN_ID_FILE,
        "checkpoints/best",
    ];
    let folders = ["checkpoints/step-", "logs/rank-", "traces/steps-", "tb/"];
    FILES.contains(&name) || folders.iter().any(|folder| name.starts_with(folder))
}

/// The mirror of a run, on rank 0.
#[derive(Debug)]
pub(crate) struct Mirror {
    address: String,
    home: PathBuf,
    /// Whether the bucket still has another run, to be deleted.
    replaces: bool,
    state: State,
}

#[derive(Debug)]
enum State {
    /// The run has no folder yet.
    Begun(Box<Work>),
    On {
        thread: JoinHandle<()>,
        ask: Sender<Ask>,
    },
    Ended,
}

/// Request to the thread to end, with the way to answer.
#[derive(Debug)]
struct Ask {
    /// The last object of a complete run.
    done: Option<Vec<u8>>,
    answer: Sender<Result<u64>>,
}

impl Mirror {
    pub(super) fn new(address: String, home: PathBuf, bucket: Bucket, beat: Beat, replaces: bool) -> Self {
        let work = Work {
            address: address.clone(),
            home: home.clone(),
            bucket,
            beat,
            copied: BTreeMap::new(),
            sent: None,
            checked: BTreeMap::new(),
            keep: 0,
            seen: BTreeSet::new(),
            n_bytes: 0,
        };
        Mirror { address, home, replaces, state: State::Begun(Box::new(work)) }
    }

    /// Uploads the newest checkpoint of the home before the run begins.
    ///
    /// # Errors
    /// Errors of the store.
    pub(super) fn upload_newest(&mut self) -> Result<()> {
        let State::Begun(work) = &mut self.state else { return Ok(()) };
        let steps = CheckpointStore::for_run(&self.home).steps().map_err(ddp::Error::from)?;
        work.copy_newest(&steps).map(drop)
    }

    /// Starts to mirror the home, which is claimed: first the files that name the run.
    ///
    /// - `keep`: number of checkpoints that the bucket keeps, besides that of the best evaluation; 0 for all
    ///
    /// # Errors
    /// Errors of the store, of a new thread.
    pub(crate) fn start(&mut self, keep: usize) -> Result<()> {
        let State::Begun(mut work) = std::mem::replace(&mut self.state, State::Ended) else { return Ok(()) };
        work.keep = keep;
        work.check_writer()?;
        if self.replaces {
            work.delete_all()?;
        }
        work.beat.has_replaced();
        let fetched = self.home.join(FETCHED);
        if fetched.exists() {
            let back = fs::rename(&fetched, self.home.join(METRICS_FILE));
            back.map_err(|source| FolderError::Unwritable { path: self.home.clone(), source })?;
        }
        for name in [CONFIG_FILE, run_id::RUN_ID_FILE] {
            work.copy(name)?;
        }
        work.remove_absent()?;
        let (ask, asked) = channel::<Ask>();
        let loop_ = move || {
            let (mut has_failed, mut was_lost) = (false, false);
            loop {
                match asked.recv_timeout(LOOK) {
                    Err(RecvTimeoutError::Timeout) => {
                        let failed =
                            work.pass(false).err().map(|error| error.to_string()).unwrap_or_default();
                        // Once for each outage, whose texts hold times.
                        if !failed.is_empty() && work.beat.is_lost() && !was_lost {
                            was_lost = true;
                            warn!("{failed}");
                        } else if !failed.is_empty() && !has_failed && !was_lost {
                            let fact = failed.split("\nhint: ").next().unwrap_or_default();
                            let home = work.home.display();
                            warn!("{fact}\nhint: the run goes on, and tries again; its files are in {home}");
                        }
                        has_failed = !failed.is_empty();
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                    Ok(Ask { done, answer }) => {
                        let ended = work.end(done);
                        let _ = answer.send(ended);
                    }
                }
            }
            work.beat.end();
        };
        let thread = std::thread::Builder::new().name("bucket".to_owned()).spawn(loop_);
        let thread = thread.map_err(|source| CommandError::BucketThread { source })?;
        self.state = State::On { thread, ask };
        info!("results go to {}; until they are there they are in {}", self.address, self.home.display());
        Ok(())
    }

    /// Ends at once. The run can be continued from what the bucket has, and from the home.
    pub(crate) fn give_up(self) {
        if let State::Begun(work) = self.state {
            work.beat.end();
        }
    }

    /// Brings all that is missing to the bucket and ends; `done` says that the run is complete. Waits for the bucket.
    ///
    /// # Errors
    /// [`CommandError::NotInBucket`]
    pub(crate) fn finish(self, done: Option<&Done>, watchdog: &Watchdog) -> Result<()> {
        let (thread, ask) = match self.state {
            State::On { thread, ask } => (thread, ask),
            State::Begun(work) => {
                work.beat.end();
                return Ok(());
            }
            State::Ended => return Ok(()),
        };
        let (answer, answered) = channel();
        let is_complete = done.is_some();
        let done = done.and_then(|done| serde_json::to_vec(done).ok());
        let started = Instant::now();
        let _ = ask.send(Ask { done, answer });
        let sign = self.home.join(UPLOADING_FILE);
        // To `launch`, which would end ranks that have reported their end, and to the other ranks.
        let show_life = || {
            let _ = write_atomic(&sign, b"");
            watchdog.tick();
        };
        let ended = loop {
            match answered.recv_timeout(SIGN) {
                Ok(ended) => break ended,
                Err(RecvTimeoutError::Disconnected) => {
                    let source = std::io::Error::other("it ended");
                    break Err(CommandError::BucketThread { source }.into());
                }
                Err(RecvTimeoutError::Timeout) => show_life(),
            }
        };
        drop(ask);
        let mut shown = Instant::now();
        while !thread.is_finished() {
            if shown.elapsed() >= SIGN {
                shown = Instant::now();
                show_life();
            }
            std::thread::sleep(POLL);
        }
        let _ = fs::remove_file(&sign);
        let (address, home) = (self.address, self.home);
        let n_bytes = ended.map_err(|error| match error {
            taken @ Error::Command(CommandError::BucketTaken { .. }) => taken,
            error => {
                let reason = error.to_string();
                let reason = reason.split("\nhint: ").next().unwrap_or_default().to_owned();
                CommandError::NotInBucket { address: address.clone(), home: home.clone(), reason }.into()
            }
        })?;
        if is_complete {
            // The bucket has them; the rest is small, and tells a supervisor how the run has ended.
            let _ = fs::remove_dir_all(home.join(CHECKPOINTS));
            let _ = [MODEL_FILE, LAST_FILE].map(|name| fs::remove_file(home.join(name)));
        }
        info!(
            "{address} has all of the run; the last {} took {:.1} s",
            mib(n_bytes),
            started.elapsed().as_secs_f64()
        );
        Ok(())
    }
}

/// The thread's state.
#[derive(Debug)]
struct Work {
    address: String,
    home: PathBuf,
    bucket: Bucket,
    beat: Beat,
    /// Files as they were copied, and when.
    copied: BTreeMap<String, (Stamp, Instant)>,
    /// The newest checkpoint that the bucket has, with its manifest.
    sent: Option<(u64, Stamp)>,
    /// Checkpoints of the home whose bytes were compared with their manifests, and whether they are intact.
    checked: BTreeMap<u64, (Stamp, bool)>,
    /// Number of checkpoints to keep; 0 for all.
    keep: usize,
    /// Steps of the checkpoints that were at home.
    seen: BTreeSet<u64>,
    n_bytes: u64,
}

/// Length and time of change of a file.
type Stamp = (u64, Option<SystemTime>);

/// That of a regular file.
fn stamp(path: &Path) -> Option<Stamp> {
    let data = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
    Some((data.len(), data.modified().ok()))
}

/// A checkpoint of the home, whose files stay readable when the run deletes or replaces it.
#[derive(Debug)]
struct Held {
    manifest: Vec<u8>,
    files: Vec<(String, File)>,
}

impl Held {
    /// Opens the checkpoint in `folder`, and compares its bytes with the manifest unless it `is_checked`; none if it is gone meanwhile.
    ///
    /// # Errors
    /// The fault that it finds.
    fn open(folder: &Path, is_checked: bool) -> Result<Option<Self>, Fault> {
        let read = || read_regular(&folder.join(MANIFEST_FILE), MAX_BYTES).ok();
        let Some(manifest) = read() else { return Ok(None) };
        let entries = Manifest::from_bytes(&manifest).map(|manifest| manifest.files);
        let entries = entries.map(|entries| {
            let open = |name: &str| open_regular(&folder.join(name));
            entries.into_iter().map(|entry| (open(&entry.name), entry)).collect::<Vec<_>>()
        });
        if read().as_ref() != Some(&manifest) {
            return Ok(None);
        }
        let mut files = Vec::new();
        for (file, entry) in entries? {
            let file = file.map_err(|error| {
                let (name, reason) = (entry.name.clone(), error.to_string());
                FileFault::Unreadable { name, reason }
            })?;
            if !is_checked {
                entry.check(&file)?;
            }
            files.push((entry.name, file));
        }
        Ok(Some(Held { manifest, files }))
    }
}

impl Work {
    /// Copies what is new. `is_last`: also what was copied a moment ago.
    fn pass(&mut self, is_last: bool) -> Result<()> {
        self.check_current()?;
        let steps = CheckpointStore::for_run(&self.home).steps().map_err(ddp::Error::from)?;
        self.seen.extend(&steps);
        if is_last {
            // The home is emptied afterwards.
            for step in &steps {
                let stamp = stamp(&self.home.join(checkpoint(*step)).join(MANIFEST_FILE));
                stamp.map_or(Ok(false), |stamp| self.copy_checkpoint((*step, stamp)))?;
            }
        }
        // The newest alone counts, however slow the bucket is.
        // The last pass has brought more than it.
        if let Some(sent) = self.copy_newest(&steps)?.filter(|sent| is_last || Some(*sent) != self.sent) {
            self.sent = Some(sent);
            self.prune(&steps, sent.0)?;
        }
        for name in self.files() {
            let pace = |(len, _): Stamp| PACE.max(Duration::from_secs(len / BYTES_PER_S));
            let is_fresh = self.copied.get(&name).is_some_and(|(of, at)| at.elapsed() < pace(*of));
            if is_last || !is_fresh {
                self.copy(&name)?;
            }
        }
        Ok(())
    }

    /// Fails if this process may no longer be the writer: its last sign of life is too old.
    fn check_current(&self) -> Result<()> {
        match self.beat.silence() {
            _ if self.beat.is_lost() => Err(self.taken()),
            Some(silence) => Err(self.away(silence)),
            None => Ok(()),
        }
    }

    fn away(&self, silence: Duration) -> Error {
        CommandError::BucketAway { address: self.address.clone(), seconds: silence.as_secs() }.into()
    }

    /// Writes a file as an object, as long as this process is the writer.
    fn upload(&mut self, name: &str, file: &File) -> Result<()> {
        let written = self.bucket.upload(name, file, &|| self.check_current().is_ok())?;
        let Some(n_bytes) = written else {
            self.check_current()?;
            // It is again.
            return Err(self.away(FENCE));
        };
        self.n_bytes += n_bytes;
        Ok(())
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.check_current()?;
        Ok(self.bucket.delete(name)?)
    }

    /// Asks before what counts, because the beat may not have noticed.
    fn check_writer(&self) -> Result<()> {
        if self.beat.check(&self.bucket)? { Ok(()) } else { Err(self.taken()) }
    }

    fn taken(&self) -> Error {
        CommandError::BucketTaken { address: self.address.clone() }.into()
    }

    /// Copies all and says so; returns the number of bytes that it took.
    fn end(&mut self, done: Option<Vec<u8>>) -> Result<u64> {
        let before = self.n_bytes;
        let since = Instant::now();
        // A store that answers again gets a sign of life first.
        while self.beat.silence().is_some() && !self.beat.is_lost() && since.elapsed() < PATIENCE {
            std::thread::sleep(LOOK);
        }
        self.check_writer()?;
        if let Err(error) = self.pass(true) {
            // Nothing follows that would send it again.
            if self.beat.is_lost() || since.elapsed() > PATIENCE {
                return Err(error);
            }
            let (error, address) = (error.to_string(), &self.address);
            let fact = error.split("\nhint: ").next().unwrap_or_default();
            warn!("{fact}\nhint: what {address} lacks is sent once more");
            std::thread::sleep(LOOK);
            self.pass(true)?;
        }
        self.remove_absent()?;
        if let Some(done) = done {
            self.check_current()?;
            self.bucket.put(DONE_FILE, done, If::Always)?;
        }
        Ok(self.n_bytes - before)
    }

    /// Names of the files of the run but its checkpoints, the model last.
    fn files(&self) -> Vec<String> {
        let mut names = Vec::new();
        let read = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().collect::<Vec<_>>();
        for entry in read(&self.home) {
            let name = entry.file_name().to_string_lossy().into_owned();
            match entry.file_type() {
                Ok(kind) if kind.is_file() => names.push(name),
                Ok(kind) if kind.is_dir() && name != CHECKPOINTS => {
                    let inside = read(&entry.path()).into_iter();
                    names.extend(
                        inside.map(|entry| format!("{name}/{}", entry.file_name().to_string_lossy())),
                    );
                }
                _ => {}
            }
        }
        names.retain(|name| !name.split('/').any(|part| part.starts_with('.')) && name != DONE_FILE);
        names.sort_by_key(|name| (name == MODEL_FILE, name != METRICS_FILE, name.clone()));
        names
    }

    /// Copies a file, unless it is as it was.
    fn copy(&mut self, name: &str) -> Result<()> {
        let path = self.home.join(name);
        if let Some(stamp) =
            stamp(&path).filter(|stamp| self.copied.get(name).is_none_or(|(of, _)| of != stamp))
        {
            match open_regular(&path) {
                Ok(file) => self.upload(name, &file)?,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(source) => {
                    let what = "file of the run";
                    return Err(DataError::from(FileError::Unreadable { what, path, source }).into());
                }
            }
            self.copied.insert(name.to_owned(), (stamp, Instant::now()));
        }
        Ok(())
    }

    /// Copies the newest of the checkpoints `steps` that is intact, and returns it with its manifest; none if the run has deleted or
    /// replaced it meanwhile.
    fn copy_newest(&mut self, steps: &[u64]) -> Result<Option<(u64, Stamp)>> {
        for step in steps.iter().rev().copied() {
            let stamp = stamp(&self.home.join(checkpoint(step)).join(MANIFEST_FILE));
            // A folder without a manifest is not the run's.
            let Some(own) = stamp.map(|stamp| (step, stamp)) else { continue };
            if Some(own) == self.sent || self.copy_checkpoint(own)? {
                return Ok(Some(own));
            }
            if self.checked.get(&step).is_none_or(|(_, is_intact)| *is_intact) {
                return Ok(None);
            }
        }
        Ok(None)
    }

    /// Copies a checkpoint, its manifest last; returns false if it is damaged or gone meanwhile.
    fn copy_checkpoint(&mut self, (step, stamp): (u64, Stamp)) -> Result<bool> {
        let (began, prefix) = (Instant::now(), checkpoint(step));
        let manifest_name = format!("{prefix}{MANIFEST_FILE}");
        let is_intact =
            self.checked.get(&step).filter(|(of, _)| *of == stamp).map(|(_, is_intact)| *is_intact);
        if is_intact == Some(false) {
            return Ok(false);
        }
        let held = Held::open(&self.home.join(&prefix), is_intact == Some(true));
        if let Err(fault) = &held {
            let (name, address) = (step_name(step), &self.address);
            warn!("checkpoint {name} of this host does not go to {address}, because it is damaged: {fault}");
        }
        if !matches!(held, Ok(None)) {
            self.checked.insert(step, (stamp, held.is_ok()));
        }
        let Ok(Some(Held { manifest, files })) = held else { return Ok(false) };
        match self.bucket.get(&manifest_name)? {
            Some(there) if there.bytes == manifest => return Ok(true),
            // Of the same step, by a run that went another way from an older checkpoint.
            Some(_) => self.delete(&manifest_name)?,
            None => {}
        }
        let before = self.n_bytes;
        for (name, file) in files {
            self.upload(&format!("{prefix}{name}"), &file)?;
        }
        // A run that continues from here has the events before.
        self.copy(METRICS_FILE)?;
        self.check_writer()?;
        if self.bucket.put(&manifest_name, manifest.clone(), If::Absent)?.is_none() {
            // A request that was tried again may have been answered before.
            let there = self.bucket.get(&manifest_name)?;
            if there.is_none_or(|there| there.bytes != manifest) {
                return Err(self.taken());
            }
        }
        debug!(
            step,
            bytes = self.n_bytes - before,
            seconds = began.elapsed().as_secs_f64(),
            "checkpoint in the bucket"
        );
        Ok(true)
    }

    /// Deletes the checkpoints older than `newest` that the run no longer has, but not that of its best evaluation.
    fn prune(&mut self, own: &[u64], newest: u64) -> Result<()> {
        self.check_writer()?;
        let best = format!("{CHECKPOINTS}/{BEST}");
        let marked = match read_regular(&self.home.join(&best), MAX_BYTES) {
            Ok(name) => {
                self.bucket.put(&best, name.clone(), If::Always)?;
                Some(name)
            }
            Err(_) => self.bucket.get(&best)?.map(|object| object.bytes),
        };
        let marked = marked.and_then(|name| step_of(String::from_utf8(name).ok()?.trim()));
        let objects = self.bucket.list(CHECKPOINTS)?;
        let complete = complete_checkpoints(objects.iter().map(|(name, _)| name.as_str()));
        let step = |name: &str| step_of(name.split('/').nth(1)?);
        // Older checkpoints, which this process has never had, are deleted by their number.
        let n_newer = |step: &u64| complete.iter().filter(|other| *other > step).count();
        let is_beyond = |step: &u64| self.keep > 0 && n_newer(step) >= self.keep;
        let is_old = |step: &u64| {
            let is_held = own.contains(step) || Some(*step) == marked;
            *step < newest && !is_held && (self.seen.contains(step) || is_beyond(step))
        };
        for old in complete.iter().copied().filter(is_old) {
            self.delete(&format!("{}{MANIFEST_FILE}", checkpoint(old)))?;
        }
        // Also what a killed process has left of others.
        let is_gone = |step: &u64| is_old(step) || (*step != newest && !complete.contains(step));
        for (name, _) in objects.iter().filter(|(name, _)| step(name).is_some_and(|step| is_gone(&step))) {
            self.delete(name)?;
        }
        Ok(())
    }

    /// Deletes the run that was there before.
    fn delete_all(&self) -> Result<()> {
        let mut objects = self.bucket.list("")?;
        // Manifests first: what is left is no checkpoint.
        objects.sort_by_key(|(name, _)| !name.ends_with(MANIFEST_FILE));
        for (name, _) in objects.iter().filter(|(name, _)| is_of_run(name)) {
            self.delete(name)?;
        }
        Ok(())
    }

    /// Deletes objects of files that the run has no longer.
    fn remove_absent(&mut self) -> Result<()> {
        let is_absent = |name: &&str| !self.home.join(name).exists();
        for name in REMOVED.iter().copied().filter(is_absent) {
            self.delete(name)?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "mirror_tests.rs"]
pub(super) mod tests;
