//! A matmul: its shape, formats, factors and operands, the operation fused with it, and the key of its plan.

use cudarc::cublaslt::sys;
use cudarc::driver::sys::CUdeviceptr;

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
    /// activations, and gradients of a bias that cannot be relied on: nvmath-python excludes both. The gradient of a bias has the format
    /// of the result. Its GELU takes tanh from the hardware's approximation (1e-5 beside f32 on an H100): too coarse where the factors
    /// are not rounded. The rows of split factors have no sum that is the gradient of a bias.
    pub(in crate::cuda) fn may_be_fused(&self) -> bool {
        let has_aux_rows = self.epilogue.aux_row(self.n).is_none_or(|row| row.is_multiple_of(8));
        let is_defined = match self.epilogue {
            Epilogue::DRelu | Epilogue::DGelu => self.k > 1,
            epilogue if epilogue.writes_bias() => ![self.m, self.n, self.k].contains(&1),
            _ => true,
        };
        let is_gelu = matches!(
            self.epilogue,
            Epilogue::GeluBias | Epilogue::GeluAuxBias | Epilogue::DGelu | Epilogue::DGeluBiasGradient
        );
        let has_whole_factors =
            matches!(self.inputs, DType::F32 | DType::F64) && self.mode != MatmulMode::Tf32;
        let sums_parts = self.epilogue == Epilogue::BiasGradient && self.mode == MatmulMode::F32x3;
        has_aux_rows && is_defined && !(is_gelu && has_whole_factors) && !sums_parts
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

/// Bits of a row of the ReLU mask, in multiples of this.
const RELU_MASK_ALIGN_BITS: usize = 128;

/// Operation fused with a matmul.
///
/// Source: cuBLAS documentation, cublasLtEpilogue_t.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Epilogue {
    /// Nothing.
    None,
    /// `+ bias`, one per column of C.
    Bias,
    /// `max(· + bias, 0)`.
    ReluBias,
    /// The same, and the bit mask of positive values to `aux`: rows of [`relu_mask_row_bits`].
    ReluAuxBias,
    /// `max(·, 0)` and its mask.
    ReluAux,
    /// GELU by tanh of `· + bias`.
    GeluBias,
    /// The same, and `· + bias` itself to `aux`, as large as C.
    GeluAuxBias,
    /// Times the derivative of ReLU, from the mask in `aux`.
    DRelu,
    /// Times the derivative of GELU by tanh at the values in `aux`.
    DGelu,
    /// The same as [`Epilogue::DRelu`], and the column sums of C to `bias`: the gradient of the bias before the ReLU.
    DReluBiasGradient,
    /// The same as [`Epilogue::DGelu`], and the column sums of C to `bias`.
    DGeluBiasGradient,
    /// The column sums of `op(A)ᵀ`, that is, of A if it is transposed, to `bias`: the gradient of a layer's bias if A is the
    /// gradient of its output.
    BiasGradient,
}

impl Epilogue {
    pub(in crate::cuda) const ALL: [Epilogue; 12] = [
        Epilogue::None,
        Epilogue::Bias,
        Epilogue::ReluBias,
        Epilogue::ReluAuxBias,
        Epilogue::ReluAux,
        Epilogue::GeluBias,
        Epilogue::GeluAuxBias,
        Epilogue::DRelu,
        Epilogue::DGelu,
        Epilogue::DReluBiasGradient,
        Epilogue::DGeluBiasGradient,
        Epilogue::BiasGradient,
    ];

    /// The epilogues with which an operation can run that asks for this one, the rest of it in parts: from everything fused to
    /// nothing. A derivative with the gradient of a bias is not the first one: it is for those to whom it was measured to be faster.
    pub(crate) fn forms(self) -> &'static [Epilogue] {
        match self {
            Epilogue::None => &[Epilogue::None],
            Epilogue::Bias => &[Epilogue::Bias, Epilogue::None],
            Epilogue::ReluBias => &[Epilogue::ReluBias, Epilogue::Bias, Epilogue::None],
            Epilogue::ReluAuxBias => {
                &[Epilogue::ReluAuxBias, Epilogue::ReluBias, Epilogue::Bias, Epilogue::None]
            }
            Epilogue::ReluAux => &[Epilogue::ReluAux, Epilogue::None],
            Epilogue::GeluBias => &[Epilogue::GeluBias, Epilogue::Bias, Epilogue::None],
            Epilogue::GeluAuxBias => &[Epilogue::GeluAuxBias, Epilogue::Bias, Epilogue::None],
            Epilogue::DRelu => &[Epilogue::DRelu, Epilogue::None],
            Epilogue::DGelu => &[Epilogue::DGelu, Epilogue::None],
            Epilogue::DReluBiasGradient => &[Epilogue::DRelu, Epilogue::DReluBiasGradient, Epilogue::None],
            Epilogue::DGeluBiasGradient => &[Epilogue::DGelu, Epilogue::DGeluBiasGradient, Epilogue::None],
            Epilogue::BiasGradient => &[Epilogue::BiasGradient, Epilogue::None],
        }
    }

    pub(in crate::cuda) fn raw(self) -> sys::cublasLtEpilogue_t {
        use sys::cublasLtEpilogue_t as E;
        match self {
            Epilogue::None => E::CUBLASLT_EPILOGUE_DEFAULT,
            Epilogue::Bias => E::CUBLASLT_EPILOGUE_BIAS,
            Epilogue::ReluBias => E::CUBLASLT_EPILOGUE_RELU_BIAS,
            Epilogue::ReluAuxBias => E::CUBLASLT_EPILOGUE_RELU_AUX_BIAS,
            Epilogue::ReluAux => E::CUBLASLT_EPILOGUE_RELU_AUX,
            Epilogue::GeluBias => E::CUBLASLT_EPILOGUE_GELU_BIAS,
            Epilogue::GeluAuxBias => E::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
            Epilogue::DRelu => E::CUBLASLT_EPILOGUE_DRELU,
            Epilogue::DGelu => E::CUBLASLT_EPILOGUE_DGELU,
            Epilogue::DReluBiasGradient => E::CUBLASLT_EPILOGUE_DRELU_BGRAD,
            Epilogue::DGeluBiasGradient => E::CUBLASLT_EPILOGUE_DGELU_BGRAD,
            // Our A is cuBLASLt's B.
            Epilogue::BiasGradient => E::CUBLASLT_EPILOGUE_BGRADB,
        }
    }

    pub(crate) fn takes_bias(self) -> bool {
        !matches!(self, Epilogue::None | Epilogue::ReluAux | Epilogue::DRelu | Epilogue::DGelu)
    }

    /// Whether `bias` receives the gradient of one.
    pub(in crate::cuda) fn writes_bias(self) -> bool {
        matches!(self, Epilogue::BiasGradient | Epilogue::DReluBiasGradient | Epilogue::DGeluBiasGradient)
    }

    pub(in crate::cuda) fn writes_aux(self) -> bool {
        matches!(self, Epilogue::ReluAuxBias | Epilogue::ReluAux | Epilogue::GeluAuxBias)
    }

    /// Bytes of `aux` for a C of `m` rows and `n` columns of this dtype.
    pub(in crate::cuda) fn aux_bytes(self, m: usize, n: usize, output: DType) -> usize {
        let row = self.aux_row(n).unwrap_or(0);
        match self {
            Epilogue::GeluAuxBias | Epilogue::DGelu | Epilogue::DGeluBiasGradient => {
                m * row * output.size_bytes()
            }
            _ => m * row / 8,
        }
    }

    /// Elements of a row of `aux` for a C of `n` columns; None without `aux`.
    pub(in crate::cuda) fn aux_row(self, n: usize) -> Option<usize> {
        match self {
            Epilogue::ReluAuxBias | Epilogue::ReluAux | Epilogue::DRelu | Epilogue::DReluBiasGradient => {
                Some(relu_mask_row_bits(n))
            }
            Epilogue::GeluAuxBias | Epilogue::DGelu | Epilogue::DGeluBiasGradient => Some(n),
            _ => None,
        }
    }
}

/// Bits of a row of the ReLU mask of a matrix with `n` columns.
pub(crate) fn relu_mask_row_bits(n: usize) -> usize {
    n.next_multiple_of(RELU_MASK_ALIGN_BITS)
}

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

/// The alignment in bytes of a matrix whose columns cuBLASLt can sum, and of the sums. It offers algorithms for less, of which
/// some read 16 bytes at once: "misaligned address" on an H100 with cuBLASLt 13.1.
const BIAS_GRADIENT_ALIGNMENT: u32 = 16;

impl Key {
    /// Whether cuBLASLt may be asked: see [`Matmul::may_be_fused`].
    pub(in crate::cuda) fn may_be_fused(&self) -> bool {
        let AlignedTo { a, c, bias, .. } = self.aligned_to;
        let epilogue = self.matmul.epilogue;
        let summed = if epilogue == Epilogue::BiasGradient { a } else { c };
        self.matmul.may_be_fused() && !(epilogue.writes_bias() && summed.min(bias) < BIAS_GRADIENT_ALIGNMENT)
    }

    /// Alignment in bytes of the operand that is aligned to least.
    pub(in crate::cuda) fn least_alignment(&self) -> u32 {
        let AlignedTo { a, b, c, bias, aux } = self.aligned_to;
        a.min(b).min(c).min(bias).min(aux)
    }

    /// The key under which the place of a step's update is chosen: for steps of at most `rows` rows a pass that update `n_weights`.
    pub(in crate::cuda) fn for_update(rows: usize, n_weights: usize) -> Self {
        let matmul = Matmul {
            batch: 1,
            m: rows,
            n: n_weights,
            k: 1,
            transpose_a: false,
            transpose_b: false,
            inputs: DType::F32,
            output: DType::F32,
            mode: MatmulMode::Strict,
            epilogue: Epilogue::None,
        };
        let operands = Operands { a: 0, b: 0, c: 0, bias: 0, aux: 0 };
        Key::new(matmul, operands, Conditions::default())
    }

    /// The key of a matmul with these operands.
    ///
    /// In the deterministic mode a matrix counts as aligned to its rows at most: rows of a batch begin anywhere in it, at addresses that
    /// depend on how many ranks share the batch, and another alignment can mean another order of sums.
    pub(in crate::cuda) fn new(matmul: Matmul, operands: Operands, conditions: Conditions) -> Self {
        let of = |address: CUdeviceptr| match address {
            0 => MAX_ALIGNMENT as u32,
            _ => 1 << address.trailing_zeros().min(MAX_ALIGNMENT.trailing_zeros()),
        };
        let Operands { a, b, c, bias, aux } = operands;
        // Every matrix of a batch is aligned to the smaller of the alignments of the first matrix and of the distance between them.
        let Matmul { batch, m, n, k, transpose_a, transpose_b, inputs, output, .. } = matmul;
        let each = |address: CUdeviceptr, (rows, cols): (usize, usize), dtype: DType| {
            let row_bytes = (cols * dtype.size_bytes()) as CUdeviceptr;
            let distance = if batch > 1 { rows as CUdeviceptr * row_bytes } else { 0 };
            of(address | distance | if conditions.is_deterministic { row_bytes } else { 0 })
        };
        let stored =
            |rows: usize, cols: usize, transpose: bool| if transpose { (cols, rows) } else { (rows, cols) };
        let a = each(a, stored(m, k, transpose_a), inputs);
        let b = each(b, stored(k, n, transpose_b), inputs);
        let c = each(c, (m, n), output);
        let aligned_to = AlignedTo { a, b, c, bias: of(bias), aux: of(aux) };
        Key { matmul, aligned_to, conditions }
    }
}
