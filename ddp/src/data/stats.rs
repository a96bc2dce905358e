//! Mean, spread and range of each column, in one pass over the rows that the ranks share.

use std::ops::Range;

use ddp_comm::{ReduceOp, World};
use ddp_kernels::{Device, Tensor, TensorMut, ops};

use super::dataset::Dataset;
use crate::data::batch::BatchMut;
use crate::data::error::{DataError, Result};
use crate::data::order::partition::rank_range;
use ddp_comm::Stop;

/// Most rows per chunk; the mean of a chunk precedes the squared differences from it.
const CHUNK_ROWS: usize = 1024;
/// Most bytes of a chunk in f32, unless one row takes more.
const CHUNK_BYTES: usize = 4 << 20;
/// Parts of the rows whose statistics are merged in order: the same parts for any number of ranks, so that the result is
/// bit-identical.
const MAX_PARTS: usize = 64;
const MIN_PARTS: usize = 8;
/// Most numbers that are exchanged, over all columns and parts.
const MAX_NUMBERS: usize = 1 << 21;
/// Numbers per column: count, mean, sum of squared differences, minimum, maximum.
const N_FIELDS: usize = 5;

/// Statistics of each column over the values that are not missing (NaN).
#[derive(Debug, Clone, PartialEq)]
pub struct ColumnStats {
    /// Number of rows.
    pub n_rows: usize,
    /// Number of values that are not missing.
    pub count: Vec<f64>,
    /// Mean of the values; 0 if there are none.
    pub mean: Vec<f64>,
    /// Sum of squared differences from the mean.
    pub m2: Vec<f64>,
    /// Smallest value.
    pub min: Vec<f64>,
    /// Largest value.
    pub max: Vec<f64>,
}

impl ColumnStats {
    /// Statistics of `n_columns` columns without rows.
    pub fn new(n_columns: usize) -> Self {
        ColumnStats {
            n_rows: 0,
            count: vec![0.0; n_columns],
            mean: vec![0.0; n_columns],
            m2: vec![0.0; n_columns],
            min: vec![f64::INFINITY; n_columns],
            max: vec![f64::NEG_INFINITY; n_columns],
        }
    }

    /// Statistics of all rows of `dataset`; every rank of the world calls it and reads a part.
    ///
    /// # Errors
    /// Errors of reading the rows and of the exchange.
    pub fn of(dataset: &dyn Dataset, world: &World) -> Result<Self, Stop<DataError>> {
        let n_columns = dataset.layout().n_features();
        let n_parts = (MAX_NUMBERS / (N_FIELDS * n_columns)).clamp(MIN_PARTS, MAX_PARTS);
        let part_len = N_FIELDS * n_columns;
        let mut numbers = vec![0.0; n_parts * part_len];
        let own = rank_range(n_parts, world.rank().0, world.world_size());
        let read = own.into_iter().try_for_each(|part| {
            let stats = Self::of_rows(dataset, rank_range(dataset.len(), part, n_parts))?;
            stats.store(&mut numbers[part * part_len..][..part_len]);
            Ok::<_, DataError>(())
        });
        world.collective_result(read)?;
        let len = numbers.len();
        let numbers_of_all = TensorMut::from_slice(&mut numbers, &[len]).map_err(DataError::from)?;
        world.group().all_reduce(ReduceOp::Sum, numbers_of_all).map_err(DataError::from)?;
        let mut all = Self::new(n_columns);
        for part in 0..n_parts {
            all.merge(&Self::load(&numbers[part * part_len..][..part_len], n_columns));
        }
        all.n_rows = dataset.len();
        Ok(all)
    }

    /// Statistics of a range of rows.
    ///
    /// # Errors
    /// Errors of reading the rows.
    pub fn of_rows(dataset: &dyn Dataset, rows: Range<usize>) -> Result<Self> {
        let layout = dataset.layout();
        let n_columns = layout.n_features();
        let chunk_rows = chunk_rows(n_columns).min(rows.len().max(1));
        let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu);
        let mut raw = zeros(&[chunk_rows, n_columns], layout.dtype)?;
        let mut x = zeros(&[chunk_rows, n_columns], ddp_kernels::DType::F32)?;
        let mut targets = zeros(&layout.targets.dims(chunk_rows), layout.targets.dtype())?;
        let mut weights = zeros(&[chunk_rows], ddp_kernels::DType::F32)?;
        let mut all = Self::new(n_columns);
        let mut numbers = Vec::with_capacity(chunk_rows);
        for start in rows.clone().step_by(chunk_rows) {
            numbers.clear();
            numbers.extend(start..(start + chunk_rows).min(rows.end));
            let n = numbers.len();
            let out = BatchMut {
                x: raw.view_mut().rows(0, n)?,
                targets: targets.view_mut().rows(0, n)?,
                weights: if layout.has_weights { Some(weights.view_mut().rows(0, n)?) } else { None },
            };
            dataset.gather(&numbers, out)?;
            ops::load_rows(raw.view().rows(0, n)?, None, None, x.view_mut().rows(0, n)?)?;
            all.add(x.view().rows(0, n)?.as_slice::<f32>("statistics", "x")?);
        }
        Ok(all)
    }

    /// Adds rows, `[n, columns]`, in f32 or f64; NaN is a missing value.
    pub fn add<T: Copy + Into<f64>>(&mut self, values: &[T]) {
        let n_columns = self.mean.len();
        let mut chunk = Self::new(n_columns);
        chunk.n_rows = values.len() / n_columns;
        for row in values.chunks_exact(n_columns) {
            for (column, &value) in row.iter().enumerate() {
                let value: f64 = value.into();
                chunk.count[column] += f64::from(u8::from(!value.is_nan()));
                chunk.mean[column] += if value.is_nan() { 0.0 } else { value };
                chunk.min[column] = chunk.min[column].min(value);
                chunk.max[column] = chunk.max[column].max(value);
            }
        }
        for (mean, count) in chunk.mean.iter_mut().zip(&chunk.count) {
            *mean /= count.max(1.0);
        }
        for row in values.chunks_exact(n_columns) {
            for (column, &value) in row.iter().enumerate() {
                let value: f64 = value.into();
                let difference = value - chunk.mean[column];
                chunk.m2[column] += if value.is_nan() { 0.0 } else { difference * difference };
            }
        }
        self.merge(&chunk);
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
        }
    }

    /// Standard deviation of the population (division by n), as in scikit-learn's `StandardScaler`.
    pub fn standard_deviation(&self, column: usize) -> f64 {
        (self.m2[column] / self.count[column].max(1.0)).sqrt()
    }

    /// Number of rows in which the column's value is missing.
    pub fn n_missing(&self, column: usize) -> usize {
        self.n_rows - self.count[column] as usize
    }

    /// The statistics as numbers that can be added to the zeros of other ranks.
    fn store(&self, numbers: &mut [f64]) {
        for (column, fields) in numbers.chunks_exact_mut(N_FIELDS).enumerate() {
            if self.count[column] > 0.0 {
                fields.copy_from_slice(&[
                    self.count[column],
                    self.mean[column],
                    self.m2[column],
                    self.min[column],
                    self.max[column],
                ]);
            }
        }
    }

    fn load(numbers: &[f64], n_columns: usize) -> Self {
        let mut stats = Self::new(n_columns);
        for (column, fields) in numbers.chunks_exact(N_FIELDS).enumerate() {
            let &[count, mean, m2, min, max] = fields else { continue };
            if count > 0.0 {
                stats.count[column] = count;
                stats.mean[column] = mean;
                stats.m2[column] = m2;
                stats.min[column] = min;
                stats.max[column] = max;
            }
        }
        stats
    }
}

/// Rows per chunk; a function of the columns alone, because chunks affect the bits of the result.
fn chunk_rows(n_columns: usize) -> usize {
    (CHUNK_BYTES / (size_of::<f32>() * n_columns.max(1))).clamp(1, CHUNK_ROWS)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::data::{ResidentRows, RowLayout, TargetLayout, numbered_columns};

    /// Rows that record the size of each request.
    #[derive(Debug)]
    struct Watched(ResidentRows, Mutex<Vec<usize>>);

    impl Dataset for Watched {
        fn len(&self) -> usize {
            self.0.len()
        }

        fn layout(&self) -> &RowLayout {
            self.0.layout()
        }

        fn source(&self) -> &str {
            self.0.source()
        }

        fn fingerprint(&self) -> Result<u64> {
            self.0.fingerprint()
        }

        fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
            self.1.lock().unwrap().push(rows.len());
            self.0.gather(rows, out)
        }
    }

    #[test]
    fn wide_rows_are_read_fewer_at_a_time() {
        for (n_columns, n_rows, want) in
            [(3, 1500, vec![1024, 476]), (1 << 18, 10, vec![4, 4, 2]), (3 << 20, 2, vec![1, 1])]
        {
            let layout = RowLayout::new(numbered_columns(n_columns), TargetLayout::Classes { n_classes: 2 });
            let features = (0..n_rows * n_columns).map(|i| (i / n_columns) as f32).collect();
            let rows = ResidentRows::classes(features, vec![0; n_rows], layout);
            let rows = Watched(rows, Mutex::default());
            let stats = ColumnStats::of_rows(&rows, 0..n_rows).unwrap();
            assert_eq!(*rows.1.lock().unwrap(), want, "{n_columns} columns");
            assert_eq!(stats.max[n_columns - 1], (n_rows - 1) as f64);
        }
    }
}
