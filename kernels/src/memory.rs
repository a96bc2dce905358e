//! Host memory for tensors: aligned to cache lines, zeroed; large buffers on huge pages.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use memmap2::MmapMut;

use crate::{Device, Element, KernelError, Result};

/// A cache line, and the widest vector register.
const ALIGN: usize = 64;
/// Size from which a buffer gets a mapping of its own on huge pages: a weight matrix of 64 MiB touches 32 of them instead
/// of 16,384 small pages, each of which costs a page fault and a TLB entry.
const HUGE_PAGE: usize = 2 << 20;

/// A fixed-length zeroed buffer of `T` in host memory.
pub(crate) struct Buffer<T: Element> {
    ptr: NonNull<T>,
    len: usize,
    origin: Origin,
}

/// Origin of the memory, which decides how to free it.
enum Origin {
    Heap(Layout),
    /// Freed when the map is dropped.
    Map {
        _map: MmapMut,
    },
}

// SAFETY: a buffer owns its memory exclusively, and `T` is plain data.
unsafe impl<T: Element> Send for Buffer<T> {}
// SAFETY: shared access only reads.
unsafe impl<T: Element> Sync for Buffer<T> {}

impl<T: Element> Buffer<T> {
    /// Allocates `len` zeros.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`].
    pub(crate) fn zeroed(len: usize) -> Result<Self> {
        let bytes = len.saturating_mul(size_of::<T>());
        let memory = if bytes >= HUGE_PAGE { map(bytes) } else { allocate(bytes) };
        match memory {
            Some((ptr, origin)) => Ok(Buffer { ptr: ptr.cast(), len, origin }),
            None => Err(KernelError::OutOfMemory { device: Device::Cpu, bytes, in_use: None }),
        }
    }

    /// Allocates a copy of `values`.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`].
    pub(crate) fn from_slice(values: &[T]) -> Result<Self> {
        let mut buffer = Self::zeroed(values.len())?;
        buffer.copy_from_slice(values);
        Ok(buffer)
    }
}

/// Allocates zeroed heap memory, aligned to [`ALIGN`].
fn allocate(bytes: usize) -> Option<(NonNull<u8>, Origin)> {
    let layout = Layout::from_size_align(bytes.max(1), ALIGN).ok()?;
    // SAFETY: the layout's size is at least 1.
    let ptr = unsafe { alloc_zeroed(layout) };
    Some((NonNull::new(ptr)?, Origin::Heap(layout)))
}

/// Maps zeroed memory, aligned to [`HUGE_PAGE`]. Pages are committed when first touched.
fn map(bytes: usize) -> Option<(NonNull<u8>, Origin)> {
    let mut map = MmapMut::map_anon(bytes.checked_add(HUGE_PAGE)?).ok()?;
    #[cfg(target_os = "linux")]
    // Only advice: a refusal affects nothing but speed.
    let _ = map.advise(memmap2::Advice::HugePage);
    let start = map.as_ptr().align_offset(HUGE_PAGE);
    let ptr = NonNull::new(map.get_mut(start..)?.as_mut_ptr())?;
    Some((ptr, Origin::Map { _map: map }))
}

impl<T: Element> std::ops::Deref for Buffer<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `ptr` is aligned and holds `len` elements, initialised (zeroed plain data) and owned by `self`.
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
        if let Origin::Heap(layout) = self.origin {
            // SAFETY: allocated with this layout in `allocate`, and freed once.
            unsafe { dealloc(self.ptr.as_ptr().cast(), layout) }
        }
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
        assert!(matches!(Buffer::<f64>::zeroed(usize::MAX / 8), Err(KernelError::OutOfMemory { .. })));
    }
}
