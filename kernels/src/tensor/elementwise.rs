//! Elementwise methods. They return errors; the operators in `operators.rs` panic with the same message.

use crate::base::check;
use crate::ops::{
    Activation, AsInput, CompareOp, Input, MapOp, Scalar, activation_forward, broadcast_shape, compare, map,
    select, shapes_differ,
};
use crate::{AsView, DType, KernelError, Result, Shape, Tensor, TensorRef};

impl TensorRef<'_> {
    /// Allocates the result of an elementwise operation of this tensor and `b`.
    fn elementwise_result(self, op: &'static str, b: Input<'_>, dtype: DType) -> Result<Tensor> {
        let shape = match b.tensor() {
            None => self.shape(),
            Some(b) => broadcast_shape(self.shape(), b.shape())
                .ok_or_else(|| shapes_differ(op, self.operand("a"), b.operand("b")))?,
        };
        Tensor::for_result(self.memory_use(), shape, dtype, self.device())
    }

    pub(super) fn map(self, op: MapOp, b: Input<'_>) -> Result<Tensor> {
        let mut out = self.elementwise_result(op.name(), b, self.dtype())?;
        map(op, self.into(), b, out.new_view_mut())?;
        Ok(out)
    }

    fn compare(self, op: CompareOp, b: Input<'_>) -> Result<Tensor> {
        let mut out = self.elementwise_result(op.name(), b, DType::Bool)?;
        compare(op, self.into(), b, out.new_view_mut())?;
        Ok(out)
    }

    fn activate(self, op: &'static str, activation: Activation) -> Result<Tensor> {
        check::dtype(op, self.operand("a"), check::FLOATS, check::FLOATS_NAMES)?;
        let mut out = Tensor::for_result(self.memory_use(), self.shape(), self.dtype(), self.device())?;
        activation_forward(activation, self, out.new_view_mut())?;
        Ok(out)
    }

    fn check_bool(self, op: &'static str) -> Result<()> {
        check::dtype(op, self.operand("a"), &[DType::Bool], "bool (others: .ne(0))")
    }

    fn choose(self, condition: TensorRef<'_>, b: Input<'_>) -> Result<Tensor> {
        const OP: &str = "where_";
        let (a_op, condition_op) = (self.operand("a"), condition.operand("condition"));
        let mut shape = self.shape();
        if let Some(b) = b.tensor() {
            shape =
                broadcast_shape(shape, b.shape()).ok_or_else(|| shapes_differ(OP, a_op, b.operand("b")))?;
        }
        let shape =
            broadcast_shape(shape, condition.shape()).ok_or_else(|| shapes_differ(OP, a_op, condition_op))?;
        let mut out = Tensor::for_result(self.memory_use(), shape, self.dtype(), self.device())?;
        select(condition, self.into(), b, out.new_view_mut())?;
        Ok(out)
    }

    fn fill_masked(self, mask: TensorRef<'_>, value: Scalar) -> Result<Tensor> {
        const OP: &str = "masked_fill";
        if broadcast_shape(self.shape(), mask.shape()) != Some(self.shape()) {
            return Err(shapes_differ(OP, self.operand("a"), mask.operand("mask")));
        }
        let mut out = Tensor::for_result(self.memory_use(), self.shape(), self.dtype(), self.device())?;
        select(mask, Input::Scalar(value), self.into(), out.new_view_mut())?;
        Ok(out)
    }

    fn softplus_of(self, op: &'static str) -> Result<Tensor> {
        check::dtype(op, self.operand("a"), check::FLOATS, check::FLOATS_NAMES)?;
        if check::is_short(self.dtype()) {
            return self.to_dtype(DType::F32)?.view().softplus_of(op)?.to_dtype(self.dtype());
        }
        self.maximum(0.0)?.add(self.abs()?.neg()?.exp()?.log1p()?)
    }

    fn is_close(self, b: TensorRef<'_>, rtol: f64, atol: f64) -> Result<bool> {
        const OP: &str = "allclose";
        let (a_op, b_op) = (self.operand("a"), b.operand("b"));
        check::same_kind(OP, &[a_op, b_op])?;
        if broadcast_shape(self.shape(), b.shape()).is_none() {
            return Err(shapes_differ(OP, a_op, b_op));
        }
        let (a, b) = (self.to_dtype(DType::F64)?, b.to_dtype(DType::F64)?);
        let is_near = a.sub(&b)?.abs()?.le(b.abs()?.mul(rtol)?.add(atol)?)?;
        // Infinite differences are not near, and a limit may be infinite too.
        let is_near = is_near.logical_and(a.sub(&b)?.isfinite()?)?;
        is_near.logical_or(a.eq(&b)?)?.all()?.item::<bool>()
    }

    /// Zero where `is_zero` of row and column holds.
    fn triangle(
        self,
        op: &'static str,
        is_zero: impl Fn(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let [.., rows, columns] = *self.dims() else {
            let (rows, columns) = self.shape().rows_cols();
            let operand = self.operand("a").into();
            return Err(KernelError::Shape { op, operand, expected: Shape::matrix(rows, columns) });
        };
        let line = |n: usize| Tensor::arange(n, DType::I64, self.device());
        let mask = is_zero(&line(rows)?.into_shape(&[rows, 1])?, &line(columns)?)?;
        self.fill_masked(mask.view(), 0.into())
    }
}

macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident => $op:ident;)*) => {
        readable! {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`KernelError::DTypeUnsupported`]; as [`Tensor::zeros`].
                pub fn $name(&self) -> Result<Tensor> {
                    self.view().map(MapOp::$op, self.as_input())
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
    /// `ln(1 + a)`, of floats; accurate for small `a` too.
    log1p => Log1p;
    /// The square root, of floats.
    sqrt => Sqrt;
    /// `|a|`. Integers wrap.
    abs => Abs;
    /// The sine of radians, of floats.
    sin => Sin;
    /// The cosine of radians, of floats.
    cos => Cos;
    /// The next whole number below or at `a`.
    floor => Floor;
    /// The next whole number above or at `a`.
    ceil => Ceil;
    /// The nearest whole number, and the even one of two that are equally near, as in PyTorch.
    round => Round;
}

macro_rules! activation_methods {
    ($($(#[$doc:meta])* $name:ident => $activation:ident;)*) => {
        readable! {
            $(
                $(#[$doc])*
                ///
                /// # Errors
                /// [`KernelError::DTypeUnsupported`] unless they are floats; as [`Tensor::zeros`].
                pub fn $name(&self) -> Result<Tensor> {
                    self.view().activate(stringify!($name), Activation::$activation)
                }
            )*
        }
    };
}
activation_methods! {
    /// `max(a, 0)`; NaN stays NaN.
    relu => Relu;
    /// `a * cdf(a)` with the distribution function of the normal distribution, as PyTorch's default `gelu`.
    gelu => Gelu;
    /// `a * sigmoid(a)`.
    silu => Silu;
    /// The hyperbolic tangent.
    tanh => Tanh;
    /// `1 / (1 + e^-a)`.
    sigmoid => Sigmoid;
}

macro_rules! binary {
    ($method:ident; $($(#[$doc:meta])* $name:ident => $op:expr;)*) => {
        readable! {
            $(
                $(#[$doc])*
                ///
                /// `b` is a tensor or a view of one, whose shape broadcasts as in PyTorch, or a scalar.
                ///
                /// # Errors
                /// [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`] or [`KernelError::ShapeMismatch`], which name both
                /// operands and the call that fixes it; [`KernelError::DTypeUnsupported`]; [`KernelError::Scalar`].
                pub fn $name(&self, b: impl AsInput) -> Result<Tensor> {
                    self.view().$method($op, b.as_input())
                }
            )*
        }
    };
}
binary! {
    map;
    /// `a + b`. Integers wrap.
    add => MapOp::Add;
    /// `a - b`. Integers wrap.
    sub => MapOp::Sub;
    /// `a * b`. Integers wrap.
    mul => MapOp::Mul;
    /// `a / b`, of floats.
    div => MapOp::Div;
    /// `a^b`, of floats.
    pow => MapOp::Pow;
    /// The larger of the two; NaN if one is NaN.
    maximum => MapOp::Maximum;
    /// The smaller of the two; NaN if one is NaN.
    minimum => MapOp::Minimum;
}
binary! {
    compare;
    /// `a == b`, elementwise, as bool.
    eq => CompareOp::Eq;
    /// `a != b`, elementwise, as bool; true where an operand is NaN.
    ne => CompareOp::Ne;
    /// `a < b`, elementwise, as bool.
    lt => CompareOp::Lt;
    /// `a <= b`, elementwise, as bool.
    le => CompareOp::Le;
    /// `a > b`, elementwise, as bool.
    gt => CompareOp::Gt;
    /// `a >= b`, elementwise, as bool.
    ge => CompareOp::Ge;
}

readable! {
    /// [`Tensor::pow`] of a number, under Rust's name.
    ///
    /// # Errors
    /// Same as [`Tensor::pow`].
    pub fn powf(&self, b: f64) -> Result<Tensor> {
        self.pow(b)
    }

    /// `a * a`. Integers wrap.
    ///
    /// # Errors
    /// Same as [`Tensor::mul`].
    pub fn square(&self) -> Result<Tensor> {
        self.mul(self.as_input())
    }

    /// `ln(1 + e^a)` without overflow, of floats; 16-bit floats are computed in f32.
    ///
    /// # Errors
    /// Same as [`Tensor::exp`].
    ///
    /// Source: `torch.nn.functional.softplus` without its threshold.
    pub fn softplus(&self) -> Result<Tensor> {
        self.view().softplus_of("softplus")
    }

    /// Whether each element is neither infinite nor NaN.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn isfinite(&self) -> Result<Tensor> {
        if self.dtype().is_float() { self.abs()?.lt(f64::INFINITY) } else { self.eq(self.as_input()) }
    }

    /// Whether each element is infinite, of either sign.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn isinf(&self) -> Result<Tensor> {
        if self.dtype().is_float() { self.abs()?.eq(f64::INFINITY) } else { self.ne(self.as_input()) }
    }

    /// Whether `|a - b| <= atol + rtol * |b|` for all elements, or they are equal; NaN is close to nothing.
    ///
    /// Compares in f64 and waits for the device. PyTorch's defaults are 1e-5 and 1e-8.
    ///
    /// # Errors
    /// Same as [`Tensor::sub`].
    ///
    /// Source: `torch.allclose`.
    pub fn allclose(&self, b: impl AsView, rtol: f64, atol: f64) -> Result<bool> {
        self.view().is_close(b.as_view(), rtol, atol)
    }

    /// Whether each element is NaN.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn isnan(&self) -> Result<Tensor> {
        self.ne(self)
    }

    /// Whether both are true, of bool; also `&a & &b`.
    ///
    /// # Errors
    /// Same as [`Tensor::maximum`]; [`KernelError::DTypeUnsupported`] for numbers.
    pub fn logical_and(&self, b: impl AsInput) -> Result<Tensor> {
        self.view().check_bool("logical_and")?;
        self.minimum(b)
    }

    /// Whether one of both is true, of bool; also `&a | &b`.
    ///
    /// # Errors
    /// Same as [`Tensor::logical_and`].
    pub fn logical_or(&self, b: impl AsInput) -> Result<Tensor> {
        self.view().check_bool("logical_or")?;
        self.maximum(b)
    }

    /// Whether just one of both is true, of bool; also `&a ^ &b`.
    ///
    /// # Errors
    /// Same as [`Tensor::logical_and`].
    pub fn logical_xor(&self, b: impl AsInput) -> Result<Tensor> {
        self.view().check_bool("logical_xor")?;
        self.ne(b)
    }

    /// Whether each element is false, of bool; also `!&a`.
    ///
    /// # Errors
    /// Same as [`Tensor::logical_and`].
    pub fn logical_not(&self) -> Result<Tensor> {
        self.view().check_bool("logical_not")?;
        self.eq(false)
    }

    /// -1, 0 or 1, as each element is negative, zero or positive; 0 for NaN.
    ///
    /// # Errors
    /// Same as [`Tensor::maximum`].
    pub fn sign(&self) -> Result<Tensor> {
        let (above, below) = (self.gt(0)?.to_dtype(self.dtype())?, self.lt(0)?.to_dtype(self.dtype())?);
        above.sub(&below)
    }

    /// `min(max(a, low), high)`; NaN stays NaN.
    ///
    /// # Errors
    /// Same as [`Tensor::maximum`].
    pub fn clamp(&self, low: impl Into<Scalar>, high: impl Into<Scalar>) -> Result<Tensor> {
        self.maximum(low.into())?.minimum(high.into())
    }

    /// Elements of this tensor where `condition` is true, else elements of `b`; all three broadcast.
    ///
    /// # Errors
    /// Same as [`Tensor::maximum`]; [`KernelError::DTypeUnsupported`] if `condition` is not of truth values.
    ///
    /// Source: `torch.Tensor.where`.
    pub fn where_(&self, condition: impl AsView, b: impl AsInput) -> Result<Tensor> {
        self.view().choose(condition.as_view(), b.as_input())
    }

    /// This tensor with `value` where `mask` is true.
    ///
    /// # Errors
    /// Same as [`Tensor::where_`]; [`KernelError::ShapeMismatch`] if `mask` does not broadcast to this tensor's shape.
    ///
    /// Source: `torch.Tensor.masked_fill`.
    pub fn masked_fill(&self, mask: impl AsView, value: impl Into<Scalar>) -> Result<Tensor> {
        self.view().fill_masked(mask.as_view(), value.into())
    }

    /// Zero below diagonal `diagonal` of the last two dimensions; diagonal 0 is the main one, 1 the one above.
    ///
    /// # Errors
    /// [`KernelError::Shape`] for fewer than two dimensions; as [`Tensor::zeros`].
    ///
    /// Source: `torch.triu`.
    pub fn triu(&self, diagonal: i64) -> Result<Tensor> {
        self.view().triangle("triu", |row, column| column.lt(&row.add(diagonal)?))
    }

    /// Zero above diagonal `diagonal` of the last two dimensions.
    ///
    /// # Errors
    /// Same as [`Tensor::triu`].
    ///
    /// Source: `torch.tril`.
    pub fn tril(&self, diagonal: i64) -> Result<Tensor> {
        self.view().triangle("tril", |row, column| column.gt(&row.add(diagonal)?))
    }
}
