//! Copies within host memory; long ones by all threads, with streaming stores.
//!
//! An ordinary store first reads the line that it overwrites, a third of the traffic of a copy; a streaming store does not. The
//! C library uses streaming stores for long copies too but is slower: on a Zen 5 with two threads, glibc 2.36 takes 1.1 to 1.5
//! times as long.

use std::sync::OnceLock;

use rayon::prelude::*;

use super::threads;

/// Size in bytes from which the target would not stay in the caches anyway.
pub(crate) const FAR_BYTES: usize = 32 << 20;
/// Bytes per work item of a thread: long compared to its overhead, short compared to the whole, so that a delayed thread
/// delays no other.
const TURN_BYTES: usize = 4 << 20;
/// Bytes of a cache line.
const LINE: usize = 64;

/// Copies `parts` to `to`, concatenated.
///
/// # Panics
/// If the total length differs from the length of `to`.
pub(crate) fn gather(to: &mut [u8], parts: &[&[u8]]) {
    gather_from(FAR_BYTES, to, parts);
}

fn gather_from(far_bytes: usize, to: &mut [u8], parts: &[&[u8]]) {
    assert_eq!(to.len(), parts.iter().map(|part| part.len()).sum::<usize>(), "as many bytes on both sides");
    if to.len() < far_bytes {
        let mut rest = to;
        for part in parts {
            let (to, behind) = rest.split_at_mut(part.len());
            to.copy_from_slice(part);
            rest = behind;
        }
        return;
    }
    let end = |end: &mut usize, part: &&[u8]| {
        *end += part.len();
        Some(*end)
    };
    let ends: Vec<usize> = parts.iter().scan(0, end).collect();
    // The bytes from `start` on.
    let turn = |start: usize, to: &mut [u8]| {
        let (mut at, mut rest) = (start, to);
        let first = ends.partition_point(|&end| end <= start);
        for (part, end) in parts[first..].iter().zip(&ends[first..]) {
            let within = &part[part.len() - (end - at)..];
            let (to, behind) = rest.split_at_mut(within.len().min(rest.len()));
            stream(to, &within[..to.len()]);
            (at, rest) = (at + to.len(), behind);
            if rest.is_empty() {
                break;
            }
        }
    };
    if threads::current() == 1 {
        return turn(0, to);
    }
    to.par_chunks_mut(TURN_BYTES).enumerate().for_each(|(i, to)| turn(i * TURN_BYTES, to));
}

/// `to = from`, with streaming stores if the processor has them; equal lengths.
fn stream(to: &mut [u8], from: &[u8]) {
    stream_unfenced(to, from);
    fence();
}

/// Prefetches these bytes, so that loading them overlaps with the work before they are read.
#[inline(always)]
pub(crate) fn prefetch(bytes: &[u8]) {
    prefetch_at(bytes.as_ptr(), bytes.len());
}

/// [`prefetch`] of `len` bytes at an address, which may lie outside any allocation.
#[inline(always)]
pub(crate) fn prefetch_at<T>(address: *const T, len: usize) {
    #[cfg(target_arch = "x86_64")]
    for offset in (0..len).step_by(LINE) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: part of SSE, which every x86-64 processor has; any address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast::<i8>().wrapping_add(offset)) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (address, len);
}

/// Whether loops that read several places at a time are faster with [`prefetch_at`]. Not on AMD: a Zen read 1.2 to 1.4 times as
/// fast without it (tests/bench/results/reductions_prefetch_amd_2cores.jsonl). On Xeons it was part of what made them faster.
pub(crate) fn prefetch_pays() -> bool {
    static PAYS: OnceLock<bool> = OnceLock::new();
    *PAYS.get_or_init(|| !is_amd())
}

fn is_amd() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        #[allow(unused_unsafe)] // Safe in later releases of Rust.
        // SAFETY: every x86-64 processor has the instruction.
        let vendor = unsafe { std::arch::x86_64::__cpuid(0) };
        [vendor.ebx, vendor.edx, vendor.ecx].map(u32::to_le_bytes).concat() == b"AuthenticAMD"
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Makes streaming stores visible before what follows: they are unordered otherwise.
pub(crate) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: part of SSE, which every x86-64 processor has.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}

/// Same as [`stream`], for pieces after the last of which the caller calls [`fence`] once.
pub(crate) fn stream_unfenced(to: &mut [u8], from: &[u8]) {
    // Streaming stores write whole lines.
    let head = to.as_ptr().align_offset(LINE).min(to.len());
    let ((to_head, to), (from_head, from)) = (to.split_at_mut(head), from.split_at(head));
    to_head.copy_from_slice(from_head);
    let ((to, to_tail), (from, from_tail)) = (to.as_chunks_mut::<LINE>(), from.as_chunks::<LINE>());
    to_tail.copy_from_slice(from_tail);
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the processor has AVX; the first line of `to` is aligned to a line, or there is none.
        return unsafe { stream_lines(to, from) };
    }
    to.copy_from_slice(from);
}

/// `to = from`, line by line.
///
/// # Safety
/// The processor has AVX, and `to` begins at a multiple of 32 bytes.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
unsafe fn stream_lines(to: &mut [[u8; LINE]], from: &[[u8; LINE]]) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_stream_si256};
    for (to, from) in to.iter_mut().zip(from) {
        let ([to_a, to_b], [from_a, from_b]) = (halves_mut(to), halves(from));
        // SAFETY: 32 bytes, at any address.
        let a = unsafe { _mm256_loadu_si256(from_a.as_ptr().cast::<__m256i>()) };
        // SAFETY: as above.
        let b = unsafe { _mm256_loadu_si256(from_b.as_ptr().cast::<__m256i>()) };
        // SAFETY: 32 bytes, aligned to 32: the caller guarantees the first line, and lines are contiguous.
        unsafe { _mm256_stream_si256(to_a.as_mut_ptr().cast::<__m256i>(), a) };
        // SAFETY: as above.
        unsafe { _mm256_stream_si256(to_b.as_mut_ptr().cast::<__m256i>(), b) };
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn halves(line: &[u8; LINE]) -> [&[u8]; 2] {
    let (a, b) = line.split_at(LINE / 2);
    [a, b]
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn halves_mut(line: &mut [u8; LINE]) -> [&mut [u8]; 2] {
    let (a, b) = line.split_at_mut(LINE / 2);
    [a, b]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(n: usize) -> Vec<u8> {
        (0..n as u32).map(|i| (i.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect()
    }

    /// Short and long, from and to odd addresses, with parts that are empty, end within a turn, and reach over several.
    #[test]
    fn parts_follow_each_other_at_any_address() {
        for n_threads in [1, 3] {
            let check = move || {
                threads::join_pool(n_threads).unwrap();
                let lens = [0, 1, 63, 64, 65, 0, 1000, 3 * TURN_BYTES - 1200, 0, 77, 2 * TURN_BYTES, 5];
                let from = bytes(lens.iter().sum::<usize>() + 3);
                let want = &from[3..];
                let mut rest = want;
                let parts: Vec<&[u8]> = lens
                    .iter()
                    .map(|&len| {
                        let (part, behind) = rest.split_at(len);
                        rest = behind;
                        part
                    })
                    .collect();
                for (far_bytes, odd) in [(usize::MAX, 1), (1, 0), (1, 1), (1, 31), (1, 64)] {
                    let mut to = vec![9; want.len() + odd + 1];
                    let end = to.len() - 1;
                    gather_from(far_bytes, &mut to[odd..end], &parts);
                    assert!(to[odd..end] == *want, "{n_threads} threads, from {far_bytes}, at {odd}");
                    assert!(to[..odd].iter().all(|&b| b == 9) && to[end] == 9, "nothing around it");
                }
                gather(&mut [], &[]);
                gather_from(0, &mut [], &[&[]]);
            };
            std::thread::spawn(check).join().unwrap();
        }
    }

    #[test]
    #[should_panic(expected = "as many bytes on both sides")]
    fn sides_of_different_lengths_are_refused() {
        gather(&mut [0; 3], &[&[1, 2]]);
    }
}
