//! Warns at the end of a run whose model predicts worse than a constant would.

use ddp_kernels::{DType, Device, Tensor};

use crate::config::{EvalMetric, Task};
use crate::data::{Dataset, TargetLayout};
use crate::report::EvalMetrics;
use crate::train::error::Result;

/// Rows whose labels are read at a time.
const CHUNK_ROWS: usize = 1 << 16;

/// A warning with what to look at, if the last evaluation on `rows` was worse than the best constant prediction.
///
/// # Errors
/// [`TrainError::Data`](crate::train::TrainError::Data) of reading the labels.
pub(super) fn warning(task: Task, metrics: &EvalMetrics, rows: &dyn Dataset) -> Result<Option<String>> {
    if let (Task::Regression, Some(r2)) = (task, metrics.get(EvalMetric::R2)) {
        return Ok((r2 < 0.0).then(|| {
            format!(
                "eval_r2 {r2:.4} is below 0: the mean of the targets would predict the evaluation rows better\n\
                 hint: look at the columns with `ddp-train data inspect {}`; then try data.normalize=standard, a lower optimizer.lr, or more \
                 epochs",
                rows.source()
            )
        }));
    }
    // Counts say nothing about weighted rows.
    let (Task::Classification, Some(accuracy), false) =
        (task, metrics.get(EvalMetric::Accuracy), rows.layout().has_weights)
    else {
        return Ok(None);
    };
    let majority = majority_share(rows)?;
    // The accuracy is a quotient of counts.
    Ok((accuracy < majority - 1e-9).then(|| {
        format!(
            "eval_accuracy {accuracy:.4} is below {majority:.4}, the share of the most frequent class of the evaluation rows\n\
             hint: look at labels and columns with `ddp-train data inspect {}`; then try data.normalize=standard, a lower optimizer.lr, or \
             more epochs",
            rows.source()
        )
    }))
}

/// Share of the most frequent class.
fn majority_share(rows: &dyn Dataset) -> Result<f64> {
    let TargetLayout::Classes { n_classes } = rows.layout().targets else { return Ok(0.0) };
    let mut counts = vec![0u64; n_classes];
    let mut labels = Tensor::zeros(&[CHUNK_ROWS.min(rows.len())], DType::I64, Device::Cpu)?;
    for start in (0..rows.len()).step_by(CHUNK_ROWS) {
        let numbers: Vec<usize> = (start..(start + CHUNK_ROWS).min(rows.len())).collect();
        rows.gather_targets(&numbers, labels.view_mut().rows(0, numbers.len())?)?;
        for &label in labels.view().rows(0, numbers.len())?.as_slice::<i64>("count classes", "labels")? {
            counts[label as usize] += 1;
        }
    }
    Ok(counts.into_iter().max().unwrap_or(0) as f64 / rows.len().max(1) as f64)
}
