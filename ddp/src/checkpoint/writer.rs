//! Writes checkpoints in the background: a thread prepares memory for snapshots, receives them and returns their memory.
//!
//! Training waits only for the snapshot. There is one set of buffers, so a save waits until the previous one is written, and
//! returns how long it waited. A failed save is reported by the thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ddp_kernels::cpu::start_thread::start_thread;
use ddp_kernels::hint::with_hint;
use tracing::{Span, info_span};

use super::error::CheckpointError;
use super::run_state::RunState;
use super::saver::{Saved, Saver};
use super::snapshot::SnapshotBuffers;
use crate::report::notes::warn_of_all_ranks;

/// A thread that saves checkpoints one after another.
#[derive(Debug)]
pub struct Writer {
    /// None after the last save.
    jobs: Option<Sender<Job>>,
    done: Receiver<Returned>,
    thread: Option<JoinHandle<()>>,
    abandoned: Arc<AtomicBool>,
    /// Whether the thread still prepares the first buffers.
    is_preparing: bool,
    /// Step that is being saved.
    saving: Option<u64>,
    buffers: SnapshotBuffers,
    /// Outcomes that are not polled yet.
    outcomes: Vec<SaveOutcome>,
}

/// Outcome of a save.
#[derive(Debug)]
pub enum SaveOutcome {
    /// The checkpoint is on disk.
    Saved(Saved),
    /// The save failed; the run can continue.
    Failed {
        /// Optimizer steps completed when its snapshot was taken.
        step: u64,
        /// Error of this rank or of another.
        error: CheckpointError,
    },
}

#[derive(Debug)]
struct Job {
    run: RunState,
    buffers: SnapshotBuffers,
}

/// Buffers that the thread gives back.
#[derive(Debug)]
struct Returned {
    buffers: SnapshotBuffers,
    /// None for the first buffers, which it has prepared.
    outcome: Option<SaveOutcome>,
}

impl SaveOutcome {
    fn new(step: u64, result: Result<Saved, CheckpointError>) -> Self {
        match result {
            Ok(saved) => SaveOutcome::Saved(saved),
            Err(error) => SaveOutcome::Failed { step, error },
        }
    }

    /// The step of the checkpoint.
    pub fn step(&self) -> u64 {
        match self {
            SaveOutcome::Saved(saved) => saved.step,
            SaveOutcome::Failed { step, .. } => *step,
        }
    }
}

impl Writer {
    /// Starts the thread. `buffers` are those that [`take_buffers`](Self::take_buffers) gives first, best
    /// [made for their device](SnapshotBuffers::for_device); the thread touches their memory.
    ///
    /// # Errors
    /// [`CheckpointError::Thread`] if the system can't start one.
    pub fn start(mut saver: Saver, mut buffers: SnapshotBuffers) -> Result<Self, CheckpointError> {
        let (jobs, to_do) = mpsc::channel::<Job>();
        let (finished, done) = mpsc::channel();
        let abandoned = saver.abandoned();
        let parent = Span::current();
        let work = move || {
            buffers.touch();
            if finished.send(Returned { buffers, outcome: None }).is_err() {
                return;
            }
            for Job { run, buffers } in to_do {
                let _span = info_span!(parent: &parent, "checkpoint", step = run.step).entered();
                let outcome = saver.save_snapshot(&run, &buffers);
                let outcome = SaveOutcome::new(run.step, outcome);
                if let SaveOutcome::Failed { error, .. } = &outcome
                    && !saver.is_given_up(error)
                {
                    // At once: the run may ask for outcomes much later. Rank 0 fails with the error of any rank.
                    warn_of_all_ranks(saver.options().rank, &with_hint(error));
                }
                if finished.send(Returned { buffers, outcome: Some(outcome) }).is_err() {
                    return;
                }
            }
        };
        let thread = start_thread("checkpoint", work);
        let thread = thread.map_err(|error| CheckpointError::Thread { reason: error.to_string() })?;
        Ok(Writer {
            jobs: Some(jobs),
            done,
            thread: Some(thread),
            abandoned,
            is_preparing: true,
            saving: None,
            buffers: SnapshotBuffers::default(),
            outcomes: Vec::new(),
        })
    }

    /// The buffers to copy the next snapshot to, with what is in them; and how long it took until the save before had done
    /// with them.
    pub fn take_buffers(&mut self) -> (SnapshotBuffers, Duration) {
        let waited = self.wait();
        (std::mem::take(&mut self.buffers), waited)
    }

    /// Hands over a snapshot. The time is that of waiting for the save before, if it is under way:
    /// none after [`take_buffers`](Self::take_buffers).
    ///
    /// # Errors
    /// [`CheckpointError::Thread`] if the thread has died.
    pub fn save(&mut self, run: RunState, buffers: SnapshotBuffers) -> Result<Duration, CheckpointError> {
        let waited = self.wait();
        let step = run.step;
        let job = Job { run, buffers };
        let is_sent = self.jobs.as_ref().is_some_and(|jobs| jobs.send(job).is_ok());
        if !is_sent {
            return Err(dead());
        }
        self.saving = Some(step);
        Ok(waited)
    }

    /// The step that is being saved.
    pub fn saving(&self) -> Option<u64> {
        self.saving
    }

    /// Returns the outcomes of saves that finished since the last call, without waiting.
    pub fn poll(&mut self) -> Vec<SaveOutcome> {
        while let Ok(returned) = self.done.try_recv() {
            self.take(returned);
        }
        std::mem::take(&mut self.outcomes)
    }

    /// Waits for the save that is under way, ends the thread, and returns the last outcomes.
    pub fn finish(mut self) -> Vec<SaveOutcome> {
        self.wait();
        let outcomes = self.poll();
        self.join();
        outcomes
    }

    /// Waits until the thread has given the buffers back; returns the time that a save took of it.
    fn wait(&mut self) -> Duration {
        let started = Instant::now();
        let was_saving = self.saving.is_some();
        while self.is_preparing || self.saving.is_some() {
            match self.done.recv() {
                Ok(returned) => self.take(returned),
                Err(_) => {
                    self.is_preparing = false;
                    let lost = self.saving.take().map(|step| SaveOutcome::Failed { step, error: dead() });
                    self.outcomes.extend(lost);
                }
            }
        }
        if was_saving { started.elapsed() } else { Duration::ZERO }
    }

    fn take(&mut self, Returned { buffers, outcome }: Returned) {
        self.buffers = buffers;
        match outcome {
            None => self.is_preparing = false,
            Some(outcome) => {
                self.saving = None;
                self.outcomes.push(outcome);
            }
        }
    }

    fn join(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // If it panicked, the panic hook has reported it.
            let _ = thread.join();
        }
    }
}

impl Drop for Writer {
    /// Ends without [`finish`](Self::finish), as when the run fails: what is being written is written, and nobody waits for
    /// other ranks.
    fn drop(&mut self) {
        self.abandoned.store(true, Ordering::Release);
        self.join();
    }
}

fn dead() -> CheckpointError {
    CheckpointError::Thread { reason: "it has exited".to_owned() }
}
