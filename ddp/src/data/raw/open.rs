//! Files -> [`RawRows`]: features, labels and weights found in them, and checked against each other.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::array::RawArray;
use super::bytes::{Bytes, Room};
use super::rows::{LengthCheck, RawRows};
use super::safetensors::Header;
use super::{idx, npy, npz};
use crate::config::{DataFormat, Task, format_by_name};
use crate::data::compression::Compression;
use crate::data::dataset::{CategoryColumn, RowLayout, TargetLayout, numbered_columns};
use crate::data::error::Result;
use crate::data::source::{Part, SourceSpec};
use crate::data::{DataError, files_of};

/// Metadata keys of safetensors files that `ddp-train data convert` writes.
pub(crate) const FEATURES_TEXT: &str = "ddp_train.features";
/// Names of the target columns.
pub(crate) const TARGETS_TEXT: &str = "ddp_train.targets";
/// Columns that hold category numbers, with their vocabularies.
pub(crate) const CATEGORIES_TEXT: &str = "ddp_train.categories";
/// The array of row weights in a converted file.
pub(crate) const WEIGHTS_KEY: &str = "weights";

/// Names that features and labels have in other people's files.
pub(super) const FEATURE_KEYS: &[&str] = &["features", "x", "X", "x_train", "data", "images", "embeddings"];
pub(super) const LABEL_KEYS: &[&str] = &["labels", "y", "Y", "y_train", "targets", "label", "target"];

/// A format of arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RawFormat {
    Npy,
    Npz,
    Safetensors,
    Idx,
}

/// What one file holds.
struct Parts {
    features: RawArray,
    targets: Option<RawArray>,
    weights: Option<RawArray>,
    texts: Texts,
}

/// What a converted file says of its columns.
#[derive(Debug, Clone, PartialEq, Default)]
struct Texts {
    features: Option<Vec<String>>,
    targets: Option<Vec<String>>,
    categories: Vec<CategoryColumn>,
}

/// The rows of `files`, all of one format.
///
/// # Errors
/// What is wrong with a file, or between files.
pub(crate) fn open(files: &[PathBuf], format: RawFormat, spec: &SourceSpec<'_>) -> Result<RawRows> {
    refuse_columns(spec)?;
    let room = Room::new(spec.memory_bytes);
    let parts = files.iter().map(|path| read(path, format, spec, &room)).collect::<Result<Vec<_>>>()?;
    let texts = parts[0].texts.clone();
    for (part, path) in parts.iter().zip(files) {
        if part.texts != texts {
            return Err(DataError::ShardsDiffer {
                first: files[0].clone(),
                other: path.clone(),
                difference: "other names of columns, or other categories".to_owned(),
            });
        }
        if part.features.n_rows() == 0 {
            return Err(DataError::NoRows { path: path.clone() });
        }
    }
    let (mut features, mut targets, mut weights) = (Vec::new(), Vec::new(), Vec::new());
    for part in parts {
        features.push(part.features);
        targets.extend(part.targets);
        weights.extend(part.weights);
    }
    let features = RawArray::concat(features)?;
    let targets = if targets.is_empty() {
        labels_beside(files, format, spec, &room)?
    } else {
        RawArray::concat(targets)?
    };
    let beside = if spec.part == Part::Train { spec.data.weight.as_deref() } else { spec.eval_weight() };
    let weights = match (weights.is_empty(), beside) {
        (false, _) => Some(RawArray::concat(weights)?),
        (true, Some(source)) => Some(arrays_in(source, format, spec, &room)?),
        (true, None) => None,
    };
    combine(features, targets, weights, texts, spec)
}

/// Columns can't be told apart in an array.
fn refuse_columns(spec: &SourceSpec<'_>) -> Result<()> {
    for (key, columns) in [("data.drop", &spec.data.drop), ("data.categorical", &spec.data.categorical)] {
        if !columns.is_empty() {
            return Err(DataError::NotForFormat {
                key,
                source_name: spec.source.to_owned(),
                why: "holds an array, whose columns are taken as they are",
                hint: "give it to `ddp-train data convert` when you make the file from a table".to_owned(),
            });
        }
    }
    Ok(())
}

/// The bytes of a file, unpacked into `room` if it is compressed.
pub(super) fn bytes_of(path: &Path, room: &Room) -> Result<Bytes> {
    let compression = Compression::of(path);
    if compression == Compression::None {
        return Bytes::map(path);
    }
    let mut unpacked = Vec::new();
    let file = crate::storage::user_file::open("data file", path)?;
    let read = compression.reader(file, path)?.take(room.left() + 1).read_to_end(&mut unpacked);
    read.map_err(|error| DataError::Malformed {
        path: path.to_owned(),
        format: compression.name(),
        reason: error.to_string(),
        hint: "is the file cut off?",
    })?;
    let n_bytes = unpacked.len() as u64;
    if n_bytes > room.left() {
        let hint = "unpack the file on the disk, or raise the limit";
        return Err(room.too_large(path.display().to_string(), n_bytes, "or more to be unpacked", hint));
    }
    room.take(n_bytes);
    Ok(Bytes::memory(unpacked, path))
}

fn read(path: &Path, format: RawFormat, spec: &SourceSpec<'_>, room: &Room) -> Result<Parts> {
    let bytes = bytes_of(path, room)?;
    let single = |features| Parts { features, targets: None, weights: None, texts: Texts::default() };
    let end = bytes.len();
    match format {
        RawFormat::Npy => Ok(single(npy::array(bytes, 0, end)?)),
        RawFormat::Idx => Ok(single(idx::array(bytes)?)),
        RawFormat::Npz => {
            let names = npz::names(&bytes)?;
            named(path, &names, spec, |name| npz::array(&bytes, name, room))
        }
        RawFormat::Safetensors => {
            let header = Header::read(&bytes)?;
            let mut parts = named(path, &header.names(), spec, |name| header.array(&bytes, name))?;
            let texts = header.texts();
            let json = |key: &str| texts.get(key).and_then(|text| serde_json::from_str(text).ok());
            parts.texts = Texts {
                features: json(FEATURES_TEXT),
                targets: json(TARGETS_TEXT),
                categories: texts
                    .get(CATEGORIES_TEXT)
                    .and_then(|text| serde_json::from_str(text).ok())
                    .unwrap_or_default(),
            };
            Ok(parts)
        }
    }
}

/// Features, labels and weights among named arrays.
fn named(
    path: &Path,
    names: &[String],
    spec: &SourceSpec<'_>,
    take: impl Fn(&str) -> Result<RawArray>,
) -> Result<Parts> {
    let has = |name: &str| names.iter().any(|other| other == name);
    let find = |key: &str, usual: &[&str], what: &str| -> Result<String> {
        // Another name than the default was given: then it is that one or none.
        let is_default = usual.first() == Some(&key);
        let usual = usual.iter().copied().filter(|_| is_default);
        let found = std::iter::once(key).chain(usual).find(|name| has(name)).map(str::to_owned);
        found.ok_or_else(|| DataError::NoArray {
            path: path.to_owned(),
            key: key.to_owned(),
            found: if names.is_empty() { "none".to_owned() } else { names.join(", ") },
            hint: format!("set `data.{what}_key` to the one that holds the {what}"),
        })
    };
    let features = take(&find(&spec.data.features_key, FEATURE_KEYS, "features")?)?;
    let targets = match spec.labels {
        Some(_) => None,
        None => Some(take(&find(&spec.data.labels_key, LABEL_KEYS, "labels")?)?),
    };
    let weights = match spec.data.weight.as_deref() {
        Some(name) if has(name) => Some(take(name)?),
        Some(name) => {
            return Err(DataError::NoArray {
                path: path.to_owned(),
                key: name.to_owned(),
                found: names.join(", "),
                hint: "set `data.weight` to the one that holds a number a row".to_owned(),
            });
        }
        None => None,
    };
    Ok(Parts { features, targets, weights, texts: Texts::default() })
}

/// Labels in files of their own.
pub(super) fn labels_beside(
    files: &[PathBuf],
    format: RawFormat,
    spec: &SourceSpec<'_>,
    room: &Room,
) -> Result<RawArray> {
    if let Some(labels) = spec.labels {
        return arrays_in(labels, format, spec, room);
    }
    // MNIST's own names.
    let siblings: Vec<PathBuf> = files
        .iter()
        .filter_map(|path| {
            let name = path.file_name()?.to_str()?;
            let label = name.replace("images", "labels").replace("idx3", "idx1");
            (format == RawFormat::Idx && label != name).then(|| path.with_file_name(label))
        })
        .filter(|path| path.exists())
        .collect();
    if siblings.len() == files.len() {
        let arrays = siblings.iter().map(|path| Ok(read(path, format, spec, room)?.features));
        return RawArray::concat(arrays.collect::<Result<Vec<_>>>()?);
    }
    Err(DataError::NoLabels {
        source_name: spec.source.to_owned(),
        hint: "name the file that holds them: `data.labels`, and `data.eval_labels` for `data.eval`",
    })
}

/// The rows of single arrays (npy, IDX) in the files that `source` names.
fn arrays_in(source: &str, format: RawFormat, spec: &SourceSpec<'_>, room: &Room) -> Result<RawArray> {
    let arrays = files_of(source)?.into_iter().map(|path| {
        let format = match format {
            RawFormat::Idx if format_by_name(&path) != Some(DataFormat::Npy) => RawFormat::Idx,
            _ => RawFormat::Npy,
        };
        Ok(read(&path, format, spec, room)?.features)
    });
    RawArray::concat(arrays.collect::<Result<Vec<_>>>()?)
}

fn combine(
    features: RawArray,
    targets: RawArray,
    weights: Option<RawArray>,
    texts: Texts,
    spec: &SourceSpec<'_>,
) -> Result<RawRows> {
    let n_rows = features.n_rows();
    for (array, what) in
        [Some((&targets, "labels")), weights.as_ref().map(|w| (w, "weights"))].into_iter().flatten()
    {
        if array.n_rows() != n_rows {
            return Err(DataError::RowsDiffer {
                features: spec.source.to_owned(),
                n_features: n_rows,
                what,
                other: array.path().display().to_string(),
                n_other: array.n_rows(),
            });
        }
    }
    let n_features = features.row_len();
    if n_features == 0 {
        return Err(DataError::Malformed {
            path: features.path().to_owned(),
            format: "data",
            reason: format!("its rows have shape {:?}: no features", features.row_dims),
            hint: "expected [rows, features]",
        });
    }
    let layout = RowLayout {
        features: texts
            .features
            .filter(|names| names.len() == n_features)
            .unwrap_or_else(|| numbered_columns(n_features)),
        dtype: if features.needs_swap() { ddp_kernels::DType::F32 } else { features.raw.travels_as() },
        targets: target_layout(&targets, texts.targets, spec)?,
        has_weights: weights.is_some(),
        categories: texts.categories.into_iter().filter(|category| category.column < n_features).collect(),
        has_missing: spec.may_miss() && !features.raw.is_integer(),
    };
    if let Some(weights) = weights.as_ref().filter(|weights| weights.row_len() != 1) {
        return Err(DataError::LabelShape {
            source_name: weights.path().display().to_string(),
            shape: std::iter::once(n_rows).chain(weights.row_dims.iter().copied()).collect(),
            expected: "one number a row".to_owned(),
            hint: "is `data.weight` the right one?",
        });
    }
    let total =
        features.size_bytes() + targets.size_bytes() + weights.as_ref().map_or(0, RawArray::size_bytes);
    // Labels that are few beside the features stay mapped: they would cost a read of their own.
    let place = |array: RawArray| {
        let is_small = array.size_bytes() <= spec.memory_bytes / 4;
        if total <= spec.memory_bytes || is_small { Ok(array) } else { array.unmapped() }
    };
    Ok(RawRows {
        features: place(features)?,
        targets: place(targets)?,
        weights: weights.map(place).transpose()?,
        task: spec.data.task,
        layout,
        source: spec.source.to_owned(),
        length_check: LengthCheck::default(),
    })
}

/// What the labels are, by the task; the number of classes is still open where the config does not say it.
fn target_layout(
    targets: &RawArray,
    names: Option<Vec<String>>,
    spec: &SourceSpec<'_>,
) -> Result<TargetLayout> {
    let shape =
        || std::iter::once(targets.n_rows()).chain(targets.row_dims.iter().copied()).collect::<Vec<_>>();
    let wrong = |expected: String, hint| {
        let source_name = targets.path().display().to_string();
        Err(DataError::LabelShape { source_name, shape: shape(), expected, hint })
    };
    if spec.data.task == Task::Classification {
        return if targets.row_len() == 1 {
            Ok(TargetLayout::Classes { n_classes: spec.classes.unwrap_or(0) })
        } else {
            wrong(
                "one class number a row".to_owned(),
                "for one-hot labels take numpy.argmax of them; for several targets set `data.task` to \"regression\" or \"multilabel\"",
            )
        };
    }
    if targets.row_dims.len() > 1 || targets.row_len() == 0 {
        return wrong("[rows] or [rows, targets]".to_owned(), "is `data.labels` the right one?");
    }
    let n = targets.row_len();
    let stored = names.filter(|names| names.len() == n);
    let given = Some(spec.data.target.clone()).filter(|names| names.len() == n);
    let names = stored.or(given).unwrap_or_else(|| (0..n).map(|i| format!("t{i}")).collect());
    Ok(TargetLayout::Values { names })
}
