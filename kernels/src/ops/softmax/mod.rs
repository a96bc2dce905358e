//! Softmax of rows in place, and its gradient.

use crate::base::check;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::{Float, Stored};
use crate::cuda::launch::{BLOCK, Launch, Source, float_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{Element, Result, TensorMut, TensorRef};

/// Replaces each row of `y` by its softmax.
///
/// `y[n,c] <- exp(y[n,c] - max) / Σ_c exp(y[n,c] - max)` with the largest of the row
///
/// - `y`: `[.., C]`, of floats; minus infinity becomes 0, and a row of nothing else becomes NaN
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DTypeUnsupported`].
///
/// Source: `torch.softmax`.
pub fn softmax_forward(y: TensorMut<'_>) -> Result<()> {
    const OP: &str = "softmax_forward";
    let y_op = y.operand("y");
    let cols = y_op.shape.dims().last().copied().unwrap_or(1);
    if let Some(gpu) = y.gpu() {
        check::dtype(OP, y_op, check::FLOATS, check::FLOATS_NAMES)?;
        return forward_cuda(gpu, &mut y.into_cuda()?, cols);
    }
    check::stored_dispatch!(OP, y_op, T => {
        forward_cpu::<T>(y.into_slice(OP, "y")?, cols);
        Ok(())
    })
}

/// Turns `d`, the gradient of the result `y` of [`softmax_forward`], into the gradient of its input.
///
/// `d[n,c] <- y[n,c] · (d[n,c] - Σ_c y[n,c]·d[n,c])`
///
/// - `y`, `d`: `[.., C]`, of one shape and dtype
///
/// Asynchronous as [`softmax_forward`].
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
pub fn softmax_backward(y: TensorRef<'_>, d: TensorMut<'_>) -> Result<()> {
    const OP: &str = "softmax_backward";
    let (y_op, d_op) = (y.operand("y"), d.operand("d"));
    check::same_kind(OP, &[y_op, d_op])?;
    check::shape(OP, d_op, y.shape())?;
    let cols = y_op.shape.dims().last().copied().unwrap_or(1);
    if let Some(gpu) = y.gpu() {
        check::dtype(OP, y_op, check::FLOATS, check::FLOATS_NAMES)?;
        return backward_cuda(gpu, y.cuda()?, &mut d.into_cuda()?, cols);
    }
    check::stored_dispatch!(OP, y_op, T => {
        backward_cpu::<T>(y.as_slice(OP, "y")?, d.into_slice(OP, "d")?, cols);
        Ok(())
    })
}

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 13;
/// Number of interleaved partial results, which vectorize.
const LANES: usize = 16;

/// `f` of all `0..n`, combined in [`LANES`] interleaved parts.
#[inline(always)]
fn fold<T: Float>(n: usize, start: T, value: impl Fn(usize) -> T, combine: impl Fn(T, T) -> T) -> T {
    let mut lanes = [start; LANES];
    let whole = n - n % LANES;
    for first in (0..whole).step_by(LANES) {
        for (l, lane) in lanes.iter_mut().enumerate() {
            *lane = combine(*lane, value(first + l));
        }
    }
    let rest = (whole..n).fold(start, |sum, i| combine(sum, value(i)));
    lanes.into_iter().fold(rest, &combine)
}

/// Row by row: the largest value, exponentials with their sum, then the quotients.
fn forward_cpu<T: Stored>(y: &mut [T], cols: usize) {
    by_row(
        y,
        cols,
        #[inline(always)]
        |_, y| {
            let largest = fold(y.len(), T::Real::NEG_INFINITY, |i| y[i].load(), T::Real::at_least);
            if let Some(y) = T::numbers_mut(y) {
                for y in y.iter_mut() {
                    *y = (*y - largest).exp();
                }
                let total = fold(y.len(), T::Real::ZERO, |i| y[i], |a, b| a + b);
                let factor = T::Real::ONE / total;
                for y in y.iter_mut() {
                    *y *= factor;
                }
            } else {
                // The exponentials are computed twice, since stored they would be rounded.
                let total = fold(y.len(), T::Real::ZERO, |i| (y[i].load() - largest).exp(), |a, b| a + b);
                let factor = T::Real::ONE / total;
                for y in y.iter_mut() {
                    *y = T::store((y.load() - largest).exp() * factor);
                }
            }
        },
    );
}

fn backward_cpu<T: Stored>(y: &[T], d: &mut [T], cols: usize) {
    by_row(
        d,
        cols,
        #[inline(always)]
        |first, d| {
            let y = &y[first..first + d.len()];
            let mean = fold(d.len(), T::Real::ZERO, |i| y[i].load() * d[i].load(), |a, b| a + b);
            for (d, y) in d.iter_mut().zip(y) {
                *d = T::store(y.load() * (d.load() - mean));
            }
        },
    );
}

/// Calls `f`, which must be inlined, with the first element's index of each row and the row.
#[inline(always)]
fn by_row<T: Stored>(values: &mut [T], cols: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    if values.is_empty() {
        return;
    }
    let n_rows = values.len() / cols;
    let values = SharedMut::new(values);
    for_parts(n_rows, MIN_PART.div_ceil(cols), 1, |rows| {
        vectorize(
            #[inline(always)]
            || {
                for row in rows.clone() {
                    // SAFETY: row `row` of `n_rows`, which is in this part alone.
                    f(row * cols, unsafe { values.slice(row * cols..(row + 1) * cols) });
                }
            },
        );
    });
}

pub(crate) static SOURCE: Source = Source::new("softmax", include_str!("kernel.cu"));

/// Rows of a block.
const BLOCK_ROWS: usize = BLOCK as usize / 32;

/// A warp per row.
fn forward_cuda(gpu: &'static Gpu, y: &mut CudaSliceMut<'_>, cols: usize) -> Result<()> {
    if y.is_empty() {
        return Ok(());
    }
    let rows = y.len() / cols;
    let kernel = float_kernel!("softmax_fwd"; y.dtype());
    let launch = Launch::new(gpu, &SOURCE, kernel)?.blocks(rows.div_ceil(BLOCK_ROWS));
    let launch = launch.write(y).arg(rows).arg(cols);
    // SAFETY: softmax_fwd(T* y, size_t rows, size_t cols); y holds rows * cols elements.
    unsafe { launch.run() }
}

fn backward_cuda(gpu: &'static Gpu, y: CudaSlice<'_>, d: &mut CudaSliceMut<'_>, cols: usize) -> Result<()> {
    if d.is_empty() {
        return Ok(());
    }
    let rows = d.len() / cols;
    let kernel = float_kernel!("softmax_bwd"; d.dtype());
    let launch = Launch::new(gpu, &SOURCE, kernel)?.blocks(rows.div_ceil(BLOCK_ROWS));
    let launch = launch.read(y).write(d).arg(rows).arg(cols);
    // SAFETY: softmax_bwd(const T* y, T* d, size_t rows, size_t cols); both hold rows * cols elements.
    unsafe { launch.run() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_close, assert_gradient, devices, dot, random, tensor};
    use crate::{Element, Tensor};

    fn softmax(x: &[f64], cols: usize) -> Vec<f64> {
        let mut y = x.to_vec();
        softmax_forward(TensorMut::from_slice(&mut y, &[x.len() / cols, cols]).unwrap()).unwrap();
        y
    }

    #[test]
    fn rows_are_weights_and_the_gradient_is_right() {
        for (rows, cols) in [(1, 1), (3, 5), (7, 40), (2, 100)] {
            let (x, weights) = (random::<f64>(rows * cols, 1), random::<f64>(rows * cols, 2));
            let y = softmax(&x, cols);
            for (x, y) in x.chunks(cols).zip(y.chunks(cols)) {
                let total: f64 = x.iter().map(|v| v.exp()).sum();
                let want: Vec<f64> = x.iter().map(|v| v.exp() / total).collect();
                assert_close(y, &want, 1e-14, 1e-14);
            }
            let mut d = weights.clone();
            let dims = [rows, cols];
            let y = TensorRef::from_slice(&y, &dims).unwrap();
            softmax_backward(y, TensorMut::from_slice(&mut d, &dims).unwrap()).unwrap();
            assert_gradient(&x, &d, |x| dot(&softmax(x, cols), &weights));
        }
    }

    fn on_every_device<T: Element>(rtol: f64) {
        for device in devices() {
            for (rows, cols) in [(1, 1), (5, 7), (33, 64), (3, 1000), (0, 4)] {
                let (mut x, g) = (random::<f64>(rows * cols, 3), random::<f64>(rows * cols, 4));
                x.iter_mut().for_each(|v| *v *= 4.0);
                // Of a causal mask.
                x.chunks_mut(cols).enumerate().for_each(|(row, x)| {
                    x.iter_mut().skip(row + 1).for_each(|v| *v = f64::NEG_INFINITY);
                });
                let of = |values: &[f64]| {
                    tensor(&values.iter().map(|v| T::from_f64(*v)).collect::<Vec<_>>(), &[rows, cols], device)
                };
                let (mut y, mut d): (Tensor, Tensor) = (of(&x), of(&g));
                // From the values that the format holds.
                let held =
                    |t: &Tensor| t.to_vec::<T>().unwrap().iter().map(|v| v.to_f64()).collect::<Vec<_>>();
                let (x, g) = (held(&y), held(&d));
                softmax_forward(y.view_mut()).unwrap();
                let want = softmax(&x, cols);
                assert_close(&held(&y), &want, rtol, rtol);
                let y_of_format = held(&y);
                softmax_backward(y.view(), d.view_mut()).unwrap();
                let mut want = g;
                for (y, d) in y_of_format.chunks(cols).zip(want.chunks_mut(cols)) {
                    let mean: f64 = dot(y, d);
                    d.iter_mut().zip(y).for_each(|(d, y)| *d = y * (*d - mean));
                }
                assert_close(&held(&d), &want, rtol, rtol);
            }
        }
    }

    #[test]
    fn devices_and_formats_agree_with_f64() {
        // f32: some rounding errors of 6e-8 each in sums of up to 1,000; 16 bits: rounded once.
        on_every_device::<f64>(1e-13);
        on_every_device::<f32>(2e-6);
        on_every_device::<half::bf16>(0.005);
        on_every_device::<half::f16>(0.001);
    }

    #[test]
    fn huge_values_overflow_nothing_and_masked_ones_weigh_nothing() {
        let mut y = [1e30f32, 1e30, f32::NEG_INFINITY, -5.0];
        softmax_forward(TensorMut::from_slice(&mut y, &[1, 4]).unwrap()).unwrap();
        assert_eq!(y, [0.5, 0.5, 0.0, 0.0]);
    }
}
