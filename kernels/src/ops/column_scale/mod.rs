//! Multiplies each column by its own factor.

use crate::base::check;
use crate::cpu::Stored;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cuda::launch::{Launch, Source, typed_kernel};
use crate::cuda::{CudaSlice, CudaSliceMut, Gpu};
use crate::{Element, Result, Shape, TensorMut, TensorRef};

/// `y[n,c] = x[n,c] · scale[c]`
///
/// - `x`, `y`: `[N, C]` of one float dtype; `scale`: `[C]` of the same, or f32 if it is bf16 or f16
///
/// Asynchronous on a GPU's compute stream: one launch, which allocates nothing and can be captured.
///
/// # Errors
/// [`crate::KernelError::DeviceMismatch`], [`crate::KernelError::DTypeMismatch`], [`crate::KernelError::Shape`].
///
/// Source: the scaling layer of arXiv:2407.04491.
#[doc(hidden)]
pub fn column_scale_forward(x: TensorRef<'_>, scale: TensorRef<'_>, y: TensorMut<'_>) -> Result<()> {
    const OP: &str = "column_scale_forward";
    let x_op = x.operand("x");
    let (_, cols) = check::matrix(OP, x_op)?;
    check::same_kind(OP, &[x_op, y.operand("y")])?;
    check::shape(OP, y.operand("y"), x.shape())?;
    check::output_kind(OP, x_op, scale.operand("scale"))?;
    check::shape(OP, scale.operand("scale"), Shape::vector(cols))?;
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        return forward_cuda(gpu, x.cuda()?, scale.cuda()?, &mut y.into_cuda()?);
    }
    check::stored_dispatch!(OP, x_op, T => {
        forward_cpu::<T>(x.as_slice(OP, "x")?, scale.as_slice(OP, "scale")?, y.into_slice(OP, "y")?);
        Ok(())
    })
}

/// Writes the gradients of [`column_scale_forward`]: `d_scale[c] = Σ_n d[n,c]·x[n,c]` of the incoming `d` (`+=` if `accumulate`), then
/// `d[n,c] *= scale[c]`.
///
/// Asynchronous as [`column_scale_forward`], in two launches.
///
/// # Errors
/// Same as [`column_scale_forward`].
#[doc(hidden)]
pub fn column_scale_backward(
    x: TensorRef<'_>,
    scale: TensorRef<'_>,
    d: TensorMut<'_>,
    d_scale: TensorMut<'_>,
    accumulate: bool,
) -> Result<()> {
    const OP: &str = "column_scale_backward";
    let x_op = x.operand("x");
    let (_, cols) = check::matrix(OP, x_op)?;
    check::same_kind(OP, &[x_op, d.operand("d")])?;
    check::shape(OP, d.operand("d"), x.shape())?;
    for operand in [scale.operand("scale"), d_scale.operand("d_scale")] {
        check::output_kind(OP, x_op, operand)?;
        check::shape(OP, operand, Shape::vector(cols))?;
    }
    if let Some(gpu) = x.gpu() {
        check::dtype(OP, x_op, check::FLOATS, check::FLOATS_NAMES)?;
        let (mut d, mut d_scale) = (d.into_cuda()?, d_scale.into_cuda()?);
        return backward_cuda(gpu, x.cuda()?, scale.cuda()?, &mut d, &mut d_scale, accumulate);
    }
    check::stored_dispatch!(OP, x_op, T => {
        let d_scale = d_scale.into_slice(OP, "d_scale")?;
        if !accumulate {
            d_scale.fill(Element::ZERO);
        }
        let d = d.into_slice(OP, "d")?;
        backward_cpu::<T>(x.as_slice(OP, "x")?, scale.as_slice(OP, "scale")?, d, d_scale);
        Ok(())
    })
}

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// Row by row; the columns are summed in the order of the rows.
fn forward_cpu<T: Stored>(x: &[T], scale: &[T::Real], y: &mut [T]) {
    let cols = scale.len();
    if cols == 0 {
        return;
    }
    let rows = y.len() / cols;
    let y = SharedMut::new(y);
    for_parts(rows, MIN_PART.div_ceil(cols), 1, |part| {
        let range = part.start * cols..part.end * cols;
        // SAFETY: these rows lie within `y` and are this thread's alone.
        let y = unsafe { y.slice(range.clone()) };
        let x = &x[range];
        vectorize(
            #[inline(always)]
            || {
                for (x, y) in x.chunks_exact(cols).zip(y.chunks_exact_mut(cols)) {
                    for ((y, &x), &scale) in y.iter_mut().zip(x).zip(scale) {
                        *y = T::store(x.load() * scale);
                    }
                }
            },
        );
    });
}

fn backward_cpu<T: Stored>(x: &[T], scale: &[T::Real], d: &mut [T], d_scale: &mut [T::Real]) {
    let cols = scale.len();
    if cols == 0 {
        return;
    }
    vectorize(
        #[inline(always)]
        || {
            for (x, d) in x.chunks_exact(cols).zip(d.chunks_exact_mut(cols)) {
                for (((d, &x), &scale), d_scale) in d.iter_mut().zip(x).zip(scale).zip(&mut *d_scale) {
                    let of_output = d.load();
                    *d_scale += of_output * x.load();
                    *d = T::store(of_output * scale);
                }
            }
        },
    );
}

pub(crate) static SOURCE: Source = Source::new("column_scale", include_str!("kernel.cu"));

/// Elementwise; columns in tiles for the gradient of the scale.
///
/// Same as `forward_cpu`; the caller checked the operands.
fn forward_cuda(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    scale: CudaSlice<'_>,
    y: &mut CudaSliceMut<'_>,
) -> Result<()> {
    if y.is_empty() {
        return Ok(());
    }
    let kernel = typed_kernel!("column_scale_fwd", x.dtype());
    let launch = Launch::new(gpu, &SOURCE, kernel)?.for_elements(y.len(), 1);
    let launch = launch.read(x).read(scale).write(y).arg(x.len()).arg(scale.len());
    // SAFETY: column_scale_fwd(const T* x, const M* scale, T* y, size_t n, size_t cols); x and y hold n elements, scale cols.
    unsafe { launch.run() }
}

/// Same as `backward_cpu`; the caller checked the operands.
fn backward_cuda(
    gpu: &'static Gpu,
    x: CudaSlice<'_>,
    scale: CudaSlice<'_>,
    d: &mut CudaSliceMut<'_>,
    d_scale: &mut CudaSliceMut<'_>,
    accumulate: bool,
) -> Result<()> {
    let cols = scale.len();
    if cols == 0 {
        return Ok(());
    }
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("column_scale_bwd_columns", x.dtype()))?;
    let launch = launch.blocks(cols.div_ceil(32)).read(x).read(d.as_ref()).write(d_scale);
    let launch = launch.arg(x.len() / cols).arg(cols).arg(i32::from(accumulate));
    // SAFETY: column_scale_bwd_columns(const T* x, const T* d, M* d_scale, size_t rows, size_t cols, int accumulate); x and d hold
    // rows * cols elements, d_scale cols.
    unsafe { launch.run()? };
    if d.is_empty() {
        return Ok(());
    }
    let (n, address) = (d.len(), d.ptr());
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("column_scale_fwd", d.dtype()))?.for_elements(n, 1);
    let launch = launch.arg(address).read(scale).write(d).arg(n).arg(cols);
    // SAFETY: as in `forward`; the kernel reads each element before it writes it, by the same thread.
    unsafe { launch.run() }
}
