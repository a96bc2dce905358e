//! Forward splits rows over the threads; backward splits columns of the tables, so that each sum is in the order of the rows.

use super::{EmbeddingTable, Sizes};
use crate::cpu::threads::{SharedMut, for_parts};
use crate::cpu::{Float, Stored};
use crate::{Element, KernelError, Result};

/// Elements per thread below which a second thread does not pay off.
const MIN_PART: usize = 1 << 15;

/// Checks that every code is within its table.
fn check_codes<T: Float>(op: &'static str, x: &[T], sizes: Sizes, tables: &[EmbeddingTable]) -> Result<()> {
    if tables.is_empty() {
        return Ok(());
    }
    for (row, x) in x.chunks_exact(sizes.n_numbers + tables.len()).enumerate() {
        for (index, (code, table)) in x[sizes.n_numbers..].iter().zip(tables).enumerate() {
            let code = code.to_f64();
            if !(code >= 0.0 && code < table.n_codes as f64 && code.trunc() == code) {
                let column = sizes.n_numbers + index;
                return Err(KernelError::Code { op, row, column, code, n_codes: table.n_codes });
            }
        }
    }
    Ok(())
}

/// Concatenates numbers and table rows, each element converted by `convert`.
pub(super) fn forward<T: Float, U: Element>(
    op: &'static str,
    x: &[T],
    weights: &[T],
    tables: &[EmbeddingTable],
    sizes: Sizes,
    out: &mut [U],
    convert: impl Fn(T) -> U + Sync,
) -> Result<()> {
    check_codes(op, x, sizes, tables)?;
    let (cols, x_cols) = (sizes.cols, sizes.n_numbers + tables.len());
    let out = SharedMut::new(out);
    for_parts(sizes.rows, MIN_PART.div_ceil(cols.max(1)), 1, |part| {
        for n in part {
            // SAFETY: row `n` of `out`, which is in this thread's part alone.
            let out = unsafe { out.slice(n * cols..(n + 1) * cols) };
            let (numbers, codes) = x[n * x_cols..(n + 1) * x_cols].split_at(sizes.n_numbers);
            let (to, mut rest) = out.split_at_mut(sizes.n_numbers);
            to.iter_mut().zip(numbers).for_each(|(to, &v)| *to = convert(v));
            for (&code, table) in codes.iter().zip(tables) {
                let (to, after) = rest.split_at_mut(table.dim);
                let row = &weights[table.row(code.to_f64() as usize)];
                to.iter_mut().zip(row).for_each(|(to, &v)| *to = convert(v));
                rest = after;
            }
        }
    });
    Ok(())
}

/// Adds each row's gradient to the table rows of its codes, in the order of the rows.
pub(super) fn backward<T: Stored>(
    op: &'static str,
    x: &[T::Real],
    d_out: &[T],
    tables: &[EmbeddingTable],
    sizes: Sizes,
    d_weights: &mut [T::Real],
    accumulate: bool,
) -> Result<()> {
    check_codes(op, x, sizes, tables)?;
    if !accumulate {
        d_weights.fill(T::Real::ZERO);
    }
    let (cols, x_cols) = (sizes.cols, sizes.n_numbers + tables.len());
    let d_weights = SharedMut::new(d_weights);
    for_parts(cols - sizes.n_numbers, MIN_PART.div_ceil(sizes.rows.max(1)), 1, |part| {
        let mut column = 0;
        for (index, table) in tables.iter().enumerate() {
            let own =
                part.start.clamp(column, column + table.dim)..part.end.clamp(column, column + table.dim);
            let (own, first) = (own.start - column..own.end - column, sizes.n_numbers + column);
            column += table.dim;
            if own.is_empty() {
                continue;
            }
            for n in 0..sizes.rows {
                let start = table.row(x[n * x_cols + sizes.n_numbers + index].to_f64() as usize).start;
                // SAFETY: within the table, by `check_codes` and the check that the tables are disjoint and within the buffer; these
                // columns belong to this thread's part alone.
                let to = unsafe { d_weights.slice(start + own.start..start + own.end) };
                let from = &d_out[n * cols + first..][own.clone()];
                to.iter_mut().zip(from).for_each(|(to, &v)| *to += v.load());
            }
        }
    });
    Ok(())
}
