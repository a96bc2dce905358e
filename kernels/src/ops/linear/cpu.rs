//! Two routes to the same product.
//!
//! *Direct*: `y = x·Wᵀ` at once, then a pass for bias and activation. The library packs the transposed weight,
//! which is cheap while the weight fits the second-level cache.
//!
//! *Transposed*: `yᵀ = W·xᵀ`, with the small `xᵀ` made first, and bias, activation and the way back to `y` in one
//! pass. The weight is then read in its own order; packing a large transposed weight costs up to 40% of the product.

use crate::cpu::Float;
use crate::cpu::gemm::{Mat, gemm};
use crate::cpu::simd::vectorize;
use crate::cpu::transpose::{transpose, transpose_map_pair};
use crate::ops::Activation;
use crate::ops::activation::cpu::{Function, Identity, with_function};

/// Weights of more elements take the transposed route (measured: see `forward_routes` in `benches`).
const DIRECT_MAX_WEIGHT: usize = 1 << 16;

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

pub(super) fn workspace_len(n_rows: usize, in_features: usize, out_features: usize) -> usize {
    if in_features * out_features <= DIRECT_MAX_WEIGHT {
        0
    } else {
        n_rows * (in_features + out_features)
    }
}

pub(super) fn forward<T: Float>(
    problem: Problem<'_, T>,
    activation: Option<Activation>,
    y: &mut [T],
    pre: Option<&mut [T]>,
    workspace: &mut [T],
) {
    match activation {
        None => forward_as::<T, Identity>(problem, y, pre, workspace),
        Some(activation) => {
            with_function!(activation, F => forward_as::<T, F>(problem, y, pre, workspace))
        }
    }
}

fn forward_as<T: Float, F: Function>(
    p: Problem<'_, T>,
    y: &mut [T],
    pre: Option<&mut [T]>,
    workspace: &mut [T],
) {
    let weight = Mat::new(p.weight, p.out_features, p.in_features);
    if workspace_len(p.n_rows, p.in_features, p.out_features) == 0 {
        gemm(
            T::ONE,
            Mat::new(p.x, p.n_rows, p.in_features),
            weight.t(),
            T::ZERO,
            y,
        );
        return bias_and_activation::<T, F>(p.bias, p.out_features, y, pre);
    }
    let (x_t, rest) = workspace.split_at_mut(p.n_rows * p.in_features);
    let y_t = &mut rest[..p.n_rows * p.out_features];
    transpose(p.x, p.n_rows, p.in_features, x_t);
    gemm(
        T::ONE,
        weight,
        Mat::new(x_t, p.in_features, p.n_rows),
        T::ZERO,
        y_t,
    );
    let bias_of = |o: usize| p.bias.map_or(T::ZERO, |b| b[o]);
    transpose_map_pair(
        y_t,
        p.out_features,
        p.n_rows,
        y,
        pre,
        #[inline(always)]
        |o, v| {
            let pre = v + bias_of(o);
            (F::value(pre), pre)
        },
    );
}

/// `pre = y + bias; y = f(pre)` in one pass over rows of `cols`.
fn bias_and_activation<T: Float, F: Function>(
    bias: Option<&[T]>,
    cols: usize,
    y: &mut [T],
    pre: Option<&mut [T]>,
) {
    if cols == 0 {
        return;
    }
    if let Some(bias) = bias {
        vectorize(
            #[inline(always)]
            || {
                for row in y.chunks_exact_mut(cols) {
                    for (y, &b) in row.iter_mut().zip(bias) {
                        *y += b;
                    }
                }
            },
        );
    }
    if let Some(pre) = pre {
        pre.copy_from_slice(y);
    }
    vectorize(
        #[inline(always)]
        || {
            for y in y.iter_mut() {
                *y = F::value(*y);
            }
        },
    );
}
