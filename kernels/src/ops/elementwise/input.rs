//! Operands of elementwise operations: tensors and scalars, and how their shapes broadcast.

use crate::base::error::Operand;
use crate::base::shape::MAX_DIMS;
use crate::{AsView, DType, KernelError, Result, Shape, Tensor, TensorRef};

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
        let value = match self {
            Scalar::Float(value) => value as i128,
            Scalar::Int(value) => value.into(),
        };
        let fits = match dtype {
            _ if dtype.is_float() => true,
            DType::U8 => (0..=255).contains(&value),
            DType::Bool => (0..=1).contains(&value),
            DType::I32 => i32::try_from(value).is_ok(),
            _ => i64::try_from(value).is_ok(),
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

// Broadcasting of shapes: PyTorch's, up to four dimensions.
//
// Dimensions along which an operand varies and those along which it is repeated alternate in at most four runs, so two cycles name
// the element of an operand that belongs to an element of the result.

/// Position of a broadcast operand's element for element `i` of the result: `(i / div) % len + (i / outer_div) % outer_len * len`.
///
/// Most operands have no outer cycle (`outer_len` 1); `[2, 1, 3]` in `[2, 5, 3]` has one of length 2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cycle {
    /// Elements of the result that share one element of the operand.
    pub(super) div: usize,
    /// Adjacent elements of the operand that the result goes through in turn.
    pub(super) len: usize,
    /// Elements of the result until the next `len` elements of the operand: a multiple of `div * len`.
    pub(super) outer_div: usize,
    /// Number of times that there are `len` elements.
    pub(super) outer_len: usize,
}

impl Cycle {
    /// The operand's element for element `i` of the result.
    #[inline(always)]
    pub(super) fn at(self, i: usize) -> usize {
        self.outer(i) + self.inner(i)
    }

    /// The first of the `len` adjacent elements among which that element is.
    #[inline(always)]
    pub(super) fn outer(self, i: usize) -> usize {
        if self.outer_len == 1 { 0 } else { i / self.outer_div % self.outer_len * self.len }
    }

    /// Its index among them.
    #[inline(always)]
    pub(super) fn inner(self, i: usize) -> usize {
        i / self.div % self.len
    }

    /// Whether element `i` of a result of `n` elements reads element `i` of the operand.
    #[inline(always)]
    pub(super) fn is_identity(self, n: usize) -> bool {
        self.div == 1 && self.len == n
    }
}

/// The dimensions of `shape`, with leading ones.
fn padded(shape: Shape) -> [usize; MAX_DIMS] {
    let mut dims = [1; MAX_DIMS];
    let own = shape.dims();
    dims[MAX_DIMS - own.len()..].copy_from_slice(own);
    dims
}

/// The shape to which both broadcast, as in PyTorch: dimensions, from the last on, are equal or one of them is 1 or absent.
pub(crate) fn broadcast_shape(a: Shape, b: Shape) -> Option<Shape> {
    let (x, y) = (padded(a), padded(b));
    let mut dims = [1; MAX_DIMS];
    for i in 0..MAX_DIMS {
        dims[i] = match (x[i], y[i]) {
            (x, y) if x == y => x,
            (1, y) => y,
            (x, 1) => x,
            _ => return None,
        };
    }
    let n_dims = a.dims().len().max(b.dims().len());
    Shape::new(&dims[MAX_DIMS - n_dims..]).ok()
}

/// The cycle of an operand of shape `x` in a result of shape `out`; None if it does not broadcast to it.
pub(super) fn cycle(x: Shape, out: Shape) -> Option<Cycle> {
    let (from, to) = (padded(x), padded(out));
    let mut cycle = Cycle { div: 1, len: 1, outer_div: 1, outer_len: 1 };
    // Elements of the result within the dimensions gone through so far, from the last on.
    let mut inner = 1;
    // Whether the operand varied along one of them, was repeated before that, and varied before that.
    let (mut varied, mut repeated, mut varied_again) = (false, false, false);
    for i in (0..MAX_DIMS).rev() {
        match (from[i], to[i]) {
            (1, 1) => {}
            (x, n) if x == n && !repeated => {
                varied = true;
                cycle.len *= n;
            }
            (x, n) if x == n => {
                if !varied_again {
                    cycle.outer_div = inner;
                }
                varied_again = true;
                cycle.outer_len *= n;
            }
            (1, _) if varied => repeated = true,
            (1, n) => cycle.div *= n,
            _ => return None,
        }
        inner *= to[i];
    }
    // Where the result is empty.
    (cycle.div, cycle.outer_div) = (cycle.div.max(1), cycle.outer_div.max(1));
    Some(cycle)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).unwrap()
    }

    #[test]
    fn shapes_broadcast_as_in_pytorch() {
        let both = |a: &[usize], b: &[usize]| broadcast_shape(shape(a), shape(b)).map(|s| s.dims().to_vec());
        assert_eq!(both(&[2, 3], &[3]), Some(vec![2, 3]));
        assert_eq!(both(&[2, 1], &[3]), Some(vec![2, 3]));
        assert_eq!(both(&[], &[4]), Some(vec![4]));
        assert_eq!(both(&[1], &[0, 5]), Some(vec![0, 5]));
        assert_eq!(both(&[2, 3], &[2]), None);
    }

    #[test]
    fn a_cycle_follows_the_definition() {
        for (x, out) in [
            (vec![3], vec![2, 3]),
            (vec![2, 1], vec![2, 3]),
            (vec![1], vec![2, 3]),
            (vec![4, 1, 1], vec![2, 4, 3, 5]),
            (vec![2, 3], vec![2, 3]),
            (vec![1, 3, 1], vec![2, 3, 4]),
            (vec![2, 1, 3], vec![2, 5, 3]),
            (vec![2, 1, 1, 3], vec![2, 4, 3, 3]),
            (vec![2, 1, 3, 1], vec![2, 4, 3, 5]),
            (vec![2, 1, 4], vec![3, 2, 5, 4]),
            (vec![2, 3, 1, 4], vec![2, 3, 5, 4]),
            (vec![2, 1, 3, 4], vec![2, 5, 3, 4]),
        ] {
            let (x, out) = (shape(&x), shape(&out));
            let cycle = cycle(x, out).unwrap();
            assert_eq!(cycle.len * cycle.outer_len, x.numel());
            assert_eq!(cycle.is_identity(out.numel()), x == out);
            let (from, to) = (padded(x), padded(out));
            for i in 0..out.numel() {
                // The indices of element i, and their element of x.
                let (mut rest, mut at, mut stride) = (i, 0, 1);
                for d in (0..MAX_DIMS).rev() {
                    let index = rest % to[d];
                    rest /= to[d];
                    at += if from[d] == 1 { 0 } else { index * stride };
                    stride *= from[d];
                }
                assert_eq!(cycle.at(i), at, "{x} in {out}");
            }
        }
        assert_eq!(cycle(shape(&[2]), shape(&[2, 3])), None);
    }
}
