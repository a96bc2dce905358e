//! Transformation of each target column, chosen by its loss.

use ddp::config::{DataConfig, Loss, NormalizeTarget, Task};
use ddp::data::datasets::dataset::{Dataset, RowLayout, TargetLayout};
use ddp::data::error::{DataError, Result};
use ddp::data::labels::head_targets::head_columns;

use crate::error::target_error::TargetError;
use crate::fit::stats::ColumnStats;

/// Names of the heads that rows lack a target of, and how many rows at least lack one.
pub(crate) fn head_gaps(layout: &RowLayout, targets: &ColumnStats) -> Vec<(String, usize)> {
    let heads = layout.targets.heads();
    let gaps = heads.iter().zip(head_columns(heads)).map(|(head, columns)| {
        let most = columns.map(|column| targets.n_missing(column)).max();
        (head.name.clone(), most.unwrap_or(0))
    });
    gaps.filter(|(_, n_rows)| *n_rows > 0).collect()
}

/// Transformation of the values of a target column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TargetColumn {
    Kept,
    Standardized,
    /// Kept, and refused below 0.
    Count,
}

/// Transformation of each target column; none for classes of a single head.
pub(crate) fn target_columns(loss: &Loss, layout: &RowLayout, data: &DataConfig) -> Vec<TargetColumn> {
    let of_head = |task: Task, loss: &Loss| match task {
        _ if loss.predicts_logarithms() => TargetColumn::Count,
        Task::Regression if data.normalize_target == NormalizeTarget::Standard => TargetColumn::Standardized,
        _ => TargetColumn::Kept,
    };
    match (&layout.targets, loss) {
        (TargetLayout::Heads { heads }, Loss::Heads(losses)) => {
            let columns = heads
                .iter()
                .zip(losses)
                .map(|(head, of)| vec![of_head(head.task, &of.loss); head.columns.len()]);
            columns.flatten().collect()
        }
        (targets, _) => vec![of_head(data.task, loss); targets.n_values()],
    }
}

/// Checks the targets of a loss that takes counts.
pub(crate) fn check_counts(
    train: &dyn Dataset,
    targets: &ColumnStats,
    columns: &[TargetColumn],
) -> Result<()> {
    let smallest = |target: usize| targets.origin[target] + targets.min[target];
    let is_bad = |target: &usize| columns[*target] == TargetColumn::Count && smallest(*target) < 0.0;
    let Some(index) = (0..columns.len()).find(is_bad) else { return Ok(()) };
    Err(DataError::from(TargetError::NegativeCount {
        source_name: train.source().to_owned(),
        column: train.layout().targets.column_names().swap_remove(index),
        value: smallest(index),
    }))
}
