//! Predictions as safetensors: a tensor `prediction` and, if requested, a tensor `probabilities`.

use serde_json::json;

use crate::predict::output::block::{Block, ColumnKind, OutputColumn};
use crate::predict::output::encoder::Encoder;
use crate::predict::output::matrix::{
    Element, append_predictions, append_probabilities, n_probabilities, predictions,
};

/// Encodes rows as two tensors; names of columns and labels are in the metadata.
pub(crate) struct SafetensorsEncoder {
    columns: Vec<OutputColumn>,
    head_len: usize,
}

impl SafetensorsEncoder {
    pub(crate) fn new(columns: &[OutputColumn]) -> Self {
        let encoder = SafetensorsEncoder { columns: columns.to_vec(), head_len: 0 };
        // The tensors start at a multiple of 64.
        let head_len = encoder.head(u64::MAX).len().next_multiple_of(64);
        SafetensorsEncoder { head_len, ..encoder }
    }

    fn header(&self, n_rows: u64) -> serde_json::Value {
        let names: Vec<&str> = self.columns.iter().map(|column| column.name.as_str()).collect();
        let text = |value: serde_json::Value| serde_json::Value::String(value.to_string());
        let mut metadata = json!({ "columns": text(json!(names)) });
        let labels = self.columns.iter().find_map(|column| match &column.kind {
            ColumnKind::Label(labels) => Some(&labels.names),
            _ => None,
        });
        if let Some(labels) = labels {
            metadata["labels"] = text(json!(labels));
        }
        let (element, width) = predictions(&self.columns);
        let shape = if width == 1 { vec![n_rows] } else { vec![n_rows, width] };
        let end = n_rows.saturating_mul(8 * width);
        let dtype = if element == Element::F64 { "F64" } else { "I64" };
        let mut header = json!({
            "__metadata__": metadata,
            "prediction": { "dtype": dtype, "shape": shape, "data_offsets": [0, end] },
        });
        let n = n_probabilities(&self.columns);
        if n > 0 {
            let offsets = [end, end.saturating_add(n_rows.saturating_mul(4 * n))];
            header["probabilities"] =
                json!({ "dtype": "F32", "shape": [n_rows, n], "data_offsets": offsets });
        }
        header
    }
}

impl Encoder for SafetensorsEncoder {
    fn n_streams(&self) -> usize {
        if n_probabilities(&self.columns) > 0 { 2 } else { 1 }
    }

    fn encode(&self, block: &Block, streams: &mut [Vec<u8>]) {
        append_predictions(&self.columns, block, &mut streams[0]);
        if let Some(probabilities) = streams.get_mut(1) {
            append_probabilities(block, probabilities);
        }
    }

    fn head(&self, n_rows: u64) -> Vec<u8> {
        let mut text = self.header(n_rows).to_string();
        let padding = self.head_len.saturating_sub(8 + text.len());
        text.push_str(&" ".repeat(padding));
        [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
    }
}
