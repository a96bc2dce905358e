//! Tiles of a product: sums in vector registers.

use super::matrix::{Block, steps};
use crate::cpu::copy::prefetch_at;
use crate::cpu::float::Float;
use crate::cpu::lanes::Lanes;
use crate::cpu::simd::Avx2;

/// Rows of a tile: 6 by 2 sums, 2 registers of `b` and one of `a` are 15 of 16 registers.
pub(super) const ROWS: usize = 6;

/// Columns of a tile.
pub(super) const fn cols<T: Float>() -> usize {
    2 * T::Lanes::LEN
}

/// The use of a tile's sums.
#[derive(Clone, Copy)]
pub(super) enum Write<T> {
    /// They are the elements of `c`.
    Set,
    /// They are added to `c`.
    Add,
    /// `alpha·sums + beta·c`.
    Scaled { alpha: T, beta: T },
}

impl<T: Float> Write<T> {
    pub(super) fn new(alpha: T, beta: T) -> Self {
        match (alpha == T::ONE, beta == T::ZERO, beta == T::ONE) {
            (true, true, _) => Write::Set,
            (true, _, true) => Write::Add,
            _ => Write::Scaled { alpha, beta },
        }
    }
}

/// Adds the products of `n_terms` terms to `c`: all rows of `a` by one panel of `b`.
pub(super) fn strip<T: Float>(
    avx2: Avx2,
    write: Write<T>,
    n_terms: usize,
    a: &[T],
    b: &[T],
    mut c: Block<'_, T>,
) {
    let (rows, cols) = c.rows_and_cols();
    for group in steps(0..rows.len(), ROWS) {
        let n_rows = group.len();
        let a = &a[group.start * n_terms..][..n_rows * n_terms];
        let c = c.part(group, 0..cols.len());
        match n_rows {
            1 => one(avx2, write, a, b, c),
            2 => two(avx2, write, a, b, c),
            3 => three(avx2, write, a, b, c),
            4 => four(avx2, write, a, b, c),
            5 => five(avx2, write, a, b, c),
            _ => six(avx2, write, a, b, c),
        }
    }
}

/// Each function adds the products of all terms to a tile. The sums of a row are a variable of their own, because the compiler keeps an
/// array of them in memory.
macro_rules! tiles {
    ($($name:ident: $n_rows:literal = $($sum:ident $i:literal)+;)+) => {$(
        fn $name<T: Float>(avx2: Avx2, write: Write<T>, a: &[T], b: &[T], mut c: Block<'_, T>) {
            avx2.run(#[inline(always)] || {
                let (rows, cols_of_c) = c.rows_and_cols();
                $({
                    // Its first and its last element: two cache lines at most.
                    let row = c.row(rows.start + $i);
                    prefetch_at(row.as_ptr(), 1);
                    prefetch_at(row.as_ptr().wrapping_add(row.len()), 1);
                })+
                let zero = T::Lanes::splat(avx2, T::ZERO);
                $(let mut $sum = [zero; 2];)+
                macro_rules! add_term {
                    ($a:expr, $b:expr) => {{
                        let (a, b) = ($a, $b);
                        let b0 = T::Lanes::load(avx2, b);
                        let b1 = T::Lanes::load(avx2, &b[T::Lanes::LEN..]);
                        $(
                            let a_lanes = T::Lanes::splat(avx2, a[$i]);
                            $sum = [a_lanes.mul_add(b0, $sum[0]), a_lanes.mul_add(b1, $sum[1])];
                        )+
                    }};
                }
                const UNROLLED: usize = 4;
                let mut a = a.chunks_exact(UNROLLED * $n_rows);
                let mut b = b.chunks_exact(UNROLLED * cols::<T>());
                for (a, b) in a.by_ref().zip(b.by_ref()) {
                    add_term!(a, b);
                    add_term!(&a[$n_rows..], &b[cols::<T>()..]);
                    add_term!(&a[2 * $n_rows..], &b[2 * cols::<T>()..]);
                    add_term!(&a[3 * $n_rows..], &b[3 * cols::<T>()..]);
                }
                for (a, b) in a.remainder().chunks_exact($n_rows).zip(b.remainder().chunks_exact(cols::<T>())) {
                    add_term!(a, b);
                }
                if cols_of_c.len() < cols::<T>() {
                    $(write_part(avx2, write, $sum, c.row(rows.start + $i));)+
                } else if let Write::Set = write {
                    $(store(avx2, Write::Set, $sum, c.row(rows.start + $i));)+
                } else {
                    $(store(avx2, write, $sum, c.row(rows.start + $i));)+
                }
            });
        }
    )+};
}
tiles! {
    one: 1 = s0 0;
    two: 2 = s0 0 s1 1;
    three: 3 = s0 0 s1 1 s2 2;
    four: 4 = s0 0 s1 1 s2 2 s3 3;
    five: 5 = s0 0 s1 1 s2 2 s3 3 s4 4;
    six: 6 = s0 0 s1 1 s2 2 s3 3 s4 4 s5 5;
}

/// [`store`] for fewer columns than a tile has.
#[inline(always)]
fn write_part<T: Float>(avx2: Avx2, write: Write<T>, sums: [T::Lanes; 2], to: &mut [T]) {
    // As many as the columns of a tile of f32, the most.
    let mut whole = [T::ZERO; 16];
    whole[..to.len()].copy_from_slice(to);
    store(avx2, write, sums, &mut whole);
    to.copy_from_slice(&whole[..to.len()]);
}

/// Writes a row of a tile.
#[inline(always)]
fn store<T: Float>(avx2: Avx2, write: Write<T>, sums: [T::Lanes; 2], to: &mut [T]) {
    let (to0, to1) = to[..cols::<T>()].split_at_mut(T::Lanes::LEN);
    for (sum, to) in [(sums[0], to0), (sums[1], to1)] {
        let sum = match write {
            Write::Set => sum,
            Write::Add => T::Lanes::load(avx2, to).mul_add(T::Lanes::splat(avx2, T::ONE), sum),
            Write::Scaled { alpha, beta } => {
                let sum = sum.mul_add(T::Lanes::splat(avx2, alpha), T::Lanes::splat(avx2, T::ZERO));
                if beta == T::ZERO {
                    sum
                } else {
                    T::Lanes::load(avx2, to).mul_add(T::Lanes::splat(avx2, beta), sum)
                }
            }
        };
        sum.store(to);
    }
}
