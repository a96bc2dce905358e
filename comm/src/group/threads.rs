//! Ranks that are threads of one process.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use super::lockstep::{Board, Geometry, HeapRegion, Lockstep, Patience, Region};
use super::traffic::Counter;
use crate::{Departure, Rank};

/// Memory that all ranks of one job of threads share.
pub(crate) struct ThreadsMemory {
    heap: Arc<HeapRegion>,
    geometry: Geometry,
    patience: Patience,
    timeout: Option<Duration>,
}

impl ThreadsMemory {
    /// Memory for `world_size` ranks, which wait `timeout` for each other.
    ///
    /// - `chunk_bytes`: a multiple of 64; 0 takes the usual size
    pub(crate) fn new(world_size: usize, chunk_bytes: usize, timeout: Option<Duration>) -> Self {
        let mut geometry = Geometry::usual(world_size);
        if chunk_bytes > 0 {
            geometry.chunk_bytes = chunk_bytes;
        }
        let n_cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        let patience = Patience::new(world_size, n_cores);
        ThreadsMemory { heap: HeapRegion::new(geometry), geometry, patience, timeout }
    }

    /// The group of one rank.
    pub(crate) fn group(&self, rank: usize) -> ThreadsGroup {
        let board = Board::new(Region::Heap(Arc::clone(&self.heap)), self.geometry);
        let lockstep = Lockstep::new(board, rank, self.patience, self.timeout);
        let world_size = self.geometry.world_size;
        ThreadsGroup { lockstep: RefCell::new(lockstep), rank, world_size, traffic: Counter::default() }
    }
}

/// The group of a rank that is a thread.
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
