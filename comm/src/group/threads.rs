//! Memory of ranks that are threads of one process.

use std::sync::Arc;
use std::time::Duration;

use super::host::{Joined, Place};
use super::host_group::{HostGroup, Transport};
use super::lockstep::{Board, Geometry, HeapRegion, Lockstep, Patience, Region};

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
    pub(crate) fn group(&self, rank: usize) -> HostGroup {
        let board = Board::new(Region::Heap(Arc::clone(&self.heap)), self.geometry);
        let lockstep = Lockstep::new(board, rank, self.patience, self.timeout);
        let world_size = self.geometry.world_size;
        let place = Place { rank, world_size, local_rank: rank, local_size: world_size };
        HostGroup::new(Joined { transport: Transport::Threads, shared: Ok(lockstep), place })
    }
}
