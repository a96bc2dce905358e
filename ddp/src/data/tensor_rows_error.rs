//! Errors of rows from tensors.

use ddp_kernels::{DType, Shape};

/// Tensors that are not rows with targets.
#[derive(Debug, Clone, PartialEq, thiserror::Error, miette::Diagnostic)]
#[non_exhaustive]
#[allow(missing_docs)] // Fields say what they are.
pub enum TensorRowsError {
    /// A tensor of another shape or dtype.
    #[error("{name} {shape} {dtype} should be {expected}")]
    #[diagnostic(help("`reshape` and `to_dtype` return a tensor that fits"))]
    Tensor {
        /// `features` or `targets`.
        name: &'static str,
        shape: Shape,
        dtype: DType,
        /// Shapes and element types that fit.
        expected: String,
    },
    /// A class index below 0.
    #[error("targets: the class of row {row} is {class}, and classes count from 0")]
    NegativeClass {
        /// The row, from 0.
        row: usize,
        class: i64,
    },
    /// A sampler's row that the data lacks.
    #[error("the sampler returned row {row} of data with {n_rows} rows, which count from 0")]
    NoSuchRow {
        row: usize,
        /// Rows of the data.
        n_rows: usize,
    },
    /// Rows with weights where a loop takes pairs of features and targets.
    #[error("the rows have weights, which pairs of features and targets leave out")]
    #[diagnostic(help("`DataLoader::batches` returns them, too"))]
    Weighted,
    /// Weights that are not one per row, or that the layout of the rows does not have.
    #[error("{n_weights} weights of {n_rows} rows, which should be one per row and part of the layout")]
    #[diagnostic(help("`TensorDataset::with_weights` sets both"))]
    Weights { n_weights: usize, n_rows: usize },
    /// A weight that is negative, NaN or infinite.
    #[error("weights: row {row} has {weight}, and weights are finite numbers of 0 or above")]
    Weight {
        /// The row, from 0.
        row: usize,
        weight: f32,
    },
    /// A feature or target that is NaN or infinite.
    #[error("{name}: row {row} holds {value}, and rows must be finite")]
    NotFinite {
        /// `features` or `targets`.
        name: &'static str,
        /// The row, from 0.
        row: usize,
        value: f32,
    },
}
