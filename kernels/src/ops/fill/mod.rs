//! Tensors whose elements are functions of their index.

use half::{bf16, f16};

use crate::base::rng::{Philox, normal_pair};
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cuda::launch::{Launch, Source, typed_kernel};
use crate::cuda::{CudaSliceMut, Gpu};
use crate::{DType, Element, Result, TensorMut};

/// Element `i` in row-major order, computed in f64.
#[derive(Debug, Clone, Copy, PartialEq)]
#[doc(hidden)]
pub enum Pattern {
    /// `start + i * step`.
    Line {
        /// Element 0.
        start: f64,
        /// Difference of adjacent elements.
        step: f64,
    },
    /// `n` evenly spaced numbers from `start` to `end`, exact at both ends.
    Between {
        /// Element 0.
        start: f64,
        /// Element `n - 1`, if `n > 1`.
        end: f64,
        /// Number of elements.
        n: usize,
    },
    /// The identity matrix of this size.
    Identity {
        /// Rows and columns.
        n: usize,
    },
    /// Random whole numbers in `low..high`: a 53-bit fraction of Philox under this key, times their number, rounded down.
    Integers {
        /// The key of Philox.
        seed: u64,
        /// The smallest.
        low: i64,
        /// One more than the largest.
        high: i64,
    },
    /// Standard normal numbers: Box-Muller on pairs of elements, by Philox under this key.
    Normal {
        /// The key of Philox.
        seed: u64,
    },
}

/// `x[i] = pattern(i)`, converted to the dtype as [`convert`](super::convert()) does.
///
/// - `x`: any shape and dtype
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`crate::KernelError::Cuda`].
#[doc(hidden)]
pub fn fill(x: TensorMut<'_>, pattern: Pattern) -> Result<()> {
    match x.gpu() {
        Some(gpu) => fill_cuda(gpu, &mut x.into_cuda()?, pattern),
        None => fill_cpu(x, pattern),
    }
}

/// Distance between adjacent elements of [`Pattern::Between`].
fn step_between(start: f64, end: f64, n: usize) -> f64 {
    if n > 1 { (end - start) / (n - 1) as f64 } else { 0.0 }
}

/// Number of integers of [`Pattern::Integers`].
fn n_integers(low: i64, high: i64) -> f64 {
    (i128::from(high) - i128::from(low)) as f64
}

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 14;

/// Element by element, split over the threads.
///
/// `x[i] = pattern(i)`.
fn fill_cpu(x: TensorMut<'_>, pattern: Pattern) -> Result<()> {
    const OP: &str = "fill";
    macro_rules! typed {
        ($t:ty) => {{
            fill_type(x.into_slice::<$t>(OP, "x")?, pattern, <$t as Element>::from_f64);
            Ok(())
        }};
    }
    match x.dtype() {
        DType::F32 => typed!(f32),
        DType::F64 => typed!(f64),
        DType::I64 => typed!(i64),
        DType::BF16 => typed!(bf16),
        DType::U8 => typed!(u8),
        DType::F16 => typed!(f16),
        DType::I32 => typed!(i32),
        DType::Bool => {
            fill_type(x.into_bytes(OP, "x")?, pattern, |v| u8::from(v != 0.0));
            Ok(())
        }
    }
}

fn fill_type<T: Element>(x: &mut [T], pattern: Pattern, convert: impl Fn(f64) -> T + Sync) {
    match pattern {
        Pattern::Line { start, step: 0.0 } => {
            let value = convert(start);
            each(x, |_, part| part.fill(value));
        }
        Pattern::Line { start, step } => each(x, |first, part| {
            for (i, x) in part.iter_mut().enumerate() {
                *x = convert(start + (first + i) as f64 * step);
            }
        }),
        Pattern::Between { start, end, n } => {
            let step = step_between(start, end, n);
            each(x, |first, part| {
                for (i, x) in part.iter_mut().enumerate() {
                    let i = first + i;
                    *x = convert(if 2 * i < n {
                        start + i as f64 * step
                    } else {
                        end - (n - 1 - i) as f64 * step
                    });
                }
            });
        }
        Pattern::Identity { n } => each(x, |first, part| {
            part.fill(T::ZERO);
            let one = convert(1.0);
            // Elements 0, n + 1, 2 (n + 1), ...
            for i in (first.next_multiple_of(n + 1)..first + part.len()).step_by(n + 1) {
                part[i - first] = one;
            }
        }),
        Pattern::Integers { seed, low, high } => {
            let philox = Philox::new(seed);
            let (low, n) = (low as f64, n_integers(low, high));
            each(x, |first, part| {
                for (i, x) in part.iter_mut().enumerate() {
                    let place = (first + i) as u64;
                    let pair = place / 2;
                    let words = philox.block([pair as u32, (pair >> 32) as u32, 1, 0]);
                    let [high, next] =
                        if place.is_multiple_of(2) { [words[0], words[1]] } else { [words[2], words[3]] };
                    let fraction = (u64::from(high) << 32 | u64::from(next)) >> 11;
                    let unit = fraction as f64 * (1.0 / 9_007_199_254_740_992.0);
                    *x = convert(low + (unit * n).floor().min(n - 1.0));
                }
            });
        }
        Pattern::Normal { seed } => {
            let philox = Philox::new(seed);
            each(x, |first, part| {
                // Parts begin at even elements.
                for (pair, x) in part.chunks_mut(2).enumerate() {
                    let (a, b) = normal_pair(&philox, (first / 2 + pair) as u64);
                    x[0] = convert(a);
                    if let Some(x) = x.get_mut(1) {
                        *x = convert(b);
                    }
                }
            });
        }
    }
}

/// Calls `f` with each thread's part and the index of its first element, which is even.
fn each<T: Element>(x: &mut [T], f: impl Fn(usize, &mut [T]) + Sync) {
    let n = x.len();
    let x = SharedMut::new(x);
    for_parts(n, MIN_PART, 64, |part| {
        let first = part.start;
        // SAFETY: the part lies within `x` and is this thread's alone.
        f(first, unsafe { x.slice(part) });
    });
}

pub(crate) static SOURCE: Source = Source::new("fill", include_str!("kernel.cu"));

/// One kernel for all patterns.
///
/// `x[i] = pattern(i)` on this device.
fn fill_cuda(gpu: &'static Gpu, x: &mut CudaSliceMut<'_>, pattern: Pattern) -> Result<()> {
    let n = x.len();
    if n == 0 {
        return Ok(());
    }
    let (kind, start, step, end, word) = match pattern {
        Pattern::Line { start, step } => (0, start, step, 0.0, 0),
        Pattern::Between { start, end, n } => (1, start, step_between(start, end, n), end, n as u64),
        Pattern::Identity { n } => (2, 0.0, 0.0, 0.0, n as u64),
        Pattern::Integers { seed, low, high } => (4, low as f64, n_integers(low, high), 0.0, seed),
        Pattern::Normal { seed } => (3, 0.0, 0.0, 0.0, seed),
    };
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("fill", x.dtype()))?.for_elements(n, 4);
    let launch = launch.write(x).arg(n).arg(kind).arg(start).arg(step).arg(end).arg(word);
    // SAFETY: fill(T* x, size_t n, int kind, double start, double step, double end, u64 word); x holds n elements.
    unsafe { launch.run() }
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::{assert_close, devices};
    use crate::{DType, Tensor};

    #[test]
    fn patterns_are_as_defined_in_every_dtype_on_every_device() {
        for device in devices() {
            let line = |dtype| Tensor::arange(5, dtype, device).unwrap();
            for dtype in DType::ALL {
                let want =
                    if dtype == DType::Bool { [0.0, 1.0, 1.0, 1.0, 1.0] } else { [0.0, 1.0, 2.0, 3.0, 4.0] };
                assert_eq!(
                    line(dtype).to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap(),
                    want,
                    "{dtype} {device}"
                );
            }
            let full = Tensor::full(&[3], -7.9, DType::I32, device).unwrap();
            assert_eq!(full.to_vec::<i32>().unwrap(), [-7; 3]);
            assert_eq!(Tensor::full(&[1], -1.0, DType::U8, device).unwrap().item::<u8>().unwrap(), 0);
            let between = |start, end, n| {
                Tensor::linspace(start, end, n, DType::F64, device).unwrap().to_vec::<f64>().unwrap()
            };
            assert_eq!(between(0.0, 1.0, 5), [0.0, 0.25, 0.5, 0.75, 1.0]);
            let odd = between(-1.1, 0.7, 4);
            assert_eq!((odd[0], odd[3]), (-1.1, 0.7), "both ends are exact");
            assert_eq!((between(3.0, 9.0, 1), between(3.0, 9.0, 0)), (vec![3.0], vec![]));
            let eye = Tensor::eye(3, DType::I64, device).unwrap();
            assert_eq!(eye.to_vec::<i64>().unwrap(), [1, 0, 0, 0, 1, 0, 0, 0, 1]);
        }
    }

    #[test]
    fn whole_numbers_are_in_their_range_equally_often_and_the_same_on_every_device() {
        const N: usize = 60_001;
        let draw = |low, high, device| {
            Tensor::randint(low, high, &[N], DType::I64, device, 3).unwrap().to_vec::<i64>().unwrap()
        };
        for (low, high) in [(-3, 3), (0, 1), (-(1 << 52), 1 << 52), (i64::MIN, i64::MAX)] {
            let want = draw(low, high, crate::Device::Cpu);
            assert!(want.iter().all(|v| (low..high).contains(v)), "{low}..{high}");
            for device in devices() {
                assert!(draw(low, high, device) == want, "{low}..{high} on {device}");
            }
        }
        let mut counts = [0; 6];
        draw(-3, 3, crate::Device::Cpu).iter().for_each(|v| counts[(v + 3) as usize] += 1);
        // Five standard deviations of 10,000 expected: 5 * sqrt(60,001 * 5 / 36).
        assert!(counts.iter().all(|count: &i64| (count - 10_000).abs() < 457), "{counts:?}");
        let error =
            |low, high, dtype| Tensor::randint(low, high, &[2], dtype, "cpu", 0).unwrap_err().to_string();
        assert_eq!(error(5, 5, DType::I64), "randint: no whole number is in 5..5");
        assert!(error(0, 257, DType::U8).contains("256 is not a value of result [2] u8"));
    }

    #[test]
    fn normal_numbers_are_the_same_on_every_device() {
        for n in [1, 1000, 4099] {
            let draw = |device| Tensor::randn(&[n], DType::F64, device, 7).unwrap().to_vec::<f64>().unwrap();
            let want = draw(crate::Device::Cpu);
            for device in devices() {
                // The functions of two mathematical libraries: a few units in the last place.
                assert_close(&draw(device), &want, 1e-14, 1e-13);
            }
        }
    }
}
