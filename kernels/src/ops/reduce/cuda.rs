//! Two kernels: one reduces chunks, one combines their results in order.

use super::{Layout, ReduceOp};
use crate::cuda::launch::{BLOCK, Launch, Source, typed_kernel};
use crate::cuda::{CudaSliceMut, Gpu};
use crate::{DType, MemoryUse, Result, Shape, Tensor, TensorRef};

pub(crate) static SOURCE: Source = Source::new("reduce", include_str!("kernel.cu"));

/// Elements of a chunk that a block reduces, and that a thread reduces.
const BLOCK_CHUNK: usize = 1 << 14;
const THREAD_CHUNK: usize = 256;
/// Length of a row from which a block reduces it.
const BLOCK_LEN: usize = 64;

/// `out = op(x)` on this device.
pub(super) fn reduce(
    gpu: &'static Gpu,
    op: ReduceOp,
    x: TensorRef<'_>,
    Layout { outer, len, inner }: Layout,
    out: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let n_results = outer * inner;
    if n_results == 0 {
        return Ok(());
    }
    let by_block = inner == 1 && len > BLOCK_LEN;
    let chunk = if by_block { BLOCK_CHUNK } else { THREAD_CHUNK };
    let n_chunks = len.div_ceil(chunk).max(1);
    let wide = if x.dtype().is_float() { DType::F64 } else { DType::I64 };
    let scratch = |dtype| {
        let shape = Shape::vector(n_results * n_chunks);
        Tensor::for_result(MemoryUse::Workspace, shape, dtype, gpu.device())
    };
    let (mut values, mut indices) = (scratch(wide)?, scratch(DType::I64)?);
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("reduce", x.dtype()))?;
    let n_tasks = n_results * n_chunks;
    let launch = if by_block { launch.blocks(n_tasks.min(1 << 20)) } else { launch.for_elements(n_tasks, 1) };
    debug_assert_eq!(BLOCK, 256, "the kernel's shared memory");
    let launch =
        launch.arg(op as i32).read(x.cuda()?).arg(outer).arg(len).arg(inner).arg(chunk).arg(n_chunks);
    let launch = launch.arg(i32::from(by_block));
    let launch =
        launch.write(&mut values.view_mut().into_cuda()?).write(&mut indices.view_mut().into_cuda()?);
    // SAFETY: reduce(int op, const T* x, size_t outer, size_t len, size_t inner, size_t chunk, size_t n_chunks, int by_block,
    // wide* values, i64* indices); x holds outer * len * inner elements, the other two outer * n_chunks * inner.
    unsafe { launch.run()? };
    let form = form(op, x.dtype());
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("finish", x.dtype()))?.for_elements(n_results, 1);
    let launch = launch.arg(op as i32).read(values.view().cuda()?).read(indices.view().cuda()?);
    let launch = launch.arg(outer).arg(len).arg(inner).arg(n_chunks).arg(form).write(out);
    // SAFETY: finish(int op, const wide* values, const i64* indices, size_t outer, size_t len, size_t inner, size_t n_chunks,
    // int form, void* out), lengths as above; out holds outer * inner elements of the dtype that `form` stands for.
    unsafe { launch.run() }
}

/// The form of the result: of x's dtype, a sum of integers, or an index.
fn form(op: ReduceOp, x: DType) -> i32 {
    match op {
        ReduceOp::ArgMax => 2,
        ReduceOp::Sum if !x.is_float() => 1,
        _ => 0,
    }
}

/// Same as [`reduce`], in one launch without memory for the results of chunks.
pub(super) fn reduce_whole(
    gpu: &'static Gpu,
    op: ReduceOp,
    x: TensorRef<'_>,
    Layout { outer, len, inner }: Layout,
    out: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let n_results = outer * inner;
    if n_results == 0 {
        return Ok(());
    }
    let by_block = inner == 1 && len > BLOCK_LEN;
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("reduce_whole", x.dtype()))?;
    let launch =
        if by_block { launch.blocks(n_results.min(1 << 20)) } else { launch.for_elements(n_results, 1) };
    let launch =
        launch.arg(op as i32).read(x.cuda()?).arg(outer).arg(len).arg(inner).arg(i32::from(by_block));
    let launch = launch.arg(form(op, x.dtype())).write(out);
    // SAFETY: reduce_whole(int op, const T* x, size_t outer, size_t len, size_t inner, int by_block, int form, void* out); x holds
    // outer * len * inner elements, out outer * inner of the dtype that `form` stands for.
    unsafe { launch.run() }
}
