//! Conversions fitted to the training rows and saved with a model, and the layers that use them.

pub(crate) mod embedding_spec;
pub(crate) mod permuted_columns;
pub mod stats;
pub mod offsets;
pub(crate) mod normalize;
pub mod scaled_targets;
pub mod preprocess;
mod contradiction;
