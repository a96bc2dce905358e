//! Elementwise operations of one or two operands, each a tensor or a scalar, with broadcasting.

mod input;
mod cpu;
mod cuda;

#[cfg(test)]
mod tests;

pub(crate) use cuda::SOURCE;
pub(crate) use input::broadcast_shape;
pub use input::{AsInput, Input, Scalar};

use crate::base::check;
use crate::base::error::Operand;
use crate::ops::elementwise::input::Cycle;
use crate::{DType, KernelError, Result, TensorMut, TensorRef};

crate::named_enum! {
    /// An operation whose result has the dtype of its operands.
    pub enum MapOp {
        /// `-a`; integers wrap.
        Neg = "neg",
        /// `e^a`, of floats.
        Exp = "exp",
        /// The natural logarithm, of floats.
        Log = "log",
        /// The square root, of floats.
        Sqrt = "sqrt",
        /// `|a|`; integers wrap.
        Abs = "abs",
        /// `a + b`; integers wrap, as in the next two.
        Add = "add",
        /// `a - b`.
        Sub = "sub",
        /// `a * b`.
        Mul = "mul",
        /// `a / b`, of floats.
        Div = "div",
        /// `a^b`, of floats.
        Pow = "pow",
        /// The larger of the two; NaN if one is NaN. For bool: OR.
        Maximum = "maximum",
        /// The smaller of the two; NaN if one is NaN. For bool: AND.
        Minimum = "minimum",
        /// The sine, of floats.
        Sin = "sin",
        /// The cosine, of floats.
        Cos = "cos",
        /// The next whole number below or at `a`.
        Floor = "floor",
        /// The next whole number above or at `a`.
        Ceil = "ceil",
        /// The nearest whole number; the even one of two that are equally near.
        Round = "round",
        /// `ln(1 + a)`, also of small `a`, of floats.
        Log1p = "log1p",
    }
}

impl MapOp {
    /// Whether it ignores its second operand.
    pub fn is_unary(self) -> bool {
        !matches!(
            self,
            MapOp::Add | MapOp::Sub | MapOp::Mul | MapOp::Div | MapOp::Pow | MapOp::Maximum | MapOp::Minimum
        )
    }

    /// The supported dtypes, and their names in messages.
    fn takes(self) -> (&'static [DType], &'static str) {
        match self {
            MapOp::Exp
            | MapOp::Log
            | MapOp::Log1p
            | MapOp::Sqrt
            | MapOp::Div
            | MapOp::Pow
            | MapOp::Sin
            | MapOp::Cos => (check::FLOATS, check::FLOATS_NAMES),
            MapOp::Maximum | MapOp::Minimum => (&DType::ALL, "all"),
            MapOp::Neg
            | MapOp::Abs
            | MapOp::Add
            | MapOp::Sub
            | MapOp::Mul
            | MapOp::Floor
            | MapOp::Ceil
            | MapOp::Round => (NUMBERS, "all but bool"),
        }
    }
}

/// All dtypes but bool.
const NUMBERS: &[DType] =
    &[DType::F32, DType::F64, DType::BF16, DType::F16, DType::I64, DType::I32, DType::U8];

crate::named_enum! {
    /// A comparison; with NaN only [`CompareOp::Ne`] is true.
    #[doc(hidden)]
    pub enum CompareOp {
        /// `a == b`.
        Eq = "eq",
        /// `a < b`.
        Lt = "lt",
        /// `a > b`.
        Gt = "gt",
        /// `a != b`.
        Ne = "ne",
        /// `a <= b`.
        Le = "le",
        /// `a >= b`.
        Ge = "ge",
    }
}

/// `out = op(a, b)`, elementwise; an operation of one operand ignores `b`.
///
/// - `a`, `b`: of one device and dtype, with shapes that broadcast to `out`'s, or scalars; `out`: their dtype
/// - 16-bit floats are computed in f32 and rounded once
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`], [`KernelError::ShapeMismatch`];
/// [`KernelError::DTypeUnsupported`]; [`KernelError::Scalar`] for a fraction next to integers.
///
/// Source: PyTorch's functions of these names, without type promotion.
pub fn map(op: MapOp, a: Input<'_>, b: Input<'_>, out: TensorMut<'_>) -> Result<()> {
    let name = op.name();
    let out_op = out.operand("out");
    let (allowed, names) = op.takes();
    for (input, operand) in [(a, "a"), (b, "b")] {
        if let Input::Tensor(x) = input {
            check::dtype(name, x.operand(operand), allowed, names)?;
        }
    }
    let [a, b] = prepare(name, [a, b], out_op.dtype, out_op, false)?;
    match out.gpu() {
        Some(gpu) => cuda::map(gpu, op, a, b, &mut out.into_cuda()?),
        None => cpu::map(op, a, b, out),
    }
}

/// `out = op(a, b)`, elementwise, as bool.
///
/// - `a`, `b`: as in [`map`], of any dtype; `out`: bool
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// Same as [`map`].
#[doc(hidden)]
pub fn compare(op: CompareOp, a: Input<'_>, b: Input<'_>, out: TensorMut<'_>) -> Result<()> {
    let name = op.name();
    let out_op = out.operand("out");
    check::dtype(name, out_op, &[DType::Bool], "bool")?;
    let dtype = a.dtype().or(b.dtype()).unwrap_or(DType::F64);
    let [a, b] = prepare(name, [a, b], dtype, out_op, false)?;
    match out.gpu() {
        Some(gpu) => cuda::compare(gpu, op, dtype, a, b, &mut out.into_cuda()?),
        None => cpu::compare(op, dtype, a, b, out.into_bytes(name, "out")?),
    }
}

/// `out = condition ? a : b`, elementwise.
///
/// - `condition`: bool; `a`, `b`, `out`: as in [`map`], of any dtype
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// Same as [`map`].
///
/// Source: `torch.where`.
#[doc(hidden)]
pub fn select(condition: TensorRef<'_>, a: Input<'_>, b: Input<'_>, out: TensorMut<'_>) -> Result<()> {
    const OP: &str = "where_";
    let (condition_op, out_op) = (condition.operand("condition"), out.operand("out"));
    check::dtype(OP, condition_op, &[DType::Bool], "bool")?;
    check::same_device(OP, &[out_op, condition_op])?;
    let cycle = input::cycle(condition.shape(), out_op.shape)
        .ok_or_else(|| shapes_differ(OP, out_op, condition_op))?;
    let [a, b] = prepare(OP, [a, b], out_op.dtype, out_op, true)?;
    match out.gpu() {
        Some(gpu) => cuda::select(gpu, condition, cycle, a, b, &mut out.into_cuda()?),
        None => cpu::select(condition.as_bytes(OP, "condition")?, cycle, a, b, out),
    }
}

/// A checked operand.
#[derive(Debug, Clone, Copy)]
enum Ready<'a> {
    Tensor(TensorRef<'a>, Cycle),
    Scalar(Scalar),
}

/// Checks that operands are of `dtype` and broadcast to `out`, which a condition may make larger, and that scalars are values of the dtype.
fn prepare<'a>(
    op: &'static str,
    inputs: [Input<'a>; 2],
    dtype: DType,
    out: Operand,
    has_condition: bool,
) -> Result<[Ready<'a>; 2]> {
    let names = ["a", "b"];
    let operands: Vec<Operand> = (0..2).filter_map(|i| Some(inputs[i].tensor()?.operand(names[i]))).collect();
    if let [a, b] = operands[..] {
        check::same_kind(op, &[a, b])?;
        let both = broadcast_shape(a.shape, b.shape);
        // Together with a condition the result can be larger than both.
        if if has_condition { both.is_none() } else { both != Some(out.shape) } {
            return Err(shapes_differ(op, a, b));
        }
    }
    let ready = |input: Input<'a>, name| -> Result<Ready<'a>> {
        match input {
            Input::Tensor(x) => {
                let operand = x.operand(name);
                check::same_device(op, &[operand, out])?;
                check::same_dtype(op, &[operand, Operand { dtype, ..out }])?;
                let cycle =
                    input::cycle(x.shape(), out.shape).ok_or_else(|| shapes_differ(op, out, operand))?;
                Ok(Ready::Tensor(x, cycle))
            }
            Input::Scalar(scalar) => {
                let beside = operands.first().copied().unwrap_or(out);
                scalar.check(op, dtype, beside)?;
                Ok(Ready::Scalar(scalar))
            }
        }
    };
    Ok([ready(inputs[0], "a")?, ready(inputs[1], "b")?])
}

/// The error of two shapes that do not broadcast, with a call that makes them.
pub(crate) fn shapes_differ(op: &'static str, a: Operand, b: Operand) -> KernelError {
    let (x, y) = (a.shape.dims(), b.shape.dims());
    let reversed: Vec<usize> = y.iter().rev().copied().collect();
    let fix = if a.shape.numel() == b.shape.numel() && y.len() == 2 && reversed == x {
        format!("{}.t()", b.name)
    } else if a.shape.numel() == b.shape.numel() {
        format!("{}.reshape(&{})", b.name, a.shape)
    } else if y.len() == 1 && x.first() == y.first() {
        let mut column = vec![1; x.len()];
        column[0] = y[0];
        format!("{}.reshape(&{column:?})", b.name)
    } else {
        format!("{}.narrow(..) or .reshape(..): dimensions, from the last on, must be equal or 1", b.name)
    };
    KernelError::ShapeMismatch { op, a: a.into(), b: b.into(), rule: "broadcast", fix: fix.into() }
}
