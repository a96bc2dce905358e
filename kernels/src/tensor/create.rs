//! Tensors filled on their device, by kernels.

use crate::base::check;
use crate::ops::{Pattern, UniformStream, fill, uniform};
use crate::{DType, Device, Result, Shape, Tensor};

impl Tensor {
    /// Creates a tensor whose elements `pattern` defines.
    fn filled(dims: &[usize], pattern: Pattern, dtype: DType, device: Device) -> Result<Self> {
        let mut tensor = Self::for_result(crate::MemoryUse::Other, Shape::new(dims)?, dtype, device)?;
        fill(tensor.view_mut(), pattern)?;
        Ok(tensor)
    }

    /// Creates a tensor of ones.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn ones(dims: &[usize], dtype: DType, device: Device) -> Result<Self> {
        Self::full(dims, 1.0, dtype, device)
    }

    /// Creates a tensor filled with `value`, converted to the dtype as [`Tensor::to_dtype`] does.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn full(dims: &[usize], value: f64, dtype: DType, device: Device) -> Result<Self> {
        Self::filled(dims, Pattern::Line { start: value, step: 0.0 }, dtype, device)
    }

    /// Creates the vector `0, 1, ..., n - 1`; for bool, an element is true if the number is not 0.
    ///
    /// ```
    /// use ddp_kernels::{DType, Device, Tensor};
    ///
    /// assert_eq!(Tensor::arange(3, DType::I64, Device::Cpu)?.to_vec::<i64>()?, [0, 1, 2]);
    /// # Ok::<(), ddp_kernels::KernelError>(())
    /// ```
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn arange(n: usize, dtype: DType, device: Device) -> Result<Self> {
        Self::filled(&[n], Pattern::Line { start: 0.0, step: 1.0 }, dtype, device)
    }

    /// Creates a vector of `n` evenly spaced numbers from `start` to `end`, both included; computed in f64.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    ///
    /// Source: `torch.linspace`, whose f32 numbers may differ in the last place.
    pub fn linspace(start: f64, end: f64, n: usize, dtype: DType, device: Device) -> Result<Self> {
        let pattern = Pattern::Between { start, end, n };
        Self::filled(&[n], pattern, dtype, device)
    }

    /// Creates the identity matrix `[n, n]`.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn eye(n: usize, dtype: DType, device: Device) -> Result<Self> {
        Self::filled(&[n, n], Pattern::Identity { n }, dtype, device)
    }

    /// Creates uniform random numbers in `[0, 1)`, a function of `seed` and element index only: the same on every device.
    ///
    /// There is no global generator: a program that wants other numbers gives another seed.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`]; [`KernelError::DTypeUnsupported`](crate::KernelError::DTypeUnsupported) for integers.
    pub fn rand(dims: &[usize], dtype: DType, device: Device, seed: u64) -> Result<Self> {
        check_float("rand", dims, dtype, device)?;
        let mut tensor = Self::for_result(crate::MemoryUse::Other, Shape::new(dims)?, dtype, device)?;
        uniform(tensor.view_mut(), 0.0, 1.0, UniformStream { seed, stream: [0, 0] })?;
        Ok(tensor)
    }

    /// Creates standard normal random numbers (Box-Muller in f64), a function of `seed` and element index only; the same on every
    /// device up to the last place of f64's elementary functions.
    ///
    /// # Errors
    /// Same as [`Tensor::rand`].
    pub fn randn(dims: &[usize], dtype: DType, device: Device, seed: u64) -> Result<Self> {
        check_float("randn", dims, dtype, device)?;
        Self::filled(dims, Pattern::Normal { seed }, dtype, device)
    }

    /// Creates zeros with this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn zeros_like(&self) -> Result<Self> {
        self.new_zeros(self.dims())
    }

    /// Creates ones with this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn ones_like(&self) -> Result<Self> {
        self.new_ones(self.dims())
    }

    /// Creates a tensor filled with `value`, with this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn full_like(&self, value: f64) -> Result<Self> {
        self.new_full(self.dims(), value)
    }

    /// [`Tensor::rand`] with this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::rand`].
    pub fn rand_like(&self, seed: u64) -> Result<Self> {
        Self::rand(self.dims(), self.dtype(), self.device(), seed)
    }

    /// [`Tensor::randn`] with this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::rand`].
    pub fn randn_like(&self, seed: u64) -> Result<Self> {
        Self::randn(self.dims(), self.dtype(), self.device(), seed)
    }

    /// Creates zeros of another shape with this tensor's dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn new_zeros(&self, dims: &[usize]) -> Result<Self> {
        Self::zeros_for(self.memory_use(), dims, self.dtype(), self.device())
    }

    /// Creates ones of another shape with this tensor's dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn new_ones(&self, dims: &[usize]) -> Result<Self> {
        self.new_full(dims, 1.0)
    }

    /// Creates a tensor of another shape filled with `value`, with this tensor's dtype and device.
    ///
    /// # Errors
    /// Same as [`Tensor::zeros`].
    pub fn new_full(&self, dims: &[usize], value: f64) -> Result<Self> {
        Self::full(dims, value, self.dtype(), self.device())
    }
}

fn check_float(op: &'static str, dims: &[usize], dtype: DType, device: Device) -> Result<()> {
    let operand = crate::base::error::Operand { name: "result", shape: Shape::new(dims)?, dtype, device };
    check::dtype(op, operand, check::FLOATS, check::FLOATS_NAMES)
}
