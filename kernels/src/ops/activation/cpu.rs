//! Elementwise, vectorized; the backward pass sums the bias gradient while the row is in cache.

use super::Activation;
use crate::Element;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::{Float, Stored};

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;
/// Elements that are converted at a time.
const CONVERTED: usize = 2048;

/// A function and its derivative, known at compile time so that loops over it vectorize.
pub(crate) trait Function: Copy + Send + Sync {
    /// `f(x)`.
    fn value<T: Float>(x: T) -> T;
    /// `f'(x)`, from `x` or `f(x)`: [`Activation::saved_for_backward`].
    fn derivative<T: Float>(saved: T) -> T;
}

macro_rules! function {
    ($name:ident, $x:ident => $value:expr, $saved:ident => $derivative:expr) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Function for $name {
            #[inline(always)]
            fn value<T: Float>($x: T) -> T {
                $value
            }
            #[inline(always)]
            fn derivative<T: Float>($saved: T) -> T {
                $derivative
            }
        }
    };
}

/// Converts `v` to `T`.
#[inline(always)]
fn c<T: Float>(v: f64) -> T {
    T::from_f64(v)
}

function!(Identity, x => x, _saved => T::ONE);
function!(Relu, x => x.at_least(T::ZERO), y => if y > T::ZERO { T::ONE } else { T::ZERO });
function!(Tanh, x => x.tanh(), y => T::ONE - y * y);
function!(Sigmoid, x => x.sigmoid(), y => y * (T::ONE - y));
function!(Silu, x => x * x.sigmoid(), x => {
    let s = x.sigmoid();
    s * (T::ONE + x * (T::ONE - s))
});
function!(Gelu, x => c::<T>(0.5) * x * (T::ONE + (x * c(std::f64::consts::FRAC_1_SQRT_2)).erf()), x => {
    let cdf = c::<T>(0.5) * (T::ONE + (x * c(std::f64::consts::FRAC_1_SQRT_2)).erf());
    // The normal density; 1/√(2π).
    let density = (c::<T>(-0.5) * x * x).exp() * c(0.398_942_280_401_432_7);
    cdf + x * density
});
function!(GeluTanh, x => c::<T>(0.5) * x * (T::ONE + gelu_inner(x).tanh()), x => {
    let t = gelu_inner(x).tanh();
    let d_inner = c::<T>(SQRT_2_OVER_PI) * (T::ONE + c::<T>(3.0 * 0.044_715) * x * x);
    c::<T>(0.5) * (T::ONE + t) + c::<T>(0.5) * x * (T::ONE - t * t) * d_inner
});

function!(SmoothClip, x => {
    let q = third(x);
    c::<T>(3.0) * q / (T::ONE + q * q).sqrt()
}, x => {
    let q = third(x);
    let r = T::ONE / (T::ONE + q * q).sqrt();
    r * r * r
});

/// `x / 3`, limited so that its square does not overflow.
#[inline(always)]
fn third<T: Float>(x: T) -> T {
    let (q, limit) = (x / c(3.0), c::<T>(1e9));
    if q > limit {
        limit
    } else if q < -limit {
        -limit
    } else {
        q
    }
}

const SQRT_2_OVER_PI: f64 = 0.797_884_560_802_865_4;

#[inline(always)]
fn gelu_inner<T: Float>(x: T) -> T {
    c::<T>(SQRT_2_OVER_PI) * (x + c::<T>(0.044_715) * x * x * x)
}

/// Runs `$body` with `$f` as the function's type.
macro_rules! with_function {
    ($activation:expr, $f:ident => $body:expr) => {{
        #[allow(unused_imports, reason = "in this file the macro is in scope anyway")]
        use $crate::ops::activation::cpu::match_function;
        $crate::ops::activation::activations!(match_function!($activation, $f => $body))
    }};
}
pub(crate) use with_function;

macro_rules! match_function {
    (
        ($activation:expr, $f:ident => $body:expr)
        $($(#[$doc:meta])* $variant:ident $name:literal $saved:ident,)+
    ) => {
        match $activation {
            $(
                $crate::ops::Activation::$variant => {
                    type $f = $crate::ops::activation::cpu::$variant;
                    $body
                }
            )+
        }
    };
}
pub(crate) use match_function;

pub(super) fn forward<T: Stored>(activation: Activation, x: &[T], y: &mut [T]) {
    with_function!(activation, F => map::<T, F>(x, y));
}

fn map<T: Stored, F: Function>(x: &[T], y: &mut [T]) {
    let out = SharedMut::new(y);
    for_parts(x.len(), MIN_PART, 64, |part| {
        let (mut x_memory, mut y_memory) = (Vec::new(), Vec::new());
        let len = if T::DTYPE == T::Real::DTYPE { part.len() } else { CONVERTED };
        for start in part.clone().step_by(len.max(1)) {
            let range = start..(start + len).min(part.end);
            let x = T::numbers_in(&x[range.clone()], &mut x_memory);
            // SAFETY: the range lies within `y`, as long as `x`, and is this thread's alone.
            let y = unsafe { out.slice(range) };
            T::write_numbers(y, &mut y_memory, |y| values::<T::Real, F>(x, y));
        }
    });
}

/// Compiled for two types of numbers instead of all formats.
#[inline(never)]
fn values<R: Float, F: Function>(x: &[R], y: &mut [R]) {
    vectorize(
        #[inline(always)]
        || {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = F::value(x);
            }
        },
    );
}

pub(super) fn backward<T: Stored>(
    activation: Activation,
    saved: &[T],
    d: &mut [T],
    cols: usize,
    d_bias: Option<&mut [T::Real]>,
    accumulate: bool,
) {
    with_function!(activation, F => backward_as::<T, F>(saved, d, cols, d_bias, accumulate));
}

/// Splits the columns over the threads, so that each column is summed in the order of the rows. Sums the stored (rounded)
/// values.
pub(crate) fn backward_as<T: Stored, F: Function>(
    saved: &[T],
    d: &mut [T],
    cols: usize,
    d_bias: Option<&mut [T::Real]>,
    accumulate: bool,
) {
    if cols == 0 {
        return;
    }
    let rows = d.len() / cols;
    let mut none: [T::Real; 0] = [];
    let has_bias = d_bias.is_some();
    let d_bias = d_bias.unwrap_or(&mut none);
    if has_bias && !accumulate {
        d_bias.fill(T::Real::ZERO);
    }
    let (d, d_bias) = (SharedMut::new(d), SharedMut::new(d_bias));
    for_parts(cols, MIN_PART / rows.max(1), 16, |part| {
        let no_bias = 0..0;
        // SAFETY: the part lies within the columns, which are `d_bias`'s length, and is this thread's alone.
        let sums = unsafe { d_bias.slice(if has_bias { part.clone() } else { no_bias }) };
        vectorize(
            #[inline(always)]
            || {
                for row in 0..rows {
                    let start = row * cols;
                    // SAFETY: within row `row` of `d`, columns of this thread's part alone.
                    let d = unsafe { d.slice(start + part.start..start + part.end) };
                    let saved = &saved[start + part.start..start + part.end];
                    if has_bias {
                        for ((d, &s), sum) in d.iter_mut().zip(saved).zip(sums.iter_mut()) {
                            *d = T::store(d.load() * F::derivative(s.load()));
                            *sum += d.load();
                        }
                    } else {
                        for (d, &s) in d.iter_mut().zip(saved) {
                            *d = T::store(d.load() * F::derivative(s.load()));
                        }
                    }
                }
            },
        );
    });
}
