//! One kernel per dtype for all operations: which one is an argument, the same for all threads.

use super::input::Cycle;
use super::{CompareOp, MapOp, Ready, Scalar};
use crate::cuda::launch::{Launch, Source, typed_kernel};
use crate::cuda::{CudaSliceMut, Gpu};
use crate::{DType, Result, TensorRef};

pub(crate) static SOURCE: Source = Source::new("elementwise", include_str!("kernel.cu")).after_others();

/// Adds an operand: its elements or null, its cycle, its value as f64 and as i64 (of which the kernel uses the one of its type).
fn operand(launch: Launch, ready: Ready<'_>) -> Result<Launch> {
    Ok(match ready {
        Ready::Tensor(x, cycle) => with_cycle(launch.read(x.cuda()?), cycle).arg(0.0f64).arg(0i64),
        Ready::Scalar(scalar) => {
            let one = Cycle { div: 1, len: 1, outer_div: 1, outer_len: 1 };
            with_cycle(launch.arg(0u64), one).arg(scalar.to_f64()).arg(scalar.to_i64())
        }
    })
}

fn with_cycle(launch: Launch, Cycle { div, len, outer_div, outer_len }: Cycle) -> Launch {
    launch.arg(div).arg(len).arg(outer_div).arg(outer_len)
}

/// Blocks per multiprocessor for which the kernels are compiled.
const RESIDENT: usize = 6;

/// Elements of a thread at a time: PerAccess in the kernel.
fn per_access(dtype: DType) -> usize {
    match dtype.size_bytes() {
        1 => 4,
        bytes => 16 / bytes,
    }
}

/// `out = op(a, b)` on this device.
pub(super) fn map(
    gpu: &'static Gpu,
    op: MapOp,
    a: Ready<'_>,
    b: Ready<'_>,
    out: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let n = out.len();
    if n == 0 {
        return Ok(());
    }
    // The kernel loads what it is given.
    let b = if op.is_unary() { Ready::Scalar(Scalar::Int(0)) } else { b };
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("map", out.dtype()))?.for_elements_at_once(
        n,
        per_access(out.dtype()),
        RESIDENT,
    );
    let launch = operand(operand(launch.arg(op as i32), a)?, b)?.write(out).arg(n);
    // SAFETY: map(int op, OPERAND a, OPERAND b, T* out, size_t n), where OPERAND is const T* x, size_t div, size_t len,
    // size_t outer_div, size_t outer_len, double real, i64 whole; `out` holds n elements and each x `len * outer_len`.
    unsafe { launch.run() }
}

/// `out = op(a, b)` on this device; operands of `dtype`.
pub(super) fn compare(
    gpu: &'static Gpu,
    op: CompareOp,
    dtype: DType,
    a: Ready<'_>,
    b: Ready<'_>,
    out: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let n = out.len();
    if n == 0 {
        return Ok(());
    }
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("compare", dtype))?.for_elements_at_once(
        n,
        per_access(dtype),
        RESIDENT,
    );
    let launch = operand(operand(launch.arg(op as i32), a)?, b)?.write(out).arg(n);
    // SAFETY: compare(int op, OPERAND a, OPERAND b, u8* out, size_t n), as in `map`.
    unsafe { launch.run() }
}

/// `out = condition ? a : b` on this device.
pub(super) fn select(
    gpu: &'static Gpu,
    condition: TensorRef<'_>,
    cycle: Cycle,
    a: Ready<'_>,
    b: Ready<'_>,
    out: &mut CudaSliceMut<'_>,
) -> Result<()> {
    let n = out.len();
    if n == 0 {
        return Ok(());
    }
    let launch = Launch::new(gpu, &SOURCE, typed_kernel!("select", out.dtype()))?.for_elements_at_once(
        n,
        per_access(out.dtype()),
        RESIDENT,
    );
    let launch = with_cycle(launch.read(condition.cuda()?), cycle);
    let launch = operand(operand(launch, a)?, b)?.write(out).arg(n);
    // SAFETY: select(const u8* condition, size_t div, size_t len, size_t outer_div, size_t outer_len, OPERAND a, OPERAND b, T* out,
    // size_t n), as in `map`; `condition` holds `len * outer_len` elements.
    unsafe { launch.run() }
}
