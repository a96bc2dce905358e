//! NVIDIA GPUs: libraries found at run time, one context a device, its streams, its memory, its kernels.
//!
//! Nothing of CUDA is needed to build, and where a library, the driver or a GPU is missing every function here says so
//! as an error. Reading order: `library` (what is opened, and where it was looked for), `driver` (is there a GPU at
//! all), `gpu` (one device with its streams), `memory`, `module` and `launch` (own kernels), `blas` (matrix products),
//! `graph` (a step captured once and replayed), `upload`, `pinned_tensor` and `download` (pinned copies), `peer` (between
//! GPUs).
//!
//! The driver's primary contexts are global to the process, and so is the table of [`Gpu`]s that mirrors them: the only
//! global state of this crate beside the thread pools and what catches faults in mapped files.

pub(crate) mod blas;
mod cache;
mod call;
mod download;
mod driver;
mod gpu;
mod graph;
mod info;
pub(crate) mod launch;
pub mod library;
mod memory;
mod module;
mod nvrtc;
pub mod peer;
mod pinned_tensor;
mod slice;
mod stream;
mod upload;

pub use call::check_driver;
pub use download::Download;
pub use driver::Unavailable;
pub(crate) use gpu::PARTIAL_SUMS;
pub use gpu::{FIXED_WORKSPACE_BYTES, Gpu, StreamKind};
pub use graph::Graph;
pub use info::{GpuInfo, Link, PeerAccess, Versions, devices, peer_matrix, versions};
pub(crate) use memory::DeviceBuffer;
pub use memory::{MemoryInUse, MemoryUse, SharedBuffer};
pub use module::{CompiledKernel, compile_all, kernel_sources};
pub use pinned_tensor::PinnedTensor;
pub use slice::{CudaSlice, CudaSliceMut};
pub use stream::{Event, Stream, Timer};
pub use upload::Upload;
