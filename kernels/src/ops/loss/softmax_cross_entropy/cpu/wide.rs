//! Many classes: one row at a time, in blocks, of which the last is padded with minus infinity. The gradient's memory holds the
//! exponentials until their sum is known, so each is computed once.

#![allow(clippy::needless_range_loop)] // Loops over lanes by index are what the compiler vectorizes.

use super::{LANES, LossSums, Shared, Target};
use crate::cpu::Float;

/// The gradient, and to `of_rows`, which holds zeros, the loss and weight of each row.
#[inline(always)]
pub(super) fn forward_backward<T: Float>(
    logits: &[T],
    labels: &[i64],
    shared: Shared<'_, T>,
    mut d_logits: Option<&mut [T]>,
    of_rows: &mut [LossSums],
) {
    let n = shared.rule.n_classes;
    for (row, &label) in labels.iter().enumerate() {
        let range = row * n..(row + 1) * n;
        let mut d_row = d_logits.as_deref_mut().map(|d| &mut d[range.clone()]);
        let Some(target) = shared.target(row, label) else {
            if let Some(d_row) = d_row {
                d_row.fill(T::ZERO);
            }
            continue;
        };
        let x = &logits[range];
        let max = row_max(x);
        let exp_sum = match &mut d_row {
            Some(d_row) => exp_and_sum_into(x, max, d_row),
            None => exp_and_sum(x, max),
        };
        let loss = shared.loss(target, x, max, exp_sum.ln());
        let p = (x[target.label] - max).exp() / exp_sum;
        let (target, loss) = target.focused(&shared, loss, p);
        of_rows[row] = LossSums { loss: loss.to_f64(), weight: target.weight.to_f64() };
        if let Some(d_row) = d_row {
            // The exponentials are here, and become mass · softmax.
            let mass = target.mass(&shared) / exp_sum;
            for d in &mut *d_row {
                *d *= mass;
            }
            subtract_target(d_row, &shared, target);
        }
    }
}

/// Subtracts the target from the row, which holds the softmax times its mass.
#[inline(always)]
fn subtract_target<T: Float>(d: &mut [T], shared: &Shared<'_, T>, target: Target<T>) {
    d[target.label] -= target.hit * shared.scale;
    if shared.spread != T::ZERO {
        let spread = target.spread * shared.scale;
        d.iter_mut().for_each(|d| *d -= spread);
    }
}

/// At most [`LANES`] elements; after them minus infinity.
#[inline(always)]
fn padded<T: Float>(x: &[T]) -> [T; LANES] {
    let mut block = [T::NEG_INFINITY; LANES];
    for (to, &v) in block.iter_mut().zip(x) {
        *to = v;
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
fn row_max<T: Float>(x: &[T]) -> T {
    let larger = |a: T, b: T| if b < a { a } else { b };
    let mut maxima = [T::NEG_INFINITY; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        for lane in 0..LANES {
            maxima[lane] = larger(maxima[lane], block[lane]);
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
fn exp_and_sum<T: Float>(x: &[T], max: T) -> T {
    let mut sums = [T::ZERO; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    for block in blocks {
        add(&mut sums, &exponentials(block, max));
    }
    add(&mut sums, &exponentials(&padded(rest), max));
    fold_lanes(sums, |a, b| a + b)
}

/// The same; also writes the terms to `terms`, which is as long as `x`.
#[inline(always)]
fn exp_and_sum_into<T: Float>(x: &[T], max: T, terms: &mut [T]) -> T {
    let mut sums = [T::ZERO; LANES];
    let (blocks, rest) = x.as_chunks::<LANES>();
    let (terms, of_rest) = terms.as_chunks_mut::<LANES>();
    for (block, terms) in blocks.iter().zip(terms) {
        *terms = exponentials(block, max);
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
