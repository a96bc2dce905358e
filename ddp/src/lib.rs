#![doc = include_str!("../README.md")]
//!
//! ## Modules
//!
//! A program needs the [`prelude`] and the modules [`nn`], [`optim`], [`mod@data`], [`train`] and [`distributed`]. All modules of
//! the crate, from top to bottom (each imports only from modules below it):
//!
//! [`train`] -> [`predict`] -> [`checkpoint`] -> [`exchange`] -> [`optim`] -> `export` (feature `onnx`) -> [`nn`] -> [`model`] ->
//! [`mod@data`] -> [`report`] -> [`run_folder`] -> [`config`] -> [`storage`]. Above them all: [`error`], the union of the modules'
//! errors; below them all: [`exit_code`], the table of exit statuses. The program `ddp-train` is the crate in `ddp/cli`.
//!
//! Global state: the umask of a run (`run.file_mode`), the thread pool, the table of GPUs, host memory kept for the next result of a
//! tensor operation, with its account, page-locked memory kept for the next of its size, the handler of faults in mapped files, and the connections by
//! which ranks without MPI end together.
//! The program adds the panic hook and the subscriber of events.

#![forbid(unsafe_code)]

pub mod distributed;
pub mod exit_code;
pub mod control_group;
pub mod host_memory;
pub mod storage;
pub mod config;
pub mod report;
pub mod run_folder;
pub mod data;
pub mod model;
pub mod nn;
#[cfg(feature = "onnx")]
pub mod export;
pub mod optim;
pub mod exchange;
pub mod checkpoint;
pub mod predict;
pub mod train;
pub mod error;

pub use data::tensor_io as io;
/// Ranks and collectives: the crate, whole.
pub use ddp_comm as comm;
pub use ddp_comm::launch;
/// Devices, tensors and operations: the crate, whole.
pub use ddp_kernels as kernels;
pub use ddp_kernels::{DType, Device, KernelError, Tensor, memory, ops};
/// Files of rows: the crate, whole.
pub use ddp_rows as rows;
pub use error::{Error, Result};
pub use predict::Predictor;

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

    pub use crate::io;
}
