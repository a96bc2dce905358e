//! Threads share the columns and blocks the rows; for the gradients of parameters, warps share the cosines too.

use super::{Dims, NumericEmbedding};
use crate::cuda::column_grid::COUNTERS;
use crate::cuda::launch::{BLOCK, Launch, Source, typed_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu, PARTIAL_SUMS};
use crate::{DType, Result, TensorMut};

pub(crate) static SOURCE: Source = Source::new("numeric_embedding", include_str!("kernel.cu"));

pub(super) struct Params<'a> {
    frequencies: CudaSlice<'a>,
    phases: CudaSlice<'a>,
    weight: CudaSlice<'a>,
    bias: CudaSlice<'a>,
}

impl<'a> Params<'a> {
    pub(super) fn new(params: NumericEmbedding<'a>) -> Result<Self> {
        Ok(Params {
            frequencies: params.frequencies.cuda()?,
            phases: params.phases.cuda()?,
            weight: params.weight.cuda()?,
            bias: params.bias.cuda()?,
        })
    }

    /// Adds the parameters and their dimensions as arguments.
    fn add(&self, launch: Launch, dims: Dims) -> Launch {
        let launch = launch.read(self.frequencies).read(self.phases).read(self.weight).read(self.bias);
        launch.arg(dims.features).arg(dims.frequencies).arg(dims.outputs)
    }
}

/// Same as `cpu::forward`; the caller checked the operands.
pub(super) fn forward(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    params: Params<'_>,
    y: &mut CudaSliceMut<'_>,
    dims: Dims,
) -> Result<()> {
    if y.is_empty() {
        return Ok(());
    }
    let kernel = typed_kernel!("numeric_embedding_fwd", x.dtype());
    let grid = RowGrid::new(gpu, x.len() / dims.features, dims.features);
    let launch = params.add(grid.launch(Launch::new(gpu, &SOURCE, kernel)?).read(x), dims);
    let launch = launch.write(y).arg(grid.rows).arg(grid.log2_lanes);
    // SAFETY: fwd(const T* x, const M* frequencies, const M* phases, const M* weight, const M* bias, size_t F, size_t K, size_t E, T* y,
    // size_t rows, u32 log2_lanes); x, the parameters and y hold what `check_operands` requires for this number of rows.
    unsafe { launch.run() }
}

/// Same as `cpu::backward`; the caller checked the operands.
pub(super) fn backward(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    params: Params<'_>,
    d: CudaSlice<'_>,
    grads: [(TensorMut<'_>, bool); 4],
    dims: Dims,
) -> Result<()> {
    if dims.features == 0 {
        return Ok(());
    }
    let rows = x.len() / dims.features;
    let kernel = typed_kernel!("numeric_embedding_bwd", x.dtype());
    let sum_bytes = if x.dtype() == DType::F64 { 8 } else { 4 };
    let grid = ParamGrid::new(rows, dims, sum_bytes);
    let launch = Launch::new(gpu, &SOURCE, kernel)?.threads(ParamGrid::BLOCK as u32);
    let launch = launch.grid_3d(grid.tiles, grid.shares, grid.cosine_blocks);
    let mut launch = params.add(launch.read(x), dims).read(d).arg(rows);
    for (grad, accumulate) in grads {
        launch = launch.write(&mut grad.into_cuda()?).arg(i32::from(accumulate));
    }
    let scratch = gpu.scratch()?;
    let launch = launch.arg(grid.log2_lanes).arg(grid.log2_groups).arg(scratch.counter).arg(scratch.partials);
    // SAFETY: bwd(const T* x, .. as in `forward`, const T* d, size_t rows, M* d_frequencies, int, M* d_phases, int, M* d_weight, int, M*
    // d_bias, int, u32 log2_lanes, u32 log2_groups, u32* counters, M* partials); the gradients are as long as the parameters. With several
    // shares there is a counter for each tile and block of cosines, and there are places for the parameters of each share.
    unsafe { launch.run() }
}

/// Same as `cpu::backward_input`; the caller checked the operands.
pub(super) fn backward_input(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    params: Params<'_>,
    d: CudaSlice<'_>,
    d_x: &mut CudaSliceMut<'_>,
    accumulate: bool,
    dims: Dims,
) -> Result<()> {
    if x.is_empty() {
        return Ok(());
    }
    let kernel = typed_kernel!("numeric_embedding_bwd_input", x.dtype());
    let grid = RowGrid::new(gpu, x.len() / dims.features, dims.features);
    let launch = params.add(grid.launch(Launch::new(gpu, &SOURCE, kernel)?).read(x), dims).read(d).write(d_x);
    let launch = launch.arg(grid.rows).arg(i32::from(accumulate)).arg(grid.log2_lanes);
    // SAFETY: bwd_input(const T* x, .. as in `forward`, const T* d, T* d_x, size_t rows, int accumulate, u32 log2_lanes); d_x holds as many
    // elements as x.
    unsafe { launch.run() }
}

/// Grid of the kernels whose blocks share columns and rows.
struct RowGrid {
    rows: usize,
    /// Logarithm of the number of columns of a block.
    log2_lanes: u32,
    tiles: usize,
    shares: usize,
}

impl RowGrid {
    /// Rows of a thread at a time: ROWS in the kernel.
    const ROWS: usize = 5;
    /// Blocks per multiprocessor for which the kernels are compiled.
    const RESIDENT: usize = 3;

    fn new(gpu: &Gpu, rows: usize, features: usize) -> Self {
        let lanes = features.next_power_of_two().min(32);
        let tiles = features.div_ceil(lanes);
        // The blocks that are resident at once: each loads the parameters of its tile once.
        let blocks = gpu.info().multiprocessors as usize * Self::RESIDENT;
        let row_tiles = rows.div_ceil(BLOCK as usize / lanes * Self::ROWS);
        let shares = (blocks / tiles).clamp(1, row_tiles.max(1));
        RowGrid { rows, log2_lanes: lanes.ilog2(), tiles, shares }
    }

    fn launch(&self, launch: Launch) -> Launch {
        launch.grid_2d(self.tiles, self.shares)
    }
}

/// Grid of the gradients of parameters, by the shape only, so that the order of sums is the same on every device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ParamGrid {
    /// Logarithm of the number of columns of a block.
    log2_lanes: u32,
    /// Logarithm of the number of groups of cosines of a block.
    log2_groups: u32,
    tiles: usize,
    /// Blocks that share the rows.
    shares: usize,
    /// Blocks that share the cosines.
    cosine_blocks: usize,
}

impl ParamGrid {
    /// BACKWARD_BLOCK, COSINES and MAX_LANES in the kernel.
    const BLOCK: usize = 512;
    const COSINES: usize = 4;
    const MAX_LANES: usize = 8;
    /// Number of blocks that fills any device: one per multiprocessor of the largest today.
    const BLOCKS: usize = 128;
    /// Rows per thread below which another block does not pay off.
    const MIN_ROWS: usize = 8;

    /// Grid with partial sums of `sum_bytes`.
    fn new(rows: usize, dims: Dims, sum_bytes: usize) -> Self {
        let Dims { features, frequencies, outputs } = dims;
        let groups = frequencies.div_ceil(Self::COSINES).next_power_of_two().min(Self::BLOCK / 32);
        let cosine_blocks = frequencies.div_ceil(groups * Self::COSINES).max(1);
        // Narrow tiles make more blocks, wide ones read whole sectors.
        let is_wide = features.div_ceil(Self::MAX_LANES) * cosine_blocks >= Self::BLOCKS;
        let lanes = features.next_power_of_two().min(Self::MAX_LANES / if is_wide { 1 } else { 2 });
        let tiles = features.div_ceil(lanes);
        let n_sums = tiles * cosine_blocks;
        let n_params = features * (frequencies * (2 + outputs) + outputs);
        let places = PARTIAL_SUMS * 8 / sum_bytes / n_params.max(1);
        let worthwhile = rows / (Self::BLOCK / (lanes * groups) * Self::MIN_ROWS);
        let shares =
            if n_sums > COUNTERS { 1 } else { (Self::BLOCKS / n_sums).min(places).min(worthwhile).max(1) };
        ParamGrid { log2_lanes: lanes.ilog2(), log2_groups: groups.ilog2(), tiles, shares, cosine_blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_grid_covers_the_cosines_and_has_its_counters_and_places() {
        for rows in [0, 1, 1000, 8192, 1 << 30] {
            for (features, frequencies, outputs) in [
                (1, 0, 0),
                (1, 1, 1),
                (10, 16, 3),
                (100, 16, 3),
                (300, 1000, 7),
                (1024, 8, 3),
                (1 << 20, 65, 20),
            ] {
                for sum_bytes in [4, 8] {
                    let grid = ParamGrid::new(rows, Dims { features, frequencies, outputs }, sum_bytes);
                    assert!(
                        grid.tiles << grid.log2_lanes >= features
                            && 1 << grid.log2_lanes <= ParamGrid::MAX_LANES
                    );
                    assert!((grid.cosine_blocks * ParamGrid::COSINES) << grid.log2_groups >= frequencies);
                    assert!(32 << grid.log2_groups <= ParamGrid::BLOCK);
                    if grid.shares > 1 {
                        let n_params = features * (frequencies * (2 + outputs) + outputs);
                        assert!(grid.tiles * grid.cosine_blocks <= COUNTERS);
                        assert!(grid.shares * n_params * sum_bytes <= PARTIAL_SUMS * 8);
                    }
                }
            }
        }
    }
}
