//! Writes `.npz`: features, labels and weights in one archive, uncompressed, so that they can be mapped.
//!
//! An entry of an archive starts with its checksum, so arrays can't be completed in place: they wait in unnamed files.

use std::fs::File;
use std::io::{BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use zip::write::{SimpleFileOptions, ZipWriter};
use zip::{CompressionMethod, DateTime};

use crate::arrays::npy::array_header;
use crate::arrays::reader::WEIGHTS_KEY;
use crate::error::Result;
use crate::error::WriteError;
use crate::values::element::RawType;
use crate::write::{ArrayLayout, ArrayRows, ArrayWriter, OutFiles, Staging};

/// Opens the file of a writer.
pub fn create(layout: &ArrayLayout, files: &OutFiles, staging: &mut Staging) -> Result<Box<dyn ArrayWriter>> {
    Ok(Box::new(NpzWriter::new(layout, &files.rows, staging)?))
}

/// Writes an archive of arrays.
struct NpzWriter {
    layout: ArrayLayout,
    path: PathBuf,
    file: File,
    features: BufWriter<File>,
    targets: BufWriter<File>,
    weights: BufWriter<File>,
    n_rows: u64,
}

impl NpzWriter {
    fn new(layout: &ArrayLayout, path: &Path, staging: &mut Staging) -> Result<Self> {
        let file = staging.create(path)?;
        let scratch =
            |what: &str| Ok::<_, WriteError>(BufWriter::with_capacity(1 << 18, staging.scratch(path, what)?));
        Ok(NpzWriter {
            file,
            features: scratch("features")?,
            targets: scratch("labels")?,
            weights: scratch("weights")?,
            path: path.to_owned(),
            n_rows: 0,
            layout: layout.clone(),
        })
    }
}

impl ArrayWriter for NpzWriter {
    fn write(&mut self, rows: &ArrayRows) -> Result<()> {
        let mut put = || -> std::io::Result<()> {
            self.features.write_all(&rows.features)?;
            self.targets.write_all(&rows.targets)?;
            self.weights.write_all(&rows.weights)
        };
        put().map_err(|source| WriteError { path: self.path.clone(), source })?;
        self.n_rows += rows.n_rows as u64;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { layout, path, file, features, targets, weights, n_rows } = *self;
        let mut arrays = vec![("features", layout.dtype, layout.feature_shape(n_rows), features)];
        if !layout.targets.is_empty() {
            arrays.push(("labels", layout.target_dtype, layout.target_shape(n_rows), targets));
        }
        if let Some(raw) = layout.weight_dtype {
            arrays.push((WEIGHTS_KEY, raw, vec![n_rows], weights));
        }
        let end = || -> std::io::Result<()> {
            let mut files = Vec::new();
            for (name, raw, shape, content) in arrays {
                let mut content = content.into_inner().map_err(std::io::IntoInnerError::into_error)?;
                content.seek(SeekFrom::Start(0))?;
                files.push((name, raw, shape, content));
            }
            let file = write_archive(BufWriter::with_capacity(1 << 18, file), files)?;
            file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
        };
        Ok(end().map_err(|source| WriteError { path, source })?)
    }
}

/// Writes an archive of arrays, each by name, type, shape and elements, to `out`.
pub fn write_archive<W: Write + Seek>(
    out: W,
    arrays: Vec<(&str, RawType, Vec<u64>, impl Read)>,
) -> std::io::Result<W> {
    let mut archive = ZipWriter::new(out);
    // The time of day would make equal archives differ.
    let options = SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(DateTime::default())
        .large_file(true)
        .with_alignment(64);
    for (name, raw, shape, mut content) in arrays {
        archive.start_file(format!("{name}.npy"), options)?;
        archive.write_all(&array_header(raw, &shape, 0))?;
        std::io::copy(&mut content, &mut archive)?;
    }
    Ok(archive.finish()?)
}
