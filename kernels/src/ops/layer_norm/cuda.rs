//! A block per row, or per chunk of rows; then the chunks' sums for the gradients of gamma and beta.

use crate::Result;
use crate::cuda::launch::{Launch, Source, float_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::row_norm;

pub(crate) static SOURCE: Source =
    Source::with_preamble("layer_norm", row_norm::ROWS, include_str!("kernel.cu"));

/// Same as `forward_cpu`; the caller checked the operands.
#[allow(clippy::too_many_arguments)] // Layer normalization has that many operands.
pub(super) fn forward(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    gamma: CudaSlice<'_>,
    beta: CudaSlice<'_>,
    eps: f64,
    y: &mut CudaSliceMut<'_>,
    mean: &mut CudaSliceMut<'_>,
    rstd: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let (rows, cols) = (mean.len(), gamma.len());
    if rows * cols == 0 {
        return Ok(());
    }
    let addresses = x.ptr() | gamma.ptr() | beta.ptr() | y.ptr();
    let by_rows = row_norm::Forward::new(gpu, x.dtype(), rows, cols, addresses);
    let kernel = if by_rows.is_whole() {
        float_kernel!("layer_norm_fwd_whole"; x.dtype())
    } else {
        float_kernel!("layer_norm_fwd_any"; x.dtype())
    };
    let launch = by_rows.grid(Launch::new(gpu, &SOURCE, kernel)?).read(x).read(gamma).read(beta);
    let launch = launch.arg(eps).write(y).write(mean).write(rstd).arg(rows).arg(cols);
    // SAFETY: fwd(const T* x, const M* gamma, const M* beta, double eps, T* y, M* mean, M* rstd, size_t rows, size_t n); x and y
    // hold rows · n elements, gamma and beta n, mean and rstd rows; `Forward` chose the kernel for these rows and addresses.
    unsafe { launch.run() }
}

/// Operands of the backward pass, checked by the caller.
pub(super) struct Backward<'a> {
    pub(super) x: CudaSlice<'a>,
    pub(super) gamma: CudaSlice<'a>,
    pub(super) mean: CudaSlice<'a>,
    pub(super) rstd: CudaSlice<'a>,
    pub(super) d: CudaSliceMut<'a>,
    pub(super) d_gamma: CudaSliceMut<'a>,
    pub(super) d_beta: CudaSliceMut<'a>,
    pub(super) accumulate: bool,
}

impl Backward<'_> {
    /// Same as `backward_cpu`.
    pub(super) fn run(self, gpu: &'static Gpu) -> Result<()> {
        let Backward { x, gamma, mean, rstd, mut d, d_gamma, d_beta, accumulate } = self;
        let (rows, cols) = (mean.len(), gamma.len());
        if cols == 0 {
            return Ok(());
        }
        let addresses = x.ptr() | gamma.ptr() | d.ptr() | d_gamma.ptr() | d_beta.ptr();
        let by_rows = row_norm::Backward::new(x.dtype(), rows, cols, 2, addresses);
        let kernel = if by_rows.is_whole() {
            float_kernel!("layer_norm_bwd_whole"; x.dtype())
        } else {
            float_kernel!("layer_norm_bwd_any"; x.dtype())
        };
        let over_rows =
            Launch::new(gpu, &SOURCE, kernel)?.read(x).read(gamma).read(mean).read(rstd).write(&mut d);
        let over_chunks = Launch::new(gpu, &SOURCE, float_kernel!("layer_norm_bwd_parameters"; x.dtype()))?;
        // SAFETY: bwd(const T* x, const M* gamma, const M* mean, const M* rstd, T* d, ...) and bwd_parameters(...); x and d hold rows · n
        // elements, gamma, d_gamma and d_beta n, mean and rstd rows; `Backward` chose the kernel for these rows and addresses.
        unsafe { by_rows.run(gpu, [over_rows, over_chunks], [d_gamma, d_beta], rows, accumulate) }
    }
}
