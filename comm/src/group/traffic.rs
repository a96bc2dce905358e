//! Counts the collectives of one rank, the bytes that a ring algorithm sends for them, and the time that the rank spends in them.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::progress::Progress;
use crate::recorder::{Recorder, Track};
use crate::{Call, CallKind};

/// Number of collectives of one rank, and the bytes that a ring algorithm sends for them.
///
/// Counted when the host enqueues them: a CUDA graph counts once, when it is captured, not when it is replayed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent, times the number of ranks: an integer, so nothing is rounded.
    bytes_times_ranks: u64,
    n_ranks: u64,
    /// All-reduces started.
    pub n_all_reduces: u64,
    /// Reduce-scatters started.
    pub n_reduce_scatters: u64,
    /// All-gathers started.
    pub n_all_gathers: u64,
    /// Broadcasts started.
    pub n_broadcasts: u64,
    /// Barriers entered.
    pub n_barriers: u64,
    /// Tensors sent to one rank, or received from one.
    pub n_sends: u64,
}

impl Traffic {
    /// Bytes that this rank sends over rings of `N` ranks. For a buffer of `B` bytes: `2 (N-1)/N B` in an all-reduce, and
    /// `(N-1)/N B` in a reduce-scatter, an all-gather (`B` is then all ranks' shards) and, on average, a broadcast.
    ///
    /// Source: NVIDIA's nccl-tests, PERFORMANCE.md, "Bandwidth".
    pub fn bytes_sent(&self) -> u64 {
        self.bytes_times_ranks / self.n_ranks.max(1)
    }

    /// The traffic since `earlier`, a count of the same group.
    pub fn since(&self, earlier: &Traffic) -> Traffic {
        Traffic {
            bytes_times_ranks: self.bytes_times_ranks - earlier.bytes_times_ranks,
            n_ranks: self.n_ranks,
            n_all_reduces: self.n_all_reduces - earlier.n_all_reduces,
            n_reduce_scatters: self.n_reduce_scatters - earlier.n_reduce_scatters,
            n_all_gathers: self.n_all_gathers - earlier.n_all_gathers,
            n_broadcasts: self.n_broadcasts - earlier.n_broadcasts,
            n_barriers: self.n_barriers - earlier.n_barriers,
            n_sends: self.n_sends - earlier.n_sends,
        }
    }

    fn add(&mut self, call: Call, n_ranks: usize) {
        self.n_ranks = n_ranks as u64;
        let (n, n_bytes) = (self.n_ranks, (call.len * call.dtype.size_bytes()) as u64);
        let (count, bytes_times_ranks) = match call.kind {
            CallKind::AllReduce(_) => (&mut self.n_all_reduces, 2 * (n - 1) * n_bytes),
            CallKind::ReduceScatter(_) => (&mut self.n_reduce_scatters, (n - 1) * n_bytes * n),
            CallKind::AllGather => (&mut self.n_all_gathers, (n - 1) * n_bytes * n),
            CallKind::Broadcast { .. } => (&mut self.n_broadcasts, (n - 1) * n_bytes),
            CallKind::Barrier => (&mut self.n_barriers, 0),
            CallKind::Shift | CallKind::Send { .. } => (&mut self.n_sends, n_bytes * n),
            CallKind::Receive { .. } => (&mut self.n_sends, 0),
        };
        *count += 1;
        self.bytes_times_ranks += bytes_times_ranks;
    }
}

/// The traffic of one group, counted, and recorded in the watchdog's progress where there is one, and in a trace while one is on.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    traffic: Cell<Traffic>,
    time: Cell<Duration>,
    progress: OnceCell<Arc<Progress>>,
    recorder: OnceCell<Arc<Recorder>>,
    /// Asynchronous collectives that are not known to be complete, oldest first; the memory is kept.
    in_flight: RefCell<VecDeque<InFlight>>,
}

/// An asynchronous collective.
#[derive(Debug)]
struct InFlight {
    /// Its number in the group.
    number: u64,
    /// Its number among the operations of the watchdog's progress.
    operation: Option<u64>,
    /// Its name, and the bytes of its buffer.
    what: (&'static str, u64),
    /// When it was started, in a trace.
    begin: Option<Instant>,
}

impl Counter {
    /// The traffic so far.
    pub(super) fn get(&self) -> Traffic {
        self.traffic.get()
    }

    /// Counts one more collective.
    pub(super) fn add(&self, call: Call, n_ranks: usize) {
        let mut traffic = self.traffic.get();
        traffic.add(call, n_ranks);
        self.traffic.set(traffic);
    }

    /// Time in collectives so far.
    pub(super) fn time(&self) -> Duration {
        self.time.get()
    }

    /// Adds time in a collective.
    pub(super) fn add_time(&self, time: Duration) {
        self.time.set(self.time.get() + time);
    }

    /// Records collectives in `progress` from now on.
    pub(super) fn record_in(&self, progress: &Arc<Progress>) {
        let _ = self.progress.set(progress.clone());
    }

    /// Records collectives in the trace of `recorder` while that is on.
    pub(super) fn trace_in(&self, recorder: &Arc<Recorder>) {
        let _ = self.recorder.set(recorder.clone());
    }

    /// The recorder, while a trace is on.
    pub(super) fn recorder(&self) -> Option<&Recorder> {
        self.recorder.get().map(|recorder| &**recorder).filter(|recorder| recorder.is_on())
    }

    /// Takes note of an asynchronous collective; `begin` is when it was started, in a trace.
    pub(super) fn started(
        &self,
        number: u64,
        operation: Option<u64>,
        what: (&'static str, u64),
        begin: Option<Instant>,
    ) {
        if operation.is_some() || begin.is_some() {
            self.in_flight.borrow_mut().push_back(InFlight { number, operation, what, begin });
        }
    }

    /// Whether asynchronous collectives are not known to be complete.
    pub(super) fn has_in_flight(&self) -> bool {
        !self.in_flight.borrow().is_empty()
    }

    /// Takes note that the collectives up to this number are complete; without a number, all.
    pub(super) fn finished(&self, last: Option<u64>) {
        let mut in_flight = self.in_flight.borrow_mut();
        while let Some(first) = in_flight.front()
            && last.is_none_or(|last| first.number <= last)
        {
            let InFlight { operation, what: (name, n_bytes), begin, .. } = *first;
            if let (Some(progress), Some(operation)) = (self.progress(), operation) {
                progress.end_operation(operation);
            }
            if let (Some(recorder), Some(begin)) = (self.recorder(), begin) {
                recorder.add(Track::Bucket, name, (begin, Instant::now()), Some(n_bytes));
            }
            in_flight.pop_front();
        }
    }

    /// The watchdog's progress.
    pub(super) fn progress(&self) -> Option<&Progress> {
        self.progress.get().map(|progress| &**progress)
    }
}

#[cfg(test)]
mod tests {
    use ddp_kernels::DType;

    use super::*;
    use crate::ReduceOp;

    #[test]
    fn a_reduce_scatter_and_an_all_gather_send_what_an_all_reduce_does() {
        for n_ranks in [1, 2, 3, 8] {
            let (counter, halves) = (Counter::default(), Counter::default());
            let len = 1000;
            let call = |kind, len| Call { kind, dtype: DType::F32, len };
            counter.add(call(CallKind::AllReduce(ReduceOp::Sum), n_ranks * len), n_ranks);
            halves.add(call(CallKind::ReduceScatter(ReduceOp::Sum), len), n_ranks);
            let scattered = halves.get();
            halves.add(call(CallKind::AllGather, len), n_ranks);
            assert_eq!(counter.get().bytes_sent(), halves.get().bytes_sent());
            assert_eq!(scattered.bytes_sent(), (4 * len * (n_ranks - 1)) as u64);
            let gathered = halves.get().since(&scattered);
            assert_eq!((gathered.n_all_gathers, gathered.n_reduce_scatters), (1, 0));
            assert_eq!(gathered.bytes_sent(), scattered.bytes_sent());
        }
    }
}
