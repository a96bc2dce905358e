//! The same numbers in another float type.

mod cpu;
mod cuda;

pub(crate) use cuda::SOURCE;

use super::{check, copy};
use crate::{Result, TensorMut, TensorRef};

/// `to = from`, rounded to nearest, ties to even, once.
///
/// - `from`, `to`: one shape and device; f32, f64 or bf16, also twice the same
/// - NaN stays NaN; what is too large becomes infinity
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::Shape`]; [`crate::KernelError::DTypeUnsupported`] for
/// integers.
///
/// Source: `torch.Tensor.to` with a dtype.
pub fn cast(from: TensorRef<'_>, to: TensorMut<'_>) -> Result<()> {
    const OP: &str = "cast";
    let (from_op, to_op) = (from.operand("from"), to.operand("to"));
    check::same_device(OP, &[from_op, to_op])?;
    check::shape(OP, to_op, from.shape())?;
    for operand in [from_op, to_op] {
        check::dtype(OP, operand, check::FLOATS, check::FLOATS_NAMES)?;
    }
    if from.dtype() == to.dtype() {
        return copy(from, to);
    }
    match from.gpu() {
        Some(gpu) => cuda::cast(gpu, from.cuda()?, &mut to.into_cuda()?),
        None => cpu::cast(OP, from, to.into_cpu(OP)?),
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::*;
    use crate::ops::testing::{devices, random, tensor};
    use crate::{DType, Device, Element, Tensor};

    fn run<A: Element, B: Element>(from: &[A], start: usize, device: Device) -> Vec<B> {
        let from = tensor(from, &[from.len()], device);
        let n = from.numel();
        let mut to = Tensor::zeros(&[n], B::DTYPE, device).unwrap();
        cast(from.view().range(start, n).unwrap(), to.view_mut().range(start, n).unwrap()).unwrap();
        to.to_vec::<B>().unwrap().split_off(start)
    }

    /// Numbers of all sizes, with those at which rounding turns and those beyond which nothing is finite.
    fn samples() -> Vec<f64> {
        let mut values =
            vec![0.0, -0.0, f64::INFINITY, -f64::INFINITY, f64::NAN, 1e300, -1e300, 1e-300, -1e-300];
        for exponent in [-149, -140, -134, -133, -127, -126, -1, 0, 100, 126, 127] {
            let unit = 2f64.powi(exponent);
            for mantissa in
                [1.0, 1.25, 1.5, 1.75, 127.0 / 64.0, 255.0 / 128.0, 1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0]
            {
                // A tie of bf16 or its neighbours in f64 and f32, on either side.
                for beside in [0.0, 2f64.powi(-52), -2f64.powi(-52), 2f64.powi(-23), -2f64.powi(-23)] {
                    values.extend([unit * (mantissa + beside), -unit * (mantissa + beside)]);
                }
            }
        }
        values.extend(random::<f64>(1003, 1));
        values
    }

    /// Of the two bf16 around `x` the nearer one, of two that are equally near the even one.
    fn nearest_bf16(x: f64) -> u16 {
        let sign = u16::from(x.is_sign_negative()) << 15;
        // The largest finite one takes part as if the exponents went on above it.
        let value = |bits: u16| match bits {
            0x7f80 => 2f64.powi(128),
            _ => f64::from(bf16::from_bits(bits).to_f32()),
        };
        let (mut above, mut n) = (0, 0x7f80);
        while n > 0 {
            let half = n / 2;
            (above, n) =
                if value(above + half) < x.abs() { (above + half + 1, n - half - 1) } else { (above, half) };
        }
        let below = above.saturating_sub(1);
        let (up, down) = (value(above) - x.abs(), x.abs() - value(below));
        let nearer = if up < down || (up == down && above % 2 == 0) { above } else { below };
        sign | if x.abs() >= value(0x7f80) { 0x7f80 } else { nearer }
    }

    #[test]
    fn rounds_once_to_nearest_even_on_every_device() {
        let doubles = samples();
        let singles: Vec<f32> = doubles.iter().map(|&x| x as f32).collect();
        let want_of =
            |x: f64, got: bf16| if x.is_nan() { got.is_nan() } else { got.to_bits() == nearest_bf16(x) };
        for device in devices() {
            for start in [0, 1] {
                for (x, got) in doubles[start..].iter().zip(run::<f64, bf16>(&doubles, start, device)) {
                    assert!(want_of(*x, got), "{x:e} became {got:e} on {device}");
                }
                for (x, got) in singles[start..].iter().zip(run::<f32, bf16>(&singles, start, device)) {
                    assert!(want_of(f64::from(*x), got), "{x:e} became {got:e} on {device}");
                }
                for (x, got) in singles[start..].iter().zip(run::<f64, f32>(&doubles, start, device)) {
                    assert!(
                        x.to_bits() == got.to_bits() || (x.is_nan() && got.is_nan()),
                        "{x:e} became {got:e}"
                    );
                }
            }
        }
    }

    #[test]
    fn widening_changes_nothing() {
        let singles: Vec<f32> = samples().iter().map(|&x| x as f32).collect();
        let shorts: Vec<bf16> = singles.iter().map(|&x| bf16::from_f32(x)).collect();
        for device in devices() {
            for start in [0, 1] {
                let (from_singles, from_shorts) =
                    (run::<f32, f64>(&singles, start, device), run::<bf16, f64>(&shorts, start, device));
                let to_single = run::<bf16, f32>(&shorts, start, device);
                for i in 0..singles.len() - start {
                    let (single, short) = (singles[start + i], shorts[start + i].to_f32());
                    let is_same =
                        |got: f64, want: f32| got.to_bits() == f64::from(want).to_bits() || want.is_nan();
                    assert!(is_same(from_singles[i], single) && from_singles[i].is_nan() == single.is_nan());
                    assert!(is_same(from_shorts[i], short) && from_shorts[i].is_nan() == short.is_nan());
                    assert!(
                        is_same(f64::from(to_single[i]), short) && to_single[i].is_nan() == short.is_nan()
                    );
                }
            }
            assert_eq!(run::<f32, f32>(&[1.5, 2.0], 0, device), [1.5, 2.0]);
        }
    }

    #[test]
    fn integers_and_other_shapes_are_refused() {
        for device in devices() {
            let (floats, integers) = (tensor(&[1.0f32, 2.0], &[2], device), tensor(&[1i64, 2], &[2], device));
            let mut to = tensor(&[0.0f64; 2], &[2], device);
            assert!(cast(integers.view(), to.view_mut()).is_err());
            for dtype in [DType::U8, DType::F16] {
                let mut kept = Tensor::zeros(&[2], dtype, device).unwrap();
                assert!(
                    cast(kept.view(), to.view_mut()).is_err() && cast(to.view(), kept.view_mut()).is_err()
                );
            }
            assert!(cast(floats.view(), to.view_mut().reshape(&[1, 2]).unwrap()).is_err());
        }
    }
}
