//! Votes of the ranks that travel with each step: to stop, and to save a checkpoint.

/// Votes that the ranks exchange with a step: sums of small whole numbers, exact in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Votes {
    /// Ranks that want to stop.
    pub stop: u64,
    /// Whether rank 0's clock says that a checkpoint is due.
    pub checkpoint: bool,
}

/// Weight of a checkpoint vote, above any number of ranks.
const CHECKPOINT_VOTE: u32 = 1 << 20;

impl Votes {
    /// Encodes one rank's vote. Only one rank may vote for a checkpoint.
    pub(crate) fn of_rank(stops: bool, wants_checkpoint: bool) -> u32 {
        u32::from(stops) + if wants_checkpoint { CHECKPOINT_VOTE } else { 0 }
    }

    /// Combines these votes with `other`.
    #[must_use]
    pub(crate) fn and(self, other: Votes) -> Self {
        Votes { stop: self.stop.max(other.stop), checkpoint: self.checkpoint || other.checkpoint }
    }

    /// Decodes the sum of all ranks' votes.
    pub(crate) fn from_sum(sum: u64) -> Self {
        let unit = u64::from(CHECKPOINT_VOTE);
        Votes { stop: sum % unit, checkpoint: sum >= unit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_survive_the_sum() {
        for (n_stops, checkpoint) in [(0, false), (1, false), (4096, true), (0, true)] {
            let sum: u32 =
                (0..5000).map(|rank| Votes::of_rank(rank < n_stops, checkpoint && rank == 0)).sum();
            assert_eq!(Votes::from_sum(u64::from(sum)), Votes { stop: n_stops, checkpoint });
            assert_eq!(sum as f32 as u32, sum, "exact in f32");
        }
    }
}
