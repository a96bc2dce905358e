//! The memory that the ranks of one host share: counters by which they follow each other, and slots for data.
//!
//! ```text
//! | line of rank 0 | line of rank 1 | ... | slots of rank 0 | slots of rank 1 | ... | message of rank 0 | message of rank 1 | ...
//!   a line: posted, reduced, consumed, state | sleeping, bell    a slot: call (2 words) | chunk    a message: see `message.rs`
//! ```
//!
//! The collectives of a group are cut into chunks, numbered consecutively, the same on every rank. Only rank `r` writes its
//! counters and its slots. Chunk `c` goes through slot `c % n_slots`:
//!
//! - `posted > c`: the slot holds the data of `r` for chunk `c`; all may read it
//! - `reduced > c`: slice `r` of the slot holds the sum of all ranks' slices `r` (two-phase chunks only)
//! - `consumed > c`: `r` no longer reads any slot of chunk `c`; once all ranks say so, the slot may be written again
//!
//! Counters only grow. They are stored with Release and loaded with Acquire, so the data they announce are visible.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::Departure;
use crate::group::envelope::ENVELOPE_WORDS;

/// Two cache lines, since the processor prefetches them in pairs.
const LINE: usize = 128;
/// Bytes for the call, before the chunk of a slot.
const SLOT_HEADER: usize = 64;

/// Bytes of a chunk. Measured for 32 KiB to 512 KiB with 2, 4 and 8 slots, by two ranks on two cores: 128 KiB with 8 slots was the
/// fastest for 100 MB, and as fast as any other for less. The slots of a rank then fill its second-level cache once.
const CHUNK_BYTES: usize = 128 << 10;
/// Slots per rank.
const N_SLOTS: usize = 8;

/// The layout of the shared memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Number of ranks.
    pub(crate) world_size: usize,
    /// Bytes of a chunk; a multiple of 64.
    pub(crate) chunk_bytes: usize,
    /// Slots per rank: the number of chunks that it can be ahead of the slowest rank.
    pub(crate) n_slots: usize,
}

impl Geometry {
    /// The layout that was measured to be the fastest.
    pub(crate) fn usual(world_size: usize) -> Self {
        Geometry { world_size, chunk_bytes: CHUNK_BYTES, n_slots: N_SLOTS }
    }

    fn slot_stride(self) -> usize {
        (SLOT_HEADER + self.chunk_bytes).next_multiple_of(LINE)
    }

    fn slot_offset(self, rank: usize, chunk: u64) -> usize {
        let slot = rank * self.n_slots + (chunk % self.n_slots as u64) as usize;
        self.world_size * size_of::<RankLine>() + slot * self.slot_stride()
    }

    fn message_offset(self, rank: usize) -> usize {
        let stride = (size_of::<Post>() + self.chunk_bytes).next_multiple_of(LINE);
        self.slot_offset(self.world_size, 0) + rank * stride
    }

    /// Size of the memory in bytes.
    pub(crate) fn region_bytes(self) -> usize {
        self.message_offset(self.world_size)
    }
}

/// The state that a rank publishes to the others. All zeros is a rank that has just started.
#[repr(C, align(128))]
pub(crate) struct RankLine {
    pub(crate) posted: AtomicU64,
    pub(crate) reduced: AtomicU64,
    pub(crate) consumed: AtomicU64,
    state: AtomicU32,
    sleep: Sleep,
}

/// The message that a rank sends to another: the sender writes the first half, the receiver the second. All zeros is none.
#[repr(C, align(128))]
pub(crate) struct Post {
    /// Number of messages that were begun, and the receiver of the last one, in one word: see `message.rs`.
    pub(crate) begun: AtomicU64,
    pub(crate) sent: [AtomicU64; ENVELOPE_WORDS],
    /// Number of pieces that were written.
    pub(crate) written: AtomicU64,
    pub(crate) by_receiver: Answer,
}

/// The receiver's half of a [`Post`].
#[repr(C, align(128))]
pub(crate) struct Answer {
    /// The word of the last message that was answered.
    pub(crate) answered: AtomicU64,
    pub(crate) expected: [AtomicU64; ENVELOPE_WORDS],
    /// Number of pieces that were read.
    pub(crate) read: AtomicU64,
}

/// Written by other ranks too, so it has cache lines of its own.
#[repr(C, align(128))]
pub(crate) struct Sleep {
    /// 1 while the rank sleeps, or is about to.
    pub(crate) sleeping: AtomicU32,
    /// Counts up to wake it; the futex's word.
    pub(crate) bell: AtomicU32,
}

impl RankLine {
    /// The futex by which others wake the rank.
    pub(crate) fn sleep(&self) -> &Sleep {
        &self.sleep
    }

    /// The rank's departure, if it has left.
    pub(crate) fn departure(&self) -> Option<Departure> {
        match self.state.load(Acquire) {
            1 => Some(Departure::Closed),
            2 => Some(Departure::Panicked),
            3 => Some(Departure::Failed),
            _ => None,
        }
    }

    /// Publishes that the rank leaves; only the first reason counts.
    pub(crate) fn depart(&self, how: Departure) {
        let state = match how {
            Departure::Closed => 1,
            Departure::Panicked => 2,
            Departure::Failed => 3,
        };
        // A failure is kept if the group is closed after it.
        let _ = self.state.compare_exchange(0, state, Release, Acquire);
    }
}

/// Zeroed memory on the heap, for ranks that are threads.
pub(crate) struct HeapRegion {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the memory is plain bytes; the protocol of the board orders all accesses.
unsafe impl Send for HeapRegion {}
// SAFETY: as above.
unsafe impl Sync for HeapRegion {}

impl HeapRegion {
    /// Zeroed memory for a board of this geometry.
    pub(crate) fn new(geometry: Geometry) -> Arc<Self> {
        let layout = Layout::from_size_align(geometry.region_bytes().max(LINE), LINE)
            .expect("a board is far smaller than the address space");
        // SAFETY: the layout's size is not zero.
        let raw = unsafe { alloc_zeroed(layout) };
        let base = NonNull::new(raw).unwrap_or_else(|| handle_alloc_error(layout));
        Arc::new(HeapRegion { base, layout })
    }
}

impl Drop for HeapRegion {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, and freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

/// The owner of the shared memory.
pub(crate) enum Region {
    /// Memory of this process, shared by its threads.
    Heap(Arc<HeapRegion>),
    /// A mapping shared by processes.
    Mapped(super::super::host_memory::Mapping),
}

impl Region {
    fn base(&self) -> NonNull<u8> {
        match self {
            Region::Heap(heap) => heap.base,
            Region::Mapped(mapping) => mapping.base(),
        }
    }

    fn len(&self) -> usize {
        match self {
            Region::Heap(heap) => heap.layout.size(),
            Region::Mapped(mapping) => mapping.len(),
        }
    }
}

/// One rank's access to the shared memory.
pub(crate) struct Board {
    base: NonNull<u8>,
    geometry: Geometry,
    _region: Region,
}

impl Board {
    /// Accesses `region`, which was zeroed before the first rank got it and is shared by ranks with the same geometry.
    ///
    /// # Panics
    /// If the region is too small or not aligned, which is a bug of the caller.
    pub(crate) fn new(region: Region, geometry: Geometry) -> Self {
        let base = region.base();
        assert!(region.len() >= geometry.region_bytes() && base.as_ptr().cast::<RankLine>().is_aligned());
        Board { base, geometry, _region: region }
    }

    /// The layout of the memory.
    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The counters of a rank.
    pub(crate) fn line(&self, rank: usize) -> &RankLine {
        assert!(rank < self.geometry.world_size);
        // SAFETY: `new` checked that the region holds `world_size` lines and more, and the rank is below that.
        let line = unsafe { self.base.cast::<RankLine>().add(rank) };
        // SAFETY: aligned (the base is, and a line's size is a multiple of its alignment), all of it atomics that
        // zero bytes initialize, alive for as long as `self` keeps the region.
        unsafe { line.as_ref() }
    }

    /// The message that a rank sends.
    pub(crate) fn post(&self, rank: usize) -> &Post {
        assert!(rank < self.geometry.world_size);
        // SAFETY: the offset lies within the region, whose size `new` checked.
        let post = unsafe { self.base.as_ptr().add(self.geometry.message_offset(rank)) };
        // SAFETY: aligned (the base and the offset are multiples of 128), all of it atomics that zero bytes initialize, alive for as long as
        // `self` keeps the region.
        unsafe { &*post.cast::<Post>() }
    }

    /// Memory for the pieces of a rank's message: `chunk_bytes` bytes.
    pub(crate) fn message_data(&self, rank: usize) -> *mut u8 {
        assert!(rank < self.geometry.world_size);
        // SAFETY: the offset lies within the region, and `chunk_bytes` of data follow the post.
        unsafe { self.base.as_ptr().add(self.geometry.message_offset(rank) + size_of::<Post>()) }
    }

    /// The call words of a rank's slot for a chunk.
    fn header(&self, rank: usize, chunk: u64) -> *mut [u64; 2] {
        assert!(rank < self.geometry.world_size);
        // SAFETY: the offset lies within the region, whose size `new` checked.
        unsafe { self.base.as_ptr().add(self.geometry.slot_offset(rank, chunk)).cast() }
    }

    /// The data of a rank's slot for a chunk: `chunk_bytes` bytes, aligned to 64.
    pub(crate) fn slot(&self, rank: usize, chunk: u64) -> *mut u8 {
        let header: *mut u8 = self.header(rank, chunk).cast();
        // SAFETY: a slot is a header and then `chunk_bytes` of data.
        unsafe { header.add(SLOT_HEADER) }
    }

    /// Writes the call words of this rank's slot.
    ///
    /// # Safety
    /// The slot must be this rank's and free: every rank has consumed the chunk that was in it before.
    pub(crate) unsafe fn write_call(&self, rank: usize, chunk: u64, words: [u64; 2]) {
        // SAFETY: in bounds and aligned (slots are multiples of 128 from an aligned base); nothing else reads or
        // writes it now, as the caller promises.
        unsafe { self.header(rank, chunk).write(words) }
    }

    /// Reads the call words of a rank's slot.
    ///
    /// # Safety
    /// That rank must have posted the chunk, and this rank not yet have consumed it.
    pub(crate) unsafe fn read_call(&self, rank: usize, chunk: u64) -> [u64; 2] {
        // SAFETY: in bounds and aligned; written before `posted` was raised, and not written again before this
        // rank consumes the chunk.
        unsafe { self.header(rank, chunk).read() }
    }
}
