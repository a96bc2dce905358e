//! In chunks of a size that depends on the shape only, whose results are combined in order: so any number of threads gives the
//! same bits.

use half::{bf16, f16};

use super::{Layout, ReduceOp};
use crate::cpu::cell::{Block, Cell, with_cells};
use crate::cpu::copy::prefetch_at;
use crate::cpu::simd::vectorize;
use crate::cpu::threads::{SharedMut, for_parts};
use crate::{DType, Element, Result, TensorMut, TensorRef};

/// Elements per chunk.
const CHUNK: usize = 1 << 16;
/// Elements per chunk of columns: many, since each chunk leaves a result per column.
const COLUMNS_CHUNK: usize = 1 << 18;
/// Elements of a row that are in the L1 cache at a time.
const BLOCK: usize = Block::<f32>::LEN;
/// Columns at a time, a cache line of most numbers.
const GROUP: usize = 16;
/// Bytes from a group of numbers to what is fetched meanwhile: a page of memory.
const AHEAD: usize = 4096;
/// Independent partial results in vector registers.
const LANES: usize = 32;
/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// Cells whose reductions are in f64 (floats) or i64.
trait ReduceCell: Cell {
    type Wide: Wide;
    fn wide(number: Self::Number) -> Self::Wide;
    fn of_wide(wide: Self::Wide) -> Self;
}

/// The type of sums.
trait Wide: Element + Copy {
    fn add(self, other: Self) -> Self;
    fn square(self) -> Self;
    /// The result, given the sum (of squares) over `len` elements.
    fn finish(self, op: ReduceOp, len: usize) -> Self;
    /// Sum of integers; unused for floats.
    fn integer(self) -> i64;
}

impl Wide for f64 {
    #[inline(always)]
    fn add(self, other: f64) -> f64 {
        self + other
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
    #[inline(always)]
    fn add(self, other: i64) -> i64 {
        self.wrapping_add(other)
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

macro_rules! reduce_cells {
    ($wide:ident, $v:ident => { $($t:ty => $narrowed:expr),* $(,)? }) => {
        $(impl ReduceCell for $t {
            type Wide = $wide;
            #[inline(always)]
            fn wide(number: Self::Number) -> $wide {
                number.into()
            }
            fn of_wide($v: $wide) -> $t {
                $narrowed
            }
        })*
    };
}
reduce_cells!(f64, v => {
    f32 => v as f32,
    f64 => v,
    bf16 => Element::from_f64(v),
    f16 => Element::from_f64(v),
});
reduce_cells!(i64, v => { i64 => v, i32 => v as i32, u8 => v as u8 });

/// The result over some of the elements.
#[derive(Clone, Copy)]
struct Partial<W> {
    value: W,
    /// Index of the value along the axis, for [`ReduceOp::ArgMax`].
    index: i64,
}

impl<W: Wide> Partial<W> {
    /// Both results, of which `self` is over earlier elements.
    fn and(self, op: ReduceOp, later: Self) -> Self {
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
fn wins<N: Copy + PartialOrd>(op: ReduceOp, later: N, best: N) -> bool {
    let is_better = if op == ReduceOp::Min { later < best } else { later > best };
    is_better | ((later != later) & (best == best))
}

/// `out = op(x)`.
pub(super) fn reduce(op: ReduceOp, x: TensorRef<'_>, layout: Layout, out: TensorMut<'_>) -> Result<()> {
    let (name, dtype) = (op.name(), x.dtype());
    let bytes = x.as_bytes(name, "a")?;
    with_cells!(dtype, C => {
        let x: &[C] = bytemuck::cast_slice(bytes);
        let len = layout.len;
        if op == ReduceOp::ArgMax {
            run(op, x, layout, out.into_slice::<i64>(name, "out")?, |p| p.index);
        } else if op == ReduceOp::Sum && !dtype.is_float() {
            run(op, x, layout, out.into_slice::<i64>(name, "out")?, |p| p.value.integer());
        } else {
            let out = bytemuck::cast_slice_mut(out.into_bytes(name, "out")?);
            run(op, x, layout, out, |p| C::of_wide(p.value.finish(op, len)));
        }
        Ok(())
    })
}

/// Reduces chunk by chunk, and writes `finish` of each result.
fn run<C: ReduceCell, D: Element>(
    op: ReduceOp,
    x: &[C],
    Layout { outer, len, inner }: Layout,
    out: &mut [D],
    finish: impl Fn(Partial<C::Wide>) -> D + Sync,
) {
    let nothing = Partial { value: C::Wide::ZERO, index: 0 };
    if len == 0 || out.is_empty() {
        return out.fill(finish(nothing));
    }
    let tile = inner.min(BLOCK);
    let chunk = if inner == 1 { CHUNK } else { COLUMNS_CHUNK };
    let (n_tiles, chunk_rows) = (inner.div_ceil(tile), chunk.div_ceil(tile).min(len));
    let n_chunks = len.div_ceil(chunk_rows);
    // The results of chunks, by outer index, chunk and inner index; of one chunk they are the results.
    let mut partials = vec![nothing; if n_chunks > 1 { outer * n_chunks * inner } else { 0 }];
    let shared_partials = SharedMut::new(&mut partials);
    let shared_out = SharedMut::new(out);
    let n_tasks = outer * n_chunks * n_tiles;
    for_parts(n_tasks, MIN_PART.div_ceil(chunk_rows * tile), 1, |part| {
        let mut columns = Columns::<C>::new();
        for task in part {
            let (o, chunk, column) =
                (task / n_tiles / n_chunks, task / n_tiles % n_chunks, task % n_tiles * tile);
            let rows = chunk * chunk_rows..((chunk + 1) * chunk_rows).min(len);
            let n_columns = tile.min(inner - column);
            let first = (o * len + rows.start) * inner + column;
            let one;
            let results = if inner == 1 {
                one = [row(op, &x[first..first + rows.len()], rows.start as i64, &mut columns.block)];
                &one[..]
            } else {
                columns.reduce(op, &x[first..], inner, rows, n_columns)
            };
            if n_chunks > 1 {
                let start = (o * n_chunks + chunk) * inner + column;
                // SAFETY: within `partials`, and these results are this task's alone.
                unsafe { shared_partials.slice(start..start + n_columns) }.copy_from_slice(results);
            } else {
                let start = o * inner + column;
                // SAFETY: within `out`, and these results are this task's alone.
                let out = unsafe { shared_out.slice(start..start + n_columns) };
                for (out, &result) in out.iter_mut().zip(results) {
                    *out = finish(result);
                }
            }
        }
    });
    if n_chunks > 1 {
        let of_outer = partials.chunks_exact_mut(n_chunks * inner);
        for (partials, out) in of_outer.zip(out.chunks_exact_mut(inner)) {
            // Chunk by chunk, so that memory is read in its order.
            let (results, later) = partials.split_at_mut(inner);
            for chunk in later.chunks_exact(inner) {
                results.iter_mut().zip(chunk).for_each(|(result, &later)| *result = result.and(op, later));
            }
            out.iter_mut().zip(results).for_each(|(out, &mut result)| *out = finish(result));
        }
    }
}

/// The result over contiguous elements, at least one, the first of which has this index along the axis.
fn row<C: ReduceCell>(
    op: ReduceOp,
    x: &[C],
    first_index: i64,
    block: &mut Block<C::Number>,
) -> Partial<C::Wide> {
    let mut result: Option<Partial<C::Wide>> = None;
    let in_place = C::as_numbers(x).filter(|_| op != ReduceOp::ArgMax);
    let len = if in_place.is_some() { x.len() } else { BLOCK };
    for (i, cells) in x.chunks(len).enumerate() {
        let numbers = in_place.unwrap_or_else(|| block.load(cells));
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
                let position = |v: &C::Number| *v == best || v.partial_cmp(v).is_none();
                let at = if is_new { numbers.iter().position(position).unwrap_or(0) } else { 0 };
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
fn fetch_ahead<N>(groups: [&[N; LANES]; 4]) {
    for group in groups {
        prefetch_at(group.as_ptr().wrapping_byte_add(AHEAD), size_of_val(group));
    }
}

/// The sum of `wide` of each number, in [`LANES`] partial sums.
fn sum<N: Copy, W: Wide>(numbers: &[N], wide: impl Fn(N) -> W) -> W {
    vectorize(
        #[inline(always)]
        || {
            let ([a, b, c, d], rest) = quarters(numbers);
            let mut lanes = [W::ZERO; LANES];
            for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
                fetch_ahead([a, b, c, d]);
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
fn is_nan<N: Element>(number: &N) -> bool {
    *number != *number
}

/// `f` over at least one number, unless one of them is NaN.
///
/// Comparisons that know of NaN would take three times as many instructions.
fn fold<N: Element>(numbers: &[N], f: impl Fn(N, N) -> N) -> Option<N> {
    vectorize(
        #[inline(always)]
        || {
            let ([a, b, c, d], rest) = quarters(numbers);
            let mut lanes = [numbers[0]; LANES];
            // Of the width of most numbers: flags of one byte are converted at each step.
            let mut nan = [0_u32; LANES];
            for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
                fetch_ahead([a, b, c, d]);
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

/// Running results of neighbouring columns, in the L1 cache.
///
/// Rows shorter than a quarter of a block are taken several at a time, as one longer row whose groups are combined at the end.
struct Columns<C: ReduceCell> {
    values: Vec<C::Wide>,
    indices: Vec<i64>,
    results: Vec<Partial<C::Wide>>,
    block: Block<C::Number>,
}

impl<C: ReduceCell> Columns<C> {
    fn new() -> Self {
        Columns { values: Vec::new(), indices: Vec::new(), results: Vec::new(), block: Block::new() }
    }

    /// The results of `n_columns` columns over `rows`; element 0 of `x` is that of the first row and column, and rows are `stride`
    /// apart.
    fn reduce(
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
        self.values.clear();
        self.indices.clear();
        let mut next = 0;
        while next < n_rows {
            let from = next;
            // Most rows are added four at a time, in their order: each sum is then loaded and stored once for four.
            if from > 0 && op != ReduceOp::ArgMax && from + 4 * at_once <= n_rows {
                let rows = [0, 1, 2, 3].map(|i| (from + i * at_once) * stride);
                let rows = rows.map(|start| C::as_numbers(&x[start..][..n_columns * at_once]));
                if let [Some(a), Some(b), Some(c), Some(d)] = rows {
                    add_four::<C>(op, &mut self.values, [a, b, c, d], 4 * at_once * stride);
                    next = from + 4 * at_once;
                    continue;
                }
            }
            next = from + at_once;
            let n = n_columns * at_once.min(n_rows - from);
            let numbers = self.block.load(&x[from * stride..][..n]);
            if from == 0 {
                let start = |&number| {
                    let wide = C::wide(number);
                    if op == ReduceOp::Norm { wide.square() } else { wide }
                };
                self.values.extend(numbers.iter().map(start));
                self.indices.extend((0..n).map(|i| (rows.start + i / n_columns) as i64));
                continue;
            }
            let (values, indices) = (&mut self.values[..n], &mut self.indices[..n]);
            match op {
                ReduceOp::Sum | ReduceOp::Mean => {
                    each(values, numbers, |value, number| value.add(C::wide(number)))
                }
                ReduceOp::Norm => each(values, numbers, |value, number| value.add(C::wide(number).square())),
                ReduceOp::Max => each(values, numbers, |value, number| {
                    let number = C::wide(number);
                    if wins(ReduceOp::Max, number, value) { number } else { value }
                }),
                ReduceOp::Min => each(values, numbers, |value, number| {
                    let number = C::wide(number);
                    if wins(ReduceOp::Min, number, value) { number } else { value }
                }),
                ReduceOp::ArgMax => {
                    for (i, ((value, index), &number)) in
                        values.iter_mut().zip(indices).zip(numbers).enumerate()
                    {
                        let number = C::wide(number);
                        if wins(op, number, *value) {
                            (*value, *index) = (number, (rows.start + from + i / n_columns) as i64);
                        }
                    }
                }
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
}

/// Adds four rows to the results of columns, one after the other, and fetches those that many numbers ahead.
fn add_four<C: ReduceCell>(op: ReduceOp, values: &mut [C::Wide], rows: [&[C::Number]; 4], ahead: usize) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => four(
            values,
            rows,
            ahead,
            #[inline(always)]
            |value, number| value.add(C::wide(number)),
        ),
        ReduceOp::Norm => four(
            values,
            rows,
            ahead,
            #[inline(always)]
            |value, number| value.add(C::wide(number).square()),
        ),
        ReduceOp::Min => four(
            values,
            rows,
            ahead,
            #[inline(always)]
            |value, number| {
                let number = C::wide(number);
                if wins(ReduceOp::Min, number, value) { number } else { value }
            },
        ),
        ReduceOp::Max | ReduceOp::ArgMax => four(
            values,
            rows,
            ahead,
            #[inline(always)]
            |value, number| {
                let number = C::wide(number);
                if wins(ReduceOp::Max, number, value) { number } else { value }
            },
        ),
    }
}

fn four<W: Copy, N: Copy>(values: &mut [W], rows: [&[N]; 4], ahead: usize, f: impl Fn(W, N) -> W) {
    vectorize(
        #[inline(always)]
        || {
            let (groups, rest) = values.as_chunks_mut::<GROUP>();
            let n = groups.len();
            let [a, b, c, d] = rows.map(|row| row.as_chunks::<GROUP>().0);
            for ((((values, a), b), c), d) in groups.iter_mut().zip(a).zip(b).zip(c).zip(d) {
                for row in [a, b, c, d] {
                    prefetch_at(row.as_ptr().wrapping_add(ahead), size_of_val(row));
                }
                // Of its own, so that no store can change what is still to be read.
                let mut sums = *values;
                for i in 0..GROUP {
                    sums[i] = f(f(f(f(sums[i], a[i]), b[i]), c[i]), d[i]);
                }
                *values = sums;
            }
            let [a, b, c, d] = rows.map(|row| &row[n * GROUP..]);
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
