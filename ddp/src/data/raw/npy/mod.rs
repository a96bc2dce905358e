//! `.npy`: NumPy's format of a single array.

pub mod header;
mod writer;

use super::array::{RawArray, checked_size};
use super::bytes::Bytes;
use crate::data::DataError;
use crate::data::error::Result;
pub(super) use writer::array_header;
pub(crate) use writer::create;

const CUT: &str = "is the file cut off, or still being written?";

/// Opens the array of a file.
pub(crate) fn open(bytes: Bytes) -> Result<RawArray> {
    let end = bytes.len();
    array(bytes, 0, end)
}

/// The array in `start..end` of `bytes`, where a complete `.npy` file lies.
pub(super) fn array(bytes: Bytes, start: u64, end: u64) -> Result<RawArray> {
    let path = bytes.path().to_owned();
    let bad = |reason: String, hint| DataError::Malformed { path: path.clone(), format: "npy", reason, hint };
    let whole = bytes.as_slice().expect("headers are read from mapped files");
    let header = header::parse(&whole[start as usize..end as usize]);
    bytes.check()?;
    let header = header.map_err(|reason| {
        let is_cut = reason.contains("cut off") || reason.contains("bytes");
        bad(reason, if is_cut { CUT } else { "save it with numpy.save as float32, float16 or uint8" })
    })?;
    let n_dims = header.shape.len() - usize::from(header.raw.is_text());
    if header.is_fortran && n_dims > 1 {
        return Err(bad(
            "its array is in Fortran order, so its rows are not contiguous".to_owned(),
            "save numpy.ascontiguousarray(array)",
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
    Ok(RawArray::new(bytes, start + header.len as u64, header.raw, header.is_big_endian, &dims))
}
