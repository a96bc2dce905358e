//! Pinned host memory, and the copies and kernels in flight that read or write it.
//!
//! An asynchronous copy reads or writes a pinned buffer at some time between the call and the host's next
//! synchronization with it; a host that accesses the buffer in between has a race. Races are made visible in two ways:
//!
//! - With `VGPU_CHECK` the pages of the buffer are protected from the call until the host has synchronized with the
//!   copy (by the clocks of [`crate::order`], so it doesn't matter whether the copy ran meanwhile): a host-to-device
//!   copy leaves them readable, a device-to-host copy not even that. [`super::trap`] reports the access and lets it
//!   pass. The devices themselves work through a second view of the pages. A page that the copy shares with other
//!   data, and memory from `cuMemHostRegister`, can't be protected; there the next item is what remains.
//! - With `VGPU_CHECK` or `VGPU_FUZZ` the source of a host-to-device copy is compared, when the copy runs, with what
//!   it was at the call, and the destination of a device-to-host copy is filled with NaN at the call.
//!
//! Both are skipped if another unfinished copy, or a host function, uses the same bytes.
//!
//! A kernel that receives a pointer to such memory counts as a copy to it, or as a copy from it if it points to constants, from
//! that address to the end of the buffer. Which bytes it really writes is unknown, so only the protection applies.

use super::pages::{self, PAGE};
use super::trap;
use crate::abi::lock;
use crate::config::CONFIG;
use crate::order::Clock;
use crate::report::report;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Host memory that a copy reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// Whether the device writes it.
    pub(crate) write: bool,
    /// Whether it accesses all of these bytes, as a copy does.
    pub(crate) whole: bool,
}

struct Pinned {
    len: u64,
    /// The second view; `None` for memory that was only registered.
    alias: Option<u64>,
    flags: u32,
}

/// A copy that the host has not yet synchronized with.
struct Flight {
    id: u64,
    touch: Touch,
    name: &'static str,
    stream: u64,
    time: u64,
    snapshot: Option<Vec<u8>>,
    /// The protected pages.
    guarded: Option<(u64, u64)>,
    done: bool,
}

/// Pinned ranges and copies in flight.
#[derive(Default)]
pub(crate) struct Host {
    pinned: BTreeMap<u64, Pinned>,
    flights: Vec<Flight>,
    ids: u64,
}

/// The pinned host memory of this process.
pub(crate) static HOST: Mutex<Host> =
    Mutex::new(Host { pinned: BTreeMap::new(), flights: Vec::new(), ids: 0 });

/// Number of queued host functions that have not run; which memory they access is unknown.
pub(crate) static HOST_FUNCTIONS: AtomicU64 = AtomicU64::new(0);

/// Allocates pinned memory.
pub(crate) fn alloc(len: u64, flags: u32) -> Option<u64> {
    let pages = len.max(1).next_multiple_of(PAGE);
    let at = pages::map_anywhere(pages)?;
    let alias = pages::alias(at, pages);
    lock(&HOST).pinned.insert(at, Pinned { len, alias, flags });
    Some(at)
}

/// Frees pinned memory; returns false if `at` is not the start of any.
pub(crate) fn free(at: u64) -> bool {
    let mut host = lock(&HOST);
    let Some(alias) = host.pinned.get(&at).and_then(|pinned| pinned.alias) else { return false };
    let Some(pinned) = host.pinned.remove(&at) else { return false };
    let pages = pinned.len.max(1).next_multiple_of(PAGE);
    host.flights.retain(|flight| flight.touch.at < at || flight.touch.at >= at + pages);
    pages::unmap(alias, pages);
    pages::unmap(at, pages);
    true
}

/// Pins memory of the client; returns false if it is already pinned.
pub(crate) fn register(at: u64, len: u64, flags: u32) -> bool {
    let mut host = lock(&HOST);
    if host.find(at, 1).is_some() || host.find(at + len.max(1) - 1, 1).is_some() {
        return false;
    }
    host.pinned.insert(at, Pinned { len, alias: None, flags });
    true
}

/// Undoes [`register`].
pub(crate) fn unregister(at: u64) -> bool {
    let mut host = lock(&HOST);
    match host.pinned.get(&at) {
        Some(pinned) if pinned.alias.is_none() => {
            host.flights.retain(|flight| flight.touch.at != at);
            host.pinned.remove(&at).is_some()
        }
        _ => false,
    }
}

/// Whether all of these bytes are pinned.
pub(crate) fn is_pinned(at: u64, len: u64) -> bool {
    lock(&HOST).find(at, len).is_some()
}

/// The flags with which the pinned memory around `at` was allocated.
pub(crate) fn flags(at: u64) -> Option<u32> {
    lock(&HOST).find(at, 1).map(|(_, pinned)| pinned.flags)
}

/// The start and length of the pinned memory around `at`.
pub(crate) fn range_of(at: u64) -> Option<(u64, u64)> {
    lock(&HOST).find(at, 1).map(|(base, pinned)| (base, pinned.len))
}

/// Address at which a device accesses host memory: the second view of pinned memory, else the address itself.
pub(crate) fn device_view(at: u64, len: u64) -> u64 {
    let host = lock(&HOST);
    let view = host.find(at, len).and_then(|(base, pinned)| Some(pinned.alias? + (at - base)));
    view.unwrap_or(at)
}

/// Records a copy that was enqueued on a stream. Returns its number if it is watched.
pub(crate) fn begin(touch: Touch, name: &'static str, stream: u64, time: u64) -> Option<u64> {
    if (CONFIG.fuzz == 0 && !CONFIG.check) || touch.len == 0 {
        return None;
    }
    let mut host = lock(&HOST);
    let (base, pinned) = host.find(touch.at, touch.len)?;
    let view = pinned.alias.map_or(touch.at, |alias| alias + (touch.at - base));
    let guarded = guarded_pages(touch, base, pinned).filter(|_| CONFIG.check);
    let crowded =
        HOST_FUNCTIONS.load(SeqCst) > 0 || host.flights.iter().any(|f| !f.done && f.overlaps(touch));
    let mut snapshot = None;
    if touch.whole && !crowded {
        if touch.write {
            pages::fill(view, touch.len, super::POISON);
        } else {
            snapshot = Some(pages::bytes(view, touch.len).to_vec());
        }
    }
    host.ids += 1;
    let id = host.ids;
    host.flights.push(Flight { id, touch, name, stream, time, snapshot, guarded, done: false });
    if let Some((from, to)) = guarded {
        host.guard(from, to);
    }
    Some(id)
}

/// Checks a copy that is about to run.
pub(crate) fn check(id: u64) {
    let mut host = lock(&HOST);
    let Some(flight) = host.flights.iter_mut().find(|flight| flight.id == id) else { return };
    let Some(snapshot) = flight.snapshot.take() else { return };
    let (touch, name) = (flight.touch, flight.name);
    let view =
        host.find(touch.at, touch.len).and_then(|(b, p)| Some(p.alias? + (touch.at - b))).unwrap_or(touch.at);
    let now = pages::bytes(view, touch.len);
    if snapshot != now {
        report(&format!(
            "the host changed a pinned buffer before it was read: {name}, {} bytes; wait for the copy before the \
             buffer is used again",
            touch.len
        ));
    }
}

/// Records that the copy has run.
pub(crate) fn done(id: u64) {
    let mut host = lock(&HOST);
    if CONFIG.check {
        if let Some(flight) = host.flights.iter_mut().find(|flight| flight.id == id) {
            flight.done = true;
        }
    } else {
        host.flights.retain(|flight| flight.id != id);
    }
}

/// Records that the host, or a host function, has synchronized with everything before `clock`.
pub(crate) fn release(clock: &Clock) {
    let mut host = lock(&HOST);
    let covered = |flight: &Flight| clock.get(&flight.stream).is_some_and(|&t| flight.time <= t);
    let guarded: Vec<_> = host.flights.iter().filter(|f| covered(f)).filter_map(|f| f.guarded).collect();
    host.flights.retain(|flight| !covered(flight));
    for (from, to) in guarded {
        host.guard(from, to);
    }
}

/// Handles a fault at a protected page: removes the protection and describes the race. `None` if the page does not belong to
/// this crate.
pub(crate) fn on_fault(at: u64) -> Option<String> {
    let mut host = trap::lock_in_handler(&HOST)?;
    let hit =
        host.flights.iter().position(|f| f.guarded.is_some_and(|(from, to)| (from..to).contains(&at)))?;
    let flight = &host.flights[hit];
    let verb = if flight.touch.write { "used" } else { "changed" };
    let what = if flight.touch.whole { "a copy" } else { "a kernel" };
    let what = format!(
        "the host {verb} a pinned buffer at offset {} while {what} was in flight: {}, {} bytes; no synchronization \
         orders them",
        at as i64 - flight.touch.at as i64,
        flight.name,
        flight.touch.len
    );
    for flight in &mut host.flights {
        if let Some((from, to)) = flight.guarded.filter(|&(from, to)| (from..to).contains(&at)) {
            flight.guarded = None;
            flight.snapshot = None;
            pages::protect(from, to - from, libc::PROT_READ | libc::PROT_WRITE);
        }
    }
    Some(what)
}

impl Flight {
    fn overlaps(&self, touch: Touch) -> bool {
        self.touch.at < touch.at + touch.len && touch.at < self.touch.at + self.touch.len
    }
}

impl Host {
    fn find(&self, at: u64, len: u64) -> Option<(u64, &Pinned)> {
        let (&base, pinned) = self.pinned.range(..=at).next_back()?;
        (at + len <= base + pinned.len).then_some((base, pinned))
    }

    /// Sets the protection of each page of a range to the strictest that any copy in flight requires.
    fn guard(&self, from: u64, to: u64) {
        let mut at = from;
        while at < to {
            let holds = |f: &&Flight| f.guarded.is_some_and(|(from, to)| (from..to).contains(&at));
            let protection = self.flights.iter().filter(holds).map(|f| f.touch.write).reduce(|a, b| a | b);
            let protection = match protection {
                None => libc::PROT_READ | libc::PROT_WRITE,
                Some(false) => libc::PROT_READ,
                Some(true) => libc::PROT_NONE,
            };
            pages::protect(at, PAGE, protection);
            at += PAGE;
        }
    }
}

/// The pages that contain only bytes of the copy. The last page of an allocation belongs to it alone.
fn guarded_pages(touch: Touch, base: u64, pinned: &Pinned) -> Option<(u64, u64)> {
    pinned.alias?;
    let from = touch.at.next_multiple_of(PAGE);
    let end = touch.at + touch.len;
    let to = if end == base + pinned.len { end.next_multiple_of(PAGE) } else { end / PAGE * PAGE };
    (from < to).then_some((from, to))
}
