//! Work on rows that several threads share while it lasts.
//!
//! Not in rayon's pool: a thread that waits there within one item may begin another one, while a dataset holds a lock for the first.

use std::{iter, panic, thread};

use ddp_kernels::cpu::threads;

/// Most threads: more would wait for memory, and each holds a part of the rows.
const MAX_THREADS: usize = 8;

/// Threads that share the work of this one: as many as compute for it, up to a limit.
pub(crate) fn n_threads() -> usize {
    threads::current().min(MAX_THREADS)
}

/// Calls `work` with each item, the first on this thread and each other one on a thread of its own. The results are in the order of the
/// items.
pub(crate) fn map<T: Send, R: Send>(
    items: impl IntoIterator<Item = T>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let mut items = items.into_iter();
    let Some(first) = items.next() else { return Vec::new() };
    let work = &work;
    thread::scope(|scope| {
        let others: Vec<_> = items.map(|item| scope.spawn(move || work(item))).collect();
        let first = work(first);
        let others = others.into_iter();
        let others = others.map(|other| other.join().unwrap_or_else(|why| panic::resume_unwind(why)));
        iter::once(first).chain(others).collect()
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
