//! Checks that every access to device memory is ordered with the accesses it conflicts with (`VGPU_CHECK`).
//!
//! Uses vector clocks over the streams: an event carries the clock of the stream that records it to every waiter. The host, with
//! all its threads, is one more party. Two accesses that no clock orders, one of which is a write, are a finding, in whatever
//! order they happened to run.
//!
//! A kernel's access is the range from the first to the last byte that it accessed in an allocation, so two kernels
//! that interleave their elements appear to conflict.
//!
//! Source: C. Flanagan, S. Freund, "FastTrack", PLDI 2009, without its compression.

use crate::abi::lock;
use crate::config::CONFIG;
use crate::counts;
use crate::mem::{MEMORY, host};
use crate::report::report;
use crate::stream::Outcome;
use std::collections::{BTreeMap, HashMap};
use std::sync::{LazyLock, Mutex};

/// Progress of each stream as its owner knows it. It has few entries, and one clock is copied for each piece of work.
pub(crate) type Clock = BTreeMap<u64, u64>;

struct Access {
    lo: u64,
    hi: u64,
    write: bool,
    stream: u64,
    time: u64,
    name: &'static str,
}

#[derive(Default)]
struct Order {
    host: Clock,
    streams: HashMap<u64, Clock>,
    /// Accesses by the number of the allocation.
    accesses: HashMap<u64, Vec<Access>>,
    /// Number of reports for each pair of works: a mistake that repeats in a loop is one finding, not a thousand.
    reported: HashMap<(&'static str, &'static str), u32>,
}

static ORDER: LazyLock<Mutex<Order>> = LazyLock::new(Default::default);

fn join(a: &mut Clock, b: &Clock) {
    for (&stream, &time) in b {
        let mine = a.entry(stream).or_default();
        *mine = (*mine).max(time);
    }
}

/// Position of one piece of work in the order: its stream and everything before it.
pub(crate) struct Stamp {
    stream: u64,
    name: &'static str,
    clock: Clock,
}

impl Stamp {
    /// The next position on `stream`, after everything that the host knows.
    pub(crate) fn new(stream: u64, name: &'static str) -> Stamp {
        if !CONFIG.check {
            return Stamp { stream, name, clock: Clock::new() };
        }
        let order = &mut *lock(&ORDER);
        let clock = order.streams.entry(stream).or_default();
        join(clock, &order.host);
        *clock.entry(stream).or_default() += 1;
        Stamp { stream, name, clock: clock.clone() }
    }

    /// Its time on its own stream.
    pub(crate) fn time(&self) -> u64 {
        self.clock.get(&self.stream).copied().unwrap_or(0)
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Records that this work reads or writes `n` bytes at device address `p`. A conflict is reported, and the work continues.
    ///
    /// # Errors
    /// None at present; the result lets callers use `?` next to checks that can fail.
    pub(crate) fn access(&self, p: u64, n: u64, write: bool) -> Outcome {
        self.access_within(p, n, n, write)
    }

    /// Same as [`Stamp::access`], where `moved` bytes count as moved, including repetitions and excluding gaps.
    pub(crate) fn access_within(&self, p: u64, n: u64, moved: u64, write: bool) -> Outcome {
        if !CONFIG.check || n == 0 {
            return Ok(());
        }
        let found = lock(&MEMORY).find(p).map(|(base, a)| (base, a.id, a.size));
        let Some((base, id, size)) = found else { return Ok(()) };
        lock(&MEMORY).count_access(base, moved, write);
        counts::moved(self.name, size, moved, write);
        let (lo, hi) = (p, p.saturating_add(n).min(base + size));
        let order = &mut *lock(&ORDER);
        let list = order.accesses.entry(id).or_default();
        let before = |a: &Access| self.clock.get(&a.stream).is_some_and(|&t| a.time <= t);
        let mut few = |a: &Access| {
            let times = order.reported.entry((a.name.min(self.name), a.name.max(self.name))).or_default();
            *times += 1;
            *times <= 3
        };
        let conflict = list.iter().find(|a| a.lo < hi && lo < a.hi && (a.write || write) && !before(a));
        if let Some(a) = conflict.filter(|a| few(a)) {
            let verb = |write| if write { "writes" } else { "reads" };
            report(&format!(
                "race between streams: {} on stream {} {} bytes {}..{} of allocation #{id}, {} on stream {} {} bytes \
                 {}..{}; no event or synchronization orders them",
                self.name,
                self.stream,
                verb(write),
                lo - base,
                hi - base,
                a.name,
                a.stream,
                verb(a.write),
                a.lo - base,
                a.hi - base
            ));
        }
        // An earlier access within this one can't conflict with anything that this one doesn't conflict with.
        list.retain(|a| !(lo <= a.lo && a.hi <= hi && (write || !a.write) && before(a)));
        list.push(Access { lo, hi, write, stream: self.stream, time: self.time(), name: self.name });
        Ok(())
    }
}

/// Clock that a waiter for the current end of `stream` will have.
pub(crate) fn now(stream: u64) -> Clock {
    if CONFIG.check { Stamp::new(stream, "event").clock } else { Clock::new() }
}

/// Orders `stream` after `clock`.
pub(crate) fn after(stream: u64, clock: &Clock) {
    if CONFIG.check {
        join(lock(&ORDER).streams.entry(stream).or_default(), clock);
    }
}

/// Orders the host after `clock`.
pub(crate) fn host_after(clock: &Clock) {
    if !CONFIG.check {
        return;
    }
    let known = {
        let mut order = lock(&ORDER);
        join(&mut order.host, clock);
        order.host.clone()
    };
    host::release(&known);
}

/// Forgets allocation `id`, which was freed; its addresses are never reused.
pub(crate) fn forget(id: u64) {
    if CONFIG.check {
        lock(&ORDER).accesses.remove(&id);
    }
}
