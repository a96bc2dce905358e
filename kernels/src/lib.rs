//! Devices, tensors and the operations of dense networks.
//!
//! The lowest layer: it knows no ranks, no command line and no config. A [`Tensor`] lives on one [`Device`]; operations
//! ([`ops`]) take views, check device, dtype and shape once, and write into memory that the caller owns, so that a training
//! step allocates nothing. The CPU implementation of an operation defines it.
//!
//! Closed sets (device, dtype, activation) are enums.
//!
//! ```
//! use ddp_kernels::{DType, Device, Tensor};
//!
//! let x = Tensor::arange(4, DType::F32, Device::Cpu)?.into_shape(&[2, 2])?;
//! let y = x.matmul(&x.t()?)?;
//! assert_eq!(y.to_vec::<f32>()?, [1.0, 3.0, 3.0, 13.0]);
//! # Ok::<(), ddp_kernels::KernelError>(())
//! ```

pub mod cpu;
pub mod cuda;
mod device;
mod dtype;
mod error;
mod host_buffer;
pub mod memory;
pub mod ops;
mod permutation;
mod rng;
pub mod shape;
mod tensor;
mod timing;
mod view;

pub use cuda::{MemoryInUse, MemoryUse};
pub use device::{Device, DeviceRequest, OTHER_DEVICES};
pub use dtype::{DType, Element, HostValue};
pub use error::{KernelError, Operand, Result};
pub use ops::{Input, Scalar};
pub use permutation::KeyedPermutation;
pub use rng::Philox;
pub use shape::Shape;
pub use tensor::Tensor;
pub use timing::timed;
pub use view::{TensorMut, TensorRef};
