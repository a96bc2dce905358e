//! The sets inside the binary: `builtin:digits`.
//!
//! Source: E. Alpaydin, C. Kaynak, "Optical Recognition of Handwritten Digits", UCI Machine Learning
//! Repository, 1998 (CC BY 4.0), doi:10.24432/C50P49: its test part, as in scikit-learn's
//! `load_digits`. 1797 images of 8 x 8 pixels, 10 classes, with a fixed 80/20 split.

use std::fmt;

use super::dataset::{Dataset, Targets};
use super::load::{Part, TargetSpec};
use crate::config::Task;
use crate::error::{Error, Result};

/// The names that follow `builtin:`.
pub const NAMES: &[&str] = &["digits"];

/// Rows of 64 pixels in `0..=16` and one label; the training rows first.
static DIGITS: &[u8] = include_bytes!("digits.bin");
const N_PIXELS: usize = 64;
const ROW_BYTES: usize = N_PIXELS + 1;
const N_TRAIN_ROWS: usize = 1438;
const N_CLASSES: usize = 10;

/// Training and test rows of `builtin:digits`.
///
/// # Errors
/// None that the built-in rows could cause.
pub fn digits() -> Result<(Dataset, Dataset)> {
    let columns = ["label".to_owned()];
    let spec = TargetSpec { task: Task::Classification, columns: &columns, classes: None };
    Ok((read("digits", Part::Train, &spec)?, read("digits", Part::Test, &spec)?))
}

/// One part of the set `name`; a pixel becomes a feature in [0, 1].
///
/// # Errors
/// [`Error::BuiltinUnknown`], or [`Error::BuiltinTargets`] if `spec` asks for targets that the set
/// does not have.
pub(super) fn read(name: &str, part: Part, spec: &TargetSpec<'_>) -> Result<Dataset> {
    if name != "digits" {
        return Err(Error::BuiltinUnknown { name: name.to_owned(), known: NAMES.join(", builtin:") });
    }
    let has_label = spec.columns.len() == 1 && spec.columns[0] == "label";
    let n_classes = spec.classes.unwrap_or(N_CLASSES);
    if spec.task != Task::Classification || !has_label || n_classes < N_CLASSES {
        let asked = Asked { spec }.to_string();
        return Err(Error::BuiltinTargets { name: name.to_owned(), asked });
    }
    let (train, test) = DIGITS.split_at(N_TRAIN_ROWS * ROW_BYTES);
    let rows = match part {
        Part::Train => train,
        Part::Test => test,
    };
    let (rows, _) = rows.as_chunks::<ROW_BYTES>();
    let pixels = rows.iter().flat_map(|row| &row[..N_PIXELS]);
    Ok(Dataset {
        features: pixels.map(|&pixel| f32::from(pixel) / 16.0).collect(),
        n_rows: rows.len(),
        n_features: N_PIXELS,
        feature_names: (0..N_PIXELS).map(|i| format!("f{i}")).collect(),
        targets: Targets::Classes {
            labels: rows.iter().map(|row| i64::from(row[N_PIXELS])).collect(),
            n_classes,
        },
        source: format!("builtin:{name}"),
    })
}

/// What the config asks of a set, in the config's words.
struct Asked<'a> {
    spec: &'a TargetSpec<'a>,
}

impl fmt::Display for Asked<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let TargetSpec { task, columns, classes } = self.spec;
        write!(f, "task \"{task}\" on {}", columns.join(", "))?;
        match classes {
            Some(classes) => write!(f, " with {classes} classes"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels() -> Vec<String> {
        vec!["label".to_owned()]
    }

    #[test]
    fn digits_have_their_rows() {
        let columns = labels();
        let spec = TargetSpec { task: Task::Classification, columns: &columns, classes: None };
        let train = read("digits", Part::Train, &spec).unwrap();
        let test = read("digits", Part::Test, &spec).unwrap();
        assert_eq!(DIGITS.len(), 1797 * ROW_BYTES);
        assert_eq!((train.n_rows, test.n_rows, train.n_features), (1438, 359, 64));
        for part in [&train, &test] {
            assert!(part.features.iter().all(|x| (0.0..=1.0).contains(x) && (x * 16.0).fract() == 0.0));
            let Targets::Classes { labels, n_classes: 10 } = &part.targets else { panic!() };
            assert!((0..10).all(|class| labels.contains(&class)), "each class occurs");
            assert!(labels.iter().all(|label| (0..10).contains(label)));
        }
        // The sum of all pixels of load_digits.
        let sum = |part: &Dataset| part.features.iter().map(|x| f64::from(x * 16.0)).sum::<f64>();
        assert_eq!(sum(&train) + sum(&test), 561_718.0);
    }

    #[test]
    fn what_digits_do_not_have_is_refused() {
        let columns = labels();
        let spec = TargetSpec { task: Task::Classification, columns: &columns, classes: None };
        let error = read("mnist", Part::Train, &spec).unwrap_err().to_string();
        assert!(
            error.contains("`builtin:mnist`") && error.contains("hint: ") && error.contains("builtin:digits"),
            "{error}"
        );

        let spec = TargetSpec { task: Task::Regression, columns: &columns, classes: None };
        let error = read("digits", Part::Train, &spec).unwrap_err().to_string();
        assert!(error.contains("task \"regression\" on label") && error.contains("hint: "), "{error}");

        let spec = TargetSpec { task: Task::Classification, columns: &columns, classes: Some(3) };
        let error = read("digits", Part::Train, &spec).unwrap_err().to_string();
        assert!(error.contains("with 3 classes"), "{error}");
    }
}
