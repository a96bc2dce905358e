//! Block by block: operands that are not contiguous numbers of the compute type (16-bit floats, broadcast operands, scalars) are
//! written to a block that stays in the L1 cache, so that each operation is one loop over slices.

use std::ops::Range;

use half::{bf16, f16};

use super::input::Cycle;
use super::{CompareOp, MapOp, Ready, Scalar};
use crate::cpu::Float;
use crate::cpu::cell::{Block, Cell, with_cells};
use crate::cpu::copy::{fence, prefetch, prefetch_pays, stream_unfenced};
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::{DType, Element, Result, TensorMut};

/// Elements per block: few, so that reading the next operands overlaps with the stores of a result.
const BLOCK: usize = 512;
/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;
/// Size in bytes from which the result would not stay in the caches anyway: streaming stores then save reading what they
/// overwrite.
const FAR_BYTES: usize = 16 << 20;

/// Numbers that operations compute in.
trait Number: Element {
    /// `out[i] = op(a[i], b[i])`; equal lengths.
    fn map(op: MapOp, a: &[Self], b: &[Self], out: &mut [Self]);
    fn of(scalar: Scalar) -> Self;
}

#[inline(always)]
fn each<A: Copy, B>(a: &[A], b: &[A], out: &mut [B], f: impl Fn(A, A) -> B) {
    vectorize(
        #[inline(always)]
        || {
            for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                *out = f(a, b);
            }
        },
    );
}

macro_rules! float {
    ($t:ident, $log:path, $log1p:path, $sin:path, $cos:path) => {
        impl Number for $t {
            fn map(op: MapOp, a: &[Self], b: &[Self], out: &mut [Self]) {
                match op {
                    MapOp::Neg => each(a, b, out, |a, _| -a),
                    MapOp::Exp => each(a, b, out, |a, _| Float::exp(a)),
                    MapOp::Log => each(a, b, out, |a, _| $log(a)),
                    MapOp::Log1p => each(a, b, out, |a, _| $log1p(a)),
                    MapOp::Sqrt => each(a, b, out, |a, _| Float::sqrt(a)),
                    MapOp::Abs => each(a, b, out, |a, _| Float::abs(a)),
                    MapOp::Add => each(a, b, out, |a, b| a + b),
                    MapOp::Sub => each(a, b, out, |a, b| a - b),
                    MapOp::Mul => each(a, b, out, |a, b| a * b),
                    MapOp::Div => each(a, b, out, |a, b| a / b),
                    MapOp::Pow => each(a, b, out, $t::powf),
                    MapOp::Maximum => each(a, b, out, |a, b| if a > b || a.is_nan() { a } else { b }),
                    MapOp::Minimum => each(a, b, out, |a, b| if a < b || a.is_nan() { a } else { b }),
                    MapOp::Sin => each(a, b, out, |a, _| $sin(a)),
                    MapOp::Cos => each(a, b, out, |a, _| $cos(a)),
                    MapOp::Floor => each(a, b, out, |a, _| a.floor()),
                    MapOp::Ceil => each(a, b, out, |a, _| a.ceil()),
                    MapOp::Round => each(a, b, out, |a, _| a.round_ties_even()),
                }
            }
            fn of(scalar: Scalar) -> Self {
                scalar.to_f64() as $t
            }
        }
    };
}
float!(f32, log_f32, log1p_f32, sin_f32, cos_f32);
float!(f64, f64::ln, f64::ln_1p, f64::sin, f64::cos);

#[inline(always)]
fn sin_f32(x: f32) -> f32 {
    if x.abs() <= f32::MAX_ANGLE { x.sin_near() } else { f64::from(x).sin() as f32 }
}

#[inline(always)]
fn cos_f32(x: f32) -> f32 {
    if x.abs() <= f32::MAX_ANGLE { x.cos_near() } else { f64::from(x).cos() as f32 }
}

/// The logarithm also of subnormal numbers, which [`Float::ln`] takes for 0.
#[inline(always)]
fn log_f32(x: f32) -> f32 {
    // Times 2^24, whose logarithm is taken off again.
    let (scaled, shift) = if x < f32::MIN_POSITIVE { (x * 16_777_216.0, -16.635_532) } else { (x, 0.0) };
    Float::ln(scaled) + shift
}

/// `ln(1 + x)`: the logarithm of the rounded sum, times what the rounding took from its argument's distance to 1.
///
/// Source: Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, problem 1.5.
#[inline(always)]
fn log1p_f32(x: f32) -> f32 {
    let sum = 1.0 + x;
    let log = log_f32(sum);
    if sum == 1.0 {
        x
    } else if sum == f32::INFINITY {
        log
    } else {
        log * (x / (sum - 1.0))
    }
}

macro_rules! integer {
    ($t:ident, $abs:expr) => {
        impl Number for $t {
            fn map(op: MapOp, a: &[Self], b: &[Self], out: &mut [Self]) {
                match op {
                    MapOp::Neg => each(a, b, out, |a, _| a.wrapping_neg()),
                    MapOp::Abs => each(a, b, out, |a, _| $abs(a)),
                    MapOp::Add => each(a, b, out, $t::wrapping_add),
                    MapOp::Sub => each(a, b, out, $t::wrapping_sub),
                    MapOp::Mul => each(a, b, out, $t::wrapping_mul),
                    MapOp::Maximum => each(a, b, out, |a, b| if a > b { a } else { b }),
                    MapOp::Minimum => each(a, b, out, |a, b| if a < b { a } else { b }),
                    MapOp::Floor | MapOp::Ceil | MapOp::Round => each(a, b, out, |a, _| a),
                    MapOp::Exp
                    | MapOp::Log
                    | MapOp::Log1p
                    | MapOp::Sqrt
                    | MapOp::Div
                    | MapOp::Pow
                    | MapOp::Sin
                    | MapOp::Cos => {
                        unreachable!("of floats only: `map` checks the dtype")
                    }
                }
            }
            fn of(scalar: Scalar) -> Self {
                scalar.to_i64() as $t
            }
        }
    };
}
integer!(i64, i64::wrapping_abs);
integer!(i32, i32::wrapping_abs);
integer!(u8, |a| a);

/// An operand of cells `C`.
#[derive(Clone, Copy)]
enum Source<'a, C: Cell> {
    Cells(&'a [C], Cycle),
    Value(C::Number),
}

impl<'a, C: Cell<Number: Number>> Source<'a, C> {
    fn new(op: &'static str, ready: Ready<'a>) -> Result<Self> {
        Ok(match ready {
            Ready::Tensor(x, cycle) => Source::Cells(bytemuck::cast_slice(x.as_bytes(op, "operand")?), cycle),
            Ready::Scalar(scalar) => Source::Value(C::Number::of(scalar)),
        })
    }

    /// Asks for elements `range` of a result of `n` elements ahead of time, where they come from memory one by one.
    fn prefetch(&self, range: Range<usize>, n: usize) {
        if let Source::Cells(cells, cycle) = self
            && cycle.is_identity(n)
        {
            prefetch(bytemuck::cast_slice(&cells[range]));
        }
    }

    /// The numbers of elements `range` of a result of `n` elements: in place if possible, else in `block`.
    fn numbers<'b>(
        &'b self,
        range: Range<usize>,
        n: usize,
        block: &'b mut Block<C::Number>,
    ) -> &'b [C::Number] {
        match *self {
            Source::Cells(cells, cycle) if cycle.is_identity(n) => block.load(&cells[range]),
            // Within one repetition.
            Source::Cells(cells, cycle @ Cycle { div: 1, len, .. })
                if range.start % len + range.len() <= len =>
            {
                block.load(&cells[cycle.at(range.start)..][..range.len()])
            }
            Source::Cells(cells, cycle) => {
                block.fill_from(range.len(), |out| repeat(cells, cycle, range.start, out, C::load))
            }
            Source::Value(value) => block.filled(value, range.len()),
        }
    }
}

/// `out[i] = load(cells[cycle.at(start + i)])`.
fn repeat<C: Copy, N: Copy>(cells: &[C], cycle: Cycle, start: usize, out: &mut [N], load: impl Fn(C) -> N) {
    let Cycle { div, len, .. } = cycle;
    let mut i = 0;
    while i < out.len() {
        let at = start + i;
        let (outer, element) = (cycle.outer(at), cycle.inner(at));
        if div > 1 {
            let run = (div - at % div).min(out.len() - i);
            out[i..i + run].fill(load(cells[outer + element]));
            i += run;
        } else {
            let run = (len - element).min(out.len() - i);
            for (out, &cell) in out[i..i + run].iter_mut().zip(&cells[outer + element..][..run]) {
                *out = load(cell);
            }
            i += run;
        }
    }
}

/// `out = op(a, b)`; of one dtype, as checked.
pub(super) fn map(op: MapOp, a: Ready<'_>, b: Ready<'_>, out: TensorMut<'_>) -> Result<()> {
    let dtype = out.dtype();
    let bytes = out.into_bytes(op.name(), "out")?;
    with_cells!(dtype, C => {
        let (a, b) = (Source::<C>::new(op.name(), a)?, Source::<C>::new(op.name(), b)?);
        map_cells(op, a, b, bytemuck::cast_slice_mut(bytes));
        Ok(())
    })
}

fn map_cells<C: Cell<Number: Number>>(
    op: MapOp,
    a_source: Source<'_, C>,
    b_source: Source<'_, C>,
    out: &mut [C],
) {
    let n = out.len();
    let is_far = size_of_val(out) >= FAR_BYTES;
    let out = SharedMut::new(out);
    for_parts(n, MIN_PART, BLOCK, |part| {
        let (mut a_block, mut b_block, mut numbers) = (Block::new(), Block::new(), Block::new());
        let mut cells = Block::<C>::new();
        for start in part.clone().step_by(BLOCK) {
            let range = start..(start + BLOCK).min(part.end);
            let a = a_source.numbers(range.clone(), n, &mut a_block);
            let b = b_source.numbers(range.clone(), n, &mut b_block);
            if is_far && prefetch_pays() {
                let next = range.end..(range.end + BLOCK).min(part.end);
                [a_source, b_source].iter().for_each(|source| source.prefetch(next.clone(), n));
            }
            // SAFETY: the range lies within `out`, in this thread's part alone.
            let out = unsafe { out.slice(range) };
            match C::numbers_mut(out) {
                Some(out) if !is_far => C::Number::map(op, a, b, out),
                _ => {
                    let numbers = numbers.first(out.len());
                    C::Number::map(op, a, b, numbers);
                    match C::from_numbers(numbers) {
                        Some(cells) if is_far => {
                            stream_unfenced(bytemuck::cast_slice_mut(out), bytemuck::cast_slice(cells))
                        }
                        _ if is_far => {
                            let cells = cells.first(out.len());
                            C::store_all(numbers, cells);
                            stream_unfenced(bytemuck::cast_slice_mut(out), bytemuck::cast_slice(cells));
                        }
                        _ => C::store_all(numbers, out),
                    }
                }
            }
        }
        if is_far {
            fence();
        }
    });
}

/// `out = op(a, b)` as 0 or 1.
pub(super) fn compare(op: CompareOp, dtype: DType, a: Ready<'_>, b: Ready<'_>, out: &mut [u8]) -> Result<()> {
    with_cells!(dtype, C => {
        let (a, b) = (Source::<C>::new(op.name(), a)?, Source::<C>::new(op.name(), b)?);
        blocks(out, |range, n, out| {
            let (mut a_block, mut b_block) = (Block::new(), Block::new());
            let (a, b) = (a.numbers(range.clone(), n, &mut a_block), b.numbers(range, n, &mut b_block));
            match op {
                CompareOp::Eq => each(a, b, out, |a, b| u8::from(a == b)),
                CompareOp::Lt => each(a, b, out, |a, b| u8::from(a < b)),
                CompareOp::Gt => each(a, b, out, |a, b| u8::from(a > b)),
                CompareOp::Ne => each(a, b, out, |a, b| u8::from(a != b)),
                CompareOp::Le => each(a, b, out, |a, b| u8::from(a <= b)),
                CompareOp::Ge => each(a, b, out, |a, b| u8::from(a >= b)),
            }
        });
        Ok(())
    })
}

/// `out = condition ? a : b`.
pub(super) fn select(
    condition: &[u8],
    cycle: Cycle,
    a: Ready<'_>,
    b: Ready<'_>,
    out: TensorMut<'_>,
) -> Result<()> {
    const OP: &str = "where_";
    let dtype = out.dtype();
    let bytes = out.into_bytes(OP, "out")?;
    let condition = Source::<u8>::Cells(condition, cycle);
    with_cells!(dtype, C => {
        let (a, b) = (Source::<C>::new(OP, a)?, Source::<C>::new(OP, b)?);
        blocks(bytemuck::cast_slice_mut::<u8, C>(bytes), |range, n, out| {
            let (mut c_block, mut a_block, mut b_block) = (Block::new(), Block::new(), Block::new());
            let condition = condition.numbers(range.clone(), n, &mut c_block);
            let (a, b) = (a.numbers(range.clone(), n, &mut a_block), b.numbers(range, n, &mut b_block));
            for (((out, &c), &a), &b) in out.iter_mut().zip(condition).zip(a).zip(b) {
                *out = C::store(if c != 0 { a } else { b });
            }
        });
        Ok(())
    })
}

/// Calls `f` with the range of each block, the number of all elements and the block of `out`.
fn blocks<T: Element>(out: &mut [T], f: impl Fn(Range<usize>, usize, &mut [T]) + Sync) {
    let n = out.len();
    let out = SharedMut::new(out);
    for_parts(n, MIN_PART, BLOCK, |part| {
        for start in part.clone().step_by(BLOCK) {
            let range = start..(start + BLOCK).min(part.end);
            // SAFETY: the range lies within `out`, in this thread's part alone.
            f(range.clone(), n, unsafe { out.slice(range) });
        }
    });
}
