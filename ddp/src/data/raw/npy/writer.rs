//! Writes `.npy`: features in one file, labels and weights in files next to it.

use std::fs::File;
use std::io::{BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use ddp_kernels::DType;

use super::header;
use crate::data::error::Result;
use crate::data::write::{Chunk, OutFiles, RowWriter, Schema, Staging};
use crate::storage::atomic_write::WriteError;

/// Opens the files of a writer.
pub(crate) fn create(schema: Schema, files: &OutFiles, staging: &mut Staging) -> Result<Box<dyn RowWriter>> {
    Ok(Box::new(NpyWriter::new(schema, files, staging)?))
}

/// Writes features, labels and weights to a file each.
struct NpyWriter {
    schema: Schema,
    features: ArrayFile,
    targets: ArrayFile,
    weights: Option<ArrayFile>,
    bytes: Vec<u8>,
    n_rows: u64,
}

impl NpyWriter {
    fn new(schema: Schema, files: &OutFiles, staging: &mut Staging) -> Result<Self> {
        let mut array = |path: &Path, dtype, shape: &[u64]| ArrayFile::new(path, dtype, shape, staging);
        Ok(NpyWriter {
            features: array(&files.rows, schema.dtype, &schema.feature_shape(u64::MAX))?,
            targets: array(&files.labels, schema.target_dtype(), &schema.target_shape(u64::MAX))?,
            weights: match schema.weight {
                Some(_) => Some(array(&files.weights, DType::F32, &[u64::MAX])?),
                None => None,
            },
            bytes: Vec::new(),
            n_rows: 0,
            schema,
        })
    }
}

impl RowWriter for NpyWriter {
    fn write(&mut self, rows: &Chunk<'_>, first: usize) -> Result<()> {
        self.schema.encode(rows, first, &mut self.bytes)?;
        self.features.put(&self.bytes)?;
        self.targets.put(rows.targets.bytes())?;
        if let (Some(file), Some(weights)) = (&mut self.weights, rows.weights) {
            file.put(bytemuck::cast_slice(weights))?;
        }
        self.n_rows += rows.n_rows as u64;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.features.finish(&self.schema.feature_shape(self.n_rows))?;
        self.targets.finish(&self.schema.target_shape(self.n_rows))?;
        self.weights.map_or(Ok(()), |weights| weights.finish(&[self.n_rows]))
    }
}

/// A file of one array; its header is written last.
struct ArrayFile {
    file: BufWriter<File>,
    path: PathBuf,
    dtype: DType,
    header_len: usize,
}

impl ArrayFile {
    /// `largest` is a shape with the longest possible header.
    fn new(path: &Path, dtype: DType, largest: &[u64], staging: &mut Staging) -> Result<Self> {
        let file = BufWriter::with_capacity(1 << 18, staging.create(path)?);
        let header = array_header(dtype, largest, 0);
        let mut array = ArrayFile { file, path: path.to_owned(), dtype, header_len: header.len() };
        array.put(&header)?;
        Ok(array)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        Ok(self.file.write_all(bytes).map_err(|source| WriteError { path: self.path.clone(), source })?)
    }

    fn finish(mut self, shape: &[u64]) -> Result<()> {
        let header = array_header(self.dtype, shape, self.header_len);
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
pub(crate) fn array_header(dtype: DType, shape: &[u64], min_len: usize) -> Vec<u8> {
    let descr = match dtype {
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::I64 => "<i8",
        DType::U8 => "|u1",
        DType::F16 => "<f2",
        DType::BF16 => unreachable!("`Schema::fit` refused bf16, which npy lacks"),
    };
    header::write(descr, shape, min_len)
}
