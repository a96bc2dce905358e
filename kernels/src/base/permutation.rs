//! A keyed permutation, computed per index: no index vector, no state. GPUs compute the same one ([`crate::ops::begin_step`]).
//!
//! Method: a Feistel network over the smallest power of two that holds all rows, with cycle walking
//! (Black and Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002).

use std::ops::Range;

/// Rounds of the network; four make it a pseudo-random permutation for ideal round functions (Luby
/// and Rackoff, 1988), the others make up for a cheap one.
pub(crate) const N_ROUNDS: usize = 6;

/// Halves of fewer than 4 bits let the network's own bias show (counted over 200 000 keys); a
/// handful of rows walks this larger domain instead.
const MIN_BITS: u32 = 8;

/// Numbers that pass through the network side by side, and numbers that walk together.
const LANES: usize = 4;
const GROUP: usize = 64;

/// A bijection on `0..n`, chosen by (seed, epoch): the order of the rows of an epoch. Constant memory.
#[derive(Debug, Clone)]
pub struct KeyedPermutation {
    n: u64,
    high_bits: u32,
    low_bits: u32,
    /// `None` is the identity.
    keys: Option<[u64; N_ROUNDS]>,
}

impl KeyedPermutation {
    /// The order of `n` rows in this epoch.
    pub fn new(n: usize, seed: u64, epoch: u64) -> Self {
        let mut state = mix(seed.wrapping_add(GOLDEN)) ^ epoch.wrapping_mul(GOLDEN);
        let keys = std::array::from_fn(|_| {
            state = state.wrapping_add(GOLDEN);
            mix(state)
        });
        let n = n as u64;
        let bits = (u64::BITS - n.saturating_sub(1).leading_zeros()).max(MIN_BITS);
        Self { n, high_bits: bits / 2, low_bits: bits - bits / 2, keys: Some(keys) }
    }

    /// The rows in their own order, for `shuffle = false`.
    pub fn identity(n: usize) -> Self {
        Self { n: n as u64, high_bits: 0, low_bits: 0, keys: None }
    }

    /// Whether the rows keep their own order.
    pub fn is_identity(&self) -> bool {
        self.keys.is_none()
    }

    /// Widths of the network's halves, the upper one first; both 0 for the identity.
    pub(crate) fn bits(&self) -> (u32, u32) {
        (self.high_bits, self.low_bits)
    }

    /// Keys of the rounds; `None` for the identity.
    pub(crate) fn keys(&self) -> Option<[u64; N_ROUNDS]> {
        self.keys
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.n as usize
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// The row at position `i` of the order.
    ///
    /// # Panics
    /// If `i` is not below [`len`](Self::len).
    #[inline]
    pub fn index(&self, i: usize) -> usize {
        assert!((i as u64) < self.n, "position {i} of an order of {} rows", self.n);
        let Some(keys) = &self.keys else { return i };
        // Except for the smallest n, the domain is smaller than 2 n: at most two walks are expected.
        let mut x = [i as u64];
        loop {
            self.encrypt(&mut x, keys);
            if x[0] < self.n {
                return x[0] as usize;
            }
        }
    }

    /// Appends the rows at `positions` of the order to `rows`.
    ///
    /// # Panics
    /// If a position is not below [`len`](Self::len).
    pub fn extend(&self, positions: Range<usize>, rows: &mut Vec<usize>) {
        assert!(positions.end as u64 <= self.n, "positions {positions:?} of an order of {} rows", self.n);
        let Some(keys) = &self.keys else { return rows.extend(positions) };
        for start in positions.clone().step_by(GROUP) {
            let mut all = [0; GROUP];
            let mut walking = 0;
            for position in start..positions.end.min(start + GROUP) {
                all[walking] = position as u64;
                walking += 1;
            }
            // Those that are no rows yet walk on together, in front.
            let first = rows.len();
            rows.resize(first + walking, 0);
            let mut places: [usize; GROUP] = std::array::from_fn(|i| i);
            while walking > 0 {
                for lanes in all[..walking.next_multiple_of(LANES)].as_chunks_mut::<LANES>().0 {
                    self.encrypt(lanes, keys);
                }
                let mut left = 0;
                for i in 0..walking {
                    rows[first + places[i]] = all[i] as usize;
                    (all[left], places[left]) = (all[i], places[i]);
                    left += usize::from(all[i] >= self.n);
                }
                walking = left;
            }
        }
    }

    /// One pass of the network on numbers in `0..2^(high_bits + low_bits)`. Rounds alternate between the
    /// halves in place, so the halves may differ in width. Each step waits for the one before: several numbers share the wait.
    #[inline(always)]
    fn encrypt<const N: usize>(&self, x: &mut [u64; N], keys: &[u64; N_ROUNDS]) {
        let (low_mask, high_mask) = ((1 << self.low_bits) - 1, (1 << self.high_bits) - 1);
        let (mut high, mut low) = ([0; N], [0; N]);
        for i in 0..N {
            (high[i], low[i]) = (x[i] >> self.low_bits, x[i] & low_mask);
        }
        for pair in keys.as_chunks::<2>().0 {
            for i in 0..N {
                high[i] ^= round(low[i], pair[0]) & high_mask;
                low[i] ^= round(high[i], pair[1]) & low_mask;
            }
        }
        for i in 0..N {
            x[i] = high[i] << self.low_bits | low[i];
        }
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Round function: two multiplications with a fold between, taken from the upper half.
#[inline]
fn round(x: u64, key: u64) -> u64 {
    let mut z = (x ^ key).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^= z >> 32;
    z.wrapping_mul(0x94d0_49bb_1331_11eb) >> 32
}

/// The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
fn mix(mut z: u64) -> u64 {
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order(n: usize, seed: u64, epoch: u64) -> Vec<usize> {
        let permutation = KeyedPermutation::new(n, seed, epoch);
        let order: Vec<_> = (0..n).map(|i| permutation.index(i)).collect();
        let mut together = Vec::new();
        for start in (0..n).step_by(199) {
            permutation.extend(start..n.min(start + 199), &mut together);
        }
        assert_eq!(together, order);
        order
    }

    fn assert_bijection(order: &[usize]) {
        let mut seen = vec![false; order.len()];
        for &row in order {
            assert!(!std::mem::replace(&mut seen[row], true), "row {row} twice");
        }
    }

    proptest! {
        #[test]
        fn every_row_once(n in 0usize..5000, seed: u64, epoch in 0u64..1000) {
            assert_bijection(&order(n, seed, epoch));
        }

        #[test]
        fn far_positions_stay_inside(n in (1usize << 40)..(1 << 62), seed: u64, part in 0.0..1.0) {
            let row = KeyedPermutation::new(n, seed, 0).index((n as f64 * part) as usize);
            prop_assert!(row < n);
        }
    }

    #[test]
    fn small_and_round_sizes_are_bijections() {
        for n in (0..130).chain([255, 256, 257, 1023, 1024, 1025, 65_535, 65_536, 65_537]) {
            assert_bijection(&order(n, 42, 3));
        }
    }

    #[test]
    fn seeds_and_epochs_differ() {
        let base = order(1000, 1, 1);
        assert_eq!(base, order(1000, 1, 1));
        let same = |other: Vec<usize>| base.iter().zip(other).filter(|(a, b)| **a == *b).count();
        // Two random orders agree in one position on average.
        for (seed, epoch) in [(1, 0), (1, 2), (2, 1), (0, 0), (2, 0), (u64::MAX, 1)] {
            assert!(same(order(1000, seed, epoch)) < 10, "seed {seed} epoch {epoch}");
        }
    }

    #[test]
    fn identity_keeps_order() {
        let identity = KeyedPermutation::identity(5);
        assert_eq!((0..5).map(|i| identity.index(i)).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        assert_eq!(identity.len(), 5);
    }

    /// Chi-square statistic of counts that should be equal, in standard deviations above its mean.
    fn excess(counts: &[u32]) -> f64 {
        let mean = f64::from(counts.iter().sum::<u32>()) / counts.len() as f64;
        let chi2: f64 = counts.iter().map(|&count| (f64::from(count) - mean).powi(2) / mean).sum();
        let freedom = (counts.len() - 1) as f64;
        (chi2 - freedom) / (2.0 * freedom).sqrt()
    }

    #[test]
    fn each_row_comes_first_equally_often() {
        for n in [2, 3, 5, 10, 37, 100] {
            let mut by_seed = vec![0; n];
            let mut by_epoch = vec![0; n];
            for k in 0..20_000 {
                by_seed[KeyedPermutation::new(n, k, 0).index(0)] += 1;
                by_epoch[KeyedPermutation::new(n, 5, k).index(n - 1)] += 1;
            }
            // Five standard deviations: chance alone would not do it in millions of runs.
            assert!(excess(&by_seed) < 5.0, "n {n}: {}", excess(&by_seed));
            assert!(excess(&by_epoch) < 5.0, "n {n}: {}", excess(&by_epoch));
        }
    }

    #[test]
    fn all_orders_of_four_rows_occur_equally_often() {
        let mut counts = std::collections::BTreeMap::new();
        (0..24_000).for_each(|seed| *counts.entry(order(4, seed, 0)).or_insert(0) += 1);
        assert_eq!(counts.len(), 24);
        let counts: Vec<_> = counts.into_values().collect();
        assert!(excess(&counts) < 5.0, "{}", excess(&counts));
    }

    #[test]
    fn pairs_of_neighbors_are_spread() {
        // Neighbors in the data must not stay neighbors: the joint place of rows of adjacent
        // positions, in 8 x 8 cells.
        let n = 1000;
        let mut counts = vec![0u32; 64];
        for seed in 0..200 {
            let order = order(n, seed, 0);
            order.chunks_exact(2).for_each(|pair| counts[pair[0] * 8 / n * 8 + pair[1] * 8 / n] += 1);
        }
        assert!(excess(&counts) < 5.0, "{}", excess(&counts));
    }

    #[test]
    fn rows_move_a_third_of_the_length_on_average() {
        let n = 10_000;
        let moved: usize = order(n, 9, 0).iter().enumerate().map(|(i, &row)| i.abs_diff(row)).sum();
        let mean = moved as f64 / n as f64 / n as f64;
        // 1/3 for a random order, with a deviation of about 0.24 / sqrt(n).
        assert!((mean - 1.0 / 3.0).abs() < 0.012, "{mean}");
    }
}
