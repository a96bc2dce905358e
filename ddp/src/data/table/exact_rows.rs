//! Rows of a table in memory, with what f32 rounds away from some columns.

use crate::data::dataset::Dataset;
use crate::data::error::Result;
use crate::data::remainders::Remainders;
use crate::data::resident::ResidentRows;
use crate::data::wrapper::{Changes, DatasetWrapper};

/// Rows of f32 and the remainders of their features.
#[derive(Debug)]
pub(crate) struct ExactRows {
    pub(crate) rows: ResidentRows,
    pub(crate) remainders: Remainders,
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

    fn resident_bytes(&self) -> usize {
        self.rows.resident_bytes() + self.remainders.size_bytes()
    }
}
