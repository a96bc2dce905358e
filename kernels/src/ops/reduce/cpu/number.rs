//! The numbers that reductions compute in, and partial results.

use half::{bf16, f16};

use crate::Element;
use crate::cpu::cell::{Block, Cell};
use crate::ops::reduce::ReduceOp;

/// Elements of a row that are in the L1 cache at a time.
pub(super) const BLOCK: usize = Block::<f32>::LEN;
/// Numbers that are reduced in f64 (floats) or i64 (integers).
///
/// The loops are generic over numbers rather than cells, and compiled once for the cells of all formats that are computed in these.
pub(in crate::ops) trait ReduceNumber: Element {
    type Wide: Wide;
    fn wide(self) -> Self::Wide;
}

/// Cells of such numbers.
pub(in crate::ops) trait ReduceCell: Cell<Number: ReduceNumber<Wide = Self::Wide>> {
    type Wide: Wide;
    /// Whether a sum is returned as [`ReduceCell::Wide`]: sums of integers are i64.
    const WIDE_SUM: bool;
    fn from_wide(wide: Self::Wide) -> Self;
}

/// The type of sums.
pub(in crate::ops) trait Wide: Element + Copy {
    const ONE: Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn square(self) -> Self;
    /// The result, given the sum (of squares) over `len` elements.
    fn finish(self, op: ReduceOp, len: usize) -> Self;
    /// Sum of integers; unused for floats.
    fn integer(self) -> i64;
}

/// `[T; 4]::map`, whose generic code is some 400 lines of LLVM before optimization for each use.
#[inline(always)]
pub(super) fn each_of_four<T, R>([a, b, c, d]: [T; 4], f: impl Fn(T) -> R) -> [R; 4] {
    [f(a), f(b), f(c), f(d)]
}

impl Wide for f64 {
    const ONE: f64 = 1.0;
    #[inline(always)]
    fn add(self, other: f64) -> f64 {
        self + other
    }
    #[inline(always)]
    fn multiply(self, other: f64) -> f64 {
        self * other
    }
    #[inline(always)]
    fn square(self) -> f64 {
        self * self
    }
    fn finish(self, op: ReduceOp, len: usize) -> f64 {
        match op {
            ReduceOp::Mean => self / len as f64,
            ReduceOp::Norm => self.sqrt(),
            _ => self,
        }
    }
    fn integer(self) -> i64 {
        self as i64
    }
}

impl Wide for i64 {
    const ONE: i64 = 1;
    #[inline(always)]
    fn add(self, other: i64) -> i64 {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn multiply(self, other: i64) -> i64 {
        self.wrapping_mul(other)
    }
    #[inline(always)]
    fn square(self) -> i64 {
        self.wrapping_mul(self)
    }
    fn finish(self, _: ReduceOp, _: usize) -> i64 {
        self
    }
    fn integer(self) -> i64 {
        self
    }
}

macro_rules! reduce_numbers {
    ($($t:ty => $wide:ident),*) => {
        $(impl ReduceNumber for $t {
            type Wide = $wide;
            #[inline(always)]
            fn wide(self) -> $wide {
                self.into()
            }
        })*
    };
}
reduce_numbers!(f32 => f64, f64 => f64, i64 => i64, i32 => i64, u8 => i64);

macro_rules! reduce_cells {
    ($wide:ident, $wide_sum:literal, $v:ident => { $($t:ty => $narrowed:expr),* $(,)? }) => {
        $(impl ReduceCell for $t {
            type Wide = $wide;
            const WIDE_SUM: bool = $wide_sum;
            fn from_wide($v: $wide) -> $t {
                $narrowed
            }
        })*
    };
}
reduce_cells!(f64, false, v => {
    f32 => v as f32,
    f64 => v,
    bf16 => Element::from_f64(v),
    f16 => Element::from_f64(v),
});
reduce_cells!(i64, true, v => { i64 => v, i32 => v as i32, u8 => v as u8 });

/// The result over some of the elements.
#[derive(Clone, Copy)]
pub(super) struct Partial<W> {
    pub(super) value: W,
    /// Index of the value along the axis, for [`ReduceOp::ArgMax`].
    pub(super) index: i64,
}

impl<W: Wide> Partial<W> {
    /// Both results, of which `self` is over earlier elements.
    pub(super) fn and(self, op: ReduceOp, later: Self) -> Self {
        match op {
            ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Norm => {
                Partial { value: self.value.add(later.value), ..self }
            }
            ReduceOp::Max | ReduceOp::Min | ReduceOp::ArgMax => {
                if wins(op, later.value, self.value) {
                    later
                } else {
                    self
                }
            }
        }
    }
}

/// Whether `later` replaces `best`: it is larger (smaller for the minimum), or NaN and `best` is not.
#[inline(always)]
#[allow(clippy::eq_op)] // NaN differs from itself.
pub(super) fn wins<N: Copy + PartialOrd>(op: ReduceOp, later: N, best: N) -> bool {
    let is_better = if op == ReduceOp::Min { later < best } else { later > best };
    is_better | ((later != later) & (best == best))
}

/// The larger (smaller for the minimum) of two numbers, of which `best` is the earlier.
#[inline(always)]
pub(super) fn better<N: Copy + PartialOrd>(op: ReduceOp, best: N, later: N) -> N {
    if wins(op, later, best) { later } else { best }
}
