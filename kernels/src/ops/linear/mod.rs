//! The linear layer `y = f(x·Wᵀ + b)`, with the activation fused in.

mod cpu;

use super::check;
use super::{Activation, addmm};
use crate::{KernelError, Result, Shape, TensorMut, TensorRef};

/// Where [`linear_forward`] writes.
#[derive(Debug)]
pub struct LinearOutput<'a> {
    /// The result, `[B, O]`.
    pub y: TensorMut<'a>,
    /// `x·Wᵀ + b` before the activation, `[B, O]`, for an activation whose derivative needs it.
    pub pre_activation: Option<TensorMut<'a>>,
    /// Scratch of at least [`linear_workspace_len`] elements; what it holds afterwards means nothing.
    pub workspace: TensorMut<'a>,
}

/// Elements of scratch that [`linear_forward`] needs on this shape.
pub fn linear_workspace_len(n_rows: usize, in_features: usize, out_features: usize) -> usize {
    cpu::workspace_len(n_rows, in_features, out_features)
}

/// `y[n, o] = f(Σ_i x[n, i] · weight[o, i] + bias[o])`, without `f` if `activation` is `None`.
///
/// - `x`: `[B, I]`; `weight`: `[O, I]`; `bias`: `[O]`; `output.y`: `[B, O]`
/// - bias and activation are applied while the product is in cache
///
/// # Errors
/// [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`], [`KernelError::Shape`], and
/// [`KernelError::ElementCount`] for too small a workspace.
///
/// Source: `torch.nn.functional.linear`.
pub fn linear_forward(
    x: TensorRef<'_>,
    weight: TensorRef<'_>,
    bias: Option<TensorRef<'_>>,
    activation: Option<Activation>,
    output: LinearOutput<'_>,
) -> Result<()> {
    const OP: &str = "linear_forward";
    let LinearOutput { y, pre_activation, workspace } = output;
    let (x_op, y_op) = (x.operand("x"), y.operand("y"));
    check::same_kind(OP, &[x_op, weight.operand("weight"), y_op, workspace.operand("workspace")])?;
    let (n_rows, in_features) = check::matrix(OP, x_op)?;
    let (out_features, _) = check::matrix(OP, weight.operand("weight"))?;
    check::shape(OP, weight.operand("weight"), Shape::matrix(out_features, in_features))?;
    check::shape(OP, y_op, Shape::matrix(n_rows, out_features))?;
    if let Some(bias) = bias {
        check::same_kind(OP, &[x_op, bias.operand("bias")])?;
        check::shape(OP, bias.operand("bias"), Shape::vector(out_features))?;
    }
    if let Some(pre) = &pre_activation {
        check::same_kind(OP, &[x_op, pre.operand("pre_activation")])?;
        check::shape(OP, pre.operand("pre_activation"), y.shape())?;
    }
    let needed = linear_workspace_len(n_rows, in_features, out_features);
    if workspace.numel() < needed {
        return Err(KernelError::ElementCount {
            op: OP,
            got: workspace.numel(),
            shape: Shape::vector(needed),
        });
    }
    check::float_dispatch!(OP, x_op, T => {
        let bias = bias.map(|b| b.as_slice::<T>(OP, "bias")).transpose()?;
        let pre = pre_activation.map(|p| p.into_slice::<T>(OP, "pre_activation")).transpose()?;
        let problem = cpu::Problem {
            x: x.as_slice::<T>(OP, "x")?,
            weight: weight.as_slice::<T>(OP, "weight")?,
            bias,
            n_rows,
            in_features,
            out_features,
        };
        cpu::forward(problem, activation, y.into_slice(OP, "y")?, pre, workspace.into_slice(OP, "workspace")?);
        Ok(())
    })
}

/// `d_weight = d_yᵀ·x`, or `+=` if `accumulate`.
///
/// - `d_y`: `[B, O]`, the gradient before the activation; `x`: `[B, I]`; `d_weight`: `[O, I]`
///
/// # Errors
/// As [`addmm`].
pub fn linear_backward_weight(
    d_y: TensorRef<'_>,
    x: TensorRef<'_>,
    d_weight: TensorMut<'_>,
    accumulate: bool,
) -> Result<()> {
    addmm(1.0, d_y, true, x, false, if accumulate { 1.0 } else { 0.0 }, d_weight)
}

/// `d_x = d_y·weight`.
///
/// - `d_y`: `[B, O]`, the gradient before the activation; `weight`: `[O, I]`; `d_x`: `[B, I]`
///
/// # Errors
/// As [`addmm`].
pub fn linear_backward_input(d_y: TensorRef<'_>, weight: TensorRef<'_>, d_x: TensorMut<'_>) -> Result<()> {
    addmm(1.0, d_y, false, weight, false, 0.0, d_x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Float;
    use crate::ops::testing::{assert_close, assert_gradient, dot, random};

    type Sizes = (usize, usize, usize);

    fn forward<T: Float>(
        (b, i, o): Sizes,
        x: &[T],
        w: &[T],
        bias: Option<&[T]>,
        activation: Option<Activation>,
    ) -> (Vec<T>, Vec<T>) {
        let (mut y, mut pre) = (vec![T::from_f64(f64::NAN); b * o], vec![T::ZERO; b * o]);
        let mut workspace = vec![T::ZERO; linear_workspace_len(b, i, o)];
        let n = workspace.len();
        let output = LinearOutput {
            y: TensorMut::from_slice(&mut y, &[b, o]).unwrap(),
            pre_activation: Some(TensorMut::from_slice(&mut pre, &[b, o]).unwrap()),
            workspace: TensorMut::from_slice(&mut workspace, &[n]).unwrap(),
        };
        let bias = bias.map(|v| TensorRef::from_slice(v, &[o]).unwrap());
        let (x, w) = (TensorRef::from_slice(x, &[b, i]).unwrap(), TensorRef::from_slice(w, &[o, i]).unwrap());
        linear_forward(x, w, bias, activation, output).unwrap();
        (y, pre)
    }

    #[test]
    fn both_routes_agree_with_the_definition() {
        // The last one is direct, all others transposed, the third with edges everywhere.
        for sizes @ (b, i, o) in [(5, 7, 3), (64, 512, 512), (33, 515, 517), (1, 600, 600), (64, 1024, 10)] {
            let (x, w, bias) = (random::<f64>(b * i, 1), random::<f64>(o * i, 2), random::<f64>(o, 3));
            let want: Vec<f64> =
                (0..b * o).map(|e| bias[e % o] + dot(&x[e / o * i..][..i], &w[e % o * i..][..i])).collect();
            let (y, pre) = forward(sizes, &x, &w, Some(&bias), Some(Activation::Relu));
            assert_close(&pre, &want, 1e-12, 1e-12);
            let relu: Vec<f64> = want.iter().map(|v| v.max(0.0)).collect();
            assert_close(&y, &relu, 1e-12, 1e-12);
            let (y, _) = forward(sizes, &x, &w, None, None);
            let without: Vec<f64> = want.iter().enumerate().map(|(e, v)| v - bias[e % o]).collect();
            assert_close(&y, &without, 1e-12, 1e-12);
        }
    }

    #[test]
    fn threads_change_nothing() {
        let sizes @ (b, i, o) = (96, 640, 700);
        let (x, w, bias) = (random::<f32>(b * i, 1), random::<f32>(o * i, 2), random::<f32>(o, 3));
        let (xc, wc, bc) = (x.clone(), w.clone(), bias.clone());
        let one = forward(sizes, &x, &w, Some(&bias), Some(Activation::Gelu));
        let three = std::thread::spawn(move || {
            crate::cpu::threads::join_pool(3).unwrap();
            forward(sizes, &xc, &wc, Some(&bc), Some(Activation::Gelu))
        });
        assert_eq!(one, three.join().unwrap());
    }

    #[test]
    fn gradients_match_central_differences() {
        let sizes @ (b, i, o) = (4, 6, 5);
        let (x, w, d_y) = (random::<f64>(b * i, 1), random::<f64>(o * i, 2), random::<f64>(b * o, 3));
        let (mut d_w, mut d_x) = (vec![1.0; o * i], vec![f64::NAN; b * i]);
        let d_y_view = TensorRef::from_slice(&d_y, &[b, o]).unwrap();
        let x_view = TensorRef::from_slice(&x, &[b, i]).unwrap();
        linear_backward_weight(d_y_view, x_view, TensorMut::from_slice(&mut d_w, &[o, i]).unwrap(), true)
            .unwrap();
        d_w.iter_mut().for_each(|v| *v -= 1.0);
        let w_view = TensorRef::from_slice(&w, &[o, i]).unwrap();
        linear_backward_input(d_y_view, w_view, TensorMut::from_slice(&mut d_x, &[b, i]).unwrap()).unwrap();
        assert_gradient(&w, &d_w, |w| dot(&forward(sizes, &x, w, None, None).0, &d_y));
        assert_gradient(&x, &d_x, |x| dot(&forward(sizes, x, &w, None, None).0, &d_y));
    }

    #[test]
    fn wrong_operands_are_named() {
        let (x, w, mut y, mut ws) = ([0.0f32; 6], [0.0f32; 8], [0.0f32; 4], [0.0f32; 100]);
        let output = LinearOutput {
            y: TensorMut::from_slice(&mut y, &[2, 2]).unwrap(),
            pre_activation: None,
            workspace: TensorMut::from_slice(&mut ws, &[100]).unwrap(),
        };
        let x = TensorRef::from_slice(&x, &[2, 3]).unwrap();
        let w = TensorRef::from_slice(&w, &[2, 4]).unwrap();
        let message = linear_forward(x, w, None, None, output).unwrap_err().to_string();
        assert_eq!(message, "linear_forward: weight [2, 4] f32 on cpu should be [2, 3]");
    }
}
