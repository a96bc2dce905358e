//! Data parallelism: buckets of gradients reduced while backward computes, and the sharding of weights and state over ranks.

pub(crate) mod averaged_weights;
pub mod bucket_reducer;
pub mod buckets;
pub mod error;
pub mod fixed_tree;
pub mod gradients;
pub mod shard_plan;
pub mod zero2;

pub use error::ExchangeError;
