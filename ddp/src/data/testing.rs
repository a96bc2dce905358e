//! Rows for tests.

use std::sync::Arc;

use super::{BatchMut, DataError, Dataset, RowLayout, TargetLayout, TensorDataset, numbered_columns};

mod gathered;

pub(crate) use gathered::gathered;

/// Rows whose only feature and label are their number.
pub(crate) fn numbered(n_rows: usize) -> Arc<dyn Dataset> {
    let layout = RowLayout::new(numbered_columns(1), TargetLayout::Classes { n_classes: n_rows.max(2) });
    let features = (0..n_rows).map(|row| row as f32).collect();
    Arc::new(TensorDataset::classes(features, (0..n_rows as i64).collect(), layout))
}

/// The labels of rows made by [`numbered`].
pub(crate) fn numbers_of(dataset: &dyn Dataset) -> Vec<usize> {
    let (features, targets, _) = gathered(dataset, &(0..dataset.len()).collect::<Vec<_>>());
    assert!(features.iter().zip(&targets).all(|(a, b)| a == b), "a row's label is its own");
    targets.iter().map(|&label| label as usize).collect()
}
