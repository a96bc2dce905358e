//! Index of each row's largest output: the predicted class.

mod cpu;
mod cuda;

pub(crate) use cuda::SOURCE;

use crate::base::check;
use crate::{DType, KernelError, Result, Shape, TensorMut, TensorRef};

const OP: &str = "argmax";

/// `index[n] =` the index of the first largest element of row `n`; -1 for a row with NaN.
///
/// - `x`: `[N, C]` of a float dtype, `C` below 2^32; `index`: `[N]` i64
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`KernelError::DeviceMismatch`], [`KernelError::DTypeUnsupported`], [`KernelError::Shape`].
///
/// Source: `torch.argmax`, except that a row with NaN has no largest element.
pub fn argmax(x: TensorRef<'_>, index: TensorMut<'_>) -> Result<()> {
    let (x_op, index_op) = (x.operand("x"), index.operand("index"));
    check::same_device(OP, &[x_op, index_op])?;
    let (n_rows, n_cols) = check::matrix(OP, x_op)?;
    check::dtype(OP, index_op, &[DType::I64], "i64")?;
    check::shape(OP, index_op, Shape::vector(n_rows))?;
    if n_cols > u32::MAX as usize {
        return Err(KernelError::OutOfRange { op: OP, start: 0, end: n_cols, len: u32::MAX as usize });
    }
    check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
    if let Some(gpu) = x.gpu() {
        return cuda::argmax(gpu, x.cuda()?, n_cols, &mut index.into_cuda()?);
    }
    let index = index.into_slice::<i64>(OP, "index")?;
    if n_cols == 0 {
        index.fill(-1);
        return Ok(());
    }
    cpu::argmax(x, n_cols, index)
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::ops::testing::{devices, random, rounded, tensor};
    use crate::{Device, Element};

    fn run<T: Element>(x: &[T], n_cols: usize, device: Device) -> Vec<i64> {
        let n_rows = x.len() / n_cols;
        let x = tensor(x, &[n_rows, n_cols], device);
        let mut index = tensor(&vec![-7i64; n_rows], &[n_rows], device);
        argmax(x.view(), index.view_mut()).unwrap();
        index.to_vec::<i64>().unwrap()
    }

    #[test]
    fn takes_the_first_of_equal_maxima_and_none_of_a_row_with_nan() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let rows =
            [[1.0, 2.0, 2.0], [5.0, nan, 0.0], [nan; 3], [-inf; 3], [0.0, 0.0, inf], [-3.0, -2.0, -1.0]];
        for device in devices() {
            assert_eq!(run(rows.as_flattened(), 3, device), [1, -1, -1, 0, 2, 2], "{device}");
            assert_eq!(run::<f32>(&[], 3, device), [] as [i64; 0]);
            for place in [0, 99, 16_384, 40_000] {
                let mut row = vec![1.0; 2 * 40_001];
                (row[place], row[40_001 + place]) = (nan, 2.0);
                assert_eq!(run(&row, 40_001, device), [-1, place as i64], "{device}");
            }
        }
    }

    /// Few distinct values, so that ties are common.
    #[test]
    fn every_device_finds_what_the_definition_says() {
        for (n_rows, n_cols) in [
            (1, 1),
            (300, 2),
            (99, 10),
            (77, 32),
            (78, 33),
            (7, 64),
            (9, 1023),
            (5, 4096),
            (3, 40_001),
            (40_000, 3),
        ] {
            let x: Vec<f32> = random::<f32>(n_rows * n_cols, 1).iter().map(|v| (v * 6.0).round()).collect();
            let first_largest = |row: &[f32]| {
                let largest = row.iter().copied().fold(f32::MIN, f32::max);
                row.iter().position(|v| *v == largest).unwrap() as i64
            };
            let want: Vec<i64> = x.chunks_exact(n_cols).map(first_largest).collect();
            for device in devices() {
                let what = format!("{n_rows} x {n_cols} on {device}");
                assert_eq!(run(&x, n_cols, device), want, "f32 {what}");
                assert_eq!(run(&rounded::<f32, f64>(&x), n_cols, device), want, "f64 {what}");
                assert_eq!(run(&rounded::<f32, bf16>(&x), n_cols, device), want, "bf16 {what}");
                assert_eq!(run(&rounded::<f32, f16>(&x), n_cols, device), want, "f16 {what}");
            }
        }
    }

    #[test]
    fn wrong_operands_are_named() {
        let x = tensor(&[0.0f32; 6], &[2, 3], Device::Cpu);
        let mut index = tensor(&[0i64; 3], &[3], Device::Cpu);
        let error = argmax(x.view(), index.view_mut()).unwrap_err();
        assert!(matches!(error, KernelError::Shape { op: "argmax", .. }), "{error}");
        let mut floats = tensor(&[0.0f32; 2], &[2], Device::Cpu);
        let error = argmax(x.view(), floats.view_mut()).unwrap_err();
        assert!(matches!(error, KernelError::DTypeUnsupported { op: "argmax", .. }), "{error}");
    }
}
