//! Datasets: the contract of rows by number, rows held in memory, selections, and layers that change the values of another dataset.

pub mod batch;
pub mod target_scale;
pub mod dataset;
pub mod resident;
pub(crate) mod tensor_rows;
pub mod wrapper;
pub mod subset;
pub mod balanced;
