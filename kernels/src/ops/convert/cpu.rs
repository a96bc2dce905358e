//! Through f64 or i64, split over the threads.

use half::{bf16, f16};

use crate::cpu::threads::{SharedMut, for_parts};
use crate::{DType, Element, Result, TensorMut, TensorRef};

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// `to = from`; at most one of them of a float dtype.
pub(super) fn convert(op: &'static str, from: TensorRef<'_>, to: TensorMut<'_>) -> Result<()> {
    macro_rules! integers {
        ($t:ty) => {
            from_integers(op, from.as_slice::<$t>(op, "from")?, to)
        };
    }
    macro_rules! floats {
        ($t:ty) => {
            from_floats(op, from.as_slice::<$t>(op, "from")?, to)
        };
    }
    match from.dtype() {
        DType::F32 => floats!(f32),
        DType::F64 => floats!(f64),
        DType::BF16 => floats!(bf16),
        DType::F16 => floats!(f16),
        DType::I64 => integers!(i64),
        DType::I32 => integers!(i32),
        DType::U8 => integers!(u8),
        DType::Bool => from_integers(op, from.as_bytes(op, "from")?, to),
    }
}

fn from_floats<A: Element>(op: &'static str, from: &[A], to: TensorMut<'_>) -> Result<()> {
    match to.dtype() {
        DType::I64 => each(from, to.into_slice::<i64>(op, "to")?, |x| x.to_f64() as i64),
        DType::I32 => each(from, to.into_slice::<i32>(op, "to")?, |x| x.to_f64() as i32),
        DType::U8 => each(from, to.into_slice::<u8>(op, "to")?, |x| x.to_f64() as u8),
        // Floats are the business of `cast`.
        _ => each(from, to.into_bytes(op, "to")?, |x| u8::from(x.to_f64() != 0.0)),
    }
    Ok(())
}

fn from_integers<A: Element + Into<i64>>(op: &'static str, from: &[A], to: TensorMut<'_>) -> Result<()> {
    match to.dtype() {
        DType::F32 => each(from, to.into_slice::<f32>(op, "to")?, |x| x.to_f64() as f32),
        DType::F64 => each(from, to.into_slice::<f64>(op, "to")?, |x| x.to_f64()),
        DType::BF16 => {
            each(from, to.into_slice::<bf16>(op, "to")?, |x| <bf16 as Element>::from_f64(x.to_f64()))
        }
        DType::F16 => each(from, to.into_slice::<f16>(op, "to")?, |x| <f16 as Element>::from_f64(x.to_f64())),
        DType::I64 => each(from, to.into_slice::<i64>(op, "to")?, |x| x.into()),
        DType::I32 => each(from, to.into_slice::<i32>(op, "to")?, |x| x.into() as i32),
        DType::U8 => each(from, to.into_slice::<u8>(op, "to")?, |x| x.into() as u8),
        DType::Bool => each(from, to.into_bytes(op, "to")?, |x| u8::from(x.into() != 0)),
    }
    Ok(())
}

fn each<A: Element, B: Element>(from: &[A], to: &mut [B], f: impl Fn(A) -> B + Sync) {
    let to = SharedMut::new(to);
    for_parts(from.len(), MIN_PART, 64, |part| {
        // SAFETY: the part lies within `to`, as long as `from`, and is this thread's alone.
        let to = unsafe { to.slice(part.clone()) };
        for (to, &from) in to.iter_mut().zip(&from[part]) {
            *to = f(from);
        }
    });
}
