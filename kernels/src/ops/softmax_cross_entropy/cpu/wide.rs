//! Many classes: a row at a time, in blocks padded with minus infinity. The gradient's place holds the exponentials until
//! their sum is known: each is computed once.

#![allow(clippy::needless_range_loop)] // Loops over lanes by index are what the compiler vectorises.

use std::ops::Range;

use super::{LANES, LossSums, Shared};
use crate::cpu::Float;

#[inline(always)]
pub(super) fn forward_backward<T: Float>(
    logits: &[T],
    labels: &[i64],
    shared: Shared<'_, T>,
    d_logits: Option<&mut [T]>,
) -> LossSums {
    let n = shared.rule.n_classes;
    let mut nothing: [T; 0] = [];
    let wants_gradient = d_logits.is_some();
    let d_logits = d_logits.unwrap_or(&mut nothing);
    let mut sums = LossSums::default();
    for (row, &label) in labels.iter().enumerate() {
        let range = row * n..(row + 1) * n;
        let Some(target) = shared.target(row, label) else {
            if wants_gradient {
                d_logits[range].fill(T::ZERO);
            }
            continue;
        };
        let max = row_max(logits, range.clone());
        let exp_sum = exp_and_sum(logits, range.clone(), max, d_logits);
        let row = &logits[range.clone()];
        sums.loss += shared.loss(target, row, max, exp_sum.ln()).to_f64();
        sums.weight += target.weight.to_f64();
        if wants_gradient {
            // The exponentials stand here; they become mass · softmax.
            let d_row = &mut d_logits[range];
            let mass = target.mass(&shared) / exp_sum;
            d_row.iter_mut().for_each(|d| *d *= mass);
            shared.subtract_target(d_row, target);
        }
    }
    sums
}

/// The block of `x` that begins at `start`; from `end` on, minus infinity.
///
/// A last block is read beyond its row where there is more behind it, and masked: elements that are copied one by one
/// stall the load of the whole.
#[inline(always)]
fn block<T: Float>(x: &[T], start: usize, end: usize) -> [T; LANES] {
    let n = (end - start).min(LANES);
    let mut block = [T::NEG_INFINITY; LANES];
    match x[start..].first_chunk::<LANES>() {
        Some(whole) => {
            for lane in 0..LANES {
                block[lane] = if lane < n { whole[lane] } else { T::NEG_INFINITY };
            }
        }
        None => block[..n].copy_from_slice(&x[start..end]),
    }
    block
}

/// The largest of the elements `range`. A NaN may be passed over here; it returns in the sum of exponentials.
#[inline(always)]
fn row_max<T: Float>(x: &[T], range: Range<usize>) -> T {
    let larger = |a: T, b: T| if b < a { a } else { b };
    let mut maxima = [T::NEG_INFINITY; LANES];
    for start in range.clone().step_by(LANES) {
        let block = block(x, start, range.end);
        for lane in 0..LANES {
            maxima[lane] = larger(maxima[lane], block[lane]);
        }
    }
    fold_lanes(maxima, larger)
}

/// `Σ e^(x[i] - max)` over `range`; the terms into `exponentials` at their places, unless that is empty.
///
/// What lies behind the row may be overwritten: rows are worked on in their order.
#[inline(always)]
fn exp_and_sum<T: Float>(x: &[T], range: Range<usize>, max: T, exponentials: &mut [T]) -> T {
    let mut sums = [T::ZERO; LANES];
    for start in range.clone().step_by(LANES) {
        let mut block = block(x, start, range.end);
        for lane in 0..LANES {
            block[lane] = (block[lane] - max).exp();
            sums[lane] += block[lane];
        }
        if !exponentials.is_empty() {
            match exponentials[start..].first_chunk_mut::<LANES>() {
                Some(place) => *place = block,
                None => exponentials[start..range.end].copy_from_slice(&block[..range.end - start]),
            }
        }
    }
    fold_lanes(sums, |a, b| a + b)
}

/// The lanes folded in halves.
#[inline(always)]
fn fold_lanes<T: Float>(mut lanes: [T; LANES], f: impl Fn(T, T) -> T) -> T {
    let mut n = LANES / 2;
    while n > 0 {
        for lane in 0..n {
            lanes[lane] = f(lanes[lane], lanes[lane + n]);
        }
        n /= 2;
    }
    lanes[0]
}
