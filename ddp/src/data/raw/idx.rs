//! IDX, the format of MNIST: a magic number, dimensions, and elements, all big-endian.
//!
//! Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits", file formats.

use super::array::RawArray;
use super::bytes::Bytes;
use super::element::RawType;
use super::npy::checked_size;
use crate::data::DataError;
use crate::data::error::Result;

/// More is no array of rows.
const MAX_DIMS: u8 = 8;

/// The array in an IDX file.
pub(crate) fn array(bytes: Bytes) -> Result<RawArray> {
    let path = bytes.path().to_owned();
    let bad = |reason: String| {
        let hint = "is the file cut off, or no IDX file at all?";
        DataError::Malformed { path: path.clone(), format: "IDX", reason, hint }
    };
    let whole = bytes.as_slice().expect("headers are read from mapped files");
    let (raw, shape) = header(whole).map_err(bad)?;
    bytes.check()?;
    let start = 4 + 4 * shape.len() as u64;
    let (dims, len) = checked_size(&shape, raw)
        .ok_or_else(|| bad(format!("its shape {shape:?} is more than any file holds")))?;
    let there = bytes.len() - start;
    if len != there {
        return Err(bad(format!("its header says {len} bytes of rows, and {there} are there")));
    }
    Ok(RawArray::new(bytes, start, raw, true, &dims))
}

/// Type and shape.
pub fn header(bytes: &[u8]) -> Result<(RawType, Vec<u64>), String> {
    let Some(&[0, 0, code, n_dims]) = bytes.first_chunk::<4>() else {
        return Err("it does not begin like one".to_owned());
    };
    let raw = match code {
        0x08 => RawType::U8,
        0x09 => RawType::I8,
        0x0b => RawType::I16,
        0x0c => RawType::I32,
        0x0d => RawType::F32,
        0x0e => RawType::F64,
        _ => return Err(format!("its elements are of type {code:#04x}, which there is not")),
    };
    if n_dims > MAX_DIMS {
        return Err(format!("it claims {n_dims} dimensions"));
    }
    let sizes = bytes.get(4..4 + 4 * n_dims as usize).ok_or("its header is cut off")?;
    let shape: Vec<u64> =
        sizes.as_chunks::<4>().0.iter().map(|&size| u64::from(u32::from_be_bytes(size))).collect();
    if shape.is_empty() { Err("it has no dimensions".to_owned()) } else { Ok((raw, shape)) }
}
