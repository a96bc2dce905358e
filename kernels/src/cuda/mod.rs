//! NVIDIA GPUs: libraries loaded at run time; per device one context, its streams, memory and kernels.
//!
//! Building needs no part of CUDA; a missing library, driver or GPU is an error of the function that needs it. Read the modules in
//! the order below: `library` finds and opens libraries, `module` compiles kernels, `blas` plans matmuls, [`Gpu`] is a device with
//! its streams, and the modules after it allocate its memory and enqueue its work. Copies from and to host memory are a floor
//! above: [`Upload`](crate::Upload), [`PinnedTensor`](crate::PinnedTensor), [`Download`](crate::Download).
//!
//! The driver's primary contexts are global to the process, as is the table of [`Gpu`]s that mirrors them, and page-locked memory that is
//! kept: the only global state of this crate besides the thread pools and the handler of faults in mapped files.
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

// The libraries and the driver.
pub mod library;
mod driver;
mod cublas_lt;
mod nvrtc;
mod info;

// The parts of a device.
mod feature;
pub(crate) mod context;
mod pool;
pub(crate) mod pinned;
mod graphs;

// Kernels and matmuls before they are enqueued.
mod cache;
pub mod record;
pub(crate) mod source;
pub(crate) mod module;
pub(crate) mod blas;

// The device.
mod gpu;
mod device;

// What lives on it.
mod event;
mod slice;
pub(crate) mod memory;
mod mapped;
mod gate;

// Work that is enqueued on it.
pub(crate) mod launch;
pub(crate) mod column_grid;
mod beside;
mod graph;
mod matmul;
mod marks;
pub mod peer;

pub use beside::{Beside, BesideMatmuls};
pub use blas::MatmulChoice;
pub use context::Stream;
pub use device::timed;
pub use driver::{Unavailable, check_driver};
pub use event::{Event, Timer};
pub use feature::GpuFeature;
pub use gate::GateState;
pub use gpu::{DeterministicMode, Gpu, StreamKind};
pub use graph::Graph;
pub use info::{GpuInfo, Link, PeerAccess, Versions, devices, ensure_libraries, peer_matrix, versions};
pub use mapped::Mapped;
pub use marks::{Labels, Marks, Moments, Origin, WAITING};
pub(crate) use memory::{CHUNK_SUM_BYTES, COMMUNICATION_PARTIAL_SUMS, DeviceBuffer, PARTIAL_SUMS};
pub use memory::{FIXED_WORKSPACE_BYTES, ForeignMemory};
pub use module::{CompiledKernel, FilledCache};
pub use slice::{CudaSlice, CudaSliceMut};
