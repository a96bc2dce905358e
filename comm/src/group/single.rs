//! Collectives of a world of one rank: copies at most.

use ddp_kernels::cuda::{CudaSlice, CudaSliceMut, peer};

use super::buffer::{RawMut, RawRef};
use super::traffic::Counter;
use crate::Result;

/// The group of a world of one rank.
#[derive(Debug, Default)]
pub struct SingleGroup {
    pub(super) traffic: Counter,
}

impl SingleGroup {
    /// Runs any collective over one rank: copies its input to its output; on a GPU, in the compute stream.
    ///
    /// # Safety
    /// Both hold `output.len` elements of one type on one device, nothing else accesses them, and they are the same or disjoint.
    pub(super) unsafe fn run(&self, input: RawRef, output: RawMut) -> Result<()> {
        if std::ptr::eq(input.ptr, output.ptr) || output.len == 0 {
            return Ok(());
        }
        let Some(gpu) = output.gpu else {
            let n_bytes = output.len * output.dtype.size_bytes();
            // SAFETY: as this function's; they are not the same, so they are disjoint.
            unsafe { std::ptr::copy_nonoverlapping(input.ptr, output.ptr, n_bytes) };
            return Ok(());
        };
        let (from, to) = (input.ptr.addr() as u64, output.ptr.addr() as u64);
        // SAFETY: as this function's; the copy comes after all work of the compute stream so far, and later work, freeing memory
        // included, comes after the copy.
        let from = unsafe { CudaSlice::from_raw(gpu, from, output.len, output.dtype) };
        // SAFETY: as above.
        let to = unsafe { CudaSliceMut::from_raw(gpu, to, output.len, output.dtype) };
        peer::copy(from, to)?;
        Ok(())
    }
}
