//! Launches of the kernels of [`layer_norm`](super::layer_norm) and [`rms_norm`](super::rms_norm), which `rows.cuh` has for both.

use crate::cuda::launch::Launch;
use crate::cuda::{CHUNK_SUM_BYTES, CudaSliceMut, Gpu};
use crate::{DType, Result};

/// The text that both kernel files need in front of theirs.
pub(super) const ROWS: &str = include_str!("rows.cuh");

/// Most threads of a block in `rows.cuh`.
const MAX_THREADS: usize = 512;
/// Elements of a row that a thread of the forward pass keeps in its registers, and in f64.
const FORWARD_HELD: [usize; 2] = [32, 8];
/// Columns that a thread of the backward pass keeps and sums in its registers, and in f64.
const BACKWARD_HELD: [usize; 2] = [8, 4];
/// Threads of all chunks together, which fill any device: about a thousand per multiprocessor of the largest today.
const CHUNK_THREADS: usize = 1 << 17;
/// Rows of a chunk below which another chunk does not pay off.
const MIN_ROWS: usize = 4;

/// Threads that share rows of this dtype, each of which holds `held` elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RowBlock {
    threads: usize,
    /// Whether the kernel `whole` does: rows and addresses are multiples of 16 bytes, and the threads hold all of a row.
    is_whole: bool,
}

impl RowBlock {
    fn new(dtype: DType, cols: usize, held: [usize; 2], addresses: u64) -> Self {
        let held = held[usize::from(dtype == DType::F64)];
        let is_aligned = (cols * dtype.size_bytes()).is_multiple_of(16) && addresses.is_multiple_of(16);
        RowBlock {
            threads: cols.div_ceil(held).next_multiple_of(32).clamp(32, MAX_THREADS),
            is_whole: is_aligned && cols <= MAX_THREADS * held,
        }
    }
}

/// Launch of the forward pass over rows of `cols`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forward {
    block: RowBlock,
    n_blocks: usize,
}

impl Forward {
    /// `addresses`: the addresses of all matrices and vectors of `cols`, combined by `|`.
    pub(super) fn new(gpu: &Gpu, dtype: DType, rows: usize, cols: usize, addresses: u64) -> Self {
        let block = RowBlock::new(dtype, cols, FORWARD_HELD, addresses);
        // Several times what is resident, so that the last blocks leave little idle.
        let most = gpu.info().multiprocessors as usize * (8192 / block.threads);
        Forward { block, n_blocks: rows.min(most) }
    }

    /// Whether to launch the kernel `whole`; otherwise, `any`.
    pub(super) fn is_whole(self) -> bool {
        self.block.is_whole
    }

    /// Sets threads and blocks.
    pub(super) fn grid(self, launch: Launch) -> Launch {
        launch.threads(self.block.threads as u32).blocks(self.n_blocks)
    }
}

/// Launches of the backward pass: chunks of rows by the shape only, so that the order of sums is the same on every device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Backward {
    block: RowBlock,
    n_chunks: usize,
    chunk_rows: usize,
}

impl Backward {
    /// - `n_sums`: gradients of parameters, each of `cols`
    /// - `addresses`: the addresses of all matrices and vectors of `cols`, combined by `|`
    pub(super) fn new(dtype: DType, rows: usize, cols: usize, n_sums: usize, addresses: u64) -> Self {
        let block = RowBlock::new(dtype, cols, BACKWARD_HELD, addresses);
        let sum_bytes = if dtype == DType::F64 { 8 } else { 4 };
        let places = CHUNK_SUM_BYTES / (sum_bytes * n_sums * cols);
        let n_chunks = rows.div_ceil(MIN_ROWS).min(CHUNK_THREADS / block.threads).min(places).max(1);
        let chunk_rows = rows.div_ceil(n_chunks).max(1);
        Backward { block, n_chunks: rows.div_ceil(chunk_rows), chunk_rows }
    }

    /// Whether to launch the kernel `whole`; otherwise, `any`.
    pub(super) fn is_whole(self) -> bool {
        self.block.is_whole
    }

    /// Enqueues `over_rows`, if there are rows, and then `over_chunks`, unless the only chunk's sums are the gradients of parameters.
    ///
    /// # Safety
    /// Same as [`Launch::run`]. After the arguments that `over_rows` has, its kernel's parameters are `M* d_gamma, [M* d_beta,]
    /// size_t stride, size_t rows, size_t n, size_t chunk_rows, int accumulate`. `over_chunks` has no arguments yet; its kernel's parameters are
    /// `const M* partials, M* d_gamma, [M* d_beta,] size_t chunks, size_t n, int accumulate`. `parameters` are these gradients, of n
    /// elements each.
    pub(super) unsafe fn run<const K: usize>(
        self,
        gpu: &'static Gpu,
        [over_rows, over_chunks]: [Launch; 2],
        mut parameters: [CudaSliceMut<'_>; K],
        rows: usize,
        accumulate: bool,
    ) -> Result<()> {
        let cols = parameters[0].len();
        let accumulate = i32::from(accumulate);
        let over_rows = over_rows.threads(self.block.threads as u32).blocks(self.n_chunks);
        if self.n_chunks == 1 {
            let over_rows = parameters.iter_mut().fold(over_rows, |launch, sums| launch.write(sums));
            let over_rows = over_rows.arg(0usize).arg(rows).arg(cols).arg(self.chunk_rows).arg(accumulate);
            // SAFETY: the caller guarantees the operands; the block is the kernel's.
            return unsafe { over_rows.run() };
        }
        let partials = gpu.chunk_sums()?;
        if rows > 0 {
            let sum_bytes = parameters[0].dtype().size_bytes();
            let over_rows =
                (0..K).fold(over_rows, |launch, k| launch.arg(partials.ptr + (k * cols * sum_bytes) as u64));
            let over_rows = over_rows.arg(K * cols).arg(rows).arg(cols).arg(self.chunk_rows).arg(0i32);
            // SAFETY: the caller guarantees the other operands; `new` checked that there are places for the sums of all chunks.
            unsafe { over_rows.run() }?;
        }
        let over_chunks = over_chunks.threads(512).blocks((K * cols).div_ceil(8)).arg(partials.ptr);
        let over_chunks = parameters.iter_mut().fold(over_chunks, |launch, sums| launch.write(sums));
        let over_chunks = over_chunks.arg(self.n_chunks).arg(cols).arg(accumulate);
        // SAFETY: the caller guarantees the operands; `over_rows` leaves the sums of each chunk; the block is the kernel's.
        unsafe { over_chunks.run() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_close, devices, random, tensor};
    use crate::ops::{RmsNormGrads, rms_norm_backward};
    use crate::{Device, Tensor};

    #[test]
    fn chunks_cover_the_rows_and_have_places() {
        for rows in [0, 1, 4, 5, 37, 8192, 1 << 20, (1 << 30) + 1] {
            for cols in [1, 3, 64, 100, 1024, 4096, 4100, 16_500, 1 << 20, 1 << 24] {
                for (dtype, sum_bytes) in [(DType::F32, 4), (DType::BF16, 4), (DType::F64, 8)] {
                    for n_sums in [1, 2] {
                        let Backward { block, n_chunks, chunk_rows } =
                            Backward::new(dtype, rows, cols, n_sums, 0);
                        assert!(
                            n_chunks * chunk_rows >= rows && (n_chunks.max(1) - 1) * chunk_rows < rows.max(1)
                        );
                        assert!(n_chunks <= 1 || n_chunks * n_sums * cols * sum_bytes <= CHUNK_SUM_BYTES);
                        assert!(block.threads.is_multiple_of(32) && (32..=512).contains(&block.threads));
                    }
                }
            }
        }
        // Two blocks of 512 for each of 128 multiprocessors.
        let block = RowBlock { threads: 512, is_whole: true };
        assert_eq!(
            Backward::new(DType::BF16, 8192, 4096, 2, 0),
            Backward { block, n_chunks: 256, chunk_rows: 32 }
        );
        assert!(!Backward::new(DType::BF16, 8192, 4096, 2, 8).is_whole());
        assert!(!Backward::new(DType::BF16, 8192, 4100, 2, 0).is_whole());
        assert_eq!(Backward::new(DType::F32, 128, 512, 2, 0).n_chunks, 32);
    }

    /// The gradient of gamma for random rows, enough for several chunks.
    fn d_gamma(device: Device, seed: u64) -> Vec<f32> {
        let (rows, cols) = (64, 256);
        let matrix = |seed| tensor(&random::<f32>(rows * cols, seed), &[rows, cols], device);
        let vector = |n: usize| Tensor::ones(&[n], DType::F32, device).unwrap();
        let (x, mut d, mut d_gamma) = (matrix(seed), matrix(seed + 1), vector(cols));
        let grads = RmsNormGrads { d: d.view_mut(), d_gamma: d_gamma.view_mut() };
        rms_norm_backward(x.view(), vector(cols).view(), vector(rows).view(), grads, false).unwrap();
        d_gamma.to_vec().unwrap()
    }

    #[test]
    fn threads_leave_each_others_sums_alone() {
        for device in devices() {
            std::thread::scope(|scope| {
                for seed in [1, 11, 21] {
                    scope.spawn(move || {
                        let want = d_gamma(Device::Cpu, seed);
                        for _ in 0..50 {
                            let got = d_gamma(device, seed);
                            assert_close(&got, &want, 1e-5, 1e-5);
                        }
                    });
                }
            });
        }
    }
}
