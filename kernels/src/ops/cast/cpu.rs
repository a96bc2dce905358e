//! Elementwise, rounded once: from f64 to a 16-bit format through an f32 rounded to odd.

use half::{bf16, f16};

use crate::cpu::Stored;
use crate::cpu::stored::to_odd;
use crate::{CpuSliceMut, DType, Result, TensorRef};

/// One loop over `$from`, of any float type, into `$to` of another.
macro_rules! convert {
    ($op:expr, $from:expr, $to:expr, $t:ty, $x:ident => $value:expr) => {
        for (to, &$x) in $to.iter_mut().zip($from.as_slice::<$t>($op, "from")?) {
            *to = $value;
        }
    };
}

/// `to = from`; both of float dtypes and of one length.
pub(super) fn cast(op: &'static str, from: TensorRef<'_>, to: CpuSliceMut<'_>) -> Result<()> {
    match (from.dtype(), to) {
        (DType::F64, CpuSliceMut::F32(to)) => convert!(op, from, to, f64, x => x as f32),
        (DType::F64, CpuSliceMut::BF16(to)) => convert!(op, from, to, f64, x => Stored::store(to_odd(x))),
        (DType::F64, CpuSliceMut::F16(to)) => convert!(op, from, to, f64, x => Stored::store(to_odd(x))),
        (DType::BF16, CpuSliceMut::F32(to)) => convert!(op, from, to, bf16, x => x.load()),
        (DType::BF16, CpuSliceMut::F64(to)) => convert!(op, from, to, bf16, x => f64::from(x.load())),
        (DType::BF16, CpuSliceMut::F16(to)) => convert!(op, from, to, bf16, x => Stored::store(x.load())),
        (DType::F16, CpuSliceMut::F32(to)) => convert!(op, from, to, f16, x => x.load()),
        (DType::F16, CpuSliceMut::F64(to)) => convert!(op, from, to, f16, x => f64::from(x.load())),
        (DType::F16, CpuSliceMut::BF16(to)) => convert!(op, from, to, f16, x => Stored::store(x.load())),
        (_, CpuSliceMut::F64(to)) => convert!(op, from, to, f32, x => f64::from(x)),
        (_, CpuSliceMut::BF16(to)) => convert!(op, from, to, f32, x => Stored::store(x)),
        (_, CpuSliceMut::F16(to)) => convert!(op, from, to, f32, x => Stored::store(x)),
        // The caller rejected other types and copies equal ones.
        (_, CpuSliceMut::F32(_) | CpuSliceMut::I64(_) | CpuSliceMut::U8(_)) => {}
    }
    Ok(())
}
