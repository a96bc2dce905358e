//! Element by element.

use super::KnownNumbers;
use crate::Element;

fn hash(i: usize, round: u32) -> u32 {
    let z = (i as u64 ^ u64::from(round) << 48).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z >> 32) as u32
}

fn share(h: u32, rank: u32, n_ranks: u32) -> u32 {
    let owner = (h >> 12) % n_ranks;
    let of = |of: u32, bits: u32| if rank == of % n_ranks { 1 + (bits & 63) } else { 0 };
    of(owner, h) + of(owner + 1, h >> 6)
}

fn total(h: u32) -> u32 {
    2 + (h & 63) + (h >> 6 & 63)
}

pub(super) fn fill<T: Element>(x: &mut [T], rank: u32, of: KnownNumbers) {
    let n_ranks = of.n_ranks as u32;
    for (i, x) in x.iter_mut().enumerate() {
        let h = hash(of.first + i, of.round);
        *x = T::from_f64(if rank == n_ranks { total(h) } else { share(h, rank, n_ranks) }.into());
    }
}

pub(super) fn count<T: Element>(x: &[T], of: KnownNumbers) -> i64 {
    let is_wrong = |(i, x): (usize, &T)| x.to_f64() != f64::from(total(hash(of.first + i, of.round)));
    x.iter().enumerate().filter(|&element| is_wrong(element)).count() as i64
}
