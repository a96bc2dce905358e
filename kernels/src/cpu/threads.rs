//! The compute threads of a rank.
//!
//! Operations split their work over the rayon pool that the calling thread belongs to. A rank's main thread joins
//! its own pool once ([`join_pool`]) and is one of its workers from then on, so that nothing is handed to another
//! thread where one thread is all there is, and MPI is called from one thread only.

use std::ops::Range;

use crate::{KernelError, Result};

/// Makes the calling thread a member of a new pool of `n_threads`, itself included.
///
/// Every operation that this thread calls from now on is computed by that pool. A thread can join one pool only.
///
/// # Errors
/// [`KernelError::Threads`] if the system refuses, or if the thread is in a pool already.
pub fn join_pool(n_threads: usize) -> Result<()> {
    let error = |reason: String| KernelError::Threads { threads: n_threads, reason };
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(n_threads)
        .thread_name(|i| format!("compute-{i}"))
        .use_current_thread()
        .build()
        .map_err(|e| error(e.to_string()))?;
    // Dropping the handle would end the pool's other threads, and the calling thread is a member for its lifetime.
    std::mem::forget(pool);
    Ok(())
}

/// Threads that compute for the calling thread: 1 for a thread that has joined no pool.
pub fn current() -> usize {
    if rayon::current_thread_index().is_some() { rayon::current_num_threads() } else { 1 }
}

/// Cores that this process may use (its affinity mask and container quota), divided by the ranks on this host.
pub fn default_per_rank(ranks_on_host: usize) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    (cores / ranks_on_host.max(1)).max(1)
}

/// Runs `f` on parts of `0..len` that cover it exactly once, one part a thread, each but the last a multiple of
/// `align`; in one part where `len < 2 * min_part`.
#[inline]
pub(crate) fn for_parts(len: usize, min_part: usize, align: usize, f: impl Fn(Range<usize>) + Sync) {
    let n_parts = current().min(len / min_part.max(1)).max(1);
    if n_parts == 1 {
        return f(0..len);
    }
    let part = len.div_ceil(n_parts).next_multiple_of(align);
    rayon::scope(|scope| {
        for start in (part..len).step_by(part) {
            let f = &f;
            scope.spawn(move |_| f(start..(start + part).min(len)));
        }
        f(0..part.min(len));
    });
}

/// A pointer that threads may share because each of them writes a part of its own.
#[derive(Clone, Copy)]
pub(crate) struct SharedMut<T>(*mut T);

// SAFETY: whoever dereferences it states which part is theirs alone.
unsafe impl<T> Send for SharedMut<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SharedMut<T> {}

impl<T> SharedMut<T> {
    pub(crate) fn new(slice: &mut [T]) -> Self {
        SharedMut(slice.as_mut_ptr())
    }

    /// The elements `range` of the slice.
    ///
    /// # Safety
    /// `range` lies within the slice, which is still borrowed, and nobody else uses these elements meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn slice<'a>(self, range: Range<usize>) -> &'a mut [T] {
        // SAFETY: within the slice, by the caller's word.
        let start = unsafe { self.0.add(range.start) };
        // SAFETY: as above, and exclusive by the caller's word.
        unsafe { std::slice::from_raw_parts_mut(start, range.len()) }
    }

    /// The pointer to element `index`.
    ///
    /// # Safety
    /// `index` is at most the slice's length.
    #[inline(always)]
    pub(crate) unsafe fn add(self, index: usize) -> *mut T {
        // SAFETY: within the slice or one past its end, by the caller's word.
        unsafe { self.0.add(index) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn parts_cover_each_index_once() {
        for n_threads in [1, 2, 3] {
            std::thread::spawn(move || {
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
        assert_eq!(std::thread::spawn(current).join().unwrap(), 1);
    }

    #[test]
    fn cores_are_divided_over_the_ranks_of_a_host() {
        let cores = std::thread::available_parallelism().unwrap().get();
        assert_eq!(default_per_rank(1), cores);
        assert_eq!(default_per_rank(cores), 1);
        assert_eq!(default_per_rank(10 * cores), 1);
    }
}
