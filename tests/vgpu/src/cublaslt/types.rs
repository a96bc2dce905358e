//! The enumerations of cublasLt.h that the virtual library understands.
use half::{bf16, f16};

/// The element type of a matrix or vector (`cudaDataType_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum Type {
    /// `CUDA_R_32F`
    F32,
    /// `CUDA_R_64F`
    F64,
    /// `CUDA_R_16F`
    F16,
    /// `CUDA_R_16BF`
    Bf16,
}

impl Type {
    /// The type with this number in `cudaDataType_t`, if it is supported.
    pub(crate) fn from_code(code: u64) -> Option<Type> {
        Some(match code as u32 {
            0 => Type::F32,
            1 => Type::F64,
            2 => Type::F16,
            14 => Type::Bf16,
            _ => return None,
        })
    }

    /// Bytes of one element.
    pub(crate) fn size(self) -> u64 {
        match self {
            Type::F64 => 8,
            Type::F32 => 4,
            Type::F16 | Type::Bf16 => 2,
        }
    }

    /// The value as it is stored. Short formats are rounded from the f32 in which products are summed, not from f64.
    pub(crate) fn rounded(self, value: f64) -> f64 {
        match self {
            Type::F64 => value,
            Type::F32 => f64::from(value as f32),
            Type::F16 => f64::from(f16::from_f32(value as f32)),
            Type::Bf16 => f64::from(bf16::from_f32(value as f32)),
        }
    }

    /// Element `i` of the array at `base`.
    ///
    /// # Safety
    /// `base` is aligned for the type and has at least `i + 1` readable elements.
    #[inline]
    pub(crate) unsafe fn get(self, base: *const u8, i: usize) -> f64 {
        match self {
            // SAFETY: the caller promises an aligned, readable element `i`.
            Type::F32 => f64::from(unsafe { base.cast::<f32>().wrapping_add(i).read() }),
            // SAFETY: as above.
            Type::F64 => unsafe { base.cast::<f64>().wrapping_add(i).read() },
            // SAFETY: as above.
            Type::F16 => f64::from(unsafe { base.cast::<f16>().wrapping_add(i).read() }),
            // SAFETY: as above.
            Type::Bf16 => f64::from(unsafe { base.cast::<bf16>().wrapping_add(i).read() }),
        }
    }

    /// Stores `value` as element `i` of the array at `base`, rounded once, to the type.
    ///
    /// # Safety
    /// `base` is aligned for the type and has at least `i + 1` writable elements.
    #[inline]
    pub(crate) unsafe fn set(self, base: *mut u8, i: usize, value: f64) {
        match self {
            // SAFETY: the caller promises an aligned, writable element `i`.
            Type::F32 => unsafe { base.cast::<f32>().wrapping_add(i).write(value as f32) },
            // SAFETY: as above.
            Type::F64 => unsafe { base.cast::<f64>().wrapping_add(i).write(value) },
            // Short formats are rounded from the f32 in which products are summed, not from f64.
            // SAFETY: as above.
            Type::F16 => unsafe { base.cast::<f16>().wrapping_add(i).write(f16::from_f32(value as f32)) },
            // SAFETY: as above.
            Type::Bf16 => unsafe { base.cast::<bf16>().wrapping_add(i).write(bf16::from_f32(value as f32)) },
        }
    }
}

/// Precision in which products are formed and summed (`cublasComputeType_t`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum Compute {
    /// `CUBLAS_COMPUTE_32F`, `..._PEDANTIC`: products and sums in f32.
    F32,
    /// `CUBLAS_COMPUTE_32F_FAST_TF32`: f32 inputs lose all but ten mantissa bits, sums are f32.
    Tf32,
    /// `CUBLAS_COMPUTE_64F`, `..._PEDANTIC`.
    F64,
}

impl Compute {
    /// The kind with this number in `cublasComputeType_t`, if it is supported.
    pub(crate) fn from_code(code: u64) -> Option<Compute> {
        Some(match code as u32 {
            68 | 69 => Compute::F32,
            77 => Compute::Tf32,
            70 | 71 => Compute::F64,
            _ => return None,
        })
    }

    /// The table "supported data types" of cublasLtMatmul(): the scale type, the type of A and B, the type of C
    /// and D. The bias has the type of D in every row that is supported here.
    pub(crate) fn supports(self, scale: Type, a: Type, b: Type, c: Type, d: Type) -> bool {
        let inputs = |t| a == t && b == t;
        c == d
            && match self {
                Compute::F64 => scale == Type::F64 && inputs(Type::F64) && d == Type::F64,
                Compute::Tf32 => scale == Type::F32 && inputs(Type::F32) && d == Type::F32,
                Compute::F32 => {
                    scale == Type::F32
                        && (inputs(Type::F32) && d == Type::F32
                            || inputs(Type::Bf16) && matches!(d, Type::Bf16 | Type::F32)
                            || inputs(Type::F16) && matches!(d, Type::F16 | Type::F32))
                }
            }
    }
}

/// Epilogue: the operation on `alpha*op(A)*op(B) + beta*C` before it is stored (`cublasLtEpilogue_t`). The values in the header
/// are sums of these bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) struct Epilogue(u32);

const RELU: u32 = 2;
const BIAS: u32 = 4;
const D_RELU: u32 = 8;
const D_BIAS: u32 = 16;
const GELU: u32 = 32;
const D_GELU: u32 = 64;
const AUX: u32 = 128;
const SUM_A: u32 = 256;
const SUM_B: u32 = 512;

const EPILOGUES: [(u32, &str); 16] = [
    (1, "DEFAULT"),
    (RELU, "RELU"),
    (RELU | AUX, "RELU_AUX"),
    (BIAS, "BIAS"),
    (RELU | BIAS, "RELU_BIAS"),
    (RELU | AUX | BIAS, "RELU_AUX_BIAS"),
    (D_RELU | AUX, "DRELU"),
    (D_RELU | D_BIAS | AUX, "DRELU_BGRAD"),
    (GELU, "GELU"),
    (GELU | AUX, "GELU_AUX"),
    (GELU | BIAS, "GELU_BIAS"),
    (GELU | AUX | BIAS, "GELU_AUX_BIAS"),
    (D_GELU | AUX, "DGELU"),
    (D_GELU | D_BIAS | AUX, "DGELU_BGRAD"),
    (SUM_A, "BGRADA"),
    (SUM_B, "BGRADB"),
];

/// One of the two gradients of a bias that come from the inputs, not from the result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BiasGradient {
    /// BGRADA: sums of the rows of op(A) over k; its length is the number of rows of D.
    OfA,
    /// BGRADB: sums of the columns of op(B) over k; its length is the number of columns of D.
    OfB,
    /// DRELU_BGRAD, DGELU_BGRAD: sums of the rows of D; its length is the number of rows of D.
    OfResult,
}

impl Epilogue {
    /// The epilogue with this number, if there is one.
    pub(crate) fn from_code(code: u64) -> Option<Epilogue> {
        EPILOGUES.iter().find(|(known, _)| u64::from(*known) == code).map(|(known, _)| Epilogue(*known))
    }

    /// Its number in the header.
    pub(crate) fn code(self) -> u32 {
        self.0
    }

    /// Its name in the header without the prefix.
    pub(crate) fn name(self) -> &'static str {
        EPILOGUES.iter().find(|(known, _)| *known == self.0).map_or("?", |(_, name)| name)
    }

    fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    /// Whether neither a vector nor a function is applied.
    pub(crate) fn is_default(self) -> bool {
        self.0 == 1
    }

    /// Whether a bias vector, one element per row of D, is added.
    pub(crate) fn adds_bias(self) -> bool {
        self.has(BIAS)
    }

    /// The gradient that is stored at the bias pointer, if any.
    pub(crate) fn bias_gradient(self) -> Option<BiasGradient> {
        match () {
            () if self.has(SUM_A) => Some(BiasGradient::OfA),
            () if self.has(SUM_B) => Some(BiasGradient::OfB),
            () if self.has(D_BIAS) => Some(BiasGradient::OfResult),
            () => None,
        }
    }

    /// Whether the bias pointer is used.
    pub(crate) fn uses_bias_pointer(self) -> bool {
        self.adds_bias() || self.bias_gradient().is_some()
    }

    /// Whether the auxiliary buffer is used.
    pub(crate) fn uses_aux(self) -> bool {
        self.has(AUX)
    }

    /// Whether the auxiliary buffer is written (forward) rather than read (backward).
    pub(crate) fn writes_aux(self) -> bool {
        self.has(AUX) && !self.has(D_RELU | D_GELU)
    }

    /// Whether the auxiliary buffer is the bit mask of a ReLU rather than the inputs of a GELU.
    pub(crate) fn aux_is_mask(self) -> bool {
        self.has(RELU | D_RELU)
    }

    /// The forward function of one element. ReLU maps NaN to zero, like `max(x, 0)` on hardware.
    pub(crate) fn apply(self, x: f64) -> f64 {
        match () {
            () if self.has(RELU) => {
                if x > 0.0 {
                    x
                } else {
                    0.0
                }
            }
            () if self.has(GELU) => gelu(x),
            () => x,
        }
    }
}

const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044_715;

/// The tanh approximation: `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`.
pub(crate) fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + coarse_tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x)))
}

/// The tanh of an epilogue on an H100: it has 11 bits.
fn coarse_tanh(x: f64) -> f64 {
    round_to_tf32(x.tanh() as f32).into()
}

/// The derivative of [`gelu`] at `x`.
pub(crate) fn d_gelu(x: f64) -> f64 {
    let t = coarse_tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x));
    0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * SQRT_2_OVER_PI * (1.0 + 3.0 * CUBIC * x * x)
}

/// Rounds to the ten mantissa bits of TF32, ties to even.
pub(crate) fn round_to_tf32(x: f32) -> f32 {
    if !x.is_finite() {
        return x;
    }
    let bits = x.to_bits();
    f32::from_bits((bits + 0xFFF + (bits >> 13 & 1)) & !0x1FFF)
}
