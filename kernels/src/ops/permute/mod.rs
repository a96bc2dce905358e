//! Permutation of dimensions, and other reads at regular distances.

use crate::base::check;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cuda::launch::{Launch, Source};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{Element, KernelError, Result, Shape, TensorMut, TensorRef};

const OP: &str = "permute";
/// Most dimensions of a permutation.
const MAX_DIMS: usize = 5;

/// Copies `x` with its dimensions in another order: dimension `k` of `out` is dimension `axes[k]` of `x`.
///
/// - `x`: read as of the shape `dims`, at most 5 dimensions, whatever its own shape
/// - `axes`: each of `0..dims.len()` once
/// - `out`: as many elements of the same dtype, in any shape
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`]; [`KernelError::ElementCount`] if `dims` or `out` have another
/// number of elements than `x`.
///
/// # Panics
/// If there are more than 5 dimensions, or `axes` is not a permutation of them.
///
/// Source: `torch.permute`.
pub fn permute(x: TensorRef<'_>, dims: &[usize], axes: &[usize], out: TensorMut<'_>) -> Result<()> {
    assert!(dims.len() <= MAX_DIMS && axes.len() == dims.len(), "{axes:?} of {dims:?}");
    assert!((0..dims.len()).all(|axis| axes.contains(&axis)), "{axes:?} is not a permutation");
    check::same_kind(OP, &[x.operand("x"), out.operand("out")])?;
    let numel: usize = dims.iter().product();
    for operand in [x.operand("x"), out.operand("out")] {
        if operand.shape.numel() != numel {
            let (got, shape) = (operand.shape.numel(), Shape::vector(numel));
            return Err(KernelError::ElementCount { op: OP, got, shape });
        }
    }
    let walk = Walk::new(dims, axes);
    match out.gpu() {
        Some(gpu) => permute_cuda(gpu, x.cuda()?, &mut out.into_cuda()?, walk),
        None => permute_cpu(x, out, walk),
    }
}

/// Copies elements of `x` at regular distances: the element of `out` with indices `i` is element `Σ i[k] * strides[k]` of `x`. A stride
/// of 0 repeats.
///
/// - `x`: any shape; `dims`, `strides`: at most 5 dimensions; `out`: as many elements as `dims` says, of the dtype of `x`
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`KernelError::DeviceMismatch`], [`KernelError::DTypeMismatch`]; [`KernelError::ElementCount`]; [`KernelError::OutOfRange`] if an
/// element would lie beyond `x`.
pub(crate) fn read_strided(
    op: &'static str,
    x: TensorRef<'_>,
    dims: &[usize],
    strides: &[usize],
    out: TensorMut<'_>,
) -> Result<()> {
    check::same_kind(op, &[x.operand("a"), out.operand("out")])?;
    let numel = dims.iter().product();
    if out.numel() != numel {
        return Err(KernelError::ElementCount { op, got: numel, shape: out.shape() });
    }
    if numel == 0 {
        return Ok(());
    }
    let end = 1 + dims.iter().zip(strides).map(|(n, stride)| (n - 1) * stride).sum::<usize>();
    if end > x.numel() {
        return Err(KernelError::OutOfRange { op, start: 0, end, len: x.numel() });
    }
    let walk = Walk::from_strides(dims, strides);
    match out.gpu() {
        Some(gpu) => permute_cuda(gpu, x.cuda()?, &mut out.into_cuda()?, walk),
        None => permute_cpu(x, out, walk),
    }
}

/// Extents of `out`, and the distance in `x` of neighbors along each, both from the outermost dimension on; extents of 1 come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Walk {
    dims: [usize; MAX_DIMS],
    strides: [usize; MAX_DIMS],
}

impl Walk {
    fn new(dims: &[usize], axes: &[usize]) -> Self {
        let stride_of = |axis: usize| dims[axis + 1..].iter().product::<usize>();
        let mut walk = Self::from_strides(&[], &[]);
        for (place, &axis) in (MAX_DIMS - axes.len()..).zip(axes) {
            (walk.dims[place], walk.strides[place]) = (dims[axis], stride_of(axis));
        }
        walk
    }

    fn from_strides(dims: &[usize], strides: &[usize]) -> Self {
        let mut walk = Walk { dims: [1; MAX_DIMS], strides: [0; MAX_DIMS] };
        let first = MAX_DIMS - dims.len();
        walk.dims[first..].copy_from_slice(dims);
        walk.strides[first..].copy_from_slice(strides);
        walk
    }
}

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// Runs of contiguous elements by `copy_from_slice`, the rest element by element.
fn permute_cpu(x: TensorRef<'_>, out: TensorMut<'_>, walk: Walk) -> Result<()> {
    let size = x.dtype().size_bytes();
    let (x, out) = (x.as_bytes(OP, "x")?, out.into_bytes(OP, "out")?);
    // Types of that size.
    match size {
        1 => permute_type::<u8>(x, out, walk),
        2 => permute_type::<half::f16>(x, out, walk),
        4 => permute_type::<i32>(x, out, walk),
        _ => permute_type::<i64>(x, out, walk),
    }
    Ok(())
}

fn permute_type<T: Element>(x: &[u8], out: &mut [u8], walk: Walk) {
    let (x, out): (&[T], &mut [T]) = (bytemuck::cast_slice(x), bytemuck::cast_slice_mut(out));
    let Walk { dims: [_, d1, d2, d3, run], strides: [s0, s1, s2, s3, s4] } = walk;
    if out.is_empty() {
        return;
    }
    let n_runs = out.len() / run;
    let out = SharedMut::new(out);
    for_parts(n_runs, MIN_PART.div_ceil(run), 1, |part| {
        for index in part {
            let (i3, rest) = (index % d3, index / d3);
            let (i2, rest) = (rest % d2, rest / d2);
            let (i1, i0) = (rest % d1, rest / d1);
            let from = i0 * s0 + i1 * s1 + i2 * s2 + i3 * s3;
            // SAFETY: run `index` of `n_runs` in `out`, which is in this part alone.
            let to = unsafe { out.slice(index * run..(index + 1) * run) };
            match s4 {
                1 => to.copy_from_slice(&x[from..from + run]),
                0 => to.fill(x[from]),
                _ => to.iter_mut().enumerate().for_each(|(i, to)| *to = x[from + i * s4]),
            }
        }
    });
}

pub(crate) static SOURCE: Source = Source::new("permute", include_str!("kernel.cu"));

/// One kernel per size of element.
///
/// Copies as `walk` says, on this device.
fn permute_cuda(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    out: &mut CudaSliceMut<'_>,
    Walk { dims: [_, d1, d2, d3, d4], strides: [s0, s1, s2, s3, s4] }: Walk,
) -> Result<()> {
    let n = out.len();
    if n == 0 {
        return Ok(());
    }
    let kernel = match x.dtype().size_bytes() {
        1 => "permute_int8",
        2 => "permute_int16",
        4 => "permute_int32",
        _ => "permute_int64",
    };
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(n, 4).read(x).write(out).arg(n);
    let launch = launch.arg(d1).arg(d2).arg(d3).arg(d4).arg(s0).arg(s1).arg(s2).arg(s3).arg(s4);
    // SAFETY: permute(const W* x, W* out, size_t n, size_t d1, size_t d2, size_t d3, size_t d4, size_t s0, size_t s1, size_t s2,
    // size_t s3, size_t s4); out holds n elements, and the caller checked that the strides stay within x.
    unsafe { launch.run() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{devices, tensor};
    use crate::{DType, Device, Tensor};

    /// By definition: each element goes to the place of its permuted index.
    fn reference(x: &[i64], dims: &[usize], axes: &[usize]) -> Vec<i64> {
        let mut out = vec![0; x.len()];
        for (i, &value) in x.iter().enumerate() {
            let mut rest = i;
            let mut index = vec![0; dims.len()];
            for axis in (0..dims.len()).rev() {
                index[axis] = rest % dims[axis];
                rest /= dims[axis];
            }
            out[axes.iter().fold(0, |at, &axis| at * dims[axis] + index[axis])] = value;
        }
        out
    }

    #[test]
    fn agrees_with_the_definition_for_each_dtype_and_back() {
        let cases: [(&[usize], &[usize]); 6] = [
            (&[2, 3, 3, 2, 4], &[2, 0, 3, 1, 4]),
            (&[2, 3, 4], &[0, 2, 1]),
            (&[5, 7], &[1, 0]),
            (&[6], &[0]),
            (&[2, 1, 3, 2, 2], &[4, 3, 2, 1, 0]),
            (&[3, 0, 2], &[2, 1, 0]),
        ];
        for device in devices() {
            for (dims, axes) in cases {
                let n: usize = dims.iter().product();
                let values: Vec<i64> = (0..n as i64).collect();
                let want = reference(&values, dims, axes);
                for dtype in [DType::I64, DType::F32, DType::BF16, DType::U8] {
                    let x = tensor(&values, &[n], device).to_dtype(dtype).unwrap();
                    let mut out = x.zeros_like().unwrap();
                    permute(x.view(), dims, axes, out.view_mut()).unwrap();
                    let got = out.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap();
                    assert_eq!(got, want, "{device} {dtype} {dims:?} {axes:?}");
                    // The inverse permutation.
                    let permuted: Vec<usize> = axes.iter().map(|&axis| dims[axis]).collect();
                    let inverse: Vec<usize> =
                        (0..axes.len()).map(|axis| axes.iter().position(|&a| a == axis).unwrap()).collect();
                    let mut back = x.zeros_like().unwrap();
                    permute(out.view(), &permuted, &inverse, back.view_mut()).unwrap();
                    assert_eq!(back.to_dtype(DType::I64).unwrap().to_vec::<i64>().unwrap(), values);
                }
            }
        }
    }

    #[test]
    fn other_numbers_of_elements_are_named() {
        let x = Tensor::zeros(&[6], DType::F32, Device::Cpu).unwrap();
        let mut out = Tensor::zeros(&[5], DType::F32, Device::Cpu).unwrap();
        let error = permute(x.view(), &[2, 3], &[1, 0], out.view_mut()).unwrap_err().to_string();
        assert!(error.contains("permute") && error.contains("[6]"), "{error}");
    }
}
