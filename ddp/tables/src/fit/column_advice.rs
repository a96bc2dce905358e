//! Warns of columns that train but spoil the model or its speed: labels and row numbers that identify rows, columns without values,
//! categories with very many one-hot features, values far outside all others, and features of very different size that are not
//! normalized.

use ddp::config::{DataConfig, Normalize};
use ddp::data::datasets::dataset::{Dataset, TargetLayout};
use ddp::data::error::Result;
use ddp_kernels::DType;

use crate::fit::preprocess::{ColumnCodes, Preprocessor};
use crate::fit::stats::ColumnStats;
use crate::row_values::RowValues;

/// Fewest rows for findings that could arise by chance.
const MIN_ROWS: usize = 30;
/// Most rows that are read.
const MAX_ROWS: usize = 1024;
/// Most values that are read, unless one row has more.
const MAX_VALUES: usize = 1 << 20;
/// Most one-hot features that need no warning.
const MAX_ONE_HOT: usize = 1000;
/// Largest ratio of the sizes of features that needs no normalization.
const MAX_RATIO: f32 = 100.0;
/// Most columns that a warning names.
const MAX_NAMED: usize = 5;

/// The rows of a run on which the preprocessor was fitted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FittedRows<'a> {
    /// Rows to train on, before preprocessing.
    pub(crate) train: &'a dyn Dataset,
    /// Number of rows that were taken out of the training rows.
    pub(crate) n_held_out: usize,
    pub(crate) preprocessor: &'a Preprocessor,
    /// Statistics of the training rows, if they were needed.
    pub(crate) stats: Option<&'a ColumnStats>,
    /// Statistics of their targets, if these are quantities.
    pub(crate) target_stats: Option<&'a ColumnStats>,
}

/// One warning per finding.
///
/// # Errors
/// [`DataError`](ddp::data::DataError) if rows cannot be read.
pub(crate) fn warnings(rows: FittedRows<'_>, data: &DataConfig) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    warnings.extend(labels_of_rows(rows, data));
    warnings.extend(wide_categories(&rows.preprocessor.plan));
    warnings.extend(row_numbers(rows)?);
    warnings.extend(empty_columns(rows));
    warnings.extend(nearly_constant(rows));
    warnings.extend(far_values(rows, data)?);
    if data.normalize == Normalize::Auto && rows.preprocessor.normalizer.is_none() {
        warnings.extend(sizes(rows.train)?);
    }
    Ok(warnings)
}

/// Warns of labels that are about as many as the rows.
fn labels_of_rows(rows: FittedRows<'_>, data: &DataConfig) -> Option<String> {
    let layout = rows.train.layout();
    let (TargetLayout::Classes { n_classes }, Some(labels)) = (&layout.targets, &layout.labels) else {
        return None;
    };
    let n_rows = rows.train.len() + rows.n_held_out;
    (n_rows >= MIN_ROWS && 2 * n_classes > n_rows).then(|| {
        format!(
            "\"{}\" has {n_classes} distinct labels in {n_rows} rows, such as \"{}\": a model can't learn classes of so few rows\n\
             hint: is it an identifier, or a number written as text? `ddp-train data inspect` says more; `data.target` names another column",
            data.target.join(", "),
            labels.name(labels.len() - 1),
        )
    })
}

/// Warns of categories that become very many features.
fn wide_categories(plan: &ColumnCodes) -> Option<String> {
    let n_features: usize = plan.one_hot().map(|(_, n_codes)| n_codes).sum();
    let (widest, n_codes) = plan.one_hot().max_by_key(|(_, n_codes)| *n_codes)?;
    (n_features > MAX_ONE_HOT).then(|| {
        format!(
            "categories become {n_features} features, one per value, {n_codes} of them from \"{widest}\": training is slow and \
             rare values are not learned\n\
             hint: set `data.encode` to \"embedding\", or list columns in `data.drop`"
        )
    })
}

/// Warns of columns that count the rows: they leak the order of the file to a model.
fn row_numbers(rows: FittedRows<'_>) -> Result<Option<String>> {
    let (Some(stats), n_rows) = (rows.stats, rows.train.len()) else { return Ok(None) };
    let max_span = (n_rows + rows.n_held_out) as f64;
    // Whole numbers that have room for one another only if each follows the one before it.
    let is_dense = |column: &usize| {
        let span = stats.max[*column] - stats.min[*column] + 1.0;
        stats.count[*column] == n_rows as f64
            && stats.n_fractional[*column] == 0.0
            && (n_rows as f64..=max_span).contains(&span)
    };
    let mut counting: Vec<usize> = rows.preprocessor.plan.numbers().filter(is_dense).collect();
    if n_rows < MIN_ROWS || counting.is_empty() {
        return Ok(None);
    }
    let first: Vec<usize> = (0..n_rows.min(max_rows(rows.train))).collect();
    let values = RowValues::read(rows.train, &first)?.x;
    let n_columns = rows.train.layout().n_features();
    let value = |row: usize, column: usize| values[row * n_columns + column];
    counting.retain(|&column| (1..first.len()).all(|row| value(row, column) > value(row - 1, column)));
    Ok((!counting.is_empty()).then(|| {
        let names = counting.iter().map(|&column| rows.train.layout().features[column].as_str());
        format!(
            "{} of {} {}; the model could memorize the order of rows\n\
             hint: if the numbers mean nothing else, list the column in `data.drop`",
            listed(names.collect()),
            rows.train.source(),
            if counting.len() == 1 { "is a row number" } else { "are row numbers" },
        )
    }))
}

/// Warns of columns without a value in any training row.
fn empty_columns(rows: FittedRows<'_>) -> Option<String> {
    let stats = rows.stats?;
    let empty: Vec<usize> =
        rows.preprocessor.plan.numbers().filter(|&column| stats.count[column] == 0.0).collect();
    let names = empty.iter().map(|&column| rows.train.layout().features[column].as_str());
    (!empty.is_empty()).then(|| {
        format!(
            "no training row of {} has a value of {}: a model can't learn what its values mean\n\
             hint: list the column in `data.drop`",
            rows.train.source(),
            listed(names.collect()),
        )
    })
}

/// Names columns that vary by the rounding of their values.
fn nearly_constant(rows: FittedRows<'_>) -> Option<String> {
    let stats = rows.stats?;
    let is_one = |column: &usize| stats.is_constant_but_for_rounding(*column);
    let columns: Vec<usize> = rows.preprocessor.plan.numbers().filter(is_one).collect();
    let names = columns.iter().map(|&column| rows.train.layout().features[column].as_str());
    (!columns.is_empty()).then(|| {
        format!(
            "{} of {} differs only by rounding from row to row and is taken for constant\n\
             hint: list the column in `data.drop`",
            listed(names.collect()),
            rows.train.source(),
        )
    })
}

/// Warns of a few values far outside the range of nearly all rows, by the range of each column in a sample of the rows.
fn far_values(rows: FittedRows<'_>, data: &DataConfig) -> Result<Vec<String>> {
    /// Most values that are read, so that rows beyond the memory limit stay below it.
    const MAX_VALUES: usize = 1 << 16;
    let layout = rows.train.layout();
    if rows.train.len() < MIN_ROWS || rows.stats.is_none() && rows.target_stats.is_none() {
        return Ok(Vec::new());
    }
    let n_rows = MAX_ROWS.min(MAX_VALUES / layout.n_features().max(1));
    if n_rows < MIN_ROWS {
        return Ok(Vec::new());
    }
    let sample = RowValues::read(rows.train, &sample_rows(rows.train, n_rows))?;
    let far = |stats: &ColumnStats, column: usize, values| {
        far_value([&stats.min, &stats.max].map(|of| stats.origin[column] + of[column]), values)
    };
    let mut warnings = Vec::new();
    if let Some(stats) = rows.target_stats {
        let names = layout.targets.column_names();
        for (target, name) in names.iter().enumerate() {
            let values = sample.targets.iter().skip(target).step_by(names.len()).copied().collect();
            warnings.extend(far(stats, target, values).map(|range| {
                format!(
                    "the target \"{name}\" {range}: the few rows outside decide the loss\n\
                     hint: correct them or leave them out, or set loss.kind = \"huber\""
                )
            }));
        }
    }
    let n_columns = layout.n_features();
    let is_squeezed = rows.preprocessor.normalizer.is_some() && data.normalize != Normalize::Robust;
    if let Some(stats) = rows.stats.filter(|_| is_squeezed) {
        for column in rows.preprocessor.plan.numbers() {
            let of_column = sample.x.iter().skip(column).step_by(n_columns);
            let values = of_column.map(|value| f64::from(*value)).collect();
            warnings.extend(far(stats, column, values).map(|range| {
                format!(
                    "\"{}\" {range}: normalization squeezes those together\n\
                     hint: correct the others, or set data.normalize = \"robust\"",
                    layout.features[column],
                )
            }));
        }
    }
    warnings.truncate(MAX_NAMED);
    Ok(warnings)
}

/// Describes the value farthest outside the range of 9 in 10 rows, if it is far: `min` and `max` of all rows, `values` of some.
pub fn far_value([min, max]: [f64; 2], mut values: Vec<f64>) -> Option<String> {
    /// Width of the range, as many times as far values lie outside it. Amounts and incomes stay within it.
    const MAX_DISTANCE: f64 = 50.0;
    values.retain(|value| value.is_finite());
    values.sort_unstable_by(f64::total_cmp);
    let (low, high) = (*values.get(values.len() / 20)?, *values.get(values.len() - 1 - values.len() / 20)?);
    let (value, distance) = if max - high > low - min { (max, max - high) } else { (min, low - min) };
    let text = || format!("reaches {value}, and 9 in 10 rows lie between {low} and {high}");
    (high > low && distance > MAX_DISTANCE * (high - low)).then(text)
}

/// Whether a row of a multilabel target has exactly one label.
pub fn has_one_label(row: impl Iterator<Item = f64>) -> bool {
    row.sum::<f64>() == 1.0
}

/// Advice about a multilabel target whose rows all have one.
pub const ONE_HOT: &str = "each row has exactly one label: if they are classes, write them as one column, in pandas frame[labels].idxmax(axis=1), or save their numbers, numpy.save(\"labels.npy\", y.argmax(1))";

/// Warns of features that differ much in size, by the largest value of each in a sample of the rows.
fn sizes(train: &dyn Dataset) -> Result<Option<String>> {
    let layout = train.layout();
    // Bytes are pixels, which have one size.
    if layout.dtype == DType::U8 || train.source().starts_with("builtin:") || !layout.categories.is_empty() {
        return Ok(None);
    }
    let n_columns = layout.n_features();
    let values = RowValues::read(train, &sample_rows(train, max_rows(train)))?.x;
    let size = |column: usize| {
        let values = values.iter().skip(column).step_by(n_columns);
        values.fold(0.0f32, |size, value| size.max(value.abs()))
    };
    let mut sizes: Vec<(f32, usize)> = (0..n_columns).map(|column| (size(column), column)).collect();
    sizes.retain(|(size, _)| *size > 0.0);
    sizes.sort_by(|a, b| a.0.total_cmp(&b.0));
    // Not the smallest size: a pixel at the border may be nearly always black.
    let (Some(small), Some(large)) = (sizes.get(sizes.len() / 4), sizes.last()) else { return Ok(None) };
    Ok((large.0 > MAX_RATIO * small.0).then(|| {
        let of = |(size, column): &(f32, usize)| format!("\"{}\" to {size}", layout.features[*column]);
        format!(
            "features of {} differ in size, {} and {}, and arrays are not normalized by default\n\
             hint: set data.normalize=standard, or data.normalize=none to train on the values as they are",
            train.source(),
            of(small),
            of(large),
        )
    }))
}

/// Numbers of at most `max_rows` rows spread over all.
fn sample_rows(rows: &dyn Dataset, max_rows: usize) -> Vec<usize> {
    let n_rows = rows.len();
    let n = n_rows.min(max_rows);
    (0..n).map(|i| (i as u128 * n_rows as u128 / n as u128) as usize).collect()
}

/// Most rows to read.
fn max_rows(rows: &dyn Dataset) -> usize {
    MAX_ROWS.min(MAX_VALUES / rows.layout().n_features().max(1)).max(1)
}

/// Names in a list.
fn listed(names: Vec<&str>) -> String {
    let shown: Vec<String> = names.iter().take(MAX_NAMED).map(|name| format!("\"{name}\"")).collect();
    let more = if names.len() > MAX_NAMED { " and others" } else { "" };
    format!("{}{more}", shown.join(", "))
}

#[cfg(test)]
mod tests {
    use ddp::config::Config;
    use ddp_comm::World;

    use crate::load;

    /// The warnings about a file with these bytes, next to which `labels.npy` has labels of 200 rows.
    fn warnings(name: &str, bytes: &[u8], sets: &[&str]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        let labels = (0..200u8).map(|row| f32::from(row % 2));
        std::fs::write(folder.path().join("labels.npy"), npy("(200,)", labels)).unwrap();
        let in_folder = |set: &&str| set.replace('@', folder.path().to_str().unwrap());
        let mut sets: Vec<String> = sets.iter().map(in_folder).collect();
        sets.push(format!("data.train={}", path.display()));
        let loaded = load(&Config::load(None, &sets).unwrap(), &World::single());
        loaded
            .map_err(|stop| {
                stop.error().map_or_else(|| stop.to_string(), |error| ddp_kernels::hint::with_hint(error))
            })
            .unwrap()
            .warnings
    }

    fn npy(shape: &str, values: impl Iterator<Item = f32>) -> Vec<u8> {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend(118u16.to_le_bytes());
        bytes.extend(format!("{header:<117}\n").bytes());
        values.for_each(|value| bytes.extend(value.to_le_bytes()));
        bytes
    }

    fn table(header: &str, row: impl Fn(usize) -> String) -> Vec<u8> {
        let rows: Vec<String> = (0..200).map(row).collect();
        format!("{header}\n{}\n", rows.join("\n")).into_bytes()
    }

    #[test]
    fn values_far_outside_are_warned_of() {
        let of = |x: &dyn Fn(usize) -> f64, y: &dyn Fn(usize) -> f64| {
            let bytes = table("x,z,y", |row| format!("{},{},{}", x(row), row % 7, y(row)));
            warnings("rows.csv", &bytes, &["data.target=y", "data.task=regression"])
        };
        let usual = |row: usize| 300.0 + (row * 37 % 101) as f64;
        let found = of(&usual, &|row| if row == 70 { 1e7 } else { usual(row) });
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(
            found[0]
                .starts_with("the target \"y\" reaches 10000000, and 9 in 10 rows lie between 305 and 396"),
            "{found:?}"
        );
        assert!(found[0].contains("huber"));
        let found = of(&|row| if row == 3 { -1e6 } else { usual(row) }, &usual);
        assert!(found.len() == 1 && found[0].starts_with("\"x\" reaches -1000000"), "{found:?}");
        assert!(found[0].contains("robust"));
        // The tail of incomes, and a column that is nearly always 0.
        let income = |row: usize| ((row * 37 % 199) as f64 / 30.0).exp();
        assert_eq!(of(&income, &|row| f64::from(u8::from(row == 9)) * 1e5), [""; 0]);
    }

    #[test]
    fn labels_of_single_rows_are_warned_of() {
        let of = |n: usize| table("x,label", |row| format!("{},\"${},000\"", row * row % 7, row % n));
        let found = warnings("rows.csv", &of(200), &[]);
        assert!(
            found.len() == 1
                && found[0].starts_with("\"label\" has 200 distinct labels in 200 rows, such as \"$99,000\""),
            "{found:?}"
        );
        assert_eq!(warnings("rows.csv", &of(100), &["data.eval_fraction=0.2"]), Vec::<String>::new());
    }

    #[test]
    fn very_many_one_hot_features_are_warned_of() {
        let of = |n: usize| {
            let rows: Vec<String> =
                (0..1400).map(|row| format!("user {},{},{}", row % n, row % 3, row % 2)).collect();
            format!("user,kind,label\n{}\n", rows.join("\n")).into_bytes()
        };
        let one_hot = "data.categorical=[\"user\",\"kind\"]";
        let found = warnings("rows.csv", &of(1100), &[one_hot]);
        assert!(
            found.len() == 1
                && found[0].starts_with(
                    "categories become 1105 features, one per value, 1101 of them from \"user\""
                )
                && found[0].contains("data.encode` to \"embedding\""),
            "{found:?}"
        );
        assert!(warnings("rows.csv", &of(1100), &[one_hot, "data.encode=embedding"]).is_empty());
        assert!(warnings("rows.csv", &of(900), &[one_hot]).is_empty());
    }

    #[test]
    fn columns_that_count_the_rows_are_warned_of() {
        let rows =
            table("id,year,x,label", |row| format!("{},{},{},{}", row + 1, row / 2, row * 37 % 200, row % 2));
        for sets in [&[][..], &["data.eval_fraction=0.2"]] {
            let found = warnings("rows.csv", &rows, sets);
            assert!(found.len() == 1 && found[0].starts_with("\"id\" of "), "{found:?}");
            assert!(found[0].contains("is a row number") && found[0].contains("`data.drop`"), "{found:?}");
        }
        assert!(warnings("rows.csv", &rows, &["data.drop=id"]).is_empty());
    }

    #[test]
    fn columns_without_values_are_warned_of() {
        let rows = table("x,empty,label", |row| format!("{},,{}", row * 37 % 200, row % 2));
        let found = warnings("rows.csv", &rows, &["data.missing=mean"]);
        assert!(found.len() == 1 && found[0].contains("has a value of \"empty\":"), "{found:?}");
        let some = table("x,few,label", |row| {
            let few = if row == 70 { "1" } else { "" };
            format!("{},{few},{}", row * 37 % 200, row % 2)
        });
        assert_eq!(warnings("rows.csv", &some, &["data.missing=mean"]), Vec::<String>::new());
    }

    #[test]
    fn arrays_of_different_sizes_are_warned_of() {
        let features = |large: f32| {
            npy(
                "(200, 3)",
                (0..200u8).flat_map(move |row| [0.5, f32::from(row % 3), large * f32::from(row % 7)]),
            )
        };
        let of = |large: f32, sets: &[&str]| {
            warnings("x.npy", &features(large), &[&["data.labels=@/labels.npy"], sets].concat())
        };
        let found = of(300.0, &[]);
        assert!(
            found.len() == 1
                && found[0].contains("\"f0\" to 0.5 and \"f2\" to 1800")
                && found[0].contains("data.normalize=standard"),
            "{found:?}"
        );
        for set in ["data.normalize=standard", "data.normalize=none"] {
            assert!(of(300.0, &[set]).is_empty());
        }
        assert!(of(5.0, &[]).is_empty());
    }
}
