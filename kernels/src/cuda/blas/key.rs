//! Everything that the choice of an algorithm depends on, the key of plans and choices.

use cudarc::driver::sys::CUdeviceptr;

use super::problem::{Matmul, Operands};
use crate::DType;

/// Largest alignment in bytes that makes a difference.
pub(crate) const MAX_ALIGNMENT: usize = 256;

/// Everything that the choice of an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::cuda) struct Key {
    pub(in crate::cuda) matmul: Matmul,
    pub(in crate::cuda) aligned_to: AlignedTo,
    pub(in crate::cuda) conditions: Conditions,
}

/// State of the device when the matmul was enqueued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(in crate::cuda) struct Conditions {
    /// [`Gpu::is_deterministic`](crate::cuda::Gpu::is_deterministic).
    pub(in crate::cuda) is_deterministic: bool,
    /// Multiprocessors that are free for the matmul, where collectives hold some; else 0.
    pub(in crate::cuda) n_free: u32,
}

/// Alignments of a matmul's operands in bytes: powers of two, at most 256; 256 for an operand that is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::cuda) struct AlignedTo {
    pub(in crate::cuda) a: u32,
    pub(in crate::cuda) b: u32,
    pub(in crate::cuda) c: u32,
    pub(in crate::cuda) bias: u32,
    pub(in crate::cuda) aux: u32,
}

impl Key {
    pub(in crate::cuda) fn new(matmul: Matmul, operands: Operands, conditions: Conditions) -> Self {
        let of = |address: CUdeviceptr| match address {
            0 => MAX_ALIGNMENT as u32,
            _ => 1 << address.trailing_zeros().min(MAX_ALIGNMENT.trailing_zeros()),
        };
        let Operands { a, b, c, bias, aux } = operands;
        // Every matrix of a batch is aligned to the smaller of the alignments of the first matrix and of the distance between them.
        let Matmul { batch, m, n, k, inputs, output, .. } = matmul;
        let each = |address: CUdeviceptr, numel: usize, dtype: DType| match batch {
            2.. => of(address | (numel * dtype.size_bytes()) as CUdeviceptr),
            _ => of(address),
        };
        let (a, b, c) = (each(a, m * k, inputs), each(b, k * n, inputs), each(c, m * n, output));
        let aligned_to = AlignedTo { a, b, c, bias: of(bias), aux: of(aux) };
        Key { matmul, aligned_to, conditions }
    }
}
