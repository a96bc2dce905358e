//! Warns at the end of a run whose model predicts worse than a constant would.

use ddp_kernels::{DType, Device, Tensor};

use crate::config::{Config, DataConfig, ElementLoss, EvalMetric, Loss, Task};
use crate::data::{Dataset, Loaded, TargetLayout};
use crate::report::EvalMetrics;
use crate::train::error::Result;

/// Rows whose labels are read at a time.
const CHUNK_ROWS: usize = 1 << 16;

/// A warning with what to look at, if the last evaluation on `rows` was worse than the best constant prediction.
///
/// # Errors
/// [`TrainError::Data`](crate::train::TrainError::Data) of reading the labels.
pub(super) fn warning(
    config: &Config,
    data: &Loaded,
    metrics: &EvalMetrics,
    rows: &dyn Dataset,
) -> Result<Option<String>> {
    let hint = || hint(&config.data, data.preprocessor.normalizer.is_some(), rows.source());
    // A quantile may lie far from the mean, by which R² judges.
    if matches!(config.loss, Loss::Element(ElementLoss::Quantile { .. })) {
        return Ok(None);
    }
    if let (Task::Regression, Some(r2)) = (config.data.task, metrics.get(EvalMetric::R2)) {
        return Ok((r2 < 0.0).then(|| {
            format!(
                "eval_r2 {r2:.4} is below 0: the mean of the targets would predict the evaluation rows better\n{}",
                hint()
            )
        }));
    }
    // Counts say nothing about weighted rows.
    if config.data.task != Task::Classification || rows.layout().has_weights {
        return Ok(None);
    }
    // Weights of classes give up accuracy for the rare ones.
    let is_weighted = matches!(config.loss, Loss::CrossEntropy { class_weights: Some(_), .. });
    let metric = if is_weighted { EvalMetric::BalancedAccuracy } else { EvalMetric::Accuracy };
    let Some(value) = metrics.get(metric) else { return Ok(None) };
    let counts = class_counts(rows)?;
    let (baseline, of) = if is_weighted {
        (
            1.0 / counts.iter().filter(|count| **count > 0).count().max(1) as f64,
            "that of predicting a single class",
        )
    } else {
        (
            counts.into_iter().max().unwrap_or(0) as f64 / rows.len().max(1) as f64,
            "the share of the most frequent class of the evaluation rows",
        )
    };
    // The metrics are quotients of counts.
    Ok((value < baseline - 1e-9)
        .then(|| format!("{} {value:.4} is below {baseline:.4}, {of}\n{}", metric.name(), hint())))
}

/// Suggestions, without the settings that are in place.
fn hint(data: &DataConfig, is_normalized: bool, source: &str) -> String {
    const SHOWN: usize = 5;
    let look = match &data.drop[..] {
        [] => format!("look at labels and columns with `ddp-train data inspect {source}`"),
        dropped => {
            let names: Vec<String> = dropped.iter().take(SHOWN).map(|name| format!("\"{name}\"")).collect();
            let more = if dropped.len() > SHOWN { " and others" } else { "" };
            format!("ask whether a model can do without the columns in data.drop: {}{more}", names.join(", "))
        }
    };
    let normalize = if is_normalized { "" } else { "data.normalize=standard, " };
    format!("hint: {look}; then try {normalize}a lower optimizer.lr, or more epochs")
}

/// Rows of each class.
fn class_counts(rows: &dyn Dataset) -> Result<Vec<u64>> {
    let TargetLayout::Classes { n_classes } = rows.layout().targets else { return Ok(Vec::new()) };
    let mut counts = vec![0u64; n_classes];
    let mut labels = Tensor::zeros(&[CHUNK_ROWS.min(rows.len())], DType::I64, Device::Cpu)?;
    for start in (0..rows.len()).step_by(CHUNK_ROWS) {
        let numbers: Vec<usize> = (start..(start + CHUNK_ROWS).min(rows.len())).collect();
        rows.gather_targets(&numbers, labels.view_mut().rows(0, numbers.len())?)?;
        for &label in labels.view().rows(0, numbers.len())?.as_slice::<i64>("count classes", "labels")? {
            counts[label as usize] += 1;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use ddp_comm::World;

    use super::*;

    /// The warning about a run on 90 rows of one class and 10 of another.
    fn warning_of(metric: EvalMetric, value: f64, sets: &[&str]) -> Option<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        let rows: String = (0..100)
            .map(|row| format!("{},{},{}\n", row * 37 % 100, row % 3, u8::from(row % 10 == 0)))
            .collect();
        std::fs::write(&path, format!("a,b,label\n{rows}")).unwrap();
        let mut sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        sets.push(format!("data.train={}", path.display()));
        let config = Config::load(None, &sets).unwrap();
        let data = crate::data::load(&config, &World::single())
            .map_err(|stop| {
                stop.error().map_or_else(|| stop.to_string(), |error| ddp_kernels::hint::with_hint(error))
            })
            .unwrap();
        let metrics = EvalMetrics::default().with(metric, value);
        warning(&config, &data, &metrics, &*data.train.clone()).unwrap()
    }

    #[test]
    fn balanced_weights_are_judged_by_balanced_accuracy() {
        let balanced = "loss.class_weights=balanced";
        assert_eq!(warning_of(EvalMetric::Accuracy, 0.8, &[balanced]), None);
        assert_eq!(warning_of(EvalMetric::BalancedAccuracy, 0.5, &[balanced]), None);
        let found = warning_of(EvalMetric::BalancedAccuracy, 0.4, &[balanced]).unwrap();
        assert!(found.starts_with("eval_balanced_accuracy 0.4000 is below 0.5000, that of"), "{found}");
        assert!(warning_of(EvalMetric::Accuracy, 0.8, &[]).unwrap().contains("is below 0.9000"));
        assert_eq!(warning_of(EvalMetric::Accuracy, 0.9, &[]), None);
    }

    #[test]
    fn hints_do_not_name_what_is_set() {
        let of = |sets: &[&str]| warning_of(EvalMetric::Accuracy, 0.1, sets).unwrap();
        let found = of(&["data.normalize=none"]);
        assert!(found.contains("data inspect") && found.contains("data.normalize=standard"), "{found}");
        // Tables are normalized by default.
        assert!(!of(&[]).contains("data.normalize"));
        let found = of(&["data.drop=b"]);
        assert!(
            found.contains("data.drop: \"b\"; then try a lower") && !found.contains("data inspect"),
            "{found}"
        );
    }
}
