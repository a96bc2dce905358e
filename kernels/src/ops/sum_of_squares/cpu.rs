//! Chunks whose squares are summed in the tensor's own precision before they join the sum in f64.

use crate::cpu::Float;
use crate::cpu::simd::vectorize;

const CHUNK: usize = 4096;
/// Interleaved partial sums of a chunk.
const LANES: usize = 32;

pub(super) fn sum<T: Float>(x: &[T]) -> f64 {
    vectorize(
        #[inline(always)]
        || {
            let mut total = 0.0;
            for chunk in x.chunks(CHUNK) {
                let mut lanes = [T::ZERO; LANES];
                let (blocks, rest) = chunk.as_chunks::<LANES>();
                for block in blocks {
                    for (lane, &v) in lanes.iter_mut().zip(block) {
                        *lane = v.mul_add(v, *lane);
                    }
                }
                total +=
                    lanes.iter().chain([&rest.iter().map(|&v| v * v).sum()]).map(|v| v.to_f64()).sum::<f64>();
            }
            total
        },
    )
}
