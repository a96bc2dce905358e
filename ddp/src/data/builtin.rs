//! The sets inside the binary: `builtin:digits`.
//!
//! Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
//! Repository, 1998 (CC BY 4.0), doi:10.24432/C50P49: its test part, as in scikit-learn's
//! `load_digits`. 1797 images of 8 x 8 pixels, 10 classes, with a fixed 80/20 split.

use std::sync::Arc;

use ddp_rows::arrays::reader::SplitSide;

use super::labels::LabelVocabulary;
use super::source::SourceSpec;
use crate::config::Task;
use crate::data::datasets::dataset::{RowLayout, TargetLayout, numbered_columns};
use crate::data::datasets::resident::{ResidentRows, Targets};
use crate::data::error::{DataError, Result};

/// The names that follow `builtin:`.
pub const NAMES: &[&str] = &["digits"];

/// Rows of 64 pixels in `0..=16` and one label; the training rows first.
static DIGITS: &[u8] = include_bytes!("digits.bin");
const N_PIXELS: usize = 64;
const ROW_BYTES: usize = N_PIXELS + 1;
const N_TRAIN_ROWS: usize = 1438;
const N_CLASSES: usize = 10;

/// Training and test rows of `builtin:digits`.
pub fn digits() -> (ResidentRows, ResidentRows) {
    (digits_for(SplitSide::Train, N_CLASSES), digits_for(SplitSide::Test, N_CLASSES))
}

/// The training or the test rows of the set `name`; a pixel becomes a feature in [0, 1].
///
/// # Errors
/// [`DataError::BuiltinUnknown`], or [`DataError::BuiltinTargets`] if `spec` asks for targets that the set
/// does not have.
pub(super) fn read(name: &str, spec: &SourceSpec<'_>) -> Result<ResidentRows> {
    if name != "digits" {
        return Err(DataError::BuiltinUnknown { name: name.to_owned(), known: NAMES.join(", builtin:") });
    }
    let (task, target) = (spec.data.task, &spec.data.target);
    let n_classes = spec.vocabulary().map_or(N_CLASSES, |vocabulary| vocabulary.len());
    if task != Task::Classification || target[..] != ["label"] || n_classes < N_CLASSES {
        let classes = spec.vocabulary().map(|vocabulary| format!(" with {} classes", vocabulary.len()));
        let classes = classes.unwrap_or_default();
        let asked = format!("task \"{task}\" on {}{classes}", target.join(", "));
        return Err(DataError::BuiltinTargets { name: name.to_owned(), asked });
    }
    Ok(digits_for(spec.side, n_classes))
}

fn digits_for(side: SplitSide, n_classes: usize) -> ResidentRows {
    let (train, test) = DIGITS.split_at(N_TRAIN_ROWS * ROW_BYTES);
    let rows = match side {
        SplitSide::Train => train,
        SplitSide::Test => test,
    };
    let (rows, _) = rows.as_chunks::<ROW_BYTES>();
    let pixels = rows.iter().flat_map(|row| &row[..N_PIXELS]);
    ResidentRows {
        features: pixels.map(|&pixel| f32::from(pixel) / 16.0).collect(),
        targets: Targets::Labels(rows.iter().map(|row| i64::from(row[N_PIXELS])).collect()),
        weights: None,
        layout: RowLayout {
            labels: Some(Arc::new(LabelVocabulary::numbers(n_classes))),
            ..RowLayout::new(numbered_columns(N_PIXELS), TargetLayout::Classes { n_classes })
        },
        source: "builtin:digits".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn read_with(name: &str, sets: &[&str]) -> Result<ResidentRows> {
        let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
        let config = Config::load(None, &sets).unwrap();
        read(name, &SourceSpec::train(&config.data))
    }

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
        let sum = |part: &ResidentRows| part.features.iter().map(|x| f64::from(x * 16.0)).sum::<f64>();
        assert_eq!(sum(&train) + sum(&test), 561_718.0);
    }

    #[test]
    fn what_digits_do_not_have_is_refused() {
        let error = ddp_kernels::hint::with_hint(&read_with("mnist", &[]).unwrap_err());
        assert!(
            error.contains("`builtin:mnist`") && error.contains("hint: ") && error.contains("builtin:digits"),
            "{error}"
        );
        for (sets, part) in [
            (&["data.classes=5"][..], "with 5 classes"),
            (&["data.task=regression"], "task \"regression\" on label"),
            (&["data.target=digit"], "on digit"),
        ] {
            let error = ddp_kernels::hint::with_hint(&read_with("digits", sets).unwrap_err());
            assert!(error.contains(part) && error.contains("hint: "), "{error}");
        }
        assert_eq!(read_with("digits", &["data.classes=12"]).unwrap().layout.targets.n_outputs(), 12);
    }
}
