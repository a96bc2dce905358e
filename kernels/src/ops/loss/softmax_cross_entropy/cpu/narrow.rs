//! Few classes: sixteen rows in parallel, one per lane, so that the number of classes need not be a multiple of the lanes.

#![allow(clippy::needless_range_loop)] // Loops over lanes by index are what the compiler vectorizes.

use super::{LANES, LossSums, Shared, Target};
use crate::cpu::Float;

/// With more classes, rows are long enough to vectorize along the row.
pub(super) const MAX_CLASSES: usize = 64;

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
    // Logits, then exponentials, of sixteen rows: `columns[c][lane]`.
    let mut columns = [[T::ZERO; LANES]; MAX_CLASSES];
    let columns = &mut columns[..n];
    for (block, labels) in labels.chunks(LANES).enumerate() {
        let rows = block * LANES * n..block * LANES * n + labels.len() * n;
        let x = &logits[rows.clone()];
        load(x, columns);
        let (max, exp_sum, log_sum) = normalize(columns);

        let mut mass = [T::ZERO; LANES];
        let mut targets = [None; LANES];
        for (lane, &label) in labels.iter().enumerate() {
            let Some(target) = shared.target(block * LANES + lane, label) else { continue };
            let row = &x[lane * n..][..n];
            let loss = shared.loss(target, row, max[lane], log_sum[lane]);
            let p = columns[target.label][lane] / exp_sum[lane];
            let (target, loss) = target.focused(&shared, loss, p);
            of_rows[block * LANES + lane] = LossSums { loss: loss.to_f64(), weight: target.weight.to_f64() };
            mass[lane] = target.mass(&shared) / exp_sum[lane];
            targets[lane] = Some(target);
        }
        if let Some(d_logits) = &mut d_logits {
            for column in columns.iter_mut() {
                for lane in 0..LANES {
                    column[lane] *= mass[lane];
                }
            }
            for (lane, d_row) in d_logits[rows].chunks_exact_mut(n).enumerate() {
                let Some(target) = targets[lane] else {
                    d_row.fill(T::ZERO);
                    continue;
                };
                subtract_target(columns, lane, &shared, target);
                for (d, column) in d_row.iter_mut().zip(columns.iter()) {
                    *d = column[lane];
                }
            }
        }
    }
}

/// Subtracts the target from the lane, which holds the softmax times its mass.
#[inline(always)]
fn subtract_target<T: Float>(
    columns: &mut [[T; LANES]],
    lane: usize,
    shared: &Shared<'_, T>,
    target: Target<T>,
) {
    columns[target.label][lane] -= target.hit * shared.scale;
    if shared.spread != T::ZERO {
        let spread = target.spread * shared.scale;
        columns.iter_mut().for_each(|column| column[lane] -= spread);
    }
}

/// Loads rows of `x` into the lanes; lanes without a row hold zeros.
#[inline(always)]
fn load<T: Float>(x: &[T], columns: &mut [[T; LANES]]) {
    let n = columns.len();
    if x.len() < LANES * n {
        columns.fill([T::ZERO; LANES]);
    }
    for (lane, row) in x.chunks_exact(n).enumerate() {
        for (column, &v) in columns.iter_mut().zip(row) {
            column[lane] = v;
        }
    }
}

/// Replaces each element by `e^(v - max)`; returns per lane the maximum, the sum of exponentials, and its logarithm.
#[inline(always)]
fn normalize<T: Float>(columns: &mut [[T; LANES]]) -> ([T; LANES], [T; LANES], [T; LANES]) {
    let mut max = columns[0];
    for column in &columns[1..] {
        for lane in 0..LANES {
            // A NaN may be skipped here; it reappears in the sum of exponentials.
            max[lane] = if column[lane] < max[lane] { max[lane] } else { column[lane] };
        }
    }
    let mut exp_sum = [T::ZERO; LANES];
    for column in columns.iter_mut() {
        for lane in 0..LANES {
            column[lane] = (column[lane] - max[lane]).exp();
            exp_sum[lane] += column[lane];
        }
    }
    let mut log_sum = [T::ZERO; LANES];
    for lane in 0..LANES {
        log_sum[lane] = exp_sum[lane].ln();
    }
    (max, exp_sum, log_sum)
}
