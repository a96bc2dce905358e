//! Page-locked host memory, or where that is not used, other memory that copies work with.
//!
//! Page-locked memory that is dropped is kept for the next of its size: each evaluation has buffers of the same sizes, and the driver
//! takes 0.1 to 0.5 ms to lock or unlock pages, for which it waits for the device.

use std::alloc::{self, Layout};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result, sys};

use super::context::Context;
use super::driver::check_driver;
use crate::{Device, KernelError, Result};

/// Page-locked host memory, which the device reads and writes directly: copies from and to it are asynchronous. Or other memory, of
/// which copies to the device are complete on the host's side when their call returns, and copies to it altogether.
#[derive(Debug)]
pub(crate) struct Pinned {
    context: Context,
    ptr: *mut u8,
    bytes: usize,
    /// Flags of page-locked memory; None for other memory.
    locked: Option<u32>,
}

/// Most bytes kept on a device's behalf; what is beyond is returned to the system.
const MAX_KEPT_BYTES: usize = 256 << 20;

/// Dropped memory of all devices.
struct Kept {
    /// Addresses by device, bytes and flags.
    free: BTreeMap<(u32, usize, u32), Vec<usize>>,
    bytes: usize,
}

fn kept() -> MutexGuard<'static, Kept> {
    static KEPT: Mutex<Kept> = Mutex::new(Kept { free: BTreeMap::new(), bytes: 0 });
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    fn take(&mut self, key: (u32, usize, u32)) -> Option<*mut u8> {
        let address = self.free.get_mut(&key)?.pop()?;
        self.bytes -= key.1;
        Some(std::ptr::with_exposed_provenance_mut(address))
    }

    /// Keeps the memory, or returns false where that would be too much.
    fn keep(&mut self, key: (u32, usize, u32), ptr: *mut u8) -> bool {
        let has_room = self.bytes + key.1 <= MAX_KEPT_BYTES;
        if has_room {
            self.bytes += key.1;
            self.free.entry(key).or_default().push(ptr.expose_provenance());
        }
        has_room
    }
}

/// Alignment of memory that is not page-locked: a page.
const PAGE_BYTES: usize = 4096;

// SAFETY: the memory has one owner.
unsafe impl Send for Pinned {}
// SAFETY: shared access only reads.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates `bytes` zero bytes, page-locked where `is_locked`.
    pub(crate) fn zeroed(context: Context, bytes: usize, is_locked: bool) -> Result<Self> {
        if is_locked {
            // Not write-combined: the host gathers small pieces into it, and reads results from it.
            return Self::locked(context, bytes, 0);
        }
        let out_of_memory = || KernelError::OutOfMemory { device: Device::Cpu, bytes, in_use: None };
        let layout = layout(bytes).ok_or_else(out_of_memory)?;
        // SAFETY: the layout has at least one byte.
        let ptr = unsafe { alloc::alloc_zeroed(layout) };
        if ptr.is_null() { Err(out_of_memory()) } else { Ok(Pinned { context, ptr, bytes, locked: None }) }
    }

    /// Allocates `bytes` zero bytes that kernels access too, and returns their address on the device.
    pub(crate) fn mapped(context: Context, bytes: usize) -> Result<(Self, sys::CUdeviceptr)> {
        let host = Self::locked(context, bytes, sys::CU_MEMHOSTALLOC_DEVICEMAP)?;
        let mut ptr = 0;
        // SAFETY: the memory is page-locked and mapped; the context is current.
        let got = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut ptr, host.ptr.cast(), 0) };
        check_driver(context.index(), "cuMemHostGetDevicePointer", got.result())?;
        Ok((host, ptr))
    }

    /// Allocates `bytes` zero bytes, page-locked.
    pub(super) fn locked(context: Context, bytes: usize, flags: u32) -> Result<Self> {
        context.bind()?;
        let kept = kept().take((context.index(), bytes, flags));
        let ptr = match kept {
            Some(ptr) => ptr,
            // SAFETY: the context is current.
            None => match unsafe { result::malloc_host(bytes.max(1), flags) } {
                Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                    return Err(KernelError::OutOfMemory { device: Device::Cpu, bytes, in_use: None });
                }
                other => check_driver(context.index(), "cuMemHostAlloc", other)?.cast::<u8>(),
            },
        };
        // SAFETY: the memory belongs to `self` and has that length.
        unsafe { std::ptr::write_bytes(ptr, 0, bytes.max(1)) };
        Ok(Pinned { context, ptr, bytes, locked: Some(flags) })
    }

    pub(crate) fn as_slice<T: bytemuck::Pod>(&self) -> &[T] {
        // SAFETY: the driver aligns to a page; the memory holds zeroed plain data and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.bytes / size_of::<T>()) }
    }

    pub(crate) fn as_mut_slice<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), self.bytes / size_of::<T>()) }
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let Some(flags) = self.locked else {
            let layout = layout(self.bytes).expect("it was allocated with it");
            // SAFETY: allocated in `zeroed` with this layout, freed once; users of the memory wait for their copies first.
            unsafe { alloc::dealloc(self.ptr, layout) };
            return;
        };
        // Users of the memory have waited for their copies.
        let is_kept = kept().keep((self.context.index(), self.bytes, flags), self.ptr);
        if !is_kept && self.context.bind().is_ok() {
            // SAFETY: allocated in `locked`, and freed once.
            let _ = unsafe { result::free_host(self.ptr.cast()) };
        }
    }
}

/// The layout of memory that is not page-locked.
fn layout(bytes: usize) -> Option<Layout> {
    Layout::from_size_align(bytes.max(1), PAGE_BYTES).ok()
}
