//! Batched matrix multiplication: one product per matrix of a batch.

use super::addmm::matmul;
use crate::base::check;
use crate::base::error::Operand;
use crate::base::matmul_mode::MatmulMode;
use crate::cpu::gemm::{Mat, gemm};
use crate::cuda::blas::{Epilogue, Matmul, Scales};
use crate::{KernelError, Result, Shape, TensorMut, TensorRef};

const OP: &str = "bmm";

/// `c[n] = alpha · op(a[n]) · op(b[n]) + beta · c[n]` for each matrix `n` of a batch, where `op` transposes its operand if the flag
/// after it is true.
///
/// - `op(a)`: `[N, M, K]`; `op(b)`: `[N, K, P]`; `c`: `[N, M, P]`; all f32 or all f64, on one device; on a GPU also bf16 or f16
///   operands with `c` in their format or f32
/// - with `beta = 0`, `c` is not read, so NaN in it does not propagate
///
/// The gradients are products of the same kind: of `a`, `d_c · op(b)ᵀ`, and of `b`, `op(a)ᵀ · d_c`.
///
/// Asynchronous on a GPU's compute stream: one call, which allocates nothing and can be captured.
///
/// # Errors
/// [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`], [`KernelError::Shape`]; on a GPU
/// [`KernelError::Cublas`].
///
/// Source: `torch.baddbmm` with its input as `c`; strided batches of cuBLASLt.
pub fn bmm(
    alpha: f64,
    a: TensorRef<'_>,
    transpose_a: bool,
    b: TensorRef<'_>,
    transpose_b: bool,
    beta: f64,
    c: TensorMut<'_>,
) -> Result<()> {
    bmm_with(MatmulMode::Strict, alpha, a, transpose_a, b, transpose_b, beta, c)
}

/// [`bmm`] in the given precision.
///
/// # Errors
/// Same as [`bmm`].
#[allow(clippy::too_many_arguments)] // GEMM has that many.
#[doc(hidden)]
pub fn bmm_with(
    mode: MatmulMode,
    alpha: f64,
    a: TensorRef<'_>,
    transpose_a: bool,
    b: TensorRef<'_>,
    transpose_b: bool,
    beta: f64,
    c: TensorMut<'_>,
) -> Result<()> {
    let (a_op, b_op, c_op) = (a.operand("a"), b.operand("b"), c.operand("c"));
    check::same_kind(OP, &[a_op, b_op])?;
    check::output_kind(OP, a_op, c_op)?;
    let (batch, a_rows, a_cols) = matrices(a_op)?;
    let (m, k) = if transpose_a { (a_cols, a_rows) } else { (a_rows, a_cols) };
    let (b_batch, b_rows, b_cols) = matrices(b_op)?;
    let (b_k, n) = if transpose_b { (b_cols, b_rows) } else { (b_rows, b_cols) };
    if (b_batch, b_k) != (batch, k) {
        let dims = if transpose_b { [batch, n, k] } else { [batch, k, n] };
        return Err(KernelError::Shape { op: OP, operand: b_op.into(), expected: Shape::new(&dims)? });
    }
    check::shape(OP, c_op, Shape::new(&[batch, m, n])?)?;
    if let Some(gpu) = c.gpu() {
        check::dtype(OP, a_op, check::FLOATS, check::FLOATS_NAMES)?;
        let (inputs, output) = (a_op.dtype, c_op.dtype);
        let (mode, epilogue) = (mode.of_whole_factors(), Epilogue::None);
        let shape = Matmul { batch, m, n, k, transpose_a, transpose_b, inputs, output, mode, epilogue };
        return matmul(gpu, shape, Scales { alpha, beta }, a.cuda()?, b.cuda()?, c.into_cuda()?, None, None)
            .map(|_| ());
    }
    check::float_dispatch!(OP, a_op, T => {
        let (a, b, c) = (a.as_slice::<T>(OP, "a")?, b.as_slice::<T>(OP, "b")?, c.into_slice::<T>(OP, "c")?);
        for index in 0..batch {
            let a = &a[index * m * k..(index + 1) * m * k];
            let b = &b[index * k * n..(index + 1) * k * n];
            gemm(
                alpha as T,
                Mat::new(a, a_rows, a_cols).transposed_if(transpose_a),
                Mat::new(b, b_rows, b_cols).transposed_if(transpose_b),
                beta as T,
                &mut c[index * m * n..(index + 1) * m * n],
            );
        }
        Ok(())
    })
}

/// Number, rows and columns of a batch of matrices.
fn matrices(operand: Operand) -> Result<(usize, usize, usize)> {
    match *operand.shape.dims() {
        [n, rows, cols] => Ok((n, rows, cols)),
        _ => {
            let n = operand.shape.numel();
            Err(KernelError::Shape { op: OP, operand: operand.into(), expected: Shape::new(&[1, 1, n])? })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::addmm;
    use crate::ops::testing::{assert_close, assert_gradient, devices, dot, random, rounding_of, tensor};
    use crate::{DType, Device, Element, Tensor};

    const SHAPES: [[usize; 4]; 6] =
        [[1, 1, 1, 1], [3, 4, 5, 6], [8, 16, 16, 8], [2, 33, 7, 65], [4, 3, 2, 0], [0, 3, 2, 1]];
    const TRANSPOSES: [[bool; 2]; 4] = [[false, false], [true, false], [false, true], [true, true]];

    /// Each matrix by [`addmm`] on the CPU, in f64.
    fn reference(
        [batch, m, n, k]: [usize; 4],
        [ta, tb]: [bool; 2],
        (alpha, beta): (f64, f64),
        a: &[f64],
        b: &[f64],
        c: &[f64],
    ) -> Vec<f64> {
        let mut out = c.to_vec();
        let dims = |t: bool, rows: usize, cols: usize| if t { [cols, rows] } else { [rows, cols] };
        for i in 0..batch {
            let a = TensorRef::from_slice(&a[i * m * k..(i + 1) * m * k], &dims(ta, m, k)).unwrap();
            let b = TensorRef::from_slice(&b[i * k * n..(i + 1) * k * n], &dims(tb, k, n)).unwrap();
            let c = TensorMut::from_slice(&mut out[i * m * n..(i + 1) * m * n], &[m, n]).unwrap();
            addmm(alpha, a, ta, b, tb, beta, c).unwrap();
        }
        out
    }

    fn on_every_device<T: Element>(rtol: f64, on_cpu: bool) {
        for device in devices().into_iter().filter(|device| on_cpu || *device != Device::Cpu) {
            for shape @ [batch, m, n, k] in SHAPES {
                for transposes @ [ta, tb] in TRANSPOSES {
                    for scales @ (alpha, beta) in [(1.0, 0.0), (0.5, 1.0), (-2.0, 0.25)] {
                        let held = |n: usize, seed: u64| {
                            random::<f64>(n, seed).into_iter().map(|v| T::from_f64(v)).collect::<Vec<_>>()
                        };
                        let wide = |v: &[T]| v.iter().map(|v| v.to_f64()).collect::<Vec<_>>();
                        let (a, b, c) =
                            (held(batch * m * k, 1), held(batch * k * n, 2), held(batch * m * n, 3));
                        let want = reference(shape, transposes, scales, &wide(&a), &wide(&b), &wide(&c));
                        let dims =
                            |t: bool, r: usize, c: usize| if t { [batch, c, r] } else { [batch, r, c] };
                        let (a, b) =
                            (tensor(&a, &dims(ta, m, k), device), tensor(&b, &dims(tb, k, n), device));
                        let mut c = tensor(&c, &[batch, m, n], device);
                        bmm(alpha, a.view(), ta, b.view(), tb, beta, c.view_mut()).unwrap();
                        assert_close(&wide(&c.to_vec::<T>().unwrap()), &want, rtol, rtol);
                    }
                }
            }
        }
    }

    #[test]
    fn agrees_with_single_products_on_every_device() {
        // Sums of up to 65 products in another order; 16 bits are rounded once.
        on_every_device::<f64>(1e-13, true);
        on_every_device::<f32>(2e-5, true);
        on_every_device::<half::bf16>(4.0 * rounding_of::<half::bf16>(), false);
        on_every_device::<half::f16>(4.0 * rounding_of::<half::f16>(), false);
    }

    #[test]
    fn the_gradients_are_products_too() {
        let [batch, m, n, k] = [2, 3, 4, 5];
        let (a, b, d) = (
            random::<f64>(batch * m * k, 1),
            random::<f64>(batch * k * n, 2),
            random::<f64>(batch * m * n, 3),
        );
        fn view(values: &[f64], dims: [usize; 3]) -> TensorRef<'_> {
            TensorRef::from_slice(values, &dims).unwrap()
        }
        let loss = |a: &[f64], b: &[f64]| {
            let mut c = vec![0.0; batch * m * n];
            let (a, b) = (view(a, [batch, m, k]), view(b, [batch, k, n]));
            bmm(1.0, a, false, b, false, 0.0, TensorMut::from_slice(&mut c, &[batch, m, n]).unwrap())
                .unwrap();
            dot(&c, &d)
        };
        let (mut d_a, mut d_b) = (vec![0.0; a.len()], vec![0.0; b.len()]);
        let d_c = view(&d, [batch, m, n]);
        let out = TensorMut::from_slice(&mut d_a, &[batch, m, k]).unwrap();
        bmm(1.0, d_c, false, view(&b, [batch, k, n]), true, 0.0, out).unwrap();
        let out = TensorMut::from_slice(&mut d_b, &[batch, k, n]).unwrap();
        bmm(1.0, view(&a, [batch, m, k]), true, d_c, false, 0.0, out).unwrap();
        assert_gradient(&a, &d_a, |a| loss(a, &b));
        assert_gradient(&b, &d_b, |b| loss(&a, b));
    }

    #[test]
    fn wrong_operands_are_named() {
        let zeros = |dims: &[usize]| Tensor::zeros(dims, DType::F32, Device::Cpu).unwrap();
        let mut c = zeros(&[2, 3, 4]);
        let mut message = |a: &Tensor, b: &Tensor| {
            bmm(1.0, a.view(), false, b.view(), false, 0.0, c.view_mut()).unwrap_err().to_string()
        };
        let want = "bmm: b [3, 5, 4] f32 on cpu should be [2, 5, 4]";
        assert_eq!(message(&zeros(&[2, 3, 5]), &zeros(&[3, 5, 4])), want);
        assert!(message(&zeros(&[6, 5]), &zeros(&[2, 5, 4])).contains("a [6, 5] f32"));
        assert!(message(&zeros(&[2, 3, 5]), &zeros(&[2, 5, 3])).contains("c [2, 3, 4] f32"));
    }
}
