//! Running sums and products along an axis.

use half::{bf16, f16};

use crate::base::check;
use crate::cpu::cell::with_cells;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cuda::launch::{BLOCK, Launch, Source, typed_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::ops::reduce::cpu::{ReduceCell, ReduceNumber, Wide};
use crate::{DType, Element, KernelError, Result, TensorMut, TensorRef};

crate::named_enum! {
    /// The operation that is repeated from element to element.
    #[doc(hidden)]
    pub enum ScanOp {
        /// The sum; integers wrap, as in the next one.
        Sum = "cumsum",
        /// The product.
        Product = "cumprod",
    }
}

impl ScanOp {
    /// The dtype of the result: i64 for integers and bool.
    pub fn result_dtype(self, dtype: DType) -> DType {
        if dtype.is_float() { dtype } else { DType::I64 }
    }
}

/// A tensor as `[outer, len, inner]`, whose elements are combined along `len`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    outer: usize,
    len: usize,
    inner: usize,
}

/// `out[.., i, ..] = x[.., 0, ..] op ... op x[.., i, ..]` along `axis`.
///
/// - `x`: any shape and dtype; `out`: its shape, of [`ScanOp::result_dtype`]
/// - floats are combined in f64, and each result is rounded once
///
/// Asynchronous on the device's compute stream.
///
/// # Errors
/// [`KernelError::OutOfRange`] for an axis that is not there; [`KernelError::DeviceMismatch`], [`KernelError::Shape`],
/// [`KernelError::DTypeUnsupported`].
///
/// Source: `torch.cumsum`, `torch.cumprod`.
#[doc(hidden)]
pub fn scan(op: ScanOp, x: TensorRef<'_>, axis: usize, out: TensorMut<'_>) -> Result<()> {
    let name = op.name();
    let (x_op, out_op) = (x.operand("a"), out.operand("out"));
    check::same_device(name, &[x_op, out_op])?;
    check::shape(name, out_op, x.shape())?;
    let dtype = op.result_dtype(x_op.dtype);
    check::dtype(name, out_op, &[dtype], dtype.name())?;
    let dims = x.dims();
    if axis >= dims.len() {
        return Err(KernelError::OutOfRange { op: name, start: axis, end: axis + 1, len: dims.len() });
    }
    let layout = Layout {
        outer: dims[..axis].iter().product(),
        len: dims[axis],
        inner: dims[axis + 1..].iter().product(),
    };
    match out.gpu() {
        Some(gpu) => scan_cuda(gpu, op, x.cuda()?, layout, &mut out.into_cuda()?),
        None => scan_cpu(op, x, layout, out),
    }
}

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;
/// Neighboring lines that are combined side by side.
const TILE: usize = 64;

/// Line by line, lines of neighboring elements together; lines are divided between the threads.
///
/// `out = scan(x)`.
fn scan_cpu(op: ScanOp, x: TensorRef<'_>, layout: Layout, out: TensorMut<'_>) -> Result<()> {
    let (name, dtype) = (op.name(), x.dtype());
    let bytes = x.as_bytes(name, "a")?;
    with_cells!(dtype, C => {
        let x: &[C] = bytemuck::cast_slice(bytes);
        if C::WIDE_SUM {
            run(op, x, layout, out.into_slice::<i64>(name, "out")?, Wide::integer);
        } else {
            run(op, x, layout, bytemuck::cast_slice_mut(out.into_bytes(name, "out")?), C::from_wide);
        }
        Ok(())
    })
}

fn run<C: ReduceCell, D: Element>(
    op: ScanOp,
    x: &[C],
    layout: Layout,
    out: &mut [D],
    finish: impl Fn(C::Wide) -> D + Sync,
) {
    match op {
        ScanOp::Sum => lines(x, layout, out, C::Wide::ZERO, Wide::add, finish),
        ScanOp::Product => lines(x, layout, out, C::Wide::ONE, Wide::multiply, finish),
    }
}

fn lines<C: ReduceCell, D: Element>(
    x: &[C],
    Layout { outer, len, inner }: Layout,
    out: &mut [D],
    start: C::Wide,
    combine: impl Fn(C::Wide, C::Wide) -> C::Wide + Sync,
    finish: impl Fn(C::Wide) -> D + Sync,
) {
    if out.is_empty() {
        return;
    }
    let tile = inner.min(TILE);
    let n_tiles = inner.div_ceil(tile);
    let out = SharedMut::new(out);
    for_parts(outer * n_tiles, MIN_PART.div_ceil(len * tile), 1, |part| {
        for task in part {
            let (o, first) = (task / n_tiles, task % n_tiles * tile);
            let n = tile.min(inner - first);
            let mut running = [start; TILE];
            for l in 0..len {
                let at = (o * len + l) * inner + first;
                // SAFETY: within `out`, and these lines are this task's alone.
                let out = unsafe { out.slice(at..at + n) };
                for ((out, running), cell) in out.iter_mut().zip(&mut running).zip(&x[at..at + n]) {
                    *running = combine(*running, cell.load().wide());
                    *out = finish(*running);
                }
            }
        }
    });
}

pub(crate) static SOURCE: Source = Source::new("scan", include_str!("kernel.cu"));

/// One kernel, a block per line.
///
/// `out = scan(x)` on this device.
fn scan_cuda(
    gpu: &'static Gpu,
    op: ScanOp,
    x: CudaSlice<'_>,
    Layout { outer, len, inner }: Layout,
    out: &mut CudaSliceMut<'_>,
) -> Result<()> {
    if out.is_empty() {
        return Ok(());
    }
    debug_assert_eq!(BLOCK, 256, "the kernel's shared memory");
    let n_lines = outer * inner;
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("scan", x.dtype()))?.blocks(n_lines.min(1 << 20));
    let launch = launch.arg(op as i32).read(x).arg(n_lines).arg(len).arg(inner).write(out);
    // SAFETY: scan(int op, const T* x, size_t n_lines, size_t len, size_t inner, R* out); both hold n_lines * len elements, and n_lines
    // is a multiple of inner.
    unsafe { launch.run() }
}

#[cfg(test)]
mod tests {
    use crate::cpu::threads::join_pool;
    use crate::ops::testing::{devices, random};
    use crate::{DType, Device, Tensor, tensor};

    fn numbers(x: &Tensor) -> Vec<f64> {
        x.to_dtype(DType::F64).unwrap().to_vec().unwrap()
    }

    #[test]
    fn running_sums_and_products_follow_their_definition_in_every_dtype() {
        let shapes: [&[usize]; 6] = [&[1], &[1000], &[3, 257], &[256, 3], &[2, 30, 5], &[2, 0, 3]];
        for device in devices() {
            for dtype in DType::ALL {
                for dims in shapes {
                    let n: usize = dims.iter().product();
                    // Factors near 1, so that no product leaves the range of f16; whole numbers of 0 and 1.
                    let near = |v: f64| if dtype.is_float() { 1.0 + v / 1000.0 } else { (v > -0.9).into() };
                    let values: Vec<f64> = random::<f64>(n, 5).into_iter().map(near).collect();
                    let x = Tensor::from_slice(&values, dims, device).unwrap().to_dtype(dtype).unwrap();
                    let values = numbers(&x);
                    for axis in 0..dims.len() {
                        let (sums, products) = (x.cumsum(axis).unwrap(), x.cumprod(axis).unwrap());
                        let want_dtype = if dtype.is_float() { dtype } else { DType::I64 };
                        assert_eq!((sums.dtype(), sums.dims()), (want_dtype, dims));
                        let stride: usize = dims[axis + 1..].iter().product();
                        let (sums, products) = (numbers(&sums), numbers(&products));
                        for i in 0..n {
                            let before = (0..=i / stride % dims[axis]).map(|back| values[i - back * stride]);
                            let (sum, product) = (before.clone().sum::<f64>(), before.product::<f64>());
                            // Rounding to the dtype, once.
                            let rounding = match dtype {
                                DType::BF16 => 0.0040,
                                DType::F16 => 0.0005,
                                DType::F32 => 1e-7,
                                _ => 1e-12,
                            };
                            let what = format!("element {i} of {dtype} {dims:?} along {axis} on {device}");
                            assert!((sums[i] - sum).abs() <= rounding * sum.abs(), "sum {what}");
                            assert!((products[i] - product).abs() <= rounding * product, "product {what}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn nan_stays_from_where_it_is_and_integers_wrap() {
        for device in devices() {
            let x = tensor![1., f32::NAN, 2.].to(device).unwrap();
            let sums = x.cumsum(-1).unwrap().to_vec::<f32>().unwrap();
            assert!(sums[0] == 1.0 && sums[1].is_nan() && sums[2].is_nan(), "{sums:?} on {device}");
            let large = tensor![i64::MAX, 1, 2].to(device).unwrap();
            assert_eq!(large.cumsum(0).unwrap().to_vec::<i64>().unwrap(), [i64::MAX, i64::MIN, i64::MIN + 2]);
            assert_eq!(large.cumprod(0).unwrap().to_vec::<i64>().unwrap(), [i64::MAX, i64::MAX, -2]);
            let message = x.cumsum(1).unwrap_err().to_string();
            assert_eq!(message, format!("cumsum: a [3] f32 on {device} has no axis 1"));
        }
    }

    #[test]
    fn the_number_of_threads_changes_no_bit() {
        let results = |n_threads: usize| {
            let compute = move || {
                join_pool(n_threads).unwrap();
                let x = Tensor::randn(&[70, 900, 3], DType::F32, Device::Cpu, 5).unwrap();
                (0..3).flat_map(|axis| x.cumsum(axis).unwrap().to_vec::<f32>().unwrap()).collect::<Vec<_>>()
            };
            std::thread::spawn(compute).join().unwrap()
        };
        assert!(results(1) == results(3));
    }
}
