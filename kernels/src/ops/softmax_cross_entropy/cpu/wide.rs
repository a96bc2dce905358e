//! Many classes: one row at a time, in blocks, of which the last is padded with minus infinity. The gradient's memory holds the exponentials until
//! their sum is known, so each is computed once, except for a gradient in bf16 or f16, which could not hold them.

#![allow(clippy::needless_range_loop)] // Loops over lanes by index are what the compiler vectorises.

use super::{LANES, LossSums, Shared, Target};
use crate::Element;
use crate::cpu::{Float, Stored};

/// Elements of a row as they are computed.
type Lanes<S> = [<S as Stored>::Real; LANES];

/// The gradient, and to `of_rows`, which holds zeros, the loss and weight of each row.
#[inline(always)]
pub(super) fn forward_backward<S: Stored, D: Stored<Real = S::Real>>(
    logits: &[S],
    labels: &[i64],
    shared: Shared<'_, S::Real>,
    d_logits: Option<&mut [D]>,
    of_rows: &mut [LossSums],
) {
    let n = shared.rule.n_classes;
    let mut nothing: [D; 0] = [];
    let wants_gradient = d_logits.is_some();
    let d_logits = d_logits.unwrap_or(&mut nothing);
    let holds_exponentials = D::DTYPE == S::Real::DTYPE;
    for (row, &label) in labels.iter().enumerate() {
        let range = row * n..(row + 1) * n;
        let d_row = if wants_gradient { &mut d_logits[range.clone()] } else { &mut *d_logits };
        let Some(target) = shared.target(row, label) else {
            d_row.fill(D::ZERO);
            continue;
        };
        let x = &logits[range];
        let max = row_max(x);
        let exp_sum = if wants_gradient && holds_exponentials {
            exp_and_sum_into(x, max, bytemuck::cast_slice_mut(d_row))
        } else {
            exp_and_sum(x, max)
        };
        let loss = shared.loss(target, x, max, exp_sum.ln());
        let p = (x[target.label].load() - max).exp() / exp_sum;
        let (target, loss) = target.focused(&shared, loss, p);
        of_rows[row] = LossSums { loss: loss.to_f64(), weight: target.weight.to_f64() };
        if !wants_gradient {
            continue;
        }
        let mass = target.mass(&shared) / exp_sum;
        if holds_exponentials {
            // The exponentials are here, and become mass · softmax.
            let d_row: &mut [S::Real] = bytemuck::cast_slice_mut(d_row);
            for d in &mut *d_row {
                *d *= mass;
            }
            subtract_target(d_row, 0, &shared, target);
        } else {
            gradient(x, max, mass, &shared, target, d_row);
        }
    }
}

/// The row's gradient from recomputed exponentials, rounded once.
#[inline(always)]
fn gradient<S: Stored, D: Stored<Real = S::Real>>(
    x: &[S],
    max: S::Real,
    mass: S::Real,
    shared: &Shared<'_, S::Real>,
    target: Target<S::Real>,
    d: &mut [D],
) {
    let first = (0..x.len()).step_by(LANES);
    for ((x, d), first) in x.chunks(LANES).zip(d.chunks_mut(LANES)).zip(first) {
        let mut block = exponentials(&padded(x), max);
        for lane in 0..LANES {
            block[lane] *= mass;
        }
        subtract_target(&mut block[..x.len()], first, shared, target);
        for (d, &v) in d.iter_mut().zip(&block) {
            *d = D::store(v);
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

/// At most [`LANES`] elements; after them minus infinity.
#[inline(always)]
fn padded<S: Stored>(x: &[S]) -> Lanes<S> {
    let mut block = [S::Real::NEG_INFINITY; LANES];
    for (to, &v) in block.iter_mut().zip(x) {
        *to = v.load();
    }
    block
}

/// The elements of a whole block.
#[inline(always)]
fn loaded<S: Stored>(x: &[S; LANES]) -> Lanes<S> {
    let mut block = [S::Real::ZERO; LANES];
    for lane in 0..LANES {
        block[lane] = x[lane].load();
    }
    block
}

#[inline(always)]
fn exponentials<T: Float>(block: &[T; LANES], max: T) -> [T; LANES] {
    let mut exp = [T::ZERO; LANES];
    for lane in 0..LANES {
        exp[lane] = (block[lane] - max).exp();
    }
    exp
}

/// The largest element. A NaN may be skipped here; it reappears in the sum of exponentials.
#[inline(always)]
fn row_max<S: Stored>(x: &[S]) -> S::Real {
    let larger = |a: S::Real, b: S::Real| if b < a { a } else { b };
    let mut maxima = [S::Real::NEG_INFINITY; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            maxima[lane] = larger(maxima[lane], block[lane].load());
        }
    }
    let rest = padded(rest);
    for lane in 0..LANES {
        maxima[lane] = larger(maxima[lane], rest[lane]);
    }
    fold_lanes(maxima, larger)
}

/// `Σ e^(x[i] - max)`.
#[inline(always)]
fn exp_and_sum<S: Stored>(x: &[S], max: S::Real) -> S::Real {
    let mut sums = [S::Real::ZERO; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        add(&mut sums, &exponentials(&loaded(block), max));
    }
    add(&mut sums, &exponentials(&padded(rest), max));
    fold_lanes(sums, |a, b| a + b)
}

/// The same; also writes the terms to `terms`, which is as long as `x`.
#[inline(always)]
fn exp_and_sum_into<S: Stored>(x: &[S], max: S::Real, terms: &mut [S::Real]) -> S::Real {
    let mut sums = [S::Real::ZERO; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    let (terms, of_rest) = terms.as_chunks_mut::<LANES>();
    for (block, terms) in blocks.iter().zip(terms) {
        *terms = exponentials(&loaded(block), max);
        add(&mut sums, terms);
    }
    let last = exponentials(&padded(rest), max);
    add(&mut sums, &last);
    for (to, &term) in of_rest.iter_mut().zip(&last) {
        *to = term;
    }
    fold_lanes(sums, |a, b| a + b)
}

#[inline(always)]
fn add<T: Float>(sums: &mut [T; LANES], block: &[T; LANES]) {
    for lane in 0..LANES {
        sums[lane] += block[lane];
    }
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
