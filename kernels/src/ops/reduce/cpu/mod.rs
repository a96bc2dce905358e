//! In chunks of a size that depends on the shape only, whose results are combined in order: so any number of threads gives the
//! same bits.

mod number;
mod columns;
mod rows;

use half::{bf16, f16};

use self::columns::Columns;
use self::number::{BLOCK, Partial};
pub(in crate::ops) use self::number::{ReduceCell, ReduceNumber, Wide};
use self::rows::{SHORT, first_largest_rows, is_nan, row, short_rows};
use super::{Layout, ReduceOp};
use crate::cpu::cell::{Block, with_cells};
use crate::cpu::threads::{SharedMut, for_parts};
use crate::{DType, Element, Result, TensorMut, TensorRef};

/// Elements per chunk.
const CHUNK: usize = 1 << 16;
/// Elements per chunk of columns: many, since each chunk leaves a result per column.
const COLUMNS_CHUNK: usize = 1 << 18;
/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// `out = op(x)`.
pub(super) fn reduce(op: ReduceOp, x: TensorRef<'_>, layout: Layout, out: TensorMut<'_>) -> Result<()> {
    let (name, dtype) = (op.name(), x.dtype());
    let bytes = x.as_bytes(name, "a")?;
    with_cells!(dtype, C => {
        let x: &[C] = bytemuck::cast_slice(bytes);
        let len = layout.len;
        if op == ReduceOp::ArgMax {
            in_chunks(op, x, layout, out.into_slice::<i64>(name, "out")?, |p| p.index);
        } else if C::WIDE_SUM && op == ReduceOp::Sum {
            run(op, x, layout, out.into_slice::<i64>(name, "out")?, Wide::integer);
        } else {
            let out = bytemuck::cast_slice_mut(out.into_bytes(name, "out")?);
            run(op, x, layout, out, |value| C::from_wide(value.finish(op, len)));
        }
        Ok(())
    })
}

/// The index of the first of the largest in each row of `len` cells; None for a row with NaN. `write` takes each with the number of
/// its row.
pub(in crate::ops) fn first_largest<C: ReduceCell>(
    x: &[C],
    len: usize,
    mut write: impl FnMut(usize, Option<i64>),
) {
    if let Some(numbers) = C::as_numbers(x).filter(|_| len <= SHORT) {
        return first_largest_rows(numbers, len, &mut write);
    }
    let mut block = Block::new();
    for (i, cells) in x.chunks_exact(len).enumerate() {
        let largest = row(ReduceOp::ArgMax, cells, 0, &mut block);
        write(i, (!is_nan(&largest.value)).then_some(largest.index));
    }
}

/// Reduces to `finish` of each value, for all but [`ReduceOp::ArgMax`].
fn run<C: ReduceCell, D: Element>(
    op: ReduceOp,
    x: &[C],
    layout: Layout,
    out: &mut [D],
    finish: impl Fn(C::Wide) -> D + Sync,
) {
    let Layout { outer, len, inner } = layout;
    if inner == 1
        && (1..=SHORT).contains(&len)
        && outer >= 4
        && let Some(numbers) = C::as_numbers(x)
    {
        let out = SharedMut::new(out);
        return for_parts(outer, MIN_PART.div_ceil(len), 1, |part| {
            let numbers = &numbers[part.start * len..part.end * len];
            // SAFETY: within `out`, and these rows are this part's alone.
            let out = unsafe { out.slice(part) };
            short_rows(op, numbers, len, &mut |rows, values| {
                rows.into_iter().zip(values).for_each(|(row, value)| out[row] = finish(value));
            });
        });
    }
    in_chunks(op, x, layout, out, |p| finish(p.value));
}

/// Reduces chunk by chunk, and writes `finish` of each result.
fn in_chunks<C: ReduceCell, D: Element>(
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
    // The place of the largest is sought in its own chunk only, once that is known.
    let is_place_left = op == ReduceOp::ArgMax && inner == 1 && n_chunks > 1;
    let op = if is_place_left { ReduceOp::Max } else { op };
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
        let mut block = Block::new();
        let of_outer = partials.chunks_exact_mut(n_chunks * inner);
        for (o, (partials, out)) in of_outer.zip(out.chunks_exact_mut(inner)).enumerate() {
            // Chunk by chunk, so that memory is read in its order.
            let (results, later) = partials.split_at_mut(inner);
            for chunk in later.chunks_exact(inner) {
                results.iter_mut().zip(chunk).for_each(|(result, &later)| *result = result.and(op, later));
            }
            if is_place_left {
                let first = results[0].index as usize;
                let cells = &x[o * len..][first..(first + chunk_rows).min(len)];
                results[0] = row(ReduceOp::ArgMax, cells, first as i64, &mut block);
            }
            out.iter_mut().zip(results).for_each(|(out, &mut result)| *out = finish(result));
        }
    }
}
