//! Tensors written out: `tensor![[1., 2.], [3., 4.]]`.

use crate::{Device, HostValue, Tensor};

/// Creates a tensor on the CPU from its elements, row by row. As in PyTorch, numbers with a point are f32, whole numbers i64, and
/// `true` and `false` bool; [`Tensor::from_slice`] takes all other types.
///
/// ```
/// use ddp_kernels::{DType, tensor};
///
/// let x = tensor![[1., 2.], [3., 4.]];
/// assert_eq!((x.dims(), x.dtype()), (&[2, 2][..], DType::F32));
/// assert_eq!(tensor![3, 4].sum(None)?.item::<i64>()?, 7);
/// # Ok::<(), ddp_kernels::KernelError>(())
/// ```
///
/// Rows of different lengths do not compile:
///
/// ```compile_fail
/// ddp_kernels::tensor![[1., 2.], [3.]];
/// ```
///
/// # Panics
/// If there is no memory for it, as `vec!` does, or if there are more than four dimensions.
#[macro_export]
macro_rules! tensor {
    ($($element:expr),+ $(,)?) => {
        $crate::Tensor::from_literal(&[$($element),+])
    };
}

/// A number that [`tensor!`](crate::tensor!) takes, or an array of them.
///
/// Just one float type and one integer type implement it, so that literals without a suffix become these.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no element of `tensor!`, which takes f32, i64, bool and arrays of them",
    note = "`Tensor::from_slice` takes all element types"
)]
pub trait Literal {
    /// The type of the numbers.
    type Value: HostValue;
    /// Adds the dimensions, from the outermost on.
    fn add_dims(dims: &mut Vec<usize>);
    /// Adds the numbers in row-major order.
    fn add_values(&self, values: &mut Vec<Self::Value>);
}

macro_rules! numbers {
    ($($t:ty),*) => {
        $(impl Literal for $t {
            type Value = $t;
            fn add_dims(_: &mut Vec<usize>) {}
            fn add_values(&self, values: &mut Vec<$t>) {
                values.push(*self);
            }
        })*
    };
}
numbers!(f32, i64, bool);

impl<L: Literal, const N: usize> Literal for [L; N] {
    type Value = L::Value;

    fn add_dims(dims: &mut Vec<usize>) {
        dims.push(N);
        L::add_dims(dims);
    }

    fn add_values(&self, values: &mut Vec<L::Value>) {
        self.iter().for_each(|row| row.add_values(values));
    }
}

impl Tensor {
    /// The tensor of [`tensor!`](crate::tensor!).
    #[doc(hidden)]
    pub fn from_literal<L: Literal, const N: usize>(rows: &[L; N]) -> Self {
        let (mut dims, mut values) = (Vec::new(), Vec::new());
        <[L; N]>::add_dims(&mut dims);
        rows.add_values(&mut values);
        Self::from_slice(&values, &dims, Device::Cpu)
            .unwrap_or_else(|error| panic!("{}", crate::hint::with_hint(&error)))
    }
}

#[cfg(test)]
mod tests {
    use crate::DType;

    #[test]
    fn literals_have_pytorchs_dtypes_and_the_shape_that_is_seen() {
        let cube = tensor![[[1, 2], [3, 4]], [[5, 6], [7, 8]]];
        assert_eq!((cube.dims(), cube.dtype()), (&[2, 2, 2][..], DType::I64));
        assert_eq!(cube.to_vec::<i64>().unwrap(), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(tensor![0.5].dims(), [1]);
        let x = 3.0;
        assert_eq!(tensor![x, -x, 1e-3].to_vec::<f32>().unwrap(), [3.0, -3.0, 1e-3]);
        assert_eq!(tensor![[true], [false]].dtype(), DType::Bool);
        let five = std::panic::catch_unwind(|| tensor![[[[[1]]]]]).unwrap_err();
        assert!(five.downcast_ref::<String>().unwrap().contains("at most 4 dimensions"));
    }
}
