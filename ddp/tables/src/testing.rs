//! Rows for tests.

use ddp::data::{BatchMut, DataError, Dataset};

#[path = "../../src/data/testing/gathered.rs"]
mod rows;

pub(crate) use rows::{gathered, try_gather};

/// The features of all rows in order.
pub(crate) fn features_of(dataset: &dyn Dataset) -> Vec<f32> {
    gathered(dataset, &(0..dataset.len()).collect::<Vec<_>>()).0
}
