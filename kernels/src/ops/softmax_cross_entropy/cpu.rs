//! Two forms: sixteen rows side by side where classes are few, one row after another where they are many.

mod narrow;
mod wide;

use super::{LossSums, OP};
use crate::cpu::Float;
use crate::cpu::simd::vectorize;
use crate::{KernelError, Result};

/// Elements that are worked on side by side: one AVX-512 register of f32.
const LANES: usize = 16;

/// What forms a row's loss.
#[derive(Clone, Copy)]
pub(super) struct Rule<'a, T> {
    pub weights: Option<&'a [T]>,
    pub smoothing: T,
    pub ignore_index: i64,
    pub n_classes: usize,
}

/// What all rows share.
#[derive(Clone, Copy)]
struct Shared<'a, T> {
    rule: Rule<'a, T>,
    /// The gradient is multiplied by this.
    scale: T,
    /// What each class gets of a smoothed target.
    spread: T,
    /// Sum of the class weights.
    weight_sum: T,
}

impl<T: Float> Shared<'_, T> {
    /// Weight of the row's label, and the share of it that is not smoothed away.
    #[inline(always)]
    fn weight_and_hit(&self, label: usize) -> (T, T) {
        let weight = self.rule.weights.map_or(T::ONE, |w| w[label]);
        (weight, (T::ONE - self.rule.smoothing) * weight)
    }

    /// What label smoothing adds to the loss of a row: `ε/C·Σ_c w[c]·(-ln p[c])`.
    #[inline(always)]
    fn smoothing_loss(&self, row: &[T], max: T, log_sum: T) -> T {
        let terms = row.iter().map(|&v| log_sum - (v - max));
        self.spread
            * match self.rule.weights {
                None => terms.sum(),
                Some(w) => terms.zip(w).map(|(term, &w)| w * term).sum(),
            }
    }

    /// Takes the target off a row of the gradient that holds the softmax times its mass.
    #[inline(always)]
    fn subtract_target(&self, d_row: &mut [T], label: usize, hit: T) {
        d_row[label] -= hit * self.scale;
        if self.spread != T::ZERO {
            let spread = self.spread * self.scale;
            match self.rule.weights {
                None => d_row.iter_mut().for_each(|d| *d -= spread),
                Some(w) => d_row.iter_mut().zip(w).for_each(|(d, &w)| *d -= spread * w),
            }
        }
    }
}

pub(super) fn forward_backward<T: Float>(
    logits: &[T],
    labels: &[i64],
    rule: Rule<'_, T>,
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
    let shared = Shared {
        rule,
        scale,
        spread: rule.smoothing / T::from_f64(n as f64),
        weight_sum: match rule.weights {
            Some(weights) => weights.iter().copied().sum(),
            None => T::from_f64(n as f64),
        },
    };
    Ok(vectorize(
        #[inline(always)]
        || match n <= narrow::MAX_CLASSES {
            true => narrow::forward_backward(logits, labels, shared, d_logits),
            false => wide::forward_backward(logits, labels, shared, d_logits),
        },
    ))
}
