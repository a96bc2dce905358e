//! Contract between [`open`](super::open), [`list`](super::list) and the readers of array formats.

use super::array::RawArray;
use super::bytes::{Bytes, MemoryBudget};
use crate::data::datasets::dataset::CategoryColumn;
use crate::data::error::Result;
use crate::data::source::SplitSide;

/// Name of the array of row weights in converted files.
pub(crate) const WEIGHTS_KEY: &str = "weights";

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
    pub(crate) features: Option<Vec<String>>,
    pub(crate) targets: Option<Vec<String>>,
    /// Labels of the class numbers.
    pub(crate) labels: Option<Vec<String>>,
    pub(crate) categories: Vec<CategoryColumn>,
}
