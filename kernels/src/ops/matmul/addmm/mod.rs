//! General matrix multiplication (GEMM) with accumulation.

mod cuda;

pub(crate) use cuda::{SOURCE, matmul};

use crate::base::check;
use crate::base::matmul_mode::MatmulMode;
use crate::cpu::gemm::{Mat, gemm};
use crate::cuda::blas::{Epilogue, Matmul, Scales};
use crate::{KernelError, Operand, Result, Shape, TensorMut, TensorRef};

const OP: &str = "addmm";

/// `c = alpha · op(a) · op(b) + beta · c`, where `op` transposes its operand if the flag after it is true.
///
/// - `op(a)`: `[M, K]`; `op(b)`: `[K, N]`; `c`: `[M, N]`; all f32 or all f64, on one device; on a GPU also bf16 or
///   f16 operands with `c` in their format or f32
/// - with `beta = 0`, `c` is not read, so NaN in it does not propagate
///
/// # Errors
/// [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`], [`KernelError::Shape`]; on a GPU
/// [`KernelError::Cublas`].
///
/// Source: BLAS GEMM; the same as `torch.addmm` with its input as `c`.
pub fn addmm(
    alpha: f64,
    a: TensorRef<'_>,
    transpose_a: bool,
    b: TensorRef<'_>,
    transpose_b: bool,
    beta: f64,
    c: TensorMut<'_>,
) -> Result<()> {
    addmm_with(MatmulMode::Strict, alpha, a, transpose_a, b, transpose_b, beta, c)
}

/// [`addmm`] in the given precision.
///
/// # Errors
/// Same as [`addmm`].
#[allow(clippy::too_many_arguments)] // GEMM has that many.
#[doc(hidden)]
pub fn addmm_with(
    mode: MatmulMode,
    alpha: f64,
    a: TensorRef<'_>,
    transpose_a: bool,
    b: TensorRef<'_>,
    transpose_b: bool,
    beta: f64,
    c: TensorMut<'_>,
) -> Result<()> {
    let a_op = a.operand("a");
    let product = shape_of(mode.of_whole_factors(), a, transpose_a, b, transpose_b, c.operand("c"))?;
    if let Some(gpu) = c.gpu() {
        check::dtype(OP, a_op, check::FLOATS, check::FLOATS_NAMES)?;
        let scales = Scales { alpha, beta };
        return matmul(gpu, product, scales, a.cuda()?, b.cuda()?, c.into_cuda()?, None, None).map(|_| ());
    }
    check::float_dispatch!(OP, a_op, T => {
        let (a_shape, b_shape) = (a.shape().rows_cols(), b.shape().rows_cols());
        let a = Mat::new(a.as_slice::<T>(OP, "a")?, a_shape.0, a_shape.1).transposed_if(transpose_a);
        let b = Mat::new(b.as_slice::<T>(OP, "b")?, b_shape.0, b_shape.1).transposed_if(transpose_b);
        gemm(alpha as T, a, b, beta as T, c.into_slice::<T>(OP, "c")?);
        Ok(())
    })
}

/// The matmul of these operands, whose kinds and shapes it checks.
pub(crate) fn shape_of(
    mode: MatmulMode,
    a: TensorRef<'_>,
    transpose_a: bool,
    b: TensorRef<'_>,
    transpose_b: bool,
    c_op: Operand,
) -> Result<Matmul> {
    let (a_op, b_op) = (a.operand("a"), b.operand("b"));
    check::same_kind(OP, &[a_op, b_op])?;
    check::output_kind(OP, a_op, c_op)?;
    let swap = |(rows, cols): (usize, usize), transpose: bool| {
        if transpose { (cols, rows) } else { (rows, cols) }
    };
    let (m, k) = swap(check::matrix(OP, a_op)?, transpose_a);
    let (b_rows, n) = swap(check::matrix(OP, b_op)?, transpose_b);
    if b_rows != k {
        let expected = if transpose_b { Shape::matrix(n, k) } else { Shape::matrix(k, n) };
        return Err(KernelError::Shape { op: OP, operand: b_op.into(), expected });
    }
    check::shape(OP, c_op, Shape::matrix(m, n))?;
    Ok(Matmul {
        batch: 1,
        m,
        n,
        k,
        transpose_a,
        transpose_b,
        inputs: a_op.dtype,
        output: c_op.dtype,
        mode,
        epilogue: Epilogue::None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{assert_close, random};

    #[test]
    fn agrees_with_the_definition_for_every_transpose_and_scale() {
        for (m, n, k) in [(1, 1, 1), (3, 5, 7), (33, 10, 64), (9, 40, 7), (64, 100, 1), (4, 3, 0), (0, 3, 4)]
        {
            for (ta, tb) in [(false, false), (true, false), (false, true), (true, true)] {
                for (alpha, beta) in [(1.0, 0.0), (0.5, 1.0), (-2.0, 0.25)] {
                    let (a, b, c0) =
                        (random::<f64>(m * k, 1), random::<f64>(k * n, 2), random::<f64>(m * n, 3));
                    let at = |i: usize, l: usize| if ta { a[l * m + i] } else { a[i * k + l] };
                    let bt = |l: usize, j: usize| if tb { b[j * k + l] } else { b[l * n + j] };
                    let want: Vec<f64> = (0..m * n)
                        .map(|e| {
                            let sum: f64 = (0..k).map(|l| at(e / n, l) * bt(l, e % n)).sum();
                            alpha * sum + beta * c0[e]
                        })
                        .collect();
                    let mut c = c0.clone();
                    let dims = |t: bool, r: usize, c: usize| if t { [c, r] } else { [r, c] };
                    addmm(
                        alpha,
                        TensorRef::from_slice(&a, &dims(ta, m, k)).unwrap(),
                        ta,
                        TensorRef::from_slice(&b, &dims(tb, k, n)).unwrap(),
                        tb,
                        beta,
                        TensorMut::from_slice(&mut c, &[m, n]).unwrap(),
                    )
                    .unwrap();
                    // Another order of summation: a few units of f64's last place for each of k terms.
                    assert_close(&c, &want, 1e-13, 1e-13);
                }
            }
        }
    }

    #[test]
    fn beta_zero_does_not_read_c() {
        let mut c = [f32::NAN];
        let (a, b) = ([2.0f32], [3.0f32]);
        let one = |v| TensorRef::from_slice(v, &[1, 1]).unwrap();
        addmm(1.0, one(&a), false, one(&b), false, 0.0, TensorMut::from_slice(&mut c, &[1, 1]).unwrap())
            .unwrap();
        assert_eq!(c, [6.0]);
    }

    #[test]
    fn wrong_operands_are_named() {
        let (a, b, mut c) = ([0.0f32; 6], [0.0f32; 8], [0.0f32; 8]);
        let mut d = [0.0f64; 8];
        let a = TensorRef::from_slice(&a, &[2, 3]).unwrap();
        let b = TensorRef::from_slice(&b, &[2, 4]).unwrap();
        let message = addmm(1.0, a, false, b, false, 0.0, TensorMut::from_slice(&mut c, &[2, 4]).unwrap());
        assert_eq!(message.unwrap_err().to_string(), "addmm: b [2, 4] f32 on cpu should be [3, 4]");
        let message = addmm(1.0, a, true, b, false, 0.0, TensorMut::from_slice(&mut d, &[2, 4]).unwrap());
        assert!(message.unwrap_err().to_string().contains("c [2, 4] f64"));
    }
}
