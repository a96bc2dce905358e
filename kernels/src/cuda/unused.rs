//! Memory that nothing uses any more, and how to free it.

use std::fmt;

use cudarc::driver::{result, sys};

use super::pinned::Pinned;
use super::stream::Stream;

/// Memory that no tensor or other owner uses any more.
#[derive(Debug)]
pub(super) enum Unused {
    /// An allocation of the pool.
    OfPool(sys::CUdeviceptr),
    /// An allocation by itself.
    Single(sys::CUdeviceptr),
    /// Returned to the other library when dropped.
    Foreign(Release),
    /// Host memory that kernels wrote to, none of which is still running.
    Host(Pinned),
}

impl Unused {
    /// Frees it after all work enqueued on the compute stream. A failure cannot be reported.
    pub(super) fn free(self, compute: &Stream) {
        match self {
            Unused::OfPool(ptr) if compute.bind().is_ok() => {
                // SAFETY: the memory is the pool's, and its owner gives it up here, once.
                let _ = unsafe { result::free_async(ptr, compute.raw()) };
            }
            // Unlike the pool, the driver does not know which work is to be waited for.
            Unused::Single(ptr) if compute.synchronize().is_ok() => {
                // SAFETY: the memory was allocated by itself, and its owner gives it up here, once.
                let _ = unsafe { result::free_sync(ptr) };
            }
            Unused::OfPool(_) | Unused::Single(_) => {}
            Unused::Foreign(release) => drop(release),
            Unused::Host(memory) => drop(memory),
        }
    }
}

/// Returns memory to the library that allocated it, when dropped.
pub(super) struct Release(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Release {
    pub(super) fn new(release: impl FnOnce() + Send + Sync + 'static) -> Self {
        Release(Some(Box::new(release)))
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        if let Some(release) = self.0.take() {
            release();
        }
    }
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Release")
    }
}
