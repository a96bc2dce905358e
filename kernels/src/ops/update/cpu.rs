//! One pass over the flat buffers, divided over the rank's threads.

use super::Update;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::{Float, Stored};

/// Applies `update` to buffers of one length, then rounds the new `w` into `compute_weights`.
pub(super) fn walk<U: Update<N>, T: Float, S: Stored<Real = f32>, const N: usize>(
    update: &U,
    w: &mut [T],
    g: &[T],
    state: [Option<&mut [T]>; N],
    compute_weights: Option<&mut [S]>,
) {
    let n = w.len();
    let w = SharedMut::new(w);
    let state = state.map(|s| s.map(SharedMut::new));
    let compute_weights = compute_weights.map(SharedMut::new);
    for_parts(n, U::MIN_PART, 64, |part| {
        // SAFETY: the part lies within `w` and is this thread's alone.
        let w = unsafe { w.slice(part.clone()) };
        let state = state.map(|s| match s {
            // SAFETY: likewise: `run` checked that all buffers are of one length.
            Some(s) => unsafe { s.slice(part.clone()) },
            None => &mut [],
        });
        let g = &g[part.clone()];
        vectorize(
            #[inline(always)]
            || update.apply(w, g, state),
        );
        if let Some(copy) = compute_weights {
            // SAFETY: likewise.
            let copy = unsafe { copy.slice(part) };
            for (c, w) in copy.iter_mut().zip(w) {
                *c = S::store(w.to_f64() as f32);
            }
        }
    });
}
