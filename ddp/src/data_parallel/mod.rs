//! Gradients over the ranks: buckets of the flat buffer, reduced while backward computes, and which rank updates which weights.

pub(crate) mod averaged_weights;
pub mod bucket_reducer;
pub mod buckets;
pub mod error;
pub mod fixed_tree;
pub mod gradients;
pub mod shard_plan;
pub mod zero2;

pub use error::ExchangeError;
