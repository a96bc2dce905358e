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
pub mod watchdog;
mod world;

// What a world is used for.
pub mod cores;
mod device;
mod tensors;
pub mod failure;
mod agree;
mod host_slots;
mod host_share;
mod kept_memory;
pub mod peer;
mod pin;
mod stop;
pub mod threads;
mod launch;

pub use call::{Call, CallKind, ReduceOp};
pub use device::{DeviceOptions, nccl_version};
pub use environment::{BadVariable, rank_variables};
pub use error::{CommError, Departure, Result};
pub use failure::Failure;
pub use group::{Group, NCCL_MEMORY_STEP_BYTES, OnLoan, Scope, Ticket, Traffic, registered_step_bytes};
pub use host_place::HostPlace;
pub use host_share::{HostShare, KeptFile};
pub use host_slots::{EmptySlot, FilledSlot, HostSlots, Taken};
pub use kept_memory::KeptMemory;
pub use launch::launch;
pub use launcher::{Launcher, local_ranks, stated_rank, without_launcher};
pub use launcher_process::{LauncherProcess, launcher_above};
pub use offer::{Offer, SaveAfterLoss};
pub use phase::Phase;
pub use pin::DeviceChoice;
pub use rank::{LocalRank, Rank, ranks_text};
pub use recorder::{Recorder, Slice, Track};
pub use register_buffers::RegisterBuffers;
pub use reporter::Reporter;
pub use shared_tensor::SharedTensor;
pub use stop::Stop;
pub use watchdog::{Watchdog, WatchdogOptions};
pub use world::{World, mpi_version};
pub use world_options::WorldOptions;
