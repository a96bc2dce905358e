//! Tensors and views on either device, copies between host and device, and figures of memory in use.

pub(crate) mod view;
pub(crate) mod tensor;

pub mod memory;
pub(crate) mod pinned_tensor;
pub(crate) mod shared_buffer;
pub(crate) mod host_copies;
