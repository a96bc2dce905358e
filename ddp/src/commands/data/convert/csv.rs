//! `.csv`, plain or compressed: a row of names, then features, targets and weight; a category as its text.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;

use super::chunk::{Chunk, Targets};
use super::staging::Staging;
use super::writer::{RowWriter, Schema};
use crate::data::Compression;
use crate::error::Result;
use crate::storage::atomic_write::WriteError;

/// Writes a table of texts.
pub(super) struct CsvWriter {
    path: PathBuf,
    out: Out,
    n_features: usize,
    n_targets: usize,
    /// The texts of each categorical column by their numbers, quoted where they must be.
    texts: Vec<Option<Vec<String>>>,
    lines: String,
}

/// The file, or what packs bytes on their way there.
enum Out {
    Plain(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
    Zstd(zstd::Encoder<'static, BufWriter<File>>),
}

impl CsvWriter {
    pub(super) fn new(
        schema: Schema,
        compression: Compression,
        path: &Path,
        staging: &mut Staging,
    ) -> Result<Self> {
        let failed = |source| WriteError { path: path.to_owned(), source };
        let file = BufWriter::with_capacity(1 << 18, staging.create(path)?);
        let out = match compression {
            Compression::None => Out::Plain(file),
            Compression::Gzip => Out::Gzip(GzEncoder::new(file, flate2::Compression::default())),
            Compression::Zstd => Out::Zstd(zstd::Encoder::new(file, 0).map_err(failed)?),
        };
        let mut texts = vec![None; schema.features.len()];
        for category in &schema.categories {
            let values = category.vocabulary.values().iter().map(|value| quoted(value));
            texts[category.column] = Some(std::iter::once(String::new()).chain(values).collect());
        }
        let names: Vec<String> = schema
            .features
            .iter()
            .chain(&schema.targets)
            .chain(&schema.weight)
            .map(|name| quoted(name))
            .collect();
        Ok(CsvWriter {
            path: path.to_owned(),
            out,
            n_features: schema.features.len(),
            n_targets: schema.targets.len(),
            texts,
            lines: names.join(",") + "\n",
        })
    }

    fn put_row(&mut self, rows: &Chunk<'_>, row: usize) {
        let lines = &mut self.lines;
        for (&value, texts) in
            rows.features[row * self.n_features..][..self.n_features].iter().zip(&self.texts)
        {
            match texts {
                Some(texts) => lines.push_str(texts.get(value as usize).map_or("", String::as_str)),
                None => put_number(lines, value),
            }
            lines.push(',');
        }
        match rows.targets {
            // Writing to a text does not fail.
            Targets::Labels(labels) => drop(write!(lines, "{},", labels[row])),
            Targets::Values(values) => {
                for &value in &values[row * self.n_targets..][..self.n_targets] {
                    put_number(lines, value);
                    lines.push(',');
                }
            }
        }
        match rows.weights {
            Some(weights) => put_number(lines, weights[row]),
            None => drop(lines.pop()),
        }
        lines.push('\n');
    }
}

impl RowWriter for CsvWriter {
    fn write(&mut self, rows: &Chunk<'_>, _first: usize) -> Result<()> {
        for row in 0..rows.n_rows {
            self.put_row(rows, row);
            if self.lines.len() >= 1 << 16 || row + 1 == rows.n_rows {
                let written = self.out.write_all(self.lines.as_bytes());
                written.map_err(|source| WriteError { path: self.path.clone(), source })?;
                self.lines.clear();
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { path, out, .. } = *self;
        let end = || -> std::io::Result<()> {
            let buffered = match out {
                Out::Plain(file) => file,
                Out::Gzip(packer) => packer.finish()?,
                Out::Zstd(packer) => packer.finish()?,
            };
            buffered.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()
        };
        Ok(end().map_err(|source| WriteError { path, source })?)
    }
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Out::Plain(file) => file.write(bytes),
            Out::Gzip(packer) => packer.write(bytes),
            Out::Zstd(packer) => packer.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The shortest text that is read as the same number; none where it is missing.
fn put_number(out: &mut String, value: f32) {
    let _ = match value.abs() {
        _ if value.is_nan() => Ok(()),
        // Whole numbers are faster as such.
        size if size < 1e6 && value == value.trunc() && (value != 0.0 || value.is_sign_positive()) => {
            write!(out, "{}", value as i32)
        }
        size if size == 0.0 || (1e-5..1e9).contains(&size) => write!(out, "{value}"),
        _ => write!(out, "{value:e}"),
    };
}

/// A text as a cell: in quotes where it would end the cell, the row, or be trimmed.
fn quoted(text: &str) -> String {
    match text.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
