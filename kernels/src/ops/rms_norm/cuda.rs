//! A warp or a block per row; for the gradient of gamma, columns of chunks of rows.

use crate::cuda::launch::{BLOCK, Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu, PARTIAL_SUMS};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("rms_norm", include_str!("kernel.cu"));

/// Threads per block of the kernels with a block per row, and of those that sum columns.
const WIDE_BLOCK: u32 = 512;
/// Rows that a block of [`WIDE_BLOCK`] sums side by side.
const ROW_LANES: usize = WIDE_BLOCK as usize / 32;
/// Longest row of one warp.
const MAX_WARP_COLS: usize = 1024;

/// The kernel of this form for this dtype.
macro_rules! kernel_name {
    ($dtype:expr, $form:literal) => {
        match $dtype {
            DType::F64 => concat!("rms_norm_", $form, "_f64"),
            DType::BF16 => concat!("rms_norm_", $form, "_bf16"),
            DType::F16 => concat!("rms_norm_", $form, "_f16"),
            _ => concat!("rms_norm_", $form, "_f32"),
        }
    };
}

/// Sets threads and blocks for `rows` rows of `cols`: up to a few times the blocks that fill the device.
fn by_rows(launch: Launch, gpu: &Gpu, rows: usize, cols: usize) -> Launch {
    let (threads, rows_per_block) =
        if cols <= MAX_WARP_COLS { (BLOCK, BLOCK as usize / 32) } else { (WIDE_BLOCK, 1) };
    let most = gpu.info().multiprocessors as usize * 16;
    launch.threads(threads).blocks(rows.div_ceil(rows_per_block).min(most))
}

/// Same as `cpu::forward`; the caller checked the operands.
pub(super) fn forward(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    gamma: CudaSlice<'_>,
    eps: f64,
    y: &mut CudaSliceMut<'_>,
    rstd: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let (rows, cols) = (rstd.len(), gamma.len());
    if rows * cols == 0 {
        return Ok(());
    }
    let kernel = if cols <= MAX_WARP_COLS {
        kernel_name!(x.dtype(), "fwd_warp")
    } else {
        kernel_name!(x.dtype(), "fwd_block")
    };
    let launch = by_rows(Launch::new(gpu, &SOURCE, kernel)?, gpu, rows, cols);
    let launch = launch.read(x).read(gamma).arg(eps).write(y).write(rstd).arg(rows).arg(cols);
    // SAFETY: fwd(const T* x, const M* gamma, double eps, T* y, M* rstd, size_t rows, size_t n); x and y hold rows * n elements,
    // gamma n, rstd rows; the block is the kernel's.
    unsafe { launch.run() }
}

/// Operands of the backward pass, checked by the caller.
pub(super) struct Backward<'a> {
    pub(super) x: CudaSlice<'a>,
    pub(super) gamma: CudaSlice<'a>,
    pub(super) rstd: CudaSlice<'a>,
    pub(super) d: CudaSliceMut<'a>,
    pub(super) d_gamma: CudaSliceMut<'a>,
    pub(super) accumulate: bool,
}

impl Backward<'_> {
    /// Same as `cpu::backward`, in two launches: the column sums need what the row pass overwrites.
    pub(super) fn run(mut self, gpu: &'static Gpu) -> Result<()> {
        if self.gamma.is_empty() {
            return Ok(());
        }
        self.columns(gpu)?;
        self.rows(gpu)
    }

    fn columns(&mut self, gpu: &'static Gpu) -> Result<()> {
        let (scratch, rows, cols) = (gpu.scratch()?, self.rstd.len(), self.gamma.len());
        // Each chunk needs `cols` partial sums and gives work to all lanes of a block.
        let n_chunks = (PARTIAL_SUMS / cols).min(rows.div_ceil(ROW_LANES)).max(1);
        let launch = Launch::new(gpu, &SOURCE, kernel_name!(self.x.dtype(), "bwd_columns"))?
            .threads(WIDE_BLOCK)
            .grid_2d(cols.div_ceil(32), n_chunks)
            .read(self.x)
            .read(self.rstd)
            .read(self.d.as_ref())
            .write(&mut self.d_gamma)
            .arg(rows)
            .arg(cols)
            .arg(rows.div_ceil(n_chunks))
            .arg(i32::from(self.accumulate))
            .arg(scratch.counter)
            .arg(scratch.partials);
        // SAFETY: bwd_columns(const T* x, const M* rstd, const T* d, M* d_gamma, size_t rows, size_t n, size_t chunk_rows,
        // int accumulate, u32* counter, double* partials); x and d hold rows * n elements, d_gamma n, rstd rows, partials n per chunk;
        // the block is the kernel's.
        unsafe { launch.run() }
    }

    fn rows(&mut self, gpu: &'static Gpu) -> Result<()> {
        let (rows, cols) = (self.rstd.len(), self.gamma.len());
        if rows == 0 {
            return Ok(());
        }
        let kernel = if cols <= MAX_WARP_COLS {
            kernel_name!(self.x.dtype(), "bwd_warp")
        } else {
            kernel_name!(self.x.dtype(), "bwd_block")
        };
        let launch = by_rows(Launch::new(gpu, &SOURCE, kernel)?, gpu, rows, cols);
        let launch =
            launch.read(self.x).read(self.gamma).read(self.rstd).write(&mut self.d).arg(rows).arg(cols);
        // SAFETY: bwd(const T* x, const M* gamma, const M* rstd, T* d, size_t rows, size_t n); x and d hold rows * n elements, gamma
        // n, rstd rows; the block is the kernel's.
        unsafe { launch.run() }
    }
}
