//! NVIDIA GPUs: libraries loaded at run time; per device one context, its streams, memory and kernels.
//!
//! Building needs no part of CUDA; a missing library, driver or GPU is an error of the function that needs it. Reading order:
//! `library` (finds and opens libraries), `driver`, `gpu` (one device with its streams), `memory`, `module` and `launch`
//! (kernels), `blas` (matmuls), `graph` (a step captured once and replayed), `upload`, `pinned_tensor` and `download` (pinned
//! copies), `peer` (copies between GPUs).
//!
//! The driver's primary contexts are global to the process, as is the table of [`Gpu`]s that mirrors them: the only global
//! state of this crate besides the thread pools and the handler of faults in mapped files.
//!
//! ```
//! use ddp_kernels::cuda::{self, Gpu};
//!
//! match cuda::devices() {
//!     Ok(gpus) => {
//!         for info in gpus {
//!             println!("{}: {}", info.index, info.name);
//!         }
//!         Gpu::get(0)?.synchronize()?;
//!     }
//!     // Names the library or driver that is missing, and what to install.
//!     Err(unavailable) => println!("{}\nhint: {}", unavailable.reason, unavailable.hint),
//! }
//! # Ok::<(), ddp_kernels::KernelError>(())
//! ```

pub(crate) mod blas;
mod cache;
mod call;
mod cublas_lt;
mod download;
mod driver;
mod foreign_memory;
mod functions;
mod gpu;
mod graph;
mod info;
pub(crate) mod launch;
pub mod library;
mod mapped;
mod memory;
mod module;
mod nvrtc;
pub mod peer;
mod pinned_tensor;
mod slice;
mod stream;
mod upload;

pub use blas::MatmulChoice;
pub use call::check_driver;
pub use download::Download;
pub use driver::Unavailable;
pub use foreign_memory::ForeignMemory;
pub(crate) use gpu::{COMMUNICATION_PARTIAL_SUMS, PARTIAL_SUMS};
pub use gpu::{FIXED_WORKSPACE_BYTES, Gpu, StreamKind};
pub use graph::Graph;
pub use info::{GpuInfo, Link, PeerAccess, Versions, devices, ensure_libraries, peer_matrix, versions};
pub use mapped::Mapped;
pub(crate) use memory::DeviceBuffer;
pub use memory::{MemoryInUse, MemoryUse, SharedBuffer};
pub use module::{CompiledKernel, FilledCache, compile_all, fill_cache, kernel_sources};
pub use pinned_tensor::PinnedTensor;
pub use slice::{CudaSlice, CudaSliceMut};
pub use stream::{Event, Stream, Timer};
pub use upload::Upload;
