//! Converts elements of any dtype to the type that operations compute in, and back, block by block.

use half::{bf16, f16};

use super::simd::vectorize;
use crate::Element;
use crate::base::dtype::{bf16_of_f32, f16_of_f32, f32_of_bf16, f32_of_f16};

/// A stored element: the Rust type that has the bytes of a dtype (`u8` for bool).
pub(crate) trait Cell: Element {
    /// The type that operations compute in.
    type Number: Element;
    /// Converts the element to [`Cell::Number`], exactly.
    fn load(self) -> Self::Number;
    /// Rounds a number to the nearest value of this format.
    fn store(number: Self::Number) -> Self;
    /// Views the cells as numbers without a copy, if both are the same type.
    fn as_numbers(cells: &[Self]) -> Option<&[Self::Number]>;
    /// Same as [`Cell::as_numbers`], for writing.
    fn numbers_mut(cells: &mut [Self]) -> Option<&mut [Self::Number]>;
    /// Views numbers as cells without a copy, if both are the same type.
    fn from_numbers(numbers: &[Self::Number]) -> Option<&[Self]>;
    /// Returns the cells as numbers: in place if possible, else converted into `memory`.
    fn numbers_in<'a>(cells: &'a [Self], memory: &'a mut Vec<Self::Number>) -> &'a [Self::Number] {
        if let Some(numbers) = Self::as_numbers(cells) {
            return numbers;
        }
        memory.resize(cells.len(), Self::Number::ZERO);
        Self::load_all(cells, memory);
        memory
    }
    /// Calls `write` to write numbers to the cells: in place if possible, else through `memory`.
    fn write_numbers(
        cells: &mut [Self],
        memory: &mut Vec<Self::Number>,
        write: impl FnOnce(&mut [Self::Number]),
    ) {
        if let Some(numbers) = Self::numbers_mut(cells) {
            return write(numbers);
        }
        memory.resize(cells.len(), Self::Number::ZERO);
        write(memory);
        Self::store_all(memory, cells);
    }
    /// `numbers = cells`; equal lengths.
    fn load_all(cells: &[Self], numbers: &mut [Self::Number]) {
        vectorize(
            #[inline(always)]
            || {
                for (number, &cell) in numbers.iter_mut().zip(cells) {
                    *number = cell.load();
                }
            },
        );
    }
    /// `cells = numbers`, rounded; equal lengths.
    fn store_all(numbers: &[Self::Number], cells: &mut [Self]) {
        vectorize(
            #[inline(always)]
            || {
                for (cell, &number) in cells.iter_mut().zip(numbers) {
                    *cell = Self::store(number);
                }
            },
        );
    }
}

macro_rules! as_it_is {
    ($($t:ty),*) => {
        $(impl Cell for $t {
            type Number = $t;
            #[inline(always)]
            fn load(self) -> $t {
                self
            }
            #[inline(always)]
            fn store(number: $t) -> $t {
                number
            }
            fn as_numbers(cells: &[$t]) -> Option<&[$t]> {
                Some(cells)
            }
            fn numbers_mut(cells: &mut [$t]) -> Option<&mut [$t]> {
                Some(cells)
            }
            fn from_numbers(numbers: &[$t]) -> Option<&[$t]> {
                Some(numbers)
            }
        })*
    };
}
as_it_is!(f32, f64, i64, i32, u8);

macro_rules! short {
    ($($t:ty: $load:ident, $store:ident);*) => {
        $(impl Cell for $t {
            type Number = f32;
            #[inline(always)]
            fn load(self) -> f32 {
                $load(self)
            }
            #[inline(always)]
            fn store(number: f32) -> $t {
                $store(number)
            }
            fn as_numbers(_: &[$t]) -> Option<&[f32]> {
                None
            }
            fn numbers_mut(_: &mut [$t]) -> Option<&mut [f32]> {
                None
            }
            fn from_numbers(_: &[f32]) -> Option<&[$t]> {
                None
            }
        })*
    };
}
short!(bf16: f32_of_bf16, bf16_of_f32; f16: f32_of_f16, f16_of_f32);

/// A block of numbers that fits in the L1 cache.
pub(crate) struct Block<N> {
    numbers: [N; 2048],
    is_filled: bool,
}

impl<N: Element> Block<N> {
    /// Number of elements.
    pub(crate) const LEN: usize = 2048;

    pub(crate) fn new() -> Self {
        Block { numbers: [N::ZERO; 2048], is_filled: false }
    }

    /// The first `n` elements.
    pub(crate) fn first(&mut self, n: usize) -> &mut [N] {
        &mut self.numbers[..n]
    }

    /// The first `n` elements, after `fill` has written them.
    pub(crate) fn fill_from(&mut self, n: usize, fill: impl FnOnce(&mut [N])) -> &[N] {
        fill(self.first(n));
        &self.numbers[..n]
    }

    /// The first `n` elements, all equal to `value`, which must be the same in each call.
    pub(crate) fn filled(&mut self, value: N, n: usize) -> &[N] {
        if !self.is_filled {
            self.numbers.fill(value);
            self.is_filled = true;
        }
        &self.numbers[..n]
    }

    /// At most [`Block::LEN`] cells as numbers: in place if possible, else in this block.
    pub(crate) fn load<'a, C: Cell<Number = N>>(&'a mut self, cells: &'a [C]) -> &'a [N] {
        if let Some(numbers) = C::as_numbers(cells) {
            return numbers;
        }
        self.fill_from(cells.len(), |block| C::load_all(cells, block))
    }
}

/// Runs `$body` with `$c` as the [`Cell`] type of `$dtype`.
macro_rules! with_cells {
    ($dtype:expr, $c:ident => $body:expr) => {
        match $dtype {
            DType::F32 => {
                type $c = f32;
                $body
            }
            DType::F64 => {
                type $c = f64;
                $body
            }
            DType::BF16 => {
                type $c = bf16;
                $body
            }
            DType::F16 => {
                type $c = f16;
                $body
            }
            DType::I64 => {
                type $c = i64;
                $body
            }
            DType::I32 => {
                type $c = i32;
                $body
            }
            DType::U8 | DType::Bool => {
                type $c = u8;
                $body
            }
        }
    };
}
pub(crate) use with_cells;
