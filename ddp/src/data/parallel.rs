//! Work on rows that several threads share while it lasts.
//!
//! Not in rayon's pool: a thread that waits there within one item may begin another one, while a dataset holds a lock for the first.

use std::cell::Cell;
use std::sync::{Mutex, PoisonError};
use std::thread::{Builder, ScopedJoinHandle};
use std::{iter, panic, thread};

use ddp_kernels::cpu::threads;

/// Most threads: more would wait for memory, and each holds a part of the rows.
const MAX_THREADS: usize = 8;

thread_local! {
    /// Threads that [`with_threads`] grants.
    static GRANTED: Cell<usize> = const { Cell::new(0) };
}

/// Threads that share the work of this one: as many as compute for it, or as [`with_threads`] grants it, up to a limit.
pub fn n_threads() -> usize {
    threads::current().max(GRANTED.get()).min(MAX_THREADS)
}

/// Runs `work`, which may use `n` threads: more than its rank's, while the other ranks of the host wait for it.
pub fn with_threads<R>(n: usize, work: impl FnOnce() -> R) -> R {
    let before = GRANTED.replace(n);
    let result = work();
    GRANTED.set(before);
    result
}

/// Calls `work` with each item, the first on this thread and each other one on a thread of its own; on this thread, too, where the system
/// starts no further threads. The results are in the order of the items.
pub fn map<T: Send, R: Send>(items: impl IntoIterator<Item = T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let mut items = items.into_iter();
    let Some(first) = items.next() else { return Vec::new() };
    let slots: Vec<Mutex<Option<T>>> = items.map(|item| Mutex::new(Some(item))).collect();
    let of_slot = |slot: &Mutex<Option<T>>| {
        let item = slot.lock().unwrap_or_else(PoisonError::into_inner).take();
        work(item.expect("one thread takes the item of a slot"))
    };
    let of_slot = &of_slot;
    thread::scope(|scope| {
        let start = |slot| (slot, Builder::new().spawn_scoped(scope, move || of_slot(slot)).ok());
        let others: Vec<_> = slots.iter().map(start).collect();
        let first = work(first);
        let end = |(slot, other): (_, Option<ScopedJoinHandle<'_, R>>)| match other {
            Some(other) => other.join().unwrap_or_else(|why| panic::resume_unwind(why)),
            None => of_slot(slot),
        };
        iter::once(first).chain(others.into_iter().map(end)).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let own = thread::current().id();
        for n in 0..5 {
            let results = map(0..n, |item| (item, thread::current().id() == own));
            assert_eq!(results, (0..n).map(|item| (item, item == 0)).collect::<Vec<_>>());
        }
    }
}
