//! Permutation importance: how much worse a model becomes when a column holds no information about its row.

pub mod permuted_columns;
pub mod user_columns;
pub mod measure;
