//! One row at a time, in blocks of sixteen padded with minus infinity, so that ten classes vectorise as well as a
//! thousand do.

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
        return Err(KernelError::Label {
            op: OP,
            row,
            label: labels[row],
            n_classes: n,
        });
    }
    if n == 0 {
        return Ok(LossSums::default());
    }
    let weight_sum = rule
        .weights
        .map_or(T::from_f64(n as f64), |w| w.iter().copied().sum());
    Ok(vectorize(
        #[inline(always)]
        || {
            let mut sums = LossSums::default();
            let mut d_rows = d_logits.map(|d| d.chunks_exact_mut(n));
            for (row, &label) in logits.chunks_exact(n).zip(labels) {
                let d_row = d_rows.as_mut().and_then(Iterator::next);
                if label == rule.ignore_index {
                    if let Some(d_row) = d_row {
                        d_row.fill(T::ZERO);
                    }
                    continue;
                }
                let label = label as usize;
                let weight = rule.weights.map_or(T::ONE, |w| w[label]);
                let (max, exp_sum) = max_and_exp_sum(row);
                let log_sum = exp_sum.ln();
                let nll = log_sum - (row[label] - max);
                let hit = (T::ONE - rule.smoothing) * weight;
                let spread = rule.smoothing / T::from_f64(n as f64);
                let mut loss = hit * nll;
                if spread != T::ZERO {
                    loss += spread * smoothing_loss(row, max, log_sum, rule.weights);
                }
                sums.loss += loss.to_f64();
                sums.weight += weight.to_f64();
                if let Some(d_row) = d_row {
                    let mass = (hit + spread * weight_sum) * scale / exp_sum;
                    write_blocks(
                        row,
                        d_row,
                        #[inline(always)]
                        |v| (v - max).exp() * mass,
                    );
                    d_row[label] -= hit * scale;
                    if spread != T::ZERO {
                        match rule.weights {
                            None => d_row.iter_mut().for_each(|d| *d -= spread * scale),
                            Some(w) => d_row
                                .iter_mut()
                                .zip(w)
                                .for_each(|(d, &w)| *d -= spread * scale * w),
                        }
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
        Some(w) => row
            .iter()
            .zip(w)
            .map(|(&v, &w)| w * (log_sum - (v - max)))
            .sum(),
    }
}

/// `row` in blocks, the last filled up with minus infinity.
#[inline(always)]
fn blocks<T: Float>(row: &[T]) -> impl Iterator<Item = [T; LANES]> {
    let (whole, rest) = row.as_chunks::<LANES>();
    let last = (!rest.is_empty()).then(|| {
        let mut block = [T::NEG_INFINITY; LANES];
        block[..rest.len()].copy_from_slice(rest);
        block
    });
    whole.iter().copied().chain(last)
}

/// The largest element, and `Σ e^(v - max)`.
#[inline(always)]
fn max_and_exp_sum<T: Float>(row: &[T]) -> (T, T) {
    let mut maxima = [T::NEG_INFINITY; LANES];
    for block in blocks(row) {
        for (m, v) in maxima.iter_mut().zip(block) {
            // This way round, so that NaN is kept.
            *m = if v < *m { *m } else { v };
        }
    }
    let max = maxima
        .into_iter()
        .fold(T::NEG_INFINITY, |m, v| if v < m { m } else { v });
    let mut sums = [T::ZERO; LANES];
    for block in blocks(row) {
        for (sum, v) in sums.iter_mut().zip(block) {
            *sum += (v - max).exp();
        }
    }
    (max, sums.into_iter().sum())
}

/// `out = f(row)` elementwise, in blocks.
#[inline(always)]
fn write_blocks<T: Float>(row: &[T], out: &mut [T], f: impl Fn(T) -> T) {
    for (block, out) in blocks(row).zip(out.chunks_mut(LANES)) {
        let values = block.map(&f);
        out.copy_from_slice(&values[..out.len()]);
    }
}
