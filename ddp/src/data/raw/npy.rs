//! `.npy`: NumPy's format of one array.

use super::array::RawArray;
use super::bytes::Bytes;
use super::element::RawType;
use super::npy_header;
use crate::data::DataError;
use crate::data::error::Result;

const CUT: &str = "is the file cut off, or still being written?";

/// The array in `start..end` of `bytes`, which are those of a whole `.npy` file.
pub(crate) fn array(bytes: Bytes, start: u64, end: u64) -> Result<RawArray> {
    let path = bytes.path().to_owned();
    let bad = |reason: String, hint| DataError::Malformed { path: path.clone(), format: "npy", reason, hint };
    let whole = bytes.as_slice().expect("headers are read from mapped files");
    let header = npy_header::parse(&whole[start as usize..end as usize]);
    bytes.check()?;
    let header = header.map_err(|reason| {
        let is_cut = reason.contains("cut off") || reason.contains("bytes");
        bad(reason, if is_cut { CUT } else { "save it with numpy.save as float32, float16 or uint8" })
    })?;
    if header.is_fortran && header.shape.len() > 1 {
        return Err(bad(
            "its array is in Fortran order, where rows are not side by side".to_owned(),
            "save numpy.ascontiguousarray of it",
        ));
    }
    let (dims, len) = checked_size(&header.shape, header.raw).ok_or_else(|| {
        bad(format!("its shape {:?} is more than any file holds", header.shape), "the header is damaged")
    })?;
    let there = end - start - header.len as u64;
    if len != there {
        let reason = format!("its header says {len} bytes of rows, and {there} are there");
        return Err(bad(reason, if len > there { CUT } else { "was something appended to it?" }));
    }
    Ok(RawArray::new(bytes, start + header.len as u64, header.raw, header.is_big_endian, &dims))
}

/// Dimensions and bytes of an array, if they can be counted at all.
pub(crate) fn checked_size(shape: &[u64], raw: RawType) -> Option<(Vec<usize>, u64)> {
    let dims: Option<Vec<usize>> = shape.iter().map(|&dim| usize::try_from(dim).ok()).collect();
    // A dimension of 0 must not hide an overflow of the others.
    shape.iter().try_fold(8u64, |len, &dim| len.checked_mul(dim.max(1)))?;
    let len = shape.iter().product::<u64>() * raw.size_bytes() as u64;
    (len <= isize::MAX as u64).then_some((dims?, len))
}
