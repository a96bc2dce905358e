//! Storage formats and their compute types: bf16 and f16 are widened to f32 when read and rounded to nearest, ties to even,
//! when stored, as on a GPU.

use half::{bf16, f16};

use super::cell::Cell;
use super::float::Float;
use super::simd::vectorize;
use super::threads::{SharedMut, for_parts};
use crate::Element;

/// A float format that operations support on the CPU.
pub(crate) trait Stored: Cell<Number = <Self as Stored>::Real> {
    /// The compute type: the format itself, or f32 for bf16 and f16.
    type Real: Float;
}

impl Stored for f32 {
    type Real = f32;
}
impl Stored for f64 {
    type Real = f64;
}
impl Stored for bf16 {
    type Real = f32;
}
impl Stored for f16 {
    type Real = f32;
}

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// `to = from`, exactly; equal lengths.
pub(crate) fn widen<S: Stored>(from: &[S], to: &mut [S::Real]) {
    convert(from, to, S::load);
}

/// `to = from`, rounded; equal lengths.
pub(crate) fn narrow<S: Stored>(from: &[S::Real], to: &mut [S]) {
    convert(from, to, S::store);
}

#[inline(always)]
fn convert<A: Element, B: Element>(from: &[A], to: &mut [B], f: impl Fn(A) -> B + Sync) {
    assert_eq!(from.len(), to.len());
    let to = SharedMut::new(to);
    for_parts(from.len(), MIN_PART, 64, |part| {
        // SAFETY: the part lies within `to`, as long as `from`, and is this thread's alone.
        let to = unsafe { to.slice(part.clone()) };
        let from = &from[part];
        vectorize(
            #[inline(always)]
            || {
                for (to, &from) in to.iter_mut().zip(from) {
                    *to = f(from);
                }
            },
        );
    });
}
