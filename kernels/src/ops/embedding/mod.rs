//! Learned embeddings of categorical features: codes in the last columns of `x` select rows of tables.

mod cpu;
mod cuda;

pub(crate) use cuda::SOURCE;

use std::ops::Range;

use crate::base::check;
use crate::base::error::Operand;
use crate::cpu::cell::Cell;
use crate::{DType, Device, KernelError, MemoryUse, Result, Shape, Tensor, TensorMut, TensorRef};

/// One table of embeddings in a flat buffer: `[n_codes, dim]` from element `start` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
        return cuda::forward(gpu, x.cuda()?, weights.cuda()?, places, sizes, &mut out.into_cuda()?);
    }
    if is_narrowed {
        let (x, weights) = (x.as_slice::<f32>(OP, "x")?, weights.as_slice(OP, "weights")?);
        return check::short_dispatch!(OP, out_op, S => {
            let out = out.into_slice::<S>(OP, "out")?;
            cpu::forward(OP, x, weights, &tables.tables, sizes, out, S::store)
        });
    }
    check::float_dispatch!(OP, x_op, T => {
        let (x, weights) = (x.as_slice::<T>(OP, "x")?, weights.as_slice(OP, "weights")?);
        cpu::forward(OP, x, weights, &tables.tables, sizes, out.into_slice::<T>(OP, "out")?, |v| v)
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
        return cuda::backward(gpu, x, d_out, places, sizes, &mut d_weights, &mut pairs, accumulate);
    }
    check::stored_dispatch!(OP, d_out_op, T => {
        let (x, d_out) = (x.as_slice(OP, "x")?, d_out.as_slice::<T>(OP, "d_out")?);
        let d_weights = d_weights.into_slice(OP, "d_weights")?;
        cpu::backward(OP, x, d_out, &tables.tables, sizes, d_weights, accumulate)
    })
}

#[cfg(test)]
mod tests;
