//! One collective in progress: the copies and reductions of each of its chunks.

use std::ops::Range;

use ddp_kernels::DType;

use super::super::number::Number;
use super::board::{Board, Geometry};
use crate::{Call, CallKind, ReduceOp};

/// Chunks of an all-reduce over three or more ranks are reduced in two phases from this size on.
const TWO_PHASE_BYTES: usize = 8 << 10;
/// Alignment of the slices of a chunk: a cache line.
const SLICE_ALIGN_BYTES: usize = 64;
/// Elements that are reduced over all ranks at a time, so that they stay in the first-level cache.
const BLOCK: usize = 1024;

/// A collective that this rank has entered and not finished.
///
/// The buffers stay borrowed, by the caller or by a scope, until the job is finished or given up; only this rank accesses them.
pub(super) struct Job {
    pub(super) call: Call,
    /// Elements to read: `len`, or `world_size * len` in a reduce-scatter. In place, it is equal to `output`, or shard `rank` of
    /// it in an all-gather: what is overwritten was copied to a slot before.
    pub(super) input: *const u8,
    /// Elements to write: `len`, or `world_size * len` in an all-gather.
    pub(super) output: *mut u8,
    /// The number of its first chunk.
    pub(super) first_chunk: u64,
    pub(super) n_chunks: u64,
    elems_per_chunk: usize,
}

impl Job {
    pub(super) fn new(
        call: Call,
        input: *const u8,
        output: *mut u8,
        first_chunk: u64,
        geometry: Geometry,
    ) -> Self {
        let chunk_elems = geometry.chunk_bytes / call.dtype.size_bytes();
        let elems_per_chunk = match call.kind {
            CallKind::ReduceScatter(_) => (chunk_elems / geometry.world_size).max(1),
            _ => chunk_elems,
        };
        // A call without elements has one empty chunk, so that the ranks compare their calls.
        let n_chunks = call.len.div_ceil(elems_per_chunk).max(1) as u64;
        Job { call, input, output, first_chunk, n_chunks, elems_per_chunk }
    }

    pub(super) fn end_chunk(&self) -> u64 {
        self.first_chunk + self.n_chunks
    }

    /// The elements of a chunk, within `call.len`.
    fn elems(&self, chunk: u64) -> Range<usize> {
        let index = (chunk - self.first_chunk) as usize;
        let start = (index * self.elems_per_chunk).min(self.call.len);
        start..(start + self.elems_per_chunk).min(self.call.len)
    }

    fn size(&self) -> usize {
        self.call.dtype.size_bytes()
    }

    /// Whether each rank first reduces one slice and then gathers the others' slices. For three and more ranks that reads less
    /// than if each rank reduced the whole chunk.
    pub(super) fn is_two_phase(&self, chunk: u64, world_size: usize) -> bool {
        matches!(self.call.kind, CallKind::AllReduce(_))
            && world_size > 2
            && self.elems(chunk).len() * self.size() >= TWO_PHASE_BYTES
    }

    /// Copies this rank's data of a chunk into its slot.
    ///
    /// # Safety
    /// The job's buffers are alive and nothing else accesses them; the slot is free.
    pub(super) unsafe fn stage(&self, board: &Board, rank: usize, chunk: u64) {
        let elems = self.elems(chunk);
        let slot = board.slot(rank, chunk);
        let shards = match self.call.kind {
            CallKind::AllReduce(_) | CallKind::AllGather | CallKind::Shift => 0..1,
            CallKind::Broadcast { root } => 0..usize::from(root == rank),
            CallKind::ReduceScatter(_) => 0..board.geometry().world_size,
            CallKind::Barrier | CallKind::Send { .. } | CallKind::Receive { .. } => 0..0,
        };
        let is_scatter = matches!(self.call.kind, CallKind::ReduceScatter(_));
        // No other rank needs this rank's own shard of a reduce-scatter, and this rank reads it from the input.
        for shard in shards.filter(|&shard| !(is_scatter && shard == rank)) {
            let from = self.input.wrapping_add((shard * self.call.len + elems.start) * self.size());
            let to = slot.wrapping_add(shard * elems.len() * self.size());
            // SAFETY: the input holds `len` elements for each shard, and a slot a chunk's elements for each (see `new`); the slot
            // is this rank's and free, so no rank reads it, and it does not overlap the input.
            unsafe { copy(from, to, elems.len() * self.size()) };
        }
    }

    /// Reduces this rank's slice of a two-phase chunk into the output and copies it to its own slot.
    ///
    /// # Safety
    /// The job's buffers are alive and nothing else accesses them; all ranks have posted the chunk, and this
    /// rank has not published that it reduced it.
    pub(super) unsafe fn reduce_slice(&self, board: &Board, rank: usize, chunk: u64) {
        let elems = self.elems(chunk);
        let slice = self.slice(elems.len(), board.geometry().world_size, rank);
        let (offset, size) = (slice.start * self.size(), slice.len() * self.size());
        let output = self.output.wrapping_add(elems.start * self.size() + offset);
        let slot = board.slot(rank, chunk).wrapping_add(offset);
        // SAFETY: as this function's; the slice lies within the chunk and so within the output; other ranks write
        // only other slices, and of their own slots.
        unsafe { self.combine_slots(board, chunk, offset, output, slice.len(), None) };
        // SAFETY: no rank reads slice `rank` of this rank's slot in this phase, and the slot is not the output.
        unsafe { copy(output, slot, size) };
    }

    /// Finishes a chunk: writes the output from the ranks' slots.
    ///
    /// # Safety
    /// The job's buffers are alive and nothing else accesses them; all ranks have posted the chunk, have
    /// reduced it if it is a two-phase one, and this rank has not consumed it.
    pub(super) unsafe fn consume(&self, board: &Board, rank: usize, chunk: u64) {
        let world_size = board.geometry().world_size;
        let elems = self.elems(chunk);
        let size = self.size();
        let output_at = |elem: usize| self.output.wrapping_add(elem * size);
        match self.call.kind {
            CallKind::AllReduce(_) if self.is_two_phase(chunk, world_size) => {
                for other in (0..world_size).filter(|&r| r != rank) {
                    let slice = self.slice(elems.len(), world_size, other);
                    let slot = board.slot(other, chunk).wrapping_add(slice.start * size);
                    // SAFETY: the slice lies within slot and output; all ranks have reduced, so none writes it.
                    unsafe { copy(slot, output_at(elems.start + slice.start), slice.len() * size) };
                }
            }
            CallKind::AllReduce(_) => {
                // SAFETY: as this function's; no rank writes a posted single-phase slot.
                unsafe { self.combine_slots(board, chunk, 0, output_at(elems.start), elems.len(), None) }
            }
            CallKind::ReduceScatter(_) => {
                let offset = rank * elems.len() * size;
                let data = self.input.wrapping_add((rank * self.call.len + elems.start) * size);
                let (own, n) = (Some(OwnShard { rank, data }), elems.len());
                // SAFETY: as above; shard `rank` of each other slot has this chunk's elements, and so has `own`.
                unsafe { self.combine_slots(board, chunk, offset, output_at(elems.start), n, own) }
            }
            CallKind::Broadcast { root } if root == rank => {}
            CallKind::Broadcast { root } => {
                let slot = board.slot(root, chunk);
                // SAFETY: the root posted this chunk's elements; they lie within the output.
                unsafe { copy(slot, output_at(elems.start), elems.len() * size) }
            }
            CallKind::Shift => {
                let before = (rank + world_size - 1) % world_size;
                // SAFETY: that rank posted this chunk's elements; they lie within the output.
                unsafe { copy(board.slot(before, chunk), output_at(elems.start), elems.len() * size) }
            }
            CallKind::AllGather => {
                for other in 0..world_size {
                    let to = output_at(other * self.call.len + elems.start);
                    let is_in_place = std::ptr::eq(self.input, output_at(rank * self.call.len));
                    if other == rank && is_in_place {
                        continue;
                    }
                    // SAFETY: that rank posted this chunk's elements; the output holds `world_size * len`.
                    unsafe { copy(board.slot(other, chunk), to, elems.len() * size) }
                }
            }
            CallKind::Barrier | CallKind::Send { .. } | CallKind::Receive { .. } => {}
        }
    }

    /// The slice of a chunk of `n` elements that `rank` reduces.
    fn slice(&self, n: usize, world_size: usize, rank: usize) -> Range<usize> {
        let per_rank = n.div_ceil(world_size).next_multiple_of(SLICE_ALIGN_BYTES / self.size());
        (rank * per_rank).min(n)..((rank + 1) * per_rank).min(n)
    }

    /// Reduces `n` elements at byte `offset` of all ranks' slots, in rank order. The elements of this rank come from `own` instead
    /// of its slot, if given; `own` may overlap the output.
    ///
    /// # Safety
    /// `output` has room for `n` elements that nothing else accesses; all ranks have posted the chunk, and none writes these bytes
    /// of its slot meanwhile.
    unsafe fn combine_slots(
        &self,
        board: &Board,
        chunk: u64,
        offset: usize,
        output: *mut u8,
        n: usize,
        own: Option<OwnShard>,
    ) {
        let op = match self.call.kind {
            CallKind::AllReduce(op) | CallKind::ReduceScatter(op) => op,
            CallKind::Broadcast { .. }
            | CallKind::AllGather
            | CallKind::Shift
            | CallKind::Barrier
            | CallKind::Send { .. }
            | CallKind::Receive { .. } => return,
        };
        let combine = match self.call.dtype {
            DType::F32 => combine::<f32>,
            DType::F64 => combine::<f64>,
            DType::I64 => combine::<i64>,
            DType::BF16 => combine::<half::bf16>,
            // Bools are bytes: Max is OR, Min is AND.
            DType::U8 | DType::Bool => combine::<u8>,
            DType::F16 => combine::<half::f16>,
            DType::I32 => combine::<i32>,
        };
        // SAFETY: as this function's.
        unsafe { combine(op, board, chunk, offset, output, n, own) }
    }
}

/// This rank's data of a reduce-scatter, which it reads from the input instead of its slot.
#[derive(Clone, Copy)]
struct OwnShard {
    rank: usize,
    data: *const u8,
}

/// Copies `n_bytes` bytes, which may be 0.
///
/// # Safety
/// `from` is readable and `to` writable for `n_bytes`, and they do not overlap.
unsafe fn copy(from: *const u8, to: *mut u8, n_bytes: usize) {
    // SAFETY: as this function's.
    unsafe { std::ptr::copy_nonoverlapping(from, to, n_bytes) }
}

/// [`Job::combine_slots`] for one type.
///
/// # Safety
/// Same as [`Job::combine_slots`].
unsafe fn combine<T: Number>(
    op: ReduceOp,
    board: &Board,
    chunk: u64,
    offset: usize,
    output: *mut u8,
    n: usize,
    own: Option<OwnShard>,
) {
    let world_size = board.geometry().world_size;
    // This rank's own elements of a block: they may overlap the output, so they are read before it is written.
    let mut own_block = [T::ZERO; BLOCK];
    for start in (0..n).step_by(BLOCK) {
        let len = BLOCK.min(n - start);
        if let Some(own) = own {
            let from = own.data.wrapping_add(start * size_of::<T>());
            // SAFETY: `own` holds `n` elements of plain data; the block is a local.
            unsafe { copy(from, own_block.as_mut_ptr().cast(), len * size_of::<T>()) };
        }
        let source = |rank: usize| match own {
            Some(own) if own.rank == rank => &own_block[..len],
            _ => {
                let first = board.slot(rank, chunk).wrapping_add(offset + start * size_of::<T>());
                // SAFETY: posted elements that no rank writes now; aligned, since slots are aligned to 64 bytes and
                // offsets are whole elements.
                unsafe { std::slice::from_raw_parts(first.cast::<T>().cast_const(), len) }
            }
        };
        let first = output.wrapping_add(start * size_of::<T>()).cast::<T>();
        // SAFETY: room for `n` elements, exclusive; aligned, since it points at an element of a `&mut [T]`.
        let output = unsafe { std::slice::from_raw_parts_mut(first, len) };
        match op {
            ReduceOp::Sum => combine_block(output, source, world_size, T::sum),
            ReduceOp::Max => combine_block(output, source, world_size, |a, b| if b > a { b } else { a }),
            ReduceOp::Min => combine_block(output, source, world_size, |a, b| if b < a { b } else { a }),
        }
    }
}

/// `output[i] = source(0)[i] op source(1)[i] op ...`, from left to right.
#[inline(always)]
fn combine_block<'a, T: Copy + 'a>(
    output: &mut [T],
    source: impl Fn(usize) -> &'a [T],
    world_size: usize,
    op: impl Fn(T, T) -> T,
) {
    if world_size == 1 {
        output.copy_from_slice(source(0));
        return;
    }
    for ((out, &a), &b) in output.iter_mut().zip(source(0)).zip(source(1)) {
        *out = op(a, b);
    }
    for rank in 2..world_size {
        for (out, &b) in output.iter_mut().zip(source(rank)) {
            *out = op(*out, b);
        }
    }
}
