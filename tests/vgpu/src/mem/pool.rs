//! Stream-ordered memory pools: the memory that they hold, reserve and release. The functions of the API are in
//! [`crate::driver::pool`].
//!
//! A pool reserves memory of its device in large steps and keeps it for later allocations. At a synchronization it
//! releases unused memory, down to the release threshold (default 0).
//!
//! Source: CUDA Driver API, "Stream Ordered Memory Allocator". The size of the steps is not documented: 32 MiB on an H100 with
//! driver 580.

use crate::code::OUT_OF_MEMORY;
use crate::config::CONFIG;

/// Memory is reserved in multiples of this.
const STEP: u64 = 32 << 20;

/// A quantity and its maximum since the mark was reset.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Level {
    pub(crate) now: u64,
    pub(crate) high: u64,
}

impl Level {
    fn set(&mut self, now: u64) {
        self.now = now;
        self.high = self.high.max(now);
    }
}

/// One pool.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) device: usize,
    /// Maximum number of bytes that it may reserve; 0 for no limit.
    most: u64,
    /// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`, bytes.
    pub(crate) threshold: u64,
    /// The three `CU_MEMPOOL_ATTR_REUSE_*` switches. They have no effect, because addresses are never reused here.
    pub(crate) reuse: [i32; 3],
    pub(crate) reserved: Level,
    pub(crate) used: Level,
    /// The devices that can access its memory.
    pub(crate) access: Vec<bool>,
}

impl Pool {
    pub(crate) fn new(device: usize, most: u64) -> Pool {
        Pool {
            device,
            most,
            threshold: 0,
            reuse: [1; 3],
            reserved: Level::default(),
            used: Level::default(),
            access: (0..CONFIG.devices()).map(|d| d == device).collect(),
        }
    }

    /// Number of bytes that the pool must reserve additionally to allocate `bytes` more.
    pub(crate) fn growth_for(&self, bytes: u64) -> Result<u64, i32> {
        let needed = (self.used.now + bytes).next_multiple_of(STEP);
        if self.most > 0 && needed > self.most.next_multiple_of(STEP) {
            return Err(OUT_OF_MEMORY);
        }
        Ok(needed.saturating_sub(self.reserved.now))
    }

    /// Records that `bytes` were allocated (negative: freed).
    pub(crate) fn account(&mut self, bytes: i64) {
        self.used.set(self.used.now.wrapping_add_signed(bytes));
        self.reserved.set(self.reserved.now.max(self.used.now.next_multiple_of(STEP)));
    }

    /// Releases unused memory, down to `keep` bytes.
    pub(crate) fn trim(&mut self, keep: u64) {
        let needed = self.used.now.next_multiple_of(STEP);
        self.reserved
            .set(self.reserved.now.min(needed.max(keep.checked_next_multiple_of(STEP).unwrap_or(keep))));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_keeps_what_its_threshold_says() {
        let mut pool = Pool::new(0, 0);
        assert_eq!(pool.growth_for(100).unwrap(), STEP);
        pool.account(3 * STEP as i64);
        pool.account(-2 * STEP as i64);
        assert_eq!((pool.used.now, pool.used.high, pool.reserved.now), (STEP, 3 * STEP, 3 * STEP));
        assert_eq!(pool.growth_for(STEP).unwrap(), 0);
        pool.trim(2 * STEP);
        assert_eq!(pool.reserved.now, 2 * STEP);
        pool.trim(0);
        assert_eq!((pool.reserved.now, pool.reserved.high), (STEP, 3 * STEP));
    }

    #[test]
    fn a_pool_with_a_limit_refuses_more() {
        let mut pool = Pool::new(0, STEP);
        pool.account(STEP as i64);
        assert_eq!(pool.growth_for(1), Err(OUT_OF_MEMORY));
    }
}
