//! Which number format is used for what.
//!
//! | | f32 | tf32 | bf16 |
//! |---|---|---|---|
//! | weights that are updated, gradients of weights, optimiser state | f32 | f32 | f32 |
//! | weights in products, activations, gradients of activations | f32 | f32 | bf16 |
//! | factors of products | f32 | 11 bits of f32 | bf16 |
//! | sums in products, norms, losses, outputs of the model | f32 | f32 | f32 |
//!
//! All devices follow the table: what is read in a short format is widened, and what is stored in one is rounded to nearest, ties to
//! even, once. The CPU multiplies in f32 what it widened, so a short format is there to test with, not to save time; `tf32` is f32
//! there.

use ddp_kernels::DType;
use ddp_kernels::ops::MatmulMode;

/// The formats of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precision {
    /// IEEE single precision throughout.
    #[default]
    F32,
    /// Single precision whose products look at 11 bits of their factors, on the matrix units of GPUs.
    Tf32,
    /// Products, activations and their gradients in bf16; weights, their gradients and the update in single precision.
    Bf16,
}

impl Precision {
    /// All of them.
    pub const ALL: [Precision; 3] = [Precision::F32, Precision::Tf32, Precision::Bf16];

    /// Its name in configs and reports.
    pub fn name(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Tf32 => "tf32",
            Precision::Bf16 => "bf16",
        }
    }

    /// Format of activations and their gradients.
    pub fn activations(self) -> DType {
        match self {
            Precision::F32 | Precision::Tf32 => DType::F32,
            Precision::Bf16 => DType::BF16,
        }
    }

    /// How products of f32 are computed.
    pub fn matmul_mode(self) -> MatmulMode {
        match self {
            Precision::Tf32 => MatmulMode::Tf32,
            Precision::F32 | Precision::Bf16 => MatmulMode::Strict,
        }
    }
}
