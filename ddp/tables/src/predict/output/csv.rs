//! Predictions as CSV: a header row, then one row per prediction.

use std::io::Write as _;

use crate::formats::table::csv::quoted as quoted_cell;
use crate::predict::output::block::{Block, ColumnKind, OutputColumn, Values};
use crate::predict::output::encoder::Encoder;

/// Encodes rows as lines.
pub(crate) struct CsvEncoder {
    names: Vec<String>,
    /// The labels of each column, encoded as cells.
    cells: Vec<Vec<String>>,
}

impl CsvEncoder {
    pub(crate) fn new(columns: &[OutputColumn]) -> Self {
        let cells = |column: &OutputColumn| match &column.kind {
            ColumnKind::Label(labels) => labels.names.iter().map(|name| quoted_cell(name, ',')).collect(),
            _ => Vec::new(),
        };
        CsvEncoder {
            names: columns.iter().map(|column| quoted_cell(&column.name, ',')).collect(),
            cells: columns.iter().map(cells).collect(),
        }
    }

    fn cell(&self, column: usize, values: &Values, row: usize, out: &mut Vec<u8>) {
        // Writing to memory does not fail.
        let _ = match values {
            Values::Texts(texts) => out.write_all(quoted_cell(texts.get(row), ',').as_bytes()),
            #[cfg(feature = "parquet")]
            Values::Arrays(_) => unreachable!("only Parquet keeps types"),
            Values::Labels(classes) => out.write_all(self.cells[column][classes[row] as usize].as_bytes()),
            Values::Binary(values) => write!(out, "{}", values[row]),
            Values::Numbers(values) => write!(out, "{}", values[row]),
            Values::Probabilities(values) => write!(out, "{}", values[row]),
        };
    }
}

impl Encoder for CsvEncoder {
    fn encode(&self, block: &Block, lines: &mut Vec<u8>) {
        for row in 0..block.n_rows {
            let is_valid = block.is_valid(row);
            let start = lines.len();
            for (column, values) in block.columns.iter().enumerate() {
                if is_valid || matches!(values, Values::Texts(_)) {
                    self.cell(column, values, row, lines);
                }
                lines.push(b',');
            }
            if lines.len() == start + 1 {
                // Readers of CSV skip blank lines: the rows after it would move up.
                lines.splice(start..start, *b"\"\"");
            }
            *lines.last_mut().expect("there is a column") = b'\n';
        }
    }

    fn head(&self, _n_rows: u64) -> Vec<u8> {
        (self.names.join(",") + "\n").into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::texts::Texts;

    #[test]
    fn an_empty_cell_alone_in_its_row_is_no_blank_line() {
        let column = |name: &str, kind| OutputColumn { name: name.to_owned(), kind };
        let lines = |columns: &[OutputColumn], values: Vec<Values>| {
            let block = Block { n_rows: 3, columns: values, is_valid: vec![true, false, true] };
            let mut lines = Vec::new();
            CsvEncoder::new(columns).encode(&block, &mut lines);
            String::from_utf8(lines).unwrap()
        };
        let values = || Values::Numbers(vec![1.5, 0.0, 2.0]);
        assert_eq!(lines(&[column("a", ColumnKind::Value)], vec![values()]), "1.5\n\"\"\n2\n");
        let two = [column("a", ColumnKind::Value), column("b", ColumnKind::Value)];
        assert_eq!(lines(&two, vec![values(), values()]), "1.5,1.5\n,\n2,2\n");
        let mut texts = Texts::default();
        ["x", "", "y"].iter().for_each(|text| texts.push(text));
        assert_eq!(lines(&[column("a", ColumnKind::Kept)], vec![Values::Texts(texts)]), "x\n\"\"\ny\n");
    }
}
