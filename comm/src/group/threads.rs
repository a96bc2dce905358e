//! Ranks that are threads of one process: all logic above is tested on them in milliseconds, and a program that
//! uses the library needs no launcher.

use std::any::Any;
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Group;
use super::lockstep::{Board, Geometry, HeapRegion, Lockstep, Patience, Region};
use super::traffic::Counter;
use crate::{Departure, Rank, World};

/// How long a rank waits for the others, if nothing else is said.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// One rank's group among threads.
pub struct ThreadsGroup {
    lockstep: RefCell<Lockstep>,
    rank: usize,
    world_size: usize,
    pub(super) traffic: Counter,
}

impl ThreadsGroup {
    pub(super) fn rank(&self) -> Rank {
        Rank(self.rank)
    }

    pub(super) fn world_size(&self) -> usize {
        self.world_size
    }

    pub(super) fn lockstep(&self) -> &RefCell<Lockstep> {
        &self.lockstep
    }
}

impl Drop for ThreadsGroup {
    fn drop(&mut self) {
        let how = if std::thread::panicking() { Departure::Panicked } else { Departure::Closed };
        self.lockstep.get_mut().depart(how);
    }
}

impl std::fmt::Debug for ThreadsGroup {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ThreadsGroup(rank {} of {})", self.rank, self.world_size)
    }
}

/// How [`run_with`] runs its ranks.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Number of ranks, at least 1.
    pub world_size: usize,
    /// How long a rank waits for the others before its collective fails.
    pub timeout: Duration,
    /// Bytes of a chunk, a multiple of 64; 0 takes the usual size. Small ones are for tests.
    pub chunk_bytes: usize,
}

impl Options {
    /// The usual options for this many ranks.
    pub fn new(world_size: usize) -> Self {
        Options { world_size, timeout: DEFAULT_TIMEOUT, chunk_bytes: 0 }
    }
}

/// Runs `body` once for each rank, on a thread of its own, and returns what they returned, in rank order.
///
/// A rank that panics, or drops its world while others still need it, makes their collectives return
/// [`CommError::PeerLeft`](crate::CommError::PeerLeft).
///
/// # Panics
/// With the first rank's panic, once all have ended. If `world_size` is 0, or a thread cannot be started.
pub fn run<T: Send>(world_size: usize, body: impl Fn(World) -> T + Sync) -> Vec<T> {
    run_with(Options::new(world_size), body)
}

/// As [`run`], with options.
///
/// # Panics
/// As [`run`]; if the chunk's size is no multiple of 64.
pub fn run_with<T: Send>(options: Options, body: impl Fn(World) -> T + Sync) -> Vec<T> {
    assert!(options.world_size > 0, "a world has at least one rank");
    assert!(options.chunk_bytes.is_multiple_of(64), "a chunk's size is a multiple of 64 bytes");
    let mut geometry = Geometry::usual(options.world_size);
    if options.chunk_bytes > 0 {
        geometry.chunk_bytes = options.chunk_bytes;
    }
    let heap = HeapRegion::new(geometry);
    let n_cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    let patience = Patience::new(options.world_size, n_cores);
    let first_panic: Mutex<Option<Box<dyn Any + Send>>> = Mutex::new(None);

    let rank_body = |rank: usize| {
        let board = Board::new(Region::Heap(Arc::clone(&heap)), geometry);
        let lockstep = Lockstep::new(board, rank, patience, Some(options.timeout));
        let (lockstep, world_size) = (RefCell::new(lockstep), options.world_size);
        let group = ThreadsGroup { lockstep, rank, world_size, traffic: Counter::default() };
        let world = World::of_threads(Group::Threads(Box::new(group)));
        // Nothing that a panic may have left half-done is looked at afterwards but the panic itself.
        catch_unwind(AssertUnwindSafe(|| body(world))).map_err(|panic| {
            // Later panics are mostly the consequence of the first.
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
    results.into_iter().map(|result| result.expect("a rank without result has panicked")).collect()
}
