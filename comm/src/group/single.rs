//! A world of one: no launcher, no MPI, nothing to wait for.

use super::buffer::{RawMut, RawRef};
use crate::Result;

/// The group of a process that runs alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct SingleGroup(());

impl SingleGroup {
    /// Any collective over one rank: its input becomes its output.
    ///
    /// # Safety
    /// Both hold `output.len` elements of one type, nobody else touches them, and they are the same or disjoint.
    pub(super) unsafe fn run(self, input: RawRef, output: RawMut) -> Result<()> {
        if !std::ptr::eq(input.ptr, output.ptr) {
            let n_bytes = output.len * output.dtype.size_bytes();
            // SAFETY: as this function's; they are not the same, so they are disjoint.
            unsafe { std::ptr::copy_nonoverlapping(input.ptr, output.ptr, n_bytes) };
        }
        Ok(())
    }
}
