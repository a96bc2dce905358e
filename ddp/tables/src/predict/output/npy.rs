//! Predictions as npy: one array.

use crate::formats::arrays::npy;
use crate::predict::output::block::{Block, ColumnKind, OutputColumn, Values};
use crate::predict::output::encoder::Encoder;

/// Encodes rows as an array: `[rows]` or `[rows, columns]` predictions, i64 or f64; with probabilities `[rows, outputs]` f32.
pub(crate) struct NpyEncoder {
    columns: Vec<OutputColumn>,
    element: Element,
    width: u64,
    head_len: usize,
}

impl NpyEncoder {
    pub(crate) fn new(columns: &[OutputColumn]) -> Self {
        let (element, width) = match n_probabilities(columns) {
            0 => predictions(columns),
            n => (Element::F32, n),
        };
        let encoder = NpyEncoder { columns: columns.to_vec(), element, width, head_len: 0 };
        let head_len = encoder.head(u64::MAX).len();
        NpyEncoder { head_len, ..encoder }
    }
}

impl Encoder for NpyEncoder {
    fn encode(&self, block: &Block, bytes: &mut Vec<u8>) {
        match self.element {
            Element::F32 => append_probabilities(block, bytes),
            Element::I64 | Element::F64 => append_predictions(&self.columns, block, bytes),
        }
    }

    fn head(&self, n_rows: u64) -> Vec<u8> {
        let element = match self.element {
            Element::I64 => "<i8",
            Element::F64 => "<f8",
            Element::F32 => "<f4",
        };
        let shape = match (self.element, self.width) {
            (Element::I64 | Element::F64, 1) => vec![n_rows],
            (_, width) => vec![n_rows, width],
        };
        npy::header::write(element, &shape, self.head_len)
    }
}

/// Element type of an array of predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Element {
    I64,
    F64,
    F32,
}

/// Element type and number of the predicted columns that are not probabilities.
fn predictions(columns: &[OutputColumn]) -> (Element, u64) {
    let predicted = columns.iter().filter(|column| !is_aside(&column.kind));
    let is_value = predicted.clone().any(|column| column.kind == ColumnKind::Value);
    (if is_value { Element::F64 } else { Element::I64 }, predicted.count() as u64)
}

/// Number of columns of probabilities.
fn n_probabilities(columns: &[OutputColumn]) -> u64 {
    columns.iter().filter(|column| column.kind == ColumnKind::Probability).count() as u64
}

fn is_aside(kind: &ColumnKind) -> bool {
    matches!(kind, ColumnKind::Probability | ColumnKind::Kept)
}

/// Appends the predictions row by row. A label is written as its integer, or as the index of its class; rows without a prediction
/// are the smallest i64 or NaN.
fn append_predictions(columns: &[OutputColumn], block: &Block, out: &mut Vec<u8>) {
    for row in 0..block.n_rows {
        let is_valid = block.is_valid(row);
        for (column, values) in columns.iter().zip(&block.columns) {
            match (values, &column.kind) {
                (Values::Labels(classes), ColumnKind::Label(labels)) => {
                    let class = classes[row] as usize;
                    let label = labels.integers.as_ref().map_or(class as i64, |integers| integers[class]);
                    out.extend(if is_valid { label } else { MISSING_LABEL }.to_le_bytes());
                }
                (Values::Binary(values), _) => {
                    let label = i64::from(values[row]);
                    out.extend(if is_valid { label } else { MISSING_LABEL }.to_le_bytes());
                }
                (Values::Numbers(values), _) => {
                    out.extend(if is_valid { values[row] } else { f64::NAN }.to_le_bytes());
                }
                _ => {}
            }
        }
    }
}

/// Value for the label of a row without a prediction.
const MISSING_LABEL: i64 = i64::MIN;

/// Appends the probabilities row by row; NaN for rows without a prediction.
fn append_probabilities(block: &Block, out: &mut Vec<u8>) {
    for row in 0..block.n_rows {
        let is_valid = block.is_valid(row);
        for values in &block.columns {
            if let Values::Probabilities(values) = values {
                out.extend(if is_valid { values[row] } else { f32::NAN }.to_le_bytes());
            }
        }
    }
}
