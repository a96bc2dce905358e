//! A matmul: its shape, formats, factors and operands.

use cudarc::driver::sys::CUdeviceptr;

use super::epilogue::Epilogue;
use crate::DType;
use crate::base::matmul_mode::MatmulMode;

/// `C[M, N] = alpha · op(A)[M, K] · op(B)[K, N] + beta · C`, all row-major and contiguous: once, or for each matrix of a
/// contiguous batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Matmul {
    /// Number of products.
    pub(crate) batch: usize,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) transpose_a: bool,
    pub(crate) transpose_b: bool,
    /// Dtype of A and B.
    pub(crate) inputs: DType,
    pub(crate) output: DType,
    pub(crate) mode: MatmulMode,
    pub(crate) epilogue: Epilogue,
}

impl Matmul {
    /// Whether cuBLASLt may be asked for this epilogue in this shape. It supports the values before a GELU only in rows of multiples
    /// of 8. For products of vectors, such as the gradients of a single target or of a batch of one row, it has no derivatives of
    /// activations, and gradients of a bias that cannot be relied on: nvmath-python excludes both.
    pub(in crate::cuda) fn may_be_fused(&self) -> bool {
        let has_aux_rows = self.epilogue.aux_row(self.n).is_none_or(|row| row.is_multiple_of(8));
        let is_defined = match self.epilogue {
            Epilogue::DRelu | Epilogue::DGelu => self.k > 1,
            Epilogue::BiasGradient => ![self.m, self.n, self.k].contains(&1),
            _ => true,
        };
        has_aux_rows && is_defined
    }
}

/// Factors of a matmul's result and of the previous contents of C.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scales {
    pub(crate) alpha: f64,
    pub(crate) beta: f64,
}

impl Scales {
    /// `C = op(A) · op(B)`; C is not read.
    pub(crate) fn overwrite() -> Self {
        Scales { alpha: 1.0, beta: 0.0 }
    }
}

/// Addresses of a matmul's operands.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Operands {
    pub(crate) a: CUdeviceptr,
    pub(crate) b: CUdeviceptr,
    pub(crate) c: CUdeviceptr,
    /// Bias of the epilogue, read or written; 0 for none.
    pub(crate) bias: CUdeviceptr,
    /// Aux of the epilogue, read or written; 0 for none.
    pub(crate) aux: CUdeviceptr,
}
