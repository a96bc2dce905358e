#![doc = include_str!("../README.md")]
//!
//! ## Modules
//!
//! A program needs the [`prelude`] and the modules [`nn`], [`optim`], [`mod@data`], [`train`] and [`distributed`]; the crate
//! `ddp-tables` reads files of rows and saved models, writes predictions and exports models.
//!
//! Global state: the umask of a run (`run.file_mode`), the rank and the share of the cores of a thread or process, the thread pool, the table of GPUs, host memory kept for the next result of a
//! tensor operation, with its account, page-locked memory kept for the next of its size, the handler of faults in mapped files, and the connections by
//! which ranks without MPI end together.
//! The program adds the panic hook and the subscriber of events.

#![forbid(unsafe_code)]

// Modules from bottom to top: each imports only from modules above its line. The hidden ones, and hidden names of the others, are public
// for the crates above, `ddp-tables`, `ddp-launch` and `ddp-train`, which compose the same rooms: they change without notice. What other
// programs need of them is re-exported by a visible module.

pub mod distributed;
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

/// Ranks and collectives: the crate, whole.
pub use ddp_comm as comm;
pub use ddp_comm::launch;
/// Devices, tensors and operations: the crate, whole.
pub use ddp_kernels as kernels;
pub use ddp_kernels::{DType, Device, KernelError, Tensor, memory, ops};
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
    pub use ddp_comm::{DeviceOptions, ReduceOp, World};
    pub use ddp_kernels::cpu::threads::join_pool;
    pub use ddp_kernels::cuda::{Event, Gpu, Stream, StreamKind, Timer, peer};
    pub use ddp_kernels::{
        AsInput, AsView, Axes, Axis, DType, Device, Element, HostValue, Input, IntoDevice, KernelError,
        PinnedTensor, Scalar, Shape, Tensor, TensorMut, TensorRef, Upload, keepdim, memory, tensor, timed,
    };
    pub use half::{bf16, f16};
}
