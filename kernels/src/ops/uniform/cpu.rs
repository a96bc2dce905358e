//! Sixteen Philox blocks in parallel, so that the rounds vectorize.

use super::UniformStream;
use crate::Element;
use crate::base::rng::{Philox, to_unit_f32};
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};

/// Elements of sixteen blocks.
const CHUNK: usize = 64;
/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 14;

pub(super) fn fill<T: Element>(x: &mut [T], low: f32, high: f32, stream: UniformStream) {
    let philox = Philox::new(stream.seed);
    let n = x.len();
    let out = SharedMut::new(x);
    for_parts(n, MIN_PART, CHUNK, |part| {
        // SAFETY: the part lies within `x` and is this thread's alone.
        let x = unsafe { out.slice(part.clone()) };
        vectorize(
            #[inline(always)]
            || {
                for (chunk, x) in x.chunks_mut(CHUNK).enumerate() {
                    let first_block = (part.start + chunk * CHUNK) as u64 / 4;
                    let words = philox.blocks_16(
                        #[inline(always)]
                        |b| {
                            let block = first_block + b as u64;
                            [block as u32, (block >> 32) as u32, stream.stream[0], stream.stream[1]]
                        },
                    );
                    for (x, &word) in x.iter_mut().zip(&words) {
                        *x = T::from_f64(f64::from(to_unit_f32(word) * (high - low) + low));
                    }
                }
            },
        );
    });
}
