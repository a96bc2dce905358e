//! Writes `.npy`: features in one file, labels and weights in files next to it.

use std::fs::File;
use std::io::{BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use super::header;
use crate::error::Result;
use crate::error::WriteError;
use crate::values::element::RawType;
use crate::write::{ArrayLayout, ArrayRows, ArrayWriter, OutFiles, Staging};

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
