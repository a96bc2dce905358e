//! Lists all arrays in files, whether or not they are usable for training.

use std::path::{Path, PathBuf};

use ddp::data::error::{DataError, Result};

use crate::error::TableError;
use crate::error::target_error::TargetError;
use crate::formats::arrays::array::RawArray;
use crate::formats::arrays::bytes::{MemoryBudget, bytes_of};
pub(crate) use crate::formats::arrays::reader::{ArrayReader, ColumnTexts};
use crate::formats::arrays::reader::{FEATURE_KEYS, LABEL_KEYS};
use crate::formats::error::RowsError;
use crate::open::open_arrays::labels_beside;
use crate::source::SourceSpec;

/// The arrays in files of one format, each joined over all files.
pub struct Listing {
    /// By name; an unusable array has its error.
    pub arrays: Vec<(String, Result<RawArray>)>,
    /// Index of the features, if they can be identified.
    pub features: Option<usize>,
    /// Index of the labels, if they can be identified.
    pub labels: Option<usize>,
    /// Names of the feature columns, if the file holds them.
    pub feature_names: Option<Vec<String>>,
    /// Names of the target columns, if the file holds them.
    pub target_names: Option<Vec<String>>,
}

/// Lists the arrays in `files`.
///
/// # Errors
/// [`RowsError::Malformed`], [`RowsError::ShardsDiffer`] and others that name the file.
pub fn list(files: &[PathBuf], reader: &ArrayReader, spec: &SourceSpec<'_>) -> Result<Listing> {
    let budget = &MemoryBudget::new(spec.memory_bytes);
    let first = file(&files[0], reader, budget)?;
    let mut listing = Listing { arrays: Vec::new(), features: None, labels: None, ..first };
    let mut others = Vec::new();
    for path in &files[1..] {
        others.push((path, file(path, reader, budget)?.arrays));
    }
    for (name, array) in first.arrays {
        let mut shards = vec![array];
        for (path, arrays) in &mut others {
            let Some(at) = arrays.iter().position(|(other, _)| *other == name) else {
                let (first, other) = (files[0].clone(), (*path).clone());
                let difference = format!("only one has an array \"{name}\"");
                return Err(DataError::from(RowsError::ShardsDiffer { first, other, difference }));
            };
            shards.push(arrays.swap_remove(at).1);
        }
        let whole =
            shards.into_iter().collect::<Result<Vec<_>>>().and_then(|shards| Ok(RawArray::concat(shards)?));
        listing.arrays.push((name, whole));
    }
    listing.features =
        find(&listing.arrays, &spec.data.features_key, FEATURE_KEYS).or_else(|| largest(&listing.arrays));
    if spec.labels.is_some() || matches!(reader, ArrayReader::Single { .. }) {
        match labels_beside(files, reader, spec, budget) {
            Ok(labels) => {
                listing.labels = Some(listing.arrays.len());
                listing.arrays.push(("labels".to_owned(), Ok(labels)));
            }
            Err(error)
                if matches!(
                    TableError::of(&error),
                    Some(TableError::Target(TargetError::NoLabels { .. }))
                ) => {}
            Err(error) => return Err(error),
        }
    } else {
        listing.labels =
            find(&listing.arrays, &spec.data.labels_key, LABEL_KEYS).or_else(|| only_column(&listing));
    }
    Ok(listing)
}

/// The arrays of one file.
fn file(path: &Path, reader: &ArrayReader, budget: &MemoryBudget) -> Result<Listing> {
    let bytes = bytes_of(path, budget)?;
    let (arrays, texts) = match reader {
        ArrayReader::Single { open, .. } => {
            (vec![("features".to_owned(), Ok(open(bytes, budget)?))], ColumnTexts::default())
        }
        ArrayReader::Named { open, .. } => {
            let arrays = open(&bytes, budget)?;
            let named = arrays.names().into_iter().map(|name| {
                let array = arrays.array(&name).map_err(DataError::from);
                (name, array)
            });
            (named.collect(), arrays.texts())
        }
    };
    let ColumnTexts { features: feature_names, targets: target_names, .. } = texts;
    Ok(Listing { arrays, features: None, labels: None, feature_names, target_names })
}

/// Index of the array `key`, or of one with a conventional name.
fn find(arrays: &[(String, Result<RawArray>)], key: &str, usual: &[&str]) -> Option<usize> {
    let mut names = std::iter::once(key).chain(usual.iter().copied());
    names.find_map(|name| arrays.iter().position(|(other, array)| other == name && array.is_ok()))
}

/// Index of the largest array whose rows hold several numbers.
fn largest(arrays: &[(String, Result<RawArray>)]) -> Option<usize> {
    let size = |index: &usize| arrays[*index].1.as_ref().map_or(0, RawArray::size_bytes);
    let is_table = |index: &usize| {
        arrays[*index].1.as_ref().is_ok_and(|array| array.n_values() > 1 && !array.raw.is_text())
    };
    (0..arrays.len()).filter(is_table).max_by_key(size)
}

/// Index of the only array with one number per row of the features.
fn only_column(listing: &Listing) -> Option<usize> {
    let n_rows = listing.arrays[listing.features?].1.as_ref().ok()?.n_rows();
    let is_column = |index: &usize| {
        let array = listing.arrays[*index].1.as_ref();
        array.is_ok_and(|array| array.n_values() == 1 && array.n_rows() == n_rows)
    };
    let mut columns = (0..listing.arrays.len()).filter(is_column);
    columns.next().filter(|_| columns.next().is_none())
}
