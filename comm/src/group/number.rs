//! Element types that can be reduced.

use ddp_kernels::DType;

use crate::ReduceOp;

/// An element type that can be reduced.
pub(super) trait Number: Copy + PartialOrd {
    /// The additive identity.
    const ZERO: Self;
    /// The sum; integers wrap, as in MPI.
    fn sum(a: Self, b: Self) -> Self;
}

impl Number for f32 {
    const ZERO: Self = 0.0;
    #[inline(always)]
    fn sum(a: Self, b: Self) -> Self {
        a + b
    }
}

impl Number for f64 {
    const ZERO: Self = 0.0;
    #[inline(always)]
    fn sum(a: Self, b: Self) -> Self {
        a + b
    }
}

impl Number for half::bf16 {
    const ZERO: Self = half::bf16::ZERO;
    #[inline(always)]
    fn sum(a: Self, b: Self) -> Self {
        a + b
    }
}

impl Number for half::f16 {
    const ZERO: Self = half::f16::ZERO;
    #[inline(always)]
    fn sum(a: Self, b: Self) -> Self {
        a + b
    }
}

impl Number for i64 {
    const ZERO: Self = 0;
    #[inline(always)]
    fn sum(a: Self, b: Self) -> Self {
        a.wrapping_add(b)
    }
}

impl Number for i32 {
    const ZERO: Self = 0;
    #[inline(always)]
    fn sum(a: Self, b: Self) -> Self {
        a.wrapping_add(b)
    }
}

impl Number for u8 {
    const ZERO: Self = 0;
    #[inline(always)]
    fn sum(a: Self, b: Self) -> Self {
        a.wrapping_add(b)
    }
}

/// `acc[i] <- acc[i] op other[i]` for `n` elements.
///
/// # Safety
/// `acc` is writable and `other` readable for `n` elements of the type, aligned for it, disjoint, and nothing else accesses them.
pub(super) unsafe fn fold(op: ReduceOp, dtype: DType, acc: *mut u8, other: *const u8, n: usize) {
    let fold = match dtype {
        DType::F32 => fold_as::<f32>,
        DType::F64 => fold_as::<f64>,
        DType::I64 => fold_as::<i64>,
        DType::BF16 => fold_as::<half::bf16>,
        // Bools are bytes: Max is OR, Min is AND.
        DType::U8 | DType::Bool => fold_as::<u8>,
        DType::F16 => fold_as::<half::f16>,
        DType::I32 => fold_as::<i32>,
    };
    // SAFETY: as this function's.
    unsafe { fold(op, acc, other, n) }
}

/// [`fold`] for one type.
///
/// # Safety
/// Same as [`fold`].
unsafe fn fold_as<T: Number>(op: ReduceOp, acc: *mut u8, other: *const u8, n: usize) {
    // SAFETY: as this function's.
    let acc = unsafe { std::slice::from_raw_parts_mut(acc.cast::<T>(), n) };
    // SAFETY: as this function's.
    let other = unsafe { std::slice::from_raw_parts(other.cast::<T>(), n) };
    for (a, &b) in acc.iter_mut().zip(other) {
        *a = match op {
            ReduceOp::Sum => T::sum(*a, b),
            ReduceOp::Max if b > *a => b,
            ReduceOp::Min if b < *a => b,
            ReduceOp::Max | ReduceOp::Min => *a,
        };
    }
}
