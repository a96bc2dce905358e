//! Bias of a linear layer: added to every row; its gradient is the sum over the rows.

pub(crate) mod cuda;

pub(crate) use cuda::SOURCE;

use crate::base::check;
use crate::cpu::Stored;
use crate::cpu::simd::vectorize;
use crate::{Element, Result, Shape, TensorMut, TensorRef};

/// `y[n, c] += bias[c]` in place.
///
/// - `bias`: `[C]`; `y`: `[N, C]`; one float dtype
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
#[doc(hidden)]
pub fn bias_forward(bias: TensorRef<'_>, y: TensorMut<'_>) -> Result<()> {
    const OP: &str = "bias_forward";
    let (bias_op, y_op) = (bias.operand("bias"), y.operand("y"));
    check::same_kind(OP, &[bias_op, y_op])?;
    let (_, cols) = y.shape().rows_cols();
    check::shape(OP, bias_op, Shape::vector(cols))?;
    if let Some(gpu) = y.gpu() {
        check::dtype(OP, y_op, check::FLOATS, check::FLOATS_NAMES)?;
        return cuda::forward(gpu, bias.cuda()?, &mut y.into_cuda()?);
    }
    check::stored_dispatch!(OP, y_op, T => {
        forward_cpu::<T>(bias.as_slice(OP, "bias")?, y.into_slice(OP, "y")?);
        Ok(())
    })
}

/// `d_bias[c] = Σ_n d_y[n, c]`, or `+=` if `accumulate`.
///
/// - `d_y`: `[N, C]`; `d_bias`: `[C]`; both f32 or both f64; for `d_y` in bf16 or f16, `d_bias` is f32, on a GPU also of that
///   format
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// Same as [`bias_forward`].
#[doc(hidden)]
pub fn bias_backward(d_y: TensorRef<'_>, d_bias: TensorMut<'_>, accumulate: bool) -> Result<()> {
    const OP: &str = "bias_backward";
    let (d_y_op, d_bias_op) = (d_y.operand("d_y"), d_bias.operand("d_bias"));
    check::output_kind(OP, d_y_op, d_bias_op)?;
    let (_, cols) = d_y.shape().rows_cols();
    check::shape(OP, d_bias_op, Shape::vector(cols))?;
    if let Some(gpu) = d_y.gpu() {
        check::dtype(OP, d_y_op, check::FLOATS, check::FLOATS_NAMES)?;
        return cuda::backward(gpu, d_y.cuda()?, cols, &mut d_bias.into_cuda()?, accumulate);
    }
    check::stored_dispatch!(OP, d_y_op, T => {
        backward_cpu::<T>(d_y.as_slice(OP, "d_y")?, d_bias.into_slice(OP, "d_bias")?, accumulate);
        Ok(())
    })
}

/// One pass over the rows, with the bias in cache.
fn forward_cpu<T: Stored>(bias: &[T], y: &mut [T]) {
    if bias.is_empty() {
        return;
    }
    vectorize(
        #[inline(always)]
        || {
            for row in y.chunks_exact_mut(bias.len()) {
                for (y, &b) in row.iter_mut().zip(bias) {
                    *y = T::store(y.load() + b.load());
                }
            }
        },
    );
}

fn backward_cpu<T: Stored>(d_y: &[T], d_bias: &mut [T::Real], accumulate: bool) {
    if !accumulate {
        d_bias.fill(T::Real::ZERO);
    }
    if d_bias.is_empty() {
        return;
    }
    vectorize(
        #[inline(always)]
        || {
            for row in d_y.chunks_exact(d_bias.len()) {
                for (sum, &d) in d_bias.iter_mut().zip(row) {
                    *sum += d.load();
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

    fn forward<T: Element>(bias: &[T], y: &[T], device: Device) -> Vec<T> {
        let (bias, mut y) =
            (tensor(bias, &[bias.len()], device), tensor(y, &[y.len() / bias.len(), bias.len()], device));
        bias_forward(bias.view(), y.view_mut()).unwrap();
        y.to_vec().unwrap()
    }

    /// The gradient, added to `before` if given; `d_y` starts `start` elements after the start of its buffer.
    fn backward<T: Element, U: Element>(
        d_y: &[T],
        cols: usize,
        before: Option<f64>,
        start: usize,
        device: Device,
    ) -> Vec<U> {
        let padded: Vec<T> = vec![T::ZERO; start].into_iter().chain(d_y.iter().copied()).collect();
        let buffer = tensor(&padded, &[padded.len()], device);
        let d_y =
            buffer.view().range(start, padded.len()).unwrap().reshape(&[d_y.len() / cols, cols]).unwrap();
        let mut d_bias = Tensor::full(&[cols], before.unwrap_or(f64::NAN), U::DTYPE, device).unwrap();
        bias_backward(d_y, d_bias.view_mut(), before.is_some()).unwrap();
        d_bias.to_vec().unwrap()
    }

    #[test]
    fn gradient_matches_central_differences() {
        let (rows, cols) = (4, 19);
        let (bias, d_y) = (random::<f64>(cols, 1), random::<f64>(rows * cols, 2));
        let zeros = vec![0.0; rows * cols];
        for device in devices() {
            let d_bias = backward::<f64, f64>(&d_y, cols, None, 0, device);
            assert_gradient(&bias, &d_bias, |bias| dot(&forward(bias, &zeros, device), &d_y));
        }
    }

    fn check_short<S: Element>((bias, y): (&[f32], &[f32]), device: Device) {
        let (bias, y): (Vec<S>, Vec<S>) = (rounded(bias), rounded(y));
        let sum = |(i, v): (usize, &S)| S::from_f64(v.to_f64() + bias[i % bias.len()].to_f64());
        let want: Vec<S> = y.iter().enumerate().map(sum).collect();
        assert!(
            forward(&bias, &y, device) == want,
            "{:?} {} x {} on {device}",
            S::DTYPE,
            y.len(),
            bias.len()
        );
    }

    /// One rounding of one sum: the devices have to agree to the bit.
    #[test]
    fn every_device_adds_to_the_same_bits() {
        for (rows, cols) in [(5, 1), (50, 10), (129, 64), (3, 5000), (33, 1023)] {
            let (bias, y) = (random::<f32>(cols, 1), random::<f32>(rows * cols, 2));
            let want: Vec<f32> = y.iter().enumerate().map(|(i, v)| v + bias[i % cols]).collect();
            for device in devices() {
                assert!(forward(&bias, &y, device) == want, "f32 {rows} x {cols} on {device}");
                let (wide_bias, wide) = (rounded::<f32, f64>(&bias), rounded::<f32, f64>(&y));
                let want: Vec<f64> = wide.iter().enumerate().map(|(i, v)| v + wide_bias[i % cols]).collect();
                assert!(forward(&wide_bias, &wide, device) == want, "f64 {rows} x {cols} on {device}");
                check_short::<bf16>((&bias, &y), device);
                check_short::<f16>((&bias, &y), device);
            }
        }
    }

    /// Shapes for one block, for several row shares, for many tiles and for more tiles than counters; rows that fit wide accesses
    /// and rows that do not.
    const SHAPES: [(usize, usize); 11] = [
        (0, 5),
        (1, 1),
        (300, 10),
        (20_000, 3),
        (9000, 10),
        (3000, 64),
        (1100, 264),
        (300, 1023),
        (33, 4096),
        (5, 8200),
        (2, 70_000),
    ];

    #[test]
    fn column_sums_agree_with_f64() {
        for (rows, cols) in SHAPES {
            let d_y = random::<f32>(rows * cols, 1);
            let wide = rounded::<f32, f64>(&d_y);
            // On a GPU, a thread sums about 100 numbers below 1, and later stages fewer: a few units of 2^-24 times such a sum. On the
            // CPU, sums are sequential: `rows` roundings, each to 2^-24 of up to about √rows.
            let bound = |device: Device| if device == Device::Cpu { 1e-6 + 1e-7 * rows as f64 } else { 2e-5 };
            for device in devices() {
                for before in [None, Some(2.0)] {
                    let want = column_sums(&wide, cols, before);
                    let as_f32 = rounded::<f32, f64>(&backward::<f32, f32>(&d_y, cols, before, 0, device));
                    assert_close(&as_f32, &want, bound(device), 1e-6);
                    assert_close(&backward::<f64, f64>(&wide, cols, before, 0, device), &want, 1e-11, 1e-12);
                    check_short_sums::<bf16>((rows, cols), before, bound(device), device);
                    check_short_sums::<f16>((rows, cols), before, bound(device), device);
                }
            }
        }
    }

    fn column_sums(d_y: &[f64], cols: usize, before: Option<f64>) -> Vec<f64> {
        let mut sums = vec![before.unwrap_or(0.0); cols];
        d_y.iter().enumerate().for_each(|(i, v)| sums[i % cols] += v);
        sums
    }

    fn check_short_sums<S: Element>(
        (rows, cols): (usize, usize),
        before: Option<f64>,
        atol: f64,
        device: Device,
    ) {
        let d_y: Vec<S> = rounded(&random::<f32>(rows * cols, 1));
        let want = column_sums(&rounded(&d_y), cols, before);
        let as_f32 = rounded::<f32, f64>(&backward::<S, f32>(&d_y, cols, before, 0, device));
        assert_close(&as_f32, &want, atol, 1e-6);
        if device != Device::Cpu {
            let as_short = rounded::<S, f64>(&backward::<S, S>(&d_y, cols, before, 0, device));
            assert_close(&as_short, &want, 2e-5, rounding_of::<S>());
        }
    }

    #[test]
    fn addresses_that_are_no_multiples_of_16_do_as_well() {
        let (rows, cols) = (700, 64);
        let d_y = random::<f32>(rows * cols, 1);
        for device in devices() {
            let want = backward::<f32, f32>(&d_y, cols, None, 0, device);
            // Another split of the columns, so another order: a few units of 2^-24 of sums up to 60.
            assert_close(&backward::<f32, f32>(&d_y, cols, None, 1, device), &want, 2e-5, 1e-6);
            let mut y = Tensor::zeros(&[1 + rows * cols], crate::DType::F32, device).unwrap();
            let bias = tensor(&d_y[..cols], &[cols], device);
            let view = y.view_mut().range(1, 1 + rows * cols).unwrap().reshape(&[rows, cols]).unwrap();
            bias_forward(bias.view(), view).unwrap();
            let y = y.to_vec::<f32>().unwrap();
            assert!(y[0] == 0.0 && y[1..].chunks_exact(cols).all(|row| row == &d_y[..cols]));
        }
    }

    #[test]
    fn sums_have_the_same_bits_in_every_run_and_on_every_gpu() {
        for (rows, cols) in [(9000, 10), (3000, 64), (1100, 264)] {
            let d_y = random::<f32>(rows * cols, 1);
            let gpus = devices().into_iter().filter(|&device| device != Device::Cpu);
            let runs: Vec<Vec<f32>> =
                gpus.flat_map(|d| [d, d]).map(|d| backward(&d_y, cols, None, 0, d)).collect();
            assert!(runs.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }
}
