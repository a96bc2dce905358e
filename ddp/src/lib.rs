//! Data-parallel training of dense networks.
//!
//! Start reading at [`run`]: a training run from the command line's arguments to the model's file. The other modules
//! stand in the order of the data's way through them:
//!
//! [`cli`] and [`config`] -> [`data`] -> [`sampler`] and [`shard`] -> [`batches`] and [`epoch`] -> [`model`] ->
//! [`buckets`] -> [`trainer`] and [`update_plan`], in a [`training_loop`] -> [`evaluate`](mod@evaluate) -> [`metrics`], [`progress`] and [`rundir`].

#![forbid(unsafe_code)]

pub mod batches;
pub mod bench;
pub mod buckets;
pub mod cli;
pub mod config;
pub mod data;
pub mod describe;
pub mod epoch;
pub mod error;
pub mod eval;
pub mod evaluate;
pub mod files;
pub mod metrics;
pub mod model;
pub mod outcome;
pub mod process;
pub mod progress;
pub mod run;
pub mod rundir;
pub mod sampler;
pub mod shard;
pub mod trainer;
pub mod training_loop;
pub mod update_plan;

pub use error::{Error, Result};
