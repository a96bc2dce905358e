//! Threads that fill batches, which are consumed in the order of the plan.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use ddp_kernels::cpu::caught_panic::catch_panic;
use ddp_kernels::cpu::start_thread::start_thread;

use super::filler::Filler;
use super::host_batch::HostBatch;
use super::plan::Job;
use crate::data::error::{DataError, Result};

/// The loader's threads and their shared state.
pub(super) struct Ring {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    filler: Filler,
    state: Mutex<State>,
    /// Signals a returned buffer, or the end.
    may_fill: Condvar,
    /// Signals a filled batch, or the end of the plan.
    may_take: Condvar,
}

struct State {
    jobs: Box<dyn Iterator<Item = Job> + Send>,
    free: Vec<HostBatch>,
    /// Batches from the next one on; `None` while a thread fills it.
    ready: VecDeque<Option<(HostBatch, Result<()>)>>,
    /// Number of the first batch in `ready`.
    n_taken: u64,
    /// Number of the next batch to fill.
    n_begun: u64,
    is_at_end: bool,
}

impl Ring {
    pub(super) fn start(
        filler: Filler,
        jobs: Box<dyn Iterator<Item = Job> + Send>,
        buffers: Vec<HostBatch>,
        n_threads: usize,
    ) -> Result<Self> {
        let state = State {
            jobs,
            ready: VecDeque::with_capacity(buffers.len()),
            free: buffers,
            n_taken: 0,
            n_begun: 0,
            is_at_end: false,
        };
        let shared = Arc::new(Shared {
            filler,
            state: Mutex::new(state),
            may_fill: Condvar::new(),
            may_take: Condvar::new(),
        });
        let mut ring = Ring { shared, threads: Vec::with_capacity(n_threads) };
        for n in 0..n_threads {
            let shared = ring.shared.clone();
            let thread = start_thread(&format!("loader-{n}"), move || shared.work());
            ring.threads.push(thread.map_err(|source| DataError::LoaderThread { source })?);
        }
        Ok(ring)
    }

    pub(super) fn n_threads(&self) -> usize {
        self.threads.len()
    }

    /// Waits for the next batch of the plan and returns it; `None` at the end.
    pub(super) fn take(&mut self) -> Result<Option<HostBatch>> {
        let mut state = self.shared.lock();
        loop {
            match state.ready.front() {
                Some(Some(_)) => break,
                None if state.is_at_end => return Ok(None),
                _ => state = self.shared.may_take.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        }
        state.n_taken += 1;
        let (batch, filled) = state.ready.pop_front().flatten().expect("looked at above");
        match filled {
            Ok(()) => Ok(Some(batch)),
            Err(error) => {
                state.free.push(batch);
                self.shared.may_fill.notify_one();
                Err(error)
            }
        }
    }

    /// Returns a buffer.
    pub(super) fn give_back(&mut self, batch: HostBatch) {
        self.shared.lock().free.push(batch);
        self.shared.may_fill.notify_one();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of `body`, or its panic as an error.
    fn catch<T>(&self, body: impl FnOnce() -> T) -> Result<T> {
        catch_panic(body).map_err(|panic| {
            let text = panic.downcast_ref::<&str>().copied().unwrap_or("no message");
            let text = panic.downcast_ref::<String>().map_or(text, |text| text);
            DataError::Custom {
                source_name: self.filler.dataset.source().to_owned(),
                reason: format!("it panicked while rows were read: {text}"),
            }
        })
    }

    /// Fills batches until the end of the plan or the ring.
    fn work(&self) {
        let mut state = self.lock();
        loop {
            // The buffer first, then the batch, so that the thread with the first batch also has memory for it.
            let Some(mut batch) = (if state.is_at_end { return } else { state.free.pop() }) else {
                state = self.may_fill.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            // A panic in a user's sampler or dataset must not leave the step waiting forever.
            let taken = self.catch(|| self.filler.take_jobs(&mut batch, &mut *state.jobs));
            if taken.is_err() || batch.jobs.is_empty() {
                state.is_at_end = true;
                if taken.is_err() {
                    state.ready.push_back(Some((batch, taken)));
                }
                self.may_fill.notify_all();
                self.may_take.notify_all();
                return;
            }
            let number = state.n_begun;
            state.n_begun += 1;
            state.ready.push_back(None);
            drop(state);
            let filled = self.catch(|| self.filler.fill(&mut batch)).and_then(|filled| filled);
            state = self.lock();
            let place = (number - state.n_taken) as usize;
            state.ready[place] = Some((batch, filled));
            if place == 0 {
                self.may_take.notify_one();
            }
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.lock().is_at_end = true;
        self.shared.may_fill.notify_all();
        for thread in self.threads.drain(..) {
            // The thread catches its panics.
            let _ = thread.join();
        }
    }
}
