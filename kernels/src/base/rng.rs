//! Counter-based random numbers: a pure function of key and counter, so the same on every device and in any order of
//! evaluation.
//!
//! Source: Philox4x32-10 of Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Philox4x32-10 under one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Philox {
    key: [u32; 2],
}

impl Philox {
    /// Creates the generator with this seed as its key.
    #[inline(always)]
    pub fn new(seed: u64) -> Self {
        Philox { key: [seed as u32, (seed >> 32) as u32] }
    }

    /// Four random words for this counter.
    #[inline(always)]
    pub fn block(&self, mut counter: [u32; 4]) -> [u32; 4] {
        let mut key = self.key;
        for _ in 0..ROUNDS {
            let a = u64::from(MULTIPLIERS[0]) * u64::from(counter[0]);
            let b = u64::from(MULTIPLIERS[1]) * u64::from(counter[2]);
            counter = [
                (b >> 32) as u32 ^ counter[1] ^ key[0],
                b as u32,
                (a >> 32) as u32 ^ counter[3] ^ key[1],
                a as u32,
            ];
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        counter
    }

    /// The words of sixteen blocks, block by block; `counter` gives the counter of each.
    #[inline(always)]
    #[allow(clippy::needless_range_loop)] // Loops over lanes by index are what the compiler vectorizes.
    pub(crate) fn blocks_16(&self, counter: impl Fn(usize) -> [u32; 4]) -> [u32; 64] {
        let mut x = [[0u32; 16]; 4];
        for b in 0..16 {
            [x[0][b], x[1][b], x[2][b], x[3][b]] = counter(b);
        }
        let mut key = self.key;
        for _ in 0..ROUNDS {
            for b in 0..16 {
                let p = u64::from(MULTIPLIERS[0]) * u64::from(x[0][b]);
                let q = u64::from(MULTIPLIERS[1]) * u64::from(x[2][b]);
                x[0][b] = (q >> 32) as u32 ^ x[1][b] ^ key[0];
                x[1][b] = q as u32;
                x[2][b] = (p >> 32) as u32 ^ x[3][b] ^ key[1];
                x[3][b] = p as u32;
            }
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let mut words = [0u32; 64];
        for b in 0..16 {
            for w in 0..4 {
                words[4 * b + w] = x[w][b];
            }
        }
        words
    }

    /// The `index`-th uniform number in `[0, 1)`.
    #[inline(always)]
    pub fn uniform_f32(&self, index: u64) -> f32 {
        let block = index / 4;
        let words = self.block([block as u32, (block >> 32) as u32, 0, 0]);
        to_unit_f32(words[(index % 4) as usize])
    }
}

/// Converts a random word to a multiple of 2^-24 in `[0, 1)`; each of the 2^24 values is exact in f32.
#[inline(always)]
pub(crate) fn to_unit_f32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
}

/// The `index`-th pair of independent standard normal numbers (Box-Muller in f64).
pub(crate) fn normal_pair(philox: &Philox, index: u64) -> (f64, f64) {
    let words = philox.block([index as u32, (index >> 32) as u32, 0, 0]);
    let unit = |hi: u32, lo: u32| ((u64::from(hi) << 32 | u64::from(lo)) >> 11) as f64 / (1u64 << 53) as f64;
    // 1 - u lies in (0, 1], so the logarithm is finite.
    let radius = (-2.0 * (1.0 - unit(words[0], words[1])).ln()).sqrt();
    let angle = std::f64::consts::TAU * unit(words[2], words[3]);
    (radius * angle.cos(), radius * angle.sin())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sixteen_blocks_are_those_of_their_counters() {
        let philox = Philox::new(7);
        let counter = |b: usize| [u32::MAX - b as u32, 3, b as u32, 5];
        let words = philox.blocks_16(counter);
        for (b, words) in words.chunks(4).enumerate() {
            assert_eq!(words, philox.block(counter(b)));
        }
    }

    /// Known answers of the authors' library Random123 (`kat_vectors`, philox4x32 10).
    #[test]
    fn known_answers() {
        let zero = Philox { key: [0, 0] };
        assert_eq!(zero.block([0; 4]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = Philox { key: [u32::MAX; 2] };
        assert_eq!(ones.block([u32::MAX; 4]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        let pi = Philox { key: [0xa409_3822, 0x299f_31d0] };
        assert_eq!(
            pi.block([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344]),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }
}
