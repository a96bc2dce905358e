//! Writes `.safetensors`: features, labels and weights, with the names of columns and the values of categories.
//!
//! Source: <https://huggingface.co/docs/safetensors>: length of the header, header in JSON padded with spaces, then the
//! tensors without gaps.

use std::fs::File;
use std::io::{BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use ddp_kernels::DType;
use serde_json::{Value, json};

use super::texts::{CATEGORIES_TEXT, FEATURES_TEXT, TARGETS_TEXT};
use crate::data::error::Result;
use crate::data::raw::reader::WEIGHTS_KEY;
use crate::data::write::{Chunk, OutFiles, RowWriter, Schema, Staging};
use crate::storage::atomic_write::WriteError;

/// Opens the file of a writer.
pub(crate) fn create(schema: Schema, files: &OutFiles, staging: &mut Staging) -> Result<Box<dyn RowWriter>> {
    Ok(Box::new(SafetensorsWriter::new(schema, &files.rows, staging)?))
}

/// Writes tensors of features, labels and weights.
struct SafetensorsWriter {
    schema: Schema,
    path: PathBuf,
    /// Space for the header, then the features.
    file: BufWriter<File>,
    /// Unnamed file; appended after the features.
    targets: BufWriter<File>,
    weights: BufWriter<File>,
    header_len: usize,
    bytes: Vec<u8>,
    n_rows: u64,
}

impl SafetensorsWriter {
    fn new(schema: Schema, path: &Path, staging: &mut Staging) -> Result<Self> {
        let buffered = |file| BufWriter::with_capacity(1 << 18, file);
        let mut file = buffered(staging.create(path)?);
        // A header with the longest possible numbers; the tensors start at a multiple of 64.
        let longest = header(&schema, u64::MAX).to_string().len();
        let header_len = (8 + longest).next_multiple_of(64);
        let reserved = file.write_all(&vec![b' '; header_len]);
        reserved.map_err(|source| WriteError { path: path.to_owned(), source })?;
        Ok(SafetensorsWriter {
            file,
            targets: buffered(staging.scratch(path, "labels")?),
            weights: buffered(staging.scratch(path, "weights")?),
            path: path.to_owned(),
            header_len,
            bytes: Vec::new(),
            n_rows: 0,
            schema,
        })
    }
}

impl RowWriter for SafetensorsWriter {
    fn write(&mut self, rows: &Chunk<'_>, first: usize) -> Result<()> {
        self.schema.encode(rows, first, &mut self.bytes)?;
        let mut put = || -> std::io::Result<()> {
            self.file.write_all(&self.bytes)?;
            self.targets.write_all(rows.targets.bytes())?;
            self.weights.write_all(bytemuck::cast_slice(rows.weights.unwrap_or_default()))
        };
        put().map_err(|source| WriteError { path: self.path.clone(), source })?;
        self.n_rows += rows.n_rows as u64;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { schema, path, mut file, targets, weights, header_len, n_rows, .. } = *self;
        let end = || -> std::io::Result<()> {
            for rest in [targets, weights] {
                let mut rest = rest.into_inner().map_err(std::io::IntoInnerError::into_error)?;
                rest.seek(SeekFrom::Start(0))?;
                std::io::copy(&mut rest, &mut file)?;
            }
            let mut text = header(&schema, n_rows).to_string();
            text.push_str(&" ".repeat(header_len - 8 - text.len()));
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&(text.len() as u64).to_le_bytes())?;
            file.write_all(text.as_bytes())?;
            file.flush()?;
            file.get_ref().sync_all()
        };
        Ok(end().map_err(|source| WriteError { path, source })?)
    }
}

fn header(schema: &Schema, n_rows: u64) -> Value {
    let mut texts = json!({ FEATURES_TEXT: json_text(&schema.features) });
    if !schema.are_labels {
        texts[TARGETS_TEXT] = json_text(&schema.targets);
    }
    if !schema.categories.is_empty() {
        texts[CATEGORIES_TEXT] = json_text(&schema.categories);
    }
    let mut header = json!({ "__metadata__": texts });
    let mut start = 0u64;
    let mut put = |name: &str, dtype: DType, shape: Vec<u64>| {
        let name_of_type = match dtype {
            DType::F32 => "F32",
            DType::F64 => "F64",
            DType::I64 => "I64",
            DType::BF16 => "BF16",
            DType::F16 => "F16",
            DType::U8 => "U8",
        };
        let n_bytes = shape.iter().fold(dtype.size_bytes() as u64, |n, dim| n.saturating_mul(*dim));
        let end = start.saturating_add(n_bytes);
        header[name] = json!({ "dtype": name_of_type, "shape": shape, "data_offsets": [start, end] });
        start = end;
    };
    put("features", schema.dtype, schema.feature_shape(n_rows));
    put("labels", schema.target_dtype(), schema.target_shape(n_rows));
    if schema.weight.is_some() {
        put(WEIGHTS_KEY, DType::F32, vec![n_rows]);
    }
    header
}

/// A value as JSON in a string, because the metadata of a header holds strings only.
fn json_text(value: &impl serde::Serialize) -> Value {
    Value::String(serde_json::to_string(value).expect("names and values of categories are texts and numbers"))
}
