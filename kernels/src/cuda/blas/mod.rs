//! Matmuls by cuBLASLt with fused epilogues: one plan per shape, created once.
//!
//! A plan holds the descriptors, the layouts and an algorithm; it is cached under a key of everything that it depends on, so each
//! matmul of a step costs one call. The algorithm is the one that cuBLASLt's heuristic ranks first, unless another was chosen by
//! time (`choice.rs`, and `timing.rs` of `matmul/`). If the heuristic has no algorithm with the requested epilogue, the plan records that and the
//! caller runs the parts one by one.
//!
//! cuBLASLt is column-major. A row-major `[R, C]` is the column-major `[C, R]` of the same bytes, so `C = A·B` is computed as
//! `Cᵀ = Bᵀ·Aᵀ`: operands swap places and nothing is transposed.
//!
//! Source: cuBLAS documentation, "Using the cuBLASLt API", cublasLtEpilogue_t, cublasLtMatmulDescAttributes_t.

pub(super) mod problem;
pub(super) mod choice;
mod plan;
mod handle;

pub use choice::MatmulChoice;
pub(super) use choice::{Choice, Subject};
pub(super) use handle::{Blas, is_unsupported};
pub(super) use plan::{Plan, WORKSPACE_BYTES};
pub(super) use problem::{Conditions, Key};
pub(crate) use problem::{Epilogue, MAX_ALIGNMENT, Matmul, Operands, Scales, relu_mask_row_bits};
