//! Two variants: sixteen rows in parallel for few classes, one row at a time for many. Rows over threads; their losses are added in
//! the order of the rows.

mod narrow;
mod wide;

use super::OP;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::{Float, Stored};
use crate::ops::loss::sums::LossSums;
use crate::{Element, KernelError, Result};

/// Elements processed in parallel: one AVX-512 register of f32.
const LANES: usize = 16;
/// Rows whose losses need no memory of their own: small steps take microseconds.
const FEW_ROWS: usize = 64;
/// Logits that are converted at a time, or one row.
const CONVERTED: usize = 2048;
/// Logits per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 14;

/// Inputs of a row's loss.
#[derive(Clone, Copy)]
pub(super) struct Rule<'a, T> {
    pub weights: Option<&'a [T]>,
    pub row_weights: Option<&'a [f32]>,
    pub smoothing: T,
    pub ignore_index: i64,
    pub n_classes: usize,
    /// Exponent of the focal loss.
    pub focal_gamma: T,
}

/// Numbers shared by all rows.
#[derive(Clone, Copy)]
struct Shared<'a, T> {
    rule: Rule<'a, T>,
    /// Factor of the gradient.
    scale: T,
    /// Share of a smoothed target per class.
    spread: T,
}

/// Target of a row.
#[derive(Clone, Copy)]
struct Target<T> {
    label: usize,
    /// Weight of the label's class times weight of the row.
    weight: T,
    /// The part of the weight at the label: 1 - smoothing.
    hit: T,
    /// The smoothed part of the weight per class.
    spread: T,
}

impl<T: Float> Target<T> {
    /// Factor of the row's softmax in the gradient, after the division by the sum of exponentials.
    #[inline(always)]
    fn mass(&self, shared: &Shared<'_, T>) -> T {
        (self.hit + self.spread * T::from_f64(shared.rule.n_classes as f64)) * shared.scale
    }

    /// The focal loss of a row with loss `loss` and probability `p` of the label, and the target that gives its gradient.
    ///
    /// With `m = 1 - p` the gradient is `m^γ·∂loss + γ·m^(γ-1)·loss·p·(softmax - label)`: the gradient of a target scaled by the first
    /// factor, with the second one added at the label.
    #[inline(always)]
    fn focused(self, shared: &Shared<'_, T>, loss: T, p: T) -> (Self, T) {
        let gamma = shared.rule.focal_gamma;
        if gamma == T::ZERO {
            return (self, loss);
        }
        let missing = T::ONE - p;
        // At 0, and for a NaN, which the loss shows.
        let (factor, growth) = if missing > T::ZERO {
            let factor = (gamma * missing.ln()).exp();
            (factor, gamma * factor / missing * p * loss)
        } else {
            (T::ZERO, T::ZERO)
        };
        (Target { hit: self.hit * factor + growth, spread: self.spread * factor, ..self }, loss * factor)
    }
}

impl<T: Float> Shared<'_, T> {
    /// The target of row `row`; None if the row is ignored.
    #[inline(always)]
    fn target(&self, row: usize, label: i64) -> Option<Target<T>> {
        let row_weight = self.rule.row_weights.map_or(1.0, |w| w[row]);
        if label == self.rule.ignore_index || row_weight == 0.0 {
            return None;
        }
        let label = label as usize;
        let class_weight = self.rule.weights.map_or(T::ONE, |w| w[label]);
        let weight = class_weight * T::from_f64(f64::from(row_weight));
        let (hit, spread) = ((T::ONE - self.rule.smoothing) * weight, self.spread * weight);
        Some(Target { label, weight, hit, spread })
    }

    /// The loss of a row; label smoothing adds `ε/C·Σ_c -ln p[c]`, times the row's weight.
    #[inline(always)]
    fn loss(&self, target: Target<T>, row: &[T], max: T, log_sum: T) -> T {
        let loss = target.hit * (log_sum - (row[target.label] - max));
        if self.spread == T::ZERO {
            return loss;
        }
        let terms: T = row.iter().map(|&v| log_sum - (v - max)).sum();
        loss + target.spread * terms
    }
}

/// The sums over all rows, and the gradient.
pub(super) fn forward_backward<S: Stored, D: Stored<Real = S::Real>>(
    logits: &[S],
    labels: &[i64],
    rule: Rule<'_, S::Real>,
    scale: S::Real,
    d_logits: Option<&mut [D]>,
) -> Result<LossSums> {
    let n = rule.n_classes;
    let counts = |row: usize| rule.row_weights.is_none_or(|weights| weights[row] != 0.0);
    let is_bad = |&(row, label): &(usize, i64)| {
        !(0..n as i64).contains(&label) && label != rule.ignore_index && counts(row)
    };
    if let Some((row, label)) = labels.iter().copied().enumerate().find(is_bad) {
        return Err(KernelError::Label { op: OP, row, label, n_classes: n });
    }
    if n == 0 {
        return Ok(LossSums::default());
    }
    let spread = rule.smoothing / S::Real::from_f64(n as f64);
    let (mut few, mut many) = ([LossSums::default(); FEW_ROWS], Vec::new());
    let of_rows = match few.get_mut(..labels.len()) {
        Some(few) => few,
        None => {
            many.resize(labels.len(), LossSums::default());
            &mut many[..]
        }
    };
    let shared_of_rows = SharedMut::new(of_rows);
    let d_logits = d_logits.map(SharedMut::new);
    for_parts(labels.len(), MIN_PART.div_ceil(n), LANES, |rows| {
        let row_weights = rule.row_weights.map(|weights| &weights[rows.clone()]);
        let shared = Shared { rule: Rule { row_weights, ..rule }, scale, spread };
        let cells = rows.start * n..rows.end * n;
        let (logits, labels) = (&logits[cells.clone()], &labels[rows.clone()]);
        // SAFETY: within `d_logits`, and these rows are this part's alone.
        let d_logits = d_logits.map(|d| unsafe { d.slice(cells) });
        // SAFETY: within `of_rows`, and these rows are this part's alone.
        let of_rows = unsafe { shared_of_rows.slice(rows) };
        loss_of_part(logits, labels, shared, d_logits, of_rows);
    });
    let mut sums = LossSums::default();
    of_rows.iter().for_each(|&of_row| sums += of_row);
    Ok(sums)
}

/// The rows of one thread; a few at a time, so that they stay in the cache, if logits or gradient are not stored as what is computed.
fn loss_of_part<S: Stored, D: Stored<Real = S::Real>>(
    logits: &[S],
    labels: &[i64],
    shared: Shared<'_, S::Real>,
    mut d_logits: Option<&mut [D]>,
    of_rows: &mut [LossSums],
) {
    let n = shared.rule.n_classes;
    let is_stored = |dtype| dtype == S::Real::DTYPE;
    let n_rows = if is_stored(S::DTYPE) && is_stored(D::DTYPE) {
        labels.len()
    } else {
        (CONVERTED / n).next_multiple_of(if n <= narrow::MAX_CLASSES { LANES } else { 1 })
    };
    let n_rows = n_rows.max(1);
    let (mut x_memory, mut d_memory) = (Vec::new(), Vec::new());
    for start in (0..labels.len()).step_by(n_rows) {
        let rows = start..(start + n_rows).min(labels.len());
        let cells = rows.start * n..rows.end * n;
        let x = S::numbers_in(&logits[cells.clone()], &mut x_memory);
        let row_weights = shared.rule.row_weights.map(|weights| &weights[rows.clone()]);
        let shared = Shared { rule: Rule { row_weights, ..shared.rule }, ..shared };
        let (labels, of_rows) = (&labels[rows.clone()], &mut of_rows[rows]);
        match &mut d_logits {
            None => compute(x, labels, shared, None, of_rows),
            Some(d) => D::write_numbers(&mut d[cells], &mut d_memory, |d| {
                compute(x, labels, shared, Some(d), of_rows);
            }),
        }
    }
}

/// Compiled for two types of numbers instead of all pairs of formats.
#[inline(never)]
fn compute<T: Float>(
    logits: &[T],
    labels: &[i64],
    shared: Shared<'_, T>,
    d_logits: Option<&mut [T]>,
    of_rows: &mut [LossSums],
) {
    vectorize(
        #[inline(always)]
        || {
            if shared.rule.n_classes <= narrow::MAX_CLASSES {
                narrow::forward_backward(logits, labels, shared, d_logits, of_rows);
            } else {
                wide::forward_backward(logits, labels, shared, d_logits, of_rows);
            }
        },
    );
}
