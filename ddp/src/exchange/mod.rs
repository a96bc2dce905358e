//! Data parallelism: buckets of gradients reduced while backward computes, and the sharding of weights and state over ranks.
//!
//! There are five ways to exchange gradients ([`Exchange`]), a file each, of which all ranks choose the same one ([`plan`]): on one
//! rank none (`alone.rs`); in buckets, all-reduced or with ZeRO-1 reduce-scattered while backward computes ([`buckets`]); block by block
//! together with the update, where ranks share memory and the weights take 32 MiB or more (`with_update.rs`); in every micro-batch
//! ([`zero2`]); along a fixed tree of micro-shards ([`fixed_tree`]). On the ranks of one host that compute on the CPU, all-reduced
//! buckets, blocks and ZeRO-1 give the same bits, unless the gradient is clipped: its norm is summed over other ranges. With
//! micro-shards the norm is summed parameter by parameter, since ranges depend on the number of ranks.
//!
//! Gradients are scaled by 1/G, G being the rows of the global batch, before they are summed over ranks. The tail of the last
//! bucket sums losses, weights and votes. With weights of rows or classes, the update multiplies by G over the sum of weights
//! (`LossSums::mean_scale`). So neither weights nor votes cost a message. A vote is how ranks agree
//! on what one of them alone knows, such as a signal.
//!
//! Optimizers whose steps depend on whole parameters exchange norms or directions between passes (`whole_parameters.rs`).
//!
//! Layers whose rows depend on the rows of all ranks gather what they need within a pass (`rank_exchange.rs`), between the buckets that
//! backward starts: layers and buckets come in the same order on every rank.
//!
//! Per step on several ranks, one short list of the buckets that are lent out is allocated.
//!
//! Weights and their buckets on four ranks, and what each of them updates with ZeRO-1:
//!
//! ```
//! use ddp::exchange::bucket_plan::BucketPlan;
//! use ddp::exchange::shard_plan::ShardPlan;
//! use ddp::nn::{Activation, ParamLayout, Sequential};
//!
//! let n_ranks = 4;
//! let layers = Sequential::new(64).linear(128).activation(Activation::Relu).linear(10).into_layers();
//! let layout = ParamLayout::from_layers(&layers, n_ranks);
//!
//! let buckets = BucketPlan::new(&layout, 25 << 20);
//! assert_eq!(buckets.lens().len(), 1, "they fit into one bucket");
//!
//! let shards = |rank| ShardPlan::sharded(&buckets, rank, n_ranks).state_len();
//! let held: usize = (0..n_ranks).map(shards).sum();
//! assert_eq!(held, layout.flat_len());
//! ```

pub mod bucket_plan;
pub mod error;
#[doc(hidden)]
pub mod rank_exchange;
pub mod shard_plan;
pub(crate) mod averaged_weights;
pub mod replica_check;
pub(crate) mod weight_gather;
pub(crate) mod whole_parameters;
mod way;
mod alone;
mod by_hand;
pub mod buckets;
mod with_update;
pub mod zero2;
pub mod fixed_tree;
pub mod plan;
pub(crate) mod gradients;
pub(crate) mod trial;

pub use error::ExchangeError;
pub use way::{BackwardInputs, BufferReduction, BufferSize, Exchange, MicroStep, Pass, UpdateBucket};
