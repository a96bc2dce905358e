//! Mean, spread and range of each column; `scan.rs` reads the rows.

use ddp_kernels::cpu::vectorize;

/// Numbers per column: count, mean, sum of squared differences, minimum, maximum, and counts of values that f32 rounds and of
/// fractions.
pub const N_FIELDS: usize = 7;
/// Rows that are added at a time.
const TILE_ROWS: usize = 32;
/// Columns that are added at a time, in one vector.
const LANES: usize = 4;

/// Statistics of each column over the values that are not missing (NaN).
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnStats {
    /// Number of rows, with those that lack values.
    pub n_rows: usize,
    /// Subtracted from the values before they are added; 0, or a whole number near large values.
    pub origin: Vec<f64>,
    /// Number of values that are not missing.
    pub count: Vec<f64>,
    /// Mean of the values less the origin, as all that follows; 0 if there are none.
    pub mean: Vec<f64>,
    /// Sum of squared differences from the mean.
    pub m2: Vec<f64>,
    /// Smallest value.
    pub min: Vec<f64>,
    /// Largest value.
    pub max: Vec<f64>,
    /// Number of values that f32 rounds.
    pub n_inexact: Vec<f64>,
    /// Number of values that are not whole.
    pub n_fractional: Vec<f64>,
    /// First quartile, median and third quartile of each column, if they were computed.
    pub quartiles: Option<Vec<[f64; 3]>>,
}

impl ColumnStats {
    /// Statistics of `n_columns` columns without rows.
    pub fn new(n_columns: usize) -> Self {
        Self::from_origin(vec![0.0; n_columns])
    }

    /// Statistics of values minus `origin`, without rows.
    pub fn from_origin(origin: Vec<f64>) -> Self {
        let n_columns = origin.len();
        ColumnStats {
            n_rows: 0,
            origin,
            count: vec![0.0; n_columns],
            mean: vec![0.0; n_columns],
            m2: vec![0.0; n_columns],
            min: vec![f64::INFINITY; n_columns],
            max: vec![f64::NEG_INFINITY; n_columns],
            n_inexact: vec![0.0; n_columns],
            n_fractional: vec![0.0; n_columns],
            quartiles: None,
        }
    }

    /// Adds rows, `[n, columns]`, less the origin, in f32 or f64; NaN is a missing value.
    pub fn add<T: Copy + Into<f64>>(&mut self, values: &[T]) {
        let n_columns = self.mean.len();
        let mut chunk = Self::from_origin(self.origin.clone());
        chunk.n_rows = values.len() / n_columns;
        // Several rows at a time, so that sums stay in registers while the rows are in the CPU's cache.
        let tile_len = TILE_ROWS * n_columns;
        vectorize(
            #[inline(always)]
            || {
                for tile in values.chunks(tile_len) {
                    chunk.sum(tile);
                }
            },
        );
        for column in 0..n_columns {
            chunk.mean[column] /= chunk.count[column].max(1.0);
            // A mean of equal values is off by their rounding, which is more than their spread.
            if chunk.min[column] == chunk.max[column] {
                chunk.mean[column] = chunk.min[column];
            }
        }
        vectorize(
            #[inline(always)]
            || {
                for tile in values.chunks(tile_len) {
                    chunk.sum_squares(tile);
                }
            },
        );
        for column in 0..n_columns {
            chunk.correct(column, values);
        }
        self.merge(&chunk);
    }

    /// Corrects the mean of a column whose spread is close to the rounding of the sum, by the mean of the differences from it.
    fn correct<T: Copy + Into<f64>>(&mut self, column: usize, values: &[T]) {
        /// Standard deviation below which the rounding of the mean counts, as a fraction of the mean.
        const MIN_DEVIATION: f64 = 1e-9;
        let (n, mean) = (self.count[column], self.mean[column]);
        if self.min[column] >= self.max[column]
            || self.standard_deviation(column) > MIN_DEVIATION * mean.abs()
        {
            return;
        }
        let values = values.iter().skip(column).step_by(self.mean.len());
        let differences = values.map(|&value| value.into() - mean).filter(|difference| !difference.is_nan());
        let shift = differences.sum::<f64>() / n;
        self.mean[column] += shift;
        self.m2[column] = (self.m2[column] - n * shift * shift).max(0.0);
    }

    /// Adds rows to all fields but the squares, with the sum in place of the mean.
    #[inline(always)]
    fn sum<T: Copy + Into<f64>>(&mut self, tile: &[T]) {
        let whole = self.mean.len() / LANES * LANES;
        for column in (0..whole).step_by(LANES) {
            self.sum_columns::<T, LANES>(tile, column);
        }
        for column in whole..self.mean.len() {
            self.sum_columns::<T, 1>(tile, column);
        }
    }

    /// [`ColumnStats::sum`] of `N` columns from `column` on.
    #[inline(always)]
    fn sum_columns<T: Copy + Into<f64>, const N: usize>(&mut self, tile: &[T], column: usize) {
        let (mut sum, mut min) = (lanes::<N>(&self.mean, column), lanes::<N>(&self.min, column));
        let (mut max, origin) = (lanes::<N>(&self.max, column), lanes::<N>(&self.origin, column));
        let (mut n, mut n_inexact, mut n_fractional) = ([0.0; N], [0.0; N], [0.0; N]);
        let n_columns = self.mean.len();
        // Loops of few operations without branches, which are compiled to vectors.
        each::<T, N>(tile, n_columns, column, |i, value| {
            n[i] += if value.is_nan() { 0.0 } else { 1.0 };
            sum[i] += if value.is_nan() { 0.0 } else { value };
        });
        each::<T, N>(tile, n_columns, column, |i, value| {
            min[i] = if value < min[i] { value } else { min[i] };
            max[i] = if value > max[i] { value } else { max[i] };
        });
        // The difference of a missing or infinite value is NaN, which is not above 0.
        each::<T, N>(tile, n_columns, column, |i, value| {
            let rounded = f64::from((origin[i] + value) as f32) - origin[i];
            n_inexact[i] += if (rounded - value).abs() > 0.0 { 1.0 } else { 0.0 };
        });
        each::<T, N>(tile, n_columns, column, |i, value| {
            n_fractional[i] += if (value.trunc() - value).abs() > 0.0 { 1.0 } else { 0.0 };
        });
        self.mean[column..][..N].copy_from_slice(&sum);
        self.min[column..][..N].copy_from_slice(&min);
        self.max[column..][..N].copy_from_slice(&max);
        for i in 0..N {
            self.count[column + i] += n[i];
            self.n_inexact[column + i] += n_inexact[i];
            self.n_fractional[column + i] += n_fractional[i];
        }
    }

    /// Adds the squared differences of rows from the mean.
    #[inline(always)]
    fn sum_squares<T: Copy + Into<f64>>(&mut self, tile: &[T]) {
        let whole = self.mean.len() / LANES * LANES;
        for column in (0..whole).step_by(LANES) {
            self.sum_squares_of::<T, LANES>(tile, column);
        }
        for column in whole..self.mean.len() {
            self.sum_squares_of::<T, 1>(tile, column);
        }
    }

    /// [`ColumnStats::sum_squares`] of `N` columns from `column` on.
    #[inline(always)]
    fn sum_squares_of<T: Copy + Into<f64>, const N: usize>(&mut self, tile: &[T], column: usize) {
        let (mut m2, mean) = (lanes::<N>(&self.m2, column), lanes::<N>(&self.mean, column));
        each::<T, N>(tile, self.mean.len(), column, |i, value| {
            let difference = value - mean[i];
            m2[i] += if difference.is_nan() { 0.0 } else { difference * difference };
        });
        self.m2[column..][..N].copy_from_slice(&m2);
    }

    /// Merges the statistics of `other`, whose rows follow.
    ///
    /// Source: T. Chan, G. Golub, R. LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances",
    /// 1979.
    pub fn merge(&mut self, other: &Self) {
        self.n_rows += other.n_rows;
        for column in 0..self.mean.len() {
            let (n, m) = (self.count[column], other.count[column]);
            if m == 0.0 {
                continue;
            }
            let delta = other.mean[column] - self.mean[column];
            self.count[column] = n + m;
            self.mean[column] += delta * (m / (n + m));
            self.m2[column] += other.m2[column] + delta * delta * (n * m / (n + m));
            self.min[column] = self.min[column].min(other.min[column]);
            self.max[column] = self.max[column].max(other.max[column]);
            self.n_inexact[column] += other.n_inexact[column];
            self.n_fractional[column] += other.n_fractional[column];
        }
    }

    /// Replaces the statistics of a column by those of `other`.
    pub fn copy_column(&mut self, column: usize, other: &Self) {
        self.origin[column] = other.origin[column];
        self.count[column] = other.count[column];
        self.mean[column] = other.mean[column];
        self.m2[column] = other.m2[column];
        self.min[column] = other.min[column];
        self.max[column] = other.max[column];
        self.n_inexact[column] = other.n_inexact[column];
        self.n_fractional[column] = other.n_fractional[column];
    }

    /// Standard deviation of the population (division by n), as in scikit-learn's `StandardScaler`.
    pub fn standard_deviation(&self, column: usize) -> f64 {
        (self.m2[column] / self.count[column].max(1.0)).sqrt()
    }

    /// Whether a column varies by no more than the rounding of its values: within scikit-learn's bound for `StandardScaler`, which takes
    /// errors of its own sums into account, and by a few units in the last place. Whole numbers are not rounded.
    ///
    /// `var <= n·ε·var + (n·mean·ε)²` and `max - min <= 64·ε·|mean|`
    pub fn is_constant_but_for_rounding(&self, column: usize) -> bool {
        const MAX_UNITS: f64 = 64.0;
        let (n, mean) = (self.count[column], self.origin[column] + self.mean[column]);
        let variance = self.m2[column] / n.max(1.0);
        let bound = n * f64::EPSILON * variance + (n * mean * f64::EPSILON).powi(2);
        let range = self.max[column] - self.min[column];
        let is_narrow = 0.0 < range && range <= MAX_UNITS * f64::EPSILON * mean.abs();
        is_narrow && self.n_fractional[column] > 0.0 && variance <= bound
    }

    /// Whether f32 holds all values of the column.
    pub fn is_single(&self, column: usize) -> bool {
        self.n_inexact[column] == 0.0
    }

    /// Number of rows in which the column's value is missing.
    pub fn n_missing(&self, column: usize) -> usize {
        self.n_rows - self.count[column] as usize
    }

    /// The statistics as numbers that can be added to the zeros of other ranks.
    pub fn store(&self, numbers: &mut [f64]) {
        for (column, fields) in numbers.chunks_exact_mut(N_FIELDS).enumerate() {
            if self.count[column] > 0.0 {
                fields.copy_from_slice(&[
                    self.count[column],
                    self.mean[column],
                    self.m2[column],
                    self.min[column],
                    self.max[column],
                    self.n_inexact[column],
                    self.n_fractional[column],
                ]);
            }
        }
    }

    /// The statistics that [`ColumnStats::store`] wrote, of values minus `origin`.
    pub fn load(numbers: &[f64], origin: &[f64]) -> Self {
        let mut stats = Self::from_origin(origin.to_vec());
        for (column, fields) in numbers.chunks_exact(N_FIELDS).enumerate() {
            let &[count, mean, m2, min, max, n_inexact, n_fractional] = fields else { continue };
            if count > 0.0 {
                stats.count[column] = count;
                stats.mean[column] = mean;
                stats.m2[column] = m2;
                stats.min[column] = min;
                stats.max[column] = max;
                stats.n_inexact[column] = n_inexact;
                stats.n_fractional[column] = n_fractional;
            }
        }
        stats
    }
}

/// Calls `f` with the index and the value of `N` columns from `column` on, in each row.
#[inline(always)]
fn each<T: Copy + Into<f64>, const N: usize>(
    rows: &[T],
    n_columns: usize,
    column: usize,
    mut f: impl FnMut(usize, f64),
) {
    for row in rows.chunks_exact(n_columns) {
        let values: &[T; N] = row[column..].first_chunk().expect("these columns");
        for (i, value) in values.iter().enumerate() {
            f(i, (*value).into());
        }
    }
}

/// `N` values of a field.
#[inline(always)]
fn lanes<const N: usize>(field: &[f64], column: usize) -> [f64; N] {
    *field[column..].first_chunk().expect("these columns")
}

#[cfg(test)]
mod tests {
    use crate::fit::stats::*;

    #[test]
    fn a_constant_column_has_no_spread_however_large() {
        for value in [0.1, 1e30, -3.3e38, 1.7e18 + 256.0] {
            let mut stats = ColumnStats::new(1);
            for n in [1000, 1024, 7] {
                stats.add(&vec![value; n]);
            }
            assert_eq!((stats.standard_deviation(0), stats.mean[0]), (0.0, value));
        }
    }

    #[test]
    fn a_column_that_varies_by_rounding_is_constant() {
        let of = |value: &dyn Fn(usize) -> f64| {
            let mut stats = ColumnStats::new(1);
            stats.add(&(0..300).map(value).collect::<Vec<f64>>());
            stats
        };
        let noise = of(&|row| if row % 2 == 0 { 0.1 + 0.2 } else { 0.3 });
        assert!(noise.is_constant_but_for_rounding(0) && noise.standard_deviation(0) > 0.0);
        // The mean of the two is exact to the last bit.
        assert!((noise.mean[0] - 0.3).abs() <= 0.1 + 0.2 - 0.3, "{}", noise.mean[0]);
        assert!(!of(&|row| 0.3 + row as f64 * 1e-12).is_constant_but_for_rounding(0));
        assert!(!of(&|row| 1.7e9 + (row % 60) as f64 * 1e-6).is_constant_but_for_rounding(0));
        assert!(!of(&|row| 1e15 + (row % 2) as f64).is_constant_but_for_rounding(0));
        assert!(!of(&|_| 0.3).is_constant_but_for_rounding(0), "it is constant");
        // A mean of a billion deviations is exact to a thousandth of one.
        let far = of(&|row| 1e6 + (row % 3) as f64 * 1e-4);
        assert!(
            (far.mean[0] - 1e6 - 1e-4).abs() < 1e-3 * far.standard_deviation(0).max(1e-4),
            "{}",
            far.mean[0]
        );
    }

    #[test]
    fn values_that_f32_rounds_and_fractions_are_counted() {
        let mut stats = ColumnStats::new(2);
        stats.add(&[0.5, 16_777_217.0, 0.1, 1e300, f64::NAN, 3.0]);
        assert_eq!((stats.n_inexact.clone(), stats.n_fractional.clone()), (vec![1.0, 2.0], vec![2.0, 0.0]));
        let mut stats = ColumnStats::from_origin(vec![1_700_000_000_000_000_000.0]);
        stats.add(&[1.0, 2.0, 3.0]);
        assert_eq!((stats.n_inexact[0], stats.n_fractional[0], stats.mean[0]), (3.0, 0.0, 2.0));
    }
}
