//! Votes of the ranks that travel with each step: to stop, to save a checkpoint, to compare their times, and to trace
//! steps.

/// Votes that the ranks exchange with a step: sums of small whole numbers, exact in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Votes {
    /// Ranks that want to stop.
    pub stop: u64,
    /// Whether rank 0's clock says that a checkpoint is due.
    pub checkpoint: bool,
    /// Whether rank 0's clock says that a comparison of the ranks is due.
    pub comparison: bool,
    /// Whether rank 0 was asked for a trace.
    pub trace: bool,
}

/// Weight of a checkpoint vote, above any number of ranks.
const CHECKPOINT_VOTE: u32 = 1 << 20;
/// Weight of a vote for a comparison, above that of a checkpoint vote.
const COMPARISON_VOTE: u32 = 1 << 21;
/// Weight of a vote for a trace, above that of a comparison vote.
const TRACE_VOTE: u32 = 1 << 22;

impl Votes {
    /// Encodes one rank's vote: whether to stop, and what else it `wants`. Only one rank may want anything.
    pub(crate) fn from_rank(stops: bool, wants: Votes) -> u32 {
        let vote = |is_cast: bool, weight: u32| if is_cast { weight } else { 0 };
        vote(stops, 1)
            + vote(wants.checkpoint, CHECKPOINT_VOTE)
            + vote(wants.comparison, COMPARISON_VOTE)
            + vote(wants.trace, TRACE_VOTE)
    }

    /// Combines these votes with `other`.
    #[must_use]
    pub(crate) fn and(self, other: Votes) -> Self {
        Votes {
            stop: self.stop.max(other.stop),
            checkpoint: self.checkpoint || other.checkpoint,
            comparison: self.comparison || other.comparison,
            trace: self.trace || other.trace,
        }
    }

    /// Decodes the sum of all ranks' votes.
    pub(crate) fn from_sum(sum: u64) -> Self {
        let has = |weight: u32| sum & u64::from(weight) != 0;
        Votes {
            stop: sum % u64::from(CHECKPOINT_VOTE),
            checkpoint: has(CHECKPOINT_VOTE),
            comparison: has(COMPARISON_VOTE),
            trace: has(TRACE_VOTE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_survive_the_sum() {
        for (n_stops, checkpoint, comparison, trace) in [
            (0, false, false, false),
            (1, false, true, false),
            (4096, true, true, true),
            (0, true, false, true),
            (5000, false, false, true),
        ] {
            let votes = Votes { stop: 0, checkpoint, comparison, trace };
            let of = |rank: u64| {
                Votes::from_rank(rank < n_stops, if rank == 0 { votes } else { Votes::default() })
            };
            let sum: u32 = (0..5000).map(of).sum();
            assert_eq!(Votes::from_sum(u64::from(sum)), Votes { stop: n_stops, ..votes });
            assert_eq!(sum as f32 as u32, sum, "exact in f32");
        }
    }
}
