//! Precision of matmuls.

/// Precision of matmuls with f32 operands. Sums are in f32 in either mode; other dtypes are not affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MatmulMode {
    /// Full f32: 24-bit significands.
    #[default]
    Strict,
    /// TF32: operands rounded to 11-bit significands, on the tensor cores of GPUs since Ampere. The CPU computes in full f32.
    Tf32,
}
