//! Predictions as npy: one array.

use crate::formats::arrays::npy;
use crate::predict::output::block::{Block, OutputColumn};
use crate::predict::output::encoder::Encoder;
use crate::predict::output::matrix::{
    Element, append_predictions, append_probabilities, n_probabilities, predictions,
};

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
    fn encode(&self, block: &Block, streams: &mut [Vec<u8>]) {
        match self.element {
            Element::F32 => append_probabilities(block, &mut streams[0]),
            Element::I64 | Element::F64 => append_predictions(&self.columns, block, &mut streams[0]),
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
