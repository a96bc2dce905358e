//! The death certificate: one paragraph about a lost rank, and the places of the others.

use std::time::{Duration, Instant};

use super::flight::FlightOperation;
use super::monitor::{Cause, Finding, Monitor};
use crate::progress::Standing;

/// A rank that was heard of since then needs no remark.
const RECENT: Duration = Duration::from_secs(1);

/// A rank's host and process, which the ranks exchange when the watchdog starts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) host: String,
    pub(super) pid: u32,
}

/// The report of a lost rank, as one of the others writes it.
#[derive(Debug, Clone)]
pub struct Certificate {
    /// The lost rank, on the rank that reports for all on stderr and in the run's events; `None` on the others. Of a stall without
    /// a culprit, the rank that reports.
    pub reports: Option<usize>,
    /// One paragraph: who, where, since when, its last error, the places of the others.
    pub text: String,
    /// The step that the lost rank was at, as in the text; `None` before the first, and on ranks that do not report.
    pub step: Option<u64>,
    /// The device of the rank that writes this; empty before it has one.
    pub device: String,
    /// The last operations of this rank, one per line.
    pub last_operations: String,
    /// The last operations of all ranks that have answered in time, oldest first, on the rank that reports.
    pub flight: Vec<FlightOperation>,
}

/// Writes the paragraph about `finding` on rank `own`.
pub(super) fn paragraph(
    finding: &Finding,
    monitor: &Monitor,
    own: usize,
    identities: &[Identity],
    now: Instant,
) -> String {
    let peer = |rank: usize| monitor.peers.get(&rank);
    let standing = |rank: usize| match rank {
        rank if rank == own => Some(monitor.own()),
        rank => peer(rank)?.standing.as_ref(),
    };
    let name = |rank: usize| {
        let Identity { host, pid } = &identities[rank];
        let device = standing(rank).map(|standing| standing.device.as_str()).filter(|name| !name.is_empty());
        let device = device.map_or_else(String::new, |device| format!(", device {device}"));
        format!("rank {rank} (host {host}, pid {pid}{device})")
    };
    let place = |rank: usize| {
        standing(rank).map_or_else(|| "before its first heartbeat".to_owned(), Standing::to_string)
    };
    let since = seconds(finding.since);
    let mut text = match (&finding.ranks[..], finding.cause) {
        (ranks @ [first, ..], cause) => {
            let mut text = name(*first);
            text += &match cause {
                Cause::Died => {
                    format!(
                        " died: its connection closed without a goodbye. Last heard of {since} ago, it was"
                    )
                }
                Cause::Silent => {
                    format!(" is frozen or cut off: no heartbeat for {since}. It was")
                }
                Cause::Withdrew => " ended with an error of its own. It was".to_owned(),
                Cause::FailedAndStayed => format!(" failed {since} ago, and the job did not end. It was"),
                Cause::Stalled => {
                    format!(
                        " is stuck: no rank made progress for {since}, and the others are ahead of it. It is"
                    )
                }
            };
            text += &format!(" {}.", place(*first));
            if ranks.len() > 1 {
                let others: Vec<_> = ranks[1..].iter().map(|rank| name(*rank)).collect();
                text += &format!(" The same holds for {}.", others.join(", "));
            }
            if let Some(host) = cut_off(ranks, own, identities) {
                text += &format!(
                    " All other hosts are silent: probably this host, {host}, is the one that is cut off."
                );
            }
            let error = peer(*first).and_then(|peer| peer.withdrawn.as_ref().or(peer.failing.as_ref()));
            if let Some((_, error)) = error {
                text += &format!(" Its last error: {}.", error.trim_end_matches('.').replace('\n', "; "));
            }
            text
        }
        ([], _) => format!(
            "the job is stuck: no rank made progress for {since}, and all ranks are at the same place."
        ),
    };
    let others = (0..identities.len()).filter(|rank| !finding.ranks.contains(rank));
    let others = others.map(|rank| {
        let heard = match peer(rank) {
            _ if rank == own => String::new(),
            Some(peer) if now - peer.seen < RECENT => String::new(),
            Some(peer) => format!(", last heard of {} ago", seconds(now - peer.seen)),
            None => ", not connected to the rank that reports".to_owned(),
        };
        (
            rank,
            format!(
                "{}{heard}",
                if standing(rank).is_some() || rank == own {
                    place(rank)
                } else {
                    "at an unknown place".to_owned()
                }
            ),
        )
    });
    for (ranks, place) in grouped(others) {
        text += &format!(" {ranks}: {place}.");
    }
    text
}

/// This host, if all ranks of the others are lost, and there are several others.
fn cut_off<'a>(lost: &[usize], own: usize, identities: &'a [Identity]) -> Option<&'a str> {
    let host = &identities[own].host;
    let of_others = || (0..identities.len()).filter(|rank| identities[*rank].host != *host);
    let is_alone = of_others().eq(lost.iter().copied());
    let has_several = of_others().any(|rank| identities[rank].host != identities[lost[0]].host);
    (is_alone && has_several).then_some(host)
}

/// Joins neighboring ranks at the same place: a job may have thousands.
fn grouped(places: impl Iterator<Item = (usize, String)>) -> Vec<(String, String)> {
    let mut groups: Vec<(usize, usize, String)> = Vec::new();
    for (rank, place) in places {
        match groups.last_mut() {
            Some((_, last, same)) if *last + 1 == rank && *same == place => *last = rank,
            _ => groups.push((rank, rank, place)),
        }
    }
    let ranks = |first, last| {
        if first == last { format!("Rank {first}") } else { format!("Ranks {first} to {last}") }
    };
    groups.into_iter().map(|(first, last, place)| (ranks(first, last), place)).collect()
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::super::frame::{Frame, Kind};
    use super::super::monitor::{Limits, Role};
    use super::*;
    use crate::Call;
    use crate::progress::Progress;

    #[test]
    fn the_paragraph_names_who_where_since_when_and_the_others() {
        let limits = Limits { interval: Duration::from_millis(500), timeout: Duration::from_secs(10) };
        let progress = Progress::new();
        progress.set_device("cuda:0".to_owned());
        progress.set_step(41);
        progress.enter(Call::BARRIER);
        let start = Instant::now();
        let mut monitor = Monitor::new(Role::Hub, limits, progress.standing(), start);
        for rank in 1..4 {
            monitor.join(rank, start);
            let (standing, text) = (progress.standing(), String::new());
            monitor.hear(Frame { kind: Kind::Heartbeat, rank, standing, text }, start);
        }
        let text = "disk full\nhint: free space.".to_owned();
        monitor.hear(Frame { kind: Kind::Failing, rank: 2, standing: progress.standing(), text }, start);
        let identities: Vec<_> =
            (0..5).map(|rank| Identity { host: format!("h{}", rank / 2), pid: 100 + rank }).collect();
        let since = Duration::from_millis(3200);
        let of = |cause, ranks: &[usize]| {
            let finding = Finding { cause, ranks: ranks.to_vec(), since };
            paragraph(&finding, &monitor, 0, &identities, start)
        };
        let place = "at step 41, in phase training, inside collective 1 (barrier)";
        assert_eq!(
            of(Cause::Silent, &[1]),
            format!(
                "rank 1 (host h0, pid 101, device cuda:0) is frozen or cut off: no heartbeat for 3.2 s. It was {place}. \
                 Rank 0: {place}. Ranks 2 to 3: {place}. Rank 4: at an unknown place, not connected to the rank that reports."
            )
        );
        let failed = of(Cause::FailedAndStayed, &[2]);
        assert!(failed.contains("rank 2 (host h1, pid 102, device cuda:0) failed 3.2 s ago"), "{failed}");
        assert!(failed.contains("Its last error: disk full; hint: free space."), "{failed}");
        let alone = of(Cause::Silent, &[2, 3, 4]);
        assert!(alone.contains("All other hosts are silent: probably this host, h0, is the one"), "{alone}");
        let host = of(Cause::Silent, &[2, 3]);
        assert!(!host.contains("probably"), "{host}");
        assert!(host.contains("The same holds for rank 3 (host h1, pid 103, device cuda:0)."), "{host}");
        assert!(
            of(Cause::Stalled, &[]).starts_with("the job is stuck: no rank made progress for 3.2 s, and")
        );
    }
}
