//! Index of each row's largest output: the predicted class.

use half::{bf16, f16};

use crate::base::check;
use crate::cpu::cell::{Cell, with_cells};
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cuda::launch::{BLOCK, Launch, Source, float_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::reduce::cpu::first_largest;
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
#[doc(hidden)]
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
        return argmax_cuda(gpu, x.cuda()?, n_cols, &mut index.into_cuda()?);
    }
    let index = index.into_slice::<i64>(OP, "index")?;
    if n_cols == 0 {
        index.fill(-1);
        return Ok(());
    }
    argmax_cpu(x, n_cols, index)
}

/// Columns below which a plain loop is faster than vectors.
const SHORT: usize = 64;
/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// Row by row, rows divided between the threads.
///
/// `x`: rows of `n_cols` elements, at least one.
fn argmax_cpu(x: TensorRef<'_>, n_cols: usize, index: &mut [i64]) -> Result<()> {
    let bytes = x.as_bytes(OP, "x")?;
    let (n_rows, index) = (index.len(), SharedMut::new(index));
    with_cells!(x.dtype(), C => {
        let x: &[C] = bytemuck::cast_slice(bytes);
        for_parts(n_rows, MIN_PART.div_ceil(n_cols), 1, |rows| {
            // SAFETY: within `index`, and these rows are this part's alone.
            let index = unsafe { index.slice(rows.clone()) };
            let x = &x[rows.start * n_cols..rows.end * n_cols];
            if n_cols < SHORT {
                for (row, index) in x.chunks_exact(n_cols).zip(index) {
                    *index = argmax_of_short(row).unwrap_or(-1);
                }
            } else {
                first_largest(x, n_cols, |row, place| index[row] = place.unwrap_or(-1));
            }
        });
        Ok(())
    })
}

/// None for a row with NaN: it equals nothing, not even itself.
fn argmax_of_short<C: Cell>(row: &[C]) -> Option<i64> {
    let (mut place, mut largest) = (0, row[0].load());
    for (at, cell) in (0..).zip(row) {
        let number = cell.load();
        number.partial_cmp(&number)?;
        if number > largest {
            (place, largest) = (at, number);
        }
    }
    Some(place)
}

pub(crate) static SOURCE: Source = Source::new("argmax", include_str!("kernel.cu"));

/// Maximum number of blocks.
const MAX_BLOCKS: usize = 4096;
const WARP: usize = 32;

/// A warp per row.
///
/// Writes the place of the first largest of `n_cols` floats of each row; `index` is i64, on this device.
fn argmax_cuda(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    n_cols: usize,
    index: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let kernel = float_kernel!("argmax"; x.dtype());
    let rows = index.len();
    if rows == 0 {
        return Ok(());
    }
    let rows_per_block = BLOCK as usize / WARP;
    let launch = Launch::new(gpu, &SOURCE, kernel)?.blocks(rows.div_ceil(rows_per_block).min(MAX_BLOCKS));
    // SAFETY: argmax(const T* x, i64* index, size_t rows, size_t cols); x holds rows · cols elements, index `rows`.
    unsafe { launch.read(x).write(index).arg(rows).arg(n_cols).run() }
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
            for n_cols in [3, SHORT, 40_000] {
                assert_eq!(run::<f32>(&[], n_cols, device), [] as [i64; 0]);
                assert_eq!(run::<bf16>(&[], n_cols, device), [] as [i64; 0]);
            }
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
