//! `.npy`: NumPy's format of a single array.
//!
//! ```
//! use ddp_tables::values::element::RawType;
//! use ddp_tables::formats::arrays::npy::header;
//!
//! let bytes = header::write("<f4", &[10, 3], 0);
//! let read = header::parse(&bytes)?;
//! assert_eq!((read.raw, read.shape, read.len), (RawType::F32, vec![10, 3], bytes.len()));
//! # Ok::<(), String>(())
//! ```

pub mod header;

use crate::formats::arrays::array::{RawArray, checked_size};
use crate::formats::arrays::bytes::{Bytes, MemoryBudget};
use crate::formats::arrays::fortran;
use crate::formats::error::{Result, RowsError};
use crate::values::element::RawType;

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

/// The header of an array.
pub fn array_header(raw: RawType, shape: &[u64], min_len: usize) -> Vec<u8> {
    let descr = match raw {
        RawType::Bool => "|b1",
        RawType::U8 => "|u1",
        RawType::I8 => "|i1",
        RawType::U16 => "<u2",
        RawType::I16 => "<i2",
        RawType::U32 => "<u4",
        RawType::I32 => "<i4",
        RawType::U64 => "<u8",
        RawType::I64 => "<i8",
        RawType::F16 => "<f2",
        RawType::F32 => "<f4",
        RawType::F64 => "<f8",
        RawType::Bf16 => unreachable!("bf16, which npy lacks, was refused"),
        RawType::Ascii | RawType::Unicode => unreachable!("texts are written as numbers"),
    };
    header::write(descr, shape, min_len)
}
