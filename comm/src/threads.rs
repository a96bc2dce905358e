//! Ranks that are threads of one process: tests of the layers above run on them in milliseconds, and a program that uses the
//! library needs no launcher.
//!
//! ```
//! use std::time::Duration;
//!
//! use ddp_comm::{CommError, threads};
//!
//! let options = threads::Options { timeout: Some(Duration::from_millis(50)), ..threads::Options::new(2) };
//! let results = threads::run_with(options, |world| match world.rank().0 {
//!     0 => world.group().barrier(),
//!     // Leaves without the others.
//!     _ => Ok(()),
//! });
//! assert!(results[0].is_err());
//! ```

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::group::ThreadsMemory;
use crate::{Group, World};

/// Options of [`run_with`].
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
pub struct Options {
    /// Number of ranks, at least 1.
    pub world_size: usize,
    /// Time for which a rank waits for the others before its collective fails; `None` for any. A rank that has left is noticed at once.
    pub timeout: Option<Duration>,
    /// Bytes of a chunk, a multiple of 64; 0 takes the usual size. Small chunks are for tests.
    pub chunk_bytes: usize,
}

impl Options {
    /// Default options for `world_size` ranks: no timeout, since a rank may be busy for minutes, and chunks of the usual size.
    pub fn new(world_size: usize) -> Self {
        Options { world_size, timeout: None, chunk_bytes: 0 }
    }
}

/// Runs `body` once per rank, each on a thread of its own, and returns the results in rank order.
///
/// If a rank panics, or drops its world while others still need it, their collectives return
/// [`CommError::PeerLeft`](crate::CommError::PeerLeft).
///
/// # Panics
/// If a rank panicked: with the first panic, after all ranks have ended. If `world_size` is 0, or a thread cannot be started.
pub fn run<T: Send>(world_size: usize, body: impl Fn(World) -> T + Sync) -> Vec<T> {
    run_with(Options::new(world_size), body)
}

/// Runs `body` once per rank as [`run`] does, with options.
///
/// # Panics
/// In the cases of [`run`], and if `chunk_bytes` is not a multiple of 64.
#[doc(hidden)]
pub fn run_with<T: Send>(options: Options, body: impl Fn(World) -> T + Sync) -> Vec<T> {
    assert!(options.world_size > 0, "a world has at least one rank");
    assert!(options.chunk_bytes.is_multiple_of(64), "a chunk's size is a multiple of 64 bytes");
    let memory = ThreadsMemory::new(options.world_size, options.chunk_bytes, options.timeout);
    let first_panic: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);

    let rank_body = |rank: usize| {
        let world = World::from_threads(Group::Host(Box::new(memory.group(rank))));
        // Afterwards, nothing that the panic may have left half-done is used, only the panic itself.
        catch_unwind(AssertUnwindSafe(|| body(world))).map_err(|panic| {
            // Later panics are usually caused by the first.
            first_panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        })
    };
    let results: Vec<Result<T, ()>> = std::thread::scope(|scope| {
        let spawn = |rank| scope.spawn(move || rank_body(rank));
        let ranks: Vec<_> = (0..options.world_size).map(spawn).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap_or(Err(()))).collect()
    });
    if let Some(panic) = first_panic.into_inner().unwrap_or_else(PoisonError::into_inner) {
        resume_unwind(panic);
    }
    results
        .into_iter()
        .map(|result| result.expect("a rank without a result panicked, and the panic was resumed above"))
        .collect()
}
