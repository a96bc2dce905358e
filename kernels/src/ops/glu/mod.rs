//! Gated linear units: one half of a row, through an activation, times the other half.

mod cpu;

use super::activation::Activation;
use crate::base::check;
use crate::base::error::Operand;
use crate::cuda::launch::{Launch, RowTiles, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::activation::cuda::FUNCTIONS;
use crate::{DType, Result, Shape, TensorMut, TensorRef};

crate::named_enum! {
    /// Function of the gate of a gated linear unit.
    ///
    /// Source: arXiv:2002.05202.
    pub enum Gate {
        /// SiLU.
        SwiGlu = "swiglu",
        /// GELU.
        GeGlu = "geglu",
        /// ReLU.
        ReGlu = "reglu",
    }
}

impl Gate {
    /// The gate's function `f`.
    pub fn activation(self) -> Activation {
        match self {
            Gate::SwiGlu => Activation::Silu,
            Gate::GeGlu => Activation::Gelu,
            Gate::ReGlu => Activation::Relu,
        }
    }
}

/// Multiplies the second half of each row by the function of the first.
///
/// `y[n,c] = f(x[n,c]) · x[n,C+c]`
///
/// - `x`: `[N, 2C]`; `y`: `[N, C]`; of one float dtype; bf16 and f16 are computed in f32
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: arXiv:2002.05202; in PyTorch `a, b = x.chunk(2, dim=-1); f(a) * b`.
#[doc(hidden)]
pub fn glu_forward(gate: Gate, x: TensorRef<'_>, y: TensorMut<'_>) -> Result<()> {
    const OP: &str = "glu_forward";
    let (x_op, y_op) = (x.operand("x"), y.operand("y"));
    let (_, cols) = check_halves(OP, x_op, y_op)?;
    check::same_kind(OP, &[x_op, y_op])?;
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        return forward_cuda(gpu, gate, x.cuda()?, &mut y.into_cuda()?, cols);
    }
    check::stored_dispatch!(OP, x_op, T => {
        cpu::forward::<T>(gate, x.as_slice(OP, "x")?, y.into_slice(OP, "y")?, cols);
        Ok(())
    })
}

/// Writes the gradient of the input of [`glu_forward`].
///
/// `d_x[n,c] = d[n,c] · x[n,C+c] · f'(x[n,c])`, `d_x[n,C+c] = d[n,c] · f(x[n,c])`
///
/// - `x`, `d_x`: `[N, 2C]`; `d`, the gradient of the output: `[N, C]`
///
/// Asynchronous as [`glu_forward`].
///
/// # Errors
/// Same as [`glu_forward`].
#[doc(hidden)]
pub fn glu_backward(gate: Gate, x: TensorRef<'_>, d: TensorRef<'_>, d_x: TensorMut<'_>) -> Result<()> {
    const OP: &str = "glu_backward";
    let (x_op, d_op, d_x_op) = (x.operand("x"), d.operand("d"), d_x.operand("d_x"));
    let (_, cols) = check_halves(OP, x_op, d_op)?;
    check::same_kind(OP, &[x_op, d_op, d_x_op])?;
    check::shape(OP, d_x_op, x.shape())?;
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        return backward_cuda(gpu, gate, x.cuda()?, d.cuda()?, &mut d_x.into_cuda()?, cols);
    }
    check::stored_dispatch!(OP, x_op, T => {
        cpu::backward::<T>(gate, x.as_slice(OP, "x")?, d.as_slice(OP, "d")?, d_x.into_slice(OP, "d_x")?, cols);
        Ok(())
    })
}

/// Checks that the rows of `whole` are twice as wide as the rows of `half`; returns rows and columns of `half`.
fn check_halves(op: &'static str, whole: Operand, half: Operand) -> Result<(usize, usize)> {
    let (rows, cols) = check::matrix(op, half)?;
    check::shape(op, whole, Shape::matrix(rows, 2 * cols))?;
    Ok((rows, cols))
}

pub(crate) static SOURCE: Source =
    Source::with_preamble("glu", FUNCTIONS, include_str!("kernel.cu")).after_others();

/// Elementwise, row by row, 16 bytes per access where the rows allow it.
///
/// The kernel of this pass for a gate and dtype, by 16 bytes or by elements.
macro_rules! kernel_name {
    ($pass:literal, $gate:expr, $dtype:expr, $is_packed:expr) => {
        match $gate {
            Gate::SwiGlu => kernel_name!(@ "swiglu", $pass, $dtype, $is_packed),
            Gate::GeGlu => kernel_name!(@ "geglu", $pass, $dtype, $is_packed),
            Gate::ReGlu => kernel_name!(@ "reglu", $pass, $dtype, $is_packed),
        }
    };
    (@ $name:literal, $pass:literal, $dtype:expr, $is_packed:expr) => {
        match ($dtype, $is_packed) {
            (DType::F64, false) => concat!($name, "_", $pass, "_f64"),
            (DType::F64, true) => concat!($name, "_", $pass, "_f64_by_16_bytes"),
            (DType::BF16, false) => concat!($name, "_", $pass, "_bf16"),
            (DType::BF16, true) => concat!($name, "_", $pass, "_bf16_by_16_bytes"),
            (DType::F16, false) => concat!($name, "_", $pass, "_f16"),
            (DType::F16, true) => concat!($name, "_", $pass, "_f16_by_16_bytes"),
            (_, false) => concat!($name, "_", $pass, "_f32"),
            (_, true) => concat!($name, "_", $pass, "_f32_by_16_bytes"),
        }
    };
}

/// Whether rows of `cols` elements at these addresses are whole accesses of 16 bytes, and the accesses or elements per row.
fn items(dtype: DType, cols: usize, addresses: u64) -> (bool, usize) {
    let per_access = 16 / dtype.size_bytes();
    if cols.is_multiple_of(per_access) && addresses.is_multiple_of(16) {
        (true, cols / per_access)
    } else {
        (false, cols)
    }
}

/// Same as `cpu::forward`; the caller checked the operands.
fn forward_cuda(
    gpu: &'static Gpu,
    gate: Gate,
    x: CudaSlice<'_>,
    y: &mut CudaSliceMut<'_>,
    cols: usize,
) -> Result<()> {
    if y.is_empty() {
        return Ok(());
    }
    let rows = y.len() / cols;
    let (is_packed, items) = items(x.dtype(), cols, x.ptr() | y.ptr());
    let tiles = RowTiles::new(gpu, rows, items);
    let launch = Launch::new(gpu, &SOURCE, kernel_name!("fwd", gate, x.dtype(), is_packed))?;
    let launch = tiles.grid(launch).read(x).write(y).arg(rows).arg(cols).arg(tiles.log2_width());
    // SAFETY: glu_fwd(const T* x, T* y, size_t rows, size_t cols, u32 log2_width); x holds rows * 2 * cols elements, y half as many;
    // the form by 16 bytes is chosen for rows and addresses of whole accesses.
    unsafe { launch.run() }
}

/// Same as `cpu::backward`; the caller checked the operands.
fn backward_cuda(
    gpu: &'static Gpu,
    gate: Gate,
    x: CudaSlice<'_>,
    d: CudaSlice<'_>,
    d_x: &mut CudaSliceMut<'_>,
    cols: usize,
) -> Result<()> {
    if d.is_empty() {
        return Ok(());
    }
    let rows = d.len() / cols;
    let (is_packed, items) = items(x.dtype(), cols, x.ptr() | d.ptr() | d_x.ptr());
    let tiles = RowTiles::new(gpu, rows, items);
    let launch = Launch::new(gpu, &SOURCE, kernel_name!("bwd", gate, x.dtype(), is_packed))?;
    let launch = tiles.grid(launch).read(x).read(d).write(d_x).arg(rows).arg(cols).arg(tiles.log2_width());
    // SAFETY: glu_bwd(const T* x, const T* d, T* d_x, size_t rows, size_t cols, u32 log2_width); x and d_x hold rows * 2 * cols
    // elements, d half as many; as in `forward`.
    unsafe { launch.run() }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::ops::testing::{
        assert_close, assert_gradient, devices, dot, random, rounded, rounding_of, tensor,
    };
    use crate::{Device, Element, Tensor};

    /// `y`, and `d_x` for the gradient `d` of `y`; from element `start` of their memory on.
    fn both<T: Element>(
        gate: Gate,
        (rows, cols): (usize, usize),
        [x, d]: [&[T]; 2],
        device: Device,
        start: usize,
    ) -> (Vec<T>, Vec<T>) {
        let n = rows * cols;
        let placed = |values: &[T]| {
            tensor(&[&vec![T::ZERO; start][..], values].concat(), &[start + values.len()], device)
        };
        let nan = |len: usize| Tensor::full(&[start + len], f64::NAN, T::DTYPE, device).unwrap();
        let (x, d, mut y, mut d_x) = (placed(x), placed(d), nan(n), nan(2 * n));
        let read =
            |t: &Tensor, cols: usize| t.view().range(start, start + rows * cols).unwrap().to_vec::<T>();
        {
            let x = x.view().range(start, start + 2 * n).unwrap().reshape(&[rows, 2 * cols]).unwrap();
            let d = d.view().range(start, start + n).unwrap().reshape(&[rows, cols]).unwrap();
            let out = y.view_mut().range(start, start + n).unwrap().reshape(&[rows, cols]).unwrap();
            glu_forward(gate, x, out).unwrap();
            let out = d_x.view_mut().range(start, start + 2 * n).unwrap().reshape(&[rows, 2 * cols]).unwrap();
            glu_backward(gate, x, d, out).unwrap();
        }
        (read(&y, cols).unwrap(), read(&d_x, 2 * cols).unwrap())
    }

    #[test]
    fn gradients_match_central_differences() {
        for gate in Gate::ALL {
            for dims @ (rows, cols) in [(1, 1), (3, 5), (2, 16)] {
                let n = rows * cols;
                let (x, d) = (random::<f64>(2 * n, 1), random::<f64>(n, 2));
                for device in devices() {
                    let (_, d_x) = both(gate, dims, [&x, &d], device, 0);
                    assert_gradient(&x, &d_x, |x| dot(&both(gate, dims, [x, &d], Device::Cpu, 0).0, &d));
                }
            }
        }
    }

    fn check<T: Element>(dims: (usize, usize), start: usize, atol: f64, rtol: f64) {
        let n = dims.0 * dims.1;
        // Values up to 4, as after a linear layer.
        let x: Vec<T> = random::<f64>(2 * n, 3).iter().map(|v| T::from_f64(4.0 * v)).collect();
        let d = random::<T>(n, 4);
        for gate in Gate::ALL {
            let (x64, d64) = (rounded::<T, f64>(&x), rounded::<T, f64>(&d));
            let (want, want_d) = both(gate, dims, [&x64, &d64], Device::Cpu, 0);
            for device in devices() {
                let (y, d_x) = both(gate, dims, [&x, &d], device, start);
                assert_close(&rounded::<T, f64>(&y), &want, atol, rtol);
                assert_close(&rounded::<T, f64>(&d_x), &want_d, atol, rtol);
            }
        }
    }

    #[test]
    fn every_form_and_dtype_agrees_with_f64() {
        // Rows of whole accesses of 16 bytes and others, aligned and not, rows shared by blocks, no rows.
        for dims in [(1, 1), (7, 5), (33, 64), (3, 1000), (2, 2100), (0, 4)] {
            for start in [0, 3] {
                check::<f64>(dims, start, 1e-14, 1e-14);
                // A few roundings of numbers up to 16.
                check::<f32>(dims, start, 3e-6, 2e-6);
                check::<bf16>(dims, start, 3e-6, rounding_of::<bf16>());
                check::<f16>(dims, start, 3e-6, rounding_of::<f16>());
            }
        }
    }

    #[test]
    fn halves_of_other_widths_are_refused() {
        let x = Tensor::zeros(&[2, 5], DType::F32, Device::Cpu).unwrap();
        let mut y = Tensor::zeros(&[2, 3], DType::F32, Device::Cpu).unwrap();
        let message = glu_forward(Gate::SwiGlu, x.view(), y.view_mut()).unwrap_err().to_string();
        assert!(message.contains("[2, 5]") && message.contains("[2, 6]"), "{message}");
    }
}
