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
pub(crate) mod context;
mod cublas_lt;
mod device;
mod driver;
mod event;
mod foreign_memory;
mod functions;
mod gpu;
mod graph;
mod graphs;
mod info;
pub(crate) mod launch;
pub mod library;
mod mapped;
mod matmul;
pub(crate) mod memory;
pub(crate) mod module;
mod nvrtc;
pub mod peer;
pub(crate) mod pinned;
mod pool;
mod scratch;
mod slice;
pub(crate) mod source;
mod stream;
mod unused;

pub use blas::MatmulChoice;
pub use call::check_driver;
pub use device::timed;
pub use driver::Unavailable;
pub use event::{Event, Timer};
pub use foreign_memory::ForeignMemory;
pub use gpu::{Gpu, StreamKind};
pub use graph::Graph;
pub use info::{GpuInfo, Link, PeerAccess, Versions, devices, ensure_libraries, peer_matrix, versions};
pub use mapped::Mapped;
pub(crate) use memory::DeviceBuffer;
pub use module::{CompiledKernel, FilledCache};
pub use scratch::FIXED_WORKSPACE_BYTES;
pub(crate) use scratch::{COMMUNICATION_PARTIAL_SUMS, PARTIAL_SUMS};
pub use slice::{CudaSlice, CudaSliceMut};
pub use stream::Stream;
