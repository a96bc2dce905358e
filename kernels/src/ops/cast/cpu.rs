//! Element by element. Every cast goes through one of four roundings; bf16 is rounded here, as no CPU type does it.

use half::bf16;

use crate::{CpuSliceMut, DType, Result, TensorRef};

/// The nearest bf16, ties to even.
///
/// Rounding to f32 on the way would round twice: what lies just beside a tie of bf16 would come to lie on it. So what was
/// lost in f32 is kept as its lowest bit.
pub(super) fn bf16_of(x: f64) -> bf16 {
    let single = x as f32;
    if x.is_nan() || f64::from(single) == x {
        return bf16::from_f32(single);
    }
    let is_too_large = f64::from(single).abs() > x.abs();
    let towards_zero = single.to_bits() - u32::from(is_too_large);
    bf16::from_f32(f32::from_bits(towards_zero | 1))
}

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
        (DType::F64, CpuSliceMut::BF16(to)) => convert!(op, from, to, f64, x => bf16_of(x)),
        (DType::BF16, CpuSliceMut::F32(to)) => convert!(op, from, to, bf16, x => x.to_f32()),
        (DType::BF16, CpuSliceMut::F64(to)) => convert!(op, from, to, bf16, x => f64::from(x.to_f32())),
        (_, CpuSliceMut::F64(to)) => convert!(op, from, to, f32, x => f64::from(x)),
        (_, CpuSliceMut::BF16(to)) => convert!(op, from, to, f32, x => bf16::from_f32(x)),
        // The caller has refused other types, and equal ones are copied.
        (_, CpuSliceMut::F32(_) | CpuSliceMut::I64(_) | CpuSliceMut::U8(_) | CpuSliceMut::F16(_)) => {}
    }
    Ok(())
}
