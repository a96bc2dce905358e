//! Root mean square normalization.

use crate::base::check;
use crate::base::error::Operand;
use crate::cpu::simd::vectorize;
use crate::cpu::{Float, Stored};
use crate::cuda::launch::{Launch, Source, float_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::layer_norm::sum;
use crate::ops::row_norm;
use crate::{Element, Result, Shape, TensorMut, TensorRef};

/// Gradients that [`rms_norm_backward`] writes.
#[derive(Debug)]
#[doc(hidden)]
pub struct RmsNormGrads<'a> {
    /// `[N, C]`, in: the gradient of `y`; out: the gradient of `x`.
    pub d: TensorMut<'a>,
    /// `[C]`.
    pub d_gamma: TensorMut<'a>,
}

/// Divides each row of `x` by its root mean square, then scales it.
///
/// `y[n,c] = x[n,c] · rstd[n] · gamma[c]`, `rstd[n] = 1 / sqrt(mean_c(x[n,c]²) + eps)`
///
/// - `x`, `y`: `[N, C]`; `gamma`: `[C]`; `rstd`, saved for the backward pass: `[N]`; all f32 or all f64, or `x` and `y` bf16 or f16 and
///   everything else f32
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: arXiv:1910.07467; the same as `torch.nn.functional.rms_norm`.
#[doc(hidden)]
pub fn rms_norm_forward(
    x: TensorRef<'_>,
    gamma: TensorRef<'_>,
    eps: f64,
    y: TensorMut<'_>,
    rstd: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "rms_norm_forward";
    let x_op = x.operand("x");
    let (rows, cols) = check::matrix(OP, x_op)?;
    let (gamma_op, rstd_op) = (gamma.operand("gamma"), rstd.operand("rstd"));
    check_kinds(OP, &[x_op, y.operand("y")], &[gamma_op, rstd_op])?;
    check::shape(OP, y.operand("y"), x.shape())?;
    check::shape(OP, gamma_op, Shape::vector(cols))?;
    check::shape(OP, rstd_op, Shape::vector(rows))?;
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        let (mut y, mut rstd) = (y.into_cuda()?, rstd.into_cuda()?);
        return forward_cuda(gpu, x.cuda()?, gamma.cuda()?, eps, &mut y, &mut rstd);
    }
    check::stored_dispatch!(OP, x_op, T => {
        forward_cpu::<T>(
            x.as_slice(OP, "x")?,
            gamma.as_slice(OP, "gamma")?,
            Element::from_f64(eps),
            y.into_slice(OP, "y")?,
            rstd.into_slice(OP, "rstd")?,
        );
        Ok(())
    })
}

/// Writes the gradients of [`rms_norm_forward`]; `d_gamma` is added to if `accumulate`.
///
/// With `g = d · gamma` and `h = x · rstd`: `d = rstd · (g - h · mean_c(g·h))`, `d_gamma[c] = Σ_n d[n,c]·h[n,c]` of the incoming `d`.
///
/// - `x`: `[N, C]` and `rstd`: `[N]`, as in the forward pass
///
/// Asynchronous as [`rms_norm_forward`], in one launch for few rows, otherwise in two.
///
/// # Errors
/// Same as [`rms_norm_forward`].
#[doc(hidden)]
pub fn rms_norm_backward(
    x: TensorRef<'_>,
    gamma: TensorRef<'_>,
    rstd: TensorRef<'_>,
    grads: RmsNormGrads<'_>,
    accumulate: bool,
) -> Result<()> {
    const OP: &str = "rms_norm_backward";
    let RmsNormGrads { d, d_gamma } = grads;
    let x_op = x.operand("x");
    let (rows, cols) = check::matrix(OP, x_op)?;
    let (gamma_op, rstd_op, d_gamma_op) =
        (gamma.operand("gamma"), rstd.operand("rstd"), d_gamma.operand("d_gamma"));
    check_kinds(OP, &[x_op, d.operand("d")], &[gamma_op, rstd_op, d_gamma_op])?;
    check::shape(OP, d.operand("d"), x.shape())?;
    check::shape(OP, gamma_op, Shape::vector(cols))?;
    check::shape(OP, d_gamma_op, Shape::vector(cols))?;
    check::shape(OP, rstd_op, Shape::vector(rows))?;
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        let (x, gamma, rstd) = (x.cuda()?, gamma.cuda()?, rstd.cuda()?);
        let (d, d_gamma) = (d.into_cuda()?, d_gamma.into_cuda()?);
        return Backward { x, gamma, rstd, d, d_gamma, accumulate }.run(gpu);
    }
    check::stored_dispatch!(OP, x_op, T => {
        let d_gamma = d_gamma.into_slice(OP, "d_gamma")?;
        if !accumulate {
            d_gamma.fill(Element::ZERO);
        }
        backward_cpu::<T>(
            x.as_slice(OP, "x")?,
            gamma.as_slice(OP, "gamma")?,
            rstd.as_slice(OP, "rstd")?,
            d.into_slice(OP, "d")?,
            d_gamma,
        );
        Ok(())
    })
}

/// Checks dtypes: the scale and the statistics have the dtype of the rows, or f32 if the rows are bf16 or f16.
fn check_kinds(op: &'static str, rows: &[Operand], others: &[Operand]) -> Result<()> {
    check::same_kind(op, rows)?;
    let x = rows[0];
    for &other in others {
        check::same_device(op, &[x, other])?;
        if !check::narrows(other.dtype, x.dtype) {
            check::same_dtype(op, &[x, other])?;
        }
    }
    Ok(())
}

/// Two passes over each row while it is in cache.
fn forward_cpu<T: Stored>(x: &[T], gamma: &[T::Real], eps: T::Real, y: &mut [T], rstd: &mut [T::Real]) {
    let cols = gamma.len();
    if cols == 0 {
        return;
    }
    let n = T::Real::from_f64(cols as f64);
    vectorize(
        #[inline(always)]
        || {
            for ((x, y), rstd) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)).zip(rstd.iter_mut()) {
                let r = T::Real::ONE / (sum(cols, |c| x[c].load() * x[c].load()) / n + eps).sqrt();
                for ((y, &x), &g) in y.iter_mut().zip(x).zip(gamma) {
                    *y = T::store(x.load() * r * g);
                }
                *rstd = r;
            }
        },
    );
}

/// Adds to `d_gamma`.
fn backward_cpu<T: Stored>(
    x: &[T],
    gamma: &[T::Real],
    rstd: &[T::Real],
    d: &mut [T],
    d_gamma: &mut [T::Real],
) {
    let cols = gamma.len();
    if cols == 0 {
        return;
    }
    let n = T::Real::from_f64(cols as f64);
    vectorize(
        #[inline(always)]
        || {
            for ((x, d), &r) in x.chunks_exact(cols).zip(d.chunks_exact_mut(cols)).zip(rstd) {
                let mean = sum(cols, |c| d[c].load() * gamma[c] * (x[c].load() * r)) / n;
                for c in 0..cols {
                    let (h, one) = (x[c].load() * r, d[c].load());
                    d_gamma[c] += one * h;
                    d[c] = T::store(r * (one * gamma[c] - h * mean));
                }
            }
        },
    );
}

pub(crate) static SOURCE: Source =
    Source::with_preamble("rms_norm", row_norm::ROWS, include_str!("kernel.cu"));

/// Same as `forward_cpu`; the caller checked the operands.
fn forward_cuda(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    gamma: CudaSlice<'_>,
    eps: f64,
    y: &mut CudaSliceMut<'_>,
    rstd: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let (rows, cols) = (rstd.len(), gamma.len());
    if rows * cols == 0 {
        return Ok(());
    }
    let by_rows = row_norm::Forward::new(gpu, x.dtype(), rows, cols, x.ptr() | gamma.ptr() | y.ptr());
    let kernel = if by_rows.is_whole() {
        float_kernel!("rms_norm_fwd_whole"; x.dtype())
    } else {
        float_kernel!("rms_norm_fwd_any"; x.dtype())
    };
    let launch = by_rows.grid(Launch::new(gpu, &SOURCE, kernel)?).read(x).read(gamma);
    let launch = launch.arg(eps).write(y).write(rstd).arg(rows).arg(cols);
    // SAFETY: fwd(const T* x, const M* gamma, double eps, T* y, M* rstd, size_t rows, size_t n); x and y hold rows * n elements,
    // gamma n, rstd rows; `Forward` chose the kernel for these rows and addresses.
    unsafe { launch.run() }
}

/// Operands of the backward pass, checked by the caller.
struct Backward<'a> {
    x: CudaSlice<'a>,
    gamma: CudaSlice<'a>,
    rstd: CudaSlice<'a>,
    d: CudaSliceMut<'a>,
    d_gamma: CudaSliceMut<'a>,
    accumulate: bool,
}

impl Backward<'_> {
    /// Same as `backward_cpu`.
    fn run(self, gpu: &'static Gpu) -> Result<()> {
        let Backward { x, gamma, rstd, mut d, d_gamma, accumulate } = self;
        let (rows, cols) = (rstd.len(), gamma.len());
        if cols == 0 {
            return Ok(());
        }
        let addresses = x.ptr() | gamma.ptr() | d.ptr() | d_gamma.ptr();
        let by_rows = row_norm::Backward::new(x.dtype(), rows, cols, 1, addresses);
        let kernel = if by_rows.is_whole() {
            float_kernel!("rms_norm_bwd_whole"; x.dtype())
        } else {
            float_kernel!("rms_norm_bwd_any"; x.dtype())
        };
        let over_rows = Launch::new(gpu, &SOURCE, kernel)?.read(x).read(gamma).read(rstd).write(&mut d);
        let over_chunks = Launch::new(gpu, &SOURCE, float_kernel!("rms_norm_bwd_parameters"; x.dtype()))?;
        // SAFETY: bwd(const T* x, const M* gamma, const M* rstd, T* d, ...) and bwd_parameters(...); x and d hold rows * n elements,
        // gamma and d_gamma n, rstd rows; `row_norm::Backward` chose the kernel for these rows and addresses.
        unsafe { by_rows.run(gpu, [over_rows, over_chunks], [d_gamma], rows, accumulate) }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::ops::testing::{
        assert_close, assert_gradient, devices, dot, random, rounded, rounding_of, tensor,
    };
    use crate::{Device, Tensor};

    const EPS: f64 = 1e-6;

    /// `y` and rstd; the scale and rstd are of type P.
    fn forward<T: Element, P: Element>(
        device: Device,
        (rows, cols): (usize, usize),
        x: &[T],
        gamma: &[P],
    ) -> (Vec<T>, Vec<P>) {
        let nan = |dims: &[usize], dtype| Tensor::full(dims, f64::NAN, dtype, device).unwrap();
        let (mut y, mut rstd) = (nan(&[rows, cols], T::DTYPE), nan(&[rows], P::DTYPE));
        let (x, gamma) = (tensor(x, &[rows, cols], device), tensor(gamma, &[cols], device));
        rms_norm_forward(x.view(), gamma.view(), EPS, y.view_mut(), rstd.view_mut()).unwrap();
        (y.to_vec().unwrap(), rstd.to_vec().unwrap())
    }

    /// `d_x` and `d_gamma`, the latter added to ones if `accumulate`.
    fn backward<T: Element, P: Element>(
        device: Device,
        (rows, cols): (usize, usize),
        [x, d_y]: [&[T]; 2],
        [gamma, rstd]: [&[P]; 2],
        accumulate: bool,
    ) -> (Vec<T>, Vec<P>) {
        let before = if accumulate { 1.0 } else { f64::NAN };
        let (mut d, mut d_gamma) =
            (tensor(d_y, &[rows, cols], device), Tensor::full(&[cols], before, P::DTYPE, device).unwrap());
        let (x, gamma) = (tensor(x, &[rows, cols], device), tensor(gamma, &[cols], device));
        let rstd = tensor(rstd, &[rows], device);
        let grads = RmsNormGrads { d: d.view_mut(), d_gamma: d_gamma.view_mut() };
        rms_norm_backward(x.view(), gamma.view(), rstd.view(), grads, accumulate).unwrap();
        (d.to_vec().unwrap(), d_gamma.to_vec().unwrap())
    }

    #[test]
    fn gradients_match_central_differences() {
        for dims @ (rows, cols) in [(3, 5), (2, 33), (1, 1), (40, 4)] {
            let n = rows * cols;
            let (x, gamma, d_y) = (random::<f64>(n, 1), random::<f64>(cols, 2), random::<f64>(n, 4));
            for device in devices() {
                let (_, rstd) = forward(device, dims, &x, &gamma);
                let (d, d_gamma) = backward(device, dims, [&x, &d_y], [&gamma, &rstd], true);
                let d_gamma: Vec<f64> = d_gamma.iter().map(|v| v - 1.0).collect();
                let loss = |x: &[f64], g: &[f64]| dot(&forward(Device::Cpu, dims, x, g).0, &d_y);
                assert_gradient(&x, &d, |x| loss(x, &gamma));
                assert_gradient(&gamma, &d_gamma, |g| loss(&x, g));
            }
        }
    }

    /// `y`, rstd, `d_x` and `d_gamma` against those in f64.
    fn check<T: Element, P: Element>(device: Device, dims: (usize, usize), rtol: f64, exact: f64) {
        let (rows, cols) = dims;
        let n = rows * cols;
        let (x, d_y, gamma) = (random::<T>(n, 1), random::<T>(n, 4), random::<P>(cols, 2));
        let [x64, d64] = [rounded::<T, f64>(&x), rounded::<T, f64>(&d_y)];
        let gamma64 = rounded::<P, f64>(&gamma);
        let (want_y, want_rstd) = forward(Device::Cpu, dims, &x64, &gamma64);
        let (want_d, want_d_gamma) = backward(Device::Cpu, dims, [&x64, &d64], [&gamma64, &want_rstd], false);
        let (y, rstd) = forward(device, dims, &x, &gamma);
        let (d, d_gamma) = backward(device, dims, [&x, &d_y], [&gamma, &rstd], false);
        assert_close(&rounded::<T, f64>(&y), &want_y, exact, rtol);
        assert_close(&rounded::<P, f64>(&rstd), &want_rstd, exact, exact);
        assert_close(&rounded::<T, f64>(&d), &want_d, exact, rtol);
        // Sums over rows of terms up to 2, each rounded to the last place of the running sum.
        let sum_atol = exact * (rows as f64).sqrt().max(4.0);
        assert_close(&rounded::<P, f64>(&d_gamma), &want_d_gamma, sum_atol, exact);
        let again = backward(device, dims, [&x, &d_y], [&gamma, &rstd], false);
        assert!(again == (d, d_gamma.clone()), "the same bits every time");
        let (_, added) = backward(device, dims, [&x, &d_y], [&gamma, &rstd], true);
        let want: Vec<f64> = rounded::<P, f64>(&d_gamma).iter().map(|v| v + 1.0).collect();
        assert_close(&rounded::<P, f64>(&added), &want, sum_atol, exact);
    }

    #[test]
    fn every_form_and_dtype_agrees_with_f64() {
        // A warp per row and several, aligned and unaligned rows, rows larger than the registers, one chunk of rows and several.
        for dims in [
            (70, 64),
            (37, 100),
            (300, 129),
            (9, 1024),
            (5, 1025),
            (40, 1028),
            (2, 5000),
            (9, 4104),
            (600, 12),
        ] {
            for device in devices() {
                check::<f64, f64>(device, dims, 1e-12, 1e-12);
                // A few roundings of numbers up to 4.
                check::<f32, f32>(device, dims, 2e-6, 2e-6);
                check::<bf16, f32>(device, dims, rounding_of::<bf16>(), 2e-6);
                check::<f16, f32>(device, dims, rounding_of::<f16>(), 2e-6);
            }
        }
    }

    #[test]
    fn a_batch_without_rows_gives_zero_gradients() {
        for device in devices() {
            assert_eq!(forward::<f32, f32>(device, (0, 3), &[], &[1.0; 3]).0, [0.0; 0]);
            for (accumulate, want) in [(false, 0.0), (true, 1.0)] {
                let got = backward::<f32, f32>(device, (0, 3), [&[], &[]], [&[1.0; 3], &[]], accumulate);
                assert_eq!(got, (vec![], vec![want; 3]));
            }
        }
    }
}
