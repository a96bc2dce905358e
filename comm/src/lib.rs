//! Ranks and collectives.
//!
//! The middle layer of the workspace. It knows who the ranks of a job are ([`World`]), combines their tensors ([`Group`],
//! [`Scope`]), checks that all ranks run the same program ([`World::agree`]), ends the job if one of them fails
//! ([`failure`]), and notices one that is lost ([`watchdog`]). It knows no models, no config keys, no flags and no files.
//!
//! A rank is a process started by an MPI launcher or by another that sets `RANK` and `WORLD_SIZE`, a thread of this process ([`threads::run`]), or this process alone. Each
//! rank may have a GPU, and then tensors go directly from GPU to GPU ([`World::connect_device`], [`peer::copy`]). The same code
//! runs on all of them:
//!
//! ```
//! use ddp_comm::{CommError, ReduceOp, threads};
//! use ddp_kernels::TensorMut;
//!
//! let sums = threads::run(3, |world| -> Result<f32, CommError> {
//!     let mut x = [world.rank().0 as f32];
//!     world.group().all_reduce(ReduceOp::Sum, TensorMut::from_slice(&mut x, &[1])?)?;
//!     Ok(x[0])
//! });
//! assert!(sums.into_iter().all(|sum| sum.unwrap() == 0.0 + 1.0 + 2.0));
//! ```

// Names, calls and errors.
mod fnv1a;
mod rank;
mod reporter;
mod stderr;
mod this_host;
mod token;
mod environment;
mod host_place;
mod slurm;
mod launcher;
mod launcher_process;
mod call;
mod error;
mod mpi_library;

// How a job ends, and how far it is.
mod lifeline;
mod end_job;
mod lost_server;
mod phase;
mod operations;
mod offer;
mod survivor;
mod progress;
mod recorder;

// Ranks and their tensors.
mod world_options;
mod register_buffers;
mod group;
mod device_groups;
mod shared_tensor;
#[doc(hidden)]
pub mod watchdog;
mod world;

// What a world is used for.
#[doc(hidden)]
pub mod cores;
mod device;
mod tensors;
#[doc(hidden)]
pub mod failure;
mod agree;
mod host_slots;
mod host_share;
mod kept_memory;
#[doc(hidden)]
pub mod peer;
mod pin;
mod stop;
pub mod threads;
mod launch;

pub use call::{Call, CallKind, ReduceOp};
pub use device::DeviceOptions;
pub use environment::BadVariable;
pub use error::{CommError, Departure, Result};
pub use group::{Group, Scope};
pub use launch::launch;
pub use launcher::Launcher;
pub use rank::Rank;
pub use register_buffers::RegisterBuffers;
pub use world::World;

// For the crates above.
#[doc(hidden)]
pub use self::{
    device::nccl_version,
    environment::rank_variables,
    failure::Failure,
    group::{NCCL_MEMORY_STEP_BYTES, OnLoan, Ticket, Traffic, registered_step_bytes},
    host_place::HostPlace,
    host_share::{HostShare, KeptFile},
    host_slots::{EmptySlot, FilledSlot, HostSlots, Taken},
    kept_memory::KeptMemory,
    launcher::{local_ranks, stated_rank, without_launcher},
    launcher_process::{LauncherProcess, launcher_above},
    offer::{Offer, SaveAfterLoss},
    phase::Phase,
    pin::DeviceChoice,
    rank::{LocalRank, ranks_text},
    recorder::{Recorder, Slice, Track},
    reporter::Reporter,
    shared_tensor::SharedTensor,
    stop::Stop,
    watchdog::{Watchdog, WatchdogOptions},
    world::mpi_version,
    world_options::WorldOptions,
};
