//! Activation functions and their derivatives.

pub(crate) mod cpu;

use std::fmt;

use super::check;
use crate::{Result, Shape, TensorMut, TensorRef};

/// An elementwise activation function, as PyTorch defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `max(x, 0)`; NaN stays NaN.
    Relu,
    /// `x·Φ(x)` with the error function (arXiv:1606.08415).
    Gelu,
    /// GELU's approximation by tanh.
    GeluTanh,
    /// `x·sigmoid(x)`.
    Silu,
    /// Hyperbolic tangent.
    Tanh,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
}

/// Which value of the forward pass the derivative is computed from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SavedForBackward {
    /// The function's input.
    Input,
    /// Its output: nothing else need be kept.
    Output,
}

impl Activation {
    /// All of them.
    pub const ALL: [Activation; 6] = [
        Activation::Relu,
        Activation::Gelu,
        Activation::GeluTanh,
        Activation::Silu,
        Activation::Tanh,
        Activation::Sigmoid,
    ];

    /// What [`activation_backward`] needs as `saved`.
    pub fn saved_for_backward(self) -> SavedForBackward {
        match self {
            Activation::Relu | Activation::Tanh | Activation::Sigmoid => SavedForBackward::Output,
            Activation::Gelu | Activation::GeluTanh | Activation::Silu => SavedForBackward::Input,
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Activation::Relu => "relu",
            Activation::Gelu => "gelu",
            Activation::GeluTanh => "gelu_tanh",
            Activation::Silu => "silu",
            Activation::Tanh => "tanh",
            Activation::Sigmoid => "sigmoid",
        })
    }
}

/// `y = f(x)`.
///
/// - `x`, `y`: any one shape, f32 or f64
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: `torch.nn.functional.{relu, gelu, silu, tanh, sigmoid}`.
pub fn activation_forward(activation: Activation, x: TensorRef<'_>, y: TensorMut<'_>) -> Result<()> {
    const OP: &str = "activation_forward";
    let (x_op, y_op) = (x.operand("x"), y.operand("y"));
    check::same_kind(OP, &[x_op, y_op])?;
    check::shape(OP, y_op, x.shape())?;
    check::float_dispatch!(OP, x_op, T => {
        cpu::forward::<T>(activation, x.as_slice(OP, "x")?, y.into_slice(OP, "y")?);
        Ok(())
    })
}

/// `d = d · f'(·)` in place, and in the same pass `d_bias = Σ_rows d` (`+=` if `accumulate`).
///
/// - `d`: `[N, C]`, in: the gradient of the output, out: that of the input
/// - `saved`: `[N, C]`, the input or the output of the forward pass, as [`Activation::saved_for_backward`] says
/// - `d_bias`: `[C]`, for the bias that was added just before `f`
///
/// # Errors
/// As [`activation_forward`].
pub fn activation_backward(
    activation: Activation,
    saved: TensorRef<'_>,
    d: TensorMut<'_>,
    d_bias: Option<TensorMut<'_>>,
    accumulate: bool,
) -> Result<()> {
    const OP: &str = "activation_backward";
    let (saved_op, d_op) = (saved.operand("saved"), d.operand("d"));
    check::same_kind(OP, &[saved_op, d_op])?;
    check::shape(OP, saved_op, d.shape())?;
    let (_, cols) = d.shape().rows_cols();
    if let Some(d_bias) = &d_bias {
        let d_bias_op = d_bias.operand("d_bias");
        check::same_kind(OP, &[d_op, d_bias_op])?;
        check::shape(OP, d_bias_op, Shape::vector(cols))?;
    }
    check::float_dispatch!(OP, d_op, T => {
        let d_bias = d_bias.map(|t| t.into_slice::<T>(OP, "d_bias")).transpose()?;
        cpu::backward::<T>(activation, saved.as_slice(OP, "saved")?, d.into_slice(OP, "d")?, cols, d_bias, accumulate);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_close, assert_gradient, dot, random};

    fn forward(activation: Activation, x: &[f64]) -> Vec<f64> {
        let mut y = vec![0.0; x.len()];
        let dims = [x.len()];
        let view = TensorMut::from_slice(&mut y, &dims).unwrap();
        activation_forward(activation, TensorRef::from_slice(x, &dims).unwrap(), view).unwrap();
        y
    }

    #[test]
    fn gradients_match_central_differences() {
        let (rows, cols) = (7, 5);
        // Away from ReLU's kink, where no difference quotient is right.
        let x: Vec<f64> = random::<f64>(rows * cols, 1).iter().map(|v| 4.0 * v + 1e-3 * v.signum()).collect();
        let d_y = random::<f64>(rows * cols, 2);
        for activation in Activation::ALL {
            let y = forward(activation, &x);
            let saved = if activation.saved_for_backward() == SavedForBackward::Input { &x } else { &y };
            let (mut d, mut d_bias) = (d_y.clone(), vec![1.0; cols]);
            activation_backward(
                activation,
                TensorRef::from_slice(saved, &[rows, cols]).unwrap(),
                TensorMut::from_slice(&mut d, &[rows, cols]).unwrap(),
                Some(TensorMut::from_slice(&mut d_bias, &[cols]).unwrap()),
                true,
            )
            .unwrap();
            assert_gradient(&x, &d, |x| dot(&forward(activation, x), &d_y));
            let want: Vec<f64> =
                (0..cols).map(|c| 1.0 + d.iter().skip(c).step_by(cols).sum::<f64>()).collect();
            assert_close(&d_bias, &want, 1e-12, 1e-12);
        }
    }

    #[test]
    fn f32_agrees_with_f64_also_in_long_rows_and_on_threads() {
        std::thread::spawn(|| {
            crate::cpu::threads::join_pool(2).unwrap();
            let (rows, cols) = (70, 1003);
            let x: Vec<f32> = random::<f32>(rows * cols, 3).iter().map(|v| 10.0 * v).collect();
            let x64: Vec<f64> = x.iter().map(|&v| v.into()).collect();
            for activation in Activation::ALL {
                let mut y = vec![0.0f32; x.len()];
                let dims = [rows, cols];
                let view = TensorMut::from_slice(&mut y, &dims).unwrap();
                activation_forward(activation, TensorRef::from_slice(&x, &dims).unwrap(), view).unwrap();
                let want: Vec<f32> = forward(activation, &x64).iter().map(|&v| v as f32).collect();
                // erf and tanh near -1 leave a few units of 2^-24 absolutely, times x up to 10.
                assert_close(&y, &want, 1e-6, 1e-6);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn relu_keeps_nan() {
        assert!(forward(Activation::Relu, &[f64::NAN])[0].is_nan());
        assert_eq!(forward(Activation::Relu, &[-1.0, 0.0, 2.0]), [0.0, 0.0, 2.0]);
    }
}
