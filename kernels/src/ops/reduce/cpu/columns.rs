//! Reductions of columns.

use super::number::{BLOCK, Partial, ReduceCell, ReduceNumber, Wide, better, each_of_four, wins};
use crate::cpu::cell::Block;
use crate::cpu::copy::{prefetch_at, prefetch_pays};
use crate::cpu::simd::vectorize;
use crate::ops::reduce::ReduceOp;

/// Columns at a time, a cache line of most numbers.
const GROUP: usize = 16;
/// Bytes from a group of numbers to what is fetched meanwhile: half a page of memory.
const AHEAD: usize = 2048;

/// Running results of neighboring columns, in the L1 cache.
///
/// Rows shorter than a quarter of a block are taken several at a time, as one longer row whose groups are combined at the end.
pub(super) struct Columns<C: ReduceCell> {
    values: Vec<C::Wide>,
    indices: Vec<i64>,
    results: Vec<Partial<C::Wide>>,
    pub(super) block: Block<C::Number>,
}

impl<C: ReduceCell> Columns<C> {
    pub(super) fn new() -> Self {
        Columns { values: Vec::new(), indices: Vec::new(), results: Vec::new(), block: Block::new() }
    }

    /// The results of `n_columns` columns over `rows`; element 0 of `x` is at the first row and column, and rows are `stride`
    /// apart.
    pub(super) fn reduce(
        &mut self,
        op: ReduceOp,
        x: &[C],
        stride: usize,
        rows: std::ops::Range<usize>,
        n_columns: usize,
    ) -> &[Partial<C::Wide>] {
        let n_rows = rows.len();
        let is_whole = n_columns == stride;
        let at_once = if is_whole { (BLOCK / 2 / n_columns).clamp(1, n_rows) } else { 1 };
        self.start(op, &x[..n_columns * at_once], rows.start, n_columns);
        let mut next = at_once + self.add_quarters(op, x, stride, at_once..n_rows, at_once);
        while next < n_rows {
            let from = next;
            next = from + at_once;
            let n = n_columns * at_once.min(n_rows - from);
            let numbers = self.block.load(&x[from * stride..][..n]);
            let (values, indices) = (&mut self.values[..n], &mut self.indices[..n]);
            if op == ReduceOp::ArgMax {
                for (i, ((value, index), &number)) in values.iter_mut().zip(indices).zip(numbers).enumerate()
                {
                    let number = number.wide();
                    if wins(op, number, *value) {
                        (*value, *index) = (number, (rows.start + from + i / n_columns) as i64);
                    }
                }
            } else {
                add_one(op, values, numbers);
            }
        }
        self.results.clear();
        for column in 0..n_columns {
            let groups = (column..self.values.len()).step_by(n_columns);
            let partials = groups.map(|i| Partial { value: self.values[i], index: self.indices[i] });
            // Groups are interleaved, so the first of equal values is the one of the smallest index.
            let combined = partials.reduce(|a, b| {
                let is_tie =
                    op == ReduceOp::ArgMax && !wins(op, b.value, a.value) && !wins(op, a.value, b.value);
                if is_tie { Partial { index: a.index.min(b.index), ..a } } else { a.and(op, b) }
            });
            self.results.extend(combined);
        }
        &self.results
    }

    /// Results of the first row, or rows, alone.
    fn start(&mut self, op: ReduceOp, x: &[C], first_row: usize, n_columns: usize) {
        let first = |&number: &C::Number| {
            let wide = number.wide();
            if op == ReduceOp::Norm { wide.square() } else { wide }
        };
        self.values.clear();
        self.values.extend(self.block.load(x).iter().map(first));
        self.indices.clear();
        self.indices.extend((0..x.len()).map(|i| (first_row + i / n_columns) as i64));
    }

    /// Adds most of these rows, from four quarters of them at a time, and returns how many: each result is then loaded and stored
    /// once for four, and memory is read from four pages at a time.
    fn add_quarters(
        &mut self,
        op: ReduceOp,
        x: &[C],
        stride: usize,
        rows: std::ops::Range<usize>,
        at_once: usize,
    ) -> usize {
        let Some(numbers) = C::as_numbers(x).filter(|_| op != ReduceOp::ArgMax) else { return 0 };
        let n = self.values.len();
        let quarter = rows.len() / at_once / 4;
        for i in 0..quarter {
            let of_quarter = |k: usize| &numbers[(rows.start + (k * quarter + i) * at_once) * stride..][..n];
            add_four(op, &mut self.values, each_of_four([0, 1, 2, 3], of_quarter), at_once * stride);
        }
        4 * quarter * at_once
    }
}

/// Adds one number to each result; not for [`ReduceOp::ArgMax`].
fn add_one<N: ReduceNumber>(op: ReduceOp, values: &mut [N::Wide], numbers: &[N]) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => each(values, numbers, |value, number| value.add(number.wide())),
        ReduceOp::Norm => each(values, numbers, |value, number| value.add(number.wide().square())),
        ReduceOp::Min => each(values, numbers, |value, number| better(ReduceOp::Min, value, number.wide())),
        ReduceOp::Max | ReduceOp::ArgMax => {
            each(values, numbers, |value, number| better(ReduceOp::Max, value, number.wide()))
        }
    }
}

/// Adds four rows to the results of columns, one after the other; the next ones begin `next` numbers after these.
fn add_four<N: ReduceNumber>(op: ReduceOp, values: &mut [N::Wide], rows: [&[N]; 4], next: usize) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => four(
            values,
            rows,
            next,
            #[inline(always)]
            |value, number| value.add(number.wide()),
        ),
        ReduceOp::Norm => four(
            values,
            rows,
            next,
            #[inline(always)]
            |value, number| value.add(number.wide().square()),
        ),
        ReduceOp::Min => four(
            values,
            rows,
            next,
            #[inline(always)]
            |value, number| better(ReduceOp::Min, value, number.wide()),
        ),
        ReduceOp::Max | ReduceOp::ArgMax => four(
            values,
            rows,
            next,
            #[inline(always)]
            |value, number| better(ReduceOp::Max, value, number.wide()),
        ),
    }
}

fn four<W: Copy, N: Copy>(values: &mut [W], rows: [&[N]; 4], next: usize, f: impl Fn(W, N) -> W) {
    let pays = prefetch_pays();
    vectorize(
        #[inline(always)]
        || {
            let (groups, rest) = values.as_chunks_mut::<GROUP>();
            let n = groups.len() * GROUP;
            let ahead = AHEAD / size_of::<N>();
            let [a, b, c, d] = each_of_four(rows, |row| row.as_chunks::<GROUP>().0);
            for (i, ((((values, a), b), c), d)) in groups.iter_mut().zip(a).zip(b).zip(c).zip(d).enumerate() {
                let fetched = i * GROUP + ahead;
                let fetched = if fetched < n { fetched } else { fetched - n + next };
                for row in rows.iter().filter(|_| pays) {
                    prefetch_at(row.as_ptr().wrapping_add(fetched), GROUP * size_of::<N>());
                }
                // Of its own, so that no store can change what is still to be read.
                let mut sums = *values;
                for i in 0..GROUP {
                    sums[i] = f(f(f(f(sums[i], a[i]), b[i]), c[i]), d[i]);
                }
                *values = sums;
            }
            let [a, b, c, d] = each_of_four(rows, |row| &row[n..]);
            for ((((value, &a), &b), &c), &d) in rest.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                *value = f(f(f(f(*value, a), b), c), d);
            }
        },
    );
}

fn each<W: Copy, N: Copy>(values: &mut [W], numbers: &[N], f: impl Fn(W, N) -> W) {
    vectorize(
        #[inline(always)]
        || {
            for (value, &number) in values.iter_mut().zip(numbers) {
                *value = f(*value, number);
            }
        },
    );
}
