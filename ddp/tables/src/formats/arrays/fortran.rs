//! Arrays in Fortran order, whose first index changes fastest: each column is contiguous instead of each row. NumPy saves
//! `df.to_numpy()` so.

use crate::formats::arrays::bytes::{Bytes, MemoryBudget};
use crate::formats::error::Result;

/// Rows and elements of a row that are copied together, so that both sides stay in the CPU's cache.
const TILE: usize = 64;

/// The same elements row by row, in memory of `budget`.
///
/// # Errors
/// [`RowsError::TooLarge`](crate::formats::error::RowsError::TooLarge)
pub(super) fn to_rows(
    bytes: &Bytes,
    start: u64,
    item_bytes: usize,
    dims: &[usize],
    budget: &MemoryBudget,
) -> Result<Bytes> {
    let (n_rows, row_dims) = (dims[0], &dims[1..]);
    let row_len: usize = row_dims.iter().product();
    let n_bytes = n_rows * row_len * item_bytes;
    if n_bytes as u64 > budget.left() {
        let hint = "save numpy.ascontiguousarray(array), or raise the limit";
        let source_name = bytes.path().display().to_string();
        let purpose = "to rearrange an array in Fortran order";
        return Err(budget.too_large(source_name, n_bytes as u64, purpose, hint));
    }
    budget.take(n_bytes as u64);
    let from = &bytes.as_slice().expect("headers are read from mapped files")[start as usize..][..n_bytes];
    // Index of the column in the file, for each element of a row.
    let columns: Vec<usize> = (0..row_len).map(|element| column_of(element, row_dims)).collect();
    let mut out = vec![0; n_bytes];
    match item_bytes {
        1 => transpose::<1>(from, &columns, &mut out),
        2 => transpose::<2>(from, &columns, &mut out),
        4 => transpose::<4>(from, &columns, &mut out),
        8 => transpose::<8>(from, &columns, &mut out),
        // Texts.
        _ => transpose_items(from, item_bytes, &columns, &mut out),
    }
    bytes.check()?;
    Ok(Bytes::memory(out, bytes.path()))
}

/// The place of an element among those of its row in Fortran order, by its place in C order.
fn column_of(mut element: usize, dims: &[usize]) -> usize {
    let mut index = vec![0; dims.len()];
    for (index, &dim) in index.iter_mut().zip(dims).rev() {
        *index = element % dim;
        element /= dim;
    }
    index.iter().zip(dims).rev().fold(0, |place, (index, dim)| place * dim + index)
}

/// `out[row][n] = from[columns[n]][row]`, for elements of `SIZE` bytes.
fn transpose<const SIZE: usize>(from: &[u8], columns: &[usize], out: &mut [u8]) {
    let (from, out) = (from.as_chunks::<SIZE>().0, out.as_chunks_mut::<SIZE>().0);
    let row_len = columns.len();
    let n_rows = from.len() / row_len;
    for first_row in (0..n_rows).step_by(TILE) {
        let rows = first_row..(first_row + TILE).min(n_rows);
        for (tile, columns) in columns.chunks(TILE).enumerate() {
            for (n, &column) in columns.iter().enumerate() {
                let place = tile * TILE + n;
                for row in rows.clone() {
                    out[row * row_len + place] = from[column * n_rows + row];
                }
            }
        }
    }
}

/// [`transpose`] for elements of any size.
fn transpose_items(from: &[u8], item_bytes: usize, columns: &[usize], out: &mut [u8]) {
    let n_rows = from.len() / item_bytes / columns.len();
    for (row, out) in out.chunks_exact_mut(columns.len() * item_bytes).enumerate() {
        for (out, &column) in out.chunks_exact_mut(item_bytes).zip(columns) {
            out.copy_from_slice(&from[(column * n_rows + row) * item_bytes..][..item_bytes]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_any_shape_are_rearranged() {
        for dims in [vec![150, 70], vec![3, 2, 4], vec![5, 1], vec![1, 6], vec![2, 3, 2, 2]] {
            let n: usize = dims.iter().product();
            // The element at [i, j, k] has the number i + d0 * (j + d1 * k): its place in Fortran order.
            let numbers: Vec<u8> = (0..n as u16).flat_map(u16::to_le_bytes).collect();
            let bytes = Bytes::memory(numbers, "x.npy".as_ref());
            let budget = MemoryBudget::new(1 << 20);
            let rows = to_rows(&bytes, 0, 2, &dims, &budget).unwrap();
            let rows = rows.as_slice().unwrap();
            for place in 0..n {
                let want = column_of(place, &dims) as u16;
                assert_eq!(rows[2 * place..][..2], want.to_le_bytes(), "{dims:?}");
            }
            let mut by_items = vec![0; 2 * n];
            let columns: Vec<usize> =
                (0..n / dims[0]).map(|element| column_of(element, &dims[1..])).collect();
            transpose_items(bytes.as_slice().unwrap(), 2, &columns, &mut by_items);
            assert_eq!(rows, by_items);
            let small = MemoryBudget::new(2 * n as u64 - 1);
            let error = ddp_kernels::hint::with_hint(&to_rows(&bytes, 0, 2, &dims, &small).unwrap_err());
            assert!(error.contains("Fortran order") && error.contains("ascontiguousarray"), "{error}");
        }
    }
}
