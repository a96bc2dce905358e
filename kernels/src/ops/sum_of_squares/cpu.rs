//! Squares are summed per chunk in the tensor's precision (bf16 and f16: f32), and chunks in f64, in their order: so any number of
//! threads gives the same bits.

use crate::Element;
use crate::cpu::copy::prefetch_at;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::{Float, Stored};

const CHUNK: usize = 4096;
/// Chunks at a time.
const CHUNKS: usize = 256;
/// Chunks per thread below which a second thread does not pay off.
const MIN_PART: usize = 16;
/// Interleaved partial sums of a chunk.
const LANES: usize = 32;
/// Bytes from a block of numbers to what is fetched meanwhile: a page of memory.
const AHEAD: usize = 4096;

pub(super) fn sum<T: Stored>(x: &[T]) -> f64 {
    let mut total = 0.0;
    let mut sums = [0.0; CHUNKS];
    for x in x.chunks(CHUNK * CHUNKS) {
        let n_chunks = x.len().div_ceil(CHUNK);
        let shared_sums = SharedMut::new(&mut sums);
        for_parts(n_chunks, MIN_PART, 1, |part| {
            let x = &x[part.start * CHUNK..(part.end * CHUNK).min(x.len())];
            // SAFETY: within `sums`, and these chunks are this part's alone.
            sum_chunks(x, unsafe { shared_sums.slice(part) });
        });
        total = sums[..n_chunks].iter().fold(total, |total, sum| total + sum);
    }
    total
}

/// The sum of each chunk of `x`.
fn sum_chunks<T: Stored>(x: &[T], sums: &mut [f64]) {
    vectorize(
        #[inline(always)]
        || {
            for (chunk, sum) in x.chunks(CHUNK).zip(sums) {
                let mut lanes = [T::Real::ZERO; LANES];
                let (blocks, rest) = chunk.as_chunks::<LANES>();
                for block in blocks {
                    prefetch_at(block.as_ptr().wrapping_byte_add(AHEAD), size_of_val(block));
                    for (lane, &v) in lanes.iter_mut().zip(block) {
                        *lane = v.load().mul_add(v.load(), *lane);
                    }
                }
                *sum = lanes
                    .iter()
                    .chain([&rest.iter().map(|&v| v.load() * v.load()).sum()])
                    .map(|v| v.to_f64())
                    .sum::<f64>();
            }
        },
    );
}
