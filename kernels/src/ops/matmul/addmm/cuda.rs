//! Calls cuBLASLt; an empty inner dimension, which it does not support, is handled here.

use crate::DType;
use crate::Result;
use crate::cuda::blas::{Matmul, Operands, Scales};
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};

pub(crate) static SOURCE: Source = Source::new("addmm", include_str!("kernel.cu"));

/// Enqueues the matmul with its epilogue, into `c`; returns false, having done nothing, if cuBLASLt has no algorithm with that
/// epilogue or there is nothing to multiply.
///
/// The caller has checked shapes, dtypes and devices.
#[allow(clippy::too_many_arguments)] // GEMM has that many.
pub(crate) fn matmul(
    gpu: &'static Gpu,
    shape: Matmul,
    scales: Scales,
    a: CudaSlice<'_>,
    b: CudaSlice<'_>,
    mut c: CudaSliceMut<'_>,
    bias: Option<CudaSlice<'_>>,
    aux: Option<CudaSlice<'_>>,
) -> Result<bool> {
    if c.is_empty() {
        return Ok(true);
    }
    if shape.k == 0 {
        scale(gpu, scales.beta, &mut c)?;
        return Ok(false);
    }
    let operands = Operands {
        a: a.ptr(),
        b: b.ptr(),
        c: c.ptr(),
        bias: bias.map_or(0, |bias| bias.ptr()),
        aux: aux.map_or(0, |aux| aux.ptr()),
    };
    // SAFETY: the caller checked that the slices are on this device and of the matmul's shape; `c` is exclusive. Bias and aux have
    // the length that the epilogue documents, which the operations check.
    unsafe { gpu.matmul(shape, scales, operands) }
}

/// `c *= beta`; with `beta = 0`, `c` becomes zero without being read.
fn scale(gpu: &'static Gpu, beta: f64, c: &mut CudaSliceMut<'_>) -> Result<()> {
    let kernel = match c.dtype() {
        DType::F64 => "scale_f64",
        DType::BF16 => "scale_bf16",
        DType::F16 => "scale_f16",
        DType::F32 | DType::I64 | DType::U8 | DType::I32 | DType::Bool => "scale_f32",
    };
    let n = c.len();
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, 1).arg(beta).write(c).arg(n);
    // SAFETY: scale(double beta, T* c, size_t n); c holds n elements.
    unsafe { launch.run() }
}
