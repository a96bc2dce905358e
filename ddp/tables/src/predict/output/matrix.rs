//! Converts the columns of a block to the rows of an array.

use crate::predict::output::block::{Block, ColumnKind, OutputColumn, Values};

/// Element type of an array of predictions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    I64,
    F64,
    F32,
}

/// Element type and number of the predicted columns that are not probabilities.
pub(super) fn predictions(columns: &[OutputColumn]) -> (Element, u64) {
    let predicted = columns.iter().filter(|column| !is_aside(&column.kind));
    let is_value = predicted.clone().any(|column| column.kind == ColumnKind::Value);
    (if is_value { Element::F64 } else { Element::I64 }, predicted.count() as u64)
}

/// Number of columns of probabilities.
pub(super) fn n_probabilities(columns: &[OutputColumn]) -> u64 {
    columns.iter().filter(|column| column.kind == ColumnKind::Probability).count() as u64
}

fn is_aside(kind: &ColumnKind) -> bool {
    matches!(kind, ColumnKind::Probability | ColumnKind::Kept)
}

/// Appends the predictions row by row. A label is written as its integer, or as the index of its class; rows without a prediction
/// are the smallest i64 or NaN.
pub(super) fn append_predictions(columns: &[OutputColumn], block: &Block, out: &mut Vec<u8>) {
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
pub(super) fn append_probabilities(block: &Block, out: &mut Vec<u8>) {
    for row in 0..block.n_rows {
        let is_valid = block.is_valid(row);
        for values in &block.columns {
            if let Values::Probabilities(values) = values {
                out.extend(if is_valid { values[row] } else { f32::NAN }.to_le_bytes());
            }
        }
    }
}
