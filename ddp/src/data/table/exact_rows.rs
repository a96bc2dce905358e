//! Rows of a table in memory, with what f32 rounds away from some columns.

use std::ops::Range;

use ddp_kernels::TensorMut;

use crate::data::batch::{Batch, BatchMut};
use crate::data::dataset::{Dataset, RowLayout};
use crate::data::error::Result;
use crate::data::remainders::Remainders;
use crate::data::resident::ResidentRows;

/// Rows of f32 and the remainders of their features.
#[derive(Debug)]
pub(crate) struct ExactRows {
    pub(crate) rows: ResidentRows,
    pub(crate) remainders: Remainders,
}

impl Dataset for ExactRows {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn layout(&self) -> &RowLayout {
        self.rows.layout()
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<()> {
        self.rows.gather(rows, out)
    }

    fn gather_targets(&self, rows: &[usize], out: TensorMut<'_>) -> Result<()> {
        self.rows.gather_targets(rows, out)
    }

    fn gather_doubles(&self, rows: &[usize], origin: &[f64], out: &mut [f64]) -> Result<bool> {
        self.remainders.differences(&self.rows.features, rows, origin, out);
        Ok(true)
    }

    fn in_place(&self, rows: Range<usize>) -> Result<Option<Batch<'_>>> {
        self.rows.in_place(rows)
    }

    fn fingerprint(&self) -> Result<u64> {
        // As in earlier versions; a full fingerprint covers the exact values.
        self.rows.fingerprint()
    }

    fn resident_bytes(&self) -> usize {
        self.rows.resident_bytes() + self.remainders.size_bytes()
    }

    fn source(&self) -> &str {
        self.rows.source()
    }
}
