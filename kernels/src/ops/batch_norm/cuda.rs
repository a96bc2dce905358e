//! Tiles of columns and chunks of rows for sums, a thread per column for what is merged, and rows in accesses of 4 columns.

use crate::cuda::column_grid::{COLUMN_BLOCK, ColumnGrid};
use crate::cuda::launch::{Launch, RowTiles, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Result};

pub(crate) static SOURCE: Source = Source::new("batch_norm", include_str!("kernel.cu"));

/// The kernel `$name` for parameters of this dtype.
macro_rules! of_columns {
    ($name:literal, $dtype:expr) => {
        match $dtype {
            DType::F64 => concat!("batch_norm_", $name, "_f64"),
            _ => concat!("batch_norm_", $name, "_f32"),
        }
    };
}

/// The kernel `$name` for rows of this dtype, which may access several columns at a time.
macro_rules! by_rows {
    ($name:literal, $dtype:expr, $is_wide:expr) => {
        match ($dtype, $is_wide) {
            (DType::F64, true) => concat!("batch_norm_", $name, "_f64_packed"),
            (DType::F64, false) => concat!("batch_norm_", $name, "_f64"),
            (DType::BF16, true) => concat!("batch_norm_", $name, "_bf16_packed"),
            (DType::BF16, false) => concat!("batch_norm_", $name, "_bf16"),
            (DType::F16, true) => concat!("batch_norm_", $name, "_f16_packed"),
            (DType::F16, false) => concat!("batch_norm_", $name, "_f16"),
            (_, true) => concat!("batch_norm_", $name, "_f32_packed"),
            (_, false) => concat!("batch_norm_", $name, "_f32"),
        }
    };
}

/// Columns per access of rows of `cols` at these addresses: 4 (2 in f64), or 1.
fn per_access(dtype: DType, cols: usize, addresses: u64) -> usize {
    let n = if dtype == DType::F64 { 2 } else { 4 };
    let bytes = (n * dtype.size_bytes()) as u64;
    if cols.is_multiple_of(n) && addresses.is_multiple_of(bytes) { n } else { 1 }
}

/// Sets threads and blocks of a launch over tiles of columns and chunks of rows, and adds the arguments from `rows` on.
fn by_columns(
    gpu: &'static Gpu,
    launch: Launch,
    rows: usize,
    cols: usize,
    per_access: usize,
) -> Result<Launch> {
    // At least 128 bytes of a row, unless it is narrower; two sums in f64 per column and chunk.
    let least_lanes = if per_access > 1 { 16 } else { 32 };
    let grid = ColumnGrid::new(rows, cols, per_access, least_lanes, 16);
    let chunk_rows = rows.div_ceil(grid.shares).max(1);
    let chunks = rows.div_ceil(chunk_rows).max(1);
    let scratch = gpu.scratch()?;
    let launch = launch.threads(COLUMN_BLOCK as u32).grid_2d(grid.tiles, chunks);
    let launch = launch.arg(rows).arg(cols).arg(chunk_rows).arg(grid.log2_lanes);
    Ok(launch.arg(scratch.counter).arg(scratch.partials))
}

/// Same as `cpu::moments`; the caller checked the operands.
pub(super) fn moments(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    rows: usize,
    moments: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let cols = (moments.len() - 1) / 2;
    if cols == 0 {
        return Ok(());
    }
    let n = per_access(x.dtype(), cols, x.ptr());
    let launch = Launch::new(gpu, &SOURCE, by_rows!("moments", x.dtype(), n > 1))?.read(x).write(moments);
    let launch = by_columns(gpu, launch, rows, cols, n)?;
    // SAFETY: moments(const T* x, double* moments, size_t rows, size_t n, size_t chunk_rows, u32 log2_lanes, u32* counters,
    // double* partials); x holds rows * n elements, moments 2 n + 1; `by_columns` sets the kernel's block, has a counter per tile if there
    // are several chunks, and 2 n partials per chunk; if the kernel accesses several columns at a time, rows and x allow it.
    unsafe { launch.run() }
}

/// Statistics of the columns.
pub(super) struct Stats<'a> {
    pub(super) mean: CudaSliceMut<'a>,
    pub(super) rstd: CudaSliceMut<'a>,
    pub(super) count: CudaSliceMut<'a>,
}

/// Same as `cpu::statistics`; the caller checked the operands.
pub(super) fn statistics(
    gpu: &'static Gpu,
    all: CudaSlice<'_>,
    (eps, momentum): (f64, f64),
    stats: &mut Stats<'_>,
    running: [&mut CudaSliceMut<'_>; 2],
) -> Result<()> {
    let (cols, [running_mean, running_var]) = (stats.mean.len(), running);
    if cols == 0 {
        return Ok(());
    }
    let launch = Launch::new(gpu, &SOURCE, of_columns!("stats", stats.mean.dtype()))?.for_elements(cols, 1);
    let launch = launch.read(all).arg(all.len() / (2 * cols + 1)).arg(eps).arg(momentum);
    let launch = launch.write(&mut stats.mean).write(&mut stats.rstd).write(&mut stats.count);
    let launch = launch.write(running_mean).write(running_var).arg(cols);
    // SAFETY: stats(const double* all, size_t n_groups, double eps, double momentum, M* mean, M* rstd, double* count,
    // M* running_mean, M* running_var, size_t n); all holds 2 n + 1 elements per group, count one, the others n.
    unsafe { launch.run() }
}

/// Same as `cpu::frozen`, with an infinite count; the caller checked the operands.
pub(super) fn frozen(
    gpu: &'static Gpu,
    [running_mean, running_var]: [CudaSlice<'_>; 2],
    eps: f64,
    stats: &mut Stats<'_>,
) -> Result<()> {
    let cols = stats.mean.len();
    if cols == 0 {
        return Ok(());
    }
    let launch = Launch::new(gpu, &SOURCE, of_columns!("frozen", stats.mean.dtype()))?.for_elements(cols, 1);
    let launch = launch.read(running_mean).read(running_var).arg(eps);
    let launch = launch.write(&mut stats.mean).write(&mut stats.rstd).write(&mut stats.count).arg(cols);
    // SAFETY: frozen(const M* running_mean, const M* running_var, double eps, M* mean, M* rstd, double* count, size_t n); count
    // holds one element, the others n.
    unsafe { launch.run() }
}

/// Scale of the columns and their statistics.
#[derive(Clone, Copy)]
pub(super) struct Columns<'a> {
    pub(super) gamma: CudaSlice<'a>,
    pub(super) mean: CudaSlice<'a>,
    pub(super) rstd: CudaSlice<'a>,
}

/// Same as `cpu::forward`; the caller checked the operands.
pub(super) fn forward(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    columns: Columns<'_>,
    beta: CudaSlice<'_>,
    y: &mut CudaSliceMut<'_>,
) -> Result<()> {
    if y.is_empty() {
        return Ok(());
    }
    let Columns { gamma, mean, rstd } = columns;
    let (cols, rows) = (gamma.len(), y.len() / gamma.len());
    let n = per_access(x.dtype(), cols, x.ptr() | y.ptr());
    let tiles = RowTiles::by_columns(gpu, rows, cols / n);
    let launch = tiles.grid(Launch::new(gpu, &SOURCE, by_rows!("fwd", x.dtype(), n > 1))?);
    let launch = launch.read(x).read(gamma).read(beta).read(mean).read(rstd).write(y);
    let launch = launch.arg(rows).arg(cols).arg(tiles.log2_width());
    // SAFETY: fwd(const T* x, const M* gamma, const M* beta, const M* mean, const M* rstd, T* y, size_t rows, size_t n,
    // u32 log2_width); x and y hold rows * n elements, the others n; if the kernel accesses several columns at a time,
    // rows and addresses of x and y are multiples of that.
    unsafe { launch.run() }
}

/// Same as `cpu::backward_sums`; the caller checked the operands.
pub(super) fn backward_sums(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    d: CudaSlice<'_>,
    [mean, rstd]: [CudaSlice<'_>; 2],
    sums: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let cols = mean.len();
    if cols == 0 {
        return Ok(());
    }
    let n = per_access(x.dtype(), cols, x.ptr() | d.ptr());
    let launch = Launch::new(gpu, &SOURCE, by_rows!("sums", x.dtype(), n > 1))?;
    let launch = launch.read(x).read(d).read(mean).read(rstd).write(sums);
    let launch = by_columns(gpu, launch, x.len() / cols, cols, n)?;
    // SAFETY: sums(const T* x, const T* d, const M* mean, const M* rstd, double* sums, size_t rows, size_t n, size_t chunk_rows,
    // u32 log2_lanes, u32* counters, double* partials); x and d hold rows * n elements, mean and rstd n, sums 2 n; the others as in
    // `moments`.
    unsafe { launch.run() }
}

/// Operands of the backward pass, checked by the caller.
pub(super) struct Backward<'a> {
    pub(super) x: CudaSlice<'a>,
    pub(super) columns: Columns<'a>,
    pub(super) count: CudaSlice<'a>,
    pub(super) own: CudaSliceMut<'a>,
    pub(super) all: Option<CudaSlice<'a>>,
    pub(super) d: CudaSliceMut<'a>,
    pub(super) d_gamma: CudaSliceMut<'a>,
    pub(super) d_beta: CudaSliceMut<'a>,
    pub(super) accumulate: bool,
}

impl Backward<'_> {
    /// Same as `cpu::parameter_gradients` and `cpu::backward`.
    pub(super) fn run(mut self, gpu: &'static Gpu) -> Result<()> {
        let Columns { gamma, mean, rstd } = self.columns;
        let cols = gamma.len();
        if cols == 0 {
            return Ok(());
        }
        let n_groups = self.all.map_or(1, |all| all.len() / (2 * cols));
        let launch =
            Launch::new(gpu, &SOURCE, of_columns!("params", gamma.dtype()))?.for_elements(2 * cols, 1);
        let launch = launch.write(&mut self.own).read_opt(self.all).arg(n_groups).read(self.count);
        let launch = launch.write(&mut self.d_gamma).write(&mut self.d_beta);
        let launch = launch.arg(i32::from(self.accumulate)).arg(cols);
        // SAFETY: params(double* own, const double* all, size_t n_groups, const double* count, M* d_gamma, M* d_beta,
        // int accumulate, size_t n); own holds 2 n elements, all 2 n per group or is null, count one, the gradients n.
        unsafe { launch.run() }?;
        if self.d.is_empty() {
            return Ok(());
        }
        let rows = self.d.len() / cols;
        let n = per_access(self.x.dtype(), cols, self.x.ptr() | self.d.ptr());
        let tiles = RowTiles::by_columns(gpu, rows, cols / n);
        let launch = tiles.grid(Launch::new(gpu, &SOURCE, by_rows!("bwd", self.x.dtype(), n > 1))?);
        let launch = launch.read(self.x).read(gamma).read(mean).read(rstd).read(self.own.as_ref());
        let launch = launch.write(&mut self.d).arg(rows).arg(cols).arg(tiles.log2_width());
        // SAFETY: bwd(const T* x, const M* gamma, const M* mean, const M* rstd, const double* means, T* d, size_t rows, size_t n,
        // u32 log2_width); x and d hold rows * n elements, means 2 n, the others n; several columns at a time as in `forward`.
        unsafe { launch.run() }
    }
}
