//! Subtracts a number per column from the stored values before they become f32.
//!
//! A column far from 0 relative to its spread, such as times or identifiers, has more digits than f32. Its differences from a
//! number near its mean have fewer, so they are computed in f64 (integers exactly) where the rows are read. Other columns have
//! the offset 0.

use std::sync::Arc;

use ddp::data::datasets::batch::BatchMut;
use ddp::data::datasets::dataset::{Dataset, RowLayout};
use ddp::data::datasets::wrapper::{Changes, DatasetWrapper};
use ddp::data::error::Result;
use ddp_kernels::{DType, Device, Tensor, ops};

use crate::fit::stats::ColumnStats;

/// Columns whose mean is at least so many standard deviations from 0 have an offset; others lose at most 4 of the 24 bits of f32.
const MIN_DEVIATIONS: f64 = 8.0;

/// The offset of a column: near its mean, and whole for integers.
pub(crate) fn column_offset(stats: &ColumnStats, column: usize) -> f64 {
    let mean = stats.origin[column] + stats.mean[column];
    let is_far = is_far(mean, stats.standard_deviation(column));
    if stats.is_single(column) || stats.count[column] == 0.0 || !is_far {
        return 0.0;
    }
    if stats.n_fractional[column] == 0.0 { mean.round() } else { mean }
}

/// Whether values with this mean and standard deviation are so far from 0 that f32 loses digits of their differences.
pub(crate) fn is_far(mean: f64, deviation: f64) -> bool {
    mean.abs() >= MIN_DEVIATIONS * deviation
}

/// `dataset` with `offsets`, one per column, subtracted from its features.
pub(crate) fn apply(offsets: Vec<f64>, dataset: Arc<dyn Dataset>) -> Arc<dyn Dataset> {
    let layout = RowLayout { dtype: DType::F32, ..dataset.layout().clone() };
    Arc::new(OffsetRows { of: dataset, offsets, layout })
}

/// Rows whose features are differences from the offsets when they are gathered.
#[derive(Debug)]
struct OffsetRows {
    of: Arc<dyn Dataset>,
    offsets: Vec<f64>,
    layout: RowLayout,
}

impl DatasetWrapper for OffsetRows {
    const CHANGES: Changes = Changes::Features;

    fn inner(&self) -> &dyn Dataset {
        &*self.of
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        const OP: &str = "gather";
        let dims = [rows.len(), self.offsets.len()];
        let BatchMut { mut x, targets, weights } = out;
        // Checks the values, too.
        let stored = self.of.layout().dtype;
        if stored == DType::F32 {
            self.of.gather(rows, BatchMut { x: x.reborrow(), targets, weights })?;
        } else {
            let mut raw = Tensor::zeros(&dims, stored, Device::Cpu)?;
            self.of.gather(rows, BatchMut { x: raw.view_mut(), targets, weights })?;
            ops::load_rows(raw.view(), None, None, x.reborrow())?;
        }
        let mut doubles = vec![0.0; dims[0] * dims[1]];
        let is_wide = self.of.gather_doubles(rows, &self.offsets, &mut doubles)?;
        let x = x.into_slice::<f32>(OP, "x")?;
        if is_wide {
            x.iter_mut().zip(&doubles).for_each(|(x, &double)| *x = double as f32);
            return Ok(());
        }
        for row in x.chunks_exact_mut(dims[1].max(1)) {
            row.iter_mut().zip(&self.offsets).for_each(|(x, offset)| *x = (f64::from(*x) - offset) as f32);
        }
        Ok(())
    }
}
