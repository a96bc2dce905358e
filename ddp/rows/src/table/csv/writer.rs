//! Writes `.csv` and `.tsv`, plain or compressed: a row of names, then the cells as they are.

use std::path::Path;

use crate::error::Result;
use crate::write::{OutFiles, Staging, TextColumn, TextFile, TextWriter};

/// Opens the file of a writer; its name determines the compression.
pub fn create(
    columns: &[TextColumn],
    files: &OutFiles,
    staging: &mut Staging,
) -> Result<Box<dyn TextWriter>> {
    let out = TextFile::create(&files.rows, staging)?;
    let mut writer = CsvWriter { out, delimiter: delimiter_of(&files.rows), lines: String::new() };
    writer.write(&mut columns.iter().map(|column| column.name.as_str()))?;
    Ok(Box::new(writer))
}

/// Writes cells as text.
struct CsvWriter {
    out: TextFile,
    delimiter: char,
    lines: String,
}

impl TextWriter for CsvWriter {
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
pub fn quoted(text: &str, delimiter: char) -> String {
    if text.contains(['"', delimiter, '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}
