//! Rows of a table in memory, with what f32 rounds away from some columns.

use crate::data::datasets::dataset::Dataset;
use crate::data::datasets::remainders::Remainders;
use crate::data::datasets::resident::{ResidentRows, Targets};
use crate::data::datasets::wrapper::{Changes, DatasetWrapper};
use crate::data::error::Result;

/// Rows of f32 and the remainders of their features and targets.
#[derive(Debug)]
pub(crate) struct ExactRows {
    pub(crate) rows: ResidentRows,
    pub(crate) remainders: Remainders,
    /// Of targets that are values.
    pub(crate) target_remainders: Remainders,
}

impl ExactRows {
    /// Whether f32 holds all values.
    pub(crate) fn is_single(&self) -> bool {
        self.remainders.is_empty() && self.target_remainders.is_empty()
    }
}

impl DatasetWrapper for ExactRows {
    const CHANGES: Changes = Changes::Nothing;

    fn inner(&self) -> &dyn Dataset {
        &self.rows
    }

    fn gather_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        self.remainders.differences(&self.rows.features, rows, origin, out);
        Ok(true)
    }

    fn gather_target_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        let Targets::Values(values) = &self.rows.targets else { return Ok(false) };
        self.target_remainders.differences(values, rows, origin, out);
        Ok(true)
    }

    fn resident_bytes(&self) -> usize {
        self.rows.resident_bytes() + self.remainders.size_bytes() + self.target_remainders.size_bytes()
    }
}
