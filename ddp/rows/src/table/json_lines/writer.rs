//! Writes `.jsonl`, plain or compressed: one object per line, missing values as null.

use serde_json::value::RawValue;

use crate::error::Result;
use crate::write::{CellKind, OutFiles, Staging, TextColumn, TextFile, TextWriter};

/// Opens the file of a writer; its name determines the compression.
pub fn create(
    columns: &[TextColumn],
    files: &OutFiles,
    staging: &mut Staging,
) -> Result<Box<dyn TextWriter>> {
    let keys = columns.iter().map(|column| (format!("{}:", json(&column.name)), column.cells));
    let out = TextFile::create(&files.rows, staging)?;
    Ok(Box::new(JsonWriter { out, keys: keys.collect(), lines: String::new() }))
}

/// Writes rows as objects.
struct JsonWriter {
    out: TextFile,
    /// Keys with their colons.
    keys: Vec<(String, CellKind)>,
    lines: String,
}

impl TextWriter for JsonWriter {
    fn write(&mut self, cells: &mut dyn Iterator<Item = &str>) -> Result<()> {
        let lines = &mut self.lines;
        lines.push('{');
        for ((key, kind), cell) in self.keys.iter().zip(cells) {
            lines.push_str(key);
            match kind {
                _ if cell.is_empty() => lines.push_str("null"),
                CellKind::Text => lines.push_str(&json(cell)),
                CellKind::Truth => lines.push_str(&cell.to_ascii_lowercase()),
                CellKind::Number => put_number(lines, cell),
            }
            lines.push(',');
        }
        lines.pop();
        lines.push_str("}\n");
        if lines.len() >= 1 << 16 {
            self.out.write(lines)?;
            lines.clear();
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.out.write(&self.lines)?;
        self.out.finish()
    }
}

/// Appends a number with its digits, unless JSON writes it differently: `+1`, `.5`, `007`. One that is not finite is missing.
fn put_number(lines: &mut String, cell: &str) {
    if serde_json::from_str::<&RawValue>(cell).is_ok() {
        return lines.push_str(cell);
    }
    match (cell.parse::<i128>(), cell.parse::<f64>()) {
        (Ok(whole), _) => lines.push_str(&whole.to_string()),
        (_, Ok(number)) => lines.push_str(&serde_json::Value::from(number).to_string()),
        _ => lines.push_str("null"),
    }
}

fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
