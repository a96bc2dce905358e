//! A warp or a block per row; for the gradients of gamma and beta, columns of chunks of rows.

use crate::cuda::launch::{BLOCK, Launch, Source, float_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu, PARTIAL_SUMS};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("layer_norm", include_str!("kernel.cu"));

/// Threads per block of the kernels with a block per row, and of those that sum columns.
const WIDE_BLOCK: u32 = 512;
/// Rows that a block of [`WIDE_BLOCK`] processes at a time, by columns or with a warp each.
const ROW_LANES: usize = WIDE_BLOCK as usize / 32;
/// Elements of a chunk of rows up to which one block does all of its work: for more, two launches over the whole device are
/// faster.
const MAX_FUSED_CHUNK: usize = 1 << 14;

/// Whether a row fits in the registers of a warp.
fn fits_warp(dtype: DType, cols: usize) -> bool {
    cols <= if dtype == DType::F64 { 256 } else { 1024 }
}

/// Number of blocks that gives each row a group of its own, up to a few times what fills the device.
fn row_blocks(gpu: &Gpu, rows: usize, rows_per_block: usize) -> usize {
    rows.div_ceil(rows_per_block).min(gpu.info().multiprocessors as usize * 16)
}

/// Number of chunks for sums over rows: each needs `2 · cols` partial sums and gives work to all lanes of a block.
fn chunks(rows: usize, cols: usize) -> usize {
    (PARTIAL_SUMS / (2 * cols)).min(rows.div_ceil(ROW_LANES)).max(1)
}

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
    let (kernel, threads, rows_per_block) = if fits_warp(x.dtype(), cols) {
        (float_kernel!("layer_norm_", "fwd_warp"; x.dtype()), BLOCK, BLOCK as usize / 32)
    } else {
        (float_kernel!("layer_norm_", "fwd_block"; x.dtype()), WIDE_BLOCK, 1)
    };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.threads(threads);
    let launch = launch.blocks(row_blocks(gpu, rows, rows_per_block)).read(x).read(gamma).read(beta);
    let launch = launch.arg(eps).write(y).write(mean).write(rstd).arg(rows).arg(cols);
    // SAFETY: fwd(const T* x, const M* gamma, const M* beta, double eps, T* y, M* mean, M* rstd, size_t rows, size_t n); x and y
    // hold rows · n elements, gamma and beta n, mean and rstd rows; the block is the kernel's.
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
    /// Same as `backward_cpu`, in one launch for few rows, else in two: the column sums need what the row pass overwrites.
    pub(super) fn run(mut self, gpu: &'static Gpu) -> Result<()> {
        let (rows, cols) = (self.mean.len(), self.gamma.len());
        if cols == 0 {
            return Ok(());
        }
        let n_chunks = chunks(rows, cols);
        let chunk_rows = rows.div_ceil(n_chunks);
        if fits_warp(self.x.dtype(), cols) && chunk_rows * cols <= MAX_FUSED_CHUNK {
            return self.fused(gpu, n_chunks, chunk_rows);
        }
        self.columns(gpu, n_chunks, chunk_rows)?;
        self.rows(gpu)
    }

    fn fused(&mut self, gpu: &'static Gpu, n_chunks: usize, chunk_rows: usize) -> Result<()> {
        let scratch = gpu.scratch()?;
        let launch = Launch::new(gpu, &SOURCE, float_kernel!("layer_norm_", "bwd_fused"; self.x.dtype()))?
            .threads(WIDE_BLOCK)
            .grid_2d(1, n_chunks)
            .read(self.x)
            .read(self.gamma)
            .read(self.mean)
            .read(self.rstd)
            .write(&mut self.d)
            .write(&mut self.d_gamma)
            .write(&mut self.d_beta)
            .arg(self.mean.len())
            .arg(self.gamma.len())
            .arg(chunk_rows)
            .arg(i32::from(self.accumulate))
            .arg(scratch.counter)
            .arg(scratch.partials);
        // SAFETY: bwd_fused(const T* x, const M* gamma, const M* mean, const M* rstd, T* d, M* d_gamma, M* d_beta, size_t rows,
        // size_t n, size_t chunk_rows, int accumulate, u32* counter, double* partials); x and d hold rows · n elements, gamma and
        // its like n, mean and rstd rows, partials 2 · n a chunk; the block is the kernel's.
        unsafe { launch.run() }
    }

    fn columns(&mut self, gpu: &'static Gpu, n_chunks: usize, chunk_rows: usize) -> Result<()> {
        let (scratch, cols) = (gpu.scratch()?, self.gamma.len());
        let launch = Launch::new(gpu, &SOURCE, float_kernel!("layer_norm_", "bwd_columns"; self.x.dtype()))?
            .threads(WIDE_BLOCK)
            .grid_2d(cols.div_ceil(32), n_chunks)
            .read(self.x)
            .read(self.mean)
            .read(self.rstd)
            .read(self.d.as_ref())
            .write(&mut self.d_gamma)
            .write(&mut self.d_beta)
            .arg(self.mean.len())
            .arg(cols)
            .arg(chunk_rows)
            .arg(i32::from(self.accumulate))
            .arg(scratch.counter)
            .arg(scratch.partials);
        // SAFETY: bwd_columns(const T* x, const M* mean, const M* rstd, const T* d, M* d_gamma, M* d_beta, size_t rows, size_t n,
        // size_t chunk_rows, int accumulate, u32* counter, double* partials); as in `fused`.
        unsafe { launch.run() }
    }

    fn rows(&mut self, gpu: &'static Gpu) -> Result<()> {
        let (rows, cols) = (self.mean.len(), self.gamma.len());
        if rows == 0 {
            return Ok(());
        }
        let (kernel, threads, rows_per_block) = if fits_warp(self.x.dtype(), cols) {
            (float_kernel!("layer_norm_", "bwd_warp"; self.x.dtype()), BLOCK, BLOCK as usize / 32)
        } else {
            (float_kernel!("layer_norm_", "bwd_block"; self.x.dtype()), WIDE_BLOCK, 1)
        };
        let launch = Launch::new(gpu, &SOURCE, kernel)?.threads(threads);
        let launch = launch.blocks(row_blocks(gpu, rows, rows_per_block)).read(self.x).read(self.gamma);
        let launch = launch.read(self.mean).read(self.rstd).write(&mut self.d).arg(rows).arg(cols);
        // SAFETY: bwd(const T* x, const M* gamma, const M* mean, const M* rstd, T* d, size_t rows, size_t n); x and d hold rows · n
        // elements, gamma n, mean and rstd rows; the block is the kernel's.
        unsafe { launch.run() }
    }
}
