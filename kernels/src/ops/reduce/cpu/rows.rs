//! Reductions of contiguous elements.

use super::{BLOCK, Partial, ReduceCell, Wide, better, wins};
use crate::Element;
use crate::cpu::cell::Block;
use crate::cpu::copy::{prefetch_at, prefetch_pays};
use crate::cpu::simd::vectorize;
use crate::ops::reduce::ReduceOp;

/// Elements up to which a row is short: its quarters may lie in one page of memory.
pub(super) const SHORT: usize = 4096;
/// Numbers among which the largest is searched for again, to know its index: they stay in a second-level cache, and their quarters lie
/// in pages of their own.
const SEARCHED: usize = 4 * SHORT;
/// Bytes from a group of numbers to what is fetched meanwhile: a page of memory.
const AHEAD: usize = 4096;
/// Independent partial results in vector registers.
const LANES: usize = 32;
/// Partial results of each of four rows.
const ROW_LANES: usize = LANES / 4;

/// The results of rows of `len` contiguous numbers, four at a time; `write` takes each by its index.
///
/// The four are far apart, for the reason of [`quarters`].
pub(super) fn short_rows<C: ReduceCell>(
    op: ReduceOp,
    numbers: &[C::Number],
    len: usize,
    write: impl FnMut(usize, C::Wide),
) {
    let zero = Some(C::Wide::ZERO);
    match op {
        ReduceOp::Sum | ReduceOp::Mean => fold_rows(numbers, len, zero, C::wide, C::Wide::add, write),
        ReduceOp::Norm => fold_rows(
            numbers,
            len,
            zero,
            #[inline(always)]
            |number| C::wide(number).square(),
            C::Wide::add,
            write,
        ),
        ReduceOp::Min => fold_rows(
            numbers,
            len,
            None,
            C::wide,
            #[inline(always)]
            |best, later| better(ReduceOp::Min, best, later),
            write,
        ),
        ReduceOp::Max | ReduceOp::ArgMax => fold_rows(
            numbers,
            len,
            None,
            C::wide,
            #[inline(always)]
            |best, later| better(ReduceOp::Max, best, later),
            write,
        ),
    }
}

/// `f` over `start` (the first number of a row if there is none) and `wide` of each number of a row.
fn fold_rows<N: Copy, W: Wide>(
    numbers: &[N],
    len: usize,
    start: Option<W>,
    wide: impl Fn(N) -> W,
    f: impl Fn(W, W) -> W,
    mut write: impl FnMut(usize, W),
) {
    let ahead = prefetch_pays();
    vectorize(
        #[inline(always)]
        || {
            let n_rows = numbers.len() / len;
            let n_first = n_rows.div_ceil(4);
            for first in 0..n_first {
                // Where rows are missing, the last one is taken again.
                let indices = [0, 1, 2, 3].map(|i| (first + i * n_first).min(n_rows - 1));
                let rows = indices.map(|i| &numbers[i * len..][..len]);
                let starts = rows.map(|row| start.unwrap_or(wide(row[0])));
                let results = fold_four(rows, starts, ahead, &wide, &f);
                indices.into_iter().zip(results).for_each(|(i, result)| write(i, result));
            }
        },
    );
}

#[inline(always)]
fn fold_four<N: Copy, W: Wide>(
    rows: [&[N]; 4],
    starts: [W; 4],
    ahead: bool,
    wide: impl Fn(N) -> W,
    f: impl Fn(W, W) -> W,
) -> [W; 4] {
    let groups = rows.map(|row| row.as_chunks::<ROW_LANES>());
    let [(a, _), (b, _), (c, _), (d, _)] = groups;
    let mut lanes = starts.map(|start| [start; ROW_LANES]);
    for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
        if ahead {
            fetch_ahead([a, b, c, d]);
        }
        for i in 0..ROW_LANES {
            lanes[0][i] = f(lanes[0][i], wide(a[i]));
            lanes[1][i] = f(lanes[1][i], wide(b[i]));
            lanes[2][i] = f(lanes[2][i], wide(c[i]));
            lanes[3][i] = f(lanes[3][i], wide(d[i]));
        }
    }
    let mut results = starts;
    for ((result, mut lanes), (_, rest)) in results.iter_mut().zip(lanes).zip(groups) {
        for (lane, &number) in lanes.iter_mut().zip(rest) {
            *lane = f(*lane, wide(number));
        }
        let mut n = ROW_LANES;
        while n > 1 {
            n /= 2;
            for i in 0..n {
                lanes[i] = f(lanes[i], lanes[i + n]);
            }
        }
        *result = lanes[0];
    }
    results
}

/// The result over contiguous elements, at least one, the first of which has this index along the axis.
pub(super) fn row<C: ReduceCell>(
    op: ReduceOp,
    x: &[C],
    first_index: i64,
    block: &mut Block<C::Number>,
) -> Partial<C::Wide> {
    let mut result: Option<Partial<C::Wide>> = None;
    let in_place = C::as_numbers(x);
    let len = match in_place {
        None => BLOCK,
        Some(_) if op == ReduceOp::ArgMax => SEARCHED,
        Some(_) => x.len(),
    };
    for (i, cells) in x.chunks(len).enumerate() {
        let numbers = match in_place {
            Some(numbers) => &numbers[i * len..][..cells.len()],
            None => block.load(cells),
        };
        let start = first_index + (i * len) as i64;
        let partial = match op {
            ReduceOp::Sum | ReduceOp::Mean => Partial { value: sum(numbers, C::wide), index: 0 },
            ReduceOp::Norm => {
                let value = sum(
                    numbers,
                    #[inline(always)]
                    |v| C::wide(v).square(),
                );
                Partial { value, index: 0 }
            }
            ReduceOp::Max | ReduceOp::Min | ReduceOp::ArgMax => {
                let best = best(op, numbers);
                let is_new =
                    op == ReduceOp::ArgMax && result.is_none_or(|old| wins(op, C::wide(best), old.value));
                let at = if is_new { position(numbers, best) } else { 0 };
                Partial { value: C::wide(best), index: start + at as i64 }
            }
        };
        result = Some(result.map_or(partial, |result| result.and(op, partial)));
    }
    result.unwrap_or(Partial { value: C::Wide::ZERO, index: 0 })
}

/// Four neighbouring quarters of whole groups of [`LANES`], and the rest.
///
/// Read side by side: a processor fetches ahead within a page of memory only, and so from four at a time.
#[inline(always)]
fn quarters<N>(numbers: &[N]) -> ([&[[N; LANES]]; 4], &[N]) {
    let (groups, _) = numbers.as_chunks::<LANES>();
    let n = groups.len() / 4;
    let quarter = |i: usize| &groups[i * n..][..n];
    ([quarter(0), quarter(1), quarter(2), quarter(3)], &numbers[4 * n * LANES..])
}

/// Fetches what lies [`AHEAD`] behind each of these groups.
#[inline(always)]
fn fetch_ahead<N, const L: usize>(groups: [&[N; L]; 4]) {
    for group in groups {
        prefetch_at(group.as_ptr().wrapping_byte_add(AHEAD), size_of_val(group));
    }
}

/// The sum of `wide` of each number, in [`LANES`] partial sums.
fn sum<N: Copy, W: Wide>(numbers: &[N], wide: impl Fn(N) -> W) -> W {
    let ahead = prefetch_pays();
    vectorize(
        #[inline(always)]
        || {
            let ([a, b, c, d], rest) = quarters(numbers);
            let mut lanes = [W::ZERO; LANES];
            for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
                if ahead {
                    fetch_ahead([a, b, c, d]);
                }
                for i in 0..LANES {
                    lanes[i] = lanes[i].add(wide(a[i])).add(wide(b[i])).add(wide(c[i])).add(wide(d[i]));
                }
            }
            let (chunks, rest) = rest.as_chunks::<LANES>();
            for chunk in chunks {
                for i in 0..LANES {
                    lanes[i] = lanes[i].add(wide(chunk[i]));
                }
            }
            // In an array of their own: lanes that a loop of unknown length writes would not stay in registers.
            let mut last = [W::ZERO; LANES];
            for (last, &number) in last.iter_mut().zip(rest) {
                *last = wide(number);
            }
            for i in 0..LANES {
                lanes[i] = lanes[i].add(last[i]);
            }
            let mut n = LANES;
            while n > 1 {
                n /= 2;
                for i in 0..n {
                    lanes[i] = lanes[i].add(lanes[i + n]);
                }
            }
            lanes[0]
        },
    )
}

/// The index of the first number that is `best`, or NaN if `best` is.
pub(super) fn position<N: Element>(numbers: &[N], best: N) -> usize {
    if is_nan(&best) {
        return numbers.iter().position(is_nan).unwrap_or(0);
    }
    let start = vectorize(
        #[inline(always)]
        || {
            let (groups, _) = numbers.as_chunks::<LANES>();
            for (i, group) in groups.iter().enumerate() {
                let mut found = 0_u32;
                for number in group {
                    found |= u32::from(*number == best);
                }
                if found != 0 {
                    return i * LANES;
                }
            }
            groups.len() * LANES
        },
    );
    start + numbers[start..].iter().position(|number| *number == best).unwrap_or(0)
}

/// The largest or smallest of at least one number, or a NaN.
fn best<N: Element>(op: ReduceOp, numbers: &[N]) -> N {
    // Two loops, since a test of `op` within would keep them from vectorising.
    let without_nan = if op == ReduceOp::Min {
        fold(
            numbers,
            #[inline(always)]
            |a, b| if b < a { b } else { a },
        )
    } else {
        fold(
            numbers,
            #[inline(always)]
            |a, b| if b > a { b } else { a },
        )
    };
    let first_nan = || numbers.iter().copied().find(is_nan);
    without_nan.or_else(first_nan).expect("a number, or a NaN among them")
}

#[inline(always)]
#[allow(clippy::eq_op)] // NaN differs from itself.
pub(super) fn is_nan<N: Element>(number: &N) -> bool {
    *number != *number
}

/// `f` over at least one number, unless one of them is NaN.
///
/// Comparisons that know of NaN would take three times as many instructions.
fn fold<N: Element>(numbers: &[N], f: impl Fn(N, N) -> N) -> Option<N> {
    let ahead = prefetch_pays();
    vectorize(
        #[inline(always)]
        || {
            let ([a, b, c, d], rest) = quarters(numbers);
            let mut lanes = [numbers[0]; LANES];
            // Of the width of most numbers: flags of one byte are converted at each step.
            let mut nan = [0_u32; LANES];
            for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
                if ahead {
                    fetch_ahead([a, b, c, d]);
                }
                for i in 0..LANES {
                    lanes[i] = f(f(f(f(lanes[i], a[i]), b[i]), c[i]), d[i]);
                    nan[i] |= u32::from(is_nan(&a[i]) | is_nan(&b[i]) | is_nan(&c[i]) | is_nan(&d[i]));
                }
            }
            let has_nan = nan.iter().any(|&nan| nan != 0) || rest.iter().any(is_nan);
            let mut result = lanes[0];
            for &number in lanes[1..].iter().chain(rest) {
                result = f(result, number);
            }
            (!has_nan).then_some(result)
        },
    )
}
