//! Tensors filled on their device, by kernels, and tensors written out: `tensor![[1., 2.], [3., 4.]]`.

use std::ops::Range;

use crate::base::check;
use crate::base::error::Operand;
use crate::ops::{Pattern, Scalar, UniformStream, fill, uniform};
use crate::{DType, Device, HostValue, IntoDevice, KernelError, MemoryUse, Result, Shape, Tensor};

impl Tensor {
    /// Creates a tensor whose elements `pattern` defines.
    fn filled(dims: &[usize], pattern: Pattern, dtype: DType, device: impl IntoDevice) -> Result<Self> {
        let mut tensor = Self::empty(dims, dtype, device)?;
        fill(tensor.new_view_mut(), pattern)?;
        Ok(tensor)
    }

    /// Creates a tensor with unspecified contents, for code that writes all of it.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn empty(dims: &[usize], dtype: DType, device: impl IntoDevice) -> Result<Self> {
        Self::for_result(MemoryUse::Other, Shape::new(dims)?, dtype, device.into_device()?)
    }

    /// Creates a tensor of ones.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn ones(dims: &[usize], dtype: DType, device: impl IntoDevice) -> Result<Self> {
        Self::full(dims, 1.0, dtype, device)
    }

    /// Creates a tensor filled with `value`, converted to the dtype as [`Tensor::to_dtype`] does.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn full(
        dims: &[usize],
        value: impl Into<f64>,
        dtype: DType,
        device: impl IntoDevice,
    ) -> Result<Self> {
        Self::filled(dims, Pattern::Line { start: value.into(), step: 0.0 }, dtype, device)
    }

    /// Creates the vector `0, 1, ..., n - 1`, or the numbers of a range in steps of 1; for bool, an element is true if the number is
    /// not 0.
    ///
    /// ```
    /// use ddp_kernels::{DType, Device, Tensor};
    ///
    /// assert_eq!(Tensor::arange(3, DType::I64, Device::Cpu)?.to_vec::<i64>()?, [0, 1, 2]);
    /// assert_eq!(Tensor::arange(-1..2, DType::I64, "cpu")?.to_vec::<i64>()?, [-1, 0, 1]);
    /// assert_eq!(Tensor::arange(0.5..2.0, DType::F32, "cpu")?.to_vec::<f32>()?, [0.5, 1.5]);
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    ///
    /// Source: `torch.arange`; other steps are `arange(..)? * step`.
    pub fn arange(span: impl Into<Span>, dtype: DType, device: impl IntoDevice) -> Result<Self> {
        let Span { start, end } = span.into();
        let n = (end - start).ceil().max(0.0) as usize;
        Self::filled(&[n], Pattern::Line { start, step: 1.0 }, dtype, device)
    }

    /// Creates a vector of `n` evenly spaced numbers from `start` to `end`, both included; computed in f64.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    ///
    /// Source: `torch.linspace`, whose f32 numbers may differ in the last place.
    pub fn linspace(start: f64, end: f64, n: usize, dtype: DType, device: impl IntoDevice) -> Result<Self> {
        let pattern = Pattern::Between { start, end, n };
        Self::filled(&[n], pattern, dtype, device)
    }

    /// Creates the identity matrix `[n, n]`.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn eye(n: usize, dtype: DType, device: impl IntoDevice) -> Result<Self> {
        Self::filled(&[n, n], Pattern::Identity { n }, dtype, device)
    }

    /// Creates uniform random numbers in `[0, 1)`, a function of `seed` and element index only: the same on every device.
    ///
    /// There is no global generator: a program that wants other numbers gives another seed.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`]; [`KernelError::DTypeUnsupported`] for integers.
    pub fn rand(dims: &[usize], dtype: DType, device: impl IntoDevice, seed: u64) -> Result<Self> {
        let device = device.into_device()?;
        check::dtype("rand", result(dims, dtype, device)?, check::FLOATS, check::FLOATS_NAMES)?;
        let mut tensor = Self::empty(dims, dtype, device)?;
        uniform(tensor.new_view_mut(), 0.0, 1.0, UniformStream { seed, stream: [0, 0] })?;
        Ok(tensor)
    }

    /// Creates standard normal random numbers (Box-Muller in f64), a function of `seed` and element index only; the same on every
    /// device up to the last place of f64's elementary functions. Two tensors of one seed start with the same numbers, rows and weights
    /// too: give each a seed of its own.
    ///
    /// # Errors
    /// Same as [`Tensor::rand`].
    pub fn randn(dims: &[usize], dtype: DType, device: impl IntoDevice, seed: u64) -> Result<Self> {
        let device = device.into_device()?;
        check::dtype("randn", result(dims, dtype, device)?, check::FLOATS, check::FLOATS_NAMES)?;
        Self::filled(dims, Pattern::Normal { seed }, dtype, device)
    }

    /// Creates random whole numbers from `low` to `high - 1`, a function of `seed` and element index only: the same on every device.
    ///
    /// ```
    /// use ddp_kernels::{DType, Tensor};
    ///
    /// let dice = Tensor::randint(1, 7, &[100], DType::I64, "cpu", 0)?;
    /// assert_eq!((dice.min(None)?.item::<i64>()?, dice.max(None)?.item::<i64>()?), (1, 6));
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// [`KernelError::EmptyRange`] if there is no such number; [`KernelError::Scalar`] if one is no value of the dtype; [`KernelError::Misuse`]
    /// for few numbers beyond those that the dtype, or f64, holds without gaps; else as [`Tensor::zeros`].
    ///
    /// Source: `torch.randint`.
    pub fn randint(
        low: i64,
        high: i64,
        dims: &[usize],
        dtype: DType,
        device: impl IntoDevice,
        seed: u64,
    ) -> Result<Self> {
        const OP: &str = "randint";
        let device = device.into_device()?;
        if low >= high {
            return Err(KernelError::EmptyRange { op: OP, low, high });
        }
        let digits = match dtype {
            DType::BF16 => 8,
            DType::F16 => 11,
            DType::F32 => 24,
            _ => 53,
        };
        let largest = 1_i64 << digits;
        let is_near = high.abs_diff(low) <= 1 << 53;
        for end in [low, high - 1] {
            Scalar::Int(end).check(OP, dtype, result(dims, dtype, device)?)?;
            if is_near && !(-largest..=largest).contains(&end) {
                let problem = format!("{dtype} draws no whole numbers near {end}: they have gaps");
                return Err(KernelError::misuse(
                    OP,
                    problem,
                    format!("numbers from -{largest} to {largest}"),
                ));
            }
        }
        Self::filled(dims, Pattern::Integers { seed, low, high }, dtype, device)
    }
}

readable! {
    /// Creates zeros with this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn zeros_like(&self) -> Result<Tensor> {
        self.new_zeros(self.dims())
    }

    /// Creates ones with this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn ones_like(&self) -> Result<Tensor> {
        self.new_ones(self.dims())
    }

    /// Creates a tensor filled with `value`, with this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn full_like(&self, value: impl Into<f64>) -> Result<Tensor> {
        self.new_full(self.dims(), value)
    }

    /// [`Tensor::rand`] with this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::rand`].
    pub fn rand_like(&self, seed: u64) -> Result<Tensor> {
        Tensor::rand(self.dims(), self.dtype(), self.device(), seed)
    }

    /// [`Tensor::randn`] with this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::rand`].
    pub fn randn_like(&self, seed: u64) -> Result<Tensor> {
        Tensor::randn(self.dims(), self.dtype(), self.device(), seed)
    }

    /// Creates zeros of another shape with this tensor's dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn new_zeros(&self, dims: &[usize]) -> Result<Tensor> {
        Tensor::zeros_for(self.memory_use(), dims, self.dtype(), self.device())
    }

    /// Creates ones of another shape with this tensor's dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn new_ones(&self, dims: &[usize]) -> Result<Tensor> {
        self.new_full(dims, 1.0)
    }

    /// Creates a tensor of another shape filled with `value`, with this tensor's dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn new_full(&self, dims: &[usize], value: impl Into<f64>) -> Result<Tensor> {
        Tensor::full(dims, value, self.dtype(), self.device())
    }
}

/// The tensor to create, as messages show it.
fn result(dims: &[usize], dtype: DType, device: Device) -> Result<Operand> {
    Ok(Operand { name: "result", shape: Shape::new(dims)?, dtype, device })
}

/// The numbers of [`Tensor::arange`]: those below `n` from 0 on, or a range.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    start: f64,
    end: f64,
}

impl From<usize> for Span {
    fn from(n: usize) -> Self {
        Span { start: 0.0, end: n as f64 }
    }
}

macro_rules! ranges {
    ($($t:ty),*) => {
        $(impl From<Range<$t>> for Span {
            fn from(range: Range<$t>) -> Self {
                Span { start: range.start as f64, end: range.end as f64 }
            }
        })*
    };
}
ranges!(i32, i64, usize, f64);

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
