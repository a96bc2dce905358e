//! `ddp-train bench`: speed of the parts of training on this machine.
//!
//! | command | measurement |
//! |---|---|
//! | `step` | whole training steps, as [`ddp::train::trainer`] runs them |
//! | `addmm` | matmuls by shape and data type |
//! | `kernels` | memory-bound operations, next to a plain copy |
//! | `copy` | copies within memory, between host and GPU, between GPUs |
//! | `allreduce` | all-reduce over ranks |
//! | `loader` | data loading without training |
//! | `checkpoint` | pause of the snapshot, checkpoint write and read |
//!
//! Ranks measure at the same time, each on its own device. Rank 0 reports its own results, and for `allreduce` and `step` those
//! of all ranks. Inputs are random, because zeros are faster, and rotate through more memory than the caches hold if a single
//! operation would otherwise find them there (`buffers`). Work on a GPU is timed with GPU events (`timing`).

mod place;
mod buffers;
mod timing;
mod report;
mod addmm;
mod allreduce;
mod checkpoint;
mod copy;
mod forward;
mod kernels;
mod loader;
mod step;

use ddp_comm::World;

pub(super) use allreduce::time_briefly;
pub(super) use report::{number, percent};

use super::warn_if_quick_build;
use crate::cli::BenchCommand;
use crate::exit::Stop;

/// Runs the benchmark and prints the results on rank 0; every rank of the world calls it.
///
/// # Errors
/// [`Stop`], which records whether all ranks know of the failure.
pub fn bench(world: &World, command: &BenchCommand) -> Result<(), Stop> {
    warn_if_quick_build(world);
    match command {
        BenchCommand::Step(args) => step::step(world, args),
        BenchCommand::Addmm(args) => addmm::addmm(world, args),
        BenchCommand::Copy(args) => copy::copy(world, args),
        BenchCommand::Allreduce(args) => allreduce::allreduce(world, args),
        BenchCommand::Loader(args) => loader::loader(world, args),
        BenchCommand::Checkpoint(args) => checkpoint::checkpoint(world, args),
        BenchCommand::Kernels(args) => kernels::kernels(world, args),
    }
}
