//! Squares are summed per chunk in the tensor's precision (bf16 and f16: f32), and chunks in f64.

use crate::Element;
use crate::cpu::simd::vectorize;
use crate::cpu::{Float, Stored};

const CHUNK: usize = 4096;
/// Interleaved partial sums of a chunk.
const LANES: usize = 32;

pub(super) fn sum<T: Stored>(x: &[T]) -> f64 {
    vectorize(
        #[inline(always)]
        || {
            let mut total = 0.0;
            for chunk in x.chunks(CHUNK) {
                let mut lanes = [T::Real::ZERO; LANES];
                let (blocks, rest) = chunk.as_chunks::<LANES>();
                for block in blocks {
                    for (lane, &v) in lanes.iter_mut().zip(block) {
                        *lane = v.load().mul_add(v.load(), *lane);
                    }
                }
                total += lanes
                    .iter()
                    .chain([&rest.iter().map(|&v| v.load() * v.load()).sum()])
                    .map(|v| v.to_f64())
                    .sum::<f64>();
            }
            total
        },
    )
}
