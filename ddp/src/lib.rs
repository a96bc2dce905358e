//! Data-parallel training of dense networks.
//!
//! Start reading at [`run`]: a training run from the command line's arguments to the model's file. The other modules
//! stand in the order of the data's way through them:
//!
//! [`cli`] and [`config`] -> [`resume`] -> [`data`] -> [`setup`] -> [`sampler`], [`order`] and [`shard`] -> [`loader`] -> [`batches`] ->
//! [`model`] -> [`buckets`] -> [`trainer`], [`update_plan`] and [`tree_sum`], in a [`training_loop`] -> [`evaluate`](mod@evaluate) ->
//! [`metrics`], [`progress`] and [`rundir`], [`checkpointing`] and [`checkpoint`].

#![forbid(unsafe_code)]

mod averaged_weights;
pub mod batches;
pub mod bench;
pub mod buckets;
pub mod checkpoint;
pub mod checkpoint_command;
pub mod checkpointing;
pub mod cli;
pub mod config;
pub mod data;
pub mod data_command;
pub mod describe;
pub mod describe_command;
pub mod device_rows;
pub mod devices;
pub mod early_stopping;
pub mod epoch_proof;
pub mod error;
mod error_hints;
pub mod eval;
pub mod evaluate;
pub mod files;
pub mod folder_error;
mod gpu_step;
pub mod gradient_exchange;
pub mod gradients;
pub mod loader;
pub mod loss_scaler;
pub mod memory_plan;
pub mod metrics;
pub mod model;
pub mod order;
pub mod outcome;
pub mod process;
pub mod progress;
pub mod resume;
pub mod run;
mod run_clock;
pub mod rundir;
pub mod sampler;
pub mod schedule;
pub mod setup;
pub mod shard;
pub mod sharded_gradients;
mod stdout;
mod step_parts;
pub mod stop;
mod table;
pub mod train_loss;
pub mod trainer;
pub mod training_loop;
pub mod tree_sum;
pub mod update_plan;

pub use error::{Error, Result};
