//! Host memory for tensors: aligned to cache lines, zeroed, on huge pages where it is large.

use std::alloc::{Layout, alloc, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use crate::{Device, Element, KernelError, Result};

/// A cache line, and the widest vector register.
const ALIGN: usize = 64;
/// From this size a buffer is aligned to, and asks for, huge pages: a weight matrix of 64 MiB touches
/// 32 of them instead of 16,384 small ones, each of which costs a fault and a TLB entry.
const HUGE_PAGE: usize = 2 << 20;

/// A fixed-length zeroed buffer of `T` in host memory.
pub(crate) struct Buffer<T: Element> {
    ptr: NonNull<T>,
    len: usize,
    layout: Layout,
}

// SAFETY: a buffer owns its memory exclusively, and `T` is plain data.
unsafe impl<T: Element> Send for Buffer<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Element> Sync for Buffer<T> {}

impl<T: Element> Buffer<T> {
    /// `len` zeros.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`] where the system refuses.
    pub(crate) fn zeroed(len: usize) -> Result<Self> {
        let bytes = len.saturating_mul(size_of::<T>());
        let out_of_memory = KernelError::OutOfMemory {
            device: Device::Cpu,
            bytes,
        };
        let align = if bytes >= HUGE_PAGE { HUGE_PAGE } else { ALIGN };
        let layout =
            Layout::from_size_align(bytes.max(1), align).map_err(|_| out_of_memory.clone())?;
        let raw = if bytes >= HUGE_PAGE {
            alloc_huge_zeroed(layout)
        } else {
            alloc_small_zeroed(layout)
        };
        let ptr = NonNull::new(raw.cast::<T>()).ok_or(out_of_memory)?;
        Ok(Buffer { ptr, len, layout })
    }

    /// A buffer with a copy of `values`.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`] where the system refuses.
    pub(crate) fn from_slice(values: &[T]) -> Result<Self> {
        let mut buffer = Self::zeroed(values.len())?;
        buffer.copy_from_slice(values);
        Ok(buffer)
    }
}

/// Zeroed memory; null where the system refuses.
fn alloc_small_zeroed(layout: Layout) -> *mut u8 {
    // SAFETY: the layout's size is at least 1.
    unsafe { alloc_zeroed(layout) }
}

/// Zeroed memory on huge pages where the kernel grants them; null where the system refuses.
fn alloc_huge_zeroed(layout: Layout) -> *mut u8 {
    // SAFETY: the layout's size is not zero.
    let raw = unsafe { alloc(layout) };
    if raw.is_null() {
        return raw;
    }
    #[cfg(target_os = "linux")]
    // SAFETY: the range is ours and page-aligned. It is advice: a refusal changes nothing but speed.
    unsafe {
        libc::madvise(raw.cast(), layout.size(), libc::MADV_HUGEPAGE);
    }
    // Zeroed only now, so that the first touch of each page comes after the advice.
    // SAFETY: `raw` holds `layout.size()` writable bytes.
    unsafe { raw.write_bytes(0, layout.size()) };
    raw
}

impl<T: Element> std::ops::Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `ptr` is aligned and holds `len` elements, initialised (zeroed plain data) and owned by self.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Element> std::ops::DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }
}

impl<T: Element> Drop for Buffer<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this layout, and freed once.
        unsafe { dealloc(self.ptr.as_ptr().cast(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zeroed_and_aligned_at_every_size() {
        for len in [0, 1, 15, 1000, HUGE_PAGE / 4, HUGE_PAGE] {
            let buffer = Buffer::<f32>::zeroed(len).unwrap();
            assert_eq!(buffer.len(), len);
            assert_eq!(buffer.as_ptr() as usize % ALIGN, 0);
            assert!(buffer.iter().all(|&v| v == 0.0));
        }
    }

    #[test]
    fn a_size_beyond_the_address_space_is_an_error() {
        assert!(matches!(
            Buffer::<f64>::zeroed(usize::MAX / 8),
            Err(KernelError::OutOfMemory { .. })
        ));
    }
}
