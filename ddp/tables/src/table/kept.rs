//! Columns of the input that are passed through to the predictions: as text, or in the types of the file.

#[cfg(feature = "parquet")]
use arrow_array::ArrayRef;

use crate::values::texts::Texts;

/// Type of a kept column in a file that has types; without Parquet and Arrow there is none.
#[cfg(feature = "parquet")]
pub(crate) type KeptType = arrow_schema::DataType;
/// Type of a kept column in a file that has types; without Parquet and Arrow there is none.
#[cfg(not(feature = "parquet"))]
pub(crate) type KeptType = std::convert::Infallible;

/// Values of consecutive rows of a kept column.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeptValues {
    pub(crate) texts: Texts,
    /// Instead of texts: the values as the file has them, in pieces of consecutive rows. All columns have the same pieces.
    #[cfg(feature = "parquet")]
    pub(crate) arrays: Vec<ArrayRef>,
}

impl KeptValues {
    pub(crate) fn push(&mut self, text: &str) {
        self.texts.push(text);
    }

    /// Removes the values from row `first` on; those in the types of the file are removed as a whole.
    pub(crate) fn truncate(&mut self, first: usize) {
        self.texts.truncate(first);
        #[cfg(feature = "parquet")]
        if first == 0 {
            self.arrays.clear();
        }
    }

    /// Takes the values, and leaves none.
    pub(crate) fn take(&mut self) -> Self {
        std::mem::take(self)
    }
}
