//! One pass over rows that the ranks share: statistics of features and targets, and a hash of all values.

use std::ops::Range;

use ddp::data::datasets::batch::{Batch, BatchMut};
use ddp::data::datasets::dataset::{Dataset, TargetLayout};
use ddp::data::error::{DataError, Result};
use ddp::data::order::partition::rank_range;
use ddp::data::parallel;
use ddp::storage::fingerprint::Fingerprint;
use ddp_comm::{ReduceOp, Stop, World};
use ddp_kernels::{DType, Device, Tensor, TensorMut, ops};

use crate::fit::exact_stats::ExactStats;
use crate::fit::stats::ColumnStats;

/// Most rows per chunk; the mean of a chunk precedes the squared differences from it.
const CHUNK_ROWS: usize = 1024;
/// Most bytes of a chunk in f32, unless one row takes more.
const CHUNK_BYTES: usize = 4 << 20;
/// Parts of the rows whose statistics are merged in order: the same parts for any number of ranks, so that the result is
/// bit-identical.
const MAX_PARTS: usize = 64;
const MIN_PARTS: usize = 8;
/// Most columns over all parts.
const MAX_COLUMN_PARTS: usize = (1 << 21) / 5;
/// Rows that are searched for large values.
const ORIGIN_ROWS: usize = 16;
/// Values from here on may be whole numbers that f32 rounds.
const LARGE: f64 = (1 << 24) as f64;

/// Statistics of one pass.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scan {
    /// Statistics of the features.
    pub(crate) features: ColumnStats,
    /// Statistics of the targets if they are values; empty for classes.
    pub(crate) targets: ColumnStats,
    /// Hash of all features, targets and weights.
    pub(crate) hash: u64,
}

impl Scan {
    /// Scans all rows of `dataset`; every rank of the world calls it and reads a shard.
    ///
    /// # Errors
    /// [`DataError`] if rows cannot be read on some rank; [`DataError::Comm`] if the exchange fails.
    pub(crate) fn of(dataset: &dyn Dataset, world: &World) -> Result<Self, Stop<DataError>> {
        let origins = origin(dataset).and_then(|features| Ok((features, target_origin(dataset)?)));
        let (of_features, of_targets) = world.collective_result(origins)?;
        let empty = PartScan::new(dataset, of_features, of_targets);
        let n_parts = (MAX_COLUMN_PARTS / empty.features.n_columns().max(1)).clamp(MIN_PARTS, MAX_PARTS);
        let part_of = |part| {
            let rows = rank_range(dataset.len(), part, n_parts);
            let mut scan = empty.clone();
            scan.add_rows(dataset, rows)?;
            Ok(scan)
        };
        let n_threads = n_threads(dataset);
        let numbers = exchange(world, n_parts, empty.n_numbers(), n_threads, |part, numbers| {
            part_of(part).map(|scan| scan.store(numbers))
        })?;
        let mut all = empty.clone();
        let mut hash = Fingerprint::default();
        for of_part in numbers.chunks_exact(empty.n_numbers()) {
            let part = empty.load(of_part);
            all.features.merge(&part.features);
            all.targets.merge(&part.targets);
            hash.number(part.hash);
        }
        let n_rows = dataset.len();
        let (features, targets) = (all.features.finish(n_rows), all.targets.finish(n_rows));
        Ok(Scan { features, targets, hash: hash.finish() })
    }
}

/// Statistics of a pass over some of the rows.
#[derive(Debug, Clone)]
struct PartScan {
    features: ExactStats,
    targets: ExactStats,
    hash: u64,
}

impl PartScan {
    /// Without rows; with the origins of exact values.
    fn new(dataset: &dyn Dataset, of_features: Option<Vec<f64>>, of_targets: Option<Vec<f64>>) -> Self {
        PartScan {
            features: ExactStats::new(dataset.layout().n_features(), of_features),
            targets: ExactStats::new(dataset.layout().targets.n_values(), of_targets),
            hash: 0,
        }
    }

    /// Adds a range of rows; its hash is that of these rows.
    fn add_rows(&mut self, dataset: &dyn Dataset, rows: Range<usize>) -> Result<()> {
        let layout = dataset.layout();
        let n_columns = layout.n_features();
        let chunk_rows = chunk_rows(n_columns).min(rows.len().max(1));
        let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu);
        let mut raw = zeros(&[chunk_rows, n_columns], layout.dtype)?;
        let mut x = zeros(&[chunk_rows, n_columns], DType::F32)?;
        let mut targets = zeros(&layout.targets.dims(chunk_rows), layout.targets.dtype())?;
        let mut weights = zeros(&[chunk_rows], DType::F32)?;
        let mut doubles = Vec::new();
        let mut hash = Fingerprint::default();
        let mut numbers = Vec::with_capacity(chunk_rows);
        for start in rows.clone().step_by(chunk_rows) {
            numbers.clear();
            numbers.extend(start..(start + chunk_rows).min(rows.end));
            let n = numbers.len();
            let in_place = match layout.dtype {
                DType::F32 => dataset.in_place(start..start + n)?,
                _ => None,
            };
            if in_place.is_none() {
                let out = BatchMut {
                    x: raw.view_mut().rows(0, n)?,
                    targets: targets.view_mut().rows(0, n)?,
                    weights: if layout.has_weights { Some(weights.view_mut().rows(0, n)?) } else { None },
                };
                dataset.gather(&numbers, out)?;
                ops::load_rows(raw.view().rows(0, n)?, None, None, x.view_mut().rows(0, n)?)?;
            }
            let batch = match in_place {
                Some(batch) => batch,
                None => Batch { x: x.view(), targets: targets.view(), weights: Some(weights.view()) }
                    .rows(0, n)?,
            };
            if let Some(origin) = self.features.origin() {
                doubles.resize(n * n_columns, 0.0);
                if !dataset.gather_doubles(&numbers, origin, &mut doubles)? {
                    unreachable!("the first rows have exact values");
                }
                hash.block(bytemuck::cast_slice(&doubles));
            }
            let x = batch.x.as_slice::<f32>("statistics", "x")?;
            hash.block(bytemuck::cast_slice(x));
            self.features.add(x, &doubles);
            let targets = batch.targets;
            match &layout.targets {
                TargetLayout::Classes { .. } => {
                    hash.block(bytemuck::cast_slice(targets.as_slice::<i64>("statistics", "targets")?));
                }
                TargetLayout::Values { .. } | TargetLayout::Heads { .. } => {
                    let values = targets.as_slice::<f32>("statistics", "targets")?;
                    hash.block(bytemuck::cast_slice(values));
                    add_targets(&mut self.targets, dataset, &numbers, values, &mut hash)?;
                }
            }
            if let Some(weights) = batch.weights.filter(|_| layout.has_weights) {
                hash.block(bytemuck::cast_slice(weights.as_slice::<f32>("statistics", "weights")?));
            }
        }
        // Rows in place are read after they were handed out: whether all of them were there shows now.
        dataset.in_place(rows.end..rows.end)?;
        self.hash = hash.finish();
        Ok(())
    }

    /// Numbers that one part exchanges.
    fn n_numbers(&self) -> usize {
        self.features.n_numbers() + self.targets.n_numbers() + 2
    }

    fn store(&self, numbers: &mut [f64]) {
        let (hash, numbers) = numbers.split_at_mut(2);
        // In halves, which f64 holds.
        hash.copy_from_slice(&[(self.hash >> 32) as f64, (self.hash & 0xffff_ffff) as f64]);
        let (features, targets) = numbers.split_at_mut(self.features.n_numbers());
        self.features.store(features);
        self.targets.store(targets);
    }

    fn load(&self, numbers: &[f64]) -> Self {
        let (hash, numbers) = numbers.split_at(2);
        let (features, targets) = numbers.split_at(self.features.n_numbers());
        PartScan {
            features: self.features.load(features),
            targets: self.targets.load(targets),
            hash: (hash[0] as u64) << 32 | hash[1] as u64,
        }
    }
}

/// Adds the targets of `rows`, whose f32 are `values`. Exact values are hashed where f32 rounds one of them.
fn add_targets(
    stats: &mut ExactStats,
    dataset: &dyn Dataset,
    rows: &[usize],
    values: &[f32],
    hash: &mut Fingerprint,
) -> Result<()> {
    let Some(origin) = stats.origin() else {
        stats.add(values, &[]);
        return Ok(());
    };
    let mut doubles = vec![0.0; values.len()];
    if !dataset.gather_target_doubles(rows, origin, &mut doubles)? {
        unreachable!("the first rows have exact values");
    }
    let origins = origin.iter().cycle();
    let mut all = values.iter().zip(origins).zip(&doubles);
    if all.any(|((&value, origin), &double)| f64::from(value) - origin != double) {
        hash.block(bytemuck::cast_slice(&doubles));
    }
    stats.add(values, &doubles);
    Ok(())
}

/// Statistics of the targets alone; every rank of the world calls it and reads a shard.
///
/// # Errors
/// [`DataError`] if rows cannot be read on some rank; [`DataError::Comm`] if the exchange fails.
pub(crate) fn targets(dataset: &dyn Dataset, world: &World) -> Result<ColumnStats, Stop<DataError>> {
    let n_targets = dataset.layout().targets.n_values();
    let empty = ExactStats::new(n_targets, world.collective_result(target_origin(dataset))?);
    let read = |part: usize, numbers: &mut [f64]| {
        let rows = rank_range(dataset.len(), part, MAX_PARTS);
        let mut stats = empty.clone();
        let mut values = Tensor::zeros(&[chunk_rows(n_targets), n_targets], DType::F32, Device::Cpu)?;
        for start in rows.clone().step_by(chunk_rows(n_targets)) {
            let own: Vec<usize> = (start..(start + chunk_rows(n_targets)).min(rows.end)).collect();
            dataset.gather_targets(&own, values.view_mut().rows(0, own.len())?)?;
            let values = values.view().rows(0, own.len())?;
            let values = values.as_slice::<f32>("statistics", "targets")?;
            add_targets(&mut stats, dataset, &own, values, &mut Fingerprint::default())?;
        }
        stats.store(numbers);
        Ok(())
    };
    let numbers = exchange(world, MAX_PARTS, empty.n_numbers(), n_threads(dataset), read)?;
    let mut all = empty.clone();
    for of_part in numbers.chunks_exact(empty.n_numbers()) {
        all.merge(&empty.load(of_part));
    }
    Ok(all.finish(dataset.len()))
}

/// Statistics of the features of a range of rows.
///
/// # Errors
/// [`DataError`] if rows cannot be read.
pub fn column_stats(dataset: &dyn Dataset, rows: Range<usize>) -> Result<ColumnStats> {
    let mut scan = PartScan::new(dataset, None, None);
    scan.add_rows(dataset, rows)?;
    Ok(scan.features.into_singles())
}

/// The numbers of all parts, each written by the rank that `read` it on one of `n_threads`.
fn exchange(
    world: &World,
    n_parts: usize,
    part_len: usize,
    n_threads: usize,
    read: impl Fn(usize, &mut [f64]) -> Result<()> + Sync,
) -> Result<Vec<f64>, Stop<DataError>> {
    let mut numbers = vec![0.0; n_parts * part_len];
    let own = rank_range(n_parts, world.rank().0, world.world_size());
    let per_thread = own.len().div_ceil(n_threads).max(1);
    let of_own = &mut numbers[own.start * part_len..own.end * part_len];
    let of_threads = own.step_by(per_thread).zip(of_own.chunks_mut((per_thread * part_len).max(1)));
    let read = parallel::map(of_threads, |(first, numbers)| {
        let mut parts = (first..).zip(numbers.chunks_exact_mut(part_len));
        parts.try_for_each(|(part, numbers)| read(part, numbers))
    });
    let read: Result<()> = read.into_iter().collect();
    world.collective_result(read)?;
    let len = numbers.len();
    let numbers_of_all = TensorMut::from_slice(&mut numbers, &[len]).map_err(DataError::from)?;
    world.group().all_reduce(ReduceOp::Sum, numbers_of_all).map_err(DataError::from)?;
    Ok(numbers)
}

/// Threads on which the rows are read: one where they are decoded in blocks, so that no block is decoded twice.
fn n_threads(dataset: &dyn Dataset) -> usize {
    if dataset.block_ends().is_some() { 1 } else { parallel::n_threads() }
}

/// A whole number near the first large value of each column, 0 for columns without large values; `None` if f32 holds all values.
///
/// # Errors
/// [`DataError`] if the first rows cannot be read.
pub(crate) fn origin(dataset: &dyn Dataset) -> Result<Option<Vec<f64>>> {
    let read = |rows: &[usize], origin: &[f64], out: &mut [f64]| dataset.gather_doubles(rows, origin, out);
    origin_of(dataset.len(), dataset.layout().n_features(), read)
}

/// [`origin`] of targets that are values.
fn target_origin(dataset: &dyn Dataset) -> Result<Option<Vec<f64>>> {
    let read =
        |rows: &[usize], origin: &[f64], out: &mut [f64]| dataset.gather_target_doubles(rows, origin, out);
    match dataset.layout().targets.n_values() {
        0 => Ok(None),
        n_targets => origin_of(dataset.len(), n_targets, read),
    }
}

fn origin_of(
    n_rows: usize,
    n_columns: usize,
    read: impl Fn(&[usize], &[f64], &mut [f64]) -> Result<bool>,
) -> Result<Option<Vec<f64>>> {
    let rows: Vec<usize> = (0..n_rows.min(ORIGIN_ROWS)).collect();
    let mut origin = vec![0.0; n_columns];
    let mut values = vec![0.0; rows.len() * n_columns];
    if !read(&rows, &origin, &mut values)? {
        return Ok(None);
    }
    for row in values.chunks_exact(n_columns).rev() {
        for (origin, value) in origin.iter_mut().zip(row) {
            if value.is_finite() && value.abs() >= LARGE {
                *origin = value.trunc();
            }
        }
    }
    Ok(Some(origin))
}

/// Rows per chunk; a function of the columns alone, because chunks affect the bits of the result.
fn chunk_rows(n_columns: usize) -> usize {
    (CHUNK_BYTES / (size_of::<f32>() * n_columns.max(1))).clamp(1, CHUNK_ROWS)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::thread;

    use ddp::data::{Changes, DatasetWrapper, RowLayout, TargetLayout, TensorDataset, numbered_columns};
    use ddp_kernels::cpu::threads::join_pool;

    use crate::fit::scan::*;

    /// Rows that record the size of each request.
    #[derive(Debug)]
    struct Watched(TensorDataset, Mutex<Vec<usize>>);

    impl DatasetWrapper for Watched {
        const CHANGES: Changes = Changes::Features;

        fn inner(&self) -> &dyn Dataset {
            &self.0
        }

        fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
            self.1.lock().unwrap().push(rows.len());
            self.0.gather(rows, out)
        }
    }

    #[test]
    fn wide_rows_are_read_fewer_at_a_time() {
        for (n_columns, n_rows, want) in
            [(3, 1500, vec![1024, 476]), (1 << 18, 10, vec![4, 4, 2]), ((1 << 20) + 1, 2, vec![1, 1])]
        {
            let layout = RowLayout::new(numbered_columns(n_columns), TargetLayout::Classes { n_classes: 2 });
            let features = (0..n_rows * n_columns).map(|i| (i / n_columns) as f32).collect();
            let rows = TensorDataset::classes(features, vec![0; n_rows], layout);
            let rows = Watched(rows, Mutex::default());
            let stats = column_stats(&rows, 0..n_rows).unwrap();
            assert_eq!(*rows.1.lock().unwrap(), want, "{n_columns} columns");
            assert_eq!(stats.max[n_columns - 1], (n_rows - 1) as f64);
        }
    }

    #[test]
    fn every_changed_value_changes_the_hash_and_the_number_of_ranks_changes_nothing() {
        let n_rows = 300;
        let rows = |changed: Option<(usize, f32)>| {
            let layout = RowLayout::new(numbered_columns(2), TargetLayout::Classes { n_classes: 2 });
            let mut features: Vec<f32> = (0..2 * n_rows).map(|i| (i * 31 % 17) as f32 * 0.1).collect();
            if let Some((at, value)) = changed {
                features[at] = value;
            }
            TensorDataset::classes(features, (0..n_rows as i64).map(|i| i % 2).collect(), layout)
        };
        let scan = |world_size: usize, rows: &TensorDataset| {
            let of_ranks = ddp_comm::threads::run(world_size, |world| Scan::of(rows, &world).unwrap());
            assert!(of_ranks.iter().all(|scan| *scan == of_ranks[0]));
            of_ranks[0].clone()
        };
        let whole = scan(1, &rows(None));
        assert_eq!(whole, scan(2, &rows(None)));
        assert_eq!(whole, scan(3, &rows(None)));
        let on_threads = || {
            join_pool(3).unwrap();
            Scan::of(&rows(None), &World::single()).unwrap()
        };
        assert_eq!(whole, thread::scope(|scope| scope.spawn(on_threads).join().unwrap()));
        for at in [0, 101, 599] {
            assert_ne!(whole.hash, scan(2, &rows(Some((at, 0.05)))).hash, "value {at}");
        }
    }
}
