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

use std::fs::File;
use std::io::{BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use ddp::storage::write_error::WriteError;

use crate::formats::arrays::array::{RawArray, checked_size};
use crate::formats::arrays::bytes::{Bytes, MemoryBudget};
use crate::formats::arrays::fortran;
use crate::formats::error::{Result, RowsError};
use crate::formats::write::{ArrayLayout, ArrayRows, ArrayWriter, OutFiles, Staging};
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

/// Writes `.npy`: features in one file, labels and weights in files next to it.
///
/// Opens the files of a writer.
pub fn create(layout: &ArrayLayout, files: &OutFiles, staging: &mut Staging) -> Result<Box<dyn ArrayWriter>> {
    Ok(Box::new(NpyWriter::new(layout, files, staging)?))
}

/// Writes features, labels and weights to a file each.
struct NpyWriter {
    layout: ArrayLayout,
    features: ArrayFile,
    /// `None` for rows without targets.
    targets: Option<ArrayFile>,
    weights: Option<ArrayFile>,
    n_rows: u64,
}

impl NpyWriter {
    fn new(layout: &ArrayLayout, files: &OutFiles, staging: &mut Staging) -> Result<Self> {
        let mut array = |path: &Path, raw, shape: &[u64]| ArrayFile::new(path, raw, shape, staging);
        Ok(NpyWriter {
            features: array(&files.rows, layout.dtype, &layout.feature_shape(u64::MAX))?,
            targets: if layout.targets.is_empty() {
                None
            } else {
                Some(array(&files.labels, layout.target_dtype, &layout.target_shape(u64::MAX))?)
            },
            weights: match layout.weight_dtype {
                Some(raw) => Some(array(&files.weights, raw, &[u64::MAX])?),
                None => None,
            },
            n_rows: 0,
            layout: layout.clone(),
        })
    }
}

impl ArrayWriter for NpyWriter {
    fn write(&mut self, rows: &ArrayRows) -> Result<()> {
        self.features.put(&rows.features)?;
        if let Some(file) = &mut self.targets {
            file.put(&rows.targets)?;
        }
        if let Some(file) = &mut self.weights {
            file.put(&rows.weights)?;
        }
        self.n_rows += rows.n_rows as u64;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.features.finish(&self.layout.feature_shape(self.n_rows))?;
        self.targets.map_or(Ok(()), |targets| targets.finish(&self.layout.target_shape(self.n_rows)))?;
        self.weights.map_or(Ok(()), |weights| weights.finish(&[self.n_rows]))
    }
}

/// A file of one array; its header is written last.
struct ArrayFile {
    file: BufWriter<File>,
    path: PathBuf,
    raw: RawType,
    header_len: usize,
}

impl ArrayFile {
    /// `largest` is a shape with the longest possible header.
    fn new(path: &Path, raw: RawType, largest: &[u64], staging: &mut Staging) -> Result<Self> {
        let file = BufWriter::with_capacity(1 << 18, staging.create(path)?);
        let header = array_header(raw, largest, 0);
        let mut array = ArrayFile { file, path: path.to_owned(), raw, header_len: header.len() };
        array.put(&header)?;
        Ok(array)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.file.write_all(bytes).map_err(|source| WriteError { path: self.path.clone(), source })?)
    }

    fn finish(mut self, shape: &[u64]) -> Result<()> {
        let header = array_header(self.raw, shape, self.header_len);
        let mut end = || -> std::io::Result<()> {
            self.file.seek(SeekFrom::Start(0))?;
            self.file.write_all(&header)?;
            self.file.flush()?;
            self.file.get_ref().sync_all()
        };
        Ok(end().map_err(|source| WriteError { path: self.path, source })?)
    }
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
        RawType::Bf16 => unreachable!("`ArrayLayout::new` refused bf16, which npy lacks"),
        RawType::Ascii | RawType::Unicode => unreachable!("texts are written as numbers"),
    };
    header::write(descr, shape, min_len)
}
