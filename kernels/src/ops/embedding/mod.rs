//! Learned embeddings of categorical features: codes in the last columns of `x` select rows of tables.

use std::ops::Range;

use cudarc::driver::result;

use crate::base::check;
use crate::base::error::Operand;
use crate::cpu::cell::Cell;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::{Float, Stored};
use crate::cuda::launch::{Launch, RowTiles, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu, check_driver};
use crate::{DType, Device, Element, KernelError, MemoryUse, Result, Shape, Tensor, TensorMut, TensorRef};

/// One table of embeddings in a flat buffer: `[n_codes, dim]` from element `start` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub struct EmbeddingTable {
    /// First element of the table.
    pub start: usize,
    /// Number of rows: codes are integers in `0..n_codes`.
    pub n_codes: usize,
    /// Width of a row.
    pub dim: usize,
}

impl EmbeddingTable {
    /// Maximum number of codes of a table: f32 holds every integer up to here.
    pub const MAX_CODES: usize = 1 << 24;

    /// End of the table, exclusive.
    fn end(&self) -> usize {
        self.n_codes.saturating_mul(self.dim).saturating_add(self.start)
    }

    /// The elements of the row of `code`.
    fn row(&self, code: usize) -> Range<usize> {
        let start = self.start + code * self.dim;
        start..start + self.dim
    }
}

/// The tables of a model in the order of their code columns, with a lookup table for the device.
#[derive(Debug)]
#[doc(hidden)]
pub struct EmbeddingTables {
    tables: Vec<EmbeddingTable>,
    /// On a GPU: start, codes, width and first column of each table, then the table of each column; i64.
    places: Option<Tensor>,
}

/// Maximum number of rows per call.
const MAX_ROWS: usize = u32::MAX as usize;

/// Sizes of one call.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    rows: usize,
    /// Columns of `x` that are not codes.
    n_numbers: usize,
    /// Columns of `out`.
    cols: usize,
    n_tables: usize,
    /// Width of the widest table.
    widest: usize,
}

impl EmbeddingTables {
    /// Creates the lookup for operations on `device`.
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for a table that begins before the end of the previous one, or with more than
    /// [`EmbeddingTable::MAX_CODES`] codes; [`KernelError::DeviceUnavailable`], [`KernelError::OutOfMemory`], [`KernelError::Cuda`].
    pub fn new(tables: Vec<EmbeddingTable>, device: Device) -> Result<Self> {
        const OP: &str = "embedding tables";
        let mut end = 0;
        for table in &tables {
            if table.n_codes > EmbeddingTable::MAX_CODES {
                let len = EmbeddingTable::MAX_CODES;
                return Err(KernelError::OutOfRange { op: OP, start: 0, end: table.n_codes, len });
            }
            if table.start < end {
                return Err(KernelError::OutOfRange { op: OP, start: table.start, end, len: table.start });
            }
            end = table.end();
        }
        let places = match device {
            Device::Cpu => None,
            Device::Cuda(_) => {
                let places = places(&tables);
                let places = TensorRef::from_slice(&places, &[places.len()])?;
                Some(places.copy_to(MemoryUse::Workspace, device)?)
            }
        };
        Ok(EmbeddingTables { tables, places })
    }

    /// The tables.
    pub fn tables(&self) -> &[EmbeddingTable] {
        &self.tables
    }

    /// Total number of columns of all tables.
    pub fn width(&self) -> usize {
        self.tables.iter().map(|table| table.dim).sum()
    }

    /// Length of the workspace of [`embedding_backward`] for up to `max_rows` rows; 0 on the CPU.
    pub fn workspace_len(&self, max_rows: usize) -> usize {
        let device = self.places.as_ref().map_or(Device::Cpu, Tensor::device);
        Self::workspace_len_on(self.tables.len(), max_rows, device)
    }

    /// [`EmbeddingTables::workspace_len`] of this many tables on `device`.
    pub fn workspace_len_on(n_tables: usize, max_rows: usize, device: Device) -> usize {
        match device {
            Device::Cpu => 0,
            Device::Cuda(_) => 2 * n_tables * max_rows,
        }
    }

    /// Checks codes and output, from which the number of numeric columns follows, and that the tables lie within `weights` and have
    /// their lookup on this GPU.
    fn check(&self, op: &'static str, x: Operand, weights: Operand, out: Operand) -> Result<Sizes> {
        check::same_device(op, &[x, weights, out])?;
        let known_on = self.places.as_ref().map_or(Device::Cpu, Tensor::device);
        check::same_device(op, &[x, Operand { name: "tables", device: known_on, ..x }])?;
        let (rows, x_cols) = check::matrix(op, x)?;
        // A sorted code carries its row in 32 bits.
        if rows > MAX_ROWS {
            return Err(KernelError::OutOfRange { op, start: 0, end: rows, len: MAX_ROWS });
        }
        let Some(n_numbers) = x_cols.checked_sub(self.tables.len()) else {
            return Err(KernelError::Shape {
                op,
                operand: x.into(),
                expected: Shape::matrix(rows, self.tables.len()),
            });
        };
        let cols = n_numbers + self.width();
        check::shape(op, out, Shape::matrix(rows, cols))?;
        let len = weights.shape.numel();
        if let Some(table) = self.tables.last().filter(|table| table.end() > len) {
            return Err(KernelError::OutOfRange { op, start: table.start, end: table.end(), len });
        }
        let widest = self.tables.iter().map(|table| table.dim).max().unwrap_or(0);
        Ok(Sizes { rows, n_numbers, cols, n_tables: self.tables.len(), widest })
    }
}

/// The lookup that kernels read.
fn places(tables: &[EmbeddingTable]) -> Vec<i64> {
    let mut column = 0;
    let mut places = Vec::new();
    for table in tables {
        places.extend([table.start, table.n_codes, table.dim, column].map(|v| v as i64));
        column += table.dim;
    }
    for (index, table) in tables.iter().enumerate() {
        places.extend(std::iter::repeat_n(index as i64, table.dim));
    }
    places
}

/// Concatenates the numbers of each row of `x` with the table rows of its codes:
/// `out[n, :] = (x[n, 0..N], table_0[x[n, N]], table_1[x[n, N + 1]], ..)`.
///
/// - `x`: `[B, N + E]`, f32 or f64: `N` numbers and one code, an integer, for each of the `E` tables
/// - `weights`: the buffer that holds the tables, of the dtype of `x`; `out`: `[B, N + Σ dim]` of the same, or bf16 or f16 if
///   that is f32
///
/// Asynchronous on the device's compute stream, so a GPU cannot report a code outside its table: the code's columns become NaN.
///
/// # Errors
/// On the CPU [`KernelError::Code`] for such a code; [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`],
/// [`KernelError::DTypeUnsupported`], [`KernelError::Shape`]; [`KernelError::OutOfRange`] if `weights` is too short.
///
/// Source: `torch.nn.Embedding`, concatenated with the numbers.
#[doc(hidden)]
pub fn embedding_forward(
    x: TensorRef<'_>,
    weights: TensorRef<'_>,
    tables: &EmbeddingTables,
    out: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "embedding_forward";
    let (x_op, weights_op, out_op) = (x.operand("x"), weights.operand("weights"), out.operand("out"));
    let sizes = tables.check(OP, x_op, weights_op, out_op)?;
    check::dtype(OP, x_op, &[DType::F32, DType::F64], "f32 and f64")?;
    check::same_dtype(OP, &[x_op, weights_op])?;
    let is_narrowed = check::narrows(x.dtype(), out.dtype());
    if !is_narrowed {
        check::same_dtype(OP, &[x_op, out_op])?;
    }
    if let (Some(gpu), Some(places)) = (x.gpu(), &tables.places) {
        let places = places.view().cuda()?;
        return forward_cuda(gpu, x.cuda()?, weights.cuda()?, places, sizes, &mut out.into_cuda()?);
    }
    if is_narrowed {
        let (x, weights) = (x.as_slice::<f32>(OP, "x")?, weights.as_slice(OP, "weights")?);
        return check::short_dispatch!(OP, out_op, S => {
            let out = out.into_slice::<S>(OP, "out")?;
            forward_cpu(OP, x, weights, &tables.tables, sizes, out, S::store)
        });
    }
    check::float_dispatch!(OP, x_op, T => {
        let (x, weights) = (x.as_slice::<T>(OP, "x")?, weights.as_slice(OP, "weights")?);
        forward_cpu(OP, x, weights, &tables.tables, sizes, out.into_slice::<T>(OP, "out")?, |v| v)
    })
}

/// Computes the gradient of the tables: `d_table_t[c, :] = Σ d_out[n, columns of t]` over the rows `n` with code `c`, or `+=`
/// if `accumulate`.
///
/// - `x`: as in [`embedding_forward`]; `d_out`: `[B, N + Σ dim]` of its dtype, or bf16 or f16 if that is f32
/// - `d_weights`: the buffer of the tables' gradients, laid out as the tables, of the dtype of `x`; without `accumulate` all of
///   it is zeroed first, so that rows without a code are 0
/// - `workspace`: scratch of [`EmbeddingTables::workspace_len`] i64
/// - the bits depend on the values only, not on the run; on a GPU a code outside its table adds nothing
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// Same as [`embedding_forward`]; [`KernelError::Shape`] for a workspace that is too short.
#[doc(hidden)]
pub fn embedding_backward(
    x: TensorRef<'_>,
    d_out: TensorRef<'_>,
    tables: &EmbeddingTables,
    d_weights: TensorMut<'_>,
    workspace: TensorMut<'_>,
    accumulate: bool,
) -> Result<()> {
    const OP: &str = "embedding_backward";
    let (x_op, d_out_op) = (x.operand("x"), d_out.operand("d_out"));
    let d_weights_op = d_weights.operand("d_weights");
    let sizes = tables.check(OP, x_op, d_weights_op, d_out_op)?;
    check::dtype(OP, x_op, &[DType::F32, DType::F64], "f32 and f64")?;
    check::same_dtype(OP, &[x_op, d_weights_op])?;
    let is_widened = check::narrows(x.dtype(), d_out.dtype());
    if !is_widened {
        check::same_dtype(OP, &[x_op, d_out_op])?;
    }
    let workspace_op = workspace.operand("workspace");
    check::same_device(OP, &[x_op, workspace_op])?;
    if let (Some(gpu), Some(places)) = (x.gpu(), &tables.places) {
        check::dtype(OP, workspace_op, &[DType::I64], "i64")?;
        let wanted = tables.workspace_len(sizes.rows);
        if workspace.numel() < wanted {
            check::shape(OP, workspace_op, Shape::vector(wanted))?;
        }
        let places = places.view().cuda()?;
        let (mut d_weights, mut pairs) = (d_weights.into_cuda()?, workspace.into_cuda()?);
        let (x, d_out) = (x.cuda()?, d_out.cuda()?);
        return backward_cuda(gpu, x, d_out, places, sizes, &mut d_weights, &mut pairs, accumulate);
    }
    check::stored_dispatch!(OP, d_out_op, T => {
        let (x, d_out) = (x.as_slice(OP, "x")?, d_out.as_slice::<T>(OP, "d_out")?);
        let d_weights = d_weights.into_slice(OP, "d_weights")?;
        backward_cpu(OP, x, d_out, &tables.tables, sizes, d_weights, accumulate)
    })
}

#[cfg(test)]
mod tests;

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// Checks that every code is within its table.
fn check_codes<T: Float>(op: &'static str, x: &[T], sizes: Sizes, tables: &[EmbeddingTable]) -> Result<()> {
    if tables.is_empty() {
        return Ok(());
    }
    for (row, x) in x.chunks_exact(sizes.n_numbers + tables.len()).enumerate() {
        for (index, (code, table)) in x[sizes.n_numbers..].iter().zip(tables).enumerate() {
            let code = code.to_f64();
            if !(code >= 0.0 && code < table.n_codes as f64 && code.trunc() == code) {
                let column = sizes.n_numbers + index;
                return Err(KernelError::Code { op, row, column, code, n_codes: table.n_codes });
            }
        }
    }
    Ok(())
}

/// Concatenates numbers and table rows, each element converted by `convert`.
fn forward_cpu<T: Float, U: Element>(
    op: &'static str,
    x: &[T],
    weights: &[T],
    tables: &[EmbeddingTable],
    sizes: Sizes,
    out: &mut [U],
    convert: impl Fn(T) -> U + Sync,
) -> Result<()> {
    check_codes(op, x, sizes, tables)?;
    let (cols, x_cols) = (sizes.cols, sizes.n_numbers + tables.len());
    let out = SharedMut::new(out);
    for_parts(sizes.rows, MIN_PART.div_ceil(cols.max(1)), 1, |part| {
        for n in part {
            // SAFETY: row `n` of `out`, which is in this thread's part alone.
            let out = unsafe { out.slice(n * cols..(n + 1) * cols) };
            let (numbers, codes) = x[n * x_cols..(n + 1) * x_cols].split_at(sizes.n_numbers);
            let (to, mut rest) = out.split_at_mut(sizes.n_numbers);
            to.iter_mut().zip(numbers).for_each(|(to, &v)| *to = convert(v));
            for (&code, table) in codes.iter().zip(tables) {
                let (to, after) = rest.split_at_mut(table.dim);
                let row = &weights[table.row(code.to_f64() as usize)];
                to.iter_mut().zip(row).for_each(|(to, &v)| *to = convert(v));
                rest = after;
            }
        }
    });
    Ok(())
}

/// Adds each row's gradient to the table rows of its codes; threads share columns, so that each sum is in the order of the rows.
fn backward_cpu<T: Stored>(
    op: &'static str,
    x: &[T::Real],
    d_out: &[T],
    tables: &[EmbeddingTable],
    sizes: Sizes,
    d_weights: &mut [T::Real],
    accumulate: bool,
) -> Result<()> {
    check_codes(op, x, sizes, tables)?;
    if !accumulate {
        d_weights.fill(T::Real::ZERO);
    }
    let (cols, x_cols) = (sizes.cols, sizes.n_numbers + tables.len());
    let d_weights = SharedMut::new(d_weights);
    for_parts(cols - sizes.n_numbers, MIN_PART.div_ceil(sizes.rows.max(1)), 1, |part| {
        let mut column = 0;
        for (index, table) in tables.iter().enumerate() {
            let own =
                part.start.clamp(column, column + table.dim)..part.end.clamp(column, column + table.dim);
            let (own, first) = (own.start - column..own.end - column, sizes.n_numbers + column);
            column += table.dim;
            if own.is_empty() {
                continue;
            }
            for n in 0..sizes.rows {
                let start = table.row(x[n * x_cols + sizes.n_numbers + index].to_f64() as usize).start;
                // SAFETY: within the table, by `check_codes` and the check that the tables are disjoint and within the buffer; these
                // columns belong to this thread's part alone.
                let to = unsafe { d_weights.slice(start + own.start..start + own.end) };
                let from = &d_out[n * cols + first..][own.clone()];
                to.iter_mut().zip(from).for_each(|(to, &v)| *to += v.load());
            }
        }
    });
    Ok(())
}

pub(crate) static SOURCE: Source = Source::new("embedding", include_str!("kernel.cu")).after_others();

/// Block sizes of the kernels.
const SORT_BLOCK: u32 = 512;
const SUM_BLOCK: u32 = 256;
const TILE: usize = 64;
/// Columns of a table that a block sums.
const PART: usize = 32;

/// Forward: one launch for all tables. Backward: sort the codes with their rows, zero the gradient, sum the rows of each code;
/// three operations for all tables.
///
/// Computes `out` from `x` and `weights`: both f32 or f64; `out` of the same dtype, or bf16 or f16 if that is f32.
fn forward_cuda(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    weights: CudaSlice<'_>,
    tables: CudaSlice<'_>,
    sizes: Sizes,
    out: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let Sizes { rows, n_numbers, cols, n_tables, .. } = sizes;
    if rows * cols == 0 {
        return Ok(());
    }
    let kernel = match out.dtype() {
        DType::F64 => "embedding_fwd_f64",
        DType::BF16 => "embedding_fwd_f32_bf16",
        DType::F16 => "embedding_fwd_f32_f16",
        _ => "embedding_fwd_f32",
    };
    let tiles = RowTiles::new(gpu, rows, cols);
    let launch = tiles.grid(Launch::new(gpu, &SOURCE, kernel)?).read(x).read(weights).write(out).read(tables);
    let launch = launch.arg(rows).arg(n_numbers).arg(n_tables).arg(cols).arg(tiles.log2_width());
    // SAFETY: fwd(const T* x, const T* weights, V* out, const i64* tables, size_t rows, size_t n_numbers, size_t n_tables,
    // size_t cols, u32 log2_width); x and out hold the rows, weights every table, and tables is `EmbeddingTables::new`'s.
    unsafe { launch.run() }
}

/// `d_weights` of `d_out`, both f32 or f64, or `d_out` bf16 or f16; `x` f32 or f64; `pairs` of [`EmbeddingTables::workspace_len`].
#[allow(clippy::too_many_arguments)] // The operands of one operation.
fn backward_cuda(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    d_out: CudaSlice<'_>,
    tables: CudaSlice<'_>,
    sizes: Sizes,
    d_weights: &mut CudaSliceMut<'_>,
    pairs: &mut CudaSliceMut<'_>,
    accumulate: bool,
) -> Result<()> {
    if !accumulate {
        zero(gpu, d_weights)?;
    }
    let Sizes { rows, n_numbers, cols, n_tables, widest } = sizes;
    if rows * (cols - n_numbers) == 0 {
        return Ok(());
    }
    let kernel = if x.dtype() == DType::F64 { "embedding_sort_f64" } else { "embedding_sort_f32" };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.threads(SORT_BLOCK).blocks(n_tables);
    let launch = launch.read(x).read(tables).write(pairs).arg(rows).arg(n_numbers).arg(n_tables);
    // SAFETY: sort(const T* x, const i64* tables, u64* pairs, size_t rows, size_t n_numbers, size_t n_tables); x holds the rows,
    // pairs twice a number for each code; a block is SORT_BLOCK threads.
    unsafe { launch.run()? };
    let kernel = match d_out.dtype() {
        DType::F64 => "embedding_bwd_f64",
        DType::BF16 => "embedding_bwd_bf16_f32",
        DType::F16 => "embedding_bwd_f16_f32",
        _ => "embedding_bwd_f32",
    };
    let parts = widest.div_ceil(PART);
    let launch = Launch::new(gpu, &SOURCE, kernel)?.threads(SUM_BLOCK);
    let launch = launch.grid_2d(rows.div_ceil(TILE), n_tables * parts);
    let launch = launch.read(pairs.as_ref()).read(tables).read(d_out).write(d_weights);
    let launch = launch.arg(rows).arg(n_numbers).arg(n_tables).arg(cols).arg(parts);
    // SAFETY: bwd(const u64* pairs, const i64* tables, const T* d_out, D* d_weights, size_t rows, size_t n_numbers, size_t n_tables,
    // size_t cols, size_t parts); d_out holds the rows, d_weights every table, pairs what the sort left; a block is SUM_BLOCK threads.
    unsafe { launch.run() }
}

fn zero(gpu: &'static Gpu, values: &mut CudaSliceMut<'_>) -> Result<()> {
    if values.is_empty() {
        return Ok(());
    }
    gpu.bind()?;
    // SAFETY: the slice has that many bytes and is exclusive; zero bits are the number 0 in every float type.
    let set = unsafe { result::memset_d8_async(values.ptr(), 0, values.len_bytes(), gpu.compute().raw()) };
    check_driver(gpu.index(), "cuMemsetD8Async", set)
}
