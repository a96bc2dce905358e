//! Contract of the readers of array formats; conventional names of arrays; files that hold training and test rows side by side, as
//! MNIST's four files in a folder, and npz files with `x_train` and `x_test`.

use std::path::{Path, PathBuf};

use ddp::data::vocabulary::CategoryColumn;

use crate::formats::arrays::array::RawArray;
use crate::formats::arrays::bytes::{Bytes, MemoryBudget, bytes_of};
use crate::formats::compression::Compression;
use crate::formats::error::Result;

/// Name of the array of row weights in converted files.
pub const WEIGHTS_KEY: &str = "weights";

/// Rows of files, or of a built-in set, that hold rows for training and for evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SplitSide {
    /// Rows to train on.
    Train,
    /// Rows to evaluate on.
    Test,
}

/// The reading half of a format of arrays.
#[derive(Debug)]
pub enum ArrayReader {
    /// A file is one array; labels and weights are files of their own.
    Single {
        /// Opens the array in the bytes of a file.
        open: fn(Bytes, &MemoryBudget) -> Result<RawArray>,
        /// Conventional name of the file of labels for a file of features, if there is one.
        labels_name: fn(&str) -> Option<String>,
        /// Training or test rows, by the conventional name of a file.
        side: fn(&str) -> Option<SplitSide>,
    },
    /// A file holds named arrays.
    Named {
        /// Opens the arrays in the bytes of a file.
        open: for<'a> fn(&'a Bytes, &'a MemoryBudget) -> Result<Box<dyn NamedArrays + 'a>>,
        /// Whether arrays may be compressed, so that reading them takes memory.
        is_archive: bool,
    },
}

/// The arrays of one file, by name.
pub trait NamedArrays {
    /// Names in the order of the file.
    fn names(&self) -> Vec<String>;

    /// The array `name`, one of [`NamedArrays::names`].
    fn array(&self, name: &str) -> Result<RawArray>;

    /// Descriptions of columns that the file holds.
    fn texts(&self) -> ColumnTexts {
        ColumnTexts::default()
    }
}

/// Descriptions of columns in a converted file.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ColumnTexts {
    /// Names of the feature columns.
    pub features: Option<Vec<String>>,
    /// Names of the target columns.
    pub targets: Option<Vec<String>>,
    /// Labels of the class numbers.
    pub labels: Option<Vec<String>>,
    /// Columns of numbers that stand for texts.
    pub categories: Vec<CategoryColumn>,
}

/// Conventional names of features.
pub const FEATURE_KEYS: &[&str] =
    &["features", "x", "X", "x_train", "X_train", "train_features", "data", "images", "embeddings"];
/// Conventional names of labels.
pub const LABEL_KEYS: &[&str] =
    &["labels", "y", "Y", "y_train", "Y_train", "train_labels", "targets", "label", "target"];

/// The name of the array of test rows for that of training rows; "" if there is no usual one.
pub fn test_key(key: &str) -> String {
    if key.contains("train") { key.replace("train", "test") } else { String::new() }
}

/// The files with rows for this side of the split, among the files of a folder or pattern; files of labels are left out.
pub fn files_on_side(files: Vec<PathBuf>, reader: &ArrayReader, side: SplitSide) -> Vec<PathBuf> {
    let ArrayReader::Single { labels_name, side: side_of, .. } = reader else { return files };
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    let labels: Vec<PathBuf> =
        files.iter().filter_map(|path| Some(path.with_file_name(labels_name(&name(path)?)?))).collect();
    // A file may lie next to its compressed form.
    let is_copy = |path: &PathBuf| {
        let plain = path.with_extension("");
        path.extension().is_some_and(|ending| ending == "gz") && files.contains(&plain)
    };
    let rows: Vec<PathBuf> =
        files.iter().filter(|path| !labels.contains(path) && !is_copy(path)).cloned().collect();
    let sides: Vec<Option<SplitSide>> = rows.iter().map(|path| side_of(&name(path)?)).collect();
    let has_both = sides.contains(&Some(SplitSide::Train)) && sides.contains(&Some(SplitSide::Test));
    if !has_both {
        return if rows.is_empty() { files } else { rows };
    }
    let of_side = rows.into_iter().zip(sides).filter(|(_, of)| of.is_none_or(|of| of == side));
    of_side.map(|(path, _)| path).collect()
}

/// Whether the files hold test rows next to the training rows.
pub fn has_test_rows(all: &[PathBuf], reader: &ArrayReader) -> Result<bool> {
    match reader {
        ArrayReader::Single { .. } => {
            let (train, test) = (
                files_on_side(all.to_vec(), reader, SplitSide::Train),
                files_on_side(all.to_vec(), reader, SplitSide::Test),
            );
            Ok(train != test)
        }
        ArrayReader::Named { open, .. } => {
            let [path] = all else { return Ok(false) };
            // Only the names are read, without unpacking anything.
            if Compression::from_file(path) != Compression::None {
                return Ok(false);
            }
            let budget = MemoryBudget::new(0);
            let bytes = bytes_of(path, &budget)?;
            let names = open(&bytes, &budget)?.names();
            let has_test = |usual: &[&str]| usual.iter().any(|key| names.contains(&test_key(key)));
            let has = |usual: &[&str]| usual.iter().any(|key| names.iter().any(|name| name == key));
            Ok([FEATURE_KEYS, LABEL_KEYS].iter().all(|usual| has(usual) && has_test(usual)))
        }
    }
}
