//! Columns of the rows that are written, and the limits of a format.

use ddp_kernels::DType;

use super::chunk::Chunk;
use super::encode::{encode, largest_code};
use crate::data::CategoryColumn;
use crate::data::error::{DataError, Result};

/// Columns of rows that are read from a source or written to files.
#[derive(Debug, Clone)]
pub(crate) struct Schema {
    pub(crate) source: String,
    pub(crate) features: Vec<String>,
    /// Number format of the features; f32 for tables.
    pub(crate) dtype: DType,
    /// Names of the targets; one if they are class indices.
    pub(crate) targets: Vec<String>,
    pub(crate) are_labels: bool,
    /// Name of the weights.
    pub(crate) weight: Option<String>,
    pub(crate) categories: Vec<CategoryColumn>,
}

/// Values that the files of a format can hold.
#[derive(Debug)]
pub(crate) struct Storage {
    /// Number formats of features.
    pub(crate) dtypes: &'static [DType],
    pub(crate) categories: CategoryStorage,
}

/// Representation of categorical columns in a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CategoryStorage {
    /// The format has no place for the values.
    None,
    /// Each cell holds its value as text.
    Text,
    /// Each cell holds the value's number; the header holds the values.
    Codes,
}

impl Schema {
    /// The same columns for files with the limits `storage`. `dtype` is the number format of the features; `None` keeps it,
    /// unless the format has only one. `title` and `out` name format and files in errors.
    ///
    /// # Errors
    /// [`DataError::OutFormat`] if the format cannot hold the columns.
    pub(crate) fn fit(
        mut self,
        storage: &Storage,
        dtype: Option<DType>,
        title: &str,
        out: &str,
    ) -> Result<Self> {
        let bad = |reason: String, hint: &str| {
            Err(DataError::OutFormat { out: out.to_owned(), reason, hint: hint.to_owned() })
        };
        self.dtype = match storage.dtypes {
            &[only] => dtype.unwrap_or(only),
            _ => dtype.unwrap_or(self.dtype),
        };
        if !storage.dtypes.contains(&self.dtype) {
            let reason = format!("{title} files can't hold features in {}", self.dtype);
            return bad(reason, "write to .safetensors, or use --dtype f32");
        }
        if storage.categories == CategoryStorage::None
            && let Some(column) = self.categories.first()
        {
            let name = column.vocabulary.name();
            let reason = format!("{title} files can't store the values of the categorical column \"{name}\"");
            return bad(reason, "write to .safetensors, .parquet or .csv");
        }
        let is_large = |column: &&CategoryColumn| column.vocabulary.n_codes() - 1 > largest_code(self.dtype);
        if storage.categories == CategoryStorage::Codes
            && let Some(column) = self.categories.iter().find(is_large)
        {
            let name = column.vocabulary.name();
            let reason =
                format!("the categorical column \"{name}\" has more values than {} can number", self.dtype);
            return bad(reason, "--dtype f32 holds all values");
        }
        Ok(self)
    }

    /// Bytes per row in files of arrays.
    pub(crate) fn row_bytes(&self) -> usize {
        let targets = if self.are_labels { 8 } else { 4 * self.targets.len() };
        let weight = if self.weight.is_some() { 4 } else { 0 };
        self.features.len() * self.dtype.size_bytes() + targets + weight
    }

    /// Shape of the targets of `n_rows` rows.
    pub(crate) fn target_shape(&self, n_rows: u64) -> Vec<u64> {
        match self.targets.len() {
            n if !self.are_labels && n > 1 => vec![n_rows, n as u64],
            _ => vec![n_rows],
        }
    }

    /// Shape of the features of `n_rows` rows.
    pub(crate) fn feature_shape(&self, n_rows: u64) -> Vec<u64> {
        vec![n_rows, self.features.len() as u64]
    }

    /// Number format of the targets.
    pub(crate) fn target_dtype(&self) -> DType {
        if self.are_labels { DType::I64 } else { DType::F32 }
    }

    /// Encodes the features of `rows` into `out`; the first row has the number `first`.
    ///
    /// # Errors
    /// [`DataError::DoesNotFit`]
    pub(crate) fn encode(&self, rows: &Chunk<'_>, first: usize, out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        encode(self.dtype, rows.features, out).map_err(|index| self.does_not_fit(rows, first, index))
    }

    /// The error for the value at `index` of the features.
    pub(crate) fn does_not_fit(&self, rows: &Chunk<'_>, first: usize, index: usize) -> DataError {
        let (row, column) = (first + index / self.features.len(), index % self.features.len());
        DataError::DoesNotFit {
            place: format!("`{}`, row {row}", self.source),
            column: self.features[column].clone(),
            value: rows.features[index],
            dtype: self.dtype.to_string(),
        }
    }
}
