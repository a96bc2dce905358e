//! Statistics and codes that are fitted to the training rows, and warnings about their columns.

pub mod stats;
pub(crate) mod offsets;
pub(crate) mod normalize;
pub(crate) mod scaled_targets;
pub mod preprocess;
mod contradiction;
pub(crate) mod target_columns;
pub(crate) mod data_fingerprint;
pub mod column_advice;
pub(crate) mod exact_stats;
pub mod scan;
pub(crate) mod lost_values;
pub(crate) mod quartiles;
pub mod train_categories;
