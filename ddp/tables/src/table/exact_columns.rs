//! Columns of a table in f64 or integers, next to their f32, where f32 rounds digits that count.
//!
//! Kept for columns far from 0 relative to their spread, such as times: their mean is subtracted from the exact values. Kept, too,
//! where distinct values have the same f32, so that the user can be warned. In other columns the rounding is small next to the
//! spread, and exact values would only take memory.

use crate::values::number::Exact;
use crate::values::number::digits::is_short;

/// Columns whose mean is fewer standard deviations from 0 lose their exact values. Half of what an offset needs (`offsets.rs`),
/// which is decided later and on other rows.
const MIN_DEVIATIONS: f64 = 4.0;
/// Values and rows from which columns are pruned while a table is read.
const FIRST_PRUNE_VALUES: usize = 1 << 20;
const FIRST_PRUNE_ROWS: std::ops::RangeInclusive<usize> = 64..=4096;
/// Share of the distinct values that share an f32 with another one: of random numbers some always do.
const MAX_LOST_SHARE: f64 = 0.01;

/// Exact values by column and row; a column is empty up to the first value that f32 rounds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ExactColumns {
    /// `None` for a column that has only its f32.
    columns: Vec<Option<ExactColumn>>,
    /// Rows with which columns are pruned next; `None` if all columns are kept, because a model decides which have offsets.
    prune_at: Option<usize>,
}

/// Exact values of the first rows of a column; those of later rows are their f32.
#[derive(Debug, Clone, PartialEq, Default)]
struct ExactColumn {
    /// Integers of which this many are 1, 0 where a value is missing; [`Exact::UNSIGNED`] for those of u64, `None` for f64.
    per_unit: Option<i64>,
    /// The integers, or the bits of f64.
    words: Vec<u64>,
}

impl ExactColumns {
    /// Without rows; `prunes` if the rows decide which columns are worth their memory.
    pub(crate) fn new(n_columns: usize, prunes: bool) -> Self {
        let rows = FIRST_PRUNE_VALUES / n_columns.max(1);
        let prune_at = rows.clamp(*FIRST_PRUNE_ROWS.start(), *FIRST_PRUNE_ROWS.end());
        ExactColumns {
            columns: vec![Some(ExactColumn::default()); n_columns],
            prune_at: prunes.then_some(prune_at),
        }
    }

    /// Keeps the columns for which `keep` is true, however many rows there are.
    pub(crate) fn from_columns(keep: &[bool]) -> Self {
        let columns = keep.iter().map(|keep| keep.then(ExactColumn::default)).collect();
        ExactColumns { columns, prune_at: None }
    }

    /// The values so far; those of the next rows start empty.
    pub(crate) fn take(&mut self) -> Self {
        let empty =
            self.columns.iter().map(|column| column.as_ref().map(|_| ExactColumn::default())).collect();
        ExactColumns { columns: std::mem::replace(&mut self.columns, empty), prune_at: self.prune_at }
    }

    /// Whether the column is kept.
    #[inline(always)]
    pub(crate) fn keeps(&self, column: usize) -> bool {
        self.columns[column].is_some()
    }

    /// Sets the value of a row after those that are set, unless it is its f32 or missing; `singles` are the f32 of all rows.
    #[inline]
    pub(crate) fn set(&mut self, column: usize, row: usize, value: Exact, singles: &[f32]) {
        let n_columns = self.columns.len();
        let single = |row: usize| f64::from(singles[row * n_columns + column]);
        if let Some(exact) = &mut self.columns[column]
            && value.less(single(row)).abs() > 0.0
        {
            if exact.words.is_empty() {
                exact.per_unit = value.per_unit();
            }
            (exact.words.len()..row).for_each(|row| exact.push(Exact::Double(single(row))));
            exact.push(value);
        }
    }

    /// Removes the rows from `n_rows` on.
    pub(crate) fn truncate(&mut self, n_rows: usize) {
        self.columns.iter_mut().flatten().for_each(|column| column.words.truncate(n_rows));
    }

    /// Whether f32 holds all values.
    pub(crate) fn is_empty(&self) -> bool {
        self.columns.iter().flatten().all(|column| column.words.is_empty())
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.columns.iter().flatten().map(|column| column.words.len() * size_of::<u64>()).sum()
    }

    /// Drops the columns that are not worth their memory, whenever the number of rows has doubled. `singles` are the f32 of all
    /// rows.
    pub(crate) fn prune_sometimes(&mut self, singles: &[f32]) {
        let n_rows = singles.len() / self.columns.len().max(1);
        if let Some(prune_at) = self.prune_at
            && n_rows >= prune_at
        {
            self.prune_at = Some(2 * n_rows);
            self.prune(singles, false);
        }
    }

    /// Drops the columns that are not worth their memory once all rows are read, among them those of decimal numbers that f32
    /// reproduces to the digit.
    pub(crate) fn finish(&mut self, singles: &[f32]) {
        if self.prune_at.is_some() {
            self.prune(singles, true);
        }
    }

    /// Drops the columns that are not worth their memory, also those of a model; columns of short decimals on request.
    pub(crate) fn prune(&mut self, singles: &[f32], drops_short: bool) {
        let n_columns = self.columns.len();
        for column in 0..n_columns {
            let Some(exact) = self.columns[column].as_ref().filter(|exact| !exact.words.is_empty()) else {
                continue;
            };
            let singles = singles.iter().copied().skip(column).step_by(n_columns);
            let mut values =
                singles.clone().enumerate().map(|(row, single)| (single, exact.rest(row, single)));
            let is_needed = is_far(singles.clone())
                && !(drops_short
                    && values.clone().all(|(single, rest)| is_short(single, f64::from(single) + rest)));
            if !is_needed && !has_lost(&mut values) {
                self.columns[column] = None;
            }
        }
    }

    /// Exact values of the columns that have some.
    pub(crate) fn values(&self) -> impl Iterator<Item = Option<ExactValues<'_>>> {
        self.columns.iter().map(|column| column.as_ref().map(ExactColumn::view))
    }

    /// Writes the values of rows minus `origin`, one per column, to `out`; `singles` are the f32 of all rows.
    pub(crate) fn differences(&self, singles: &[f32], rows: &[usize], origin: &[f64], out: &mut [f64]) {
        differences(
            |column| self.columns[column].as_ref().map(ExactColumn::view),
            singles,
            rows,
            origin,
            out,
        );
    }
}

/// Exact values of the first rows of a column; those of later rows are their f32.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ExactValues<'a> {
    /// Integers of which this many are 1; [`Exact::UNSIGNED`] for those of u64, `None` for f64.
    pub(crate) per_unit: Option<i64>,
    /// The integers, or the bits of f64.
    pub(crate) words: &'a [u64],
}

/// Writes the values of rows minus `origin`, one per column, to `out`; `column` gives the exact values of a column, if it has some, and
/// `singles` are the f32 of all rows.
pub(crate) fn differences<'a>(
    column: impl Fn(usize) -> Option<ExactValues<'a>>,
    singles: &[f32],
    rows: &[usize],
    origin: &[f64],
    out: &mut [f64],
) {
    let n_columns = origin.len().max(1);
    for (&row, out) in rows.iter().zip(out.chunks_exact_mut(n_columns)) {
        let singles = &singles[row * n_columns..][..n_columns];
        for (((index, &single), &origin), out) in singles.iter().enumerate().zip(origin).zip(out) {
            let difference = column(index).map(|exact| exact.get(row, single).less(origin));
            // No zero is negative: the values are hashed.
            *out = difference.unwrap_or_else(|| f64::from(single) - origin) + 0.0;
        }
    }
}

impl ExactValues<'_> {
    /// The value of a row whose f32 is `single`.
    fn get(self, row: usize, single: f32) -> Exact {
        match (self.words.get(row).filter(|_| !single.is_nan()), self.per_unit) {
            (None, _) => Exact::Double(f64::from(single)),
            (Some(&word), None) => Exact::Double(f64::from_bits(word)),
            (Some(&word), Some(Exact::UNSIGNED)) => Exact::from_whole(word.into()),
            (Some(&word), Some(per_unit)) => Exact::Whole { value: word as i64, per_unit },
        }
    }
}

impl ExactColumn {
    fn view(&self) -> ExactValues<'_> {
        ExactValues { per_unit: self.per_unit, words: &self.words }
    }

    /// The value of a row whose f32 is `single`.
    fn get(&self, row: usize, single: f32) -> Exact {
        self.view().get(row, single)
    }

    /// Returns the difference between the value of a row and its f32.
    fn rest(&self, row: usize, single: f32) -> f64 {
        if single.is_nan() { 0.0 } else { self.get(row, single).less(f64::from(single)) }
    }

    /// Appends a value; the first one that is no such integer makes the column one of f64.
    fn push(&mut self, value: Exact) {
        let is_positive = |word: &u64| word.cast_signed() >= 0;
        if self.per_unit == Some(1)
            && matches!(value, Exact::Unsigned(_))
            && self.words.iter().all(is_positive)
        {
            self.per_unit = Some(Exact::UNSIGNED);
        }
        let integer = self.per_unit.map(|per_unit| match per_unit {
            Exact::UNSIGNED => value.unsigned(),
            per_unit => value.whole(per_unit).map(i64::cast_unsigned),
        });
        if integer == Some(None) {
            let doubles = (0..self.words.len()).map(|row| self.get(row, 0.0).less(0.0).to_bits());
            (self.words, self.per_unit) = (doubles.collect(), None);
        }
        let double = || value.less(0.0).to_bits();
        self.words.push(integer.flatten().unwrap_or_else(double));
    }
}

/// Whether values lie far from 0 relative to their spread.
fn is_far(values: impl Iterator<Item = f32> + Clone) -> bool {
    let numbers = values.map(f64::from).filter(|value| !value.is_nan());
    let (n, sum) = numbers.clone().fold((0.0, 0.0), |(n, sum), value| (n + 1.0, sum + value));
    let mean: f64 = sum / f64::max(n, 1.0);
    let squares: f64 = numbers.map(|value| (value - mean) * (value - mean)).sum();
    mean.abs() >= MIN_DEVIATIONS * (squares / f64::max(n, 1.0)).sqrt()
}

/// Whether distinct values, each an f32 and what it rounds away, have the same f32.
fn has_lost(values: &mut dyn Iterator<Item = (f32, f64)>) -> bool {
    let mut values: Vec<(u32, u64)> =
        values.map(|(single, rest)| (single.to_bits(), rest.to_bits())).collect();
    values.sort_unstable();
    values.dedup();
    let n_exact = values.len();
    values.dedup_by_key(|value| value.0);
    (n_exact - values.len()) as f64 > MAX_LOST_SHARE * n_exact as f64
}

#[cfg(test)]
mod tests {
    use crate::table::exact_columns::*;

    #[test]
    fn columns_with_values_that_fall_together_are_kept() {
        let mut columns = ExactColumns::new(1, true);
        // Times with zeros in place of missing ones: no offset keeps both.
        let singles: Vec<f32> = (0..100).map(|row| if row % 5 == 0 { 0.0 } else { 1.7e18 }).collect();
        for row in (0..100).filter(|row| row % 5 > 0) {
            columns.set(0, row, Exact::from_whole(1_700_000_000_000_000_000 + row as i128), &singles);
        }
        assert!(!is_far(singles.iter().copied()));
        columns.finish(&singles);
        assert!(columns.keeps(0));
    }

    #[test]
    fn values_come_back_exactly_and_integers_beyond_f64_too() {
        let values = [7.0, 0.1 + 1e6, -3e5 + 1.0 / 3.0];
        let singles = values.map(|value| value as f32);
        let mut columns = ExactColumns::new(1, true);
        for (row, value) in values.into_iter().enumerate() {
            columns.set(0, row, Exact::Double(value), &singles);
        }
        let mut out = [0.0; 3];
        columns.differences(&singles, &[2, 0, 1], &[0.0], &mut out);
        assert_eq!(out, [values[2], values[0], values[1]]);
        columns.truncate(0);
        assert!(columns.is_empty());

        let mut columns = ExactColumns::new(1, true);
        let singles = [5.0, f32::NAN, 1.7e18, -7.0];
        columns.set(0, 2, Exact::from_whole(1_700_000_000_000_000_123), &singles);
        columns.differences(&singles, &[2, 0, 3], &[1.7e18], &mut out);
        assert_eq!(out, [123.0, 5.0 - 1.7e18, -7.0 - 1.7e18]);
        columns.differences(&singles, &[1], &[0.0], &mut out[..1]);
        assert!(out[0].is_nan());
        // A fraction turns the column into f64, which round such integers.
        columns.set(0, 3, Exact::Double(-7.1), &[5.0, f32::NAN, 1.7e18, -7.1]);
        columns.differences(&singles, &[2, 3, 0], &[0.0], &mut out);
        assert_eq!(out, [1_700_000_000_000_000_123_i64 as f64, -7.1, 5.0]);
    }

    #[test]
    fn integers_of_u64_keep_their_digits() {
        let values = |values: &[i128]| {
            let singles: Vec<f32> = values.iter().map(|value| *value as f32).collect();
            let mut columns = ExactColumns::new(1, false);
            for (row, &value) in values.iter().enumerate() {
                columns.set(0, row, Exact::from_whole(value), &singles);
            }
            let (rows, mut out) = ((0..values.len()).collect::<Vec<_>>(), vec![0.0; values.len()]);
            columns.differences(&singles, &rows, &[18_446_744_073_709_551_616.0], &mut out);
            out
        };
        let end = 1i128 << 64;
        assert_eq!(values(&[end - 1, end - 11, end - 21]), [-1.0, -11.0, -21.0]);
        let low = (1i128 << 63) - 7;
        assert_eq!(values(&[low, 16_777_217, end - 3])[2], -3.0);
        // No type holds both: f64, as far as it goes.
        assert_eq!(values(&[-16_777_217, end - 3]), [-16_777_217.0 - 18_446_744_073_709_551_616.0, 0.0]);
    }

    #[test]
    fn times_keep_their_nanoseconds() {
        let mut columns = ExactColumns::new(1, false);
        let singles = [3.0, 1.7e9, 1.7e9, 0.25];
        let time = |value, per_unit| Exact::Whole { value, per_unit };
        columns.set(0, 1, time(1_700_000_000_000_000_001, 1_000_000_000), &singles);
        columns.set(0, 2, time(1_700_000_000_500_000_000, 1_000_000_000), &singles);
        let mut out = [0.0; 4];
        columns.differences(&singles, &[0, 1, 2, 3], &[1.7e9], &mut out);
        assert_eq!(out, [3.0 - 1.7e9, 1e-9, 0.5, 0.25 - 1.7e9]);
        columns.set(0, 3, time(250_001, 1_000_000), &singles);
        columns.differences(&singles, &[2, 3], &[0.0], &mut out[..2]);
        assert_eq!(out[..2], [1_700_000_000.5, 0.250_001]);
    }

    #[test]
    fn only_columns_far_from_0_are_kept() {
        let mut columns = ExactColumns::new(3, true);
        let singles: Vec<f32> =
            (0..100).flat_map(|row| [1.7e9 + row as f32, row as f32 - 50.0, 3.0]).collect();
        for row in 0..100 {
            columns.set(0, row, Exact::Double(f64::from(singles[3 * row]) + 0.25), &singles);
            columns.set(1, row, Exact::Double(f64::from(singles[3 * row + 1]) + 1e-9), &singles);
        }
        let mut of_model = ExactColumns { prune_at: None, ..columns.clone() };
        columns.finish(&singles);
        assert!(columns.keeps(0) && !columns.keeps(1) && columns.keeps(2));
        assert_eq!(columns.size_bytes(), 800);
        of_model.finish(&singles);
        assert!((0..3).all(|column| of_model.keeps(column)));
        of_model.prune(&singles, false);
        assert!(!of_model.keeps(1));
    }

    #[test]
    fn short_decimals_are_what_f32_holds() {
        let fill = |values: [f64; 3]| {
            let singles = values.map(|value| value as f32);
            let mut columns = ExactColumns::new(1, true);
            for (row, value) in values.into_iter().enumerate() {
                columns.set(0, row, Exact::Double(value), &singles);
            }
            columns.finish(&singles);
            columns.keeps(0)
        };
        assert!(!fill([3.01, 3.02, 3.03]));
        assert!(fill([3.01, 3.02, 3.030_000_001]));
        assert!(fill([123_456_789.0, 123_456_790.0, 123_456_791.0]));
    }
}
