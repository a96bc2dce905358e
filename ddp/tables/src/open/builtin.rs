//! The sets inside the binary as the source of a config: `builtin:digits`.

use std::sync::Arc;

use ddp::config::Task;
use ddp::data::error::{DataError, Result};
use ddp::data::labels::LabelVocabulary;
use ddp::data::{TargetLayout, TensorDataset, digits};

use crate::arrays::same_columns;
use crate::error::TableError;
use crate::formats::arrays::reader::SplitSide;
use crate::source::SourceSpec;

/// The names that follow `builtin:`.
pub const NAMES: &[&str] = &["digits"];

const N_CLASSES: usize = 10;

/// The training or the test rows of the set `name`; a pixel becomes a feature in [0, 1].
///
/// # Errors
/// [`TableError::BuiltinUnknown`], or [`TableError::BuiltinTargets`] if `spec` asks for targets that the set
/// does not have.
pub(crate) fn read(name: &str, spec: &SourceSpec<'_>) -> Result<TensorDataset> {
    if name != "digits" {
        return Err(DataError::from(TableError::BuiltinUnknown {
            name: name.to_owned(),
            known: NAMES.join(", builtin:"),
        }));
    }
    let (task, target) = (spec.data.task, &spec.data.target);
    let n_classes = spec.vocabulary().map_or(N_CLASSES, |vocabulary| vocabulary.len());
    if task != Task::Classification || target[..] != ["label"] || n_classes < N_CLASSES {
        let classes = spec.vocabulary().map(|vocabulary| format!(" with {} classes", vocabulary.len()));
        let classes = classes.unwrap_or_default();
        let asked = format!("task \"{task}\" on {}{classes}", target.join(", "));
        return Err(DataError::from(TableError::BuiltinTargets { name: name.to_owned(), asked }));
    }
    let (train, test) = digits();
    let mut rows = match spec.side {
        SplitSide::Train => train,
        SplitSide::Test => test,
    };
    if let Some(known) = spec.features {
        same_columns(&rows, known)?;
    }
    rows.layout.labels = Some(Arc::new(LabelVocabulary::numbers(n_classes)));
    rows.layout.targets = TargetLayout::Classes { n_classes };
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use ddp::config::Config;

    use super::*;

    fn read_with(name: &str, sets: &[&str]) -> Result<TensorDataset> {
        let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
        let config = Config::load(None, &sets).unwrap();
        read(name, &SourceSpec::train(&config.data))
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
