//! Datasets: the contract of rows by number, rows held in memory, selections, and layers that change the values of another dataset.

pub mod batch;
pub(crate) mod exact_columns;
pub(crate) mod target_scale;
pub(crate) mod dataset;
pub(crate) mod resident;
pub(crate) mod tensor_rows;
pub(crate) mod wrapper;
pub(crate) mod subset;
