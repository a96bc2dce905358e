//! Reductions of contiguous elements.

use super::number::{BLOCK, Partial, ReduceCell, ReduceNumber, Wide, each_of_four, wins};
use crate::Element;
use crate::cpu::cell::Block;
use crate::cpu::copy::{prefetch_at, prefetch_pays};
use crate::cpu::simd::vectorize;
use crate::ops::reduce::ReduceOp;

/// Elements up to which a row is short: its quarters may lie in one page of memory.
pub(super) const SHORT: usize = 4096;
/// Numbers among which the largest is searched for again, to know its index: they stay in a second-level cache, and their quarters are
/// long enough for a processor to fetch ahead.
const SEARCHED: usize = 8 * SHORT;
/// Bytes from a group of numbers to what is fetched meanwhile: a page of memory.
const AHEAD: usize = 4096;
/// Independent partial results in vector registers.
const LANES: usize = 32;
/// Partial results of each of four rows.
const ROW_LANES: usize = LANES / 4;
/// Numbers of a row among which the best is sought at a time.
const ROW_BLOCK: usize = 8 * ROW_LANES;

/// The results of rows of `len` contiguous numbers, four at a time; `write` takes them with their indices.
pub(super) fn short_rows<N: ReduceNumber>(
    op: ReduceOp,
    numbers: &[N],
    len: usize,
    write: &mut dyn FnMut([usize; 4], [N::Wide; 4]),
) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => sum_rows(numbers, len, N::wide, write),
        ReduceOp::Norm => sum_rows(
            numbers,
            len,
            #[inline(always)]
            |number| number.wide().square(),
            write,
        ),
        ReduceOp::Max | ReduceOp::Min | ReduceOp::ArgMax => best_rows(op, numbers, len, write),
    }
}

/// The index of the first of the largest in each row of at most [`SHORT`] numbers, four rows at a time; None for a row with NaN. `write`
/// takes each by the row's index.
///
/// The largest of each block is kept, so that its place is sought among those and in one block: reading a row a second time, though it
/// lies in the cache by then, would keep memory waiting.
pub(super) fn first_largest_rows<N: Element>(
    numbers: &[N],
    len: usize,
    write: &mut dyn FnMut(usize, Option<i64>),
) {
    let Some(&first) = numbers.first() else { return };
    let ahead = prefetch_pays();
    let mut kept = [[[first; ROW_LANES]; SHORT / ROW_BLOCK]; 4];
    vectorize(
        #[inline(always)]
        || {
            for_four_rows(
                numbers,
                len,
                #[inline(always)]
                |indices, rows| {
                    let (largest, has_nan) = best_of_four(
                        rows,
                        ahead,
                        larger,
                        #[inline(always)]
                        |row, block, lanes| kept[row][block] = lanes,
                    );
                    for r in 0..4 {
                        let place = if has_nan && rows[r].iter().any(is_nan) {
                            None
                        } else {
                            let (blocks, rest) = rows[r].as_chunks::<ROW_BLOCK>();
                            let in_kept = position_nearby(kept[r][..blocks.len()].as_flattened(), largest[r]);
                            let block = in_kept.map_or(blocks.len(), |i| i / ROW_LANES);
                            let numbers = blocks.get(block).map_or(rest, |block| &block[..]);
                            position_nearby(numbers, largest[r]).map(|i| (block * ROW_BLOCK + i) as i64)
                        };
                        write(indices[r], place);
                    }
                },
            );
        },
    );
}

/// The largest or smallest of each row, or a NaN, four rows at a time; `write` takes them with their indices.
fn best_rows<N: ReduceNumber>(
    op: ReduceOp,
    numbers: &[N],
    len: usize,
    write: &mut dyn FnMut([usize; 4], [N::Wide; 4]),
) {
    let ahead = prefetch_pays();
    // Two loops, since a test of `op` within would keep them from vectorizing.
    vectorize(
        #[inline(always)]
        || {
            for_four_rows(
                numbers,
                len,
                #[inline(always)]
                |indices, rows| {
                    let (mut best, has_nan) = if op == ReduceOp::Min {
                        best_of_four(rows, ahead, smaller, |_, _, _| ())
                    } else {
                        best_of_four(rows, ahead, larger, |_, _, _| ())
                    };
                    if has_nan {
                        for (best, row) in best.iter_mut().zip(rows) {
                            *best = row.iter().copied().find(is_nan).unwrap_or(*best);
                        }
                    }
                    write(indices, each_of_four(best, N::wide));
                },
            );
        },
    );
}

/// The sum of `wide` of each number of a row.
fn sum_rows<N: Copy, W: Wide>(
    numbers: &[N],
    len: usize,
    wide: impl Fn(N) -> W,
    write: &mut dyn FnMut([usize; 4], [W; 4]),
) {
    let ahead = prefetch_pays();
    vectorize(
        #[inline(always)]
        || {
            for_four_rows(
                numbers,
                len,
                #[inline(always)]
                |indices, rows| write(indices, sum_of_four(rows, ahead, &wide)),
            );
        },
    );
}

/// Calls `f` with four rows and their indices at a time, which are far apart for the reason of [`quarters`].
#[inline(always)]
fn for_four_rows<N>(numbers: &[N], len: usize, mut f: impl FnMut([usize; 4], [&[N]; 4])) {
    let n_rows = numbers.len() / len;
    let n_first = n_rows.div_ceil(4);
    for first in 0..n_first {
        // Where rows are missing, the last one is taken again.
        let indices = each_of_four([0, 1, 2, 3], |i| (first + i * n_first).min(n_rows - 1));
        f(indices, each_of_four(indices, |i| &numbers[i * len..][..len]));
    }
}

/// The best number of each row by `f`, which knows nothing of NaN, and whether there is a NaN in one of the rows. `keep` takes the best
/// numbers of each whole block, one of each lane, with the indices of row and block.
#[inline(always)]
fn best_of_four<N: Element>(
    rows: [&[N]; 4],
    ahead: bool,
    f: impl Fn(N, N) -> N,
    mut keep: impl FnMut(usize, usize, [N; ROW_LANES]),
) -> ([N; 4], bool) {
    let mut lanes = each_of_four(rows, |row| [row[0]; ROW_LANES]);
    // Of the width of most numbers: flags of one byte are converted at each step.
    let mut nan = [0_u32; ROW_LANES];
    let [(a, _), (b, _), (c, _), (d, _)] = each_of_four(rows, |row| row.as_chunks::<ROW_BLOCK>());
    for (i, (((a, b), c), d)) in a.iter().zip(b).zip(c).zip(d).enumerate() {
        if ahead {
            fetch_ahead([a, b, c, d]);
        }
        keep(0, i, add_best(&mut lanes[0], &mut nan, a, &f));
        keep(1, i, add_best(&mut lanes[1], &mut nan, b, &f));
        keep(2, i, add_best(&mut lanes[2], &mut nan, c, &f));
        keep(3, i, add_best(&mut lanes[3], &mut nan, d, &f));
    }
    let mut has_nan = nan != [0; ROW_LANES];
    let mut best = each_of_four(rows, |row| row[0]);
    for ((best, mut lanes), row) in best.iter_mut().zip(lanes).zip(rows) {
        for numbers in row.as_chunks::<ROW_BLOCK>().1.chunks(ROW_LANES) {
            for (lane, &number) in lanes.iter_mut().zip(numbers) {
                *lane = f(*lane, number);
                has_nan |= is_nan(&number);
            }
        }
        *best = across(lanes, &f);
    }
    (best, has_nan)
}

/// `lanes = f(lanes, ..)` over the numbers of a block, which lie in registers meanwhile; returns the block's own results.
#[inline(always)]
fn add_best<N: Element>(
    lanes: &mut [N; ROW_LANES],
    nan: &mut [u32; ROW_LANES],
    block: &[N; ROW_BLOCK],
    f: impl Fn(N, N) -> N,
) -> [N; ROW_LANES] {
    let (groups, _) = block.as_chunks::<ROW_LANES>();
    let mut best = groups[0];
    for group in &groups[1..] {
        for i in 0..ROW_LANES {
            best[i] = f(best[i], group[i]);
        }
    }
    for i in 0..ROW_LANES {
        lanes[i] = f(lanes[i], best[i]);
    }
    for [a, b, c, d] in groups.as_chunks::<4>().0 {
        for i in 0..ROW_LANES {
            nan[i] |= u32::from(is_nan(&a[i]) | is_nan(&b[i]) | is_nan(&c[i]) | is_nan(&d[i]));
        }
    }
    best
}

/// `f` over the results of all lanes.
#[inline(always)]
fn across<W: Copy>(mut lanes: [W; ROW_LANES], f: impl Fn(W, W) -> W) -> W {
    let mut n = ROW_LANES;
    while n > 1 {
        n /= 2;
        for i in 0..n {
            lanes[i] = f(lanes[i], lanes[i + n]);
        }
    }
    lanes[0]
}

#[inline(always)]
fn sum_of_four<N: Copy, W: Wide>(rows: [&[N]; 4], ahead: bool, wide: impl Fn(N) -> W) -> [W; 4] {
    let groups = each_of_four(rows, |row| row.as_chunks::<ROW_LANES>());
    let [(a, _), (b, _), (c, _), (d, _)] = groups;
    let mut lanes = [[W::ZERO; ROW_LANES]; 4];
    for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
        if ahead {
            fetch_ahead([a, b, c, d]);
        }
        for i in 0..ROW_LANES {
            lanes[0][i] = lanes[0][i].add(wide(a[i]));
            lanes[1][i] = lanes[1][i].add(wide(b[i]));
            lanes[2][i] = lanes[2][i].add(wide(c[i]));
            lanes[3][i] = lanes[3][i].add(wide(d[i]));
        }
    }
    let mut results = [W::ZERO; 4];
    for ((result, mut lanes), (_, rest)) in results.iter_mut().zip(lanes).zip(groups) {
        for (lane, &number) in lanes.iter_mut().zip(rest) {
            *lane = lane.add(wide(number));
        }
        *result = across(lanes, W::add);
    }
    results
}

/// The result over contiguous elements, at least one, the first of which has this index along the axis. The index of the result is its
/// own for [`ReduceOp::ArgMax`], for others the index of the first element of the block in which it lies.
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
        let best = result.filter(|_| op == ReduceOp::ArgMax).map(|result| result.value);
        let Partial { value, index } = reduce_numbers(op, numbers, best);
        let partial = Partial { value, index: start + index };
        result = Some(result.map_or(partial, |result| result.and(op, partial)));
    }
    result.unwrap_or(Partial { value: C::Wide::ZERO, index: 0 })
}

/// The result over at least one number. For [`ReduceOp::ArgMax`] its index is its own, unless it does not win against `best_before`;
/// otherwise the index is 0.
fn reduce_numbers<N: ReduceNumber>(
    op: ReduceOp,
    numbers: &[N],
    best_before: Option<N::Wide>,
) -> Partial<N::Wide> {
    let value = match op {
        ReduceOp::Sum | ReduceOp::Mean => sum(numbers, N::wide),
        ReduceOp::Norm => sum(
            numbers,
            #[inline(always)]
            |number| number.wide().square(),
        ),
        ReduceOp::Max | ReduceOp::Min | ReduceOp::ArgMax => {
            let best = best(op, numbers);
            let is_new =
                op == ReduceOp::ArgMax && best_before.is_none_or(|before| wins(op, best.wide(), before));
            let at = if is_new { position(numbers, best) } else { 0 };
            return Partial { value: best.wide(), index: at as i64 };
        }
    };
    Partial { value, index: 0 }
}

/// Four adjacent quarters of whole groups of [`LANES`], and the rest.
///
/// Read side by side: a processor fetches ahead within a page of memory only, and so from four at a time.
#[inline(always)]
fn quarters<N>(numbers: &[N]) -> ([&[[N; LANES]]; 4], &[N]) {
    let (groups, _) = numbers.as_chunks::<LANES>();
    let n = groups.len() / 4;
    let quarter = |i: usize| &groups[i * n..][..n];
    ([quarter(0), quarter(1), quarter(2), quarter(3)], &numbers[4 * n * LANES..])
}

/// Prefetches the memory [`AHEAD`] of each of these groups.
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

/// The index of the first number that equals `best`, found without a branch that a processor could not predict: faster for numbers in
/// its L1 cache.
#[inline(always)]
fn position_nearby<N: Element>(numbers: &[N], best: N) -> Option<usize> {
    let mut least = u32::MAX;
    for (i, &number) in (0..).zip(numbers) {
        least = least.min(if number == best { i } else { u32::MAX });
    }
    (least != u32::MAX).then_some(least as usize)
}

/// The largest or smallest of at least one number, or a NaN.
fn best<N: Element>(op: ReduceOp, numbers: &[N]) -> N {
    // Two loops, since a test of `op` within would keep them from vectorizing.
    let without_nan = if op == ReduceOp::Min { fold(numbers, smaller) } else { fold(numbers, larger) };
    let first_nan = || numbers.iter().copied().find(is_nan);
    without_nan.or_else(first_nan).expect("a number, or a NaN among them")
}

/// The larger of two numbers, and `a` if one of them is NaN.
#[inline(always)]
fn larger<N: Element>(a: N, b: N) -> N {
    if b > a { b } else { a }
}

/// The smaller of two numbers, and `a` if one of them is NaN.
#[inline(always)]
fn smaller<N: Element>(a: N, b: N) -> N {
    if b < a { b } else { a }
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
