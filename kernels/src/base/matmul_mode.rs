//! Precision of matmuls.

/// Precision of matmuls with f32 operands. Sums are in f32 in each mode; other dtypes are not affected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MatmulMode {
    /// Full f32: 24-bit significands.
    #[default]
    Strict,
    /// TF32: operands rounded to 11-bit significands, on the tensor cores of GPUs since Ampere. The CPU computes in full f32.
    Tf32,
    /// Near f32 on the same tensor cores: each operand is the sum of two TF32 numbers, of whose products three are summed. Only layers
    /// have the scratch memory for it; other matmuls are in full f32, as all are on the CPU and on GPUs before Ampere.
    F32x3,
}

impl MatmulMode {
    /// All modes.
    pub(crate) const ALL: [MatmulMode; 3] = [MatmulMode::Strict, MatmulMode::Tf32, MatmulMode::F32x3];

    /// The mode of operands that are not split.
    pub(crate) fn of_whole_factors(self) -> Self {
        if self == MatmulMode::F32x3 { MatmulMode::Strict } else { self }
    }

    /// Its name after a dtype in reports, with a space before it; empty for full f32.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            MatmulMode::Strict => "",
            MatmulMode::Tf32 => " tf32",
            MatmulMode::F32x3 => " f32x3",
        }
    }
}
