//! Ranks and what they exchange: the names of `ddp_comm` that a program needs.
//!
//! ```
//! use ddp::distributed::{self, ReduceOp};
//! use ddp::prelude::*;
//!
//! let sums = distributed::launch(2, |world| -> ddp::Result<f32> {
//!     let mut x = Tensor::ones(&[2], DType::F32, Device::Cpu)?;
//!     world.tensor_group().all_reduce(ReduceOp::Sum, x.view_mut())?;
//!     Ok(x.sum(None)?.item()?)
//! })?;
//! assert_eq!(sums, [4.0, 4.0]);
//! # Ok::<(), ddp::Error>(())
//! ```
//!
//! Source: `torch.distributed`.

#[doc(hidden)]
pub use ddp_comm::LocalRank;
pub use ddp_comm::{CommError, DeviceOptions, Group, Rank, ReduceOp, World, launch, threads};

/// The end of a job of which a rank fails.
pub mod failure {
    pub use ddp_comm::failure::install_panic_hook;
}
