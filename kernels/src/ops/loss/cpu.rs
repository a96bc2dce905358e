//! Blocks of elements over threads, gradient and sum in one pass. Blocks and lanes depend on the shape only, and the sums of blocks are
//! added in their order: so any number of threads gives the same bits.

#![allow(clippy::needless_range_loop)] // Loops over lanes by index are what the compiler vectorizes.

use std::ops::Range;

use super::formulas::Formula;
use super::sums::LossSums;
use crate::Element;
use crate::cpu::cell;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::{Float, Stored};

/// Elements of a block: they stay in the L1 cache.
const BLOCK: usize = 1024;
/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 14;
/// Partial sums: one AVX-512 register of f64.
const LANES: usize = 8;

/// The sums of `loss` over all elements, and its derivatives times `scale`; both times the weight of the row, by which a row of weight 0
/// is ignored.
pub(super) fn sum_and_gradient<T: Stored, D: Stored<Real = T::Real>>(
    loss: &impl Formula,
    x: &[T],
    target: &[T],
    row_weights: Option<&[f32]>,
    scale: T::Real,
    d_x: Option<&mut [D]>,
) -> LossSums {
    let n_cols = x.len() / row_weights.map_or(1, <[f32]>::len).max(1);
    let blocks = Blocks { x, n_cols, row_weights, scale };
    blocks.sum_and_gradient(loss, d_x, |range, memory| {
        let numbers = T::as_numbers(&target[range.clone()]);
        if numbers.is_none() {
            memory.load(&target[range]);
        }
        numbers
    })
}

/// Predictions, cut into blocks.
pub(super) struct Blocks<'a, T: Stored> {
    /// Rows of `n_cols` predictions.
    pub(super) x: &'a [T],
    pub(super) n_cols: usize,
    pub(super) row_weights: Option<&'a [f32]>,
    /// Factor of the gradient.
    pub(super) scale: T::Real,
}

impl<T: Stored> Blocks<'_, T> {
    /// See [`sum_and_gradient`]; `targets` returns the targets of a range of elements, or writes them to the block and returns None.
    pub(super) fn sum_and_gradient<'t, D: Stored<Real = T::Real>>(
        &self,
        loss: &impl Formula,
        d_x: Option<&mut [D]>,
        targets: impl Fn(Range<usize>, &mut cell::Block<T::Real>) -> Option<&'t [T::Real]> + Sync,
    ) -> LossSums {
        let n = self.x.len();
        let mut sums = vec![0.0; n.div_ceil(BLOCK)];
        let shared_sums = SharedMut::new(&mut sums);
        let d_x = d_x.map(SharedMut::new);
        for_parts(n.div_ceil(BLOCK), MIN_PART / BLOCK, 1, |blocks| {
            // SAFETY: within `sums`, and these blocks are this part's alone.
            let sums = unsafe { shared_sums.slice(blocks.clone()) };
            let (mut x, mut memory, mut weights) =
                (cell::Block::new(), cell::Block::new(), [T::Real::ZERO; BLOCK]);
            let (mut values, mut derivatives) = ([T::Real::ZERO; BLOCK], [T::Real::ZERO; BLOCK]);
            let mut nothing: [D; 0] = [];
            for (block, sum) in blocks.zip(sums) {
                let range = block * BLOCK..((block + 1) * BLOCK).min(n);
                let d_x: &mut [D] = match d_x {
                    // SAFETY: within `d_x`, and this block is this part's alone.
                    Some(d_x) => unsafe { d_x.slice(range.clone()) },
                    None => &mut nothing,
                };
                let x = x.load(&self.x[range.clone()]);
                let (values, derivatives) = (&mut values[..x.len()], &mut derivatives[..d_x.len()]);
                let targets = match targets(range.clone(), &mut memory) {
                    Some(targets) => targets,
                    None => memory.first(x.len()),
                };
                evaluate(loss, x, targets, values, derivatives);
                let weights = self.weights(range, &mut weights);
                *sum = weigh(values, weights, derivatives, self.scale, d_x);
            }
        });
        LossSums { loss: sums.iter().sum(), weight: self.weight() }
    }

    /// The sum of the weights of all elements.
    fn weight(&self) -> f64 {
        match self.row_weights {
            None => self.x.len() as f64,
            Some(weights) => weights.iter().map(|&weight| f64::from(weight) * self.n_cols as f64).sum(),
        }
    }

    /// The weights of a range of elements, in `memory`.
    fn weights<'b>(&self, range: Range<usize>, memory: &'b mut [T::Real; BLOCK]) -> Option<&'b [T::Real]> {
        let row_weights = self.row_weights?;
        let weights = &mut memory[..range.len()];
        let (mut row, mut column) = (range.start / self.n_cols, range.start % self.n_cols);
        for weight in &mut *weights {
            *weight = T::Real::from_f64(f64::from(row_weights[row]));
            column += 1;
            if column == self.n_cols {
                (row, column) = (row + 1, 0);
            }
        }
        Some(weights)
    }
}

/// Computes the losses and the requested derivatives.
///
/// Separate from [`weigh`], which so is compiled once for all losses, while this is compiled for two types instead of all formats.
#[inline(never)]
fn evaluate<R: Float>(loss: &impl Formula, x: &[R], targets: &[R], values: &mut [R], derivatives: &mut [R]) {
    vectorize(
        #[inline(always)]
        || {
            // Each in a loop of its own, without lanes: so the compiler vectorizes them, however long the formula is.
            for ((value, &x), &t) in values.iter_mut().zip(x).zip(targets) {
                *value = loss.value(x, t);
            }
            for ((derivative, &x), &t) in derivatives.iter_mut().zip(x).zip(targets) {
                *derivative = loss.derivative(x, t);
            }
        },
    );
}

/// The sum of the values times their weights; `d_x` receives the derivatives times weight and `scale`, if it has elements.
fn weigh<D: Stored>(
    values: &mut [D::Real],
    weights: Option<&[D::Real]>,
    derivatives: &[D::Real],
    scale: D::Real,
    d_x: &mut [D],
) -> f64 {
    vectorize(
        #[inline(always)]
        || {
            let zero = D::Real::ZERO;
            let Some(weights) = weights else {
                for (d, &derivative) in d_x.iter_mut().zip(derivatives) {
                    *d = D::store(scale * derivative);
                }
                return sum(values);
            };
            for (value, &w) in values.iter_mut().zip(weights) {
                // A row without weight may hold anything.
                *value = if w == zero { zero } else { *value * w };
            }
            for ((d, &derivative), &w) in d_x.iter_mut().zip(derivatives).zip(weights) {
                *d = D::store(if w == zero { zero } else { scale * w * derivative });
            }
            sum(values)
        },
    )
}

/// The sum in f64.
#[inline(always)]
fn sum<R: Float>(values: &[R]) -> f64 {
    let mut sums = [0.0; LANES];
    let (groups, rest) = values.as_chunks::<LANES>();
    for values in groups {
        for lane in 0..LANES {
            sums[lane] += values[lane].to_f64();
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum += value.to_f64();
    }
    let mut n = LANES / 2;
    while n > 0 {
        for lane in 0..n {
            sums[lane] += sums[lane + n];
        }
        n /= 2;
    }
    sums[0]
}
