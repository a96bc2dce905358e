//! Remainders that f32 rounds away from the values of a table's columns.
//!
//! Kept for columns far from 0 relative to their spread, such as times: their mean is subtracted from the exact values. Kept, too,
//! where distinct values have the same f32, so that the user can be warned. In other columns the rounding is small next to the
//! spread, and remainders would only take memory.

/// Columns whose mean is fewer standard deviations from 0 lose their remainders. Half of what an offset needs (`offsets.rs`), which
/// is decided later and on other rows.
const MIN_DEVIATIONS: f64 = 4.0;
/// Values and rows from which columns are pruned while a table is read.
const FIRST_PRUNE_VALUES: usize = 1 << 20;
const FIRST_PRUNE_ROWS: std::ops::RangeInclusive<usize> = 64..=4096;
/// Share of the distinct values that share an f32 with another one: of random numbers some always do.
const MAX_LOST_SHARE: f64 = 0.01;

/// Remainders by feature and row. The value of row `n` is the f32 there plus the remainder, both exactly.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Remainders {
    /// One per feature; `None` if its remainders are dropped. Those of the last rows may be missing: they are 0.
    columns: Vec<Option<Vec<f64>>>,
    /// Rows with which columns are pruned next; `None` if all columns are kept, because a model decides which have offsets.
    prune_at: Option<usize>,
}

impl Remainders {
    /// Without rows; `prunes` if the rows decide which columns are worth their memory.
    pub(crate) fn new(n_features: usize, prunes: bool) -> Self {
        let rows = FIRST_PRUNE_VALUES / n_features.max(1);
        let prune_at = rows.clamp(*FIRST_PRUNE_ROWS.start(), *FIRST_PRUNE_ROWS.end());
        Remainders { columns: vec![Some(Vec::new()); n_features], prune_at: prunes.then_some(prune_at) }
    }

    /// Keeps the remainders of the features for which `keep` is true, however many rows there are.
    pub(crate) fn of_features(keep: &[bool]) -> Self {
        Remainders { columns: keep.iter().map(|keep| keep.then(Vec::new)).collect(), prune_at: None }
    }

    /// The remainders so far; those of the next rows start empty.
    pub(crate) fn take(&mut self) -> Self {
        let empty = self.columns.iter().map(|column| column.as_ref().map(|_| Vec::new())).collect();
        Remainders { columns: std::mem::replace(&mut self.columns, empty), prune_at: self.prune_at }
    }

    /// Whether remainders of the feature are kept.
    #[inline(always)]
    pub(crate) fn keeps(&self, feature: usize) -> bool {
        self.columns[feature].is_some()
    }

    /// Sets the remainder of a row after those with remainders.
    #[inline]
    pub(crate) fn set(&mut self, feature: usize, row: usize, remainder: f64) {
        if let Some(column) = &mut self.columns[feature]
            && remainder != 0.0
        {
            column.resize(row, 0.0);
            column.push(remainder);
        }
    }

    fn get(&self, feature: usize, row: usize) -> f64 {
        self.columns[feature].as_ref().and_then(|column| column.get(row)).copied().unwrap_or(0.0)
    }

    /// Removes the rows from `n_rows` on.
    pub(crate) fn truncate(&mut self, n_rows: usize) {
        self.columns.iter_mut().flatten().for_each(|column| column.truncate(n_rows));
    }

    /// Whether all remainders are 0.
    pub(crate) fn is_empty(&self) -> bool {
        self.columns.iter().flatten().all(Vec::is_empty)
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.columns.iter().flatten().map(|column| column.len() * size_of::<f64>()).sum()
    }

    /// Drops the remainders that are not worth their memory, whenever the number of rows has doubled. `features` are the f32 of all
    /// rows.
    pub(crate) fn prune_sometimes(&mut self, features: &[f32]) {
        let n_rows = features.len() / self.columns.len().max(1);
        if let Some(prune_at) = self.prune_at
            && n_rows >= prune_at
        {
            self.prune_at = Some(2 * n_rows);
            self.prune(features, |_, _| false);
        }
    }

    /// Drops the remainders that are not worth their memory once all rows are read, among them those of decimal numbers that f32
    /// reproduces to the digit.
    pub(crate) fn finish(&mut self, features: &[f32]) {
        if self.prune_at.is_some() {
            self.prune(features, is_short);
        }
    }

    /// Drops the remainders that are not worth their memory, also those of a model's columns: memory is short.
    pub(crate) fn shrink(&mut self, features: &[f32]) {
        self.prune(features, |_, _| false);
    }

    /// Drops remainders; `is_short` marks columns whose f32 are as good as their values.
    fn prune(&mut self, features: &[f32], is_short: impl Fn(f32, f64) -> bool) {
        let n_features = self.columns.len();
        for feature in 0..n_features {
            let Some(column) = self.columns[feature].as_ref().filter(|column| !column.is_empty()) else {
                continue;
            };
            let singles = features.iter().skip(feature).step_by(n_features);
            let mut all = singles.clone().zip(column.iter().copied().chain(std::iter::repeat(0.0)));
            let is_needed = is_far(singles.clone()) && !all.all(|(&single, less)| is_short(single, less));
            if !is_needed && !has_lost(singles, column) {
                self.columns[feature] = None;
            }
        }
    }

    /// Writes the values of rows minus `origin`, one per feature, to `out`; `features` are the f32 of all rows.
    pub(crate) fn differences(&self, features: &[f32], rows: &[usize], origin: &[f64], out: &mut [f64]) {
        let n_features = self.columns.len().max(1);
        for (&row, out) in rows.iter().zip(out.chunks_exact_mut(n_features)) {
            let singles = &features[row * n_features..][..n_features];
            for (feature, ((&single, origin), out)) in singles.iter().zip(origin).zip(out).enumerate() {
                // The first difference is exact near the origin, where digits matter.
                *out = (f64::from(single) - origin) + self.get(feature, row);
            }
        }
    }
}

/// Whether values lie far from 0 relative to their spread.
fn is_far<'a>(values: impl Iterator<Item = &'a f32> + Clone) -> bool {
    let numbers = values.map(|&value| f64::from(value)).filter(|value| !value.is_nan());
    let (n, sum) = numbers.clone().fold((0.0, 0.0), |(n, sum), value| (n + 1.0, sum + value));
    let mean: f64 = sum / f64::max(n, 1.0);
    let squares: f64 = numbers.map(|value| (value - mean) * (value - mean)).sum();
    mean.abs() >= MIN_DEVIATIONS * (squares / f64::max(n, 1.0)).sqrt()
}

/// Whether the value is what the shortest decimal notation of its f32 says.
pub(crate) fn is_short(single: f32, remainder: f64) -> bool {
    let value = f64::from(single) + remainder;
    remainder == 0.0 || single.to_string().parse() == Ok(value)
}

/// Whether distinct values have the same f32.
fn has_lost<'a>(singles: impl Iterator<Item = &'a f32>, remainders: &[f64]) -> bool {
    let remainders = remainders.iter().copied().chain(std::iter::repeat(0.0));
    let bits = |(single, remainder): (&f32, f64)| (single.to_bits(), remainder.to_bits());
    let mut values: Vec<(u32, u64)> = singles.zip(remainders).map(bits).collect();
    values.sort_unstable();
    values.dedup();
    let n_exact = values.len();
    values.dedup_by_key(|value| value.0);
    (n_exact - values.len()) as f64 > MAX_LOST_SHARE * n_exact as f64
}

#[cfg(test)]
mod tests {
    use crate::data::datasets::remainders::*;

    #[test]
    fn columns_with_values_that_fall_together_are_kept() {
        let mut remainders = Remainders::new(1, true);
        // Times with zeros in place of missing ones: no offset keeps both.
        let features: Vec<f32> = (0..100).map(|row| if row % 5 == 0 { 0.0 } else { 1.7e18 }).collect();
        for row in (0..100).filter(|row| row % 5 > 0) {
            remainders.set(0, row, row as f64);
        }
        assert!(!is_far(features.iter()));
        remainders.finish(&features);
        assert!(remainders.keeps(0));
    }

    #[test]
    fn values_come_back_exactly_and_integers_beyond_f64_too() {
        let whole = 1_700_000_000_000_000_123_i64;
        let values = [0.1 + 1e6, 7.0, -3e5 + 1.0 / 3.0];
        let singles: Vec<f32> = values.iter().map(|&v| v as f32).chain([whole as f32]).collect();
        let mut remainders = Remainders::new(1, true);
        for (row, value) in values.iter().enumerate() {
            remainders.set(0, row, value - f64::from(singles[row]));
        }
        remainders.set(0, 3, (i128::from(whole) - singles[3] as i128) as f64);
        let mut out = [0.0; 3];
        remainders.differences(&singles, &[2, 0, 1], &[0.0], &mut out);
        assert_eq!(out, [values[2], values[0], values[1]]);
        remainders.differences(&singles, &[3], &[1.7e18], &mut out[..1]);
        assert_eq!(out[0], 123.0);
        remainders.truncate(0);
        assert!(remainders.is_empty());
    }

    #[test]
    fn only_columns_far_from_0_are_kept() {
        let mut remainders = Remainders::new(3, true);
        let features: Vec<f32> =
            (0..100).flat_map(|row| [1.7e9 + row as f32, row as f32 - 50.0, 3.0]).collect();
        for row in 0..100 {
            remainders.set(0, row, 0.25);
            remainders.set(1, row, 1e-9);
        }
        let mut of_model = Remainders { prune_at: None, ..remainders.clone() };
        remainders.finish(&features);
        assert!(remainders.keeps(0) && !remainders.keeps(1) && remainders.keeps(2));
        assert_eq!(remainders.size_bytes(), 800);
        of_model.finish(&features);
        assert!((0..3).all(|feature| of_model.keeps(feature)));
        of_model.shrink(&features);
        assert!(!of_model.keeps(1));
    }

    #[test]
    fn short_decimals_are_what_f32_holds() {
        let fill = |values: [f64; 3]| {
            let singles = values.map(|value| value as f32);
            let mut remainders = Remainders::new(1, true);
            for (row, (value, single)) in values.iter().zip(singles).enumerate() {
                remainders.set(0, row, value - f64::from(single));
            }
            remainders.finish(&singles);
            remainders.keeps(0)
        };
        assert!(!fill([3.01, 3.02, 3.03]));
        assert!(fill([3.01, 3.02, 3.030_000_001]));
        assert!(fill([123_456_789.0, 123_456_790.0, 123_456_791.0]));
    }
}
