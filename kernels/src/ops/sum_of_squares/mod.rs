//! Sum of squares of a buffer, for norms.

mod cpu;
mod cuda;

pub(crate) use cuda::SOURCE;

use crate::base::check;
use crate::cuda::StreamKind;
use crate::{DType, Result, Shape, TensorMut, TensorRef};

/// `out = Σ x²` in f64, or `out += Σ x²` if `accumulate`.
///
/// - `x`: any shape of a float dtype; `out`: `[1]` f64
/// - on one kind of device the order of summation depends only on the length, so that equal buffers give equal bits
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::Shape`]; [`crate::KernelError::DTypeUnsupported`] for integers
/// and for an `out` that is not f64.
pub fn sum_of_squares(x: TensorRef<'_>, out: TensorMut<'_>, accumulate: bool) -> Result<()> {
    sum_of_squares_on(StreamKind::Compute, x, out, accumulate)
}

/// Same as [`sum_of_squares`], on another stream of a GPU: the compute stream or the communication stream. The caller orders it with
/// other work on the tensors; on the CPU the stream is of no meaning.
///
/// # Errors
/// Same as [`sum_of_squares`].
pub fn sum_of_squares_on(
    stream: StreamKind,
    x: TensorRef<'_>,
    out: TensorMut<'_>,
    accumulate: bool,
) -> Result<()> {
    const OP: &str = "sum_of_squares";
    let (x_op, out_op) = (x.operand("x"), out.operand("out"));
    check::same_device(OP, &[x_op, out_op])?;
    check::dtype(OP, out_op, &[DType::F64], "f64")?;
    check::shape(OP, out_op, Shape::vector(1))?;
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        return cuda::sum(gpu, stream, x.cuda()?, &mut out.into_cuda()?, accumulate);
    }
    check::stored_dispatch!(OP, x_op, T => {
        let total = cpu::sum::<T>(x.as_slice(OP, "x")?);
        let out = &mut out.into_slice::<f64>(OP, "out")?[0];
        *out = if accumulate { *out + total } else { total };
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::cpu::threads::join_pool;
    use crate::ops::testing::{devices, random, rounded, tensor};
    use crate::{Device, Element};

    /// The sum from element `start` on, added to `before` if given.
    fn run<T: Element>(x: &[T], start: usize, before: Option<f64>, device: Device) -> f64 {
        let x = tensor(x, &[x.len()], device);
        let mut out = tensor(&[before.unwrap_or(f64::NAN)], &[1], device);
        sum_of_squares(x.view().range(start, x.numel()).unwrap(), out.view_mut(), before.is_some()).unwrap();
        out.to_vec::<f64>().unwrap()[0]
    }

    #[test]
    fn agrees_with_f64() {
        for n in [0, 1, 31, 4096, 100_003, 2_200_003] {
            let x = random::<f32>(n, 1);
            let short = rounded::<f32, bf16>(&x);
            let exact = |x: &[f64]| x.iter().map(|v| v * v).sum::<f64>();
            let want = exact(&rounded::<f32, f64>(&x));
            let want_short = exact(&rounded::<bf16, f64>(&short));
            let half = rounded::<f32, f16>(&x);
            let want_half = exact(&rounded::<f16, f64>(&half));
            for device in devices() {
                // Sums of up to 128 squares in f32, none of them negative: a few units of 2^-24.
                let is_close = |got: f64, want: f64| (got - want).abs() <= 1e-6 * want;
                assert!(is_close(run(&x, 0, None, device), want), "f32 {n} on {device}");
                let wide = rounded::<f32, f64>(&x);
                // `want` itself is a sequential sum of n terms, off by up to n times 2^-54.
                let got = run(&wide, 0, None, device);
                assert!((got - want).abs() <= 1e-11 * want, "f64 {n} on {device}: {got} against {want}");
                assert!(is_close(run(&short, 0, None, device), want_short), "bf16 {n} on {device}");
                assert!(is_close(run(&half, 0, None, device), want_half), "f16 {n} on {device}");
            }
        }
    }

    #[test]
    fn adds_to_what_is_there_only_if_told_to() {
        for device in devices() {
            for n in [3, 40_000] {
                let x = vec![2.0f32; n];
                assert_eq!(run(&x, 0, Some(0.5), device), 4.0 * n as f64 + 0.5);
                assert_eq!(run(&x, 0, None, device), 4.0 * n as f64);
            }
        }
    }

    /// Values that are not finite must be detected, also squares that overflow f32 only.
    #[test]
    fn a_single_nan_or_infinity_is_seen_wherever_it_stands() {
        for device in devices() {
            for at in [0, 4097, 99_998, 100_002] {
                for bad in [f32::NAN, f32::INFINITY, f32::MAX] {
                    let mut x = random::<f32>(100_003, 1);
                    x[at] = bad;
                    assert!(!run(&x, 0, None, device).is_finite());
                }
            }
        }
    }

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        let x = random::<f32>(2_200_003, 1);
        let [one, two, three] = [1, 2, 3].map(|n_threads| {
            let compute = || {
                join_pool(n_threads).unwrap();
                run(&x, 0, None, Device::Cpu).to_bits()
            };
            std::thread::scope(|scope| scope.spawn(compute).join().unwrap())
        });
        assert!(one == two && one == three);
    }

    #[test]
    fn the_bits_depend_on_the_values_alone() {
        let x = random::<f32>(700_003, 1);
        let shifted: Vec<f32> = [0.0].iter().chain(&x).copied().collect();
        for device in devices() {
            let first = run(&x, 0, None, device);
            assert_eq!(first, run(&x, 0, None, device));
            assert_eq!(first, run(&shifted, 1, None, device), "another address on {device}");
        }
        let on_gpus: Vec<f64> =
            devices().into_iter().filter(|d| *d != Device::Cpu).map(|d| run(&x, 0, None, d)).collect();
        assert!(on_gpus.windows(2).all(|pair| pair[0] == pair[1]));
    }
}
