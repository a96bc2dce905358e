//! Writes `.jsonl`, plain or compressed: one object per line, categories as text, missing values as null.

use std::fmt::Write as _;

use crate::data::error::Result;
use crate::data::write::{Chunk, OutFiles, RowWriter, Schema, Staging, Targets, TextFile, put_number};

/// Opens the file of a writer; its name determines the compression.
pub(crate) fn create(schema: Schema, files: &OutFiles, staging: &mut Staging) -> Result<Box<dyn RowWriter>> {
    let mut texts = vec![None; schema.features.len()];
    for category in &schema.categories {
        texts[category.column] = Some(category.vocabulary.values().iter().map(|value| json(value)).collect());
    }
    let keys = |names: &[String]| names.iter().map(|name| format!("{}:", json(name))).collect();
    Ok(Box::new(JsonWriter {
        out: TextFile::create(&files.rows, staging)?,
        features: keys(&schema.features),
        targets: keys(&schema.targets),
        weight: schema.weight.as_deref().map(|name| format!("{}:", json(name))),
        texts,
        lines: String::new(),
    }))
}

/// Writes a table as objects.
struct JsonWriter {
    out: TextFile,
    /// Keys with their colons.
    features: Vec<String>,
    targets: Vec<String>,
    weight: Option<String>,
    /// The values of each categorical column as JSON, by number - 1.
    texts: Vec<Option<Vec<String>>>,
    lines: String,
}

impl JsonWriter {
    fn put_row(&mut self, rows: &Chunk<'_>, row: usize) {
        let lines = &mut self.lines;
        let values = &rows.features[row * self.features.len()..][..self.features.len()];
        lines.push('{');
        for ((key, &value), texts) in self.features.iter().zip(values).zip(&self.texts) {
            lines.push_str(key);
            match texts {
                // 0 and numbers without a value are unknown values.
                Some(texts) => {
                    let text = (value as usize).checked_sub(1).and_then(|place| texts.get(place));
                    lines.push_str(text.map_or("null", String::as_str));
                }
                None => put(lines, value),
            }
            lines.push(',');
        }
        match rows.targets {
            // Writing to a string does not fail.
            Targets::Labels(labels) => drop(write!(lines, "{}{},", self.targets[0], labels[row])),
            Targets::Values(values) => {
                let n = self.targets.len();
                for (key, &value) in self.targets.iter().zip(&values[row * n..][..n]) {
                    lines.push_str(key);
                    put(lines, value);
                    lines.push(',');
                }
            }
        }
        if let (Some(key), Some(weights)) = (&self.weight, rows.weights) {
            lines.push_str(key);
            put(lines, weights[row]);
            lines.push(',');
        }
        lines.pop();
        lines.push_str("}\n");
    }
}

impl RowWriter for JsonWriter {
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

fn put(lines: &mut String, value: f32) {
    if value.is_nan() { lines.push_str("null") } else { put_number(lines, value) }
}

fn json(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
