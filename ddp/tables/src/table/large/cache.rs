//! Cache of decoded row groups with a memory limit; each group is decoded by one thread at a time.
//!
//! Memory is reserved before a decode starts, and the least recently used groups are evicted for it. A caller holds at most one
//! group and never waits while it holds one, so memory is always released eventually.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use ddp::data::error::Result;
use ddp_kernels::cpu::heap::release_free_memory;

/// Decoded groups, by their numbers.
#[derive(Debug)]
pub(super) struct Cache<T> {
    /// Bytes of each decoded group.
    costs: Vec<usize>,
    /// Bytes that a decode needs in addition.
    scratch: usize,
    budget: usize,
    state: Mutex<State<T>>,
    /// Signals a decoded group, released memory, or an announcement of groups.
    changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    slots: Vec<CacheEntry<T>>,
    /// Bytes of decoded groups, of groups being decoded, and of their scratch memory.
    held: usize,
    /// Bytes of groups that were evicted since the heap has released its free memory.
    evicted: usize,
    peak: usize,
    clock: u64,
    /// The groups of this window and of the next one, if announced.
    windows: [Vec<usize>; 2],
    /// Groups to decode ahead.
    ahead: VecDeque<usize>,
    is_closed: bool,
}

#[derive(Debug)]
struct CacheEntry<T> {
    content: Content<T>,
    n_users: usize,
    used_at: u64,
}

#[derive(Debug)]
enum Content<T> {
    Nothing,
    /// A thread is decoding it.
    Decoding,
    Held(Arc<T>),
}

impl<T> Cache<T> {
    /// A cache for groups of `costs` bytes; `2 * cost + scratch` of each must not exceed `budget`.
    pub(super) fn new(costs: Vec<usize>, scratch: usize, budget: usize) -> Self {
        let slot = |_: &usize| CacheEntry { content: Content::Nothing, n_users: 0, used_at: 0 };
        let state = State {
            slots: costs.iter().map(slot).collect(),
            held: 0,
            evicted: 0,
            peak: 0,
            clock: 0,
            windows: [Vec::new(), Vec::new()],
            ahead: VecDeque::new(),
            is_closed: false,
        };
        Cache { costs, scratch, budget, state: Mutex::new(state), changed: Condvar::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        // A panic elsewhere leaves the state consistent: every change is a single step.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes one group from `wanted` and returns it: a decoded one if possible, otherwise the result of `decode`. `None` if
    /// `wanted` is empty.
    ///
    /// # Errors
    /// Errors of `decode`.
    pub(super) fn take(
        &self,
        wanted: &mut Vec<usize>,
        decode: impl Fn(usize) -> Result<T>,
    ) -> Result<Option<InUse<'_, T>>> {
        let mut state = self.lock();
        loop {
            if wanted.is_empty() {
                return Ok(None);
            }
            let is_held = |group: &usize| matches!(state.slots[*group].content, Content::Held(_));
            if let Some(at) = wanted.iter().position(is_held) {
                let group = wanted.remove(at);
                state.slots[group].n_users += 1;
                return Ok(Some(self.use_held(&mut state, group)));
            }
            let is_free = |group: &usize| matches!(state.slots[*group].content, Content::Nothing);
            let free = wanted.iter().position(is_free);
            if let Some(at) = free.filter(|&at| self.make_room(&mut state, wanted[at], false)) {
                let group = wanted.remove(at);
                self.begin(&mut state, group);
                self.release_evicted(state);
                self.decode(group, &decode)?;
                return Ok(Some(self.use_held(&mut self.lock(), group)));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Decodes ahead until the cache is closed.
    pub(super) fn work_ahead(&self, decode: impl Fn(usize) -> Result<T>) {
        while let Some(group) = self.next_ahead() {
            if self.decode(group, &decode).is_ok() {
                self.release(group);
            }
            // The caller that needs the rows gets the error again and reports it.
        }
    }

    /// Announces the groups that follow those of the previous call.
    pub(super) fn expect(&self, groups: Vec<usize>) {
        let mut state = self.lock();
        if state.windows[1] == groups {
            return;
        }
        let State { ahead, windows, .. } = &mut *state;
        windows[0] = std::mem::replace(&mut windows[1], groups);
        ahead.retain(|group| windows[0].contains(group));
        ahead.extend(&windows[1]);
        self.changed.notify_all();
    }

    /// Ends [`Cache::work_ahead`].
    pub(super) fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Decodes a group after [`Cache::begin`] and marks it as in use.
    fn decode(&self, group: usize, decode: &impl Fn(usize) -> Result<T>) -> Result<()> {
        // Releases the memory if the decode fails or panics.
        let pending = Pending { cache: self, group };
        let rows = decode(group)?;
        std::mem::forget(pending);
        let mut state = self.lock();
        let slot = &mut state.slots[group];
        slot.content = Content::Held(Arc::new(rows));
        slot.n_users = 1;
        state.held -= self.scratch;
        self.changed.notify_all();
        Ok(())
    }

    fn begin(&self, state: &mut State<T>, group: usize) {
        state.slots[group].content = Content::Decoding;
        state.held += self.costs[group] + self.scratch;
        state.peak = state.peak.max(state.held);
    }

    /// Waits for memory and returns the next group to decode ahead; `None` at the end.
    fn next_ahead(&self) -> Option<usize> {
        let mut state = self.lock();
        loop {
            if state.is_closed {
                return None;
            }
            match state.ahead.front().copied() {
                Some(group) if !matches!(state.slots[group].content, Content::Nothing) => {
                    state.ahead.pop_front();
                    continue;
                }
                Some(group) if self.make_room(&mut state, group, true) => {
                    state.ahead.pop_front();
                    self.begin(&mut state, group);
                    self.release_evicted(state);
                    return Some(group);
                }
                _ => {}
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Evicts groups until `group` can be decoded and returns whether it can: first groups outside both windows, then, unless
    /// it is decoded `ahead`, those of the next window, finally those of this window; the least recently used first.
    fn make_room(&self, state: &mut State<T>, group: usize, ahead: bool) -> bool {
        let needed = self.costs[group] + self.scratch;
        while state.held + needed > self.budget {
            let windows = &state.windows;
            let order = |group: usize| match () {
                () if windows[0].contains(&group) => 2,
                () if windows[1].contains(&group) => 1,
                () => 0,
            };
            let candidates = state.slots.iter().enumerate().filter(|(group, slot)| {
                matches!(slot.content, Content::Held(_)) && slot.n_users == 0 && !(ahead && order(*group) > 0)
            });
            let oldest = candidates.min_by_key(|(group, slot)| (order(*group), slot.used_at));
            let Some(oldest) = oldest.map(|(group, _)| group) else { return false };
            state.slots[oldest].content = Content::Nothing;
            state.held -= self.costs[oldest];
            state.evicted += self.costs[oldest];
        }
        true
    }

    /// Gives the memory of evicted groups back to the system now and then, while others use the cache.
    fn release_evicted(&self, mut state: MutexGuard<'_, State<T>>) {
        let is_due = state.evicted > self.budget / 8;
        if is_due {
            state.evicted = 0;
        }
        drop(state);
        if is_due {
            release_free_memory();
        }
    }

    fn use_held(&self, state: &mut State<T>, group: usize) -> InUse<'_, T> {
        state.clock += 1;
        let clock = state.clock;
        let slot = &mut state.slots[group];
        slot.used_at = clock;
        let Content::Held(rows) = &slot.content else { unreachable!("a group in use is held") };
        InUse { cache: self, group, rows: Some(rows.clone()) }
    }

    fn release(&self, group: usize) {
        self.lock().slots[group].n_users -= 1;
        self.changed.notify_all();
    }

    /// Most bytes that were held at a time.
    #[cfg(test)]
    pub(super) fn peak_bytes(&self) -> usize {
        self.lock().peak
    }
}

/// A group that stays in the cache while this value lives.
#[derive(Debug)]
pub(super) struct InUse<'a, T> {
    cache: &'a Cache<T>,
    pub(super) group: usize,
    /// `Some` until it is dropped.
    rows: Option<Arc<T>>,
}

impl<T> Deref for InUse<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.rows.as_ref().expect("it is not dropped yet")
    }
}

impl<T> Drop for InUse<'_, T> {
    fn drop(&mut self) {
        // Free the memory before releasing its reservation.
        self.rows = None;
        self.cache.release(self.group);
    }
}

/// A running decode.
struct Pending<'a, T> {
    cache: &'a Cache<T>,
    group: usize,
}

impl<T> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        state.slots[self.group].content = Content::Nothing;
        state.held -= self.cache.costs[self.group] + self.cache.scratch;
        self.cache.changed.notify_all();
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
