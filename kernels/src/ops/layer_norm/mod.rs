//! Layer normalization.

pub(crate) mod cuda;

pub(crate) use cuda::SOURCE;

use crate::base::check;
use crate::base::error::Operand;
use crate::cpu::simd::vectorize;
use crate::cpu::{Float, Stored};
use crate::{Element, Result, Shape, TensorMut, TensorRef};

/// Row statistics, saved by the forward pass for the backward pass.
#[derive(Debug)]
#[doc(hidden)]
pub struct LayerNormStats<'a> {
    /// Mean of each row, `[N]`.
    pub mean: TensorMut<'a>,
    /// `1 / sqrt(variance + eps)` of each row, `[N]`.
    pub rstd: TensorMut<'a>,
}

/// Gradients that [`layer_norm_backward`] writes.
#[derive(Debug)]
#[doc(hidden)]
pub struct LayerNormGrads<'a> {
    /// `[N, C]`, in: the gradient of `y`; out: the gradient of `x`.
    pub d: TensorMut<'a>,
    /// `[C]`.
    pub d_gamma: TensorMut<'a>,
    /// `[C]`.
    pub d_beta: TensorMut<'a>,
}

/// Normalizes each row of `x`, then scales and shifts it.
///
/// `y[n,c] = (x[n,c] - mean[n]) · rstd[n] · gamma[c] + beta[c]`
///
/// - `x`, `y`: `[N, C]`; `gamma`, `beta`: `[C]`; all f32 or all f64, or `x` and `y` bf16 or f16 and everything else f32
/// - `eps` is added to the variance (divided by C, not C - 1), not to its square root
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: arXiv:1607.06450; the same as `torch.nn.functional.layer_norm`.
#[doc(hidden)]
pub fn layer_norm_forward(
    x: TensorRef<'_>,
    gamma: TensorRef<'_>,
    beta: TensorRef<'_>,
    eps: f64,
    y: TensorMut<'_>,
    stats: LayerNormStats<'_>,
) -> Result<()> {
    const OP: &str = "layer_norm_forward";
    let LayerNormStats { mean, rstd } = stats;
    let x_op = x.operand("x");
    let (rows, cols) = check::matrix(OP, x_op)?;
    let (gamma_op, beta_op) = (gamma.operand("gamma"), beta.operand("beta"));
    let (mean_op, rstd_op) = (mean.operand("mean"), rstd.operand("rstd"));
    check_kinds(OP, &[x_op, y.operand("y")], &[gamma_op, beta_op, mean_op, rstd_op])?;
    check::shape(OP, y.operand("y"), x.shape())?;
    check::shape(OP, gamma_op, Shape::vector(cols))?;
    check::shape(OP, beta_op, Shape::vector(cols))?;
    check::shape(OP, mean_op, Shape::vector(rows))?;
    check::shape(OP, rstd_op, Shape::vector(rows))?;
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        let (mut y, mut mean, mut rstd) = (y.into_cuda()?, mean.into_cuda()?, rstd.into_cuda()?);
        return cuda::forward(gpu, x.cuda()?, gamma.cuda()?, beta.cuda()?, eps, &mut y, &mut mean, &mut rstd);
    }
    check::stored_dispatch!(OP, x_op, T => {
        forward_cpu::<T>(
            x.as_slice(OP, "x")?,
            gamma.as_slice(OP, "gamma")?,
            beta.as_slice(OP, "beta")?,
            eps as _,
            y.into_slice(OP, "y")?,
            mean.into_slice(OP, "mean")?,
            rstd.into_slice(OP, "rstd")?,
        );
        Ok(())
    })
}

/// Computes the gradients of [`layer_norm_forward`]; accumulates the gradients of `gamma` and `beta` if `accumulate`.
///
/// With `h = (x - mean)·rstd` and `g = d_y·gamma`: `d_x = rstd · (g - mean(g) - h·mean(g·h))`, `d_gamma = Σ_n d_y·h`,
/// `d_beta = Σ_n d_y`
///
/// - `x`: `[N, C]`; `gamma`: `[C]`; `mean`, `rstd`: `[N]` from the forward pass, dtypes as there; `d` has the dtype of `x`, the
///   gradients of `gamma` and `beta` have the dtype of `gamma`
///
/// Asynchronous on a GPU's compute stream: one launch for few rows, otherwise two.
///
/// # Errors
/// Same as [`layer_norm_forward`].
#[doc(hidden)]
pub fn layer_norm_backward(
    x: TensorRef<'_>,
    gamma: TensorRef<'_>,
    mean: TensorRef<'_>,
    rstd: TensorRef<'_>,
    grads: LayerNormGrads<'_>,
    accumulate: bool,
) -> Result<()> {
    const OP: &str = "layer_norm_backward";
    let LayerNormGrads { d, d_gamma, d_beta } = grads;
    let x_op = x.operand("x");
    let (rows, cols) = check::matrix(OP, x_op)?;
    let (d_gamma_op, d_beta_op) = (d_gamma.operand("d_gamma"), d_beta.operand("d_beta"));
    let (gamma_op, mean_op, rstd_op) = (gamma.operand("gamma"), mean.operand("mean"), rstd.operand("rstd"));
    check_kinds(OP, &[x_op, d.operand("d")], &[gamma_op, mean_op, rstd_op, d_gamma_op, d_beta_op])?;
    check::shape(OP, d.operand("d"), x.shape())?;
    for operand in [gamma_op, d_gamma_op, d_beta_op] {
        check::shape(OP, operand, Shape::vector(cols))?;
    }
    for operand in [mean_op, rstd_op] {
        check::shape(OP, operand, Shape::vector(rows))?;
    }
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        let backward = cuda::Backward {
            x: x.cuda()?,
            gamma: gamma.cuda()?,
            mean: mean.cuda()?,
            rstd: rstd.cuda()?,
            d: d.into_cuda()?,
            d_gamma: d_gamma.into_cuda()?,
            d_beta: d_beta.into_cuda()?,
            accumulate,
        };
        return backward.run(gpu);
    }
    check::stored_dispatch!(OP, x_op, T => {
        backward_cpu::<T>(
            &Saved {
                x: x.as_slice(OP, "x")?,
                gamma: gamma.as_slice(OP, "gamma")?,
                mean: mean.as_slice(OP, "mean")?,
                rstd: rstd.as_slice(OP, "rstd")?,
            },
            d.into_slice(OP, "d")?,
            d_gamma.into_slice(OP, "d_gamma")?,
            d_beta.into_slice(OP, "d_beta")?,
            accumulate,
        );
        Ok(())
    })
}

/// Checks dtypes: parameters and statistics have the dtype of the rows, or f32 if the rows are bf16 or f16.
fn check_kinds(op: &'static str, rows: &[Operand], parameters: &[Operand]) -> Result<()> {
    check::same_kind(op, rows)?;
    let x = rows[0];
    for &parameter in parameters {
        check::same_device(op, &[x, parameter])?;
        let is_wider = check::narrows(parameter.dtype, x.dtype);
        if !is_wider {
            check::same_dtype(op, &[x, parameter])?;
        }
    }
    Ok(())
}

/// Number of interleaved partial sums, which vectorize.
const LANES: usize = 16;

/// `Σ f(i)` over `0..n`, in [`LANES`] interleaved parts.
#[inline(always)]
pub(in crate::ops) fn sum<T: Float>(n: usize, f: impl Fn(usize) -> T) -> T {
    let mut lanes = [T::ZERO; LANES];
    let whole = n - n % LANES;
    for start in (0..whole).step_by(LANES) {
        for (l, lane) in lanes.iter_mut().enumerate() {
            *lane += f(start + l);
        }
    }
    let rest: T = (whole..n).map(&f).sum();
    rest + lanes.into_iter().sum()
}

/// Two passes over each row while it is in cache: the mean first, so that the variance does not cancel.
fn forward_cpu<T: Stored>(
    x: &[T],
    gamma: &[T::Real],
    beta: &[T::Real],
    eps: T::Real,
    y: &mut [T],
    mean: &mut [T::Real],
    rstd: &mut [T::Real],
) {
    let cols = gamma.len();
    if cols == 0 {
        return;
    }
    let n = T::Real::from_f64(cols as f64);
    vectorize(
        #[inline(always)]
        || {
            for (row, (x, y)) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)).enumerate() {
                let m = sum(cols, |c| x[c].load()) / n;
                let variance = sum(cols, |c| (x[c].load() - m) * (x[c].load() - m)) / n;
                let r = T::Real::ONE / (variance + eps).sqrt();
                for (((y, &x), &g), &b) in y.iter_mut().zip(x).zip(gamma).zip(beta) {
                    *y = T::store((x.load() - m) * r * g + b);
                }
                (mean[row], rstd[row]) = (m, r);
            }
        },
    );
}

/// Statistics of the forward pass.
struct Saved<'a, T: Stored> {
    pub x: &'a [T],
    pub gamma: &'a [T::Real],
    pub mean: &'a [T::Real],
    pub rstd: &'a [T::Real],
}

fn backward_cpu<T: Stored>(
    saved: &Saved<'_, T>,
    d: &mut [T],
    d_gamma: &mut [T::Real],
    d_beta: &mut [T::Real],
    add: bool,
) {
    let cols = saved.gamma.len();
    if !add {
        d_gamma.fill(T::Real::ZERO);
        d_beta.fill(T::Real::ZERO);
    }
    if cols == 0 {
        return;
    }
    let n = T::Real::from_f64(cols as f64);
    vectorize(
        #[inline(always)]
        || {
            for (row, (x, d)) in saved.x.chunks_exact(cols).zip(d.chunks_exact_mut(cols)).enumerate() {
                let (m, r) = (saved.mean[row], saved.rstd[row]);
                let gamma = saved.gamma;
                let mean_g = sum(cols, |c| d[c].load() * gamma[c]) / n;
                let mean_gh = sum(cols, |c| d[c].load() * gamma[c] * (x[c].load() - m)) * r / n;
                for c in 0..cols {
                    let (h, d_y) = ((x[c].load() - m) * r, d[c].load());
                    d_gamma[c] += d_y * h;
                    d_beta[c] += d_y;
                    d[c] = T::store(r * (d_y * gamma[c] - mean_g - h * mean_gh));
                }
            }
        },
    );
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::ops::testing::{
        assert_close, assert_gradient, devices, dot, random, rounded, rounding_of, tensor,
    };
    use crate::{Device, Element, Tensor};

    /// `y`, mean and rstd, parameters and statistics being of type P.
    fn forward<T: Element, P: Element>(
        device: Device,
        (rows, cols): (usize, usize),
        x: &[T],
        [gamma, beta]: [&[P]; 2],
    ) -> (Vec<T>, Vec<P>, Vec<P>) {
        let nan = |dims: &[usize], dtype| Tensor::full(dims, f64::NAN, dtype, device).unwrap();
        let (mut y, mut mean, mut rstd) =
            (nan(&[rows, cols], T::DTYPE), nan(&[rows], P::DTYPE), nan(&[rows], P::DTYPE));
        let (x, gamma, beta) =
            (tensor(x, &[rows, cols], device), tensor(gamma, &[cols], device), tensor(beta, &[cols], device));
        let stats = LayerNormStats { mean: mean.view_mut(), rstd: rstd.view_mut() };
        layer_norm_forward(x.view(), gamma.view(), beta.view(), 1e-5, y.view_mut(), stats).unwrap();
        (y.to_vec().unwrap(), mean.to_vec().unwrap(), rstd.to_vec().unwrap())
    }

    /// `d_x`, `d_gamma` and `d_beta`, the latter two added to ones if `accumulate`.
    fn backward<T: Element, P: Element>(
        device: Device,
        (rows, cols): (usize, usize),
        [x, d_y]: [&[T]; 2],
        [gamma, mean, rstd]: [&[P]; 3],
        accumulate: bool,
    ) -> (Vec<T>, Vec<P>, Vec<P>) {
        let before = if accumulate { 1.0 } else { f64::NAN };
        let parameter = || Tensor::full(&[cols], before, P::DTYPE, device).unwrap();
        let (mut d, mut d_gamma, mut d_beta) = (tensor(d_y, &[rows, cols], device), parameter(), parameter());
        let (x, gamma) = (tensor(x, &[rows, cols], device), tensor(gamma, &[cols], device));
        let (mean, rstd) = (tensor(mean, &[rows], device), tensor(rstd, &[rows], device));
        let grads =
            LayerNormGrads { d: d.view_mut(), d_gamma: d_gamma.view_mut(), d_beta: d_beta.view_mut() };
        layer_norm_backward(x.view(), gamma.view(), mean.view(), rstd.view(), grads, accumulate).unwrap();
        (d.to_vec().unwrap(), d_gamma.to_vec().unwrap(), d_beta.to_vec().unwrap())
    }

    #[test]
    fn gradients_match_central_differences() {
        for dims @ (rows, cols) in [(3, 5), (2, 33), (1, 1), (40, 4)] {
            let n = rows * cols;
            let (x, gamma, beta) = (random::<f64>(n, 1), random::<f64>(cols, 2), random::<f64>(cols, 3));
            let d_y = random::<f64>(n, 4);
            for device in devices() {
                let (_, mean, rstd) = forward(device, dims, &x, [&gamma, &beta]);
                let (d, d_gamma, d_beta) = backward(device, dims, [&x, &d_y], [&gamma, &mean, &rstd], true);
                let minus_one = |v: &[f64]| v.iter().map(|v| v - 1.0).collect::<Vec<_>>();
                let loss =
                    |x: &[f64], g: &[f64], b: &[f64]| dot(&forward(Device::Cpu, dims, x, [g, b]).0, &d_y);
                assert_gradient(&x, &d, |x| loss(x, &gamma, &beta));
                assert_gradient(&gamma, &minus_one(&d_gamma), |g| loss(&x, g, &beta));
                assert_gradient(&beta, &minus_one(&d_beta), |b| loss(&x, &gamma, b));
            }
        }
    }

    /// `y`, mean, rstd, `d_x`, `d_gamma`, `d_beta` in f64.
    fn reference(dims: (usize, usize), [x, d_y]: [&[f64]; 2], [gamma, beta]: [&[f32]; 2]) -> [Vec<f64>; 6] {
        let (gamma, beta) = (rounded::<f32, f64>(gamma), rounded::<f32, f64>(beta));
        let (y, mean, rstd) = forward(Device::Cpu, dims, x, [&gamma, &beta]);
        let (d, d_gamma, d_beta) = backward(Device::Cpu, dims, [x, d_y], [&gamma, &mean, &rstd], false);
        [y, mean, rstd, d, d_gamma, d_beta]
    }

    /// Sums over columns in f32: each term, up to 2, rounds to 2^-24 of the running sum.
    fn sum_atol(rows: usize) -> f64 {
        1e-6 * (rows as f64).sqrt().max(4.0)
    }

    fn check_short<S: Element>(
        device: Device,
        dims: (usize, usize),
        [x, d_y]: [&[f32]; 2],
        [gamma, beta]: [&[f32]; 2],
    ) {
        let (x, d_y): (Vec<S>, Vec<S>) = (rounded(x), rounded(d_y));
        let want = reference(dims, [&rounded(&x), &rounded(&d_y)], [gamma, beta]);
        let (y, mean, rstd) = forward(device, dims, &x, [gamma, beta]);
        let (d, d_gamma, d_beta) = backward(device, dims, [&x, &d_y], [gamma, &mean, &rstd], false);
        // One rounding of the f32 result; parameters and statistics are not rounded.
        assert_close(&rounded::<S, f64>(&y), &want[0], 2e-6, rounding_of::<S>());
        assert_close(&rounded::<S, f64>(&d), &want[3], 2e-6, rounding_of::<S>());
        assert_close(&rounded::<f32, f64>(&mean), &want[1], 2e-6, 2e-6);
        assert_close(&rounded::<f32, f64>(&rstd), &want[2], 2e-6, 2e-6);
        assert_close(&rounded::<f32, f64>(&d_gamma), &want[4], sum_atol(dims.0), 1e-6);
        assert_close(&rounded::<f32, f64>(&d_beta), &want[5], sum_atol(dims.0), 1e-6);
    }

    #[test]
    fn every_form_and_dtype_agrees_with_f64() {
        // A warp per row and several, aligned and unaligned rows, rows larger than the registers; one chunk of rows and several.
        for dims @ (rows, cols) in [
            (70, 64),
            (37, 100),
            (300, 129),
            (9, 1024),
            (5, 1025),
            (40, 1028),
            (2, 16_500),
            (9, 4104),
            (600, 12),
        ] {
            let n = rows * cols;
            let (x, d_y) = (random::<f32>(n, 1), random::<f32>(n, 4));
            let (gamma, beta) = (random::<f32>(cols, 2), random::<f32>(cols, 3));
            let want = reference(dims, [&rounded(&x), &rounded(&d_y)], [&gamma, &beta]);
            let sum_atol = sum_atol(rows);
            for device in devices() {
                let (y, mean, rstd) = forward(device, dims, &x, [&gamma, &beta]);
                let (d, d_gamma, d_beta) = backward(device, dims, [&x, &d_y], [&gamma, &mean, &rstd], false);
                // A few roundings of numbers up to 4.
                for (got, want) in [(&y, &want[0]), (&mean, &want[1]), (&rstd, &want[2]), (&d, &want[3])] {
                    assert_close(&rounded::<f32, f64>(got), want, 2e-6, 2e-6);
                }
                assert_close(&rounded::<f32, f64>(&d_gamma), &want[4], sum_atol, 1e-6);
                assert_close(&rounded::<f32, f64>(&d_beta), &want[5], sum_atol, 1e-6);
                let again = backward(device, dims, [&x, &d_y], [&gamma, &mean, &rstd], false);
                assert!(again == (d, d_gamma.clone(), d_beta), "the same bits every time");
                let (_, again, _) = backward(device, dims, [&x, &d_y], [&gamma, &mean, &rstd], true);
                assert_close(&again, &d_gamma.iter().map(|v| v + 1.0).collect::<Vec<_>>(), sum_atol, 1e-6);
                let (x64, d64) = (rounded::<f32, f64>(&x), rounded::<f32, f64>(&d_y));
                let (gamma64, beta64) = (rounded::<f32, f64>(&gamma), rounded::<f32, f64>(&beta));
                let (y, mean, rstd) = forward(device, dims, &x64, [&gamma64, &beta64]);
                let (d, d_gamma, d_beta) =
                    backward(device, dims, [&x64, &d64], [&gamma64, &mean, &rstd], false);
                for (got, want) in [y, mean, rstd, d, d_gamma, d_beta].iter().zip(&want) {
                    assert_close(got, want, 1e-12, 1e-12);
                }
                check_short::<bf16>(device, dims, [&x, &d_y], [&gamma, &beta]);
                check_short::<f16>(device, dims, [&x, &d_y], [&gamma, &beta]);
            }
        }
    }

    #[test]
    fn rows_far_from_zero_keep_their_precision() {
        let x: Vec<f64> = (0..8).map(|i| 1e6 + f64::from(i)).collect();
        for device in devices() {
            let (y, mean, _) = forward(device, (1, 8), &x, [&[1.0; 8], &[0.0; 8]]);
            assert_eq!(mean, [1e6 + 3.5]);
            // The variance of 0..8 is 5.25.
            let want: Vec<f64> = (0..8).map(|i| (f64::from(i) - 3.5) / (5.25f64 + 1e-5).sqrt()).collect();
            assert_close(&y, &want, 1e-12, 1e-12);
        }
    }

    #[test]
    fn a_batch_without_rows_gives_zero_gradients() {
        for device in devices() {
            assert_eq!(forward::<f32, f32>(device, (0, 3), &[], [&[1.0; 3], &[0.0; 3]]).0, [0.0; 0]);
            for (accumulate, want) in [(false, 0.0), (true, 1.0)] {
                let got = backward::<f32, f32>(device, (0, 3), [&[], &[]], [&[1.0; 3], &[], &[]], accumulate);
                assert_eq!(got, (vec![], vec![want; 3], vec![want; 3]));
            }
        }
    }
}
