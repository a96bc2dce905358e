//! Statistics and codes that are fitted to the training rows, and the layers and checks that use them.

pub(crate) mod embedding_spec;
pub(crate) mod permuted_columns;
pub(crate) mod stats;
pub(crate) mod offsets;
pub(crate) mod exact_stats;
pub(crate) mod normalize;
pub(crate) mod scaled_targets;
pub(crate) mod preprocess;
mod contradiction;
pub(crate) mod column_advice;
pub(crate) mod scan;
pub(crate) mod lost_values;
pub(crate) mod quartiles;
pub(crate) mod train_categories;
