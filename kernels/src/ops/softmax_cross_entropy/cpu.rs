//! One row at a time, in blocks of sixteen padded with minus infinity, so that ten classes vectorise as well as a
//! thousand do. The gradient's place holds the exponentials until their sum is known: each is computed once.

#![allow(clippy::needless_range_loop)] // Loops over lanes by index are what the compiler vectorises.

use std::ops::Range;

use super::{LossSums, OP};
use crate::cpu::Float;
use crate::cpu::simd::vectorize;
use crate::{KernelError, Result};

/// Elements of a block: one AVX-512 register of f32.
const LANES: usize = 16;

/// What forms a row's loss.
pub(super) struct Rule<'a, T> {
    pub weights: Option<&'a [T]>,
    pub smoothing: T,
    pub ignore_index: i64,
    pub n_classes: usize,
}

pub(super) fn forward_backward<T: Float>(
    logits: &[T],
    labels: &[i64],
    rule: &Rule<'_, T>,
    scale: T,
    d_logits: Option<&mut [T]>,
) -> Result<LossSums> {
    let n = rule.n_classes;
    let is_label = |label: i64| (0..n as i64).contains(&label) || label == rule.ignore_index;
    if let Some(row) = labels.iter().position(|&label| !is_label(label)) {
        return Err(KernelError::Label { op: OP, row, label: labels[row], n_classes: n });
    }
    if n == 0 {
        return Ok(LossSums::default());
    }
    let mut nothing: [T; 0] = [];
    let wants_gradient = d_logits.is_some();
    let d_logits = d_logits.unwrap_or(&mut nothing);
    let weight_sum = match rule.weights {
        Some(weights) => weights.iter().copied().sum(),
        None => T::from_f64(n as f64),
    };
    let spread = rule.smoothing / T::from_f64(n as f64);
    Ok(vectorize(
        #[inline(always)]
        || {
            let mut sums = LossSums::default();
            for (row, &label) in labels.iter().enumerate() {
                let range = row * n..(row + 1) * n;
                if label == rule.ignore_index {
                    if wants_gradient {
                        d_logits[range].fill(T::ZERO);
                    }
                    continue;
                }
                let label = label as usize;
                let max = row_max(logits, range.clone());
                let exp_sum = exp_and_sum(logits, range.clone(), max, d_logits);
                let logits = &logits[range.clone()];
                let log_sum = exp_sum.ln();
                let weight = rule.weights.map_or(T::ONE, |w| w[label]);
                let hit = (T::ONE - rule.smoothing) * weight;
                let mut loss = hit * (log_sum - (logits[label] - max));
                if spread != T::ZERO {
                    loss += spread * smoothing_loss(logits, max, log_sum, rule.weights);
                }
                sums.loss += loss.to_f64();
                sums.weight += weight.to_f64();
                if wants_gradient {
                    // The exponentials stand here; they become mass · softmax.
                    let d_row = &mut d_logits[range];
                    let mass = (hit + spread * weight_sum) * scale / exp_sum;
                    d_row.iter_mut().for_each(|d| *d *= mass);
                    d_row[label] -= hit * scale;
                    if spread != T::ZERO {
                        subtract_spread(d_row, spread * scale, rule.weights);
                    }
                }
            }
            sums
        },
    ))
}

/// `Σ_c w[c]·(-ln p[c])`.
#[inline(always)]
fn smoothing_loss<T: Float>(row: &[T], max: T, log_sum: T, weights: Option<&[T]>) -> T {
    match weights {
        None => row.iter().map(|&v| log_sum - (v - max)).sum(),
        Some(w) => row.iter().zip(w).map(|(&v, &w)| w * (log_sum - (v - max))).sum(),
    }
}

/// The part of the gradient that label smoothing takes off every class.
#[inline(always)]
fn subtract_spread<T: Float>(d_row: &mut [T], spread: T, weights: Option<&[T]>) {
    match weights {
        None => d_row.iter_mut().for_each(|d| *d -= spread),
        Some(w) => d_row.iter_mut().zip(w).for_each(|(d, &w)| *d -= spread * w),
    }
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
