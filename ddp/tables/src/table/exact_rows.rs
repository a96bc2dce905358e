//! Rows of a table in memory, with the exact values of columns whose digits f32 does not hold.

use ddp::data::datasets::dataset::Dataset;
use ddp::data::datasets::resident::{Targets, TensorDataset};
use ddp::data::datasets::wrapper::{Changes, DatasetWrapper};
use ddp::data::error::Result;

use crate::table::exact_columns::ExactColumns;

/// Rows of f32, and exact values of their features and targets.
#[derive(Debug)]
pub(crate) struct ExactRows {
    pub(crate) rows: TensorDataset,
    pub(crate) exact: ExactColumns,
    /// Of targets that are values.
    pub(crate) exact_targets: ExactColumns,
}

impl ExactRows {
    /// Whether f32 holds all values.
    pub(crate) fn is_single(&self) -> bool {
        self.exact.is_empty() && self.exact_targets.is_empty()
    }
}

impl DatasetWrapper for ExactRows {
    const CHANGES: Changes = Changes::Nothing;

    fn inner(&self) -> &dyn Dataset {
        &self.rows
    }

    fn gather_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        self.exact.differences(&self.rows.features, rows, origin, out);
        Ok(true)
    }

    fn gather_target_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        let Targets::Values(values) = &self.rows.targets else { return Ok(false) };
        self.exact_targets.differences(values, rows, origin, out);
        Ok(true)
    }

    fn resident_bytes(&self) -> usize {
        self.rows.resident_bytes() + self.exact.size_bytes() + self.exact_targets.size_bytes()
    }
}
