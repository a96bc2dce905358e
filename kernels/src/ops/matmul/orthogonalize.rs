//! Orthogonalization of a matrix by Newton-Schulz iterations, composed of matmuls.

use super::addmm::addmm;
use crate::base::check;
use crate::ops::elementwise::{Input, MapOp, map};
use crate::ops::{cast, copy, sum_of_squares};
use crate::{DType, Result, Shape, TensorMut};

const OP: &str = "orthogonalize";
/// Coefficients of the iteration, chosen for a steep rise at 0: singular values end between about 0.7 and 1.2.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];
/// Iterations; odd, so that the last one ends in `x`.
const N_STEPS: usize = 5;
const _: () = assert!(N_STEPS % 2 == 1);
/// Smallest norm that a matrix is divided by.
const EPS: f64 = 1e-7;

/// Memory of [`orthogonalize`], on the matrix's device. Its contents do not matter before and after the call.
#[derive(Debug)]
#[doc(hidden)]
pub struct NewtonSchulzMemory<'a> {
    /// At least [`NewtonSchulzMemory::len`] elements of the matrix's dtype.
    pub workspace: TensorMut<'a>,
    /// `[2]` f64.
    pub norm: TensorMut<'a>,
}

impl NewtonSchulzMemory<'_> {
    /// Elements of the workspace for a matrix `[rows, cols]`: a matrix of that shape, two of the shorter side squared, and one number.
    pub fn len(rows: usize, cols: usize) -> usize {
        let short = rows.min(cols);
        rows * cols + 2 * short * short + 1
    }
}

/// Replaces `x = U·S·Vᵀ` by approximately `U·Vᵀ`: `x = x / max(‖x‖, 1e-7)`, then five times
/// `x = a·x + (b·G + c·G²)·x` with `G = x·xᵀ`, or on the other side of a matrix with more rows than columns.
///
/// - `x`: `[R, C]`, f32 or f64; updated in place, a matrix of zeros stays one
/// - matmuls are in the matrix's dtype, where PyTorch rounds to bf16
///
/// Asynchronous on a GPU's compute stream; allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::OutOfRange`] for a workspace
/// that is too short, [`crate::KernelError::Shape`]; on a GPU [`crate::KernelError::Cublas`].
///
/// Source: <https://kellerjordan.github.io/posts/muon>; `_zeropower_via_newtonschulz` of `torch.optim.Muon`.
#[doc(hidden)]
pub fn orthogonalize(mut x: TensorMut<'_>, memory: NewtonSchulzMemory<'_>) -> Result<()> {
    let NewtonSchulzMemory { workspace, norm } = memory;
    let (x_op, norm_op) = (x.operand("x"), norm.operand("norm"));
    let (rows, cols) = check::matrix(OP, x_op)?;
    check::dtype(OP, x_op, &[DType::F32, DType::F64], "f32 and f64")?;
    check::same_kind(OP, &[x_op, workspace.operand("workspace")])?;
    check::same_device(OP, &[x_op, norm_op])?;
    check::dtype(OP, norm_op, &[DType::F64], "f64")?;
    check::shape(OP, norm_op, Shape::vector(2))?;
    let (is_tall, short) = (rows > cols, rows.min(cols));
    let n_squared = short * short;
    let workspace = workspace.range(0, NewtonSchulzMemory::len(rows, cols))?;
    let (y, rest) = workspace.split_at(rows * cols)?;
    let (gram, rest) = rest.split_at(n_squared)?;
    let (factor, mut divisor) = rest.split_at(n_squared)?;
    let (mut y, mut gram) = (y.reshape(&[rows, cols])?, gram.reshape(&[short, short])?);
    let mut factor = factor.reshape(&[short, short])?;

    let (mut sum, mut root) = norm.split_at(1)?;
    sum_of_squares(x.as_ref(), sum.reborrow(), false)?;
    map(MapOp::Sqrt, Input::Tensor(sum.as_ref()), 0.0.into(), root.reborrow())?;
    map(MapOp::Maximum, Input::Tensor(root.as_ref()), EPS.into(), sum.reborrow())?;
    cast(sum.as_ref(), divisor.reborrow())?;
    map(MapOp::Div, Input::Tensor(x.as_ref()), Input::Tensor(divisor.as_ref()), y.reborrow())?;

    let [a, b, c] = COEFFICIENTS;
    let (mut from, mut to) = (y, x.reborrow());
    for _ in 0..N_STEPS {
        addmm(1.0, from.as_ref(), is_tall, from.as_ref(), !is_tall, 0.0, gram.reborrow())?;
        copy(gram.as_ref(), factor.reborrow())?;
        addmm(c, gram.as_ref(), false, gram.as_ref(), false, b, factor.reborrow())?;
        copy(from.as_ref(), to.reborrow())?;
        let (left, right) =
            if is_tall { (from.as_ref(), factor.as_ref()) } else { (factor.as_ref(), from.as_ref()) };
        addmm(1.0, left, false, right, false, a, to.reborrow())?;
        (from, to) = (to, from);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_close, devices, random, tensor};
    use crate::{Device, Element, Tensor};

    fn run<T: Element>(x: &[T], dims: [usize; 2], device: Device) -> Vec<T> {
        let mut x = tensor(x, &dims, device);
        let n = NewtonSchulzMemory::len(dims[0], dims[1]);
        let mut workspace = Tensor::full(&[n], f64::NAN, T::DTYPE, device).unwrap();
        let mut norm = Tensor::zeros(&[2], DType::F64, device).unwrap();
        let memory = NewtonSchulzMemory { workspace: workspace.view_mut(), norm: norm.view_mut() };
        orthogonalize(x.view_mut(), memory).unwrap();
        x.to_vec().unwrap()
    }

    /// `XᵀX` or `XXᵀ`, the smaller one.
    fn gram(x: &[f64], [rows, cols]: [usize; 2]) -> Vec<f64> {
        let at = |i: usize, j: usize| if rows > cols { x[j * cols + i] } else { x[i * cols + j] };
        let (short, long) = (rows.min(cols), rows.max(cols));
        (0..short * short).map(|e| (0..long).map(|k| at(e / short, k) * at(e % short, k)).sum()).collect()
    }

    #[test]
    fn singular_values_come_near_1_and_directions_stay() {
        for device in devices() {
            for dims @ [rows, cols] in [[1, 1], [1, 7], [9, 1], [6, 17], [17, 6], [12, 12]] {
                let x = random::<f64>(rows * cols, 5);
                let got = run(&x, dims, device);
                // Scaling changes nothing but what the norm's bound adds.
                let scaled: Vec<f64> = x.iter().map(|v| 64.0 * v).collect();
                assert_close(&run(&scaled, dims, device), &got, 1e-9, 1e-9);
                let short = rows.min(cols);
                let gram = gram(&got, dims);
                let trace: f64 = (0..short).map(|i| gram[i * short + i]).sum();
                // The mean of the squares of the singular values.
                let mean = trace / short as f64;
                assert!((0.4..1.5).contains(&mean), "{dims:?}: {mean}");
                // The same polynomial in f32.
                let single: Vec<f32> = x.iter().map(|v| *v as f32).collect();
                let got_single: Vec<f64> = run(&single, dims, device).into_iter().map(f64::from).collect();
                // The iteration multiplies the smallest singular values, and their rounding, by up to 3.4^5.
                assert_close(&got_single, &got, 2e-4, 0.0);
            }
            assert_eq!(run(&[0.0f32; 12], [3, 4], device), [0.0; 12]);
        }
    }

    #[test]
    fn a_short_workspace_is_refused() {
        let mut x = Tensor::zeros(&[3, 4], DType::F32, Device::Cpu).unwrap();
        let mut workspace =
            Tensor::zeros(&[NewtonSchulzMemory::len(3, 4) - 1], DType::F32, Device::Cpu).unwrap();
        let mut norm = Tensor::zeros(&[2], DType::F64, Device::Cpu).unwrap();
        let memory = NewtonSchulzMemory { workspace: workspace.view_mut(), norm: norm.view_mut() };
        orthogonalize(x.view_mut(), memory).unwrap_err();
    }
}
