//! Writes `.csv` and `.tsv`, plain or compressed: a row of names, then features, targets and weight; categories as text.

use std::fmt::Write as _;
use std::path::Path;

use crate::data::error::Result;
use crate::data::write::{
    Chunk, OutFiles, RowWriter, Schema, Staging, Targets, TextFile, TextWriter, put_number,
};

/// Opens the file of a writer; its name determines the compression.
pub(crate) fn create(schema: Schema, files: &OutFiles, staging: &mut Staging) -> Result<Box<dyn RowWriter>> {
    Ok(Box::new(CsvWriter::new(schema, &files.rows, staging)?))
}

/// Writes a table as text.
struct CsvWriter {
    out: TextFile,
    /// The character between cells.
    delimiter: char,
    n_features: usize,
    n_targets: usize,
    /// The quoted values of each categorical column, by number.
    texts: Vec<Option<Vec<String>>>,
    lines: String,
}

impl CsvWriter {
    fn new(schema: Schema, path: &Path, staging: &mut Staging) -> Result<Self> {
        let out = TextFile::create(path, staging)?;
        let delimiter = delimiter_of(path);
        let quoted = |text: &str| quoted(text, delimiter);
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
            out,
            delimiter,
            n_features: schema.features.len(),
            n_targets: schema.targets.len(),
            texts,
            lines: names.join(delimiter.encode_utf8(&mut [0; 4])) + "\n",
        })
    }

    fn put_row(&mut self, rows: &Chunk<'_>, row: usize) {
        let (lines, delimiter) = (&mut self.lines, self.delimiter);
        for (&value, texts) in
            rows.features[row * self.n_features..][..self.n_features].iter().zip(&self.texts)
        {
            match texts {
                Some(texts) => lines.push_str(texts.get(value as usize).map_or("", String::as_str)),
                None => put_number(lines, value),
            }
            lines.push(delimiter);
        }
        match rows.targets {
            // Writing to a string does not fail.
            Targets::Labels(labels) => drop(write!(lines, "{}{delimiter}", labels[row])),
            Targets::Values(values) => {
                for &value in &values[row * self.n_targets..][..self.n_targets] {
                    put_number(lines, value);
                    lines.push(delimiter);
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
                self.out.write(&self.lines)?;
                self.lines.clear();
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>) -> Result<()> {
        self.out.finish()
    }
}

/// Opens the file of a writer of text.
pub(crate) fn create_text(
    names: &[String],
    files: &OutFiles,
    staging: &mut Staging,
) -> Result<Box<dyn TextWriter>> {
    let out = TextFile::create(&files.rows, staging)?;
    let mut writer = CsvText { out, delimiter: delimiter_of(&files.rows), lines: String::new() };
    writer.write(&mut names.iter().map(String::as_str))?;
    Ok(Box::new(writer))
}

/// Writes cells as they are.
struct CsvText {
    out: TextFile,
    delimiter: char,
    lines: String,
}

impl TextWriter for CsvText {
    fn write(&mut self, cells: &mut dyn Iterator<Item = &str>) -> Result<()> {
        let start = self.lines.len();
        for cell in cells {
            self.lines += &quoted(cell, self.delimiter);
            self.lines.push(self.delimiter);
        }
        self.lines.pop();
        // A line without a character would not be a row.
        if self.lines.len() == start {
            self.lines += "\"\"";
        }
        self.lines.push('\n');
        if self.lines.len() >= 1 << 16 {
            self.out.write(&self.lines)?;
            self.lines.clear();
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.out.write(&self.lines)?;
        self.out.finish()
    }
}

/// A tab for `.tsv`, otherwise a comma.
fn delimiter_of(path: &Path) -> char {
    let name = path.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    if name.split('.').skip(1).any(|part| part == "tsv") { '\t' } else { ',' }
}

/// A text as a cell; quoted if it holds a delimiter or a quote.
pub(crate) fn quoted(text: &str, delimiter: char) -> String {
    match text.contains(['"', delimiter, '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_owned(),
    }
}
