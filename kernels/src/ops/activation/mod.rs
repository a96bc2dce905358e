//! Activation functions and their derivatives.

pub(crate) mod cpu;
pub(crate) mod cuda;

use std::fmt;

pub(crate) use cuda::SOURCE;

use super::bias;
use crate::base::check;
use crate::{Result, Shape, TensorMut, TensorRef};

/// Calls `$callback` with `$args` and the table of all activations: variant, name, and the value of the forward pass from which
/// the derivative is computed. The functions themselves are in `cpu.rs` and `kernel.cu`.
macro_rules! activations {
    ($callback:ident!($($args:tt)*)) => {
        $callback! {
            ($($args)*)
            /// `max(x, 0)`; NaN stays NaN.
            Relu "relu" Output,
            /// `x·Φ(x)` with the error function (arXiv:1606.08415).
            Gelu "gelu" Input,
            /// GELU in its tanh approximation.
            GeluTanh "gelu_tanh" Input,
            /// `x·sigmoid(x)`.
            Silu "silu" Input,
            /// Hyperbolic tangent.
            Tanh "tanh" Output,
            /// `1 / (1 + e^-x)`.
            Sigmoid "sigmoid" Output,
            /// `x / sqrt(1 + (x/3)²)`, which stays within ±3 (arXiv:2407.04491).
            SmoothClip "smooth_clip" Input,
        }
    };
}
pub(crate) use activations;

macro_rules! define {
    (() $($(#[$doc:meta])* $variant:ident $name:literal $saved:ident,)+) => {
        /// An elementwise activation function, defined as in PyTorch.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Activation { $($(#[$doc])* $variant),+ }

        impl Activation {
            /// All activations.
            pub const ALL: &'static [Activation] = &[$(Activation::$variant),+];

            /// The names of [`Activation::ALL`], in the same order.
            pub const NAMES: &'static [&'static str] = &[$($name),+];

            /// The argument `saved` of [`activation_backward`].
            pub fn saved_for_backward(self) -> SavedForBackward {
                match self { $(Activation::$variant => SavedForBackward::$saved),+ }
            }
        }
    };
}
activations!(define!());

/// The value of the forward pass from which the derivative is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[doc(hidden)]
pub enum SavedForBackward {
    /// The function's input.
    Input,
    /// The function's output.
    Output,
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(Self::NAMES[*self as usize])
    }
}

/// `y = f(x)`.
///
/// - `x`, `y`: one shape and float dtype; bf16 and f16 are computed in f32
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
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        return cuda::forward(gpu, activation, x.cuda()?, &mut y.into_cuda()?);
    }
    check::stored_dispatch!(OP, x_op, T => {
        cpu::forward::<T>(activation, x.as_slice(OP, "x")?, y.into_slice(OP, "y")?);
        Ok(())
    })
}

/// `d = d · f'(·)` in place, and `d_bias = Σ_rows d` (`+=` if `accumulate`); in one pass on the CPU, and for ReLU on a GPU.
///
/// - `d`: `[N, C]`, in: the gradient of the output; out: the gradient of the input
/// - `saved`: `[N, C]`, the input or the output of the forward pass: [`Activation::saved_for_backward`]
/// - `d_bias`: `[C]`, gradient of the bias added just before `f`; f32 if `d` is bf16
///
/// # Errors
/// Same as [`activation_forward`].
#[doc(hidden)]
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
        check::output_kind(OP, d_op, d_bias_op)?;
        check::shape(OP, d_bias_op, Shape::vector(cols))?;
    }
    if let Some(gpu) = d.gpu() {
        check::dtype(OP, d_op, check::FLOATS, check::FLOATS_NAMES)?;
        let (saved, mut d) = (saved.cuda()?, d.into_cuda()?);
        let Some(mut d_bias) = d_bias.map(TensorMut::into_cuda).transpose()? else {
            return cuda::backward(gpu, activation, saved, &mut d);
        };
        if activation == Activation::Relu {
            return bias::cuda::backward_through_relu(gpu, saved, &mut d, cols, &mut d_bias, accumulate);
        }
        cuda::backward(gpu, activation, saved, &mut d)?;
        return bias::cuda::backward(gpu, d.as_ref(), cols, &mut d_bias, accumulate);
    }
    check::stored_dispatch!(OP, d_op, T => {
        let d_bias = d_bias.map(|t| t.into_slice(OP, "d_bias")).transpose()?;
        cpu::backward::<T>(activation, saved.as_slice(OP, "saved")?, d.into_slice(OP, "d")?, cols, d_bias, accumulate);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{
        assert_close, assert_gradient, devices, dot, random, rounded, rounding_of, tensor,
    };
    use crate::{Device, Element, Tensor};

    fn forward<T: Element>(activation: Activation, x: &[T], device: Device) -> Vec<T> {
        let x = tensor(x, &[x.len()], device);
        let mut y = x.zeros_like().unwrap();
        activation_forward(activation, x.view(), y.view_mut()).unwrap();
        y.to_vec().unwrap()
    }

    fn backward<T: Element>(activation: Activation, saved: &[T], d: &[T], device: Device) -> Vec<T> {
        let (saved, mut d) = (tensor(saved, &[saved.len()], device), tensor(d, &[d.len()], device));
        activation_backward(activation, saved.view(), d.view_mut(), None, false).unwrap();
        d.to_vec().unwrap()
    }

    #[test]
    fn gradients_match_central_differences() {
        let (rows, cols) = (7, 5);
        // Away from the kink of ReLU, where difference quotients are wrong.
        let x: Vec<f64> = random::<f64>(rows * cols, 1).iter().map(|v| 4.0 * v + 1e-3 * v.signum()).collect();
        let d_y = random::<f64>(rows * cols, 2);
        for device in devices() {
            for &activation in Activation::ALL {
                let y = forward(activation, &x, device);
                let saved = if activation.saved_for_backward() == SavedForBackward::Input { &x } else { &y };
                let mut d = tensor(&d_y, &[rows, cols], device);
                let mut d_bias = Tensor::ones(&[cols], d.dtype(), device).unwrap();
                let saved = tensor(saved, &[rows, cols], device);
                activation_backward(activation, saved.view(), d.view_mut(), Some(d_bias.view_mut()), true)
                    .unwrap();
                let d = d.to_vec::<f64>().unwrap();
                assert_gradient(&x, &d, |x| dot(&forward(activation, x, Device::Cpu), &d_y));
                let want: Vec<f64> =
                    (0..cols).map(|c| 1.0 + d.iter().skip(c).step_by(cols).sum::<f64>()).collect();
                assert_close(&d_bias.to_vec::<f64>().unwrap(), &want, 1e-12, 1e-12);
            }
        }
    }

    #[test]
    fn f32_agrees_with_f64_also_in_long_rows_and_on_threads() {
        std::thread::spawn(|| {
            crate::cpu::threads::join_pool(2).unwrap();
            // An odd number of elements, so that the GPU's wide accesses leave a tail.
            let x: Vec<f32> = random::<f32>(70 * 1003 + 1, 3).iter().map(|v| 10.0 * v).collect();
            let x64 = rounded::<f32, f64>(&x);
            for device in devices() {
                for &activation in Activation::ALL {
                    let want = rounded::<f64, f32>(&forward(activation, &x64, Device::Cpu));
                    // erf and tanh near -1 leave a few units of 2^-24 absolutely, times x up to 10.
                    assert_close(&forward(activation, &x, device), &want, 1e-6, 1e-6);
                }
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn short_formats_are_f32_rounded_at_the_end() {
        check_short::<half::bf16>();
        check_short::<half::f16>();
    }

    fn check_short<S: Element>() {
        let unit = rounding_of::<S>();
        let x = rounded::<f64, S>(&random::<f64>(5015, 3).iter().map(|v| 5.0 * v).collect::<Vec<_>>());
        let d = random::<S>(5015, 4);
        for device in devices() {
            for &activation in Activation::ALL {
                let x64 = rounded::<S, f64>(&x);
                let y64 = forward(activation, &x64, Device::Cpu);
                let got = forward(activation, &x, device);
                // One rounding.
                assert_close(&rounded::<S, f64>(&got), &y64, 1e-6, unit);
                let saved =
                    if activation.saved_for_backward() == SavedForBackward::Input { &x } else { &got };
                let want = backward(activation, &rounded::<S, f64>(saved), &rounded(&d), Device::Cpu);
                let got = backward(activation, saved, &d, device);
                assert_close(&rounded::<S, f64>(&got), &want, 1e-6, unit);
            }
        }
    }

    /// ReLU's derivative and the gradient of the bias in one launch, against two; sums added to `before`, if given.
    fn check_relu_in_one_pass<T: Element, B: Element>(device: Device, start: usize, before: Option<f64>) {
        for (rows, cols) in [(7, 5), (32, 128), (2000, 64), (301, 1030)] {
            let n = rows * cols;
            let zeros = vec![T::ZERO; start];
            let placed = |values: Vec<T>| tensor(&[&zeros[..], &values].concat(), &[start + n], device);
            let saved = placed(
                random::<T>(n, 1).into_iter().map(|v| if v.to_f64() > 0.0 { v } else { T::ZERO }).collect(),
            );
            let d = random::<T>(n, 2);
            let run = |in_one: bool| {
                let mut d = placed(d.clone());
                let mut d_bias = Tensor::full(&[cols], before.unwrap_or(f64::NAN), B::DTYPE, device).unwrap();
                let saved = saved.view().range(start, start + n).unwrap().reshape(&[rows, cols]).unwrap();
                let mut d_rows =
                    d.view_mut().range(start, start + n).unwrap().reshape(&[rows, cols]).unwrap();
                let of_bias = in_one.then(|| d_bias.view_mut());
                let accumulate = before.is_some();
                activation_backward(Activation::Relu, saved, d_rows.reborrow(), of_bias, accumulate).unwrap();
                if !in_one {
                    crate::ops::bias_backward(d_rows.as_ref(), d_bias.view_mut(), accumulate).unwrap();
                }
                let bits = |values: Vec<f64>| values.into_iter().map(f64::to_bits).collect::<Vec<_>>();
                let wide = |v: &Tensor| {
                    if v.dtype() == T::DTYPE {
                        rounded::<T, f64>(&v.to_vec().unwrap())
                    } else {
                        rounded::<B, f64>(&v.to_vec().unwrap())
                    }
                };
                (bits(wide(&d)), bits(wide(&d_bias)))
            };
            assert!(run(true) == run(false), "{} [{rows}, {cols}] from {start} on {device}", T::DTYPE);
        }
    }

    #[test]
    fn relu_and_the_gradient_of_the_bias_in_one_pass_have_the_bits_of_two() {
        for device in devices().into_iter().filter(|device| *device != Device::Cpu) {
            for (start, before) in [(0, None), (1, Some(0.5)), (16, Some(-1.0))] {
                check_relu_in_one_pass::<f32, f32>(device, start, before);
                check_relu_in_one_pass::<f64, f64>(device, start, before);
                check_relu_in_one_pass::<half::bf16, f32>(device, start, before);
                check_relu_in_one_pass::<half::bf16, half::bf16>(device, start, before);
                check_relu_in_one_pass::<half::f16, half::f16>(device, start, before);
                check_relu_in_one_pass::<half::f16, f32>(device, start, before);
            }
        }
    }

    #[test]
    fn relu_keeps_nan() {
        for device in devices() {
            assert!(forward(Activation::Relu, &[f64::NAN], device)[0].is_nan());
            assert_eq!(forward(Activation::Relu, &[-1.0, 0.0, 2.0], device), [0.0, 0.0, 2.0]);
        }
    }
}
