//! Columns whose values come from other rows, in a permuted order: for the importance of columns.

use std::ops::Range;
use std::sync::Arc;

use ddp::data::datasets::batch::BatchMut;
use ddp::data::datasets::dataset::Dataset;
use ddp::data::datasets::wrapper::{Changes, DatasetWrapper};
use ddp::data::error::{DataError, Result};
use ddp::data::order::partition::rank_range;
use ddp_comm::{Stop, World};
use ddp_kernels::{DType, Device, KeyedPermutation, Tensor};

/// Memory for the rows of one read.
const READ_BYTES: usize = 4 << 20;

/// A column as the user knows it: one of the dataset, or all parts of a date.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UserColumn {
    /// Name in the header of the data.
    pub name: String,
    /// Its columns of the dataset.
    pub columns: Range<usize>,
}

/// The values of some columns in all rows, as they are gathered; in host memory.
#[derive(Debug)]
pub struct ColumnValues {
    columns: Range<usize>,
    /// `[rows, columns]`, in the number format of the dataset.
    bytes: Vec<u8>,
}

impl ColumnValues {
    /// Reads `columns` of all rows: each rank a shard of them. Every rank of the world calls it.
    ///
    /// # Errors
    /// [`DataError`] if rows cannot be read on some rank; [`DataError::Comm`] if the exchange fails.
    pub fn read(
        world: &World,
        dataset: &dyn Dataset,
        columns: Range<usize>,
    ) -> Result<Self, Stop<DataError>> {
        let rows = rank_range(dataset.len(), world.rank().0, world.world_size());
        let own = world.collective_result(read_rows(dataset, &columns, rows))?;
        let bytes = match world.world_size() {
            1 => own,
            _ => world.group().all_gather_bytes(&own).map_err(DataError::from)?.concat(),
        };
        Ok(ColumnValues { columns, bytes })
    }
}

/// The bytes of `columns` in these rows.
fn read_rows(dataset: &dyn Dataset, columns: &Range<usize>, rows: Range<usize>) -> Result<Vec<u8>> {
    const OP: &str = "gather";
    let layout = dataset.layout();
    let n = (READ_BYTES / layout.row_bytes().max(1)).clamp(1, rows.len().max(1));
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu);
    let mut x = zeros(&[n, layout.n_features()], layout.dtype)?;
    let mut targets = zeros(&layout.targets.dims(n), layout.targets.dtype())?;
    let mut weights = zeros(&[n], DType::F32)?;
    let places = byte_range(columns, layout.dtype);
    let mut bytes = Vec::with_capacity(rows.len() * places.len());
    let mut numbers = Vec::with_capacity(n);
    for start in rows.clone().step_by(n) {
        let end = (start + n).min(rows.end);
        numbers.clear();
        numbers.extend(start..end);
        let mut x = x.view_mut().rows(0, end - start)?;
        let weights = if layout.has_weights { Some(weights.view_mut().rows(0, end - start)?) } else { None };
        let targets = targets.view_mut().rows(0, end - start)?;
        dataset.gather(&numbers, BatchMut { x: x.reborrow(), targets, weights })?;
        let row_bytes = layout.n_features() * layout.dtype.size_bytes();
        let of_rows = x.into_bytes(OP, "x")?.chunks_exact(row_bytes);
        of_rows.for_each(|row| bytes.extend_from_slice(&row[places.clone()]));
    }
    Ok(bytes)
}

/// The bytes of columns within those of a row.
fn byte_range(columns: &Range<usize>, dtype: DType) -> Range<usize> {
    columns.start * dtype.size_bytes()..columns.end * dtype.size_bytes()
}

/// `dataset` in which `values` are in a permuted order: row `i` has those of row `permutation(i)`. Missing values and
/// categories travel with their column; targets, weights and the other columns stay.
pub fn permuted_columns(
    dataset: Arc<dyn Dataset>,
    values: Arc<ColumnValues>,
    permutation: KeyedPermutation,
) -> Arc<dyn Dataset> {
    assert_eq!(permutation.len(), dataset.len(), "a permutation of the rows");
    Arc::new(PermutedColumns { of: dataset, values, permutation })
}

#[derive(Debug)]
struct PermutedColumns {
    of: Arc<dyn Dataset>,
    values: Arc<ColumnValues>,
    permutation: KeyedPermutation,
}

impl DatasetWrapper for PermutedColumns {
    const CHANGES: Changes = Changes::Features;

    fn inner(&self) -> &dyn Dataset {
        &*self.of
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        let BatchMut { mut x, targets, weights } = out;
        self.of.gather(rows, BatchMut { x: x.reborrow(), targets, weights })?;
        let layout = self.of.layout();
        let places = byte_range(&self.values.columns, layout.dtype);
        let row_bytes = layout.n_features() * layout.dtype.size_bytes();
        let of_rows = x.into_bytes("gather", "x")?.chunks_exact_mut(row_bytes);
        for (&row, out) in rows.iter().zip(of_rows) {
            let from = self.permutation.index(row) * places.len();
            out[places.clone()].copy_from_slice(&self.values.bytes[from..][..places.len()]);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use ddp::data::{RowLayout, TargetLayout, Targets, TensorDataset};

    use crate::importance::permuted_columns::*;
    use crate::testing::gathered;

    /// Three columns: the row's number, ten times it, and a value that is missing in every fifth row.
    fn rows(n: usize) -> Arc<dyn Dataset> {
        let names = ["a", "b", "c"].map(str::to_owned).to_vec();
        let mut layout = RowLayout::new(names, TargetLayout::Values { names: vec!["y".to_owned()] });
        (layout.has_weights, layout.has_missing) = (true, true);
        let row =
            |i: usize| [i as f32, 10.0 * i as f32, if i.is_multiple_of(5) { f32::NAN } else { i as f32 }];
        let numbers = |factor: f32| (0..n).map(|i| factor * i as f32).collect::<Vec<_>>();
        Arc::new(TensorDataset {
            features: (0..n).flat_map(row).collect(),
            targets: Targets::Values(numbers(1.0)),
            weights: Some(numbers(0.5)),
            layout,
            source: "rows in memory".to_owned(),
        })
    }

    #[test]
    fn only_the_permuted_columns_change_and_missing_values_travel_with_them() {
        let n = 40;
        for n_ranks in [1, 3] {
            let of_ranks = ddp_comm::threads::run(n_ranks, |world| {
                let values = Arc::new(ColumnValues::read(&world, &*rows(n), 1..3).unwrap());
                let permuted = permuted_columns(rows(n), values, KeyedPermutation::new(n, 7, 3));
                gathered(&*permuted, &(0..n).rev().collect::<Vec<_>>())
            });
            for (x, targets, weights) in of_ranks {
                let permutation = KeyedPermutation::new(n, 7, 3);
                for (row, (x, i)) in x.chunks(3).zip((0..n).rev()).enumerate() {
                    let from = permutation.index(i);
                    assert_eq!(x[..2], [i as f32, 10.0 * from as f32]);
                    assert_eq!(x[2].is_nan(), from.is_multiple_of(5));
                    assert_eq!((targets[row], weights.as_ref().unwrap()[row]), (i as f32, 0.5 * i as f32));
                }
            }
        }
    }
}
