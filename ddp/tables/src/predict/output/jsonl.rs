//! Predictions as JSON lines: one object per row.

use std::io::Write as _;

use crate::predict::output::block::{Block, ColumnKind, OutputColumn, Values};
use crate::predict::output::encoder::Encoder;

/// Encodes rows as objects whose keys are the names of the columns. Integer labels are written as numbers; rows without a
/// prediction contain null.
pub(crate) struct JsonlEncoder {
    /// The names, quoted.
    keys: Vec<String>,
    /// The labels of each column as JSON.
    labels: Vec<Vec<String>>,
}

impl JsonlEncoder {
    pub(crate) fn new(columns: &[OutputColumn]) -> Self {
        let labels = |column: &OutputColumn| match &column.kind {
            ColumnKind::Label(labels) => match &labels.integers {
                Some(integers) => integers.iter().map(ToString::to_string).collect(),
                None => labels.names.iter().map(|name| json_string(name)).collect(),
            },
            _ => Vec::new(),
        };
        JsonlEncoder {
            keys: columns.iter().map(|column| json_string(&column.name)).collect(),
            labels: columns.iter().map(labels).collect(),
        }
    }
}

fn json_string(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl Encoder for JsonlEncoder {
    fn encode(&self, block: &Block, lines: &mut Vec<u8>) {
        for row in 0..block.n_rows {
            let is_valid = block.is_valid(row);
            for (column, values) in block.columns.iter().enumerate() {
                lines.push(if column == 0 { b'{' } else { b',' });
                lines.extend_from_slice(self.keys[column].as_bytes());
                lines.push(b':');
                // Writing to memory does not fail.
                let _ = match values {
                    Values::Texts(texts) => write!(lines, "{}", json_string(texts.get(row))),
                    #[cfg(feature = "parquet")]
                    Values::Arrays(_) => unreachable!("only Parquet keeps types"),
                    _ if !is_valid => write!(lines, "null"),
                    Values::Labels(classes) => {
                        write!(lines, "{}", self.labels[column][classes[row] as usize])
                    }
                    Values::Binary(values) => write!(lines, "{}", values[row]),
                    Values::Numbers(values) => write!(lines, "{}", serde_json::Value::from(values[row])),
                    Values::Probabilities(values) => {
                        write!(lines, "{}", serde_json::Value::from(values[row]))
                    }
                };
            }
            lines.extend_from_slice(b"}\n");
        }
    }

    fn head(&self, _n_rows: u64) -> Vec<u8> {
        Vec::new()
    }
}
