//! One pass over the flat buffers, divided over the threads.

use half::bf16;

use super::average::{CpuAverage, Rule};
use super::{Update, UpdateSegment};
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::{Float, Stored};

/// Elements whose new weights are still in the first-level cache when average and compute weights read them.
const CHUNK: usize = 2048;

/// The gradients.
#[derive(Clone, Copy)]
pub(super) enum Grads<'a, T> {
    /// In the format of the weights.
    Same(&'a [T]),
    Rounded(&'a [bf16]),
}

const fn no_state<'a, T>() -> &'a mut [T] {
    &mut []
}

/// Applies `update`, with the settings of `segments`, to buffers of one length, then moves the average toward the new `w` and rounds it into `compute_weights`.
pub(super) fn walk<U: Update<N>, T: Float, S: Stored<Real = f32>, const N: usize>(
    update: &U,
    segments: &[UpdateSegment],
    w: &mut [T],
    g: Grads<'_, T>,
    mut state: [Option<&mut [T]>; N],
    average: Option<CpuAverage<'_, T>>,
    compute_weights: Option<&mut [S]>,
) {
    let n = w.len();
    let w = SharedMut::new(w);
    let mut shared_state = [None; N];
    for (shared, s) in shared_state.iter_mut().zip(&mut state) {
        *shared = s.as_deref_mut().map(SharedMut::new);
    }
    let average = average.map(|average| (average.rule, SharedMut::new(average.ema)));
    let compute_weights = compute_weights.map(SharedMut::new);
    let is_rounded = matches!(g, Grads::Rounded(_));
    let chunk = if is_rounded || average.is_some() || compute_weights.is_some() { CHUNK } else { usize::MAX };
    for_parts(n, U::MIN_PART, 64, |part| {
        let mut start = part.start;
        let mut unrounded = Vec::new();
        while start < part.end {
            let segment = segments.iter().find(|segment| start < segment.end);
            let update = segment.map_or(*update, |segment| update.in_segment(segment));
            let end = part.end.min(segment.map_or(usize::MAX, |segment| segment.end));
            let range = start..end.min(start.saturating_add(chunk));
            start = range.end;
            // SAFETY: the range lies within `w` and is this thread's alone.
            let w = unsafe { w.slice(range.clone()) };
            let mut state = [const { no_state() }; N];
            for (s, shared) in state.iter_mut().zip(&shared_state) {
                if let Some(shared) = shared {
                    // SAFETY: likewise: `run` checked that all buffers are of one length.
                    *s = unsafe { shared.slice(range.clone()) };
                }
            }
            let g = match g {
                Grads::Same(g) => &g[range.clone()],
                Grads::Rounded(g) => {
                    unrounded.clear();
                    unrounded.extend(g[range.clone()].iter().map(|g| T::from_f64(g.to_f64())));
                    &unrounded
                }
            };
            // SAFETY: likewise.
            let average = average.map(|(rule, ema)| (rule, unsafe { ema.slice(range.clone()) }));
            apply(&update, w, g, state, average);
            if let Some(copy) = compute_weights {
                // SAFETY: likewise.
                let copy = unsafe { copy.slice(range) };
                for (c, w) in copy.iter_mut().zip(w) {
                    *c = S::store(w.to_f64() as f32);
                }
            }
        }
    });
}

/// Apart from [`walk`], so that it is compiled once for all formats of the compute weights.
#[inline(never)]
fn apply<U: Update<N>, T: Float, const N: usize>(
    update: &U,
    w: &mut [T],
    g: &[T],
    state: [&mut [T]; N],
    average: Option<(Rule, &mut [T])>,
) {
    vectorize(
        #[inline(always)]
        || {
            update.apply(w, g, state);
            if let Some((rule, ema)) = average {
                rule.apply(ema, w);
            }
        },
    );
}
