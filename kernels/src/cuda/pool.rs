//! The pool of the driver that tensors of a device are allocated from, and the account of their bytes by use.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result, sys};

use super::driver::check_driver;
use crate::Result;
use crate::base::memory_use::MemoryUse;

/// The pool of a device and its accounting.
#[derive(Debug)]
pub(super) struct Pool {
    /// Or the reason why there is none.
    raw: Result<sys::CUmemoryPool>,
    account: Mutex<Account>,
}

/// Bytes that tensors of a device hold.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// Bytes of each use.
    pub(super) bytes: [usize; MemoryUse::ALL.len()],
    /// Peak of their sum.
    pub(super) peak: usize,
    /// Bytes of tensors whose memory is not the pool's: another library allocated it, or it is allocated by itself.
    pub(super) foreign: usize,
}

impl Account {
    pub(super) fn add(&mut self, kind: MemoryUse, bytes: usize) {
        self.bytes[kind as usize] += bytes;
        self.peak = self.peak.max(self.bytes.iter().sum());
    }
}

impl Pool {
    /// Creates the pool of the device whose context is current, unless the driver refuses it.
    pub(super) fn new(index: u32) -> Self {
        Pool { raw: Self::create(index), account: Mutex::default() }
    }

    fn create(index: u32) -> Result<sys::CUmemoryPool> {
        // SAFETY: zero is a valid value of every field: an allocation without an exportable handle, of default size.
        let mut props: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        props.handleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        props.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        props.location.id = index as i32;
        // SAFETY: the properties are complete and outlive the call.
        let raw = check_driver(index, "cuMemPoolCreate", unsafe { result::mem_pool::create(&props) })?;
        let mut keep_all = u64::MAX;
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the attribute is a 64-bit number.
        let set = unsafe { result::mem_pool::set_attribute(raw, threshold, (&raw mut keep_all).cast()) };
        check_driver(index, "cuMemPoolSetAttribute", set)?;
        Ok(raw)
    }

    pub(super) fn account(&self) -> MutexGuard<'_, Account> {
        // The numbers are consistent even after a panic.
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The driver's handle.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`] if the driver has refused to create it.
    pub(super) fn raw(&self) -> Result<sys::CUmemoryPool> {
        self.raw.clone()
    }
}
