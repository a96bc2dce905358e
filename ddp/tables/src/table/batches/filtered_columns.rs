//! Rows of record batches that a filter keeps: it sees the cells as text, as in files of text.

use std::path::Path;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array as _, ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::SchemaRef;
use arrow_select::filter::filter_record_batch;
use ddp::data::error::{DataError, Result};

use crate::formats::error::ColumnError;
use crate::table::batches::columns::{Kind, kind};
use crate::table::batches::text;
use crate::values::filter::Filter;
use crate::values::notation::Notation;

/// Fails for columns whose values are no cells.
///
/// # Errors
/// [`ColumnError::WrongType`]
pub(in crate::table) fn check(
    path: &Path,
    schema: &SchemaRef,
    columns: impl Iterator<Item = usize>,
) -> Result<()> {
    for column in columns {
        let field = schema.field(column);
        if !matches!(kind(field.data_type()), Kind::Number | Kind::Text) {
            return Err(DataError::from(ColumnError::WrongType {
                path: path.to_owned(),
                column: field.name().clone(),
                expected: "numbers, texts, truth values or dates for `data.filter`",
                got: field.data_type().to_string(),
                hint: "filter by another column",
            }));
        }
    }
    Ok(())
}

/// The values of a dictionary as text, and the value of each row.
struct Dictionary {
    texts: Vec<Vec<u8>>,
    keys: Vec<usize>,
}

impl Dictionary {
    fn new(array: &ArrayRef) -> Option<Self> {
        let of = array.as_any_dictionary_opt()?;
        let text = |value: usize| {
            let mut cell = Vec::new();
            text::put(of.values(), value, &mut cell);
            cell
        };
        Some(Dictionary { texts: (0..of.values().len()).map(text).collect(), keys: of.normalized_keys() })
    }
}

/// The rows of `batch` that `filter` keeps, with the columns `wanted`.
///
/// - `columns`: an array, or one value of all rows, per column of the filter
pub(in crate::table) fn kept(
    batch: &RecordBatch,
    columns: &[Result<&ArrayRef, &[u8]>],
    wanted: &[usize],
    filter: &Filter,
    notation: &Notation,
) -> RecordBatch {
    let mut cells: Vec<Vec<u8>> = vec![Vec::new(); columns.len()];
    let dictionaries: Vec<_> = columns.iter().map(|column| column.ok().and_then(Dictionary::new)).collect();
    let keeps = (0..batch.num_rows()).map(|row| {
        for ((cell, column), dictionary) in cells.iter_mut().zip(columns).zip(&dictionaries) {
            cell.clear();
            match (column, dictionary) {
                (Ok(array), Some(of)) if array.is_valid(row) => {
                    cell.extend_from_slice(&of.texts[of.keys[row]])
                }
                (Ok(array), None) => text::put(array, row, cell),
                (Ok(_), Some(_)) => {}
                (Err(value), _) => cell.extend_from_slice(value),
            }
        }
        Some(filter.keeps(&|column| &cells[column], notation).expect("these numbers have one notation"))
    });
    let keeps: BooleanArray = keeps.collect();
    let rows = batch.project(wanted).expect("columns of the batch");
    filter_record_batch(&rows, &keeps).expect("a truth value per row")
}
