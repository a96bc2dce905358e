//! Each thread sums a range; 64-bit integer sums wrap, so their order changes no bit.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::cpu::simd::vectorize;
use crate::cpu::threads::for_parts;

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 14;

pub(super) fn sum(x: &[f32]) -> u64 {
    let total = AtomicU64::new(0);
    for_parts(x.len(), MIN_PART, 16, |part| {
        let first = part.start as u64;
        let of_part = vectorize(
            #[inline(always)]
            || {
                let elements = x[part.clone()].iter().zip(first..);
                elements.fold(0u64, |sum, (v, index)| sum.wrapping_add(mix(v.to_bits(), index)))
            },
        );
        total.fetch_add(of_part, Ordering::Relaxed);
    });
    total.into_inner()
}

/// For each `index` a bijection of the bits, so that one changed element always changes the sum.
///
/// Source: the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
#[inline(always)]
pub(super) fn mix(bits: u32, index: u64) -> u64 {
    let z = index.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(bits);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}
