//! Compute threads.
//!
//! Operations split their work over the rayon pool of the calling thread. The main thread of a process joins a pool of all cores that
//! the process may use by its first operation, or one of another size before ([`join_pool`]), and is one of its workers from then on, so
//! that with one thread no work changes threads, and a library that must be called from one thread only (MPI) can be. Other threads
//! compute alone, unless they join a pool.
//!
//! ```
//! use ddp_kernels::KernelError;
//! use ddp_kernels::cpu::threads::{current, join_pool};
//!
//! let worker = std::thread::spawn(|| -> Result<[usize; 2], KernelError> {
//!     let alone = current();
//!     join_pool(3)?;
//!     Ok([alone, current()])
//! });
//! assert_eq!(worker.join().expect("it does not panic")?, [1, 3]);
//! let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
//! assert_eq!(current(), cores, "on the main thread");
//! # Ok::<(), KernelError>(())
//! ```

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::start_thread::with_limit;
use crate::{KernelError, Result};

/// Whether the main thread joins a pool by its first operation.
static IS_AUTOMATIC: AtomicBool = AtomicBool::new(true);
/// Threads of that pool; 0 stands for the cores that the process may use.
static SHARE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// Threads of the pool that this thread joins by its first operation, if it is one of several that share the cores.
    static SHARE_OF_THREAD: Cell<usize> = const { Cell::new(0) };
    /// That pool.
    static POOL: RefCell<Option<rayon::ThreadPool>> = const { RefCell::new(None) };
    /// Whether this thread has asked whether it is the main thread.
    static HAS_ASKED: Cell<bool> = const { Cell::new(false) };
}

/// Creates a pool of `n_threads` that includes the calling thread.
///
/// The pool computes every operation that this thread calls from now on. A thread can join only one pool: the main thread calls this before
/// its first operation, which joins one of all cores otherwise.
///
/// # Errors
/// [`KernelError::Threads`] if the system cannot start the threads, or if the thread is already in a pool of another size.
pub fn join_pool(n_threads: usize) -> Result<()> {
    if rayon::current_thread_index().is_some() && rayon::current_num_threads() == n_threads {
        return Ok(());
    }
    let pool = pool(n_threads)?;
    // Dropping the handle would end the other threads, and the calling thread is a member for its lifetime.
    std::mem::forget(pool);
    Ok(())
}

/// Keeps the main thread of a program that sizes its pools by itself from joining one by its first operation.
pub fn join_on_request_only() {
    IS_AUTOMATIC.store(false, Ordering::Relaxed);
}

/// Whether the main thread joins a pool by its first operation.
pub fn joins_by_itself() -> bool {
    IS_AUTOMATIC.load(Ordering::Relaxed)
}

/// Sets the threads of the pool that the main thread joins by its first operation: its share of the cores, where several processes
/// compute on them.
pub fn set_share(n_threads: usize) {
    SHARE.store(n_threads, Ordering::Relaxed);
}

/// Lets the calling thread join a pool of `n_threads` by its first operation, which ends with the value that is returned.
pub fn share_of_thread(n_threads: usize) -> ShareOfThread {
    SHARE_OF_THREAD.set(n_threads);
    ShareOfThread(())
}

/// Result of [`share_of_thread`].
#[derive(Debug)]
pub struct ShareOfThread(());

impl Drop for ShareOfThread {
    fn drop(&mut self) {
        SHARE_OF_THREAD.set(0);
        POOL.take();
    }
}

fn pool(n_threads: usize) -> Result<rayon::ThreadPool> {
    let error = |reason: String| KernelError::Threads { threads: n_threads, reason };
    if rayon::current_thread_index().is_some() {
        let n = rayon::current_num_threads();
        return Err(error(format!(
            "this thread is in a pool of {n} already, and joins only one: call `join_pool` before its first operation"
        )));
    }
    rayon::ThreadPoolBuilder::new()
        .num_threads(n_threads)
        .thread_name(|i| format!("compute-{i}"))
        .use_current_thread()
        .build()
        .map_err(|e| error(with_limit(&e)))
}

/// Lets the calling thread use parallel iterators: unless it has joined a pool, it computes with a thread per core, or alone where the system
/// starts no further threads.
pub fn join_any_pool() {
    static HAS_GLOBAL: OnceLock<bool> = OnceLock::new();
    let start = || rayon::ThreadPoolBuilder::new().build_global().is_ok();
    if SHARE_OF_THREAD.get() > 0 {
        current();
    }
    if rayon::current_thread_index().is_none() && !*HAS_GLOBAL.get_or_init(start) {
        // It starts no thread.
        let _ = join_pool(1);
    }
}

/// Number of threads that compute for the calling thread: 1 for a thread that is not the main thread and has joined no pool.
#[inline]
pub fn current() -> usize {
    match rayon::current_thread_index() {
        Some(_) => rayon::current_num_threads(),
        None if HAS_ASKED.replace(true) => 1,
        None => by_itself(),
    }
}

/// Lets the main thread join its pool; returns the number of threads that compute for this thread.
#[cold]
fn by_itself() -> usize {
    // A system that starts no further thread has the program compute on one.
    if let share @ 1.. = SHARE_OF_THREAD.get() {
        let pool = pool(share).ok();
        let n_threads = if pool.is_some() { share } else { 1 };
        POOL.set(pool);
        return n_threads;
    }
    if !joins_by_itself() || thread::current().name() != Some("main") {
        return 1;
    }
    let cores = || thread::available_parallelism().map_or(1, |n| n.get());
    let n_threads = match SHARE.load(Ordering::Relaxed) {
        0 => cores(),
        share => share,
    };
    join_pool(n_threads).map_or(1, |()| n_threads)
}

/// Runs `f` on disjoint parts that cover `0..len`, one part per thread, each but the last a multiple of `align`; in one part if
/// `len < 2 * min_part`.
#[inline]
pub(crate) fn for_parts(len: usize, min_part: usize, align: usize, f: impl Fn(Range<usize>) + Sync) {
    each_part(len, min_part, align, &f);
}

/// [`for_parts`], compiled once: with one copy of it, and of what it calls in rayon, for each operation, compiling took far longer.
fn each_part(len: usize, min_part: usize, align: usize, f: &(dyn Fn(Range<usize>) + Sync)) {
    let n_parts = current().min(len / min_part.max(1)).max(1);
    if n_parts == 1 {
        return f(0..len);
    }
    let part = len.div_ceil(n_parts).next_multiple_of(align);
    rayon::scope(|scope| {
        for start in (part..len).step_by(part) {
            scope.spawn(move |_| f(start..(start + part).min(len)));
        }
        f(0..part.min(len));
    });
}

/// A pointer that threads may share because each of them writes a part of its own only.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut<T>(*mut T);

// SAFETY: every dereference states which part belongs to its thread alone.
unsafe impl<T> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        SharedMut(slice.as_mut_ptr())
    }

    /// A pointer that may lie outside the elements that are used, and outside their memory.
    pub(crate) fn from_ptr(first: *mut T) -> Self {
        SharedMut(first)
    }

    /// The elements `range` of the slice.
    ///
    /// # Safety
    /// `range` is within the slice, which is still borrowed, and nothing else uses these elements meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn slice<'a>(self, range: Range<usize>) -> &'a mut [T] {
        // SAFETY: within the slice, and exclusive, as the caller guarantees.
        unsafe { std::slice::from_raw_parts_mut(self.element(range.start), range.len()) }
    }

    /// The pointer to element `index`, which may be read or written if that is within the slice.
    #[inline(always)]
    pub(crate) fn element(self, index: usize) -> *mut T {
        // Wrapping, since the pointer to element 0 may lie outside the memory.
        self.0.wrapping_add(index)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn parts_cover_each_index_once() {
        for n_threads in [1, 2, 3] {
            thread::spawn(move || {
                join_pool(n_threads).unwrap();
                assert_eq!(current(), n_threads);
                for (len, min_part, align) in [(0, 1, 1), (1, 1, 16), (100, 1, 16), (1000, 400, 1), (7, 1, 1)]
                {
                    let seen = Mutex::new(vec![0; len]);
                    for_parts(len, min_part, align, |part| {
                        for i in part {
                            seen.lock().unwrap()[i] += 1;
                        }
                    });
                    assert!(seen.into_inner().unwrap().iter().all(|&n| n == 1));
                }
            })
            .join()
            .unwrap();
        }
    }

    #[test]
    fn a_thread_in_no_pool_computes_alone() {
        assert_eq!(thread::spawn(current).join().unwrap(), 1);
    }
}
