//! Layout of the targets of an array, by shape and task.

use ddp::config::Task;
use ddp::data::datasets::dataset::TargetLayout;
use ddp::data::error::{DataError, Result};
use ddp::data::labels::MAX_CLASSES;

use crate::error::target_error::TargetError;
use crate::formats::arrays::array::RawArray;
use crate::source::{ClassLabels, SourceSpec};

/// The layout of the targets by task; 0 classes if they are still unknown.
pub(crate) fn target_layout(
    targets: &RawArray,
    names: Option<&[String]>,
    task: Task,
    spec: &SourceSpec<'_>,
) -> Result<TargetLayout> {
    if spec.to_predict.is_some() {
        return Ok(TargetLayout::Values { names: Vec::new() });
    }
    let shape =
        || std::iter::once(targets.n_rows()).chain(targets.row_dims.iter().copied()).collect::<Vec<_>>();
    let wrong = |expected: String, hint| {
        let source_name = targets.path().display().to_string();
        Err(DataError::from(TargetError::LabelShape { source_name, shape: shape(), expected, hint }))
    };
    let is_open = spec.data.auto_task && task == spec.data.task;
    if task == Task::Classification && !(is_open && targets.row_dims.len() == 1 && targets.n_values() != 1) {
        return if targets.n_values() == 1 {
            let n_classes = match spec.classes {
                ClassLabels::AsStored => MAX_CLASSES,
                _ => spec.vocabulary().map_or(0, |vocabulary| vocabulary.len()),
            };
            Ok(TargetLayout::Classes { n_classes })
        } else {
            wrong(
                "one class number per row".to_owned(),
                "for one-hot labels use numpy.argmax; for several targets set `data.task` to \"regression\" or \"multilabel\"",
            )
        };
    }
    if targets.raw.is_text() {
        return Err(DataError::from(TargetError::TargetText {
            place: format!("data file `{}`", targets.path().display()),
            hint: "set `data.task` to \"classification\", with one text per row",
        }));
    }
    if targets.row_dims.len() > 1 || targets.row_len() == 0 {
        return wrong("[rows] or [rows, targets]".to_owned(), "check `data.labels`");
    }
    let n = targets.row_len();
    let stored = names.filter(|names| names.len() == n).map(<[String]>::to_vec);
    let given = Some(spec.data.target.clone()).filter(|names| names.len() == n);
    let names = stored.or(given).unwrap_or_else(|| (0..n).map(|i| format!("t{i}")).collect());
    Ok(TargetLayout::Values { names })
}
