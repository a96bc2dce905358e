//! Rows of a matrix, picked by index.

use super::check;
use crate::{DType, KernelError, Result, Shape, TensorMut, TensorRef};

/// `out[n, :] = x[indices[n], :]`.
///
/// - `x`: `[N, C]` of any dtype; `indices`: B row numbers; `out`: `[B, C]` of the same dtype
///
/// # Errors
/// [`KernelError::OutOfRange`] for an index beyond the last row (rows before it are written by then);
/// [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`], [`KernelError::Shape`].
///
/// Source: `torch.index_select` along dimension 0.
pub fn gather_rows(x: TensorRef<'_>, indices: &[usize], out: TensorMut<'_>) -> Result<()> {
    const OP: &str = "gather_rows";
    let (x_op, out_op) = (x.operand("x"), out.operand("out"));
    check::same_kind(OP, &[x_op, out_op])?;
    let (n_rows, cols) = x.shape().rows_cols();
    check::shape(OP, out_op, Shape::matrix(indices.len(), cols))?;
    macro_rules! gather {
        ($t:ty) => {{
            let (x, out) = (x.as_slice::<$t>(OP, "x")?, out.into_slice::<$t>(OP, "out")?);
            for (to, &index) in out.chunks_exact_mut(cols.max(1)).zip(indices) {
                if index >= n_rows {
                    return Err(KernelError::OutOfRange {
                        op: OP,
                        start: index,
                        end: index + 1,
                        len: n_rows,
                    });
                }
                to.copy_from_slice(&x[index * cols..][..cols]);
            }
        }};
    }
    match x.dtype() {
        DType::F32 => gather!(f32),
        DType::F64 => gather!(f64),
        DType::I64 => gather!(i64),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn picks_rows_and_refuses_what_is_not_there() {
        let x: Vec<i64> = (0..12).collect();
        let x = TensorRef::from_slice(&x, &[4, 3]).unwrap();
        let mut out = [0i64; 6];
        gather_rows(x, &[3, 0], TensorMut::from_slice(&mut out, &[2, 3]).unwrap()).unwrap();
        assert_eq!(out, [9, 10, 11, 0, 1, 2]);
        let error = gather_rows(x, &[0, 4], TensorMut::from_slice(&mut out, &[2, 3]).unwrap()).unwrap_err();
        assert_eq!(error, KernelError::OutOfRange { op: "gather_rows", start: 4, end: 5, len: 4 });
    }
}
