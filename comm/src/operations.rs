//! The last operations of a rank, in a ring: written by the training thread, read by the watchdog's.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Acquire, Ordering::Relaxed, Ordering::Release};
use std::time::Duration;

use crate::Call;
use crate::phase::Phase;

/// Operations that are kept for the report of a lost rank.
const N_OPERATIONS: usize = 200;

/// Marks the words of an operation that is a change of the phase; no call has it.
const PHASE_WORD: u64 = 0xff;

/// The ring. There is one writer; a reader may see the slot that is being written half old and half new.
#[derive(Debug)]
pub(crate) struct Operations {
    n: AtomicU64,
    slots: Box<[Slot; N_OPERATIONS]>,
}

/// A slot of the ring of operations.
#[derive(Debug, Default)]
struct Slot {
    at_ns: AtomicU64,
    /// When it was known to be complete; 0 before.
    end_ns: AtomicU64,
    step: AtomicU64,
    words: [AtomicU64; 2],
}

/// One of the last operations of a rank: a collective, or a change of the phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Operation {
    /// The step under way; 0 before the first.
    pub(crate) step: u64,
    /// Time since it began.
    pub(crate) begin_ago: Duration,
    /// Time since it was known to be complete; of a phase, since the next one began. None if that is still to come.
    pub(crate) end_ago: Option<Duration>,
    /// The words of [`Call::to_words`], or a phase.
    words: [u64; 2],
}

impl Operation {
    /// The collective; None for a phase.
    pub(crate) fn call(&self) -> Option<Call> {
        Call::from_words(self.words)
    }

    /// Encodes it as a line of text.
    pub(crate) fn to_line(self) -> String {
        let Operation { step, begin_ago, end_ago, words: [a, b] } = self;
        let end = end_ago.map_or_else(|| "-".to_owned(), |ago| ago.as_micros().to_string());
        format!("{step} {} {end} {a:x} {b:x}\n", begin_ago.as_micros())
    }

    /// Reads a line of [`Operation::to_line`], which may come from the network.
    pub(crate) fn from_line(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let step = words.next()?.parse().ok()?;
        let begin_ago = Duration::from_micros(words.next()?.parse().ok()?);
        let end_ago = match words.next()? {
            "-" => None,
            micros => Some(Duration::from_micros(micros.parse().ok()?)),
        };
        let mut hex = || u64::from_str_radix(words.next()?, 16).ok();
        Some(Operation { step, begin_ago, end_ago, words: [hex()?, hex()?] })
    }

    /// The words of the operation that begins a phase.
    pub(crate) fn words_of(phase: Phase) -> [u64; 2] {
        [PHASE_WORD | u64::from(phase.to_code()) << 8, 0]
    }

    fn phase(&self) -> Option<Phase> {
        Phase::from_code((self.words[0] >> 8) as u8).filter(|_| self.words[0] & 0xff == PHASE_WORD)
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.phase(), self.call()) {
            (Some(phase), _) => write!(f, "begins: {phase}"),
            (None, Some(call)) => call.fmt(f),
            (None, None) => f.write_str("unknown"),
        }
    }
}

impl Default for Operations {
    fn default() -> Self {
        Operations { n: AtomicU64::new(0), slots: Box::new(std::array::from_fn(|_| Slot::default())) }
    }
}

impl Operations {
    /// Adds an operation that begins now, by its words, and returns its number.
    pub(crate) fn add(&self, words: [u64; 2], step: u64, now_ns: u64) -> u64 {
        let n = self.n.load(Relaxed);
        let slot = &self.slots[n as usize % N_OPERATIONS];
        slot.at_ns.store(now_ns, Relaxed);
        slot.end_ns.store(0, Relaxed);
        slot.step.store(step, Relaxed);
        slot.words[0].store(words[0], Relaxed);
        slot.words[1].store(words[1], Relaxed);
        self.n.store(n + 1, Release);
        n
    }

    /// Takes note that the operation of this number is complete, unless a later one has its slot.
    pub(crate) fn end(&self, number: u64, now_ns: u64) {
        if self.n.load(Relaxed) - number <= N_OPERATIONS as u64 {
            self.slots[number as usize % N_OPERATIONS].end_ns.store(now_ns, Relaxed);
        }
    }

    /// The last operations at this moment, oldest first.
    pub(crate) fn last(&self, now_ns: u64) -> Vec<Operation> {
        let n = self.n.load(Acquire);
        let ago = |ns: u64| Duration::from_nanos(now_ns.saturating_sub(ns));
        let mut next_phase = None;
        let of_slot = |index: u64| {
            let slot = &self.slots[index as usize % N_OPERATIONS];
            let begin_ago = ago(slot.at_ns.load(Relaxed));
            let end_ns = slot.end_ns.load(Relaxed);
            let words = [slot.words[0].load(Relaxed), slot.words[1].load(Relaxed)];
            let end_ago = (end_ns > 0).then(|| ago(end_ns));
            let operation = Operation { step: slot.step.load(Relaxed), begin_ago, end_ago, words };
            match operation.phase() {
                Some(_) => Operation { end_ago: next_phase.replace(begin_ago), ..operation },
                None => operation,
            }
        };
        let newest_first = (n.saturating_sub(N_OPERATIONS as u64)..n).rev().map(of_slot);
        let mut operations: Vec<_> = newest_first.collect();
        operations.reverse();
        operations
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_ends_and_survive_the_wire() {
        let ring = Operations::default();
        ring.add(Operation::words_of(Phase::Step), 3, 1_000);
        let bucket = ring.add(Call::BARRIER.to_words(), 3, 2_000);
        let inside = ring.add(Call::BARRIER.to_words(), 3, 3_000);
        ring.end(bucket, 4_000);
        ring.add(Operation::words_of(Phase::Checkpoint), 3, 5_000);
        let ended: Vec<_> = ring.last(9_000).iter().map(|of| of.end_ago.is_some()).collect();
        assert_eq!(ended, [true, true, false, false], "the phase ended with the next one");
        // Another operation has the slot by now.
        (0..N_OPERATIONS as u64).for_each(|n| {
            ring.add(Call::BARRIER.to_words(), 4, 10_000 + n);
        });
        ring.end(inside, 20_000);
        let operations = ring.last(30_000);
        assert!(operations.len() == N_OPERATIONS && operations.iter().all(|of| of.end_ago.is_none()));
        let micros = |of: &Operation| Operation {
            begin_ago: Duration::from_micros(of.begin_ago.as_micros() as u64),
            ..*of
        };
        for of in &operations {
            assert_eq!(Operation::from_line(of.to_line().trim_end()), Some(micros(of)));
        }
        for bad in ["", "1", "1 2 3 4", "1 -2 - a b", "1 2 - x y", "\u{fc}"] {
            assert_eq!(Operation::from_line(bad), None, "{bad}");
        }
    }
}
