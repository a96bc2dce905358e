//! Proof that each row of an epoch was used exactly once, whatever ranks used it, in whatever order.
//!
//! A multiset hash: the sum, modulo 2^128, of a 128-bit mix of every row's number, and how many there were. Sums of parts add
//! up, so each rank sums its own rows, and a resumed run continues from the sum that the checkpoint holds. A finished epoch is
//! right if its sum is that of all rows, each once. Another multiset of as many rows has the same sum by chance of 2^-128; the
//! hash guards against faults, not against forgers.
//!
//! Source: M. Bellare, D. Micciancio, "A New Paradigm for Collision-free Hashing: Incrementality at Reduced Cost",
//! EUROCRYPT 1997 (AdHASH).
//!
//! ```
//! use ddp::data::order::epoch_proof::{EpochProof, RowsHash};
//!
//! // Two ranks, one with the even and one with the odd rows of 10.
//! let [even, odd] = [0u64, 1].map(|first| (first..10).step_by(2).collect::<RowsHash>());
//! let mut proof = EpochProof::default();
//! proof.finish_epoch(even.merged(&odd));
//! assert_eq!(proof.verify(10, 10)?.n_epochs, 1);
//!
//! // An epoch that uses the even rows twice.
//! proof.finish_epoch(even.merged(&even));
//! assert!(proof.verify(10, 20).is_err());
//! # Ok::<(), String>(())
//! ```

use std::collections::HashMap;
use std::fmt;

use ddp_kernels::cpu::threads;
use ddp_kernels::ops::{ROW_SUMS_LEN, mix_row};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Rows that a thread sums at a time in [`RowsHash::for_all_rows`].
const CHUNK_ROWS: u64 = 1 << 20;
/// Rows among which a pair that was exchanged is searched for; it takes some 50 bytes per row.
const MAX_SEARCHED_ROWS: u64 = 1 << 22;

/// A multiset of row numbers: how many, and the sum of their mixes. Two are equal if, and but for a chance of 2^-128 only if,
/// they hold the same rows equally often.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RowsHash {
    /// Rows, each as often as it was added.
    pub count: u64,
    /// Sum of their mixes, modulo 2^128.
    #[serde(with = "hex_u128")]
    sum: u128,
}

impl RowsHash {
    /// Bytes of [`to_bytes`](Self::to_bytes).
    const N_BYTES: usize = 24;

    /// Rows `0..n_rows`, each once.
    pub fn for_all_rows(n_rows: u64) -> Self {
        threads::join_any_pool();
        let chunks = (0..n_rows.div_ceil(CHUNK_ROWS)).into_par_iter();
        let of_chunk =
            |chunk: u64| (chunk * CHUNK_ROWS..n_rows.min((chunk + 1) * CHUNK_ROWS)).collect::<RowsHash>();
        chunks.map(of_chunk).reduce(RowsHash::default, |a, b| a.merged(&b))
    }

    /// Adds a row.
    #[inline]
    pub fn add(&mut self, row: u64) {
        self.count += 1;
        self.sum = self.sum.wrapping_add(mix_row(row));
    }

    /// Adds the rows of `other`.
    pub fn merge(&mut self, other: &RowsHash) {
        self.count += other.count;
        self.sum = self.sum.wrapping_add(other.sum);
    }

    /// The rows of both.
    #[must_use]
    pub fn merged(mut self, other: &RowsHash) -> Self {
        self.merge(other);
        self
    }

    /// The rows of which a device has summed the mixes: [`ddp_kernels::ops::begin_step`]. Each word's sum must be below 2^64, which
    /// 2^32 rows are.
    pub fn from_device_sums([count, words @ ..]: [u64; ROW_SUMS_LEN]) -> Self {
        let shifted = words.iter().enumerate().map(|(k, &word)| u128::from(word) << (32 * k));
        RowsHash { count, sum: shifted.fold(0, u128::wrapping_add) }
    }

    /// For the way to another rank, of the same program.
    pub fn to_bytes(&self) -> [u8; Self::N_BYTES] {
        let mut bytes = [0; Self::N_BYTES];
        bytes[..8].copy_from_slice(&self.count.to_le_bytes());
        bytes[8..].copy_from_slice(&self.sum.to_le_bytes());
        bytes
    }

    /// Reads the output of [`to_bytes`](Self::to_bytes); None for another number of bytes.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (count, sum) = bytes.split_first_chunk::<8>()?;
        let sum: &[u8; 16] = sum.try_into().ok()?;
        Some(RowsHash { count: u64::from_le_bytes(*count), sum: u128::from_le_bytes(*sum) })
    }
}

impl Extend<u64> for RowsHash {
    fn extend<T: IntoIterator<Item = u64>>(&mut self, rows: T) {
        rows.into_iter().for_each(|row| self.add(row));
    }
}

impl FromIterator<u64> for RowsHash {
    fn from_iter<T: IntoIterator<Item = u64>>(rows: T) -> Self {
        let mut hash = RowsHash::default();
        hash.extend(rows);
        hash
    }
}

/// Hashes of the rows that each epoch of a run has used.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpochProof {
    /// Finished epochs in their order; such with the same rows are merged.
    pub finished: Vec<FinishedEpochs>,
    /// Rows of the epoch under way, of all ranks.
    pub current: RowsHash,
}

/// Epochs that used the same rows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishedEpochs {
    /// From 1.
    pub first_epoch: u64,
    /// From 1; the last that is part of it.
    pub last_epoch: u64,
    /// Rows of each of them.
    pub rows: RowsHash,
}

/// Result of [`EpochProof::verify`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Proved {
    /// Rows of the data.
    pub n_rows: u64,
    /// Each row was used exactly once in each of the epochs 1 to this.
    pub n_epochs: u64,
    /// Rows used so far in the epoch after them.
    pub n_rows_of_next: u64,
}

impl EpochProof {
    /// Notes that an epoch has ended, in which all ranks together used `rows`; the next one starts without any.
    pub fn finish_epoch(&mut self, rows: RowsHash) {
        let epoch = self.n_finished() + 1;
        self.current = RowsHash::default();
        match self.finished.last_mut() {
            Some(last) if last.rows == rows => last.last_epoch = epoch,
            _ => self.finished.push(FinishedEpochs { first_epoch: epoch, last_epoch: epoch, rows }),
        }
    }

    /// Finished epochs.
    pub fn n_finished(&self) -> u64 {
        self.finished.last().map_or(0, |last| last.last_epoch)
    }

    /// Checks that each finished epoch used each of `n_rows` rows exactly once, and that the epochs account for the `cursor`
    /// rows that the run has used since its start. An epoch under way that has used as many rows as there are is checked as a
    /// finished one.
    ///
    /// Of an epoch under way only the number of rows is proved; who knows the order of rows can compare
    /// [`current`](Self::current) with a [`RowsHash`] of those that should have come.
    ///
    /// # Errors
    /// Description of the faults, a line for each epoch or run of epochs.
    pub fn verify(&self, n_rows: u64, cursor: u64) -> Result<Proved, String> {
        let mut wrong = Vec::new();
        let mut expected_epoch = 1;
        for epochs in &self.finished {
            if epochs.first_epoch != expected_epoch || epochs.last_epoch < epochs.first_epoch {
                wrong.push(format!("{epochs}: expected epoch {expected_epoch} next"));
            }
            expected_epoch = epochs.last_epoch.saturating_add(1);
        }
        let full = (n_rows > 0 && self.current.count >= n_rows).then_some(FinishedEpochs {
            first_epoch: expected_epoch,
            last_epoch: expected_epoch,
            rows: self.current,
        });
        let n_epochs = self.n_finished() + u64::from(full.is_some());
        let n_rows_of_next = if full.is_some() { 0 } else { self.current.count };
        let accounted = u128::from(n_epochs) * u128::from(n_rows) + u128::from(n_rows_of_next);
        if accounted != u128::from(cursor) {
            wrong.push(format!(
                "epoch {}: {n_rows_of_next} rows so far, after {n_epochs} epochs of {n_rows} rows, expected {cursor} \
                 rows in all",
                n_epochs + 1
            ));
        }
        // Last, because it takes time with the number of rows, which a damaged file may claim to be any.
        if wrong.is_empty() {
            let all = RowsHash::for_all_rows(n_rows);
            let differ = self.finished.iter().chain(&full).filter(|epochs| epochs.rows != all);
            wrong
                .extend(differ.map(|epochs| format!("{epochs}: {}", difference(&epochs.rows, &all, n_rows))));
        }
        if wrong.is_empty() { Ok(Proved { n_rows, n_epochs, n_rows_of_next }) } else { Err(wrong.join("\n")) }
    }
}

impl fmt::Display for FinishedEpochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { first_epoch, last_epoch, .. } if first_epoch == last_epoch => {
                write!(f, "epoch {first_epoch}")
            }
            Self { first_epoch, last_epoch, .. } => write!(f, "epochs {first_epoch} to {last_epoch}"),
        }
    }
}

impl fmt::Display for Proved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Proved { n_rows, n_epochs, n_rows_of_next } = self;
        match n_epochs {
            0 => write!(f, "no epoch is finished")?,
            1 => write!(f, "each of {n_rows} rows was used exactly once in epoch 1")?,
            n => write!(f, "each of {n_rows} rows was used exactly once in each of epochs 1 to {n}")?,
        }
        match n_rows_of_next {
            0 => Ok(()),
            n => write!(f, "; epoch {}: {n} rows so far", n_epochs + 1),
        }
    }
}

/// Describes the fault in the rows `got` of an epoch that should have been `all` of `n_rows`.
fn difference(got: &RowsHash, all: &RowsHash, n_rows: u64) -> String {
    let find = |mixed: u128| (0..n_rows).into_par_iter().find_first(|&row| mix_row(row) == mixed);
    let counted = format!("{} rows were used, expected each of {n_rows} once", got.count);
    let gap = all.sum.wrapping_sub(got.sum);
    if got.count + 1 == n_rows {
        return match find(gap) {
            Some(row) => format!("{counted}: row {row} is missing"),
            None => format!(
                "{counted}: at least one is missing, and others were used twice or are not of the data"
            ),
        };
    }
    if got.count == n_rows + 1 {
        return match find(gap.wrapping_neg()) {
            Some(row) => format!("{counted}: row {row} was used twice"),
            None => format!("{counted}: at least one was used twice or is not of the data"),
        };
    }
    if got.count != n_rows {
        let (what, n) = if got.count < n_rows {
            ("are missing", n_rows - got.count)
        } else {
            ("too many: rows were used more than once, or are not of the data", got.count - n_rows)
        };
        return format!("{counted}: at least {n} {what}");
    }
    match exchanged(gap, n_rows) {
        Some((missing, twice)) => {
            format!("{counted}: row {missing} is missing, and row {twice} was used twice")
        }
        None => format!("{counted}: some are missing, and as many were used twice or are not of the data"),
    }
}

/// The row that is missing and the one that came in its place, if they are two and of the data.
fn exchanged(gap: u128, n_rows: u64) -> Option<(u64, u64)> {
    if n_rows > MAX_SEARCHED_ROWS {
        return None;
    }
    let rows: HashMap<u128, u64> = (0..n_rows).map(|row| (mix_row(row), row)).collect();
    (0..n_rows).find_map(|missing| {
        let twice = rows.get(&mix_row(missing).wrapping_sub(gap))?;
        Some((missing, *twice))
    })
}

/// A sum as 32 hexadecimal digits: JSON's numbers are not that long.
mod hex_u128 {
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(sum: &u128, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{sum:032x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u128, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let sum = if is_hex { u128::from_str_radix(&text, 16).ok() } else { None };
        sum.ok_or_else(|| D::Error::custom(format!("expected 32 hexadecimal digits, got {text:?}")))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn proof_of(epochs: &[RowsHash], current: RowsHash) -> EpochProof {
        let mut proof = EpochProof::default();
        epochs.iter().for_each(|rows| proof.finish_epoch(*rows));
        proof.current = current;
        proof
    }

    #[test]
    fn what_is_proved_is_said() {
        let all = RowsHash::for_all_rows(1437);
        let proof = proof_of(&[all; 12], (0..640).collect());
        assert_eq!(proof.finished.len(), 1, "equal epochs are merged");
        let proved = proof.verify(1437, 12 * 1437 + 640).unwrap();
        assert_eq!(
            proved.to_string(),
            "each of 1437 rows was used exactly once in each of epochs 1 to 12; epoch 13: 640 rows so far"
        );
        let started = proof_of(&[], (0..5).collect()).verify(1437, 5).unwrap();
        assert_eq!(started.to_string(), "no epoch is finished; epoch 1: 5 rows so far");
        let one = proof_of(&[], RowsHash::for_all_rows(7)).verify(7, 7).unwrap();
        assert_eq!(one.to_string(), "each of 7 rows was used exactly once in epoch 1");
    }

    #[test]
    fn each_fault_is_named_by_epoch() {
        let all = RowsHash::for_all_rows(100);
        let without = |row: u64| (0..100).filter(|&r| r != row).collect::<RowsHash>();
        let mut twice = all;
        twice.add(17);
        let mut exchanged = without(3);
        exchanged.add(42);
        let mut foreign = without(3);
        foreign.add(100);
        let of = |rows: RowsHash| proof_of(&[all, all, rows, all], RowsHash::default()).verify(100, 400);
        for (rows, want) in [
            (without(3), "epoch 3: 99 rows were used, expected each of 100 once: row 3 is missing"),
            (twice, "epoch 3: 101 rows were used, expected each of 100 once: row 17 was used twice"),
            (exchanged, "row 3 is missing, and row 42 was used twice"),
            (foreign, "some are missing, and as many were used twice or are not of the data"),
            ((0..50).collect(), "at least 50 are missing"),
        ] {
            let message = of(rows).unwrap_err();
            assert!(message.contains(want), "{message}");
        }
        let message = proof_of(&[all; 2], (0..30).collect()).verify(100, 231).unwrap_err();
        assert_eq!(message, "epoch 3: 30 rows so far, after 2 epochs of 100 rows, expected 231 rows in all");
        let mut gap = proof_of(&[all], RowsHash::default());
        gap.finished[0].first_epoch = 2;
        assert!(gap.verify(100, 100).unwrap_err().contains("expected epoch 1 next"));
    }

    #[test]
    fn sums_of_many_rows_are_those_of_their_parts() {
        let n_rows = 2 * CHUNK_ROWS + 12345;
        assert_eq!(RowsHash::for_all_rows(n_rows), (0..n_rows).rev().collect());
        assert_eq!(RowsHash::for_all_rows(0), RowsHash::default());
    }

    proptest! {
        #[test]
        fn order_and_partition_do_not_matter(
            mut rows in prop::collection::vec(any::<u64>(), 0..200), cuts in prop::collection::vec(0usize..200, 0..6),
            seed: u64,
        ) {
            let whole: RowsHash = rows.iter().copied().collect();
            // Another order: sorted by a mix with the seed.
            rows.sort_by_key(|&row| mix_row(row ^ seed));
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut % (rows.len() + 1)).collect();
            cuts.extend([0, rows.len()]);
            cuts.sort_unstable();
            let mut merged = RowsHash::default();
            for part in cuts.windows(2) {
                let part: RowsHash = rows[part[0]..part[1]].iter().copied().collect();
                merged.merge(&RowsHash::from_bytes(&part.to_bytes()).unwrap());
            }
            prop_assert_eq!(merged, whole);
            let json = serde_json::to_string(&whole).unwrap();
            prop_assert_eq!(serde_json::from_str::<RowsHash>(&json).unwrap(), whole);
        }

        #[test]
        fn one_wrong_row_is_found(n_rows in 2u64..3000, row: u64, other: u64, kind in 0..3) {
            let (row, other) = (row % n_rows, other % n_rows);
            let mut rows: Vec<u64> = (0..n_rows).collect();
            match kind {
                0 => { rows.remove(row as usize); }
                1 => rows.push(row),
                _ => rows[row as usize] = if row == other { n_rows } else { other },
            }
            let rows: RowsHash = rows.into_iter().collect();
            let cursor = 2 * n_rows;
            prop_assert!(proof_of(&[RowsHash::for_all_rows(n_rows), rows], RowsHash::default()).verify(n_rows, cursor).is_err());
        }
    }

    #[test]
    fn bytes_of_another_length_are_none() {
        assert_eq!(RowsHash::from_bytes(&[0; 23]), None);
        assert_eq!(RowsHash::from_bytes(&[0; 25]), None);
    }
}
