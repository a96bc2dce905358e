//! Quartiles of each column over the training rows, exact in f32, in three passes over the rows that the ranks share.
//!
//! An order statistic is found digit by digit of its bits: each pass counts the values that share the digits found so far by their next
//! digit. Counts are whole numbers that the ranks add up, so any number of ranks finds the same, and memory does not grow with the
//! rows. Wide tables are read again for every [`MAX_COUNTS`] counts.

use ddp::data::datasets::batch::BatchMut;
use ddp::data::datasets::dataset::Dataset;
use ddp::data::error::{DataError, Result};
use ddp::data::order::partition::rank_range;
use ddp_comm::{ReduceOp, Stop, World};
use ddp_kernels::{DType, Device, Tensor, TensorMut, ops};

use crate::fit::offsets::column_offset;
use crate::fit::scan;
use crate::fit::stats::ColumnStats;

/// Shift and number of bits of each digit.
const DIGITS: [(u32, u32); 3] = [(21, 11), (10, 11), (0, 10)];
/// Counts of a table: those of a digit.
const N_COUNTS: usize = 1 << 11;
/// Order statistics of a column: those next to each quartile.
const N_RANKS: usize = 6;
/// Counts (f64) held at a time, unless one column takes more: 64 MiB.
const MAX_COUNTS: usize = 8 << 20;
const CHUNK_ROWS: usize = 1024;

/// The quartiles of each column, less the origin of `stats`, which are those of the same rows; interpolated linearly between values, as by
/// `numpy.quantile`. 0 for a column without values. Collective.
///
/// # Errors
/// [`DataError`] if rows cannot be read on some rank; [`DataError::Comm`] if the exchange fails.
pub(crate) fn quartiles(
    dataset: &dyn Dataset,
    stats: &ColumnStats,
    world: &World,
) -> Result<Vec<[f64; 3]>, Stop<DataError>> {
    let n_columns = dataset.layout().n_features();
    // Offsets from which f32 holds the digits of most values; the origin of the scan may come from a single outlier.
    let origin = world.collective_result(scan::origin(dataset))?;
    let offsets = || (0..n_columns).map(|column| column_offset(stats, column)).collect::<Vec<_>>();
    let origin = origin.map(|_| offsets());
    let mut searches: Vec<Search> = stats.count[..n_columns].iter().map(|n| Search::new(*n as u64)).collect();
    for (shift, bits) in DIGITS {
        let mut start = 0;
        while start < n_columns {
            let counters = Counters::new(&searches, start);
            let mut counts = vec![0.0; counters.n_tables * N_COUNTS];
            let own = rank_range(dataset.len(), world.rank().0, world.world_size());
            let counted = for_values(dataset, own, origin.as_deref(), |row| {
                counters.count(&row[start..], shift, bits, &mut counts);
            });
            world.collective_result(counted)?;
            let len = counts.len();
            let view = TensorMut::from_slice(&mut counts, &[len]).map_err(DataError::from)?;
            world.group().all_reduce(ReduceOp::Sum, view).map_err(DataError::from)?;
            let end = start + counters.of_columns.len();
            for (search, prefixes) in searches[start..end].iter_mut().zip(&counters.of_columns) {
                search.advance(bits, prefixes, &counts);
            }
            start = end;
        }
    }
    let quartiles_of = |(column, search): (usize, &Search)| {
        let of_values = origin.as_ref().map_or(0.0, |origin| origin[column]);
        search.quartiles().map(|value| of_values - stats.origin[column] + value)
    };
    Ok(searches.iter().enumerate().map(quartiles_of).collect())
}

/// The tables of counts of some columns: one for each different prefix of a column's order statistics, which have few of them.
struct Counters {
    of_columns: Vec<Prefixes>,
    n_tables: usize,
}

/// Different prefixes of a column.
struct Prefixes {
    known: [u32; N_RANKS],
    n: usize,
    /// The table of the first.
    first: usize,
}

impl Counters {
    /// Tables of as many columns from `start` on as the memory allows.
    fn new(searches: &[Search], start: usize) -> Self {
        let mut counters = Counters { of_columns: Vec::new(), n_tables: 0 };
        for search in &searches[start..] {
            let mut prefixes = Prefixes { known: [0; N_RANKS], n: 0, first: counters.n_tables };
            for (prefix, _) in search.found {
                if prefixes.place(prefix).is_none() {
                    prefixes.known[prefixes.n] = prefix;
                    prefixes.n += 1;
                }
            }
            let n_tables = counters.n_tables + prefixes.n;
            if !counters.of_columns.is_empty() && n_tables * N_COUNTS > MAX_COUNTS {
                break;
            }
            counters.n_tables = n_tables;
            counters.of_columns.push(prefixes);
        }
        counters
    }

    /// Counts the values of a row by their next digits.
    fn count(&self, row: &[f32], shift: u32, bits: u32, counts: &mut [f64]) {
        for (prefixes, value) in self.of_columns.iter().zip(row).filter(|(_, value)| !value.is_nan()) {
            let key = key_of(*value);
            let known = (u64::from(key) >> (shift + bits)) as u32;
            if let Some(place) = prefixes.place(known) {
                counts[(prefixes.first + place) * N_COUNTS + (key >> shift) as usize % (1 << bits)] += 1.0;
            }
        }
    }
}

impl Prefixes {
    #[inline]
    fn place(&self, prefix: u32) -> Option<usize> {
        self.known[..self.n].iter().position(|known| *known == prefix)
    }
}

/// The order statistics of a column as far as they are known.
struct Search {
    /// Number of values.
    n: u64,
    /// Upper bits of each, and its rank among the values with these bits.
    found: [(u32, u64); N_RANKS],
}

impl Search {
    fn new(n: u64) -> Self {
        let last = n.saturating_sub(1);
        let rank = |index: usize| {
            let (quartile, upper) = (index as u64 / 2 + 1, index % 2);
            // Below and above (n - 1) · quartile / 4.
            let place = last * quartile;
            if upper == 1 { place.div_ceil(4) } else { place / 4 }
        };
        Search { n, found: std::array::from_fn(|index| (0, rank(index))) }
    }

    /// Adds the digit whose counts hold the rank.
    fn advance(&mut self, bits: u32, prefixes: &Prefixes, counts: &[f64]) {
        for (prefix, rank) in &mut self.found {
            let table = prefixes.first + prefixes.place(*prefix).expect("each prefix has a table");
            let counts = &counts[table * N_COUNTS..][..N_COUNTS];
            let mut digit = 0;
            while digit + 1 < 1 << bits && *rank >= counts[digit] as u64 {
                *rank -= counts[digit] as u64;
                digit += 1;
            }
            *prefix = *prefix << bits | digit as u32;
        }
    }

    fn quartiles(&self) -> [f64; 3] {
        if self.n == 0 {
            return [0.0; 3];
        }
        std::array::from_fn(|quartile| {
            let [low, high] = [0, 1].map(|upper| f64::from(value_of(self.found[2 * quartile + upper].0)));
            let share = ((self.n - 1) * (quartile as u64 + 1) % 4) as f64 / 4.0;
            low + (high - low) * share
        })
    }
}

/// Bits in the order of the values.
fn key_of(value: f32) -> u32 {
    let bits = value.to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}

fn value_of(key: u32) -> f32 {
    f32::from_bits(if key >> 31 == 1 { key & !(1 << 31) } else { !key })
}

/// Calls `body` with the features of each row, less `origin` if the values are exact in f64.
fn for_values(
    dataset: &dyn Dataset,
    rows: std::ops::Range<usize>,
    origin: Option<&[f64]>,
    mut body: impl FnMut(&[f32]),
) -> Result<()> {
    let layout = dataset.layout();
    let n_columns = layout.n_features();
    let chunk_rows = CHUNK_ROWS.min((1 << 20) / n_columns.max(1)).clamp(1, rows.len().max(1));
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu);
    let mut raw = zeros(&[chunk_rows, n_columns], layout.dtype)?;
    let mut x = zeros(&[chunk_rows, n_columns], DType::F32)?;
    let mut targets = zeros(&layout.targets.dims(chunk_rows), layout.targets.dtype())?;
    let mut weights = zeros(&[chunk_rows], DType::F32)?;
    let (mut doubles, mut singles) = (Vec::new(), Vec::new());
    for start in rows.clone().step_by(chunk_rows) {
        let numbers: Vec<usize> = (start..(start + chunk_rows).min(rows.end)).collect();
        let n = numbers.len();
        if let Some(origin) = origin {
            doubles.resize(n * n_columns, 0.0);
            dataset.gather_doubles(&numbers, origin, &mut doubles)?;
            singles.clear();
            singles.extend(doubles.iter().map(|&value: &f64| value as f32));
            singles.chunks_exact(n_columns).for_each(&mut body);
            continue;
        }
        let out = BatchMut {
            x: raw.view_mut().rows(0, n)?,
            targets: targets.view_mut().rows(0, n)?,
            weights: if layout.has_weights { Some(weights.view_mut().rows(0, n)?) } else { None },
        };
        dataset.gather(&numbers, out)?;
        ops::load_rows(raw.view().rows(0, n)?, None, None, x.view_mut().rows(0, n)?)?;
        let x = x.view().rows(0, n)?;
        x.as_slice::<f32>("quartiles", "x")?.chunks_exact(n_columns).for_each(&mut body);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ddp::data::{RowLayout, TargetLayout, TensorDataset, numbered_columns};

    use crate::fit::quartiles::*;

    /// By sorting.
    fn want(mut values: Vec<f32>) -> [f64; 3] {
        values.retain(|value| !value.is_nan());
        values.sort_by(f32::total_cmp);
        [0.25, 0.5, 0.75].map(|q| {
            let at = (values.len() - 1) as f64 * q;
            let [low, high] = [at.floor(), at.ceil()].map(|at| f64::from(values[at as usize]));
            low + (high - low) * at.fract()
        })
    }

    #[test]
    fn quartiles_are_those_of_the_sorted_values_on_any_number_of_ranks() {
        for n_rows in [1, 2, 5, 300, 1501] {
            let value = |row: usize, column: usize| {
                let x = ((row * 7919 + column * 31) % 997) as f32 - 400.0;
                match column {
                    0 => x * 1e-3,
                    1 => x.signum() * x.powi(12),
                    2 => 5.0,
                    _ if row % 3 == 1 => f32::NAN,
                    _ => (x / 50.0).trunc(),
                }
            };
            let columns = |column| (0..n_rows).map(move |row| value(row, column)).collect::<Vec<f32>>();
            let features = (0..4 * n_rows).map(|i| value(i / 4, i % 4)).collect();
            let layout = RowLayout::new(numbered_columns(4), TargetLayout::Classes { n_classes: 2 });
            let rows = TensorDataset::classes(features, vec![0; n_rows], layout);
            for world_size in 1..=3 {
                let of_ranks = ddp_comm::threads::run(world_size, |world| {
                    let stats = scan::column_stats(&rows, 0..n_rows).unwrap();
                    quartiles(&rows, &stats, &world).unwrap()
                });
                for of_rank in of_ranks {
                    for (column, got) in of_rank.iter().enumerate() {
                        assert_eq!(*got, want(columns(column)), "{n_rows} rows, column {column}");
                    }
                }
            }
        }
    }
}
