//! Matmuls of bf16 and f16 on the CPU: operands widened to f32 in the workspace, the same matmuls as for f32, results rounded
//! when stored. The numerics match a GPU's tensor cores; it is at best as fast as f32.

use super::{Sizes, bf16, cpu};
use crate::cpu::Stored;
use crate::cpu::gemm::{Mat, gemm};
use crate::cpu::stored::{narrow, widen};
use crate::ops::Activation;

/// Workspace in f32 elements that any of the layer's three matmuls needs; monotonic in each argument.
pub(super) fn workspace_len(n_rows: usize, in_features: usize, out_features: usize) -> usize {
    let (x, weight, y) = (n_rows * in_features, out_features * in_features, n_rows * out_features);
    let forward = x + weight + out_features + 2 * y;
    let backward = x + weight + y;
    forward.max(backward)
}

/// Contiguous parts of the workspace.
struct Scratch<'a>(&'a mut [f32]);

impl<'a> Scratch<'a> {
    fn take(&mut self, len: usize) -> &'a mut [f32] {
        let (part, rest) = std::mem::take(&mut self.0).split_at_mut(len);
        self.0 = rest;
        part
    }

    /// The values of `from` in f32.
    fn widened<S: Stored<Real = f32>>(&mut self, from: &[S]) -> &'a [f32] {
        let part = self.take(from.len());
        widen(from, part);
        part
    }
}

/// Same as `cpu::forward`, with x and weight of format `S` and everything else of `Y`.
#[allow(clippy::too_many_arguments)] // Operands, sizes, results and scratch.
pub(super) fn forward<S: Stored<Real = f32>, Y: Stored<Real = f32>>(
    x: &[S],
    weight: &[S],
    bias: Option<&[Y]>,
    sizes: Sizes,
    activation: Option<Activation>,
    y: &mut [Y],
    pre: Option<&mut [Y]>,
    workspace: &mut [f32],
) {
    if let Some(operands) = bf16::operands(x, weight) {
        return bf16::forward(operands, bias, sizes, activation, y, pre);
    }
    let Sizes { n_rows, in_features, out_features } = sizes;
    let mut scratch = Scratch(workspace);
    let problem = cpu::Problem {
        x: scratch.widened(x),
        weight: scratch.widened(weight),
        bias: bias.map(|bias| scratch.widened(bias)),
        n_rows,
        in_features,
        out_features,
    };
    let (wide_y, wide_pre) = (scratch.take(y.len()), scratch.take(y.len()));
    match pre {
        Some(pre) => {
            cpu::forward(problem, activation, wide_y, Some(wide_pre));
            narrow(wide_pre, pre);
        }
        None => cpu::forward(problem, activation, wide_y, None),
    }
    narrow(wide_y, y);
}

/// `d_weight = d_yᵀ·x`, or `+=`, into f32.
pub(super) fn backward_weight<S: Stored<Real = f32>>(
    d_y: &[S],
    x: &[S],
    sizes: Sizes,
    d_weight: &mut [f32],
    accumulate: bool,
    workspace: &mut [f32],
) {
    if let Some(operands) = bf16::operands(d_y, x) {
        return bf16::backward_weight(operands, sizes, d_weight, accumulate);
    }
    let Sizes { n_rows, in_features, out_features } = sizes;
    let mut scratch = Scratch(workspace);
    let d_y = Mat::new(scratch.widened(d_y), n_rows, out_features);
    let x = Mat::new(scratch.widened(x), n_rows, in_features);
    gemm(1.0, d_y.t(), x, if accumulate { 1.0 } else { 0.0 }, d_weight);
}

/// `d_x = d_y·weight`, or `+=` with the sum rounded once.
pub(super) fn backward_input<S: Stored<Real = f32>>(
    d_y: &[S],
    weight: &[S],
    sizes: Sizes,
    d_x: &mut [S],
    accumulate: bool,
    workspace: &mut [f32],
) {
    if let Some(operands) = bf16::operands(d_y, weight) {
        return bf16::backward_input(operands, sizes, d_x, accumulate);
    }
    let Sizes { n_rows, in_features, out_features } = sizes;
    let mut scratch = Scratch(workspace);
    let d_y = Mat::new(scratch.widened(d_y), n_rows, out_features);
    let weight = Mat::new(scratch.widened(weight), out_features, in_features);
    let wide = scratch.take(d_x.len());
    if accumulate {
        widen(d_x, wide);
    }
    gemm(1.0, d_y, weight, if accumulate { 1.0 } else { 0.0 }, wide);
    narrow(wide, d_x);
}
