//! Devices, tensors and the operations of dense networks.
//!
//! The lowest layer: it knows no ranks, no command line and no config. A [`Tensor`] lives on one [`Device`]; operations
//! ([`ops`]) take views, check device, dtype and shape once, and write into memory that the caller owns, so that a training
//! step allocates nothing. The CPU implementation of an operation defines it.
//!
//! Closed sets (device, dtype, activation) are enums. A module imports only from modules that are declared above it, here and in
//! every `mod.rs`.
//!
//! ```
//! use ddp_kernels::{DType, Device, Tensor};
//!
//! let x = Tensor::arange(4, DType::F32, Device::Cpu)?.into_shape(&[2, 2])?;
//! let y = x.matmul(&x.t()?)?;
//! assert_eq!(y.to_vec::<f32>()?, [1.0, 3.0, 3.0, 13.0]);
//! # Ok::<(), ddp_kernels::KernelError>(())
//! ```

mod base;

#[doc(hidden)]
pub mod cpu;

#[doc(hidden)]
pub mod cuda;

mod storage;

#[doc(hidden)]
pub mod ops;

mod tensor;

pub use base::device::{Device, DeviceRequest};
pub use base::device_names::IntoDevice;
pub use base::dtype::{DType, Element, HostValue};
pub use base::error::{KernelError, Operand, Result};
pub use base::memory_use::{MemoryInUse, MemoryUse};
pub use base::shape::{BadShape, Shape};
pub use cuda::timed;
#[cfg(feature = "dlpack")]
pub use dlpark;
pub use ops::{AsInput, Input, Scalar};
pub use storage::host_copies::{Download, Upload};
pub use storage::memory;
pub use storage::pinned_tensor::PinnedTensor;
pub use storage::tensor::Tensor;
pub use storage::view::{AsView, TensorMut, TensorRef};
pub use tensor::axes::{Axes, Axis, keepdim};
pub use tensor::create::{Literal, Span};
pub use tensor::rows::PartSizes;
pub use tensor::slice::{Slice, Slices};

// For the crates above.
#[doc(hidden)]
pub use self::{
    base::device_names::OTHER_DEVICES, base::hint, base::permutation::KeyedPermutation, base::rng::Philox,
    base::shape::MAX_DIMS, storage::shared_buffer::SharedBuffer,
};
