//! `y = x·Wᵀ`, then bias and activation on each part of `y` while it is in cache.

use crate::cpu::gemm::{Mat, gemm_then};
use crate::cpu::simd::vectorize;
use crate::cpu::threads::SharedMut;
use crate::cpu::{Float, Stored};
use crate::ops::Activation;
use crate::ops::activation::cpu::{Function, Identity, with_function};

/// The operands and sizes of one forward pass.
#[derive(Clone, Copy)]
pub(super) struct Problem<'a, T> {
    pub x: &'a [T],
    pub weight: &'a [T],
    pub bias: Option<&'a [T]>,
    pub n_rows: usize,
    pub in_features: usize,
    pub out_features: usize,
}

pub(super) fn forward<T: Float>(
    problem: Problem<'_, T>,
    activation: Option<Activation>,
    y: &mut [T],
    pre: Option<&mut [T]>,
) {
    match activation {
        None => forward_as::<T, Identity>(problem, y, pre),
        Some(activation) => with_function!(activation, F => forward_as::<T, F>(problem, y, pre)),
    }
}

fn forward_as<T: Float, F: Function>(p: Problem<'_, T>, y: &mut [T], pre: Option<&mut [T]>) {
    let x = Mat::new(p.x, p.n_rows, p.in_features);
    let weight = Mat::new(p.weight, p.out_features, p.in_features);
    let pre = pre.map(SharedMut::new);
    gemm_then(x, weight.t(), y, |mut y| {
        vectorize(
            #[inline(always)]
            || {
                let (rows, cols) = y.rows_and_cols();
                let bias = p.bias.map(|bias| &bias[cols.clone()]);
                for row in rows {
                    let pre = pre.map(|pre| {
                        let start = row * p.out_features;
                        // SAFETY: `pre` is as long as `y`, and this part of this row is worked on once.
                        unsafe { pre.slice(start + cols.start..start + cols.end) }
                    });
                    bias_and_activation::<T, F>(bias, y.row(row), pre);
                }
            },
        );
    });
}

/// `pre = y + bias; y = f(pre)` on a row or part of one.
#[inline(always)]
fn bias_and_activation<T: Float, F: Function>(bias: Option<&[T]>, y: &mut [T], pre: Option<&mut [T]>) {
    if let Some(bias) = bias {
        for (y, &b) in y.iter_mut().zip(bias) {
            *y += b;
        }
    }
    if let Some(pre) = pre {
        pre.copy_from_slice(y);
    }
    for y in y.iter_mut() {
        *y = F::value(*y);
    }
}

/// `pre = sums + bias; y = f(pre)` on part of a row, each rounded once.
#[inline(always)]
pub(super) fn store_row<Y: Stored<Real = f32>, F: Function>(
    sums: &mut [f32],
    bias: Option<&[Y]>,
    y: &mut [Y],
    pre: Option<&mut [Y]>,
) {
    if let Some(bias) = bias {
        for (sum, &b) in sums.iter_mut().zip(bias) {
            *sum += b.load();
        }
    }
    if let Some(pre) = pre {
        for (pre, &sum) in pre.iter_mut().zip(&*sums) {
            *pre = Y::store(sum);
        }
    }
    for (y, &sum) in y.iter_mut().zip(&*sums) {
        *y = Y::store(F::value(sum));
    }
}
