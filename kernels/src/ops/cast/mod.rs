//! Conversion between float types.

use half::{bf16, f16};

use super::copy;
use crate::base::check;
use crate::base::dtype::to_odd;
use crate::cpu::cell::Cell;
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Result, TensorMut, TensorRef};

/// `to = from`, rounded to nearest, ties to even, once.
///
/// - `from`, `to`: one shape and device; f32, f64, bf16 or f16, also both the same
/// - NaN stays NaN; values too large for `to` become infinity
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::Shape`]; [`crate::KernelError::DTypeUnsupported`] for
/// integers.
///
/// Source: `torch.Tensor.to` with a dtype.
#[doc(hidden)]
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
        Some(gpu) => cast_cuda(gpu, from.cuda()?, &mut to.into_cuda()?),
        None => cast_cpu(OP, from, to),
    }
}

/// Elementwise, rounded once: from f64 to a 16-bit format through an f32 rounded to odd.
///
/// One loop over `$from`, of any float type, into `$to` of another.
macro_rules! convert {
    ($op:expr, $from:expr, $to:expr, $t:ty => $u:ty, $x:ident => $value:expr) => {
        for (to, &$x) in $to.into_slice::<$u>($op, "to")?.iter_mut().zip($from.as_slice::<$t>($op, "from")?) {
            *to = $value;
        }
    };
}

/// `to = from`; both of float dtypes and of one length.
fn cast_cpu(op: &'static str, from: TensorRef<'_>, to: TensorMut<'_>) -> Result<()> {
    match (from.dtype(), to.dtype()) {
        (DType::F64, DType::F32) => convert!(op, from, to, f64 => f32, x => x as f32),
        (DType::F64, DType::BF16) => convert!(op, from, to, f64 => bf16, x => Cell::store(to_odd(x))),
        (DType::F64, DType::F16) => convert!(op, from, to, f64 => f16, x => Cell::store(to_odd(x))),
        (DType::BF16, DType::F32) => convert!(op, from, to, bf16 => f32, x => x.load()),
        (DType::BF16, DType::F64) => convert!(op, from, to, bf16 => f64, x => f64::from(x.load())),
        (DType::BF16, DType::F16) => convert!(op, from, to, bf16 => f16, x => Cell::store(x.load())),
        (DType::F16, DType::F32) => convert!(op, from, to, f16 => f32, x => x.load()),
        (DType::F16, DType::F64) => convert!(op, from, to, f16 => f64, x => f64::from(x.load())),
        (DType::F16, DType::BF16) => convert!(op, from, to, f16 => bf16, x => Cell::store(x.load())),
        (_, DType::F64) => convert!(op, from, to, f32 => f64, x => f64::from(x)),
        (_, DType::BF16) => Cell::store_all(from.as_slice(op, "from")?, to.into_slice::<bf16>(op, "to")?),
        (_, DType::F16) => Cell::store_all(from.as_slice(op, "from")?, to.into_slice::<f16>(op, "to")?),
        // The caller rejected other types and copies equal ones.
        (_, _) => {}
    }
    Ok(())
}

pub(crate) static SOURCE: Source = Source::new("cast", include_str!("kernel.cu")).after_others();

/// Elementwise, 16 bytes of the wider type per access.
///
/// `to = from`; equal lengths and two different float dtypes, on this device.
fn cast_cuda(gpu: &'static Gpu, from: CudaSlice<'_>, to: &mut CudaSliceMut<'_>) -> Result<()> {
    let n = to.len();
    if n == 0 {
        return Ok(());
    }
    let kernel = match (from.dtype(), to.dtype()) {
        (DType::F32, DType::F64) => "cast_f32_f64",
        (DType::F32, DType::F16) => "cast_f32_f16",
        (DType::F32, _) => "cast_f32_bf16",
        (DType::F64, DType::BF16) => "cast_f64_bf16",
        (DType::F64, DType::F16) => "cast_f64_f16",
        (DType::F64, _) => "cast_f64_f32",
        (DType::F16, DType::F64) => "cast_f16_f64",
        (DType::F16, DType::BF16) => "cast_f16_bf16",
        (DType::F16, _) => "cast_f16_f32",
        (_, DType::F64) => "cast_bf16_f64",
        (_, DType::F16) => "cast_bf16_f16",
        (_, _) => "cast_bf16_f32",
    };
    let per_thread = 16 / from.dtype().size_bytes().max(to.dtype().size_bytes());
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, per_thread);
    // SAFETY: cast(const From* from, To* to, size_t n); both hold n elements.
    unsafe { launch.read(from).write(to).arg(n).run() }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

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

    /// Numbers of all magnitudes, with the ties of rounding and the limits of the finite range.
    fn samples() -> Vec<f64> {
        let mut values =
            vec![0.0, -0.0, f64::INFINITY, -f64::INFINITY, f64::NAN, 1e300, -1e300, 1e-300, -1e-300];
        for exponent in
            [-149, -140, -134, -133, -127, -126, -26, -25, -24, -23, -15, -14, -1, 0, 14, 15, 100, 126, 127]
        {
            let unit = 2f64.powi(exponent);
            for mantissa in [
                1.0,
                1.25,
                1.5,
                1.75,
                127.0 / 64.0,
                255.0 / 128.0,
                1.0 + 1.0 / 256.0,
                1.0 + 3.0 / 256.0,
                1.0 + 1.0 / 2048.0,
                1.0 + 3.0 / 2048.0,
                4095.0 / 2048.0,
            ] {
                // A tie of bf16 or f16, or its neighbors in f64 and f32, on either side.
                for beside in [0.0, 2f64.powi(-52), -2f64.powi(-52), 2f64.powi(-23), -2f64.powi(-23)] {
                    values.extend([unit * (mantissa + beside), -unit * (mantissa + beside)]);
                }
            }
        }
        values.extend(random::<f64>(1003, 1));
        values
    }

    /// A 16-bit format as its bits.
    trait Short: Element {
        /// The bits of infinity.
        const INFINITY: u16;
        /// The value of infinity if the exponents continued above the largest finite number, as rounding treats it.
        const BEYOND: f64;
        fn from_bits(bits: u16) -> Self;
        fn bits(self) -> u16;
    }
    impl Short for bf16 {
        const INFINITY: u16 = 0x7f80;
        const BEYOND: f64 = 2.0 * (1u128 << 127) as f64;
        fn from_bits(bits: u16) -> Self {
            bf16::from_bits(bits)
        }
        fn bits(self) -> u16 {
            self.to_bits()
        }
    }
    impl Short for f16 {
        const INFINITY: u16 = 0x7c00;
        const BEYOND: f64 = 65536.0;
        fn from_bits(bits: u16) -> Self {
            f16::from_bits(bits)
        }
        fn bits(self) -> u16 {
            self.to_bits()
        }
    }

    /// The nearer of the two 16-bit numbers around `x`; the even one of a tie.
    fn nearest<S: Short>(x: f64) -> u16 {
        let sign = u16::from(x.is_sign_negative()) << 15;
        let value = |bits: u16| if bits == S::INFINITY { S::BEYOND } else { S::from_bits(bits).to_f64() };
        let (mut above, mut n) = (0, S::INFINITY);
        while n > 0 {
            let half = n / 2;
            (above, n) =
                if value(above + half) < x.abs() { (above + half + 1, n - half - 1) } else { (above, half) };
        }
        let below = above.saturating_sub(1);
        let (up, down) = (value(above) - x.abs(), x.abs() - value(below));
        let nearer = if up < down || (up == down && above % 2 == 0) { above } else { below };
        sign | if x.abs() >= S::BEYOND { S::INFINITY } else { nearer }
    }

    fn check_rounding<S: Short, T: Element>(from: &[T], start: usize, device: Device) {
        for (x, got) in from[start..].iter().zip(run::<T, S>(from, start, device)) {
            let x = x.to_f64();
            let is_right = if x.is_nan() { got.to_f64().is_nan() } else { got.bits() == nearest::<S>(x) };
            assert!(is_right, "{x:e} became {got:?} on {device}");
        }
    }

    /// Every number of `S` in `T`, which holds all of them.
    fn check_widening<S: Short, T: Element>(start: usize, device: Device) {
        let shorts: Vec<S> = (0..=u16::MAX).map(S::from_bits).collect();
        for (short, got) in shorts[start..].iter().zip(run::<S, T>(&shorts, start, device)) {
            let (want, got) = (short.to_f64(), got.to_f64());
            assert!(
                want.to_bits() == got.to_bits() || want.is_nan() && got.is_nan(),
                "{short:?} on {device}"
            );
        }
    }

    #[test]
    fn rounds_once_to_nearest_even_on_every_device() {
        let doubles = samples();
        let singles: Vec<f32> = doubles.iter().map(|&x| x as f32).collect();
        for device in devices() {
            for start in [0, 1] {
                check_rounding::<bf16, f64>(&doubles, start, device);
                check_rounding::<bf16, f32>(&singles, start, device);
                check_rounding::<f16, f64>(&doubles, start, device);
                check_rounding::<f16, f32>(&singles, start, device);
                let (halves, shorts): (Vec<f16>, Vec<bf16>) = (
                    (0..=u16::MAX).map(f16::from_bits).collect(),
                    (0..=u16::MAX).map(bf16::from_bits).collect(),
                );
                check_rounding::<bf16, f16>(&halves, start, device);
                check_rounding::<f16, bf16>(&shorts, start, device);
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
        for device in devices() {
            for start in [0, 1] {
                for (single, got) in singles[start..].iter().zip(run::<f32, f64>(&singles, start, device)) {
                    let is_same = got.to_bits() == f64::from(*single).to_bits();
                    assert!(is_same || single.is_nan() && got.is_nan());
                }
                check_widening::<bf16, f32>(start, device);
                check_widening::<bf16, f64>(start, device);
                check_widening::<f16, f32>(start, device);
                check_widening::<f16, f64>(start, device);
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
            for dtype in [DType::U8, DType::I64] {
                let mut kept = Tensor::zeros(&[2], dtype, device).unwrap();
                assert!(
                    cast(kept.view(), to.view_mut()).is_err() && cast(to.view(), kept.view_mut()).is_err()
                );
            }
            assert!(cast(floats.view(), to.view_mut().reshape(&[1, 2]).unwrap()).is_err());
        }
    }
}
