//! The ground that all other modules stand on: dtypes, shapes, device names, errors, operand checks, random numbers and host
//! memory.

mod named;
pub(crate) mod device;
pub mod hint;
pub(crate) mod matmul_mode;
pub(crate) mod memory_use;
pub(crate) mod permutation;
pub(crate) mod rng;
pub(crate) mod shape;

pub(crate) mod dtype;

pub(crate) mod error;

pub(crate) mod check;
pub(crate) mod device_names;
pub(crate) mod host_buffer;
