//! Writes `.npz`: features, labels and weights in one archive, uncompressed, so that they can be mapped.
//!
//! An entry of an archive starts with its checksum, so arrays can't be completed in place: they wait in unnamed files.

use std::fs::File;
use std::io::{BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use ddp_kernels::DType;
use zip::write::{SimpleFileOptions, ZipWriter};
use zip::{CompressionMethod, DateTime};

use crate::data::error::Result;
use crate::data::raw::npy::array_header;
use crate::data::raw::reader::WEIGHTS_KEY;
use crate::data::write::{Chunk, OutFiles, RowWriter, Schema, Staging};
use crate::storage::atomic_write::WriteError;

/// Opens the file of a writer.
pub(crate) fn create(schema: Schema, files: &OutFiles, staging: &mut Staging) -> Result<Box<dyn RowWriter>> {
    Ok(Box::new(NpzWriter::new(schema, &files.rows, staging)?))
}

/// Writes an archive of arrays.
struct NpzWriter {
    schema: Schema,
    path: PathBuf,
    file: File,
    features: BufWriter<File>,
    targets: BufWriter<File>,
    weights: BufWriter<File>,
    bytes: Vec<u8>,
    n_rows: u64,
}

impl NpzWriter {
    fn new(schema: Schema, path: &Path, staging: &mut Staging) -> Result<Self> {
        let file = staging.create(path)?;
        let scratch =
            |what: &str| Ok::<_, WriteError>(BufWriter::with_capacity(1 << 18, staging.scratch(path, what)?));
        Ok(NpzWriter {
            file,
            features: scratch("features")?,
            targets: scratch("labels")?,
            weights: scratch("weights")?,
            path: path.to_owned(),
            bytes: Vec::new(),
            n_rows: 0,
            schema,
        })
    }
}

impl RowWriter for NpzWriter {
    fn write(&mut self, rows: &Chunk<'_>, first: usize) -> Result<()> {
        self.schema.encode(rows, first, &mut self.bytes)?;
        let mut put = || -> std::io::Result<()> {
            self.features.write_all(&self.bytes)?;
            self.targets.write_all(rows.targets.bytes())?;
            self.weights.write_all(bytemuck::cast_slice(rows.weights.unwrap_or_default()))
        };
        put().map_err(|source| WriteError { path: self.path.clone(), source })?;
        self.n_rows += rows.n_rows as u64;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { schema, path, file, features, targets, weights, n_rows, .. } = *self;
        let mut arrays = vec![
            ("features", schema.dtype, schema.feature_shape(n_rows), features),
            ("labels", schema.target_dtype(), schema.target_shape(n_rows), targets),
        ];
        if schema.weight.is_some() {
            arrays.push((WEIGHTS_KEY, DType::F32, vec![n_rows], weights));
        }
        let end = || -> std::io::Result<()> {
            let mut archive = ZipWriter::new(BufWriter::with_capacity(1 << 18, file));
            // The time of day would make equal archives differ.
            let options = SimpleFileOptions::default()
                .compression_method(CompressionMethod::Stored)
                .last_modified_time(DateTime::default())
                .large_file(true)
                .with_alignment(64);
            for (name, dtype, shape, content) in arrays {
                let mut content = content.into_inner().map_err(std::io::IntoInnerError::into_error)?;
                content.seek(SeekFrom::Start(0))?;
                archive.start_file(format!("{name}.npy"), options)?;
                archive.write_all(&array_header(dtype, &shape, 0))?;
                std::io::copy(&mut content, &mut archive)?;
            }
            let file = archive.finish()?.into_inner().map_err(std::io::IntoInnerError::into_error)?;
            file.sync_all()
        };
        Ok(end().map_err(|source| WriteError { path, source })?)
    }
}
