//! IDX, the format of MNIST: a magic number, dimensions and elements, all big-endian.
//!
//! Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits", file formats.
//!
//! ```
//! use ddp_tables::values::element::RawType;
//! use ddp_tables::formats::arrays::idx::header;
//!
//! // Two images of 28 x 28 bytes.
//! let begin = [0u8, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 28, 0, 0, 0, 28];
//! assert_eq!(header(&begin)?, (RawType::U8, vec![2, 28, 28]));
//! # Ok::<(), String>(())
//! ```

use crate::formats::arrays::array::{RawArray, checked_size};
use crate::formats::arrays::bytes::{Bytes, MemoryBudget};
use crate::formats::arrays::reader::SplitSide;
use crate::formats::error::{Result, RowsError};
use crate::values::element::RawType;

/// Most dimensions of an array of rows.
const MAX_DIMS: u8 = 8;

/// Opens the array of a file.
pub fn open(bytes: Bytes, _budget: &MemoryBudget) -> Result<RawArray> {
    let path = bytes.path().to_owned();
    let bad = |reason: String| {
        let hint = "is the file cut off, or not an IDX file?";
        RowsError::Malformed { path: path.clone(), format: "IDX", reason, hint }
    };
    let whole = bytes.as_slice().expect("headers are read from mapped files");
    let (raw, shape) = header(whole).map_err(bad)?;
    bytes.check()?;
    let start = 4 + 4 * shape.len() as u64;
    let (dims, len) = checked_size(&shape, raw)
        .ok_or_else(|| bad(format!("its shape {shape:?} is too large for any file")))?;
    let there = bytes.len() - start;
    if len != there {
        return Err(bad(format!("its header declares {len} bytes of rows, but it has {there}")));
    }
    Ok(RawArray::new(bytes, start, raw, true, &dims))
}

/// The name of the labels in MNIST's naming scheme, for the name of its images.
pub fn labels_name(images: &str) -> Option<String> {
    let labels = images.replace("images", "labels").replace("idx3", "idx1");
    (labels != images).then_some(labels)
}

/// Training or test rows, by the name of a file in MNIST's naming scheme.
pub fn side(name: &str) -> Option<SplitSide> {
    match () {
        () if name.contains("train") => Some(SplitSide::Train),
        () if name.contains("t10k") || name.contains("test") => Some(SplitSide::Test),
        () => None,
    }
}

/// Type and shape of the array.
///
/// # Errors
/// The fault as the end of a sentence about the file.
pub fn header(bytes: &[u8]) -> Result<(RawType, Vec<u64>), String> {
    let Some(&[0, 0, code, n_dims]) = bytes.first_chunk::<4>() else {
        return Err("it does not begin like an IDX file".to_owned());
    };
    let raw = match code {
        0x08 => RawType::U8,
        0x09 => RawType::I8,
        0x0b => RawType::I16,
        0x0c => RawType::I32,
        0x0d => RawType::F32,
        0x0e => RawType::F64,
        _ => return Err(format!("its elements have the unknown type {code:#04x}")),
    };
    if n_dims > MAX_DIMS {
        return Err(format!("it claims {n_dims} dimensions"));
    }
    let sizes = bytes.get(4..4 + 4 * n_dims as usize).ok_or("its header is cut off")?;
    let shape: Vec<u64> =
        sizes.as_chunks::<4>().0.iter().map(|&size| u64::from(u32::from_be_bytes(size))).collect();
    if shape.is_empty() { Err("it has no dimensions".to_owned()) } else { Ok((raw, shape)) }
}
