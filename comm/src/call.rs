//! The description of a collective, which ranks compare before they use any data.

use std::fmt;

use ddp_kernels::DType;
use tracing::{Span, trace_span};

/// A reduction over ranks.
///
/// Sums are taken in rank order in host memory, and in NCCL's own order between GPUs. Sums of bf16 and f16 are computed in f32
/// and rounded after each rank; sums of integers wrap. The result of `Max` and `Min` is unspecified if an element is NaN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReduceOp {
    /// Sum.
    Sum,
    /// Maximum.
    Max,
    /// Minimum.
    Min,
}

impl fmt::Display for ReduceOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            ReduceOp::Sum => "sum",
            ReduceOp::Max => "max",
            ReduceOp::Min => "min",
        })
    }
}

/// The kind of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// Every rank gets the reduction of all ranks' buffers.
    AllReduce(ReduceOp),
    /// Every rank gets the buffer of one rank.
    Broadcast {
        /// The rank whose buffer it is.
        root: usize,
    },
    /// Rank `r` gets the reduction of all ranks' shards `r`.
    ReduceScatter(ReduceOp),
    /// Every rank gets all ranks' buffers, in rank order.
    AllGather,
    /// Every rank gets the buffer of the rank before it; rank 0 that of the last rank.
    Shift,
    /// No rank continues before all ranks have entered.
    Barrier,
    /// One rank's buffer goes to another; only these two take part.
    Send {
        /// The receiving rank.
        to: usize,
    },
    /// The other end of [`CallKind::Send`].
    Receive {
        /// The rank whose buffer it is.
        from: usize,
    },
}

/// One collective as one rank entered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Call {
    /// The kind of the collective.
    pub kind: CallKind,
    /// Type of the elements.
    pub dtype: DType,
    /// Elements: of the buffer that is reduced or broadcast, or of one shard in a reduce-scatter or all-gather.
    pub len: usize,
}

impl Call {
    /// A barrier.
    pub(crate) const BARRIER: Self = Call { kind: CallKind::Barrier, dtype: DType::I64, len: 0 };

    /// The name of its kind.
    pub fn name(&self) -> &'static str {
        match self.kind {
            CallKind::AllReduce(_) => "all_reduce",
            CallKind::Broadcast { .. } => "broadcast",
            CallKind::ReduceScatter(_) => "reduce_scatter",
            CallKind::AllGather => "all_gather",
            CallKind::Shift => "shift",
            CallKind::Barrier => "barrier",
            CallKind::Send { .. } => "send",
            CallKind::Receive { .. } => "receive",
        }
    }

    /// Bytes of its buffer; in a reduce-scatter or all-gather, of the one that holds the shards of all ranks.
    pub fn n_bytes(&self, world_size: usize) -> u64 {
        let n_shards = match self.kind {
            CallKind::ReduceScatter(_) | CallKind::AllGather => world_size,
            _ => 1,
        };
        (self.len as u64).saturating_mul((n_shards * self.dtype.size_bytes()) as u64)
    }

    /// The span of a collective, or of starting one that is asynchronous.
    pub(crate) fn span(&self) -> Span {
        trace_span!("collective", call = %self)
    }

    /// Encodes the call as two words for ranks to exchange; different calls have different words.
    pub(crate) fn to_words(self) -> [u64; 2] {
        let op_code = |op| match op {
            ReduceOp::Sum => 0,
            ReduceOp::Max => 1,
            ReduceOp::Min => 2,
        };
        let (kind, argument) = match self.kind {
            CallKind::AllReduce(op) => (1, op_code(op)),
            CallKind::Broadcast { root } => (2, root as u64),
            CallKind::ReduceScatter(op) => (3, op_code(op)),
            CallKind::AllGather => (4, 0),
            CallKind::Barrier => (5, 0),
            CallKind::Send { to } => (6, to as u64),
            CallKind::Receive { from } => (7, from as u64),
            CallKind::Shift => (8, 0),
        };
        let dtype = match self.dtype {
            DType::F32 => 0,
            DType::F64 => 1,
            DType::I64 => 2,
            DType::BF16 => 3,
            DType::U8 => 4,
            DType::F16 => 5,
            DType::I32 => 6,
            DType::Bool => 7,
        };
        [kind | dtype << 8 | argument << 16, self.len as u64]
    }

    /// Decodes the words of [`Call::to_words`]; `None` for any others.
    pub(crate) fn from_words([word, len]: [u64; 2]) -> Option<Self> {
        let argument = word >> 16;
        let op = match argument {
            0 => Some(ReduceOp::Sum),
            1 => Some(ReduceOp::Max),
            2 => Some(ReduceOp::Min),
            _ => None,
        };
        let kind = match word & 0xff {
            1 => CallKind::AllReduce(op?),
            2 => CallKind::Broadcast { root: argument as usize },
            3 => CallKind::ReduceScatter(op?),
            4 => CallKind::AllGather,
            5 => CallKind::Barrier,
            6 => CallKind::Send { to: argument as usize },
            7 => CallKind::Receive { from: argument as usize },
            8 => CallKind::Shift,
            _ => return None,
        };
        let dtype = match word >> 8 & 0xff {
            0 => DType::F32,
            1 => DType::F64,
            2 => DType::I64,
            3 => DType::BF16,
            4 => DType::U8,
            5 => DType::F16,
            6 => DType::I32,
            7 => DType::Bool,
            _ => return None,
        };
        Some(Call { kind, dtype, len: len as usize })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, dtype) = (self.len, self.dtype);
        match self.kind {
            CallKind::AllReduce(op) => write!(f, "all_reduce({op}) of {len} {dtype}"),
            CallKind::Broadcast { root } => {
                write!(f, "broadcast from rank {root} of {len} {dtype}")
            }
            CallKind::ReduceScatter(op) => {
                write!(f, "reduce_scatter({op}) to {len} {dtype} per rank")
            }
            CallKind::AllGather => write!(f, "all_gather of {len} {dtype} per rank"),
            CallKind::Shift => write!(f, "shift of {len} {dtype} to the next rank"),
            CallKind::Barrier => f.write_str("barrier"),
            CallKind::Send { to } => write!(f, "send to rank {to} of {len} {dtype}"),
            CallKind::Receive { from } => write!(f, "receive from rank {from} of {len} {dtype}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_its_own_words() {
        use CallKind::{AllGather, AllReduce, Barrier, Broadcast, Receive, ReduceScatter, Send, Shift};
        use ReduceOp::{Max, Min, Sum};
        let kinds = [
            AllReduce(Sum),
            AllReduce(Max),
            AllReduce(Min),
            Broadcast { root: 0 },
            Broadcast { root: 70_000 },
            ReduceScatter(Sum),
            ReduceScatter(Min),
            AllGather,
            Shift,
            Barrier,
            Send { to: 1 },
            Receive { from: 1 },
        ];
        let mut seen = std::collections::HashSet::new();
        for kind in kinds {
            for dtype in DType::ALL {
                for len in [0, 1, usize::MAX] {
                    let call = Call { kind, dtype, len };
                    assert_eq!(Call::from_words(call.to_words()), Some(call));
                    assert!(seen.insert(call.to_words()));
                }
            }
        }
        assert_eq!(Call::from_words([0, 0]), None);
    }
}
