//! Operations that are fused with a matmul, and the forms in which an operation can run that has them.
//!
//! Source: cuBLAS documentation, cublasLtEpilogue_t.

use cudarc::cublaslt::sys;

use crate::DType;

/// Bits of a row of the ReLU mask, in multiples of this.
const RELU_MASK_ALIGN_BITS: usize = 128;

/// Operation fused with a matmul.
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
    /// The column sums of `op(A)ᵀ`, that is, of A if it is transposed, to `bias`: the gradient of a layer's bias if A is the
    /// gradient of its output.
    BiasGradient,
}

impl Epilogue {
    pub(in crate::cuda) const ALL: [Epilogue; 10] = [
        Epilogue::None,
        Epilogue::Bias,
        Epilogue::ReluBias,
        Epilogue::ReluAuxBias,
        Epilogue::ReluAux,
        Epilogue::GeluBias,
        Epilogue::GeluAuxBias,
        Epilogue::DRelu,
        Epilogue::DGelu,
        Epilogue::BiasGradient,
    ];

    /// The epilogues with which an operation can run that asks for this one, the rest of it in parts: from everything fused to
    /// nothing.
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
            // Our A is cuBLASLt's B.
            Epilogue::BiasGradient => E::CUBLASLT_EPILOGUE_BGRADB,
        }
    }

    pub(in crate::cuda) fn takes_bias(self) -> bool {
        !matches!(self, Epilogue::None | Epilogue::ReluAux | Epilogue::DRelu | Epilogue::DGelu)
    }

    pub(in crate::cuda) fn writes_aux(self) -> bool {
        matches!(self, Epilogue::ReluAuxBias | Epilogue::ReluAux | Epilogue::GeluAuxBias)
    }

    /// Bytes of `aux` for a C of `m` rows and `n` columns of this dtype.
    pub(in crate::cuda) fn aux_bytes(self, m: usize, n: usize, output: DType) -> usize {
        let row = self.aux_row(n).unwrap_or(0);
        match self {
            Epilogue::GeluAuxBias | Epilogue::DGelu => m * row * output.size_bytes(),
            _ => m * row / 8,
        }
    }

    /// Elements of a row of `aux` for a C of `n` columns; None without `aux`.
    pub(in crate::cuda) fn aux_row(self, n: usize) -> Option<usize> {
        match self {
            Epilogue::ReluAuxBias | Epilogue::ReluAux | Epilogue::DRelu => Some(relu_mask_row_bits(n)),
            Epilogue::GeluAuxBias | Epilogue::DGelu => Some(n),
            _ => None,
        }
    }
}

/// Bits of a row of the ReLU mask of a matrix with `n` columns.
pub(crate) fn relu_mask_row_bits(n: usize) -> usize {
    n.next_multiple_of(RELU_MASK_ALIGN_BITS)
}
