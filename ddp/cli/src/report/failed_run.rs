//! The last event of a failed run.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use ddp::report::EventStream;
use ddp::report::metrics::{Event, FailedEvent, json_line};
use ddp::report::visible::shortened;
use ddp::run_folder::done::Done;
use ddp::run_folder::folder::{self, FLIGHT_FILE};
use ddp::storage::user_file::{create_new, open_unlinked};
use ddp_comm::watchdog::FlightOperation;
use serde_json::json;

use crate::report::page;

/// Destination of the last event of a failed run, and the run's progress.
#[derive(Debug, Clone, Default)]
pub struct FailedRun {
    /// Additional destination of events, with `--json`.
    pub stdout: Option<EventStream>,
    /// The event file, once there is one; shared with the watchdog.
    pub metrics: Arc<OnceLock<PathBuf>>,
    /// Owner of the folder, when it was opened; shared with the watchdog.
    owner: Arc<OnceLock<Option<String>>>,
    /// Whether the command as the user has typed it names the folder of the run.
    pub names_folder: bool,
    /// Step that failed, or else the number of completed steps; `None` before training.
    pub step: Option<u64>,
    /// Whether this process has written the event; shared with the watchdog.
    is_written: Arc<Mutex<bool>>,
    /// Whether this process has recorded that the run is complete.
    is_complete: Arc<AtomicBool>,
}

impl FailedRun {
    /// A run whose events also go to `stdout`.
    ///
    /// - `names_folder`: whether the command as the user has typed it names the folder of the run
    pub fn new(stdout: Option<EventStream>, names_folder: bool) -> Self {
        FailedRun { stdout, names_folder, ..FailedRun::default() }
    }

    /// Names the event file, once the folder of the run is open.
    pub fn opened(&self, metrics: PathBuf) {
        let _ = self.owner.set(metrics.parent().and_then(folder::owner));
        let _ = self.metrics.set(metrics);
    }

    /// Whether the folder has a new owner, whose events are none of this run. A run that has failed has released it.
    fn is_taken_over(&self) -> bool {
        let now = self.metrics.get().and_then(|path| folder::owner(path.parent()?));
        now.is_some_and(|now| {
            self.owner.get().is_some_and(|owner| owner.as_ref().is_some_and(|own| *own != now))
        })
    }

    /// The same run with failure at `step`.
    pub fn at(&self, step: Option<u64>) -> Self {
        FailedRun { step, ..self.clone() }
    }

    /// Whether this process has completed the run, or is writing that it has: the loss of a rank then does not fail the run. Never
    /// blocks.
    pub fn is_complete(&self) -> bool {
        self.is_complete.load(Ordering::Acquire)
    }

    /// The way to continue after a rank was lost. Never blocks: it does not look for checkpoints, which the other ranks may be saving.
    pub fn resume_hint(&self) -> String {
        let folder = match self.metrics.get().and_then(|path| path.parent()) {
            _ if self.names_folder => String::new(),
            Some(run) => format!("--out {} ", run.display()),
            None => return "start the same command again".to_owned(),
        };
        format!(
            "the same command with `{folder}--resume auto` continues from the newest checkpoint, or starts over if there is none"
        )
    }

    /// Whether rank 0, which may be another process, has completed the run.
    fn is_complete_by_folder(&self) -> bool {
        self.metrics.get().and_then(|path| path.parent()).is_some_and(|run| Done::read(run).is_some())
    }

    /// Runs `complete`, which records that the run is complete. If this process has already reported the run as failed, it waits
    /// for the end of the process, which is imminent.
    pub fn complete<E>(&self, complete: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let is_written = self.lock();
        if *is_written {
            loop {
                std::thread::park();
            }
        }
        // From here on the report of a lost rank waits for the lock.
        self.is_complete.store(true, Ordering::Release);
        complete().inspect_err(|_| self.is_complete.store(false, Ordering::Release))
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes the last operations of the ranks before a loss into the folder of the run, oldest first; times are in s before the report.
    /// Best effort.
    pub fn write_flight(&self, flight: &[FlightOperation]) {
        let Some(run) = self.metrics.get().and_then(|path| path.parent()) else { return };
        if self.is_complete_by_folder() || self.is_taken_over() || flight.is_empty() {
            return;
        }
        let line = |of: &FlightOperation| {
            let FlightOperation { rank, step, operation, n_bytes, begin_ago, end_ago } = of;
            let (begin, end) = (-begin_ago.as_secs_f64(), end_ago.map(|ago| -ago.as_secs_f64()));
            let line = json!({
                "rank": rank, "step": step, "operation": operation, "bytes": n_bytes, "begin_s": begin, "end_s": end,
            });
            format!("{line}\n")
        };
        // The process is about to end: no time for a sync.
        let text: String = flight.iter().map(line).collect();
        let _ = create_new(&run.join(FLIGHT_FILE)).and_then(|mut file| file.write_all(text.as_bytes()));
    }

    /// Writes the event of a failure, unless the run is complete. Best effort: the failure itself is reported on stderr.
    pub fn write(&self, exit_code: u8, rank: usize, message: &str, hint: Option<&str>) {
        self.write_event(exit_code, rank, message, hint, self.is_taken_over());
    }

    /// [`FailedRun::write`] of a run that has lost its folder: what is there now is none of its own.
    pub fn write_elsewhere(&self, exit_code: u8, rank: usize, message: &str, hint: Option<&str>) {
        self.write_event(exit_code, rank, message, hint, true);
    }

    fn write_event(&self, exit_code: u8, rank: usize, message: &str, hint: Option<&str>, is_lost: bool) {
        let mut is_written = self.lock();
        if self.is_complete_by_folder() {
            return;
        }
        *is_written = true;
        let (error, hint) = (shortened(message).into_owned(), hint.map(|hint| shortened(hint).into_owned()));
        let line = json_line(&Event::Failed(FailedEvent { exit_code, rank, step: self.step, error, hint }));
        // The file is not created, because a rank on another host may not see the run folder.
        if let Some(path) = self.metrics.get().filter(|_| !is_lost)
            && let Ok(mut file) = open_unlinked(OpenOptions::new().append(true), path)
        {
            let _ = file.write_all(line.as_bytes());
            path.parent().into_iter().for_each(page::write_early);
        }
        // Written last, because possibly nobody reads it.
        if let Some(stdout) = &self.stdout {
            stdout.write(&line);
            stdout.flush();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_event_is_the_last_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let run = FailedRun { metrics: Arc::new(path.clone().into()), step: Some(7), ..FailedRun::default() };
        run.write(1, 0, "not created", None);
        assert!(!path.exists());
        std::fs::write(&path, "{\"event\":\"step\"}\n").unwrap();
        run.write(1, 2, "loss is NaN at step 7", Some("try a smaller `optimizer.lr`"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            text.lines().last().unwrap(),
            r#"{"event":"failed","exit_code":1,"rank":2,"step":7,"error":"loss is NaN at step 7","hint":"try a smaller `optimizer.lr`"}"#
        );
        run.write(74, 0, "no hint", None);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.ends_with("\"error\":\"no hint\",\"hint\":null}\n") && text.lines().count() == 3,
            "{text}"
        );
    }

    /// Its supervisor would end that healthy run.
    #[test]
    fn the_new_owner_of_the_folder_gets_no_event() {
        let folder = tempfile::tempdir().unwrap();
        let (path, lock) = (folder.path().join("metrics.jsonl"), folder.path().join(".lock"));
        let lease = |pid: u32| format!("process {pid} on a\nboot b\nrenewed 20260101-000000 (0000000001)\n");
        std::fs::write(&lock, lease(1)).unwrap();
        std::fs::write(&path, "").unwrap();
        let run = FailedRun::default();
        run.opened(path.clone());
        let n_lines = || std::fs::read_to_string(&path).unwrap().lines().count();
        run.write(75, 1, "a lost rank", None);
        std::fs::write(&lock, "").unwrap();
        run.write(75, 1, "a lost rank, after the release", None);
        assert_eq!(n_lines(), 2);
        run.write_elsewhere(1, 0, "a folder that was lost to a run that has ended", None);
        std::fs::write(&lock, lease(2)).unwrap();
        run.write(75, 1, "a lost rank", None);
        assert_eq!(n_lines(), 2);
    }

    /// `--resume auto` needs the folder, which a run without `--out` has chosen itself.
    #[test]
    fn the_way_to_resume_names_a_folder_that_the_command_does_not() {
        let path = Arc::new(OnceLock::from(PathBuf::from("runs/digits-1/metrics.jsonl")));
        let hint = |names_folder, metrics: &Arc<OnceLock<PathBuf>>| {
            FailedRun { metrics: metrics.clone(), ..FailedRun::new(None, names_folder) }.resume_hint()
        };
        let words = "with `--out runs/digits-1 --resume auto` continues";
        assert!(hint(false, &path).contains(words), "{}", hint(false, &path));
        assert!(hint(true, &path).starts_with("the same command with `--resume auto` continues"));
        assert!(!hint(false, &Arc::default()).contains("--resume"), "there is no folder yet");
    }

    #[test]
    fn a_complete_run_does_not_fail() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        std::fs::write(&path, "{\"event\":\"end\"}\n").unwrap();
        let run = FailedRun { metrics: Arc::new(path.clone().into()), ..FailedRun::default() };
        let done = Done { run_id: None, job_id: None, step: 7 };
        assert!(!run.is_complete());
        run.complete(|| done.write(folder.path())).unwrap();
        assert!(run.is_complete());
        // Holds also in another process, for example after rank 0 was lost.
        let elsewhere = FailedRun { metrics: Arc::new(path.clone().into()), ..FailedRun::default() };
        for run in [run, elsewhere] {
            run.write(75, 0, "rank 1 died", None);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "{\"event\":\"end\"}\n");
        }
    }

    #[test]
    fn a_failed_run_does_not_complete() {
        let run = FailedRun::default();
        run.write(75, 0, "rank 1 died", None);
        let (sender, receiver) = channel();
        // Not joined, because it waits for the end of the process.
        std::thread::spawn(move || run.complete(|| sender.send(())));
        let waited = receiver.recv_timeout(Duration::from_millis(100));
        assert_eq!(waited, Err(RecvTimeoutError::Timeout));
    }
}
