//! Opens files of arrays as [`RawRows`]: finds features, labels and weights and checks them against each other.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ddp::config::{DataFormat, Task};
use ddp::data::datasets::dataset::{RowLayout, numbered_columns};
use ddp::data::error::{DataError, Result};

use crate::arrays::rows::{LengthCheck, RawRows};
use crate::arrays::targets::target_layout;
use crate::error::TableError;
use crate::error::target_error::TargetError;
use crate::formats;
use crate::formats::Reader;
use crate::formats::arrays::array::RawArray;
use crate::formats::arrays::bytes::{MemoryBudget, bytes_of};
pub(crate) use crate::formats::arrays::reader::{ArrayReader, ColumnTexts, NamedArrays};
use crate::formats::arrays::reader::{FEATURE_KEYS, LABEL_KEYS, SplitSide, test_key};
use crate::formats::error::RowsError;
use crate::open::files::files_with_copies;
use crate::source::{ClassLabels, SourceSpec};

/// Arrays of one file.
struct FileArrays {
    features: RawArray,
    targets: Option<RawArray>,
    weights: Option<RawArray>,
    texts: ColumnTexts,
}

/// Opens the rows of `files`, all of one format.
///
/// # Errors
/// [`RowsError::Malformed`], [`TableError::NoArray`], [`RowsError::ShardsDiffer`] and others that name the file.
pub fn open(files: &[PathBuf], reader: &ArrayReader, spec: &SourceSpec<'_>) -> Result<RawRows> {
    refuse_columns(spec)?;
    let budget = MemoryBudget::new(spec.memory_bytes);
    let parts = files.iter().map(|path| read(path, reader, spec, &budget)).collect::<Result<Vec<_>>>()?;
    let texts = parts[0].texts.clone();
    for (part, path) in parts.iter().zip(files) {
        if part.texts != texts {
            return Err(DataError::from(RowsError::ShardsDiffer {
                first: files[0].clone(),
                other: path.clone(),
                difference: "names of columns or categories differ".to_owned(),
            }));
        }
        if part.features.n_rows() == 0 {
            return Err(DataError::from(RowsError::NoRows { path: path.clone() }));
        }
    }
    let (mut features, mut targets, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for part in parts {
        features.push(part.features);
        targets.extend(part.targets);
        weights.extend(part.weights);
    }
    let features = RawArray::concat(features)?;
    let targets = if spec.to_predict.is_some() {
        RawArray::empty_rows(features.n_rows(), features.path())
    } else if targets.is_empty() {
        labels_beside(files, reader, spec, &budget)?
    } else {
        RawArray::concat(targets)?
    };
    let beside = if spec.side == SplitSide::Train { spec.data.weight.as_deref() } else { spec.eval_weight() };
    let beside = beside.filter(|_| spec.to_predict.is_none());
    let weights = match (weights.is_empty(), beside) {
        (false, _) => Some(RawArray::concat(weights)?),
        (true, Some(source)) => Some(arrays_in(source, reader, spec, &budget)?),
        (true, None) => None,
    };
    combine(features, targets, weights, texts, spec)
}

/// Fails for settings that select columns, which arrays don't have.
fn refuse_columns(spec: &SourceSpec<'_>) -> Result<()> {
    if let Some(rows) = spec.to_predict {
        return match rows.kept {
            [] => Ok(()),
            _ => Err(DataError::from(TableError::NotForFormat {
                key: "--keep",
                source_name: spec.source.to_owned(),
                why: "holds an array, which has no columns of text",
                hint: "remove it: predictions are in the order of the rows".to_owned(),
            })),
        };
    }
    for (key, columns) in [("data.drop", &spec.data.drop), ("data.categorical", &spec.data.categorical)] {
        if !columns.is_empty() {
            return Err(DataError::from(TableError::NotForFormat {
                key,
                source_name: spec.source.to_owned(),
                why: "holds an array, whose columns are used as they are",
                hint: "train on a table, such as CSV or Parquet, or change the array".to_owned(),
            }));
        }
    }
    Ok(())
}

fn read(
    path: &Path,
    reader: &ArrayReader,
    spec: &SourceSpec<'_>,
    budget: &MemoryBudget,
) -> Result<FileArrays> {
    let bytes = bytes_of(path, budget)?;
    match reader {
        ArrayReader::Single { open, .. } => Ok(FileArrays {
            features: open(bytes, budget)?,
            targets: None,
            weights: None,
            texts: ColumnTexts::default(),
        }),
        ArrayReader::Named { open, .. } => named(path, &*open(&bytes, budget)?, spec),
    }
}

/// Features, labels and weights among named arrays.
fn named(path: &Path, arrays: &dyn NamedArrays, spec: &SourceSpec<'_>) -> Result<FileArrays> {
    let names = arrays.names();
    let has = |name: &str| names.iter().any(|other| other == name);
    // The array of the test rows, if they are wanted, and the array of all or of the training rows.
    let sides = |key: &str, usual_names: &[&str]| -> [Option<String>; 2] {
        // A name that the user chose has no substitutes.
        let usual = usual_names.iter().copied().filter(|_| usual_names.first() == Some(&key));
        let candidates: Vec<&str> = std::iter::once(key).chain(usual).collect();
        let of_test = candidates.iter().map(|name| name_for_test(name));
        [
            of_test.filter(|_| spec.side == SplitSide::Test).find(|name| has(name)),
            candidates.iter().find(|name| has(name)).map(|name| (*name).to_owned()),
        ]
    };
    let has_both = sides(&spec.data.features_key, FEATURE_KEYS).iter().all(Option::is_some);
    let find = |key: &str, usual_names: &[&str], hint: &str| -> Result<RawArray> {
        let missing = |key: &str, hint: String| {
            let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            DataError::from(TableError::NoArray { path: path.to_owned(), key: key.to_owned(), found, hint })
        };
        let name = match sides(key, usual_names) {
            [None, Some(of_train)] if has_both => {
                let of_test = name_for_test(&of_train);
                let hint = format!(
                    "\"{of_train}\" is of the training rows: add \"{of_test}\", or write the test rows to a file of their own for `data.eval`"
                );
                return Err(missing(&of_test, hint));
            }
            [of_test, of_all] => of_test.or(of_all).ok_or_else(|| missing(key, hint.to_owned()))?,
        };
        Ok(arrays.array(&name)?)
    };
    let features_hint = "set `data.features_key` to the array of the features";
    let features = find(&spec.data.features_key, FEATURE_KEYS, features_hint)?;
    let labels = Some(&*spec.data.labels_key).filter(|_| spec.labels.is_none() && spec.to_predict.is_none());
    let labels_hint = "set `data.labels_key` to the array of the labels";
    let targets = labels.map(|key| find(key, LABEL_KEYS, labels_hint)).transpose()?;
    let is_there = |key: &&str| spec.side == SplitSide::Train || sides(key, &[]) != [None, None];
    let weight = spec.data.weight.as_deref().filter(|_| spec.to_predict.is_none()).filter(is_there);
    let weight_hint = "set `data.weight` to the array with one number per row";
    let weights = weight.map(|key| find(key, &[], weight_hint)).transpose()?;
    Ok(FileArrays { features, targets, weights, texts: arrays.texts() })
}

/// The name of the array of test rows next to an array of training rows.
fn name_for_test(name: &str) -> String {
    let usual = test_key(name);
    if usual.is_empty() { format!("{name}_test") } else { usual }
}

/// Labels in files of their own: those that the config names, or files with conventional names next to the features.
pub(crate) fn labels_beside(
    files: &[PathBuf],
    reader: &ArrayReader,
    spec: &SourceSpec<'_>,
    budget: &MemoryBudget,
) -> Result<RawArray> {
    if let Some(labels) = spec.labels {
        return arrays_in(labels, reader, spec, budget);
    }
    let ArrayReader::Single { labels_name, .. } = reader else { return Err(no_labels(spec)) };
    let siblings: Vec<PathBuf> = files
        .iter()
        .filter_map(|path| Some(path.with_file_name(labels_name(path.file_name()?.to_str()?)?)))
        .filter(|path| path.exists())
        .collect();
    if siblings.len() < files.len() {
        return Err(no_labels(spec));
    }
    let arrays = siblings.iter().map(|path| Ok(read(path, reader, spec, budget)?.features));
    Ok(RawArray::concat(arrays.collect::<Result<Vec<_>>>()?)?)
}

fn no_labels(spec: &SourceSpec<'_>) -> DataError {
    DataError::from(TargetError::NoLabels {
        source_name: spec.source.to_owned(),
        hint: "set `data.labels` to the file of the labels, and `data.eval_labels` for `data.eval`",
    })
}

/// The rows of the single arrays in the files of `source`: in the format of the features, otherwise npy.
fn arrays_in(
    source: &str,
    features_reader: &ArrayReader,
    spec: &SourceSpec<'_>,
    budget: &MemoryBudget,
) -> Result<RawArray> {
    let npy = formats::find(DataFormat::Npy).expect("npy is a format");
    let Reader::Arrays(npy_reader) = &npy.reader else { unreachable!("npy is a format of arrays") };
    let files = files_with_copies(source, spec.data.cache.as_deref())?;
    let arrays = files.into_iter().map(|path| {
        let is_npy = formats::by_name(&path).is_some_and(|format| format.id == npy.id);
        let reader = match features_reader {
            ArrayReader::Single { .. } if !is_npy => features_reader,
            _ => npy_reader,
        };
        Ok(read(&path, reader, spec, budget)?.features)
    });
    Ok(RawArray::concat(arrays.collect::<Result<Vec<_>>>()?)?)
}

/// Fails if `features` are not numbers, or if the array of their `content` has another number of rows.
pub fn check_rows(
    features: &RawArray,
    array: &RawArray,
    content: &'static str,
    spec: &SourceSpec<'_>,
) -> Result<()> {
    let (n_features, n_other) = (features.n_rows(), array.n_rows());
    if n_other != n_features {
        return Err(DataError::from(TableError::RowsDiffer {
            features: spec.source.to_owned(),
            n_features,
            what: content,
            other: array.path().display().to_string(),
            n_other,
        }));
    }
    if features.row_len() == 0 {
        return Err(DataError::from(RowsError::Malformed {
            path: features.path().to_owned(),
            format: "data",
            reason: format!("its rows have shape {:?}, so they hold no features", features.row_dims),
            hint: "expected [rows, features]",
        }));
    }
    if features.raw.is_text() {
        return Err(DataError::from(TargetError::TargetText {
            place: format!("data file `{}`", features.path().display()),
            hint: "number the texts of each feature, or write a table: CSV and Parquet files take `data.categorical`",
        }));
    }
    Ok(())
}

fn combine(
    features: RawArray,
    targets: RawArray,
    weights: Option<RawArray>,
    texts: ColumnTexts,
    spec: &SourceSpec<'_>,
) -> Result<RawRows> {
    let n_rows = features.n_rows();
    check_rows(&features, &targets, "labels", spec)?;
    if let Some(weights) = &weights {
        check_rows(&features, weights, "weights", spec)?;
    }
    let n_features = features.row_len();
    let is_classification = spec.data.task == Task::Classification;
    let takes_labels = is_classification && !matches!(spec.classes, ClassLabels::AsStored);
    let targets = if takes_labels { targets.beyond_i64_as_text()? } else { targets };
    let (target_names, labels) = (texts.targets, texts.labels);
    let layout = RowLayout {
        features: texts
            .features
            .filter(|names| names.len() == n_features)
            .unwrap_or_else(|| numbered_columns(n_features)),
        dtype: if features.needs_swap() { ddp_kernels::DType::F32 } else { features.raw.travels_as() },
        targets: target_layout(&targets, target_names.as_deref(), spec.data.task, spec)?,
        labels: spec.vocabulary().filter(|_| targets.n_values() == 1 && is_classification),
        task_choice: None,
        has_weights: weights.is_some(),
        kinds: Vec::new(),
        dates: Vec::new(),
        decimal: Default::default(),
        categories: texts.categories.into_iter().filter(|category| category.column < n_features).collect(),
        has_missing: spec.may_miss() && !features.raw.is_integer(),
        target_scale: None,
        left_out: spec.note_without_weight(|_| weights.is_some()).into_iter().collect(),
    };
    if let Some(weights) = weights.as_ref().filter(|weights| weights.row_len() != 1 || weights.raw.is_text())
    {
        return Err(DataError::from(TargetError::LabelShape {
            source_name: weights.path().display().to_string(),
            shape: std::iter::once(n_rows).chain(weights.row_dims.iter().copied()).collect(),
            expected: "one number per row".to_owned(),
            hint: "check `data.weight`",
        }));
    }
    let total =
        features.size_bytes() + targets.size_bytes() + weights.as_ref().map_or(0, RawArray::size_bytes);
    // Small labels stay mapped, because reading them in pieces would cost a read of their own.
    let place = |array: RawArray| {
        let is_small = array.size_bytes() <= spec.mapped_bytes / 4;
        if total > spec.mapped_bytes && !is_small {
            return array.unmapped();
        }
        if spec.data.shuffle && spec.side == SplitSide::Train {
            array.read_into_cache();
        }
        Ok(array)
    };
    Ok(RawRows {
        features: place(features)?,
        targets: place(targets)?,
        weights: weights.map(place).transpose()?,
        task: spec.data.task,
        target_names,
        labels,
        label_classes: OnceLock::new(),
        skips_unknown: spec.skips_unknown(),
        layout,
        source: spec.source.to_owned(),
        length_check: LengthCheck::default(),
    })
}
