//! Row by row, four columns per Philox block, sixteen blocks in parallel.

use super::{DropoutKey, Rate};
use crate::Element;
use crate::base::rng::Philox;
use crate::cpu::Stored;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};

/// Columns of sixteen blocks.
const CHUNK: usize = 64;
/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 13;

pub(super) fn apply<T: Stored>(x: &mut [T], cols: usize, Rate { threshold, keep }: Rate, key: DropoutKey) {
    if cols == 0 {
        return;
    }
    let philox = Philox::new(key.seed);
    let keep = T::Real::from_f64(keep);
    let rows = x.len() / cols;
    let out = SharedMut::new(x);
    for_parts(rows, MIN_PART / cols, 1, |part| {
        for n in part {
            let row = key.first_row + n as u64;
            let tag = u32::from(key.layer) | ((row >> 32) as u32) << 16;
            // SAFETY: row `n` of `x`, which is in this thread's part alone.
            let values = unsafe { out.slice(n * cols..(n + 1) * cols) };
            vectorize(
                #[inline(always)]
                || {
                    for (chunk, values) in values.chunks_mut(CHUNK).enumerate() {
                        let words = philox.blocks_16(
                            #[inline(always)]
                            |b| [(16 * chunk + b) as u32, row as u32, key.step as u32, tag],
                        );
                        for (v, &word) in values.iter_mut().zip(&words) {
                            *v = if word < threshold { T::ZERO } else { T::store(v.load() * keep) };
                        }
                    }
                },
            );
        }
    });
}
