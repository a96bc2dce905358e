//! Element by element, split over the threads.

use half::{bf16, f16};

use super::{Pattern, n_integers, step_between};
use crate::base::rng::{Philox, normal_pair};
use crate::cpu::threads::{SharedMut, for_parts};
use crate::{DType, Element, Result, TensorMut};

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 14;

/// `x[i] = pattern(i)`.
pub(super) fn fill(x: TensorMut<'_>, pattern: Pattern) -> Result<()> {
    const OP: &str = "fill";
    macro_rules! typed {
        ($t:ty) => {{
            of_type(x.into_slice::<$t>(OP, "x")?, pattern, <$t as Element>::from_f64);
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
            of_type(x.into_bytes(OP, "x")?, pattern, |v| u8::from(v != 0.0));
            Ok(())
        }
    }
}

fn of_type<T: Element>(x: &mut [T], pattern: Pattern, convert: impl Fn(f64) -> T + Sync) {
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
