//! Gathers stored rows, casts them and normalizes them in one pass.

mod cpu;

use crate::base::check;
use crate::cuda::launch::{Launch, RowTiles, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{DType, Result, Shape, TensorMut, TensorRef};

/// Normalization of each column: `(x - shift) · scale`.
#[derive(Debug, Clone, Copy)]
#[doc(hidden)]
pub struct RowNormalizer<'a> {
    /// `[C]` f64, usually the means of the columns.
    pub shift: TensorRef<'a>,
    /// `[C]` f64, usually 1 over the standard deviations of the columns.
    pub scale: TensorRef<'a>,
}

/// `out[n, c] = (x[indices[n], c] - shift[c]) · scale[c]`, computed in f64 and rounded to f32; for an `out` of bf16 or f16, that value
/// is rounded again, as [`super::cast()`] does.
///
/// - `x`: `[N, C]` of u8, f16, bf16 or f32; `indices`: `[B]` i64, row numbers, default all rows in order (`B = N`); `out`: `[B, C]`
///   of f32, bf16 or f16
/// - without `normalizer`: the exact value
/// - the same bits on every device (NaN stays NaN); the difference of two large f32 does not overflow
///
/// Asynchronous on the device's compute stream, so a GPU cannot report an index outside `0..N`: its row becomes NaN.
///
/// # Errors
/// On the CPU [`crate::KernelError::OutOfRange`] for an index outside `0..N`, before anything is written (a negative one appears
/// as the unsigned number of the same bits); [`crate::KernelError::DeviceMismatch`],
/// [`crate::KernelError::DTypeUnsupported`], [`crate::KernelError::Shape`].
///
/// Source: `torch.index_select` along dimension 0, then `torchvision.transforms.Normalize` by column.
#[doc(hidden)]
pub fn load_rows(
    x: TensorRef<'_>,
    indices: Option<TensorRef<'_>>,
    normalizer: Option<RowNormalizer<'_>>,
    out: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "load_rows";
    let (x_op, out_op) = (x.operand("x"), out.operand("out"));
    check::same_device(OP, &[x_op, out_op])?;
    check::dtype(OP, x_op, &[DType::U8, DType::F16, DType::BF16, DType::F32], "u8, f16, bf16 and f32")?;
    check::dtype(OP, out_op, &[DType::F32, DType::BF16, DType::F16], "f32, bf16 and f16")?;
    let (n_rows, cols) = check::matrix(OP, x_op)?;
    let rows = indices.map_or(n_rows, |indices| indices.numel());
    if let Some(indices) = indices {
        let indices_op = indices.operand("indices");
        check::same_device(OP, &[x_op, indices_op])?;
        check::dtype(OP, indices_op, &[DType::I64], "i64")?;
        check::shape(OP, indices_op, Shape::vector(rows))?;
    }
    if let Some(RowNormalizer { shift, scale }) = normalizer {
        for operand in [shift.operand("shift"), scale.operand("scale")] {
            check::same_device(OP, &[x_op, operand])?;
            check::dtype(OP, operand, &[DType::F64], "f64")?;
            check::shape(OP, operand, Shape::vector(cols))?;
        }
    }
    check::shape(OP, out_op, Shape::matrix(rows, cols))?;
    if let Some(gpu) = x.gpu() {
        let indices = indices.map(TensorRef::cuda).transpose()?;
        let normalizer = match normalizer {
            Some(RowNormalizer { shift, scale }) => Some((shift.cuda()?, scale.cuda()?)),
            None => None,
        };
        return load_cuda(gpu, x.cuda()?, [n_rows, cols], indices, normalizer, &mut out.into_cuda()?);
    }
    let indices = indices.map(|indices| indices.as_slice::<i64>(OP, "indices")).transpose()?;
    let normalizer = match normalizer {
        Some(RowNormalizer { shift, scale }) => {
            Some((shift.as_slice::<f64>(OP, "shift")?, scale.as_slice::<f64>(OP, "scale")?))
        }
        None => None,
    };
    macro_rules! load {
        ($t:ty) => {
            match out_op.dtype {
                DType::BF16 => load!($t, half::bf16),
                DType::F16 => load!($t, half::f16),
                _ => load!($t, f32),
            }
        };
        ($t:ty, $o:ty) => {{
            let out = out.into_slice::<$o>(OP, "out")?;
            cpu::load::<$t, $o>(OP, x.as_slice(OP, "x")?, [n_rows, cols], indices, normalizer, out)
        }};
    }
    match x.dtype() {
        DType::U8 => load!(u8),
        DType::F16 => load!(half::f16),
        DType::BF16 => load!(half::bf16),
        _ => load!(f32),
    }
}

pub(crate) static SOURCE: Source = Source::new("load_rows", include_str!("kernel.cu")).after_others();

/// Four elements at a time if rows and addresses allow it: 16 bytes of a result in f32.
///
/// `out[n, :] = (x[indices[n], :] - shift) · scale` on this device: `x` has `n_rows` rows of `cols`, `indices` one element per
/// row of `out`, shift and scale of `normalizer` `cols` elements each.
fn load_cuda(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    [n_rows, cols]: [usize; 2],
    indices: Option<CudaSlice<'_>>,
    normalizer: Option<(CudaSlice<'_>, CudaSlice<'_>)>,
    out: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let rows = out.len().checked_div(cols).unwrap_or(0);
    if rows == 0 {
        return Ok(());
    }
    let (shift, scale) = normalizer.unzip();
    let doubles = [shift, scale].into_iter().flatten().fold(0, |all, s| all | s.ptr());
    let [x_word, out_word] = [x.dtype(), out.dtype()].map(|dtype| 4 * dtype.size_bytes() as u64);
    let by_4 = cols.is_multiple_of(4)
        && out.as_ref().ptr().is_multiple_of(out_word)
        && doubles.is_multiple_of(32)
        && x.ptr().is_multiple_of(x_word);
    macro_rules! by {
        ($formats:literal) => {
            if by_4 { concat!("load_rows_", $formats, "_by_4") } else { concat!("load_rows_", $formats) }
        };
    }
    let kernel = match (x.dtype(), out.dtype()) {
        (DType::U8, DType::BF16) => by!("u8_bf16"),
        (DType::U8, DType::F16) => by!("u8_f16"),
        (DType::U8, _) => by!("u8_f32"),
        (DType::F16, DType::BF16) => by!("f16_bf16"),
        (DType::F16, DType::F16) => by!("f16_f16"),
        (DType::F16, _) => by!("f16_f32"),
        (DType::BF16, DType::BF16) => by!("bf16_bf16"),
        (DType::BF16, DType::F16) => by!("bf16_f16"),
        (DType::BF16, _) => by!("bf16_f32"),
        (_, DType::BF16) => by!("f32_bf16"),
        (_, DType::F16) => by!("f32_f16"),
        (_, _) => by!("f32_f32"),
    };
    let items = if by_4 { cols / 4 } else { cols };
    let tiles = RowTiles::new(gpu, rows, items);
    let launch = tiles.grid(Launch::new(gpu, &SOURCE, kernel)?).read(x).read_opt(indices);
    let launch = launch.read_opt(shift).read_opt(scale).write(out);
    let launch = launch.arg(n_rows).arg(rows).arg(items).arg(tiles.log2_width());
    // SAFETY: load_rows(const T* x, const i64* indices, const double* shift, const double* scale, O* out, size_t n_rows,
    // size_t rows, size_t items, u32 log2_width); items of 1 or 4 elements fill a row, of which x holds n_rows and out `rows`,
    // indices one number each, shift and scale one row; for 4 all addresses are multiples of 4 elements. Without indices
    // n_rows is `rows`, as the caller checked.
    unsafe { launch.run() }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::ops::testing::{devices, random, tensor};
    use crate::{Device, Element, KernelError, Tensor};

    /// Loads rows of `cols` elements, starting at element `start` of a buffer, to the same position of another one; `indices` and
    /// normalization start there too.
    fn run<T: Element>(
        values: &[T],
        cols: usize,
        start: usize,
        indices: Option<&[i64]>,
        normalizer: Option<(&[f64], &[f64])>,
        device: Device,
    ) -> Vec<f32> {
        let n_rows = (values.len() - start) / cols;
        let x = tensor(values, &[values.len()], device);
        let rows = indices.map_or(n_rows, <[i64]>::len);
        let mut out = Tensor::zeros(&[start + rows * cols], DType::F32, device).unwrap();
        let indices = indices.map(|indices| tensor(indices, &[rows], device));
        let placed = |v: &[f64]| tensor(&[&vec![0.0; start], v].concat(), &[start + cols], device);
        let normalizer = normalizer.map(|(shift, scale)| (placed(shift), placed(scale)));
        load_rows(
            x.view().range(start, start + n_rows * cols).unwrap().reshape(&[n_rows, cols]).unwrap(),
            indices.as_ref().map(Tensor::view),
            normalizer.as_ref().map(|(shift, scale)| RowNormalizer {
                shift: shift.view().range(start, start + cols).unwrap(),
                scale: scale.view().range(start, start + cols).unwrap(),
            }),
            out.view_mut().range(start, start + rows * cols).unwrap().reshape(&[rows, cols]).unwrap(),
        )
        .unwrap();
        out.to_vec::<f32>().unwrap().split_off(start)
    }

    /// The same by the formula.
    fn want<T: Element>(
        values: &[T],
        cols: usize,
        start: usize,
        indices: Option<&[i64]>,
        normalizer: Option<(&[f64], &[f64])>,
    ) -> Vec<f32> {
        let all: Vec<i64> = (0..((values.len() - start) / cols) as i64).collect();
        let mut out = Vec::new();
        for &row in indices.unwrap_or(&all) {
            for c in 0..cols {
                let x = values[start + row as usize * cols + c].to_f64();
                out.push(normalizer.map_or(x as f32, |(shift, scale)| ((x - shift[c]) * scale[c]) as f32));
            }
        }
        out
    }

    #[track_caller]
    fn assert_same_bits(got: &[f32], want: &[f32], what: &str) {
        assert_eq!(got.len(), want.len(), "{what}");
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            let is_same = g.to_bits() == w.to_bits() || (g.is_nan() && w.is_nan());
            assert!(is_same, "{what}: element {i} is {g:e}, expected {w:e}");
        }
    }

    /// Widths and addresses for words of each size, rows wider than a block, and every combination of optional operands.
    fn check<T: Element>(device: Device, value: impl Fn(usize) -> T) {
        const INDICES: [i64; 7] = [5, 0, 5, 12, 1, 11, 3];
        for cols in [1, 3, 4, 12, 196, 1030, 5000] {
            let shift: Vec<f64> = random::<f64>(cols, 2).iter().map(|v| v * 100.0).collect();
            let scale = random::<f64>(cols, 3);
            for start in [0, 1, 4, 8] {
                let values: Vec<T> = (0..start + 13 * cols).map(&value).collect();
                for indices in [None, Some(&INDICES[..])] {
                    for normalizer in [None, Some((&shift[..], &scale[..]))] {
                        let got = run(&values, cols, start, indices, normalizer, device);
                        let want = want(&values, cols, start, indices, normalizer);
                        let what = format!(
                            "{} {cols} columns from {start}, {} {} on {device}",
                            T::DTYPE,
                            indices.is_some(),
                            normalizer.is_some()
                        );
                        assert_same_bits(&got, &want, &what);
                    }
                }
            }
        }
    }

    #[test]
    fn rows_of_all_formats_widths_and_alignments_are_loaded() {
        for device in devices() {
            let numbers = random::<f32>(1 << 17, 1);
            check::<u8>(device, |i| (i * 37 % 256) as u8);
            check::<f16>(device, |i| f16::from_f32(numbers[i] * 300.0));
            check::<bf16>(device, |i| bf16::from_f32(numbers[i] * 1e6));
            check::<f32>(device, |i| numbers[i] * 1e3);
        }
    }

    /// Each of the 65,536 patterns: normal, subnormal, zeros of both signs, infinity, NaN.
    #[test]
    fn every_short_float_and_byte_becomes_its_value() {
        let halves: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let shorts: Vec<bf16> = (0..=u16::MAX).map(bf16::from_bits).collect();
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        for device in devices() {
            for (cols, start) in [(256, 0), (1, 0), (255, 256)] {
                let want: Vec<f32> = halves[start..].iter().map(|v| v.to_f32()).collect();
                let got = run(&halves, cols, start, None, None, device);
                assert_same_bits(&got, &want, &format!("f16 on {device}"));
                let want: Vec<f32> = shorts[start..].iter().map(|v| v.to_f32()).collect();
                let got = run(&shorts, cols, start, None, None, device);
                assert_same_bits(&got, &want, &format!("bf16 on {device}"));
            }
            let want: Vec<f32> = bytes.iter().map(|&v| f32::from(v)).collect();
            assert_same_bits(&run(&bytes, 16, 0, None, None, device), &want, "u8");
        }
    }

    /// Values for which f32 would round twice, lose the difference, overflow or flush to zero.
    #[test]
    fn arithmetic_is_in_f64_and_rounds_once() {
        let x = [f32::MAX, -f32::MAX, 16_777_217.0, 1e-38, 0.1, 1.0, f32::INFINITY, f32::NAN];
        let max = f64::from(f32::MAX);
        let shift = [-max, max, -1.0, 0.9e-38, 0.3, 1.0 - f64::EPSILON, 0.0, 0.0];
        let scale = [0.5, 0.25, 1.0, 1e-3, 3.0, 1e30, -1.0, 1.0];
        for device in devices() {
            let got = run(&x, 8, 0, None, Some((&shift, &scale)), device);
            assert_same_bits(&got, &want(&x, 8, 0, None, Some((&shift, &scale))), &format!("{device}"));
            assert_eq!((got[0], got[1]), (f32::MAX, -f32::MAX / 2.0), "no overflow on the way");
            assert!(got[3] > 0.0 && !got[3].is_normal(), "subnormal numbers are kept: {:e}", got[3]);
            assert!(got[6] == f32::NEG_INFINITY && got[7].is_nan());
        }
    }

    #[test]
    fn an_index_that_is_not_there_is_refused_or_leaves_nan() {
        for device in devices() {
            for wrong in [4, -1, i64::MIN, i64::MAX] {
                // A fifth row follows the four, so that reading it is no fault but is detected.
                let x = tensor(&(0..15).collect::<Vec<u8>>(), &[5, 3], device);
                let indices = tensor(&[0, wrong, 3], &[3], device);
                let mut out = Tensor::zeros(&[3, 3], DType::F32, device).unwrap();
                let four = x.view().rows(0, 4).unwrap();
                let result = load_rows(four, Some(indices.view()), None, out.view_mut());
                let got = out.to_vec::<f32>().unwrap();
                if device == Device::Cpu {
                    let error = result.unwrap_err();
                    assert!(
                        matches!(error, KernelError::OutOfRange { start, len: 4, .. } if start == wrong as usize),
                        "{error}"
                    );
                    assert_eq!(got, [0.0; 9]);
                    continue;
                }
                result.unwrap();
                assert!(got[..3] == [0.0, 1.0, 2.0] && got[6..] == [9.0, 10.0, 11.0], "{got:?}");
                assert!(got[3..6].iter().all(|v| v.is_nan()), "{got:?}");
            }
        }
    }

    #[test]
    fn a_large_batch_is_loaded_by_all_threads_and_blocks() {
        let (n_rows, cols) = (3000, 100);
        let values: Vec<u8> = (0..n_rows * cols).map(|i| (i * 31 % 251) as u8).collect();
        let indices: Vec<i64> = (0..20_000).map(|i| i * 7919 % n_rows as i64).collect();
        let (shift, scale) = (random::<f64>(cols, 1), random::<f64>(cols, 2));
        let normalizer = Some((&shift[..], &scale[..]));
        let want = want(&values, cols, 0, Some(&indices), normalizer);
        for device in devices() {
            let got = run(&values, cols, 0, Some(&indices), normalizer, device);
            assert_same_bits(&got, &want, &format!("{device}"));
        }
        let in_pool = std::thread::spawn(move || {
            crate::cpu::threads::join_pool(3).unwrap();
            run(&values, cols, 0, Some(&indices), Some((&shift, &scale)), Device::Cpu)
        });
        assert_same_bits(&in_pool.join().unwrap(), &want, "three threads");
    }

    #[test]
    fn nothing_to_load_is_no_error() {
        for device in devices() {
            for (n_rows, cols) in [(0, 3), (2, 0)] {
                let x = Tensor::zeros(&[n_rows, cols], DType::U8, device).unwrap();
                let mut out = Tensor::zeros(&[n_rows, cols], DType::F32, device).unwrap();
                load_rows(x.view(), None, None, out.view_mut()).unwrap();
                let (none, mut out) = (tensor::<i64>(&[], &[0], device), out.new_zeros(&[0, cols]).unwrap());
                load_rows(x.view(), Some(none.view()), None, out.view_mut()).unwrap();
            }
        }
    }

    fn check_rounded<T: Element, O: Element>() {
        let indices: Vec<i64> = vec![3, 0, 2, 2, 1];
        for cols in [1, 4, 7, 64] {
            let values: Vec<T> =
                random::<f64>(4 * cols, 1).iter().map(|v| T::from_f64(90.0 + 80.0 * v)).collect();
            let (shift, scale) = (vec![40.3; cols], vec![0.37; cols]);
            for normalizer in [None, Some((&shift[..], &scale[..]))] {
                for device in devices() {
                    let normalizer = normalizer.map(|(shift, scale)| {
                        (tensor(shift, &[cols], device), tensor(scale, &[cols], device))
                    });
                    let normalizer = normalizer
                        .as_ref()
                        .map(|(shift, scale)| RowNormalizer { shift: shift.view(), scale: scale.view() });
                    let (x, indices) = (tensor(&values, &[4, cols], device), tensor(&indices, &[5], device));
                    let mut single = Tensor::zeros(&[5, cols], DType::F32, device).unwrap();
                    let mut rounded = Tensor::zeros(&[5, cols], O::DTYPE, device).unwrap();
                    let mut want = Tensor::zeros(&[5, cols], O::DTYPE, device).unwrap();
                    load_rows(x.view(), Some(indices.view()), normalizer, single.view_mut()).unwrap();
                    load_rows(x.view(), Some(indices.view()), normalizer, rounded.view_mut()).unwrap();
                    crate::ops::cast(single.view(), want.view_mut()).unwrap();
                    let bits = |t: &Tensor| {
                        t.to_vec::<O>().unwrap().into_iter().map(|v| v.to_f64().to_bits()).collect::<Vec<_>>()
                    };
                    assert_eq!(
                        bits(&rounded),
                        bits(&want),
                        "{} to {} on {device}, {cols}",
                        T::DTYPE,
                        O::DTYPE
                    );
                }
            }
        }
    }

    #[test]
    fn short_results_are_those_of_a_cast() {
        check_rounded::<u8, bf16>();
        check_rounded::<f32, bf16>();
        check_rounded::<bf16, bf16>();
        check_rounded::<f16, bf16>();
        check_rounded::<u8, f16>();
        check_rounded::<f32, f16>();
    }

    #[test]
    fn other_dtypes_and_shapes_are_refused() {
        for device in devices() {
            let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, device).unwrap();
            let x = zeros(&[4, 3], DType::U8);
            let (mut two, mut four) = (zeros(&[2, 3], DType::F32), zeros(&[4, 3], DType::F32));
            let (columns, wide) = (zeros(&[3], DType::F64), zeros(&[4], DType::F64));
            let fine = RowNormalizer { shift: columns.view(), scale: columns.view() };
            load_rows(x.view(), None, Some(fine), four.view_mut()).unwrap();
            let is_refused = |x: &Tensor,
                              indices: Option<&Tensor>,
                              normalizer: Option<RowNormalizer<'_>>,
                              out: &mut Tensor| {
                load_rows(x.view(), indices.map(Tensor::view), normalizer, out.view_mut()).is_err()
            };
            assert!(is_refused(&x, None, None, &mut two), "as many rows as x has");
            assert!(is_refused(&x, Some(&zeros(&[3], DType::I64)), None, &mut two));
            assert!(is_refused(&x, Some(&zeros(&[2], DType::F32)), None, &mut two));
            assert!(is_refused(&x, Some(&zeros(&[1, 2], DType::I64)), None, &mut two));
            for dtype in [DType::F64, DType::I64] {
                assert!(is_refused(&zeros(&[4, 3], dtype), None, None, &mut four));
                assert!(is_refused(&x, None, None, &mut zeros(&[4, 3], dtype)));
            }
            for dtype in [DType::F32, DType::I64] {
                let wrong = zeros(&[3], dtype);
                assert!(is_refused(&x, None, Some(RowNormalizer { shift: wrong.view(), ..fine }), &mut four));
            }
            assert!(is_refused(&x, None, Some(RowNormalizer { scale: wide.view(), ..fine }), &mut four));
            assert!(is_refused(&zeros(&[12], DType::U8), None, None, &mut four));
            if device != Device::Cpu {
                let elsewhere = Tensor::zeros(&[3], DType::F64, Device::Cpu).unwrap();
                let normalizer = RowNormalizer { shift: elsewhere.view(), ..fine };
                assert!(is_refused(&x, None, Some(normalizer), &mut four));
            }
        }
    }
}
