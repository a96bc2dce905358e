//! Subsets of a dataset's rows: evaluation rows drawn by the seed, and the remaining training rows.

use std::ops::Range;
use std::sync::Arc;

use ddp_kernels::{KeyedPermutation, Tensor};

use crate::config::Fold;
use crate::data::datasets::dataset::{Dataset, gathered};
use crate::data::datasets::resident::TensorDataset;
use crate::data::datasets::wrapper::{Changes, DatasetWrapper};
use crate::data::error::{DataError, Result};
use crate::storage::fingerprint::Fingerprint;

/// No epoch has this number, so the split is independent of every epoch's order.
const SPLIT_EPOCH: u64 = u64::MAX;
/// Words of 64 rows between two entries of the directory.
const WORDS_A_COUNT: usize = 8;

/// A subset of a dataset's rows, in their order.
///
/// One bit per row marks the subset, and a directory of counts finds its n-th row.
#[derive(Debug)]
pub struct Subset {
    of: Arc<dyn Dataset>,
    bits: Vec<u64>,
    /// Number of rows before each group of words; the last entry is the total.
    counts: Vec<usize>,
    block_ends: Option<Vec<usize>>,
    /// Rows of the source that were left out because they have no target, if it is another number than the dataset's.
    n_without_target: Option<usize>,
}

macro_rules! tensors {
    ($($rows:ty),*) => {$(
        impl $rows {
            /// The features of all rows, `[N, n_features]`, a copy in host memory.
            ///
            /// # Errors
            /// [`DataError`] if rows cannot be read or memory is short.
            pub fn x(&self) -> Result<Tensor> {
                let [x, ..] = gathered(self, &Vec::from_iter(0..Dataset::len(self)))?;
                Ok(x)
            }

            /// The targets of all rows, `[N]` class indices in i64 or `[N, K]` values in f32, a copy in host memory.
            ///
            /// # Errors
            /// Same as `x`.
            pub fn y(&self) -> Result<Tensor> {
                let [_, y, _] = gathered(self, &Vec::from_iter(0..Dataset::len(self)))?;
                Ok(y)
            }
        }
    )*};
}
tensors!(TensorDataset, Subset);

/// The rows except those `without_target`, whose numbers ascend.
pub fn with_targets(dataset: Arc<dyn Dataset>, without_target: &[usize]) -> Arc<dyn Dataset> {
    if without_target.is_empty() {
        return dataset;
    }
    let mut left_out = Bits::new(dataset.len());
    without_target.iter().for_each(|&row| left_out.set(row));
    let mut rows = Subset::new(&dataset, left_out.inverted());
    rows.n_without_target = Some(dataset.n_without_target() + without_target.len());
    Arc::new(rows)
}

/// The first `max` rows of the source of `dataset`, those without a target among them.
pub fn first_rows(dataset: Arc<dyn Dataset>, max: usize) -> Arc<dyn Dataset> {
    if dataset.len() + dataset.n_without_target() <= max {
        return dataset;
    }
    let (mut n, mut end) = (0, dataset.len().min(max));
    while n < end {
        let middle = n.midpoint(end);
        if dataset.source_row(middle) < max { n = middle + 1 } else { end = middle }
    }
    let mut first = Bits::new(dataset.len());
    (0..n).for_each(|row| first.set(row));
    let mut rows = Subset::new(&dataset, first);
    rows.n_without_target = Some(max - n);
    Arc::new(rows)
}

/// Splits into (training rows, evaluation rows); `fraction` in (0, 1), rounded to whole rows. Both keep the rows' order.
///
/// # Errors
/// [`DataError::EmptySplit`] if one side would have no rows.
pub fn split(dataset: &Arc<dyn Dataset>, fraction: f64, seed: u64) -> Result<(Subset, Subset)> {
    let n_rows = dataset.len();
    let n_eval_rows = (n_rows as f64 * fraction).round() as usize;
    check_sizes(&**dataset, fraction, n_eval_rows)?;
    let permutation = KeyedPermutation::new(n_rows, seed, SPLIT_EPOCH);
    let mut is_eval = Bits::new(n_rows);
    (0..n_eval_rows).for_each(|i| is_eval.set(permutation.index(i)));
    Ok((Subset::new(dataset, is_eval.inverted()), Subset::new(dataset, is_eval)))
}

/// Splits into (the rows of all other folds, the rows of `fold`): the folds are disjoint, hold all rows, and differ by a row at most. Both
/// sides keep the rows' order.
///
/// # Errors
/// [`DataError::EmptySplit`] if there are fewer rows than folds.
pub fn split_fold(dataset: &Arc<dyn Dataset>, fold: Fold, seed: u64) -> Result<(Subset, Subset)> {
    let n_rows = dataset.len();
    check_folds(&**dataset, fold)?;
    let permutation = KeyedPermutation::new(n_rows, seed, SPLIT_EPOCH);
    let mut is_eval = Bits::new(n_rows);
    (fold.number - 1..n_rows).step_by(fold.of).for_each(|i| is_eval.set(permutation.index(i)));
    Ok((Subset::new(dataset, is_eval.inverted()), Subset::new(dataset, is_eval)))
}

/// Checks that each fold has rows.
///
/// # Errors
/// [`DataError::EmptySplit`].
pub fn check_folds(dataset: &dyn Dataset, fold: Fold) -> Result<()> {
    check_sizes(
        dataset,
        1.0 / fold.of as f64,
        if dataset.len() < fold.of { 0 } else { dataset.len() / fold.of },
    )
}

/// Checks that both sides of a split have rows.
///
/// # Errors
/// [`DataError::EmptySplit`].
pub fn check_sizes(dataset: &dyn Dataset, fraction: f64, n_eval_rows: usize) -> Result<()> {
    let n_rows = dataset.len();
    if (1..n_rows).contains(&n_eval_rows) {
        return Ok(());
    }
    Err(DataError::EmptySplit {
        source_name: dataset.source().to_owned(),
        n_rows,
        fraction,
        empty: if n_eval_rows == 0 { "no test rows" } else { "no training rows" },
    })
}

/// A bit per row.
#[derive(Debug)]
pub struct Bits {
    n_rows: usize,
    words: Vec<u64>,
}

impl Bits {
    /// No row of `n_rows`.
    pub fn new(n_rows: usize) -> Self {
        Bits { n_rows, words: vec![0; n_rows.div_ceil(64)] }
    }

    /// The rows of [`Bits::to_bytes`].
    ///
    /// # Panics
    /// If it is of another number of rows.
    pub fn from_bytes(n_rows: usize, bytes: &[u8]) -> Self {
        let words: Vec<u64> = bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        assert_eq!(words.len(), n_rows.div_ceil(64), "a bit per row");
        Bits { n_rows, words }
    }

    /// The bits as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Number of rows of the dataset.
    pub fn len(&self) -> usize {
        self.n_rows
    }

    /// Whether the dataset has no rows.
    pub fn is_empty(&self) -> bool {
        self.n_rows == 0
    }

    /// Number of rows that it holds.
    pub fn count(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn set(&mut self, row: usize) {
        self.words[row / 64] |= 1 << (row % 64);
    }

    pub fn has(&self, row: usize) -> bool {
        self.words[row / 64] >> (row % 64) & 1 == 1
    }

    /// The other rows.
    pub fn inverted(&self) -> Self {
        let mut words: Vec<u64> = self.words.iter().map(|word| !word).collect();
        if !self.n_rows.is_multiple_of(64)
            && let Some(last) = words.last_mut()
        {
            *last &= (1 << (self.n_rows % 64)) - 1;
        }
        Bits { n_rows: self.n_rows, words }
    }
}

impl TensorDataset {
    /// Splits into (the other rows, `fraction` of the rows), drawn by `seed`: both keep the rows' order.
    ///
    /// # Errors
    /// [`DataError::EmptySplit`] if a side would have no rows.
    ///
    /// Source: `torch.utils.data.random_split`.
    pub fn split(self, fraction: f64, seed: u64) -> Result<(Subset, Subset)> {
        split(&(Arc::new(self) as Arc<dyn Dataset>), fraction, seed)
    }

    /// The splits of a `k`-fold cross-validation, drawn by `seed`: (the rows of the other folds, those of the fold).
    ///
    /// # Errors
    /// [`DataError::EmptySplit`] if there are fewer rows than folds.
    ///
    /// Source: `sklearn.model_selection.KFold`.
    pub fn folds(self, k: usize, seed: u64) -> Result<Vec<(Subset, Subset)>> {
        let rows = Arc::new(self) as Arc<dyn Dataset>;
        (1..=k).map(|number| split_fold(&rows, Fold { number, of: k }, seed)).collect()
    }
}

impl Subset {
    /// Number of rows.
    #[expect(clippy::len_without_is_empty, reason = "`Dataset` has it")]
    pub fn len(&self) -> usize {
        Dataset::len(self)
    }

    /// The rows of `of` whose bits are set.
    pub fn new(of: &Arc<dyn Dataset>, bits: Bits) -> Self {
        let bits = bits.words;
        let mut counts = vec![0];
        for words in bits.chunks(WORDS_A_COUNT) {
            let n = words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
            counts.push(counts[counts.len() - 1] + n);
        }
        let mut subset = Subset { of: of.clone(), bits, counts, block_ends: None, n_without_target: None };
        subset.block_ends =
            of.block_ends().map(|ends| ends.iter().map(|&end| subset.rows_before(end)).collect());
        subset
    }

    /// Rows of the dataset that it holds, a bit each.
    pub fn bits(&self) -> Bits {
        Bits { n_rows: self.of.len(), words: self.bits.clone() }
    }

    /// Number of its rows before row `row` of the dataset.
    fn rows_before(&self, row: usize) -> usize {
        let (word, bit) = (row / 64, row % 64);
        let group = word / WORDS_A_COUNT;
        let whole =
            self.bits[group * WORDS_A_COUNT..word.min(self.bits.len())].iter().map(|word| word.count_ones());
        let part = self.bits.get(word).map_or(0, |word| (word & ((1 << bit) - 1)).count_ones());
        self.counts[group] + whole.sum::<u32>() as usize + part as usize
    }
}

impl DatasetWrapper for Subset {
    const CHANGES: Changes = Changes::Rows;

    fn inner(&self) -> &dyn Dataset {
        &*self.of
    }

    fn row(&self, n: usize) -> usize {
        let group = self.counts.partition_point(|&count| count <= n) - 1;
        let mut left = n - self.counts[group];
        let mut at = group * WORDS_A_COUNT;
        while self.bits[at].count_ones() as usize <= left {
            left -= self.bits[at].count_ones() as usize;
            at += 1;
        }
        let mut word = self.bits[at];
        for _ in 0..left {
            word &= word - 1;
        }
        at * 64 + word.trailing_zeros() as usize
    }

    fn len(&self) -> usize {
        self.counts[self.counts.len() - 1]
    }

    fn class_indices(&self, rows: Range<usize>, out: &mut [i64]) -> Result<()> {
        const CHUNK_ROWS: usize = 1 << 14;
        if rows.is_empty() {
            return Ok(());
        }
        let (first, last) = (self.row(rows.start), self.row(rows.end - 1));
        let mut classes = vec![0; CHUNK_ROWS.min(last + 1 - first)];
        let mut out = out.iter_mut();
        for start in (first..=last).step_by(CHUNK_ROWS) {
            let end = (start + CHUNK_ROWS).min(last + 1);
            let classes = &mut classes[..end - start];
            self.of.class_indices(start..end, classes)?;
            for row in (start..end).filter(|row| self.bits[row / 64] >> (row % 64) & 1 == 1) {
                *out.next().expect("as many rows as numbers") = classes[row - start];
            }
        }
        Ok(())
    }

    fn block_ends(&self) -> Option<&[usize]> {
        self.block_ends.as_deref()
    }

    fn prefetch(&self, rows: &[Range<usize>]) {
        let in_whole = |rows: &Range<usize>| self.row(rows.start)..self.row(rows.end - 1) + 1;
        let rows: Vec<_> = rows.iter().filter(|rows| !rows.is_empty()).map(in_whole).collect();
        self.of.prefetch(&rows);
    }

    fn n_without_target(&self) -> usize {
        self.n_without_target.unwrap_or_else(|| self.of.n_without_target())
    }

    fn fingerprint(&self) -> Result<u64> {
        let mut hash = Fingerprint::default();
        hash.number(self.of.fingerprint()?);
        hash.bytes(bytemuck::cast_slice(&self.bits));
        Ok(hash.finish())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::data::datasets::subset::*;
    use crate::data::testing::{numbered, numbers_of};

    #[test]
    fn folds_are_disjoint_and_hold_all_rows() {
        for (n_rows, of) in [(10, 2), (11, 3), (7, 7), (1000, 9)] {
            let whole = numbered(n_rows);
            let mut all = Vec::new();
            for number in 1..=of {
                let (train, eval) = split_fold(&whole, Fold { number, of }, 3).unwrap();
                let rows = numbers_of(&eval);
                assert!(rows.len() == n_rows / of || rows.len() == n_rows.div_ceil(of), "{n_rows} in {of}");
                assert_eq!(Dataset::len(&train) + rows.len(), n_rows);
                all.extend(rows);
            }
            all.sort_unstable();
            assert!(all.iter().copied().eq(numbers_of(&*whole)), "{n_rows} in {of}");
        }
        assert!(split_fold(&numbered(4), Fold { number: 1, of: 5 }, 3).is_err());
    }

    proptest! {
        #[test]
        fn parts_hold_each_row_once_and_in_order(n_rows in 2usize..3000, fraction in 0.01..0.99, seed: u64) {
            let whole = numbered(n_rows);
            let Ok((train, eval)) = split(&whole, fraction, seed) else { return Ok(()) };
            prop_assert_eq!(Dataset::len(&eval), (n_rows as f64 * fraction).round() as usize);
            let (train_rows, eval_rows) = (numbers_of(&train), numbers_of(&eval));
            prop_assert!(train_rows.is_sorted() && eval_rows.is_sorted());
            for (subset, rows) in [(&train, &train_rows), (&eval, &eval_rows)] {
                for (n, &row) in rows.iter().enumerate().step_by(17) {
                    prop_assert_eq!(subset.rows_before(row), n);
                }
                prop_assert_eq!(subset.rows_before(n_rows), Dataset::len(subset));
            }
            let mut all = [train_rows, eval_rows].concat();
            all.sort();
            prop_assert_eq!(all, (0..n_rows).collect::<Vec<_>>());
        }
    }

    #[test]
    fn the_seed_decides() {
        let rows = numbered(1000);
        let eval = |seed| numbers_of(&split(&rows, 0.1, seed).unwrap().1);
        assert_eq!(eval(1), eval(1));
        assert_ne!(eval(1), eval(2));
    }

    #[test]
    fn empty_parts_are_refused() {
        for (n_rows, fraction, empty) in
            [(2, 0.2, "no test rows"), (1, 0.9, "no training rows"), (10, 0.99, "no training rows")]
        {
            let error = ddp_kernels::hint::with_hint(&split(&numbered(n_rows), fraction, 0).unwrap_err());
            assert!(error.contains("rows in memory") && error.contains(empty), "{error}");
            assert!(error.contains("hint: ") && error.contains("data.eval_fraction"), "{error}");
        }
    }
}
