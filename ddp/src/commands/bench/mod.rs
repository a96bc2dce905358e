//! `ddp-train bench`: how fast a machine does what training consists of.
//!
//! | command | what is timed |
//! |---|---|
//! | `step` | whole training steps, as [`crate::train::trainer`] runs them |
//! | `addmm` | matrix products by shape and number format |
//! | `kernels` | operations that are bound by memory, beside a plain copy |
//! | `copy` | copies in memory, between host and GPU, between GPUs |
//! | `allreduce` | sums over ranks |
//! | `loader` | rows made ready, with nobody to compute on them |
//! | `checkpoint` | the pause of a snapshot, and a checkpoint on its way to the disk and back |
//!
//! Ranks measure at the same time, each on its own device; rank 0 tells what it found, in `allreduce` and `step` for all
//! of them. Inputs are random, since zeros are faster, and taken in turn from more memory than caches hold where an
//! operation by itself would find them there (`buffers`). Work on a GPU is timed by the GPU (`timing`).

mod addmm;
mod allreduce;
mod buffers;
mod checkpoint;
mod copy;
mod kernels;
mod loader;
mod place;
mod report;
mod step;
mod timing;

use ddp_comm::World;

use crate::cli::BenchCommand;
use crate::exit::Stop;

/// Measures what `command` says and prints the results on rank 0; every rank of the world calls it.
///
/// # Errors
/// [`Stop`], which knows whether all ranks have heard of it.
pub fn bench(world: &World, command: &BenchCommand) -> Result<(), Stop> {
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
