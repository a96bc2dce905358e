//! Counts the distinct values of a column, up to a limit.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use ddp::storage::fingerprint::fingerprint;

/// Most values whose text is kept.
const MAX_EXAMPLES: usize = 64;
/// Distinct values from which on there is room for all.
const RESERVED: usize = 1 << 12;

/// Distinct values with their counts.
#[derive(Debug, Default)]
pub(super) struct Values {
    counts: HashMap<u64, Entry, BuildHasherDefault<KeyHasher>>,
    examples: Vec<(u64, String)>,
    /// Whether the limit was exceeded.
    is_full: bool,
    /// Whether some value occurred twice.
    has_repeats: bool,
    /// Whether some value occurred with two values of the target.
    is_mixed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    count: u64,
    /// Key of the target in the value's first row.
    target: u64,
}

/// Passes keys through, because they are hashes.
#[derive(Debug, Default)]
pub(super) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("keys are u64");
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

impl Values {
    /// Adds a value by its key, with the key of its row's target or 0; counts at most `limit` distinct values.
    #[inline]
    pub(super) fn add(&mut self, key: u64, target: u64, limit: usize, text: impl FnOnce() -> String) {
        let n = self.counts.len();
        if n == RESERVED {
            self.counts.reserve(limit);
        }
        let entry = self.counts.entry(key).or_insert(Entry { count: 0, target });
        entry.count += 1;
        // A row without a target does not count.
        if entry.target == 0 {
            entry.target = target;
        }
        self.is_mixed |= target != 0 && entry.target != target;
        if entry.count > 1 {
            self.has_repeats = true;
        } else if n < MAX_EXAMPLES {
            self.examples.push((key, text()));
        } else if n == limit {
            self.is_full = true;
            self.counts = HashMap::default();
        }
    }

    /// Whether there are too many values to count.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Number of distinct values; `None` if there are too many to count.
    pub(super) fn len(&self) -> Option<usize> {
        (!self.is_full).then_some(self.counts.len())
    }

    /// Whether no counted value occurred twice.
    pub(super) fn all_differ(&self) -> bool {
        !self.has_repeats
    }

    /// Whether each value occurred with a single value of the target.
    pub(super) fn determines_target(&self) -> bool {
        !self.is_full && !self.is_mixed
    }

    /// The first distinct values; fewer than all if there are many.
    pub(super) fn examples(&self) -> impl ExactSizeIterator<Item = &str> {
        self.examples.iter().map(|(_, text)| text.as_str())
    }

    /// Rows of the rarest value, and rows per value; 0 if there are too many values to count.
    pub(super) fn least_and_mean(&self) -> (u64, f64) {
        let counts = || self.counts.values().map(|entry| entry.count);
        match (self.len(), counts().min()) {
            (Some(n), Some(least)) => (least, counts().sum::<u64>() as f64 / n as f64),
            _ => (0, 0.0),
        }
    }

    /// Values with their counts, the most frequent first; none if there are too many to show.
    pub(super) fn by_count(&self) -> Vec<(String, u64)> {
        if self.len().is_none_or(|n| n > MAX_EXAMPLES) {
            return Vec::new();
        }
        let count =
            |(key, text): &(u64, String)| (text.clone(), self.counts.get(key).map_or(0, |entry| entry.count));
        let mut values: Vec<_> = self.examples.iter().map(count).collect();
        values.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        values
    }
}

/// The golden ratio in 64 bits.
pub(super) const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// Mixes a word into a hash; never 0.
fn mixed(hash: u64, word: u64) -> u64 {
    let x = (hash ^ word).wrapping_mul(MIX);
    ((x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) ^ x >> 32).max(1)
}

/// The key of a number: the same for 1, 1.0 and 01.
pub(super) fn key_of_number(value: f64) -> u64 {
    // Minus zero is zero.
    mixed(0x51, (value + 0.0).to_bits())
}

/// The key of a text.
pub(super) fn key_of_text(text: &str) -> u64 {
    mixed(0xa7, fingerprint(text.as_bytes()))
}
