//! `.npy`: NumPy's format of a single array.
//!
//! ```
//! use ddp_rows::values::element::RawType;
//! use ddp_rows::arrays::npy::header;
//!
//! let bytes = header::write("<f4", &[10, 3], 0);
//! let read = header::parse(&bytes)?;
//! assert_eq!((read.raw, read.shape, read.len), (RawType::F32, vec![10, 3], bytes.len()));
//! # Ok::<(), String>(())
//! ```

pub mod header;
mod writer;

use super::array::{RawArray, checked_size};
use super::bytes::{Bytes, MemoryBudget};
use super::fortran;
use crate::error::{Result, RowsError};
pub use writer::array_header;
pub use writer::create;

const CUT: &str = "is the file cut off, or still being written?";

/// Opens the array of a file.
pub fn open(bytes: Bytes, budget: &MemoryBudget) -> Result<RawArray> {
    let end = bytes.len();
    array(bytes, 0, end, budget)
}

/// The array in `start..end` of `bytes`, where a complete `.npy` file lies. One in Fortran order is rearranged in `budget`.
pub(super) fn array(bytes: Bytes, start: u64, end: u64, budget: &MemoryBudget) -> Result<RawArray> {
    let path = bytes.path().to_owned();
    let bad = |reason: String, hint| RowsError::Malformed { path: path.clone(), format: "npy", reason, hint };
    let whole = bytes.as_slice().expect("headers are read from mapped files");
    let header = header::parse(&whole[start as usize..end as usize]);
    bytes.check()?;
    let header = header.map_err(|reason| {
        let is_cut = reason.contains("cut off") || reason.contains("bytes");
        bad(reason, if is_cut { CUT } else { "save it with numpy.save as float32, float16 or uint8" })
    })?;
    // A text is an array of characters.
    let n_dims = header.shape.len() - usize::from(header.raw.is_text());
    if n_dims == 0 {
        return Err(bad(
            "its array has no dimensions, so it is a single value".to_owned(),
            "save an array of shape [rows, features]",
        ));
    }
    let (dims, len) = checked_size(&header.shape, header.raw).ok_or_else(|| {
        bad(format!("its shape {:?} is too large for any file", header.shape), "the header is damaged")
    })?;
    let there = end - start - header.len as u64;
    if len != there {
        let reason = format!("its header declares {len} bytes of rows, but it has {there}");
        return Err(bad(reason, if len > there { CUT } else { "was something appended to the file?" }));
    }
    let first = start + header.len as u64;
    if header.is_fortran && n_dims > 1 && len > 0 {
        let (row_dims, item_len) = dims.split_at(n_dims);
        let item_bytes = header.raw.size_bytes() * item_len.iter().product::<usize>();
        let rows = fortran::to_rows(&bytes, first, item_bytes, row_dims, budget)?;
        return Ok(RawArray::new(rows, 0, header.raw, header.is_big_endian, &dims));
    }
    Ok(RawArray::new(bytes, first, header.raw, header.is_big_endian, &dims))
}
