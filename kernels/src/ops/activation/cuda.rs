//! Elementwise, 16 bytes per access.

use cudarc::driver::sys::CUdeviceptr;

use super::{Activation, activations};
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Result};

/// The functions, for all kernels that apply them.
pub(crate) const FUNCTIONS: &str = include_str!("functions.cuh");

pub(crate) static SOURCE: Source = Source::with_preamble("activation", FUNCTIONS, include_str!("kernel.cu"));

/// The kernel of a pass of this activation for this dtype.
macro_rules! kernel_name {
    ($activation:expr, $dtype:expr, $pass:literal) => {
        activations!(match_kernel!($activation, $dtype, $pass))
    };
}

macro_rules! match_kernel {
    (
        ($activation:expr, $dtype:expr, $pass:literal)
        $($(#[$doc:meta])* $variant:ident $name:literal $saved:ident,)+
    ) => {
        match ($activation, $dtype) {
            $(
                (Activation::$variant, DType::F64) => concat!($name, "_", $pass, "_f64"),
                (Activation::$variant, DType::BF16) => concat!($name, "_", $pass, "_bf16"),
                (Activation::$variant, DType::F16) => concat!($name, "_", $pass, "_f16"),
                (Activation::$variant, _) => concat!($name, "_", $pass, "_f32"),
            )+
        }
    };
}

/// `y = f(x)`; equal lengths and float dtypes, on this device.
pub(crate) fn forward(
    gpu: &'static Gpu,
    activation: Activation,
    x: CudaSlice<'_>,
    y: &mut CudaSliceMut<'_>,
) -> Result<()> {
    // SAFETY: both hold as many elements, as the caller checked.
    unsafe { launch_forward(gpu, activation, x.ptr(), y) }
}

/// `y = f(y)`.
pub(crate) fn forward_in_place(
    gpu: &'static Gpu,
    activation: Activation,
    y: &mut CudaSliceMut<'_>,
) -> Result<()> {
    // SAFETY: the kernel reads each element before it writes it, by the same thread.
    unsafe { launch_forward(gpu, activation, y.ptr(), y) }
}

/// # Safety
/// `x` points to as many elements as `y` has: to `y` itself or to memory that does not overlap it.
unsafe fn launch_forward(
    gpu: &'static Gpu,
    activation: Activation,
    x: CUdeviceptr,
    y: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let (n, kernel) = (y.len(), kernel_name!(activation, y.dtype(), "fwd"));
    if n == 0 {
        return Ok(());
    }
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, 16 / y.dtype().size_bytes());
    // SAFETY: fwd(const T* x, T* y, size_t n); both hold n elements.
    unsafe { launch.arg(x).write(y).arg(n).run() }
}

/// `d = d · f'(saved)`; equal lengths and float dtypes, on this device.
pub(crate) fn backward(
    gpu: &'static Gpu,
    activation: Activation,
    saved: CudaSlice<'_>,
    d: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let (n, kernel) = (d.len(), kernel_name!(activation, d.dtype(), "bwd"));
    if n == 0 {
        return Ok(());
    }
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, 16 / d.dtype().size_bytes());
    // SAFETY: bwd(const T* saved, T* d, size_t n); both hold n elements.
    unsafe { launch.read(saved).write(d).arg(n).run() }
}
