//! Elementwise, rounded once: from f64 to a 16-bit format through an f32 rounded to odd.

use half::{bf16, f16};

use crate::base::short_floats::to_odd;
use crate::cpu::cell::Cell;
use crate::{DType, Result, TensorMut, TensorRef};

/// One loop over `$from`, of any float type, into `$to` of another.
macro_rules! convert {
    ($op:expr, $from:expr, $to:expr, $t:ty => $u:ty, $x:ident => $value:expr) => {
        for (to, &$x) in $to.into_slice::<$u>($op, "to")?.iter_mut().zip($from.as_slice::<$t>($op, "from")?) {
            *to = $value;
        }
    };
}

/// `to = from`; both of float dtypes and of one length.
pub(super) fn cast(op: &'static str, from: TensorRef<'_>, to: TensorMut<'_>) -> Result<()> {
    match (from.dtype(), to.dtype()) {
        (DType::F64, DType::F32) => convert!(op, from, to, f64 => f32, x => x as f32),
        (DType::F64, DType::BF16) => convert!(op, from, to, f64 => bf16, x => Cell::store(to_odd(x))),
        (DType::F64, DType::F16) => convert!(op, from, to, f64 => f16, x => Cell::store(to_odd(x))),
        (DType::BF16, DType::F32) => convert!(op, from, to, bf16 => f32, x => x.load()),
        (DType::BF16, DType::F64) => convert!(op, from, to, bf16 => f64, x => f64::from(x.load())),
        (DType::BF16, DType::F16) => convert!(op, from, to, bf16 => f16, x => Cell::store(x.load())),
        (DType::F16, DType::F32) => convert!(op, from, to, f16 => f32, x => x.load()),
        (DType::F16, DType::F64) => convert!(op, from, to, f16 => f64, x => f64::from(x.load())),
        (DType::F16, DType::BF16) => convert!(op, from, to, f16 => bf16, x => Cell::store(x.load())),
        (_, DType::F64) => convert!(op, from, to, f32 => f64, x => f64::from(x)),
        (_, DType::BF16) => convert!(op, from, to, f32 => bf16, x => Cell::store(x)),
        (_, DType::F16) => convert!(op, from, to, f32 => f16, x => Cell::store(x)),
        // The caller rejected other types and copies equal ones.
        (_, _) => {}
    }
    Ok(())
}
