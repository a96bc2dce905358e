//! Gathers rows of a matrix by index.

use crate::base::check;
use crate::cpu::cell::Cell;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cuda::launch::{Launch, RowTiles, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Element, KernelError, Result, Shape, TensorMut, TensorRef};

/// The matrix whose rows are gathered.
#[derive(Debug, Clone, Copy)]
struct Table {
    n_rows: usize,
    cols: usize,
}

/// `out[n, :] = x[indices[n], :]`.
///
/// - `x`: `[N, C]` of any dtype; `indices`: `[B]` i64, row numbers; `out`: `[B, C]` of the same dtype, or bf16 or f16 if `x` is f32
///
/// Asynchronous on the device's compute stream, so a GPU cannot report an index outside `0..N`: its row becomes NaN, or 0 for
/// integers.
///
/// # Errors
/// On the CPU [`crate::KernelError::Index`] for an index outside `0..N` (rows before it are written already);
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::DTypeUnsupported`],
/// [`crate::KernelError::Shape`].
///
/// Source: `torch.index_select` along dimension 0.
#[doc(hidden)]
pub fn gather_rows(x: TensorRef<'_>, indices: TensorRef<'_>, out: TensorMut<'_>) -> Result<()> {
    const OP: &str = "gather_rows";
    let (x_op, indices_op, out_op) = (x.operand("x"), indices.operand("indices"), out.operand("out"));
    check::same_device(OP, &[x_op, indices_op, out_op])?;
    check::dtype(OP, indices_op, &[DType::I64], "i64")?;
    let is_narrowed = check::narrows(x.dtype(), out.dtype());
    if !is_narrowed {
        check::same_dtype(OP, &[x_op, out_op])?;
    }
    check::shape(OP, indices_op, Shape::vector(indices.numel()))?;
    let (n_rows, cols) = x.shape().rows_cols();
    let table = Table { n_rows, cols };
    check::shape(OP, out_op, Shape::matrix(indices.numel(), cols))?;
    if let Some(gpu) = x.gpu() {
        return gather_cuda(gpu, x.cuda()?, table, indices.cuda()?, &mut out.into_cuda()?);
    }
    let indices = indices.as_slice::<i64>(OP, "indices")?;
    macro_rules! gather {
        ($t:ty) => {{
            let (x, out) = (x.as_slice::<$t>(OP, "x")?, out.into_slice::<$t>(OP, "out")?);
            gather_cpu(OP, x, table, indices, out, |v| v)
        }};
    }
    match x.dtype() {
        DType::F32 if is_narrowed => {
            let x = x.as_slice::<f32>(OP, "x")?;
            check::short_dispatch!(OP, out_op, S => {
                gather_cpu(OP, x, table, indices, out.into_slice::<S>(OP, "out")?, S::store)
            })
        }
        DType::F32 => gather!(f32),
        DType::F64 => gather!(f64),
        DType::I64 => gather!(i64),
        DType::BF16 => gather!(half::bf16),
        DType::U8 => gather!(u8),
        DType::F16 => gather!(half::f16),
        DType::I32 => gather!(i32),
        // Bool tensors are bytes.
        DType::Bool => {
            let x = x.as_bytes(OP, "x")?;
            gather_cpu(OP, x, table, indices, out.into_bytes(OP, "out")?, |x| x)
        }
    }
}

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// Row by row, split over the threads.
///
/// `out[n, :] = x[indices[n], :]`, each element converted by `convert`.
fn gather_cpu<T: Copy + Sync, U: Element>(
    op: &'static str,
    x: &[T],
    Table { n_rows, cols }: Table,
    indices: &[i64],
    out: &mut [U],
    convert: impl Fn(T) -> U + Sync,
) -> Result<()> {
    if let Some(&wrong) = indices.iter().find(|&&index| index < 0 || index as usize >= n_rows) {
        return Err(KernelError::Index { op, index: wrong, len: n_rows });
    }
    if cols == 0 {
        return Ok(());
    }
    let out = SharedMut::new(out);
    for_parts(indices.len(), MIN_PART.div_ceil(cols), 1, |part| {
        for n in part {
            // SAFETY: row `n` of `out`, which is in this thread's part alone.
            let to = unsafe { out.slice(n * cols..(n + 1) * cols) };
            for (to, &from) in to.iter_mut().zip(&x[indices[n] as usize * cols..][..cols]) {
                *to = convert(from);
            }
        }
    });
    Ok(())
}

pub(crate) static SOURCE: Source = Source::new("gather_rows", include_str!("kernel.cu")).after_others();

/// Moves rows as words of up to 16 bytes.
///
/// `out[n, :] = x[indices[n], :]` on this device: `x` has `n_rows` rows, `out` one per index, both `cols` wide; of one dtype, or
/// `x` f32 and `out` bf16 or f16.
fn gather_cuda(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    Table { n_rows, cols }: Table,
    indices: CudaSlice<'_>,
    out: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let rows = indices.len();
    if rows * cols == 0 {
        return Ok(());
    }
    let (kernel, items) = if x.dtype() == out.dtype() {
        words(cols * x.dtype().size_bytes(), x.ptr() | out.ptr())
    } else {
        narrowing(out.dtype(), cols, x.ptr() | out.ptr())
    };
    // All bits set: NaN in every float type.
    let missing = if x.dtype().is_float() { u32::MAX } else { 0 };
    let tiles = RowTiles::new(gpu, rows, items);
    let launch = tiles.grid(Launch::new(gpu, &SOURCE, kernel)?).read(x).read(indices).write(out);
    let launch = launch.arg(n_rows).arg(rows).arg(items).arg(missing).arg(tiles.log2_width());
    // SAFETY: gather(const W* x, const i64* indices, W* out, size_t n_rows, size_t rows, size_t items, u32 missing,
    // u32 log2_width); items of W's size fill a row, of which x holds n_rows and out `rows`, and their addresses are multiples of
    // that size.
    unsafe { launch.run() }
}

/// The kernel for rows of this many bytes in the widest words that the addresses allow, and the number of words per row.
fn words(row_bytes: usize, addresses: u64) -> (&'static str, usize) {
    let aligned = row_bytes as u64 | addresses;
    let (kernel, size) = match aligned.trailing_zeros() {
        4.. => ("gather_rows_16", 16),
        3 => ("gather_rows_8", 8),
        2 => ("gather_rows_4", 4),
        1 => ("gather_rows_2", 2),
        _ => ("gather_rows_1", 1),
    };
    (kernel, row_bytes / size)
}

/// The same for f32 converted to `short`: four elements at a time if rows and addresses allow it.
fn narrowing(short: DType, cols: usize, addresses: u64) -> (&'static str, usize) {
    match (short, cols.is_multiple_of(4) && addresses.is_multiple_of(16)) {
        (DType::F16, true) => ("gather_rows_f32_f16_by_4", cols / 4),
        (DType::F16, false) => ("gather_rows_f32_f16", cols),
        (_, true) => ("gather_rows_f32_bf16_by_4", cols / 4),
        (_, false) => ("gather_rows_f32_bf16", cols),
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::ops::testing::{devices, random, tensor};
    use crate::{Device, Element, KernelError, Tensor};

    /// Gathers from rows of `cols` elements, starting at element `start` of a buffer, to the same position of another one.
    fn run<T: Element, U: Element>(
        values: &[T],
        cols: usize,
        start: usize,
        indices: &[i64],
        device: Device,
    ) -> Vec<U> {
        let n_rows = (values.len() - start) / cols;
        let x = tensor(values, &[values.len()], device);
        let len = indices.len() * cols;
        let mut out = Tensor::zeros(&[start + len], U::DTYPE, device).unwrap();
        let indices = tensor(indices, &[indices.len()], device);
        let from = x.view().range(start, start + n_rows * cols).unwrap().reshape(&[n_rows, cols]).unwrap();
        let to = out.view_mut().range(start, start + len).unwrap().reshape(&[indices.numel(), cols]).unwrap();
        gather_rows(from, indices.view(), to).unwrap();
        out.to_vec::<U>().unwrap().split_off(start)
    }

    const INDICES: [i64; 7] = [5, 0, 5, 12, 1, 11, 3];

    fn rows<T: Element>(values: &[T], cols: usize, start: usize) -> Vec<T> {
        INDICES.iter().flat_map(|&i| values[start + i as usize * cols..][..cols].to_vec()).collect()
    }

    /// Rows and addresses for words of each size, and rows that are wider than a block.
    #[test]
    fn rows_of_all_widths_and_alignments_are_picked() {
        fn check<T: Element>(device: Device) {
            for cols in [1, 2, 3, 4, 8, 10, 16, 196, 2500] {
                for start in [0, 1, 2, 4, 8] {
                    let values: Vec<T> =
                        (0..start + 13 * cols).map(|i| T::from_f64((i % 251) as f64)).collect();
                    let got = run::<T, T>(&values, cols, start, &INDICES, device);
                    assert!(got == rows(&values, cols, start), "{:?} {cols} {start} {device}", T::DTYPE);
                }
            }
        }
        for device in devices() {
            check::<f32>(device);
            check::<f64>(device);
            check::<bf16>(device);
            check::<i64>(device);
            check::<u8>(device);
            check::<f16>(device);
        }
    }

    #[test]
    fn f32_rows_can_become_short_on_the_way() {
        for device in devices() {
            for (cols, start) in [(1, 0), (10, 0), (12, 0), (12, 1), (784, 8), (2500, 0)] {
                let values = random::<f32>(start + 13 * cols, 1);
                let want: Vec<bf16> = rows(&values, cols, start).iter().map(|&v| bf16::from_f32(v)).collect();
                assert!(
                    run::<f32, bf16>(&values, cols, start, &INDICES, device) == want,
                    "bf16 {cols} {start} {device}"
                );
                let want: Vec<f16> = rows(&values, cols, start).iter().map(|&v| f16::from_f32(v)).collect();
                assert!(
                    run::<f32, f16>(&values, cols, start, &INDICES, device) == want,
                    "f16 {cols} {start} {device}"
                );
            }
        }
    }

    #[test]
    fn an_index_that_is_not_there_is_refused_or_leaves_nan() {
        for device in devices() {
            for wrong in [4, -1, i64::MIN, i64::MAX] {
                if device == Device::Cpu {
                    let (x, indices) =
                        (tensor(&[0.0f32; 12], &[4, 3], device), tensor(&[0, wrong], &[2], device));
                    let mut out = Tensor::zeros(&[2, 3], DType::F32, device).unwrap();
                    let error = gather_rows(x.view(), indices.view(), out.view_mut()).unwrap_err();
                    assert!(
                        matches!(error, KernelError::Index { index, len: 4, .. } if index == wrong),
                        "{error}"
                    );
                    continue;
                }
                // A fifth row follows the four, so that reading it is no fault but is detected.
                let values = random::<f32>(15, 1);
                let x = tensor(&values, &[5, 3], device);
                let indices = tensor(&[0, wrong, 3], &[3], device);
                let mut out = Tensor::zeros(&[3, 3], DType::F32, device).unwrap();
                gather_rows(x.view().rows(0, 4).unwrap(), indices.view(), out.view_mut()).unwrap();
                let got = out.to_vec::<f32>().unwrap();
                assert!(
                    got[..3] == values[..3]
                        && got[3..6].iter().all(|v| v.is_nan())
                        && got[6..] == values[9..12]
                );
                let mut out = Tensor::zeros(&[3, 3], DType::BF16, device).unwrap();
                gather_rows(x.view().rows(0, 4).unwrap(), indices.view(), out.view_mut()).unwrap();
                let got = out.to_vec::<bf16>().unwrap();
                assert!(got[3..6].iter().all(|v| v.is_nan()) && !got[6].is_nan());
                let wide = random::<f64>(8, 1);
                assert!(run::<f64, f64>(&wide, 2, 0, &[wrong], device).iter().all(|v| v.is_nan()));
                assert_eq!(run::<i64, i64>(&[1, 2, 3], 1, 0, &[2, wrong], device), [3, 0]);
                assert_eq!(run::<u8, u8>(&[1, 2, 3], 1, 0, &[2, wrong], device), [3, 0]);
                let halves = run::<f16, f16>(&[f16::ONE; 3], 1, 0, &[wrong, 1], device);
                assert!(halves[0].is_nan() && halves[1] == f16::ONE);
            }
        }
    }

    #[test]
    fn other_dtypes_and_shapes_are_refused() {
        for device in devices() {
            let (x, mut out) =
                (tensor(&[0.0f32; 12], &[4, 3], device), tensor(&[0.0f32; 6], &[2, 3], device));
            let floats = tensor(&[0.0f32; 2], &[2], device);
            assert!(gather_rows(x.view(), floats.view(), out.view_mut()).is_err());
            let three = tensor(&[0i64; 3], &[3], device);
            assert!(gather_rows(x.view(), three.view(), out.view_mut()).is_err());
            let (two, mut wide) = (tensor(&[0i64; 2], &[2], device), tensor(&[0.0f64; 6], &[2, 3], device));
            assert!(gather_rows(x.view(), two.view(), wide.view_mut()).is_err());
        }
    }
}
