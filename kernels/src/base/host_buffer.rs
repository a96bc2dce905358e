//! Host memory for tensors: aligned to cache lines, initialized; large buffers on huge pages.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fs::File;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use memmap2::{MmapMut, MmapOptions};

use super::device::Device;
use super::error::{KernelError, Result};

/// A cache line, and the widest vector register.
const ALIGN: usize = 64;
/// Size from which a buffer gets a mapping of its own on huge pages: a weight matrix of 64 MiB touches 32 of them instead
/// of 16,384 small pages, each of which costs a page fault and a TLB entry.
const HUGE_PAGE: usize = 2 << 20;
/// Bytes of mappings that are kept for the next result of an operation: the system zeroes the pages of a new one, which costs
/// as much as another pass over the result.
const MAX_KEPT: usize = 512 << 20;

/// A fixed-length buffer of bytes in host memory, aligned for every element type.
pub(crate) struct Buffer {
    ptr: NonNull<u8>,
    bytes: usize,
    origin: Origin,
}

/// Origin of the memory, which decides how to free it.
enum Origin {
    Heap(Layout),
    Map(Map),
}

/// Mapped memory.
struct Map {
    map: MmapMut,
    /// Aligned bytes within it.
    capacity: usize,
    /// Whether it is kept for another buffer when this one is freed.
    is_kept: bool,
}

/// Bytes in buffers, and their peak.
static ALLOCATED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
/// Mappings kept for the next results.
static KEPT: Mutex<Vec<Map>> = Mutex::new(Vec::new());

/// Bytes that buffers hold.
pub(crate) fn allocated() -> usize {
    ALLOCATED.load(Ordering::Relaxed)
}

/// Peak of [`allocated`] since the start or [`reset_peak`].
pub(crate) fn peak() -> usize {
    PEAK.load(Ordering::Relaxed)
}

/// Resets the peak to the current use.
pub(crate) fn reset_peak() {
    PEAK.store(allocated(), Ordering::Relaxed);
}

/// Bytes of mappings that are kept for later buffers.
pub(crate) fn kept() -> usize {
    with_kept(|kept| kept.iter().map(|map| map.capacity).sum())
}

/// Returns the kept mappings to the system.
pub(crate) fn empty_cache() {
    with_kept(|kept| drop(std::mem::take(kept)));
}

fn with_kept<R>(f: impl FnOnce(&mut Vec<Map>) -> R) -> R {
    // The list is whole even after a panic.
    f(&mut KEPT.lock().unwrap_or_else(PoisonError::into_inner))
}

// SAFETY: a buffer owns its memory exclusively, and bytes are plain data.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Allocates zero bytes.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`].
    pub(crate) fn zeroed(bytes: usize) -> Result<Self> {
        Self::new(bytes, if bytes >= HUGE_PAGE { map(bytes, false) } else { allocate(bytes) })
    }

    /// Allocates bytes of any initialized contents, which the caller overwrites: a large buffer takes over the mapping of an
    /// earlier one.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`].
    pub(crate) fn for_result(bytes: usize) -> Result<Self> {
        if bytes < HUGE_PAGE {
            return Self::zeroed(bytes);
        }
        let reused = with_kept(|kept| {
            let fits = |map: &Map| (bytes..=bytes.saturating_mul(2)).contains(&map.capacity);
            let best = (0..kept.len()).filter(|&i| fits(&kept[i])).min_by_key(|&i| kept[i].capacity);
            best.map(|i| kept.swap_remove(i))
        });
        Self::new(bytes, reused.and_then(start_of).or_else(|| map(bytes, true)))
    }

    /// The bytes of `file` from `start` on, a multiple of the page size: in memory that all processes that map the file share, until a
    /// page is written, of which this buffer then has a copy of its own.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`] if the system can't map them, or the file is shorter.
    pub(crate) fn from_file(file: &File, start: u64, bytes: usize) -> Result<Self> {
        let is_long_enough = file
            .metadata()
            .is_ok_and(|of| start.checked_add(bytes as u64).is_some_and(|end| end <= of.len()));
        if bytes == 0 || !is_long_enough {
            return if bytes == 0 { Self::zeroed(0) } else { Self::new(bytes, None) };
        }
        // SAFETY: the mapping is private and plain bytes: any bits are valid, whatever others write to the file.
        let map = unsafe { MmapOptions::new().offset(start).len(bytes).map_copy(file) };
        let memory = map.ok().and_then(|mut map| {
            let ptr = NonNull::new(map.as_mut_ptr())?;
            Some((ptr, Origin::Map(Map { map, capacity: bytes, is_kept: false })))
        });
        Self::new(bytes, memory)
    }

    fn new(bytes: usize, memory: Option<(NonNull<u8>, Origin)>) -> Result<Self> {
        let Some((ptr, origin)) = memory else {
            return Err(KernelError::OutOfMemory { device: Device::Cpu, bytes, in_use: None });
        };
        let now = ALLOCATED.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK.fetch_max(now, Ordering::Relaxed);
        Ok(Buffer { ptr, bytes, origin })
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
fn map(bytes: usize, is_kept: bool) -> Option<(NonNull<u8>, Origin)> {
    let map = MmapMut::map_anon(bytes.checked_add(HUGE_PAGE)?).ok()?;
    #[cfg(target_os = "linux")]
    // Only advice: a refusal affects nothing but speed.
    let _ = map.advise(memmap2::Advice::HugePage);
    start_of(Map { map, capacity: bytes, is_kept })
}

/// The aligned start of a mapping.
fn start_of(mut map: Map) -> Option<(NonNull<u8>, Origin)> {
    let start = map.map.as_ptr().align_offset(HUGE_PAGE);
    let ptr = NonNull::new(map.map.get_mut(start..)?.as_mut_ptr())?;
    Some((ptr, Origin::Map(map)))
}

impl std::ops::Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `ptr` points to that many bytes, initialized and owned by `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.bytes) }
    }
}

impl std::ops::DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        ALLOCATED.fetch_sub(self.bytes, Ordering::Relaxed);
        match std::mem::replace(&mut self.origin, Origin::Heap(Layout::new::<()>())) {
            // SAFETY: allocated with this layout in `allocate`, and freed once.
            Origin::Heap(layout) => unsafe { dealloc(self.ptr.as_ptr(), layout) },
            Origin::Map(map) if map.is_kept => with_kept(|kept| {
                let total: usize = kept.iter().map(|map| map.capacity).sum();
                if total.saturating_add(map.capacity) <= MAX_KEPT {
                    kept.push(map);
                }
            }),
            Origin::Map(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_zeroed_and_aligned_at_every_size() {
        for len in [0, 1, 15, 1000, HUGE_PAGE, HUGE_PAGE + 8] {
            let buffer = Buffer::zeroed(len).unwrap();
            assert_eq!((buffer.len(), buffer.as_ptr() as usize % ALIGN), (len, 0));
            assert!(buffer.iter().all(|&v| v == 0));
        }
    }

    #[test]
    fn a_page_of_a_file_that_is_written_is_no_longer_shared() {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, &[7; 3 * 4096]).unwrap();
        let map = || Buffer::from_file(&file, 4096, 2 * 4096).unwrap();
        let (mut first, second) = (map(), map());
        first[0] = 9;
        assert_eq!((first[0], first[1], second[0], map()[0]), (9, 7, 7, 7));
        assert_eq!((first.len(), first.as_ptr() as usize % ALIGN), (2 * 4096, 0));
        assert!(Buffer::from_file(&file, 0, 0).unwrap().is_empty());
        for (start, len) in [(4096, 2 * 4096 + 1), (u64::MAX, 4096)] {
            assert!(matches!(Buffer::from_file(&file, start, len), Err(KernelError::OutOfMemory { .. })));
        }
    }

    #[test]
    fn a_size_beyond_the_address_space_is_an_error() {
        for make in [Buffer::zeroed, Buffer::for_result] {
            assert!(matches!(make(usize::MAX - 7), Err(KernelError::OutOfMemory { .. })));
        }
    }

    #[test]
    fn a_result_takes_over_the_mapping_of_an_earlier_one() {
        // Sizes that no other test uses.
        let bytes = 37 * HUGE_PAGE + 24;
        let mut first = Buffer::for_result(bytes).unwrap();
        first.fill(7);
        let start = first.as_ptr();
        drop(first);
        let second = Buffer::for_result(bytes - 8).unwrap();
        assert_eq!((second.as_ptr(), second.len()), (start, bytes - 8));
        assert!(Buffer::zeroed(bytes).unwrap().iter().all(|&v| v == 0));
    }
}
