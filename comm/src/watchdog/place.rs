//! The place of a rank in the run, as the watchdog of rank 0 knows it at this moment.

use std::time::{Duration, Instant};

use super::certificate::Identity;
use super::monitor::Monitor;
use crate::Call;
use crate::phase::Phase;
use crate::progress::Standing;

/// The place of a rank.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RankPlace {
    /// The rank.
    pub rank: usize,
    /// Its host.
    pub host: String,
    /// Its process on that host.
    pub pid: u32,
    /// Its device; empty until it has one.
    pub device: String,
    /// Its phase; None of a rank that has left, or that nothing is known of.
    pub phase: Option<Phase>,
    /// The step under way, from 1; 0 before the first.
    pub step: u64,
    /// Collectives that it has entered or started.
    pub n_collectives: u64,
    /// The last one, with its buffer.
    pub collective: Option<String>,
    /// Whether it waits for that one, or for those in flight.
    pub is_inside: bool,
    /// Time for which it has made no progress.
    pub still: Duration,
    /// Time since it was last heard of.
    pub silent: Duration,
}

impl RankPlace {
    /// The place of a rank of this standing, whose names are added.
    fn new(standing: Option<&Standing>, still: Duration, silent: Duration) -> Self {
        let place = RankPlace { still, silent, ..RankPlace::default() };
        let Some(Standing { phase, step, n_collectives, call, is_inside, device, .. }) = standing else {
            return place;
        };
        RankPlace {
            device: device.clone(),
            phase: Some(*phase),
            step: *step,
            n_collectives: *n_collectives,
            collective: Call::from_words(*call).filter(|_| *n_collectives > 0).map(|call| call.to_string()),
            is_inside: *is_inside,
            ..place
        }
    }
}

/// The places of all ranks, as far as the rank `own` of this standing knows them.
pub(super) fn places(
    identities: &[Identity],
    monitor: &Monitor,
    own: (usize, Standing),
    now: Instant,
) -> Vec<RankPlace> {
    let of_rank = |(rank, Identity { host, pid }): (usize, &Identity)| {
        let (standing, moved, seen) = match monitor.peers.get(&rank) {
            _ if rank == own.0 => (Some(&own.1), monitor.own_moved, now),
            Some(peer) => (peer.standing.as_ref(), peer.moved, peer.seen),
            None => (None, now, now),
        };
        let [still, silent] = [moved, seen].map(|since| now.saturating_duration_since(since));
        RankPlace { rank, host: host.clone(), pid: *pid, ..RankPlace::new(standing, still, silent) }
    };
    identities.iter().enumerate().map(of_rank).collect()
}
