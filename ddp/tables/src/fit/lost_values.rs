//! Finds columns whose distinct values f32 does not keep apart.

use ddp::data::datasets::dataset::Dataset;
use ddp::data::error::Result;

use crate::fit::preprocess::Preprocessor;
use crate::fit::scan;

/// Most rows that are compared, evenly spaced.
const MAX_ROWS: usize = 1 << 16;
/// Most values that are compared, over all columns.
const MAX_VALUES: usize = 1 << 20;
/// Share of the distinct values that must be lost for a warning: of random numbers some always fall together.
const MIN_SHARE: f64 = 0.01;

/// One warning per column of `dataset` that loses distinct values on its way to the model.
///
/// # Errors
/// [`DataError`](ddp::data::DataError) if rows cannot be read.
pub(crate) fn warnings(dataset: &dyn Dataset, preprocessor: &Preprocessor) -> Result<Vec<String>> {
    let (n, n_columns) = (dataset.len(), dataset.layout().n_features());
    let max_rows = MAX_ROWS.min(MAX_VALUES / n_columns.max(1)).max(1);
    let rows: Vec<usize> = if n <= max_rows {
        (0..n).collect()
    } else {
        (0..max_rows).map(|i| (i as u128 * n as u128 / max_rows as u128) as usize).collect()
    };
    let of_features = preprocessor.normalizer.as_ref().and_then(|normalizer| normalizer.offset.as_ref());
    let offsets = match of_features {
        Some(of_features) => preprocessor.plan.scatter_to_columns(of_features),
        None => vec![0.0; n_columns],
    };
    let Some(origin) = scan::origin(dataset)? else { return Ok(Vec::new()) };
    let mut exact = vec![0.0; rows.len() * n_columns];
    let mut kept = exact.clone();
    dataset.gather_doubles(&rows, &origin, &mut exact)?;
    dataset.gather_doubles(&rows, &offsets, &mut kept)?;
    let mut warnings = Vec::new();
    for column in preprocessor.plan.numbers() {
        let of_column =
            |values: &[f64]| values.iter().skip(column).step_by(n_columns).copied().collect::<Vec<_>>();
        let singles: Vec<f64> = of_column(&kept).into_iter().map(|value| f64::from(value as f32)).collect();
        if singles == of_column(&kept) && singles == of_column(&exact) {
            continue;
        }
        let (n_exact, n_kept) = (n_distinct(of_column(&exact)), n_distinct(singles));
        if (n_exact - n_kept.min(n_exact)) as f64 <= MIN_SHARE * n_exact as f64 {
            continue;
        }
        let hint = match preprocessor.normalizer {
            None => {
                "set `data.normalize` to \"standard\", which subtracts the mean before the values become f32"
            }
            Some(_) => {
                "split the column into coarse and fine parts, or list it in `data.categorical` or `data.drop`"
            }
        };
        let name = &dataset.layout().features[column];
        let of = if rows.len() < n { format!(" in {} of {n} rows", rows.len()) } else { String::new() };
        warnings.push(format!(
            "column \"{name}\" of {} has {n_exact} distinct values{of}, of which f32 keeps {n_kept} apart\nhint: {hint}",
            dataset.source()
        ));
    }
    Ok(warnings)
}

fn n_distinct(mut values: Vec<f64>) -> usize {
    values.retain(|value| !value.is_nan());
    values.sort_unstable_by(f64::total_cmp);
    values.dedup();
    values.len()
}
