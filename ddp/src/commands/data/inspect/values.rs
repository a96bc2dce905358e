//! The distinct values of a column, as long as they are few enough to be counted.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::storage::fingerprint::fingerprint;

/// Values of which the text is kept.
const MAX_EXAMPLES: usize = 64;

/// Distinct values with their counts.
#[derive(Debug, Default)]
pub(super) struct Values {
    counts: HashMap<u64, Entry, BuildHasherDefault<Taken>>,
    examples: Vec<(u64, String)>,
    /// More were met than are counted.
    is_full: bool,
    /// Some value was met twice.
    has_repeats: bool,
    /// Some value was met with two values of the target.
    is_mixed: bool,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    count: u64,
    /// Key of the target that the value came with first.
    target: u64,
}

/// Keys are hashes already.
#[derive(Debug, Default)]
pub(super) struct Taken(u64);

impl Hasher for Taken {
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
    /// Takes a value by its key, with the key of its row's target or 0; no more than `limit` distinct ones are counted.
    #[inline]
    pub(super) fn add(&mut self, key: u64, target: u64, limit: usize, text: impl FnOnce() -> String) {
        if self.is_full {
            return;
        }
        let n = self.counts.len();
        let entry = self.counts.entry(key).or_insert(Entry { count: 0, target });
        entry.count += 1;
        // A row without a target tells nothing of it.
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

    /// How many; None where there are too many to count.
    pub(super) fn len(&self) -> Option<usize> {
        (!self.is_full).then_some(self.counts.len())
    }

    /// Whether no value was met twice, as far as they were counted.
    pub(super) fn all_differ(&self) -> bool {
        !self.has_repeats
    }

    /// Whether each value came with one value of the target only.
    pub(super) fn tell_target(&self) -> bool {
        !self.is_full && !self.is_mixed
    }

    /// Values with their counts, the most frequent first; none where they are too many to show.
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

/// A hash of some words; never 0.
pub(super) fn mixed(hash: u64, word: u64) -> u64 {
    let x = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
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
