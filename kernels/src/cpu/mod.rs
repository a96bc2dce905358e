//! Building blocks of the operations on the CPU: vector dispatch, elementary functions, GEMM, transposition, copies, threads
//! and mapped files.

pub(crate) mod copy;
pub(crate) mod float;
pub(crate) mod gemm;
pub mod mapped_file;
mod math;
pub mod row_copy;
pub(crate) mod simd;
pub(crate) mod stored;
pub mod threads;
pub(crate) mod transpose;

pub(crate) use float::Float;
pub(crate) use stored::Stored;
