//! Many classes: one row at a time, in blocks padded with minus infinity. The gradient's memory holds the exponentials until
//! their sum is known, so each is computed once, except for a gradient in bf16 or f16, which could not hold them.

#![allow(clippy::needless_range_loop)] // Loops over lanes by index are what the compiler vectorises.

use std::ops::Range;

use super::{LANES, LossSums, Shared, Target};
use crate::Element;
use crate::cpu::{Float, Stored};

#[inline(always)]
pub(super) fn forward_backward<S: Stored, D: Stored<Real = S::Real>>(
    logits: &[S],
    labels: &[i64],
    shared: Shared<'_, S::Real>,
    d_logits: Option<&mut [D]>,
) -> LossSums {
    let n = shared.rule.n_classes;
    let mut nothing: [D; 0] = [];
    let wants_gradient = d_logits.is_some();
    let d_logits = d_logits.unwrap_or(&mut nothing);
    let holds_exponentials = D::DTYPE == S::Real::DTYPE;
    let mut sums = LossSums::default();
    for (row, &label) in labels.iter().enumerate() {
        let range = row * n..(row + 1) * n;
        let Some(target) = shared.target(row, label) else {
            if wants_gradient {
                d_logits[range].fill(D::ZERO);
            }
            continue;
        };
        let max = row_max(logits, range.clone());
        let exponentials: &mut [S::Real] =
            if holds_exponentials { bytemuck::cast_slice_mut(d_logits) } else { &mut [] };
        let exp_sum = exp_and_sum(logits, range.clone(), max, exponentials);
        let row = &logits[range.clone()];
        let loss = shared.loss(target, row, max, exp_sum.ln());
        let p = (row[target.label].load() - max).exp() / exp_sum;
        let (target, loss) = target.focused(&shared, loss, p);
        sums.loss += loss.to_f64();
        sums.weight += target.weight.to_f64();
        if !wants_gradient {
            continue;
        }
        let mass = target.mass(&shared) / exp_sum;
        if holds_exponentials {
            // The exponentials are here, and become mass · softmax.
            let d_row: &mut [S::Real] = bytemuck::cast_slice_mut(&mut d_logits[range]);
            d_row.iter_mut().for_each(|d| *d *= mass);
            subtract_target(d_row, 0, &shared, target);
        } else {
            gradient(logits, range, max, mass, &shared, target, d_logits);
        }
    }
    sums
}

/// The row's gradient from recomputed exponentials, rounded once.
#[inline(always)]
fn gradient<S: Stored, D: Stored<Real = S::Real>>(
    x: &[S],
    range: Range<usize>,
    max: S::Real,
    mass: S::Real,
    shared: &Shared<'_, S::Real>,
    target: Target<S::Real>,
    d: &mut [D],
) {
    for start in range.clone().step_by(LANES) {
        let mut block = block(x, start, range.end);
        for lane in 0..LANES {
            block[lane] = (block[lane] - max).exp() * mass;
        }
        let n = (range.end - start).min(LANES);
        subtract_target(&mut block[..n], start - range.start, shared, target);
        for lane in 0..n {
            d[start + lane] = D::store(block[lane]);
        }
    }
}

/// Subtracts the target from the classes from `first` on, which hold the softmax times its mass.
#[inline(always)]
fn subtract_target<T: Float>(d: &mut [T], first: usize, shared: &Shared<'_, T>, target: Target<T>) {
    if let Some(d) = target.label.checked_sub(first).and_then(|place| d.get_mut(place)) {
        *d -= target.hit * shared.scale;
    }
    if shared.spread != T::ZERO {
        let spread = target.spread * shared.scale;
        match shared.rule.weights {
            None => d.iter_mut().for_each(|d| *d -= spread),
            Some(w) => d.iter_mut().zip(&w[first..]).for_each(|(d, &w)| *d -= spread * w),
        }
    }
}

/// The block of `x` that begins at `start`; from `end` on, minus infinity.
///
/// The last block is read past the end of its row if more memory follows, and masked: copying element by element would stall
/// the load of the whole block.
#[inline(always)]
fn block<S: Stored>(x: &[S], start: usize, end: usize) -> [S::Real; LANES] {
    let n = (end - start).min(LANES);
    let mut block = [S::Real::NEG_INFINITY; LANES];
    match x[start..].first_chunk::<LANES>() {
        Some(whole) => {
            for lane in 0..LANES {
                block[lane] = if lane < n { whole[lane].load() } else { S::Real::NEG_INFINITY };
            }
        }
        None => block[..n].iter_mut().zip(&x[start..]).for_each(|(to, &v)| *to = v.load()),
    }
    block
}

/// The maximum of the elements `range`. A NaN may be skipped here; it reappears in the sum of exponentials.
#[inline(always)]
fn row_max<S: Stored>(x: &[S], range: Range<usize>) -> S::Real {
    let larger = |a: S::Real, b: S::Real| if b < a { a } else { b };
    let mut maxima = [S::Real::NEG_INFINITY; LANES];
    for start in range.clone().step_by(LANES) {
        let block = block(x, start, range.end);
        for lane in 0..LANES {
            maxima[lane] = larger(maxima[lane], block[lane]);
        }
    }
    fold_lanes(maxima, larger)
}

/// `Σ e^(x[i] - max)` over `range`; also writes the terms to `exponentials`, unless that is empty.
///
/// May overwrite memory after the row: rows are processed in order.
#[inline(always)]
fn exp_and_sum<S: Stored>(
    x: &[S],
    range: Range<usize>,
    max: S::Real,
    exponentials: &mut [S::Real],
) -> S::Real {
    let mut sums = [S::Real::ZERO; LANES];
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
