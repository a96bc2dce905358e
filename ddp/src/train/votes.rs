//! Votes of the ranks that travel with each step: to stop, to save a checkpoint, and to compare their times.

/// Votes that the ranks exchange with a step: sums of small whole numbers, exact in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Votes {
    /// Ranks that want to stop.
    pub stop: u64,
    /// Whether rank 0's clock says that a checkpoint is due.
    pub checkpoint: bool,
    /// Whether rank 0's clock says that a comparison of the ranks is due.
    pub comparison: bool,
}

/// Weight of a checkpoint vote, above any number of ranks.
const CHECKPOINT_VOTE: u32 = 1 << 20;
/// Weight of a vote for a comparison, above that of a checkpoint vote.
const COMPARISON_VOTE: u32 = 1 << 21;

impl Votes {
    /// Encodes one rank's vote. Only one rank may vote for anything but a stop.
    pub(crate) fn of_rank(stops: bool, wants_checkpoint: bool, wants_comparison: bool) -> u32 {
        let vote = |is_cast: bool, weight: u32| if is_cast { weight } else { 0 };
        vote(stops, 1) + vote(wants_checkpoint, CHECKPOINT_VOTE) + vote(wants_comparison, COMPARISON_VOTE)
    }

    /// Combines these votes with `other`.
    #[must_use]
    pub(crate) fn and(self, other: Votes) -> Self {
        Votes {
            stop: self.stop.max(other.stop),
            checkpoint: self.checkpoint || other.checkpoint,
            comparison: self.comparison || other.comparison,
        }
    }

    /// Decodes the sum of all ranks' votes.
    pub(crate) fn from_sum(sum: u64) -> Self {
        let (checkpoint, comparison) = (u64::from(CHECKPOINT_VOTE), u64::from(COMPARISON_VOTE));
        Votes { stop: sum % checkpoint, checkpoint: sum & checkpoint != 0, comparison: sum & comparison != 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_survive_the_sum() {
        for (n_stops, checkpoint, comparison) in
            [(0, false, false), (1, false, true), (4096, true, true), (0, true, false)]
        {
            let of =
                |rank: u64| Votes::of_rank(rank < n_stops, checkpoint && rank == 0, comparison && rank == 0);
            let sum: u32 = (0..5000).map(of).sum();
            assert_eq!(Votes::from_sum(u64::from(sum)), Votes { stop: n_stops, checkpoint, comparison });
            assert_eq!(sum as f32 as u32, sum, "exact in f32");
        }
    }
}
