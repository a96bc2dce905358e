//! Concatenation of tensors.

use super::copy;

use crate::base::check;
use crate::cpu::copy::gather;
use crate::{KernelError, Result, TensorMut, TensorRef};

const OP: &str = "cat";

/// Writes the elements of `parts`, each in row-major order, to `to`, concatenated.
///
/// - one dtype, any devices; `to` has any shape with as many elements
/// - within host memory: one copy by all threads, with streaming stores if it is long; else as [`copy()`], part by part
///
/// # Errors
/// [`KernelError::DTypeMismatch`]; [`KernelError::ElementCount`] if `to` has a different number of elements;
/// [`KernelError::Cuda`].
///
/// Source: `torch.cat` of flattened tensors, with `out`.
pub fn cat(parts: &[TensorRef<'_>], to: TensorMut<'_>) -> Result<()> {
    for part in parts {
        check::same_dtype(OP, &[to.operand("to"), part.operand("part")])?;
    }
    let n_elements = parts.iter().map(TensorRef::numel).sum();
    if n_elements != to.numel() {
        return Err(KernelError::ElementCount { op: OP, got: n_elements, shape: to.shape() });
    }
    if to.gpu().is_none() && parts.iter().all(|part| part.gpu().is_none()) {
        let parts: Vec<&[u8]> = parts.iter().map(|part| part.as_bytes(OP, "part")).collect::<Result<_>>()?;
        gather(to.into_bytes(OP, "to")?, &parts);
        return Ok(());
    }
    let (mut to, mut start) = (to.reshape(&[n_elements])?, 0);
    for part in parts {
        let end = start + part.numel();
        copy(part.reshape(&[part.numel()])?, to.reborrow().range(start, end)?)?;
        start = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::{devices, tensor};
    use crate::{DType, KernelError, Tensor, TensorRef};

    #[test]
    fn parts_of_any_device_follow_each_other() {
        let values: Vec<f32> = (0..60).map(|i| i as f32).collect();
        for from in devices() {
            for to in devices() {
                let source = tensor(&values, &[6, 10], from);
                let rows = |start, end| source.view().rows(start, end).unwrap();
                let host = TensorRef::from_slice(&[0.5f32, 0.25], &[2]).unwrap();
                let mut target = Tensor::ones(&[4, 8], DType::F32, to).unwrap();
                super::cat(&[rows(4, 5), rows(1, 1), host, rows(1, 3)], target.view_mut()).unwrap();
                let want: Vec<f32> = [&values[40..50], &[0.5, 0.25], &values[10..30]].concat();
                assert_eq!(target.to_vec::<f32>().unwrap(), want, "{from} to {to}");
                super::cat(&[], Tensor::zeros(&[0], DType::F32, to).unwrap().view_mut()).unwrap();
            }
        }
    }

    #[test]
    fn another_number_or_type_of_elements_is_refused() {
        for device in devices() {
            let part = Tensor::zeros(&[2], DType::F32, device).unwrap();
            let refused = |n: usize, dtype: DType| {
                let mut to = Tensor::zeros(&[n], dtype, device).unwrap();
                super::cat(&[part.view(), part.view()], to.view_mut()).unwrap_err()
            };
            assert!(matches!(refused(3, DType::F32), KernelError::ElementCount { got: 4, .. }));
            assert!(matches!(refused(5, DType::F32), KernelError::ElementCount { got: 4, .. }));
            assert!(matches!(refused(4, DType::F64), KernelError::DTypeMismatch { .. }));
        }
    }
}
