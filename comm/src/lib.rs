//! Ranks and collectives.
//!
//! The middle layer of the workspace. It knows who the ranks of a job are ([`World`]), combines their tensors ([`Group`],
//! [`Scope`]), checks that all ranks run the same program ([`World::agree`]), ends the job if one of them fails
//! ([`failure`]), and notices one that is lost ([`watchdog`]). It knows no models, no config keys, no flags and no files.
//!
//! A rank is a process started by an MPI launcher, a thread of this process ([`threads::run`]), or this process alone. Each
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

mod agree;
mod call;
pub mod cores;
mod device;
mod end_job;
mod error;
pub mod failure;
mod fnv1a;
mod group;
mod launch;
mod launcher;
pub mod peer;
mod pin;
mod progress;
mod rank;
mod registration;
mod reporter;
mod shared_tensor;
mod stop;
pub mod threads;
pub mod watchdog;
mod world;
mod world_options;

pub use call::{Call, CallKind, ReduceOp};
pub use device::{DeviceOptions, RegisterBuffers, nccl_version};
pub use error::{CommError, Departure, Result};
pub use failure::Failure;
pub use group::{Group, NCCL_MEMORY_STEP_BYTES, OnLoan, Scope, Ticket, Traffic};
pub use launch::launch;
pub use launcher::Launcher;
pub use pin::DeviceChoice;
pub use progress::Phase;
pub use rank::{LocalRank, Rank};
pub use reporter::Reporter;
pub use shared_tensor::SharedTensor;
pub use stop::Stop;
pub use watchdog::{Watchdog, WatchdogOptions};
pub use world::World;
pub use world_options::WorldOptions;
