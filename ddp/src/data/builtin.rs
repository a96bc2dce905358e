//! The sets inside the binary: `builtin:digits`.
//!
//! Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
//! Repository, 1998 (CC BY 4.0), doi:10.24432/C50P49: its test part, as in scikit-learn's
//! `load_digits`. 1797 images of 8 x 8 pixels, 10 classes, with a fixed 80/20 split.

use std::sync::Arc;

use super::labels::LabelVocabulary;
use crate::data::datasets::dataset::{RowLayout, TargetLayout, numbered_columns};
use crate::data::datasets::resident::{Targets, TensorDataset};

/// Rows of 64 pixels in `0..=16` and one label; the training rows first.
static DIGITS: &[u8] = include_bytes!("digits.bin");
const N_PIXELS: usize = 64;
const ROW_BYTES: usize = N_PIXELS + 1;
const N_TRAIN_ROWS: usize = 1438;
const N_CLASSES: usize = 10;

/// Training and test rows of `builtin:digits`; a pixel is a feature in [0, 1].
pub fn digits() -> (TensorDataset, TensorDataset) {
    let (train, test) = DIGITS.split_at(N_TRAIN_ROWS * ROW_BYTES);
    (rows_of(train), rows_of(test))
}

fn rows_of(bytes: &[u8]) -> TensorDataset {
    let (rows, _) = bytes.as_chunks::<ROW_BYTES>();
    let pixels = rows.iter().flat_map(|row| &row[..N_PIXELS]);
    TensorDataset {
        features: pixels.map(|&pixel| f32::from(pixel) / 16.0).collect(),
        targets: Targets::Labels(rows.iter().map(|row| i64::from(row[N_PIXELS])).collect()),
        weights: None,
        layout: RowLayout {
            labels: Some(Arc::new(LabelVocabulary::numbers(N_CLASSES))),
            ..RowLayout::new(numbered_columns(N_PIXELS), TargetLayout::Classes { n_classes: N_CLASSES })
        },
        source: "builtin:digits".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_have_their_rows() {
        let (train, test) = digits();
        assert_eq!(DIGITS.len(), 1797 * ROW_BYTES);
        assert_eq!((train.features.len(), test.features.len()), (1438 * 64, 359 * 64));
        for part in [&train, &test] {
            assert!(part.features.iter().all(|x| (0.0..=1.0).contains(x) && (x * 16.0).fract() == 0.0));
            let Targets::Labels(labels) = &part.targets else { panic!() };
            assert!((0..10).all(|class| labels.contains(&class)), "each class occurs");
            assert!(labels.iter().all(|label| (0..10).contains(label)));
        }
        // The sum of all pixels of load_digits.
        let sum = |part: &TensorDataset| part.features.iter().map(|x| f64::from(x * 16.0)).sum::<f64>();
        assert_eq!(sum(&train) + sum(&test), 561_718.0);
    }
}
