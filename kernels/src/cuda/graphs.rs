//! The graphs of a device, and the memory that waits for their end.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::{DriverError, result, sys};

use super::stream::Stream;
use super::unused::Unused;

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
