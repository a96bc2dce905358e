//! A block of predictions: consecutive rows of the output, column by column.

use std::sync::Arc;

use crate::values::texts::Texts;

/// A column of the output.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct OutputColumn {
    pub(crate) name: String,
    pub(crate) kind: ColumnKind,
}

/// Values of a column.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ColumnKind {
    /// Copied from the input as a string.
    Kept,
    /// Copied from the input with its type.
    #[cfg(feature = "parquet")]
    KeptAs(arrow_schema::DataType),
    /// A class, written as its label.
    Label(Arc<Labels>),
    /// 0 or 1, for whether a label applies.
    Binary,
    /// A predicted value.
    Value,
    /// A probability.
    Probability,
}

/// Labels of the classes as they appear in the data.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Labels {
    pub(crate) names: Vec<String>,
    /// The labels as integers, if all of them are.
    pub(crate) integers: Option<Vec<i64>>,
}

impl Labels {
    pub(crate) fn new(names: Vec<String>) -> Self {
        // "007" and "+1" stay strings: as integers they would be written differently.
        let integer = |name: &String| name.parse::<i64>().ok().filter(|number| number.to_string() == *name);
        let integers = names.iter().map(integer).collect();
        Labels { names, integers }
    }
}

/// Rows of the output.
#[derive(Debug, Default)]
pub(crate) struct Block {
    pub(crate) n_rows: usize,
    /// One per [`OutputColumn`], of the same kind.
    pub(crate) columns: Vec<Values>,
    /// Whether each row has predictions; empty if all rows have. Kept columns are never null.
    pub(crate) is_valid: Vec<bool>,
}

/// Values of a column in a block.
#[derive(Debug)]
pub(crate) enum Values {
    Texts(Texts),
    /// Values of [`ColumnKind::KeptAs`] in pieces of consecutive rows, the same for all such columns.
    #[cfg(feature = "parquet")]
    Arrays(Vec<arrow_array::ArrayRef>),
    /// Class indices.
    Labels(Vec<u32>),
    Binary(Vec<u8>),
    Numbers(Vec<f64>),
    Probabilities(Vec<f32>),
}

impl Block {
    pub(crate) fn is_valid(&self, row: usize) -> bool {
        self.is_valid.get(row).copied().unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_integers_only_if_they_read_back_alike() {
        let labels = |names: &[&str]| Labels::new(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(labels(&["-1", "1"]).integers, Some(vec![-1, 1]));
        assert_eq!(labels(&["01", "1"]).integers, None);
        assert_eq!(labels(&["1", "cat"]).integers, None);
    }
}
