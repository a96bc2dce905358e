//! Matmuls of bf16 on a CPU with instructions for them: no operand is widened, and each part of a result is worked on and stored
//! while its sums in f32 are in cache.

use half::bf16;

use super::Sizes;
use super::cpu::store_row;
use crate::cpu::Stored;
use crate::cpu::copy::{FAR_BYTES, fence, stream_unfenced};
use crate::cpu::gemm::{Mat, gemm_bf16_then, multiplies_bf16};
use crate::cpu::simd::vectorize;
use crate::cpu::threads::SharedMut;
use crate::ops::Activation;
use crate::ops::activation::cpu::{Function, Identity, with_function};
use crate::{DType, Element};

/// Both operands, if they are bf16 and the processor multiplies them.
pub(super) fn operands<'a, S: Element>(a: &'a [S], b: &'a [S]) -> Option<(&'a [bf16], &'a [bf16])> {
    let is_native = S::DTYPE == DType::BF16 && multiplies_bf16();
    is_native.then(|| (bytemuck::cast_slice(a), bytemuck::cast_slice(b)))
}

/// `y = f(x·Wᵀ + b)`, and `pre`, the values before `f`.
pub(super) fn forward<Y: Stored<Real = f32>>(
    (x, weight): (&[bf16], &[bf16]),
    bias: Option<&[Y]>,
    sizes: Sizes,
    activation: Option<Activation>,
    y: &mut [Y],
    pre: Option<&mut [Y]>,
) {
    match activation {
        None => forward_as::<Y, Identity>((x, weight), bias, sizes, y, pre),
        Some(activation) => {
            with_function!(activation, F => forward_as::<Y, F>((x, weight), bias, sizes, y, pre));
        }
    }
}

fn forward_as<Y: Stored<Real = f32>, F: Function>(
    (x, weight): (&[bf16], &[bf16]),
    bias: Option<&[Y]>,
    Sizes { n_rows, in_features, out_features }: Sizes,
    y: &mut [Y],
    pre: Option<&mut [Y]>,
) {
    let (x, weight) = (Mat::new(x, n_rows, in_features), Mat::new(weight, out_features, in_features));
    let (y, pre) = (SharedMut::new(y), pre.map(SharedMut::new));
    gemm_bf16_then(x, weight.t(), |mut sums| {
        vectorize(
            #[inline(always)]
            || {
                let (rows, cols) = sums.rows_and_cols();
                let bias = bias.map(|bias| &bias[cols.clone()]);
                for row in rows {
                    let place = row * out_features + cols.start..row * out_features + cols.end;
                    // SAFETY: `y` and `pre` have these elements, which are worked on once.
                    let y = unsafe { y.slice(place.clone()) };
                    // SAFETY: likewise.
                    let pre = pre.map(|pre| unsafe { pre.slice(place) });
                    store_row::<Y, F>(sums.row(row), bias, y, pre);
                }
            },
        );
    });
}

/// `d_weight = d_yᵀ·x`, or `+=`.
pub(super) fn backward_weight(
    (d_y, x): (&[bf16], &[bf16]),
    Sizes { n_rows, in_features, out_features }: Sizes,
    d_weight: &mut [f32],
    accumulate: bool,
) {
    let (d_y, x) = (Mat::new(d_y, n_rows, out_features), Mat::new(x, n_rows, in_features));
    store(d_y.t(), x, d_weight, accumulate);
}

/// `d_x = d_y·weight`, or `+=` with the sum rounded once.
pub(super) fn backward_input<S: Stored<Real = f32>>(
    (d_y, weight): (&[bf16], &[bf16]),
    Sizes { n_rows, in_features, out_features }: Sizes,
    d_x: &mut [S],
    accumulate: bool,
) {
    let (d_y, weight) = (Mat::new(d_y, n_rows, out_features), Mat::new(weight, out_features, in_features));
    store(d_y, weight, d_x, accumulate);
}

/// `c = a·b`, or `+=`.
fn store<S: Stored<Real = f32>>(a: Mat<'_, bf16>, b: Mat<'_, bf16>, c: &mut [S], accumulate: bool) {
    let n_cols = b.cols;
    let is_far = size_of_val(c) >= FAR_BYTES;
    let c = SharedMut::new(c);
    gemm_bf16_then(a, b, |mut sums| {
        vectorize(
            #[inline(always)]
            || {
                let (rows, cols) = sums.rows_and_cols();
                for row in rows {
                    // SAFETY: `c` has these elements, which are worked on once.
                    let c = unsafe { c.slice(row * n_cols + cols.start..row * n_cols + cols.end) };
                    let sums = sums.row(row);
                    if accumulate {
                        for (c, &sum) in c.iter_mut().zip(&*sums) {
                            *c = S::store(c.load() + sum);
                        }
                    } else if let (true, Some(sums)) = (is_far, S::from_numbers(sums)) {
                        stream_unfenced(bytemuck::cast_slice_mut(c), bytemuck::cast_slice(sums));
                    } else {
                        for (c, &sum) in c.iter_mut().zip(&*sums) {
                            *c = S::store(sum);
                        }
                    }
                }
                if is_far {
                    fence();
                }
            },
        );
    });
}
