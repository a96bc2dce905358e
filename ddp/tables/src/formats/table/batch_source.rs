//! Files of record batches: their schema, and the batches of some of their columns.

use arrow_array::cast::AsArray as _;
use arrow_array::{Array, RecordBatch};
use arrow_schema::{DataType, SchemaRef};

use crate::formats::error::Result;

/// Bytes of an element while it is decoded: its value and its levels, twice while a buffer grows.
const ELEMENT_BYTES: u64 = 24;

/// The rows of a file in order; no batch is empty.
pub type Batches = Box<dyn Iterator<Item = Result<RecordBatch>> + Send>;

/// A file of record batches, whose rows can be read several times.
pub trait BatchSource: Send {
    /// The columns of the file.
    fn schema(&self) -> &SchemaRef;

    /// The length of the first list of a column; `None` if it has no list.
    fn first_list_len(&self, root: usize) -> Result<Option<usize>>;

    /// The rows with the columns of `selection`.
    ///
    /// # Errors
    /// [`ColumnError::ListLength`](crate::formats::error::ColumnError::ListLength) where a format knows the lengths of lists before it
    /// decodes them.
    fn read(&self, selection: &Selection) -> Result<Batches>;
}

/// Columns to read.
#[derive(Debug, Clone)]
pub struct Selection {
    /// Indices among the file's columns, ascending.
    pub roots: Vec<usize>,
    /// Columns of lists whose lengths are checked.
    pub lists: Vec<ListColumn>,
    /// Length that a list may have even if those of its column are shorter.
    pub max_len: usize,
    /// Most rows of a batch, where the format leaves a choice.
    pub batch_rows: usize,
}

/// A column of lists.
#[derive(Debug, Clone)]
pub struct ListColumn {
    /// Name of the column.
    pub name: String,
    /// Index among the file's columns.
    pub root: usize,
    /// Length of its lists.
    pub len: usize,
}

/// Elements of a list that take `memory_bytes` while they are decoded.
pub fn most_elements(memory_bytes: u64) -> usize {
    usize::try_from(memory_bytes / ELEMENT_BYTES).unwrap_or(usize::MAX)
}

/// The length of the first list of an array.
pub(super) fn list_len_in(lists: &dyn Array) -> Option<usize> {
    let first = (0..lists.len()).find(|&row| lists.is_valid(row))?;
    match lists.data_type() {
        DataType::List(_) => Some(lists.as_list::<i32>().value_length(first) as usize),
        DataType::LargeList(_) => Some(lists.as_list::<i64>().value_length(first) as usize),
        _ => None,
    }
}
