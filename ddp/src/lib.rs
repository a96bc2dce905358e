//! Trains dense networks data parallel: on every GPU of a job, or on the cores of a machine, to the same model.
//!
//! ```
//! use ddp::nn::{GradientSums, LossHead, Sequential, Sizes};
//! use ddp::optim::Optimizer;
//! use ddp::prelude::*;
//!
//! let device = Device::cuda(0).available_or_cpu();
//! let layers = Sequential::new(4).linear(32).relu().linear(1);
//! let mut model = layers.build(Sizes::new(64, device), 0)?;
//! let (mut optimizer, mut grads) = (Optimizer::adamw(&model, 1e-2)?, GradientSums::for_model(&model)?);
//! let x = Tensor::randn(&[64, 4], DType::F32, device, 1)?;
//! let y = x.sum(keepdim(1))?;
//! let first = model.loss((&x, &y), &LossHead::mse())?;
//! for _ in 0..100 {
//!     model.loss_and_gradients((&x, &y), &LossHead::mse(), &mut grads)?;   // several ranks: then grads.all_reduce(&world)?
//!     optimizer.step(&mut model, &mut grads)?;
//! }
//! assert!(model.loss((&x, &y), &LossHead::mse())? < 0.1 * first);
//! # Ok::<(), ddp::Error>(())
//! ```
//!
//! | module | for |
//! |---|---|
//! | [`prelude`] | tensors, devices, the world: `use ddp::prelude::*` |
//! | [`nn`] | layers, models, losses, gradients |
//! | [`optim`] | optimizers and schedules |
//! | [`mod@data`] | rows in memory and their loader; the crate `ddp-tables` reads files of rows and saved models |
//! | [`train`] | the trainer: overlap, ZeRO, checkpoints |
//! | [`distributed`] | ranks and collectives |
//! | [`io`] | tensors in files |
//! | [`ops`], [`memory`] | operations on views; memory in use, by purpose |
//!
#![doc = include_str!("../README.md")]
//!
//! Global state: the umask of a run (`run.file_mode`), the rank, the number of ranks and the share of the cores of a thread or process, whether the output folder is being tried, the thread pool, the table of GPUs, host memory kept for the next result of a
//! tensor operation, with its account, the last known limit on host memory, page-locked memory kept for the next of its size, the handler of faults in mapped files, and the connections by
//! which ranks without MPI end together.
//! The program adds the panic hook and the subscriber of events.

#![forbid(unsafe_code)]

// Modules from bottom to top: each imports only from modules above its line. The hidden ones, and hidden names of the others, are public
// for the crates above, `ddp-tables`, `ddp-launch` and `ddp-train`, which compose the same rooms: they change without notice. What other
// programs need of them is re-exported by a visible module.

pub mod distributed;
pub mod ops;
#[doc(hidden)]
pub mod exit_code;
#[doc(hidden)]
pub mod control_group;
#[doc(hidden)]
pub mod host_memory;
#[doc(hidden)]
pub mod storage;
#[doc(hidden)]
pub mod config;
#[doc(hidden)]
pub mod report;
#[doc(hidden)]
pub mod run_folder;
pub mod data;
#[doc(hidden)]
pub mod model;
pub mod nn;
pub mod optim;
#[doc(hidden)]
pub mod exchange;
#[doc(hidden)]
pub mod checkpoint;
pub mod train;
#[doc(hidden)]
pub mod cost;
#[doc(hidden)]
pub mod error;
pub mod io;

#[doc(hidden)]
pub use ddp_comm as comm;
#[doc(no_inline)]
pub use ddp_comm::launch;
#[doc(hidden)]
pub use ddp_kernels as kernels;
pub use ddp_kernels::hint::with_hint;
pub use ddp_kernels::{DType, Device, KernelError, Tensor, memory};
pub use error::{Error, Result};

/// The examples of the page, as tests.
#[cfg(doctest)]
#[doc = include_str!("../../docs/from-pytorch.md")]
struct FromPyTorch;

/// All that a program on tensors needs, and the world of its ranks: `use ddp::prelude::*;`
///
/// ```
/// use ddp::prelude::*;
/// let device = Device::cuda(0).available_or_cpu();
/// let x = Tensor::randn(&[4, 3], DType::F32, device, 1)?;
/// let w = Tensor::ones(&[3, 2], DType::F32, device)?;
/// let y = (x.matmul(&w)? + 1.0).softmax(1)?;
/// assert!((y.sum(None)?.item::<f32>()? - 4.0).abs() < 1e-5);
/// # Ok::<(), ddp::prelude::KernelError>(())
/// ```
pub mod prelude {
    #[doc(no_inline)]
    pub use ddp_comm::{DeviceOptions, ReduceOp, World};
    pub use ddp_kernels::cpu::threads::join_pool;
    pub use ddp_kernels::cuda::{Event, Gpu, Stream, StreamKind, Timer, peer};
    #[doc(hidden)]
    pub use ddp_kernels::{AsInput, Axes, Axis, HostValue, Input, Scalar};
    pub use ddp_kernels::{
        AsView, Element, IntoDevice, PinnedTensor, Shape, TensorMut, TensorRef, Upload, keepdim, tensor,
        timed,
    };
    #[doc(no_inline)]
    pub use ddp_kernels::{DType, Device, KernelError, Tensor, memory};
    #[doc(no_inline)]
    pub use half::{bf16, f16};

    #[doc(no_inline)]
    pub use crate::io;
}
