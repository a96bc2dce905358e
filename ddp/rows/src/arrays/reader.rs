//! Contract between [`open`](super::open), [`list`](super::list) and the readers of array formats.

use super::array::RawArray;
use super::bytes::{Bytes, MemoryBudget};
use crate::error::Result;
use crate::values::vocabulary::CategoryColumn;

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
