//! Turns what is known of all labels into the meaning of the targets.

use std::sync::Arc;

use ddp::config::Task;
use ddp::data::datasets::dataset::{RowLayout, TargetLayout};
use ddp::data::error::{DataError, Result};
use ddp::data::labels::TaskChoice;
pub(crate) use ddp::data::labels::label::Label;
use ddp::data::labels::vocabulary::{LabelVocabulary, MAX_CLASSES};

use crate::error::target_error::TargetError;
use crate::labels::survey::LabelSurvey;
use crate::labels::task::{Undecided, decide};
use crate::source::SourceSpec;

/// Meaning of the targets.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Meaning {
    /// The classes; `None` for values.
    pub(crate) vocabulary: Option<Arc<LabelVocabulary>>,
    /// The decision, for `data.task = "auto"`.
    pub(crate) choice: Option<TaskChoice>,
}

impl Meaning {
    /// Sets the targets of `layout`; `names` are the targets'.
    pub(crate) fn complete(self, layout: &mut RowLayout, names: &[String]) {
        layout.targets = match &self.vocabulary {
            Some(vocabulary) => TargetLayout::Classes { n_classes: vocabulary.len() },
            None => TargetLayout::Values { names: names.to_vec() },
        };
        layout.labels = self.vocabulary;
        layout.task_choice = self.choice;
    }
}

/// The meaning of targets with this survey, which covers all rows.
///
/// # Errors
/// [`TargetError::TaskUndecided`], [`TargetError::TooManyClasses`], [`TargetError::SingleClass`] and
/// [`TargetError::LabelNotInOrder`].
pub(crate) fn resolve(survey: &LabelSurvey, names: &[String], spec: &SourceSpec<'_>) -> Result<Meaning> {
    let source_name = || spec.source.to_owned();
    let choice = if spec.data.auto_task {
        let facts = vec![survey.facts(); names.len()];
        let undecided = |Undecided { values }| {
            DataError::from(TargetError::TaskUndecided {
                source_name: source_name(),
                column: names[0].clone(),
                values,
            })
        };
        Some(decide(names, &facts).map_err(undecided)?)
    } else {
        None
    };
    if choice.as_ref().map_or(spec.data.task, |choice| choice.task) != Task::Classification {
        return Ok(Meaning { vocabulary: None, choice });
    }
    let Some(vocabulary) = survey.vocabulary() else {
        return Err(DataError::from(TargetError::TooManyClasses {
            source_name: source_name(),
            limit: MAX_CLASSES,
        }));
    };
    if vocabulary.len() < 2 {
        let label = vocabulary.labels().next().map_or(String::new(), |label| label.to_string());
        let n_rows = survey.n_rows() as usize;
        return Err(DataError::from(TargetError::SingleClass { source_name: source_name(), n_rows, label }));
    }
    let vocabulary = match &spec.data.class_order[..] {
        [] => vocabulary,
        order => ordered(&vocabulary, order).map_err(|label| {
            DataError::from(TargetError::LabelNotInOrder {
                source_name: source_name(),
                label,
                order: order.join(", "),
            })
        })?,
    };
    Ok(Meaning { vocabulary: Some(Arc::new(vocabulary)), choice })
}

/// The labels of the data in this order, and with them those of `order` that no row has.
///
/// # Errors
/// A label of the data that `order` lacks, or one that it lists twice.
fn ordered(found: &LabelVocabulary, order: &[String]) -> std::result::Result<LabelVocabulary, String> {
    let are_texts = found.labels().all(|label| matches!(label, Label::Text(_)));
    let label = |text: &String| match found.class_of_text(text) {
        Some(class) => found.label(class),
        None if are_texts => Label::Text(text.trim().to_owned()),
        None => Label::parse(text),
    };
    let ordered = LabelVocabulary::in_order(order.iter().map(label).collect());
    let ordered = ordered.map_err(|twice| twice.to_string())?;
    match found.labels().find(|label| ordered.class_of(label).is_none()) {
        Some(label) => Err(label.to_string()),
        None => Ok(ordered),
    }
}
