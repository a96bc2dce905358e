//! All arrays in files, whether they can be trained on or not.

use std::path::{Path, PathBuf};

use super::array::RawArray;
use super::bytes::Room;
use super::open::{
    FEATURE_KEYS, FEATURES_TEXT, LABEL_KEYS, RawFormat, TARGETS_TEXT, bytes_of, labels_beside,
};
use super::safetensors::Header;
use super::{idx, npy, npz};
use crate::data::error::{DataError, Result};
use crate::data::source::SourceSpec;

/// The arrays in files of one format, each over all files.
pub(crate) struct Listing {
    /// By name; an array that is of no use says why.
    pub(crate) arrays: Vec<(String, Result<RawArray>)>,
    /// Index of the features, if it is clear which they are.
    pub(crate) features: Option<usize>,
    /// Index of the labels, if it is clear which they are.
    pub(crate) labels: Option<usize>,
    /// Names of the feature columns, where the file knows them.
    pub(crate) feature_names: Option<Vec<String>>,
    /// Names of the target columns, where the file knows them.
    pub(crate) target_names: Option<Vec<String>>,
}

/// Lists the arrays in `files`.
///
/// # Errors
/// What is wrong with a file, or between files.
pub(crate) fn list(files: &[PathBuf], format: RawFormat, spec: &SourceSpec<'_>) -> Result<Listing> {
    let room = &Room::new(spec.memory_bytes);
    let first = file(&files[0], format, room)?;
    let mut listing = Listing { arrays: Vec::new(), features: None, labels: None, ..first };
    let mut others = Vec::new();
    for path in &files[1..] {
        others.push((path, file(path, format, room)?.arrays));
    }
    for (name, array) in first.arrays {
        let mut shards = vec![array];
        for (path, arrays) in &mut others {
            let Some(at) = arrays.iter().position(|(other, _)| *other == name) else {
                let (first, other) = (files[0].clone(), (*path).clone());
                let difference = format!("only one has an array \"{name}\"");
                return Err(DataError::ShardsDiffer { first, other, difference });
            };
            shards.push(arrays.swap_remove(at).1);
        }
        let whole = shards.into_iter().collect::<Result<Vec<_>>>().and_then(RawArray::concat);
        listing.arrays.push((name, whole));
    }
    listing.features =
        find(&listing.arrays, &spec.data.features_key, FEATURE_KEYS).or_else(|| largest(&listing.arrays));
    if spec.labels.is_some() || matches!(format, RawFormat::Npy | RawFormat::Idx) {
        match labels_beside(files, format, spec, room) {
            Ok(labels) => {
                listing.labels = Some(listing.arrays.len());
                listing.arrays.push(("labels".to_owned(), Ok(labels)));
            }
            Err(DataError::NoLabels { .. }) => {}
            Err(error) => return Err(error),
        }
    } else {
        listing.labels =
            find(&listing.arrays, &spec.data.labels_key, LABEL_KEYS).or_else(|| only_column(&listing));
    }
    Ok(listing)
}

/// The arrays of one file.
fn file(path: &Path, format: RawFormat, room: &Room) -> Result<Listing> {
    let bytes = bytes_of(path, room)?;
    let end = bytes.len();
    let mut texts = Default::default();
    let arrays = match format {
        RawFormat::Npy => vec![("features".to_owned(), Ok(npy::array(bytes, 0, end)?))],
        RawFormat::Idx => vec![("features".to_owned(), Ok(idx::array(bytes)?))],
        RawFormat::Npz => {
            let array = |name: String| {
                let array = npz::array(&bytes, &name, room);
                (name, array)
            };
            npz::names(&bytes)?.into_iter().map(array).collect()
        }
        RawFormat::Safetensors => {
            let header = Header::read(&bytes)?;
            texts = header.texts();
            let array = |name: String| {
                let array = header.array(&bytes, &name);
                (name, array)
            };
            header.names().into_iter().map(array).collect()
        }
    };
    let names = |key: &str| texts.get(key).and_then(|text| serde_json::from_str(text).ok());
    let (feature_names, target_names) = (names(FEATURES_TEXT), names(TARGETS_TEXT));
    Ok(Listing { arrays, features: None, labels: None, feature_names, target_names })
}

/// The array `key`, or one of the usual names.
fn find(arrays: &[(String, Result<RawArray>)], key: &str, usual: &[&str]) -> Option<usize> {
    let mut names = std::iter::once(key).chain(usual.iter().copied());
    names.find_map(|name| arrays.iter().position(|(other, array)| other == name && array.is_ok()))
}

/// The array of the most bytes that has rows of several numbers.
fn largest(arrays: &[(String, Result<RawArray>)]) -> Option<usize> {
    let size = |index: &usize| arrays[*index].1.as_ref().map_or(0, RawArray::size_bytes);
    let is_table = |index: &usize| arrays[*index].1.as_ref().is_ok_and(|array| array.row_len() > 1);
    (0..arrays.len()).filter(is_table).max_by_key(size)
}

/// The only array with a number for each row of the features.
fn only_column(listing: &Listing) -> Option<usize> {
    let n_rows = listing.arrays[listing.features?].1.as_ref().ok()?.n_rows();
    let is_column = |index: &usize| {
        let array = listing.arrays[*index].1.as_ref();
        array.is_ok_and(|array| array.row_len() == 1 && array.n_rows() == n_rows)
    };
    let mut columns = (0..listing.arrays.len()).filter(is_column);
    columns.next().filter(|_| columns.next().is_none())
}
