//! Operands of elementwise operations: tensors and scalars.

use crate::base::error::Operand;
use crate::{AsView, DType, KernelError, Result, Tensor, TensorRef};

/// A scalar operand. It takes on the dtype of the tensors next to it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// A real number.
    Float(f64),
    /// An integer, or a bool as 0 or 1.
    Int(i64),
}

impl Scalar {
    /// The value as f64, rounded if necessary.
    pub(crate) fn to_f64(self) -> f64 {
        match self {
            Scalar::Float(value) => value,
            Scalar::Int(value) => value as f64,
        }
    }

    /// The value as i64, truncated if necessary.
    pub(crate) fn to_i64(self) -> i64 {
        match self {
            Scalar::Float(value) => value as i64,
            Scalar::Int(value) => value,
        }
    }

    /// Checks that it is a value of `dtype`, the dtype of `beside`.
    pub(crate) fn check(self, op: &'static str, dtype: DType, beside: Operand) -> Result<()> {
        let fits = match dtype {
            _ if dtype.is_float() => true,
            DType::U8 => (0..=255).contains(&self.to_i64()),
            DType::Bool => (0..=1).contains(&self.to_i64()),
            DType::I32 => i32::try_from(self.to_i64()).is_ok(),
            _ => true,
        };
        let is_whole = dtype.is_float() || self.to_f64().fract() == 0.0;
        if fits && is_whole {
            return Ok(());
        }
        Err(KernelError::Scalar { op, scalar: self.to_f64(), operand: Operand { dtype, ..beside }.into() })
    }
}

/// An operand of an elementwise operation.
#[derive(Debug, Clone, Copy)]
pub enum Input<'a> {
    /// A tensor, broadcast to the shape of the result.
    Tensor(TensorRef<'a>),
    /// The same value everywhere.
    Scalar(Scalar),
}

impl<'a> Input<'a> {
    pub(crate) fn tensor(self) -> Option<TensorRef<'a>> {
        match self {
            Input::Tensor(tensor) => Some(tensor),
            Input::Scalar(_) => None,
        }
    }

    pub(super) fn dtype(self) -> Option<DType> {
        self.tensor().map(|tensor| tensor.dtype())
    }
}

macro_rules! scalars {
    ($($t:ty => $variant:ident),*) => {
        $(
            impl From<$t> for Scalar {
                fn from(value: $t) -> Self {
                    Scalar::$variant(value.into())
                }
            }
            impl From<$t> for Input<'_> {
                fn from(value: $t) -> Self {
                    Input::Scalar(value.into())
                }
            }
            impl AsInput for $t {
                fn as_input(&self) -> Input<'_> {
                    (*self).into()
                }
            }
        )*
    };
}
scalars!(f64 => Float, f32 => Float, i64 => Int, i32 => Int, u8 => Int, bool => Int);

impl AsInput for Scalar {
    fn as_input(&self) -> Input<'_> {
        Input::Scalar(*self)
    }
}

impl From<Scalar> for Input<'_> {
    fn from(scalar: Scalar) -> Self {
        Input::Scalar(scalar)
    }
}

impl<'a> From<&'a Tensor> for Input<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Input::Tensor(tensor.view())
    }
}

impl<'a> From<TensorRef<'a>> for Input<'a> {
    fn from(view: TensorRef<'a>) -> Self {
        Input::Tensor(view)
    }
}

/// An operand of an elementwise operation: a tensor or a view of one, owned or borrowed, or a scalar.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a tensor nor a scalar of `f64`, `f32`, `i64`, `i32`, `u8` or `bool`"
)]
pub trait AsInput {
    /// The operand.
    fn as_input(&self) -> Input<'_>;
}

impl<V: AsView> AsInput for V {
    #[inline]
    fn as_input(&self) -> Input<'_> {
        Input::Tensor(self.as_view())
    }
}

impl AsInput for Input<'_> {
    fn as_input(&self) -> Input<'_> {
        *self
    }
}
