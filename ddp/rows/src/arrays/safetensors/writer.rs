//! Writes `.safetensors`: features, labels and weights, with the names of columns and the values of categories.
//!
//! Source: <https://huggingface.co/docs/safetensors>: length of the header, header in JSON padded with spaces, then the
//! tensors without gaps.

use std::fs::File;
use std::io::{BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::texts::{CATEGORIES_TEXT, FEATURES_TEXT, LABELS_TEXT, TARGETS_TEXT};
use crate::arrays::reader::WEIGHTS_KEY;
use crate::error::Result;
use crate::error::WriteError;
use crate::values::element::RawType;
use crate::write::{ArrayLayout, ArrayRows, ArrayWriter, OutFiles, Staging};

/// Opens the file of a writer.
pub fn create(layout: &ArrayLayout, files: &OutFiles, staging: &mut Staging) -> Result<Box<dyn ArrayWriter>> {
    Ok(Box::new(SafetensorsWriter::new(layout, &files.rows, staging)?))
}

/// Writes tensors of features, labels and weights.
struct SafetensorsWriter {
    layout: ArrayLayout,
    path: PathBuf,
    /// Space for the header, then the features.
    file: BufWriter<File>,
    /// Unnamed file; appended after the features.
    targets: BufWriter<File>,
    weights: BufWriter<File>,
    header_len: usize,
    n_rows: u64,
}

impl SafetensorsWriter {
    fn new(layout: &ArrayLayout, path: &Path, staging: &mut Staging) -> Result<Self> {
        let buffered = |file| BufWriter::with_capacity(1 << 18, file);
        let mut file = buffered(staging.create(path)?);
        // A header with the longest possible numbers; the tensors start at a multiple of 64.
        let longest = header(layout, u64::MAX).to_string().len();
        let header_len = (8 + longest).next_multiple_of(64);
        let reserved = file.write_all(&vec![b' '; header_len]);
        reserved.map_err(|source| WriteError { path: path.to_owned(), source })?;
        Ok(SafetensorsWriter {
            file,
            targets: buffered(staging.scratch(path, "labels")?),
            weights: buffered(staging.scratch(path, "weights")?),
            path: path.to_owned(),
            header_len,
            n_rows: 0,
            layout: layout.clone(),
        })
    }
}

impl ArrayWriter for SafetensorsWriter {
    fn write(&mut self, rows: &ArrayRows) -> Result<()> {
        let mut put = || -> std::io::Result<()> {
            self.file.write_all(&rows.features)?;
            self.targets.write_all(&rows.targets)?;
            self.weights.write_all(&rows.weights)
        };
        put().map_err(|source| WriteError { path: self.path.clone(), source })?;
        self.n_rows += rows.n_rows as u64;
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { layout, path, mut file, targets, weights, header_len, n_rows } = *self;
        let end = || -> std::io::Result<()> {
            for rest in [targets, weights] {
                let mut rest = rest.into_inner().map_err(std::io::IntoInnerError::into_error)?;
                rest.seek(SeekFrom::Start(0))?;
                std::io::copy(&mut rest, &mut file)?;
            }
            let mut text = header(&layout, n_rows).to_string();
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

fn header(layout: &ArrayLayout, n_rows: u64) -> Value {
    let mut texts = json!({ FEATURES_TEXT: json_text(&layout.features) });
    if !layout.targets.is_empty() {
        texts[TARGETS_TEXT] = json_text(&layout.targets);
    }
    if let Some(labels) = &layout.labels {
        texts[LABELS_TEXT] = json_text(labels);
    }
    if !layout.categories.is_empty() {
        texts[CATEGORIES_TEXT] = json_text(&layout.categories);
    }
    let mut header = json!({ "__metadata__": texts });
    let mut start = 0u64;
    let mut put = |name: &str, raw: RawType, shape: Vec<u64>| {
        let n_bytes = shape.iter().fold(raw.size_bytes() as u64, |n, dim| n.saturating_mul(*dim));
        let end = start.saturating_add(n_bytes);
        let dtype = raw.name().to_ascii_uppercase();
        header[name] = json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] });
        start = end;
    };
    put("features", layout.dtype, layout.feature_shape(n_rows));
    if !layout.targets.is_empty() {
        put("labels", layout.target_dtype, layout.target_shape(n_rows));
    }
    if let Some(raw) = layout.weight_dtype {
        put(WEIGHTS_KEY, raw, vec![n_rows]);
    }
    header
}

/// A value as JSON in a string, because the metadata of a header holds strings only.
fn json_text(value: &impl serde::Serialize) -> Value {
    Value::String(serde_json::to_string(value).expect("names and values of categories are texts and numbers"))
}
