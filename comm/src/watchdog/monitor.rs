//! Judges the ranks by what was heard of them: a pure function of frames and times, so that tests need no sockets and no waiting.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use super::frame::{Frame, Kind};
use crate::phase::Phase;
use crate::progress::Standing;

/// Time for which a rank that is not the hub waits for the verdict of the hub before it ends by itself.
pub(super) const VERDICT_WAIT: Duration = Duration::from_secs(1);
/// Time that a rank that has announced a failure may take to end the job.
const FAILURE_WAIT: Duration = Duration::from_secs(3);
/// A step may take this many times the median.
const STEP_FACTOR: f64 = 20.0;
/// Times of steps of which the median is taken.
const N_STEP_TIMES: usize = 101;
/// Fewer times than this say little: the first steps load libraries, compile kernels and capture graphs.
const MIN_STEP_TIMES: usize = 3;
/// Longest time without progress in the first steps.
const FIRST_STEPS_LIMIT: Duration = Duration::from_secs(600);

/// Limits of the watchdog.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limits {
    /// Between two heartbeats of a rank.
    pub(super) interval: Duration,
    /// Silence after which a rank is lost, in addition to two intervals: a pause of this length trips nothing, wherever it falls
    /// between two heartbeats.
    pub(super) timeout: Duration,
}

impl Limits {
    fn silence(&self) -> Duration {
        self.timeout + 2 * self.interval
    }
}

/// Longest time without progress of any rank, for phases other than training.
fn stall_limit(phase: Phase) -> Duration {
    Duration::from_secs(match phase {
        Phase::Start => 1800,
        Phase::Step => 60,
        Phase::Doctor => 30,
        Phase::Evaluation | Phase::Checkpoint | Phase::ReplicaCheck | Phase::End | Phase::Prediction => 600,
    })
}

/// Part of a rank in the watchdog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Rank 0: connected to all ranks, judges and reports.
    Hub,
    /// Connected to all ranks too; judges and reports if rank 0 is lost.
    Deputy,
    /// Connected to these two.
    Leaf,
}

/// The way in which ranks were lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// The connection was closed without a goodbye.
    Died,
    /// Nothing was heard of it.
    Silent,
    /// It announced a failure, and the job did not end.
    FailedAndStayed,
    /// It ends with an error of its own, and lets the others save before.
    Withdrew,
    /// No rank makes progress.
    Stalled,
}

/// Finding of the monitor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) cause: Cause,
    /// The lost ranks; of a stall those that are behind the others, none if all are at the same place.
    pub(super) ranks: Vec<usize>,
    /// Time since the first of them was last heard of, or since the last progress.
    pub(super) since: Duration,
}

/// A rank that this one is connected to.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) standing: Option<Standing>,
    pub(super) seen: Instant,
    /// When its standing last changed.
    pub(super) moved: Instant,
    /// When its connection was closed.
    closed: Option<Instant>,
    /// When it announced a failure, and the error.
    pub(super) failing: Option<(Instant, String)>,
    /// When it withdrew, and the error.
    pub(super) withdrawn: Option<(Instant, String)>,
    /// Whether it can save after that.
    holds_state: bool,
    /// Whether it has aborted its communicator without the others.
    pub(super) aborts_alone: bool,
}

/// Judges the ranks that this one is connected to.
#[derive(Debug)]
pub(super) struct Monitor {
    role: Role,
    limits: Limits,
    pub(super) peers: BTreeMap<usize, Peer>,
    own: Standing,
    pub(super) own_moved: Instant,
    steps: StepTimes,
}

impl Monitor {
    pub(super) fn new(role: Role, limits: Limits, own: Standing, now: Instant) -> Self {
        Monitor {
            role,
            limits,
            peers: BTreeMap::new(),
            steps: StepTimes::new(own.step, now),
            own,
            own_moved: now,
        }
    }

    /// Watches a rank from now on.
    pub(super) fn join(&mut self, rank: usize, now: Instant) {
        let peer = Peer {
            standing: None,
            seen: now,
            moved: now,
            closed: None,
            failing: None,
            withdrawn: None,
            holds_state: true,
            aborts_alone: false,
        };
        self.peers.insert(rank, peer);
    }

    /// Takes note of a frame.
    pub(super) fn hear(&mut self, frame: Frame, now: Instant) {
        let Some(peer) = self.peers.get_mut(&frame.rank) else { return };
        peer.seen = now;
        if peer.standing.as_ref() != Some(&frame.standing) {
            peer.moved = now;
            peer.standing = Some(frame.standing);
        }
        match frame.kind {
            Kind::Goodbye => drop(self.peers.remove(&frame.rank)),
            Kind::Failing => peer.failing = Some((now, frame.text)),
            Kind::Withdraws | Kind::StopsToSave => {
                peer.holds_state = frame.kind == Kind::StopsToSave;
                peer.withdrawn = Some((now, frame.text));
            }
            Kind::AbortsAlone => peer.aborts_alone = true,
            Kind::Hello
            | Kind::Welcome
            | Kind::Heartbeat
            | Kind::Verdict
            | Kind::Withdrawal
            | Kind::Operations
            | Kind::Offer
            | Kind::Save
            | Kind::Saved
            | Kind::Closed
            | Kind::Abort => {}
        }
    }

    /// Takes note of a closed connection.
    pub(super) fn close(&mut self, rank: usize, now: Instant) {
        if let Some(peer) = self.peers.get_mut(&rank) {
            peer.closed.get_or_insert(now);
        }
    }

    /// Starts all limits anew: this thread did not run for a while, so it cannot judge the others.
    pub(super) fn reset(&mut self, now: Instant) {
        self.own_moved = now;
        for peer in self.peers.values_mut() {
            peer.seen = now;
            peer.moved = now;
            peer.closed = peer.closed.map(|_| now);
            for (since, _) in [&mut peer.failing, &mut peer.withdrawn].into_iter().flatten() {
                *since = now;
            }
        }
    }

    /// Judges the ranks at this moment.
    pub(super) fn judge(&mut self, own: Standing, now: Instant) -> Option<Finding> {
        self.steps.note(own.step, now);
        if own != self.own {
            self.own = own;
            self.own_moved = now;
        }
        self.died(now).or_else(|| self.silent(now)).or_else(|| self.stalled(now))
    }

    fn died(&self, now: Instant) -> Option<Finding> {
        let (rank, peer) = self.peers.iter().find(|(rank, peer)| {
            // Rank 0 leads the save after its own withdrawal, if it can.
            let leads = **rank == 0 && peer.withdrawn.is_some() && peer.holds_state && peer.closed.is_none();
            let is_first = self.reports_loss_of(**rank) && !leads;
            let wait = if is_first { Duration::ZERO } else { VERDICT_WAIT };
            match (&peer.withdrawn, &peer.failing, peer.closed) {
                (Some((since, _)), ..) => now - *since >= wait,
                (None, Some((since, _)), _) => now - *since >= FAILURE_WAIT + wait,
                (None, None, Some(since)) => now - since >= wait,
                (None, None, None) => false,
            }
        })?;
        let cause = match (&peer.withdrawn, &peer.failing) {
            (Some(_), _) => Cause::Withdrew,
            (None, Some(_)) => Cause::FailedAndStayed,
            (None, None) => Cause::Died,
        };
        Some(Finding { cause, ranks: vec![*rank], since: now - peer.seen })
    }

    fn silent(&self, now: Instant) -> Option<Finding> {
        let has_ended = |peer: &Peer| peer.failing.is_some() || !peer.holds_state;
        let silent = |peer: &Peer| if has_ended(peer) { Duration::ZERO } else { now - peer.seen };
        let limit = self.limits.silence();
        self.peers.iter().find(|(rank, peer)| {
            let wait = if self.reports_loss_of(**rank) { Duration::ZERO } else { VERDICT_WAIT };
            silent(peer) >= limit + wait
        })?;
        // Ranks of one host fall silent together, up to an interval.
        let lost = self.peers.iter().filter(|(_, peer)| silent(peer) >= self.limits.timeout);
        let since = lost.clone().map(|(_, peer)| silent(peer)).max().unwrap_or_default();
        Some(Finding { cause: Cause::Silent, ranks: lost.map(|(rank, _)| *rank).collect(), since })
    }

    /// Only the hub judges progress. While any rank makes some, the others may wait for it.
    fn stalled(&self, now: Instant) -> Option<Finding> {
        if self.role != Role::Hub || self.peers.is_empty() {
            return None;
        }
        let standings = || {
            let peers = self.peers.iter().filter_map(|(rank, peer)| Some((*rank, peer.standing.as_ref()?)));
            std::iter::once((0, &self.own)).chain(peers)
        };
        let limit = standings().map(|(_, standing)| match standing.phase {
            Phase::Step => self.steps.stall_limit(),
            phase => stall_limit(phase),
        });
        let moved = self.peers.values().map(|peer| peer.moved).chain([self.own_moved]).max()?;
        let since = now - moved;
        if since < limit.max()? {
            return None;
        }
        let behind = standings().map(|(_, standing)| standing.n_collectives).min()?;
        let is_level = standings().all(|(_, standing)| standing.n_collectives == behind);
        let behind = standings().filter(|(_, standing)| !is_level && standing.n_collectives == behind);
        Some(Finding { cause: Cause::Stalled, ranks: behind.map(|(rank, _)| rank).collect(), since })
    }

    /// Whether this rank is the one that reports the loss of `rank`, at once.
    fn reports_loss_of(&self, rank: usize) -> bool {
        match self.role {
            Role::Hub => true,
            Role::Deputy => rank == 0,
            Role::Leaf => false,
        }
    }

    /// Whether this rank can't lead the save of the others any more.
    pub(super) fn is_out(&self, rank: usize) -> bool {
        self.peers
            .get(&rank)
            .is_none_or(|peer| peer.closed.is_some() || peer.failing.is_some() || peer.withdrawn.is_some())
    }

    /// The ranks that have withdrawn and can't save.
    pub(super) fn without_state(&self) -> impl Iterator<Item = usize> {
        self.peers.iter().filter(|(_, peer)| !peer.holds_state).map(|(rank, _)| *rank)
    }

    pub(super) fn own(&self) -> &Standing {
        &self.own
    }

    /// The median time of this rank's last steps.
    pub(super) fn step_time(&self) -> Duration {
        self.steps.median()
    }
}

/// Times of this rank's steps, as far as the watchdog's ticks show them.
#[derive(Debug)]
struct StepTimes {
    last_step: u64,
    /// Time at which this rank was first seen in that step.
    since: Instant,
    times: VecDeque<Duration>,
}

impl StepTimes {
    fn new(step: u64, now: Instant) -> Self {
        StepTimes { last_step: step, since: now, times: VecDeque::with_capacity(N_STEP_TIMES) }
    }

    fn note(&mut self, step: u64, now: Instant) {
        let StepTimes { last_step: last, since, .. } = *self;
        if step == last {
            return;
        }
        if last > 0 && step > last {
            if self.times.len() == N_STEP_TIMES {
                self.times.pop_front();
            }
            self.times.push_back((now - since).div_f64((step - last) as f64));
        }
        (self.last_step, self.since) = (step, now);
    }

    /// Longest time without progress in a step.
    fn stall_limit(&self) -> Duration {
        if self.times.len() < MIN_STEP_TIMES {
            return FIRST_STEPS_LIMIT;
        }
        stall_limit(Phase::Step).max(self.median().mul_f64(STEP_FACTOR))
    }

    fn median(&self) -> Duration {
        let mut times = Vec::from_iter(self.times.iter().copied());
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Call;
    use crate::progress::Progress;

    const LIMITS: Limits = Limits { interval: Duration::from_millis(500), timeout: Duration::from_secs(1) };

    /// A monitor of ranks 0 to 3 on rank `own`, and a clock.
    struct Bench {
        monitor: Monitor,
        progress: Progress,
        start: Instant,
    }

    impl Bench {
        fn new(own: usize, role: Role) -> Self {
            let (progress, start) = (Progress::new(), Instant::now());
            let mut monitor = Monitor::new(role, LIMITS, progress.standing(), start);
            (0..4).filter(|rank| *rank != own).for_each(|rank| monitor.join(rank, start));
            Bench { monitor, progress, start }
        }

        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        fn hear(&mut self, rank: usize, ms: u64, kind: Kind, text: &str) {
            let frame = Frame { kind, rank, standing: self.progress.standing(), text: text.to_owned() };
            self.monitor.hear(frame, self.at(ms));
        }

        fn judge(&mut self, ms: u64) -> Option<(Cause, Vec<usize>)> {
            let (own, now) = (self.progress.standing(), self.at(ms));
            self.monitor.judge(own, now).map(|finding| (finding.cause, finding.ranks))
        }
    }

    /// Its rank reports the error; nobody waits for its end.
    #[test]
    fn a_rank_that_withdraws_is_found_at_once() {
        for (own, role, after) in [(0, Role::Hub, 0), (1, Role::Deputy, 1000), (3, Role::Leaf, 1000)] {
            let mut bench = Bench::new(own, role);
            bench.hear(2, 100, Kind::Withdraws, "the disk is full");
            let found = Some((Cause::Withdrew, vec![2]));
            assert_eq!(bench.judge(100 + after), found, "{role:?}");
            assert!(after == 0 || bench.judge(99 + after).is_none(), "{role:?}");
            assert!(bench.monitor.is_out(2) && bench.monitor.without_state().eq([2]), "{role:?}");
        }
        let mut bench = Bench::new(1, Role::Deputy);
        bench.hear(0, 100, Kind::Withdraws, "the disk is full");
        assert_eq!(bench.judge(100), Some((Cause::Withdrew, vec![0])));
        // It leads itself, unless it does not.
        let mut bench = Bench::new(1, Role::Deputy);
        bench.hear(0, 100, Kind::StopsToSave, "the network is down");
        assert_eq!(bench.judge(1099), None);
        assert_eq!(bench.judge(1100), Some((Cause::Withdrew, vec![0])));
    }

    #[test]
    fn a_pause_of_the_timeout_trips_nothing_and_a_longer_one_does() {
        let mut hub = Bench::new(0, Role::Hub);
        for ms in (0..=4000).step_by(500) {
            for rank in [1, 3] {
                hub.hear(rank, ms, Kind::Heartbeat, "");
            }
            // Rank 2 is late by its pause of 1 s, and by an interval.
            if ms == 0 {
                hub.hear(2, ms, Kind::Heartbeat, "");
            }
            if ms < 2000 {
                assert_eq!(hub.judge(ms), None, "{ms} ms");
            }
        }
        assert_eq!(hub.judge(4000), Some((Cause::Silent, vec![2])));
    }

    #[test]
    fn ranks_of_a_lost_host_are_named_together() {
        let mut hub = Bench::new(0, Role::Hub);
        hub.hear(2, 300, Kind::Heartbeat, "");
        for ms in [500, 1000, 1500, 2000] {
            hub.hear(1, ms, Kind::Heartbeat, "");
        }
        assert_eq!(hub.judge(1900), None);
        assert_eq!(hub.judge(2000), Some((Cause::Silent, vec![2, 3])));
    }

    #[test]
    fn a_closed_connection_is_a_death_unless_there_was_a_goodbye() {
        let mut hub = Bench::new(0, Role::Hub);
        hub.hear(1, 10, Kind::Goodbye, "");
        hub.monitor.close(1, hub.at(11));
        assert_eq!(hub.judge(20), None);
        hub.monitor.close(3, hub.at(21));
        assert_eq!(hub.judge(21), Some((Cause::Died, vec![3])));
    }

    #[test]
    fn a_rank_that_announced_a_failure_may_end_the_job() {
        let mut hub = Bench::new(0, Role::Hub);
        for rank in 1..4 {
            hub.hear(rank, 2000, Kind::Heartbeat, "");
        }
        hub.hear(2, 2000, Kind::Failing, "disk full");
        hub.monitor.close(2, hub.at(2100));
        assert_eq!(hub.judge(2200), None);
        for rank in [1, 3] {
            hub.hear(rank, 5000, Kind::Heartbeat, "");
        }
        assert_eq!(hub.judge(5000), Some((Cause::FailedAndStayed, vec![2])));
    }

    #[test]
    fn the_deputy_reports_the_loss_of_rank_0_and_others_wait_for_a_verdict() {
        for (role, own, at_once) in [(Role::Deputy, 1, true), (Role::Leaf, 3, false)] {
            let mut bench = Bench::new(own, role);
            bench.monitor.close(0, bench.at(100));
            let found = Some((Cause::Died, vec![0]));
            assert_eq!(bench.judge(100), found.clone().filter(|_| at_once));
            assert_eq!(bench.judge(1100), found);
        }
        let mut deputy = Bench::new(1, Role::Deputy);
        deputy.monitor.close(2, deputy.at(100));
        assert_eq!(deputy.judge(1000), None);
        assert_eq!(deputy.judge(1100), Some((Cause::Died, vec![2])));
    }

    #[test]
    fn a_thread_that_was_late_starts_anew() {
        let mut hub = Bench::new(0, Role::Hub);
        hub.monitor.reset(hub.at(60_000));
        assert_eq!(hub.judge(60_000), None);
        assert_eq!(hub.judge(61_900), None);
        assert_eq!(hub.judge(62_000), Some((Cause::Silent, vec![1, 2, 3])));
    }

    /// Heartbeats of all ranks until `ms`, with nothing new in them.
    fn beat(hub: &mut Bench, ms: u64) -> Option<(Cause, Vec<usize>)> {
        for rank in 1..4 {
            let standing =
                hub.monitor.peers[&rank].standing.clone().unwrap_or_else(|| hub.progress.standing());
            let frame = Frame { kind: Kind::Heartbeat, rank, standing, text: String::new() };
            hub.monitor.hear(frame, hub.at(ms));
        }
        hub.judge(ms)
    }

    /// Rank 0 in step 4, which began after 3 s.
    fn hub_in_training() -> Bench {
        let mut hub = Bench::new(0, Role::Hub);
        for step in 1..=4 {
            hub.progress.set_step(step);
            assert_eq!(beat(&mut hub, 1_000 * (step - 1)), None);
        }
        hub
    }

    #[test]
    fn the_first_steps_have_a_longer_limit() {
        let mut hub = Bench::new(0, Role::Hub);
        for (step, ms) in [(1, 0), (2, 590_000), (3, 1_180_000)] {
            hub.progress.set_step(step);
            assert_eq!(beat(&mut hub, ms), None);
        }
        assert_eq!(beat(&mut hub, 1_779_000), None);
        assert_eq!(beat(&mut hub, 1_780_000), Some((Cause::Stalled, vec![])));
    }

    #[test]
    fn a_stall_names_the_ranks_that_are_behind() {
        let mut hub = hub_in_training();
        hub.hear(2, 3_000, Kind::Heartbeat, "");
        hub.progress.enter(Call::BARRIER);
        hub.hear(1, 3_000, Kind::Heartbeat, "");
        hub.hear(3, 3_000, Kind::Heartbeat, "");
        assert_eq!(hub.judge(3_000), None);
        assert_eq!(beat(&mut hub, 62_000), None);
        assert_eq!(beat(&mut hub, 63_000), Some((Cause::Stalled, vec![2])));
        // All at the same place: nobody is to blame.
        let mut level = hub_in_training();
        assert_eq!(beat(&mut level, 62_000), None);
        assert_eq!(beat(&mut level, 63_000), Some((Cause::Stalled, vec![])));
    }

    #[test]
    fn slow_steps_and_other_phases_have_longer_limits() {
        let mut hub = Bench::new(0, Role::Hub);
        for step in 1..=10 {
            hub.progress.set_step(step);
            assert_eq!(beat(&mut hub, 10_000 * step), None);
        }
        // The median is 10 s.
        assert_eq!(beat(&mut hub, 299_000), None);
        assert_eq!(beat(&mut hub, 300_000), Some((Cause::Stalled, vec![])));
        hub.progress.set_phase(Phase::Checkpoint);
        assert_eq!(beat(&mut hub, 301_000), None);
        assert_eq!(beat(&mut hub, 900_000), None);
        assert_eq!(beat(&mut hub, 901_000), Some((Cause::Stalled, vec![])));
        // One rank at work is enough.
        hub.progress.tick();
        assert_eq!(beat(&mut hub, 902_000), None);
    }
}
