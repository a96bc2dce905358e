//! Layer normalisation.

mod cpu;

use super::check;
use crate::{Result, Shape, TensorMut, TensorRef};

/// Statistics of the rows, kept by the forward pass for the backward pass.
#[derive(Debug)]
pub struct LayerNormStats<'a> {
    /// Mean of each row, `[N]`.
    pub mean: TensorMut<'a>,
    /// `1 / sqrt(variance + eps)` of each row, `[N]`.
    pub rstd: TensorMut<'a>,
}

/// Gradients that [`layer_norm_backward`] writes.
#[derive(Debug)]
pub struct LayerNormGrads<'a> {
    /// `[N, C]`, in: the gradient of `y`; out: the gradient of `x`.
    pub d: TensorMut<'a>,
    /// `[C]`.
    pub d_gamma: TensorMut<'a>,
    /// `[C]`.
    pub d_beta: TensorMut<'a>,
}

/// Normalises each row of `x`, then scales and shifts it.
///
/// `y[n,c] = (x[n,c] - mean[n]) · rstd[n] · gamma[c] + beta[c]`
///
/// - `x`, `y`: `[N, C]`; `gamma`, `beta`: `[C]`
/// - `eps` is added to the variance (divided by C, not C - 1), not to its root
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: arXiv:1607.06450; the same as `torch.nn.functional.layer_norm`.
pub fn layer_norm_forward(
    x: TensorRef<'_>,
    gamma: TensorRef<'_>,
    beta: TensorRef<'_>,
    eps: f64,
    y: TensorMut<'_>,
    stats: LayerNormStats<'_>,
) -> Result<()> {
    const OP: &str = "layer_norm_forward";
    let LayerNormStats { mean, rstd } = stats;
    let x_op = x.operand("x");
    let (rows, cols) = check::matrix(OP, x_op)?;
    let (gamma_op, beta_op) = (gamma.operand("gamma"), beta.operand("beta"));
    let (mean_op, rstd_op) = (mean.operand("mean"), rstd.operand("rstd"));
    check::same_kind(OP, &[x_op, gamma_op, beta_op, y.operand("y"), mean_op, rstd_op])?;
    check::shape(OP, y.operand("y"), x.shape())?;
    check::shape(OP, gamma_op, Shape::vector(cols))?;
    check::shape(OP, beta_op, Shape::vector(cols))?;
    check::shape(OP, mean_op, Shape::vector(rows))?;
    check::shape(OP, rstd_op, Shape::vector(rows))?;
    check::float_dispatch!(OP, x_op, T => {
        cpu::forward::<T>(
            x.as_slice(OP, "x")?,
            gamma.as_slice(OP, "gamma")?,
            beta.as_slice(OP, "beta")?,
            eps as T,
            y.into_slice(OP, "y")?,
            mean.into_slice(OP, "mean")?,
            rstd.into_slice(OP, "rstd")?,
        );
        Ok(())
    })
}

/// Gradients of [`layer_norm_forward`]; those of `gamma` and `beta` are added to if `accumulate`.
///
/// With `h = (x - mean)·rstd` and `g = d_y·gamma`: `d_x = rstd · (g - mean(g) - h·mean(g·h))`, `d_gamma = Σ_n d_y·h`,
/// `d_beta = Σ_n d_y`
///
/// - `x`: `[N, C]`; `gamma`: `[C]`; `mean`, `rstd`: `[N]` from the forward pass
///
/// # Errors
/// As [`layer_norm_forward`].
pub fn layer_norm_backward(
    x: TensorRef<'_>,
    gamma: TensorRef<'_>,
    mean: TensorRef<'_>,
    rstd: TensorRef<'_>,
    grads: LayerNormGrads<'_>,
    accumulate: bool,
) -> Result<()> {
    const OP: &str = "layer_norm_backward";
    let LayerNormGrads { d, d_gamma, d_beta } = grads;
    let x_op = x.operand("x");
    let (rows, cols) = check::matrix(OP, x_op)?;
    let (d_gamma_op, d_beta_op) = (d_gamma.operand("d_gamma"), d_beta.operand("d_beta"));
    let (gamma_op, mean_op, rstd_op) = (gamma.operand("gamma"), mean.operand("mean"), rstd.operand("rstd"));
    check::same_kind(OP, &[x_op, gamma_op, mean_op, rstd_op, d.operand("d"), d_gamma_op, d_beta_op])?;
    check::shape(OP, d.operand("d"), x.shape())?;
    for operand in [gamma_op, d_gamma_op, d_beta_op] {
        check::shape(OP, operand, Shape::vector(cols))?;
    }
    for operand in [mean_op, rstd_op] {
        check::shape(OP, operand, Shape::vector(rows))?;
    }
    check::float_dispatch!(OP, x_op, T => {
        cpu::backward::<T>(
            &cpu::Saved {
                x: x.as_slice(OP, "x")?,
                gamma: gamma.as_slice(OP, "gamma")?,
                mean: mean.as_slice(OP, "mean")?,
                rstd: rstd.as_slice(OP, "rstd")?,
            },
            d.into_slice(OP, "d")?,
            d_gamma.into_slice(OP, "d_gamma")?,
            d_beta.into_slice(OP, "d_beta")?,
            accumulate,
        );
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_close, assert_gradient, dot, random};

    fn forward(rows: usize, cols: usize, x: &[f64], gamma: &[f64], beta: &[f64]) -> [Vec<f64>; 3] {
        let (mut y, mut mean, mut rstd) = (vec![0.0; rows * cols], vec![0.0; rows], vec![0.0; rows]);
        let stats = LayerNormStats {
            mean: TensorMut::from_slice(&mut mean, &[rows]).unwrap(),
            rstd: TensorMut::from_slice(&mut rstd, &[rows]).unwrap(),
        };
        let vector = |v| TensorRef::from_slice(v, &[cols]).unwrap();
        let x = TensorRef::from_slice(x, &[rows, cols]).unwrap();
        let y_view = TensorMut::from_slice(&mut y, &[rows, cols]).unwrap();
        layer_norm_forward(x, vector(gamma), vector(beta), 1e-5, y_view, stats).unwrap();
        [y, mean, rstd]
    }

    #[test]
    fn gradients_match_central_differences() {
        for (rows, cols) in [(3, 5), (2, 33)] {
            let n = rows * cols;
            let (x, gamma, beta) = (random::<f64>(n, 1), random::<f64>(cols, 2), random::<f64>(cols, 3));
            let d_y = random::<f64>(n, 4);
            let [_, mean, rstd] = forward(rows, cols, &x, &gamma, &beta);
            let (mut d, mut d_gamma, mut d_beta) = (d_y.clone(), vec![1.0; cols], vec![1.0; cols]);
            let grads = LayerNormGrads {
                d: TensorMut::from_slice(&mut d, &[rows, cols]).unwrap(),
                d_gamma: TensorMut::from_slice(&mut d_gamma, &[cols]).unwrap(),
                d_beta: TensorMut::from_slice(&mut d_beta, &[cols]).unwrap(),
            };
            layer_norm_backward(
                TensorRef::from_slice(&x, &[rows, cols]).unwrap(),
                TensorRef::from_slice(&gamma, &[cols]).unwrap(),
                TensorRef::from_slice(&mean, &[rows]).unwrap(),
                TensorRef::from_slice(&rstd, &[rows]).unwrap(),
                grads,
                true,
            )
            .unwrap();
            let minus_one = |v: &[f64]| v.iter().map(|v| v - 1.0).collect::<Vec<_>>();
            let loss = |x: &[f64], g: &[f64], b: &[f64]| dot(&forward(rows, cols, x, g, b)[0], &d_y);
            assert_gradient(&x, &d, |x| loss(x, &gamma, &beta));
            assert_gradient(&gamma, &minus_one(&d_gamma), |g| loss(&x, g, &beta));
            assert_gradient(&beta, &minus_one(&d_beta), |b| loss(&x, &gamma, b));
        }
    }

    #[test]
    fn rows_far_from_zero_keep_their_precision() {
        let x: Vec<f64> = (0..8).map(|i| 1e6 + f64::from(i)).collect();
        let [y, mean, _] = forward(1, 8, &x, &[1.0; 8], &[0.0; 8]);
        assert_eq!(mean, [1e6 + 3.5]);
        // The variance of 0..8 is 5.25.
        let want: Vec<f64> = (0..8).map(|i| (f64::from(i) - 3.5) / (5.25f64 + 1e-5).sqrt()).collect();
        assert_close(&y, &want, 1e-12, 1e-12);
    }
}
