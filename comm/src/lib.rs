//! Ranks and collectives.
//!
//! The middle layer of the house: it knows who the ranks of a job are ([`World`]), how they combine their
//! tensors ([`Group`], [`Scope`]), how they make sure that they run the same thing ([`World::agree`]), and how
//! one that fails takes the job with it and says why ([`failure`]). It knows no models and no files.
//!
//! A rank is a process started by an MPI launcher, a thread of this process ([`threads::run`]), or this process
//! alone. Each may have a GPU of its own, and then their tensors go from GPU to GPU ([`World::connect_device`],
//! [`peer::copy`]). The same code runs on all of them:
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
mod device;
mod error;
pub mod failure;
mod group;
mod launcher;
pub mod peer;
mod pin;
mod stop;
mod world;

pub use call::{Call, CallKind, ReduceOp};
pub use device::{DeviceOptions, nccl_version};
pub use error::{CommError, Departure, Result};
pub use failure::{Failure, Voice};
pub use group::threads;
pub use group::{Group, OnLoan, Scope, Ticket, Traffic};
pub use launcher::Launcher;
pub use peer::SharedTensor;
pub use pin::DeviceChoice;
pub use stop::Stop;
pub use world::{LocalRank, Rank, World, WorldOptions};
