//! Building blocks of the operations on the CPU: vector dispatch, elementary functions, GEMM, transposition, copies, threads,
//! sets of CPUs, mapped files and caught panics.
//!
//! The speed of training steps on the CPU has four sources:
//! - matmuls keep their sums in vector registers and their operands in cache (`gemm/`), and the layer's bias and activation follow while a
//!   part of the result is in cache (`ops/matmul/linear/cpu.rs`);
//! - loops are compiled for the widest vectors and dispatched at run time (`simd.rs`). Code in a closure of `vectorize` must be
//!   inlined there: plain loops are, iterator adapters over arrays not always;
//! - elementary functions have no branches (`math.rs`);
//! - processes of one host reduce through memory that they share (crate `ddp-comm`).
//!
//! ```
//! use ddp_kernels::cpu::cpu_set::CpuSet;
//! use ddp_kernels::cpu::threads::{current, join_pool};
//!
//! let near = CpuSet::parse("0-3,8").expect("the kernel's form of a list");
//! assert!(near.contains(8) && near.len() == 5);
//!
//! join_pool(2)?;
//! assert_eq!(current(), 2);
//! # Ok::<(), ddp_kernels::KernelError>(())
//! ```

// The processor: vectors, threads, memory.
pub mod caught_panic;
pub mod cpu_set;
pub mod heap;
pub mod mapped_file;
pub(crate) mod simd;
pub mod row_copy;
pub mod start_thread;
pub mod threads;

// Numbers.
mod gemm_fn;
#[cfg(target_arch = "x86_64")]
mod lanes;
mod math;
pub(crate) mod float;
pub(crate) mod cell;
pub(crate) mod stored;

// Whole tensors.
pub(crate) mod copy;
pub(crate) mod transpose;
pub(crate) mod gemm;

pub(crate) use float::Float;
pub use simd::{vector_instructions, vectorize};
pub(crate) use stored::Stored;
pub use transpose::columns_to_rows;
