//! What a rank's collectives have sent so far, as an algorithm counts it that sends no byte twice.

use std::cell::Cell;

use crate::{Call, CallKind};

/// Collectives of one rank, and the bytes that a ring sends for them.
///
/// Counted as the host asks for them: a CUDA graph that is replayed counts once, when it is captured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes times the number of ranks, so that nothing is rounded.
    byte_parts: u64,
    n_ranks: u64,
    /// All-reduces.
    pub n_all_reduces: u64,
    /// Reduce-scatters.
    pub n_reduce_scatters: u64,
    /// All-gathers.
    pub n_all_gathers: u64,
    /// Broadcasts.
    pub n_broadcasts: u64,
    /// Barriers.
    pub n_barriers: u64,
    /// Tensors sent to one rank, or received from one.
    pub n_sends: u64,
}

impl Traffic {
    /// Bytes that this rank has sent over rings of `N` ranks: of a buffer of `B` bytes, `2 (N-1)/N B` in an all-reduce, and
    /// `(N-1)/N B` in a reduce-scatter, an all-gather (`B` is then all ranks' parts) and, on average, a broadcast.
    ///
    /// Source: NVIDIA's nccl-tests, PERFORMANCE.md, "Bandwidth".
    pub fn bytes_sent(&self) -> u64 {
        self.byte_parts / self.n_ranks.max(1)
    }

    /// What has come since an earlier count of the same group.
    pub fn since(&self, earlier: &Traffic) -> Traffic {
        Traffic {
            byte_parts: self.byte_parts - earlier.byte_parts,
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
        let (n, part) = (self.n_ranks, (call.len * call.dtype.size_bytes()) as u64);
        let (count, byte_parts) = match call.kind {
            CallKind::AllReduce(_) => (&mut self.n_all_reduces, 2 * (n - 1) * part),
            CallKind::ReduceScatter(_) => (&mut self.n_reduce_scatters, (n - 1) * part * n),
            CallKind::AllGather => (&mut self.n_all_gathers, (n - 1) * part * n),
            CallKind::Broadcast { .. } => (&mut self.n_broadcasts, (n - 1) * part),
            CallKind::Barrier => (&mut self.n_barriers, 0),
            CallKind::Send { .. } => (&mut self.n_sends, part * n),
            CallKind::Receive { .. } => (&mut self.n_sends, 0),
        };
        *count += 1;
        self.byte_parts += byte_parts;
    }
}

/// A group's count.
#[derive(Debug, Default)]
pub(crate) struct Counter(Cell<Traffic>);

impl Counter {
    /// So far.
    pub(super) fn get(&self) -> Traffic {
        self.0.get()
    }

    /// One more collective.
    pub(super) fn add(&self, call: Call, n_ranks: usize) {
        let mut traffic = self.0.get();
        traffic.add(call, n_ranks);
        self.0.set(traffic);
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
