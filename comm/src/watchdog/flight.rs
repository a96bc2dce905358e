//! The last operations of all ranks before one was lost, gathered over the connections of the watchdog.
//!
//! The rank that reports a loss has sent its verdict; each rank that gets it answers with its operations before it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::frame::{Frame, Kind};
use super::link::Link;
use crate::operations::Operation;
use crate::token::Token;

/// Time for which a rank that reports waits for the answers of the others, and they for their way.
const LIMIT: Duration = Duration::from_millis(300);
/// Time between two looks for answers.
const PAUSE: Duration = Duration::from_millis(5);

/// One of the last operations of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlightOperation {
    /// The rank.
    pub rank: usize,
    /// The step under way; 0 before the first.
    pub step: u64,
    /// The collective with its buffer, or the phase that began.
    pub operation: String,
    /// Bytes of the buffer of a collective.
    pub n_bytes: Option<u64>,
    /// Time from its begin to the report.
    pub begin_ago: Duration,
    /// Time from its end to the report; None if it was not complete.
    pub end_ago: Option<Duration>,
}

impl FlightOperation {
    /// An operation of a rank, as it was `answered` after the report.
    pub(super) fn new(rank: usize, world_size: usize, of: Operation, answered: Duration) -> Self {
        FlightOperation {
            rank,
            step: of.step,
            operation: of.to_string(),
            n_bytes: of.call().map(|call| call.n_bytes(world_size)),
            begin_ago: of.begin_ago.saturating_sub(answered),
            end_ago: of.end_ago.map(|ago| ago.saturating_sub(answered)),
        }
    }
}

/// Waits until what was sent on the links is on its way.
pub(super) fn flush(links: &mut BTreeMap<usize, Link>) {
    let since = Instant::now();
    loop {
        links.values_mut().for_each(Link::flush);
        if since.elapsed() > LIMIT || !links.values().any(Link::is_waiting) {
            return;
        }
        std::thread::sleep(PAUSE);
    }
}

/// The last operations of this rank and of those that answer its verdict, oldest first. The times of the others count from the arrival of
/// their answers, so that no clocks need to agree. Returns the other frames that have arrived too.
///
/// - `own`: this rank and its operations
/// - `lost`: ranks that can't answer
pub(super) fn gather(
    links: &mut BTreeMap<usize, Link>,
    token: &Token,
    world_size: usize,
    own: (usize, Vec<Operation>),
    lost: &[usize],
) -> (Vec<FlightOperation>, Vec<Frame>) {
    let since = Instant::now();
    let of_rank = |(rank, of): (usize, Vec<Operation>), answered: Duration| {
        of.into_iter().map(move |of| FlightOperation::new(rank, world_size, of, answered))
    };
    let mut flight: Vec<_> = of_rank(own, Duration::ZERO).collect();
    let mut others = Vec::new();
    let mut missing: BTreeSet<usize> = links.keys().copied().filter(|rank| !lost.contains(rank)).collect();
    while !missing.is_empty() && since.elapsed() < LIMIT {
        for (rank, link) in links.iter_mut() {
            link.flush();
            if !missing.contains(rank) {
                continue;
            }
            let is_closed = link.receive().is_err();
            let mut frames = std::iter::from_fn(|| link.next(token, world_size).ok().flatten())
                .filter(|frame| frame.rank == *rank);
            let answer = frames.find(|frame| {
                let is_answer = frame.kind == Kind::Operations;
                if !is_answer {
                    others.push(frame.clone());
                }
                is_answer
            });
            if is_closed || answer.is_some() {
                missing.remove(rank);
            }
            if let Some(answer) = answer {
                let operations = answer.text.lines().filter_map(Operation::from_line).collect();
                flight.extend(of_rank((*rank, operations), since.elapsed()));
            }
        }
        std::thread::sleep(PAUSE);
    }
    flight.sort_by_key(|of| std::cmp::Reverse(of.begin_ago));
    (flight, others)
}
