//! The graphs of a device, and memory that nothing uses any more, which waits for their end.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::{DriverError, result, sys};

use super::context::Stream;
use super::pinned::Pinned;

/// Number of graphs of a device, and memory to free when there are none.
#[derive(Debug, Default)]
pub(super) struct Graphs {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    n_alive: usize,
    /// Captures begun since the start.
    n_begun: u64,
    kept: Vec<Unused>,
    /// Executable graphs by the number of their capture.
    execs: HashMap<u64, sys::CUgraphExec>,
}

impl Graphs {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a capture and returns its number: from here on, freed memory is kept until [`Graphs::end`].
    pub(super) fn begin(&self) -> u64 {
        let mut state = self.state();
        state.n_alive += 1;
        state.n_begun += 1;
        state.n_begun
    }

    /// Takes over the executable graph of a capture.
    pub(super) fn insert(&self, number: u64, exec: sys::CUgraphExec) {
        self.state().execs.insert(number, exec);
    }

    /// Replays a graph on the compute stream.
    pub(super) fn launch(&self, number: u64, compute: &Stream) -> Result<(), DriverError> {
        // Locked, so that no other thread destroys it meanwhile.
        match self.state().execs.get(&number) {
            // SAFETY: graph and stream are alive, and the memory that it uses is (see [`Graphs::free_or_keep`]).
            Some(&exec) => unsafe { result::graph::launch(exec, compute.raw()) },
            None => Err(DriverError(sys::CUresult::CUDA_ERROR_INVALID_HANDLE)),
        }
    }

    /// Destroys all executable graphs.
    pub(super) fn destroy_all(&self) {
        let numbers: Vec<u64> = self.state().execs.keys().copied().collect();
        numbers.into_iter().for_each(|number| self.destroy(number));
    }

    /// Captures begun so far; memory allocated now remembers the number.
    pub(super) fn n_begun(&self) -> u64 {
        self.state().n_begun
    }

    /// Frees memory: now, or, if a graph captured since its allocation may still use it, when no graph is left.
    pub(super) fn free_or_keep(&self, compute: &Stream, memory: Unused, n_begun_before: u64) {
        let mut state = self.state();
        if state.n_alive > 0 && state.n_begun > n_begun_before {
            state.kept.push(memory);
        } else {
            drop(state);
            memory.free(compute);
        }
    }

    /// Destroys one executable graph, unless it was destroyed before. The driver frees it after the replays in progress.
    pub(super) fn destroy(&self, number: u64) {
        // Taken out before: the call may block, and the lock must not be held meanwhile.
        let exec = self.state().execs.remove(&number);
        if let Some(exec) = exec {
            // SAFETY: created in `instantiate`; taken out of the map, so destroyed once.
            let _ = unsafe { result::graph::exec_destroy(exec) };
        }
    }

    /// Ends a graph, or a capture that failed; frees the memory that was kept if it was the last one.
    pub(super) fn end(&self, compute: &Stream) {
        let mut state = self.state();
        state.n_alive -= 1;
        if state.n_alive == 0 {
            let kept = std::mem::take(&mut state.kept);
            drop(state);
            kept.into_iter().for_each(|memory| memory.free(compute));
        }
    }
}

/// Memory that no tensor or other owner uses any more.
#[derive(Debug)]
pub(super) enum Unused {
    /// An allocation of the pool.
    OfPool(sys::CUdeviceptr),
    /// An allocation by itself.
    Single(sys::CUdeviceptr),
    /// Returned to the other library when dropped.
    Foreign(Release),
    /// Host memory that kernels wrote to, none of which is still running.
    Host(Pinned),
}

impl Unused {
    /// Frees it after all work enqueued on the compute stream. A failure cannot be reported.
    pub(super) fn free(self, compute: &Stream) {
        match self {
            Unused::OfPool(ptr) if compute.bind().is_ok() => {
                // SAFETY: the memory is the pool's, and its owner gives it up here, once.
                let _ = unsafe { result::free_async(ptr, compute.raw()) };
            }
            // Unlike the pool, the driver does not know which work is to be waited for.
            Unused::Single(ptr) if compute.synchronize().is_ok() => {
                // SAFETY: the memory was allocated by itself, and its owner gives it up here, once.
                let _ = unsafe { result::free_sync(ptr) };
            }
            Unused::OfPool(_) | Unused::Single(_) => {}
            Unused::Foreign(release) => drop(release),
            Unused::Host(memory) => drop(memory),
        }
    }
}

/// Returns memory to the library that allocated it, when dropped.
pub(super) struct Release(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Release {
    pub(super) fn new(release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Release(Some(Box::new(release)))
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if let Some(release) = self.0.take() {
            release();
        }
    }
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Release")
    }
}
