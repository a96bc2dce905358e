//! The order of the elements of each row.

mod cpu;
mod cuda;

pub(crate) use cuda::SOURCE;

use crate::base::check;
use crate::{DType, KernelError, Result, Shape, TensorMut, TensorRef};

const OP: &str = "argsort";

/// Row by row, the indices of the elements in ascending order, or in `descending` order.
///
/// - `x`: rows of `len` elements, of any dtype; `index`: as many elements, i64
/// - equal elements keep their order; NaN is larger than all numbers, and equal to NaN
///
/// On a GPU it allocates memory for rows of the next power of two. Asynchronous on the device's compute stream.
///
/// # Errors
/// [`KernelError::DeviceMismatch`], [`KernelError::DTypeUnsupported`]; [`KernelError::ElementCount`] if there are no whole rows, or as
/// many indices.
///
/// Source: `torch.argsort` with `stable=True`.
pub fn argsort(x: TensorRef<'_>, len: usize, descending: bool, index: TensorMut<'_>) -> Result<()> {
    let (x_op, index_op) = (x.operand("a"), index.operand("index"));
    check::same_device(OP, &[x_op, index_op])?;
    check::dtype(OP, index_op, &[DType::I64], "i64")?;
    let n_rows = x.numel().checked_div(len).unwrap_or(0);
    for numel in [x.numel(), index.numel()] {
        if n_rows * len != numel {
            return Err(KernelError::ElementCount { op: OP, got: numel, shape: Shape::matrix(n_rows, len) });
        }
    }
    if n_rows == 0 {
        return Ok(());
    }
    match index.gpu() {
        Some(gpu) => cuda::argsort(gpu, x.cuda()?, len, descending, index),
        None => cpu::argsort(x, len, descending, index.into_slice::<i64>(OP, "index")?),
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::{devices, random};
    use crate::{DType, Tensor, tensor};

    /// By definition: a stable sort, in which NaN is the largest.
    fn reference(row: &[f64], descending: bool) -> Vec<i64> {
        let mut order: Vec<i64> = (0..row.len() as i64).collect();
        order.sort_by(|&a, &b| {
            let (a, b) = (row[a as usize], row[b as usize]);
            let order = a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
            if descending { order.reverse() } else { order }
        });
        order
    }

    #[test]
    fn rows_are_sorted_as_by_a_stable_sort_in_every_dtype() {
        for device in devices() {
            for dtype in DType::ALL {
                for (n_rows, len) in [(1, 1), (3, 2), (5, 33), (2, 1000), (40, 7), (1, 1024)] {
                    // Few different values, so that many are equal.
                    let mut values: Vec<f64> =
                        random::<f64>(n_rows * len, 7).iter().map(|v| (v * 9.0).round()).collect();
                    if dtype.is_float() && len > 30 {
                        (values[3], values[len / 2], values[7]) = (f64::NAN, f64::NAN, f64::NEG_INFINITY);
                    }
                    let x = Tensor::from_slice(&values, &[n_rows, len], device).unwrap();
                    let x = x.to_dtype(dtype).unwrap();
                    let rounded = x.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
                    for descending in [false, true] {
                        let want: Vec<i64> =
                            rounded.chunks(len).flat_map(|row| reference(row, descending)).collect();
                        let order = |x: &Tensor, axis: i32| {
                            if descending {
                                x.sort_descending(axis).unwrap().1
                            } else {
                                x.argsort(axis).unwrap()
                            }
                        };
                        let got = order(&x, 1).to_vec::<i64>().unwrap();
                        let what = format!("[{n_rows}, {len}] {dtype} on {device}, descending: {descending}");
                        assert_eq!(got, want, "{what}");
                        let columns = order(&x.t().unwrap(), 0);
                        assert_eq!(columns.t().unwrap().to_vec::<i64>().unwrap(), want, "columns of {what}");
                    }
                }
            }
        }
    }

    #[test]
    fn values_follow_their_indices() {
        for device in devices() {
            let x = tensor![[3., f32::NAN, 5., 5.], [1., 0., -0.0, -2.]].to(device).unwrap();
            let (values, indices) = x.topk(3).unwrap();
            assert_eq!(indices.to_vec::<i64>().unwrap(), [1, 2, 3, 0, 1, 2], "{device}");
            let values = values.to_vec::<f32>().unwrap();
            assert_eq!(values[1..], [5.0, 5.0, 1.0, 0.0, -0.0]);
            assert!(values[0].is_nan() && values[5].is_sign_negative());
            let (values, indices) = x.sort(0).unwrap();
            assert_eq!(indices.to_vec::<i64>().unwrap(), [1, 1, 1, 1, 0, 0, 0, 0]);
            assert_eq!(values.slice(0).unwrap().to_vec::<f32>().unwrap(), [1.0, 0.0, -0.0, -2.0]);
            let message = x.topk(5).unwrap_err().to_string();
            assert_eq!(message, "topk: the range 0..5 exceeds the length 4");
            let nothing = x.slice((.., ..0)).unwrap();
            assert_eq!(nothing.sort(1).unwrap().0.dims(), [2, 0]);
        }
    }
}
