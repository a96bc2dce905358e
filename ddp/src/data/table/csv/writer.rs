//! Writes `.csv`, plain or compressed: a row of names, then features, targets and weight; categories as text.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::write::GzEncoder;

use crate::data::compression::Compression;
use crate::data::error::Result;
use crate::data::write::{Chunk, OutFiles, RowWriter, Schema, Staging, Targets};
use crate::storage::atomic_write::WriteError;

/// Opens the file of a writer; its name determines the compression.
pub(crate) fn create(schema: Schema, files: &OutFiles, staging: &mut Staging) -> Result<Box<dyn RowWriter>> {
    Ok(Box::new(CsvWriter::new(schema, &files.rows, staging)?))
}

/// Writes a table as text.
struct CsvWriter {
    path: PathBuf,
    out: Out,
    n_features: usize,
    n_targets: usize,
    /// The quoted values of each categorical column, by number.
    texts: Vec<Option<Vec<String>>>,
    lines: String,
}

/// The file or its compressor.
enum Out {
    Plain(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
    Zstd(zstd::Encoder<'static, BufWriter<File>>),
}

impl CsvWriter {
    fn new(schema: Schema, path: &Path, staging: &mut Staging) -> Result<Self> {
        let failed = |source| WriteError { path: path.to_owned(), source };
        let file = BufWriter::with_capacity(1 << 18, staging.create(path)?);
        let out = match Compression::of(path) {
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
            // Writing to a string does not fail.
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

/// Appends the shortest text that parses as `value`; nothing for NaN, which marks a missing value.
fn put_number(out: &mut String, value: f32) {
    let _ = match value.abs() {
        _ if value.is_nan() => Ok(()),
        // Integers are formatted faster.
        size if size < 1e6 && value == value.trunc() && (value != 0.0 || value.is_sign_positive()) => {
            write!(out, "{}", value as i32)
        }
        size if size == 0.0 || (1e-5..1e9).contains(&size) => write!(out, "{value}"),
        _ => write!(out, "{value:e}"),
    };
}

/// A text as a cell; quoted if it holds a separator or a quote.
pub(crate) fn quoted(text: &str) -> String {
    match text.contains(['"', ',', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
