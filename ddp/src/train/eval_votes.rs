//! Votes of the ranks to stop an evaluation between two batches.
//!
//! All ranks vote after the same batches. The distance between two votes doubles until the slowest rank takes about
//! 0.1 s for it, by times that the ranks exchange with the votes: so all of them compute the same distance.

use std::time::{Duration, Instant};

use ddp_comm::World;

use crate::train::error::Result;
use crate::train::stop_signals::StopSignals;

/// Time between two votes.
const INTERVAL: Duration = Duration::from_millis(100);

/// Reasons to stop an evaluation.
#[derive(Debug, Clone, Copy)]
pub struct Until<'a> {
    /// Ranks that evaluate together.
    pub world: &'a World,
    /// Signals that this rank receives; `None` on all ranks for an evaluation that nothing stops.
    pub signals: Option<&'a StopSignals>,
}

impl<'a> Until<'a> {
    /// The votes of an evaluation of which every rank has at least `n_batches` batches.
    pub(crate) fn votes(self, n_batches: usize) -> EvalVotes<'a> {
        EvalVotes {
            until: self,
            n_batches,
            n_done: 0,
            schedule: VoteSchedule::default(),
            since: Instant::now(),
        }
    }
}

/// Votes during one evaluation, on one rank.
pub(crate) struct EvalVotes<'a> {
    until: Until<'a>,
    /// Batches that every rank has.
    n_batches: usize,
    /// Batches that this rank has done.
    n_done: usize,
    schedule: VoteSchedule,
    /// Last vote, or the start.
    since: Instant,
}

impl EvalVotes<'_> {
    /// Returns whether all ranks stop here. Called after each batch; waits for all ranks where they vote. After the last batch
    /// there is nothing to stop.
    ///
    /// # Errors
    /// Errors of [`Group::all_gather_bytes`](ddp_comm::Group::all_gather_bytes).
    pub(crate) fn stop_after_batch(&mut self) -> Result<bool> {
        self.n_done += 1;
        let Some(signals) = self.until.signals.filter(|_| self.n_done < self.n_batches) else {
            return Ok(false);
        };
        if self.until.world.world_size() == 1 {
            return Ok(signals.received().is_some());
        }
        if self.n_done < self.schedule.next {
            return Ok(false);
        }
        let vote = Vote { stops: signals.received().is_some(), took: self.since.elapsed() };
        let all = self.until.world.group().all_gather_bytes(&vote.to_bytes())?;
        self.since = Instant::now();
        let all: Vec<Vote> = all.iter().map(|bytes| Vote::from_bytes(bytes)).collect();
        self.schedule.advance(all.iter().map(|vote| vote.took).max().unwrap_or_default());
        Ok(all.iter().any(|vote| vote.stops))
    }
}

/// One rank's vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Vote {
    stops: bool,
    /// Time since the rank's last vote.
    took: Duration,
}

impl Vote {
    fn to_bytes(self) -> [u8; 8] {
        let micros = u64::try_from(self.took.as_micros()).unwrap_or(u64::MAX >> 1);
        (micros << 1 | u64::from(self.stops)).to_le_bytes()
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let word = u64::from_le_bytes(bytes.try_into().expect("all ranks run one program"));
        Vote { stops: word & 1 == 1, took: Duration::from_micros(word >> 1) }
    }
}

/// The batches after which the ranks vote.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct VoteSchedule {
    /// Number of the batch after which they vote next, from 1.
    next: usize,
    /// Batches between the last vote and the next.
    interval: usize,
}

impl Default for VoteSchedule {
    fn default() -> Self {
        VoteSchedule { next: 1, interval: 1 }
    }
}

impl VoteSchedule {
    /// Plans the next vote after the last interval took `slowest` on the slowest rank.
    fn advance(&mut self, slowest: Duration) {
        let fitting = self.interval as f64 * INTERVAL.as_secs_f64() / slowest.as_secs_f64().max(1e-9);
        self.interval = (fitting as usize).clamp(1, self.interval.saturating_mul(2));
        self.next = self.next.saturating_add(self.interval);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn votes_are_a_tenth_of_a_second_apart() {
        let mut schedule = VoteSchedule::default();
        let mut votes = Vec::new();
        for _ in 0..7 {
            votes.push(schedule.next);
            schedule.advance(Duration::from_millis(10) * schedule.interval as u32);
        }
        assert_eq!(votes, [1, 3, 7, 15, 25, 35, 45]);
        // A slow batch is not followed by more of them without a vote.
        schedule.advance(Duration::from_secs(5));
        assert_eq!(schedule.interval, 1);
        schedule.advance(Duration::ZERO);
        assert_eq!(schedule.interval, 2);
    }

    #[test]
    fn votes_survive_the_exchange() {
        for vote in
            [Vote { stops: true, took: Duration::from_micros(7) }, Vote { stops: false, took: INTERVAL }]
        {
            assert_eq!(Vote::from_bytes(&vote.to_bytes()), vote);
        }
    }
}
