//! Elementwise methods and operators.
//!
//! Methods return errors. Operators (`&a + &b`, `2.0 * &a`, `-&a`) panic with the same message, as an operator can't return one.

use std::ops::{Add, Div, Mul, Neg, Sub};

use crate::hint::with_hint;
use crate::ops::{CompareOp, Input, MapOp, Scalar, broadcast_shape, compare, map, select, shapes_differ};
use crate::{DType, KernelError, Result, Shape, Tensor};

impl Tensor {
    /// Allocates the result of an elementwise operation of this tensor and `b`.
    fn elementwise_result(&self, op: &'static str, b: Input<'_>, dtype: DType) -> Result<Self> {
        let shape = match b.tensor() {
            None => self.shape(),
            Some(b) => broadcast_shape(self.shape(), b.shape())
                .ok_or_else(|| shapes_differ(op, self.view().operand("a"), b.operand("b")))?,
        };
        Self::for_result(self.memory_use(), shape, dtype, self.device())
    }

    fn map(&self, op: MapOp, b: Input<'_>) -> Result<Self> {
        let mut out = self.elementwise_result(op.name(), b, self.dtype())?;
        map(op, self.into(), b, out.view_mut())?;
        Ok(out)
    }

    fn compare(&self, op: CompareOp, b: Input<'_>) -> Result<Self> {
        let mut out = self.elementwise_result(op.name(), b, DType::Bool)?;
        compare(op, self.into(), b, out.view_mut())?;
        Ok(out)
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// Elementwise functions of one tensor.
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`KernelError::DTypeUnsupported`]; as [`Tensor::zeros`].
                pub fn $name(&self) -> Result<Self> {
                    self.map(MapOp::$op, self.into())
                }
            )*
        }
    };
}
unary! {
    /// `-a`. Integers wrap.
    neg => Neg;
    /// `e^a`, of floats.
    exp => Exp;
    /// The natural logarithm, of floats.
    log => Log;
    /// The square root, of floats.
    sqrt => Sqrt;
    /// `|a|`. Integers wrap.
    abs => Abs;
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        /// Elementwise functions of a tensor and a second operand: a tensor whose shape broadcasts, or a scalar.
        ///
        /// Broadcasting is PyTorch's: dimensions, from the last on, are equal, or one of them is 1 or absent. A tensor that is repeated
        /// along a dimension between two along which it varies (`[2, 1, 3]` in `[2, 5, 3]`) is refused.
        impl Tensor {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`] or [`KernelError::ShapeMismatch`], which name both
                /// operands and the call that fixes it; [`KernelError::DTypeUnsupported`]; [`KernelError::Scalar`].
                pub fn $name<'a>(&self, b: impl Into<Input<'a>>) -> Result<Self> {
                    self.map(MapOp::$op, b.into())
                }
            )*
        }
    };
}
binary! {
    /// `a + b`. Integers wrap.
    add => Add;
    /// `a - b`. Integers wrap.
    sub => Sub;
    /// `a * b`. Integers wrap.
    mul => Mul;
    /// `a / b`, of floats.
    div => Div;
    /// `a^b`, of floats.
    pow => Pow;
    /// The larger of the two; NaN if one is NaN.
    maximum => Maximum;
    /// The smaller of the two; NaN if one is NaN.
    minimum => Minimum;
}

/// Comparisons, clamping and selection.
impl Tensor {
    /// `a == b`, elementwise, as bool.
    ///
    /// # Errors
    /// Same as [`Tensor::maximum`].
    pub fn eq<'a>(&self, b: impl Into<Input<'a>>) -> Result<Self> {
        self.compare(CompareOp::Eq, b.into())
    }

    /// `a < b`, elementwise, as bool.
    ///
    /// # Errors
    /// Same as [`Tensor::maximum`].
    pub fn lt<'a>(&self, b: impl Into<Input<'a>>) -> Result<Self> {
        self.compare(CompareOp::Lt, b.into())
    }

    /// `a > b`, elementwise, as bool.
    ///
    /// # Errors
    /// Same as [`Tensor::maximum`].
    pub fn gt<'a>(&self, b: impl Into<Input<'a>>) -> Result<Self> {
        self.compare(CompareOp::Gt, b.into())
    }

    /// `min(max(a, low), high)`; NaN stays NaN.
    ///
    /// # Errors
    /// Same as [`Tensor::maximum`].
    pub fn clamp(&self, low: impl Into<Scalar>, high: impl Into<Scalar>) -> Result<Self> {
        self.map(MapOp::Maximum, Input::Scalar(low.into()))?.map(MapOp::Minimum, Input::Scalar(high.into()))
    }

    /// Elements of this tensor where `condition` is true, else elements of `b`; all three broadcast.
    ///
    /// # Errors
    /// Same as [`Tensor::maximum`]; [`KernelError::DTypeUnsupported`] if `condition` is not of truth values.
    ///
    /// Source: `torch.Tensor.where`.
    pub fn where_<'a>(&self, condition: &Tensor, b: impl Into<Input<'a>>) -> Result<Self> {
        const OP: &str = "where_";
        let b = b.into();
        let (a_op, condition_op) = (self.view().operand("a"), condition.view().operand("condition"));
        let mut shape = self.shape();
        if let Some(b) = b.tensor() {
            shape =
                broadcast_shape(shape, b.shape()).ok_or_else(|| shapes_differ(OP, a_op, b.operand("b")))?;
        }
        let shape =
            broadcast_shape(shape, condition.shape()).ok_or_else(|| shapes_differ(OP, a_op, condition_op))?;
        let mut out = Self::for_result(self.memory_use(), shape, self.dtype(), self.device())?;
        select(condition.view(), self.into(), b, out.view_mut())?;
        Ok(out)
    }

    /// This tensor with `value` where `mask` is true.
    ///
    /// # Errors
    /// Same as [`Tensor::where_`]; [`KernelError::ShapeMismatch`] if `mask` does not broadcast to this tensor's shape.
    ///
    /// Source: `torch.Tensor.masked_fill`.
    pub fn masked_fill(&self, mask: &Tensor, value: impl Into<Scalar>) -> Result<Self> {
        const OP: &str = "masked_fill";
        if broadcast_shape(self.shape(), mask.shape()) != Some(self.shape()) {
            return Err(shapes_differ(OP, self.view().operand("a"), mask.view().operand("mask")));
        }
        let mut out = Self::for_result(self.memory_use(), self.shape(), self.dtype(), self.device())?;
        select(mask.view(), Input::Scalar(value.into()), self.into(), out.view_mut())?;
        Ok(out)
    }

    /// Zero below diagonal `diagonal` of the last two dimensions; diagonal 0 is the main one, 1 the one above.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for fewer than two dimensions; as [`Tensor::zeros`].
    ///
    /// Source: `torch.triu`.
    pub fn triu(&self, diagonal: i64) -> Result<Self> {
        self.triangle("triu", |row, column| column.lt(&row.add(diagonal)?))
    }

    /// Zero above diagonal `diagonal` of the last two dimensions.
    ///
    /// # Errors
    /// Same as [`Tensor::triu`].
    ///
    /// Source: `torch.tril`.
    pub fn tril(&self, diagonal: i64) -> Result<Self> {
        self.triangle("tril", |row, column| column.gt(&row.add(diagonal)?))
    }

    /// Zero where `is_zero` of row and column holds.
    fn triangle(
        &self,
        op: &'static str,
        is_zero: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Self> {
        let [.., rows, columns] = *self.dims() else {
            let (rows, columns) = self.shape().rows_cols();
            let operand = self.view().operand("a").into();
            return Err(KernelError::Shape { op, operand, expected: Shape::matrix(rows, columns) });
        };
        let line = |n| Tensor::arange(n, DType::I64, self.device());
        let mask = is_zero(&line(rows)?.into_shape(&[rows, 1])?, &line(columns)?)?;
        self.masked_fill(&mask, 0)
    }
}

/// The result of an operator, which cannot return an error.
#[track_caller]
fn or_panic(result: Result<Tensor>) -> Tensor {
    match result {
        Ok(tensor) => tensor,
        Err(error) => panic!("{}", with_hint(&error)),
    }
}

macro_rules! operators {
    ($($trait:ident, $method:ident, $op:ident;)*) => {
        $(
            impl<'a, B: Into<Input<'a>>> $trait<B> for &Tensor {
                type Output = Tensor;

                /// # Panics
                /// With the message of the error that the method of this name returns.
                #[track_caller]
                fn $method(self, b: B) -> Tensor {
                    or_panic(self.map(MapOp::$op, b.into()))
                }
            }

            impl<'a, B: Into<Input<'a>>> $trait<B> for Tensor {
                type Output = Tensor;

                /// # Panics
                /// Same as for `&Tensor`.
                #[track_caller]
                fn $method(self, b: B) -> Tensor {
                    or_panic(self.map(MapOp::$op, b.into()))
                }
            }

            operators!(@scalar $trait, $method, $op; f64, i64);
        )*
    };
    (@scalar $trait:ident, $method:ident, $op:ident; $($scalar:ty),*) => {
        $(
            impl $trait<&Tensor> for $scalar {
                type Output = Tensor;

                /// # Panics
                /// Same as for `&Tensor`.
                #[track_caller]
                fn $method(self, b: &Tensor) -> Tensor {
                    let result = Tensor::for_result(b.memory_use(), b.shape(), b.dtype(), b.device());
                    or_panic(result.and_then(|mut out| {
                        map(MapOp::$op, self.into(), b.into(), out.view_mut())?;
                        Ok(out)
                    }))
                }
            }
        )*
    };
}
operators! {
    Add, add, Add;
    Sub, sub, Sub;
    Mul, mul, Mul;
    Div, div, Div;
}

impl Neg for &Tensor {
    type Output = Tensor;

    /// # Panics
    /// With the message of the error that [`Tensor::neg`] returns.
    #[track_caller]
    fn neg(self) -> Tensor {
        or_panic(self.map(MapOp::Neg, self.into()))
    }
}
