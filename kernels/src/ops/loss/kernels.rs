//! The kernels of losses on a GPU, by name.

use crate::DType;
use crate::cuda::launch::Source;
use crate::cuda::{Gpu, PARTIAL_SUMS};

pub(crate) static SOURCE: Source = Source::new("loss", include_str!("kernel.cu"));
pub(crate) static WEIGHTED_SOURCE: Source =
    Source::with_row_weights("loss_weighted", include_str!("kernel.cu"));

/// Names of a loss's kernels, by the dtypes of operands and gradient.
pub(crate) struct Kernels {
    pub(crate) f32: &'static str,
    pub(crate) f64: &'static str,
    pub(crate) bf16: &'static str,
    pub(crate) f16: &'static str,
    /// f32 operands with a gradient in bf16.
    pub(crate) f32_bf16: &'static str,
    /// f32 operands with a gradient in f16.
    pub(crate) f32_f16: &'static str,
}

/// The [`Kernels`] of the loss with this name.
macro_rules! kernels {
    ($name:literal) => {
        $crate::ops::loss::kernels::Kernels {
            f32: concat!($name, "_f32"),
            f64: concat!($name, "_f64"),
            bf16: concat!($name, "_bf16"),
            f16: concat!($name, "_f16"),
            f32_bf16: concat!($name, "_f32_bf16"),
            f32_f16: concat!($name, "_f32_f16"),
        }
    };
}
pub(crate) use kernels;

impl Kernels {
    /// The kernel for operands of dtype `x` and a gradient of dtype `d`, if any.
    pub(crate) fn of(&self, x: DType, d: Option<DType>) -> &'static str {
        match (x, d) {
            (DType::F64, _) => self.f64,
            (DType::BF16, _) => self.bf16,
            (DType::F16, _) => self.f16,
            (_, Some(DType::BF16)) => self.f32_bf16,
            (_, Some(DType::F16)) => self.f32_f16,
            _ => self.f32,
        }
    }
}

/// Number of blocks that fills the device, limited by the partial sums in the scratch.
pub(crate) fn max_blocks(gpu: &Gpu) -> usize {
    (gpu.info().multiprocessors as usize * 8).min(PARTIAL_SUMS / 2)
}
