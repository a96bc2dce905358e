//! Rows for tests.

use std::path::Path;

use ddp::data::{BatchMut, DataError, Dataset, Loaded};

use crate::fit::preprocess::{ColumnCodes, Preprocessor};

#[path = "../../src/data/testing/gathered.rs"]
mod rows;

pub(crate) use rows::gathered;
#[cfg(feature = "parquet")]
pub(crate) use rows::try_gather;

/// The features of all rows in order.
pub(crate) fn features_of(dataset: &dyn Dataset) -> Vec<f32> {
    gathered(dataset, &(0..dataset.len()).collect::<Vec<_>>()).0
}

/// The conversion of the columns of rows that were loaded.
pub(crate) fn columns_of(loaded: &Loaded) -> ColumnCodes {
    Preprocessor::from_model(&loaded.preprocessor, Path::new("model")).expect("it was fitted").plan
}
