//! Rows of record batches that a filter keeps: it sees the cells as text, as in files of text.

use std::path::Path;

use arrow_array::cast::AsArray as _;
use arrow_array::{Array as _, ArrayRef, BooleanArray, RecordBatch};
use arrow_schema::{DataType, SchemaRef};
use arrow_select::filter::filter_record_batch;
use ddp::data::error::{DataError, Result};

use crate::formats::error::ColumnError;
use crate::formats::table::batch_source::BatchSource;
use crate::table::batches::arrays::{MAX_EXACT, keys, to_f64};
use crate::table::batches::columns::{Kind, first_list_len, kind};
use crate::table::batches::elements::{Element, element_of};
use crate::table::batches::text;
use crate::values::filter::{Cell, Filter};
use crate::values::notation::Notation;

/// Most elements of a list that serve as hints.
const MAX_SHOWN: usize = 20;

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

/// The elements of lists that are among the `columns` of a filter, with the place of their list among the columns of the file. For one that is
/// too far behind, all elements are there, as hints.
pub(in crate::table) fn elements(
    source: &dyn BatchSource,
    columns: &[String],
) -> Result<Vec<(usize, Element)>> {
    let schema = source.schema();
    let mut found = Vec::new();
    for name in columns.iter().filter(|name| schema.column_with_name(name).is_none()) {
        let Some((list, at)) = element_of(name) else { continue };
        let Some((root, field)) = schema.column_with_name(list) else { continue };
        if !matches!(kind(field.data_type()), Kind::List) {
            continue;
        }
        let len = first_list_len(source, root)?.unwrap_or(0);
        let shown = if at < len { at..at + 1 } else { 0..len.min(MAX_SHOWN) };
        found.extend(shown.map(|at| (root, Element { list: list.to_owned(), at, len })));
    }
    Ok(found)
}

/// The cells of a column.
enum Cells<'a> {
    /// One for all rows.
    Same(&'a [u8]),
    /// Numbers that f64 holds exactly.
    Numbers(&'a ArrayRef, Vec<f64>),
    /// The values of a dictionary as text, and the value of each row.
    Dictionary(Vec<Vec<u8>>, Vec<Option<usize>>),
    /// Each as text.
    Texts(&'a ArrayRef),
}

impl<'a> Cells<'a> {
    fn new(array: &'a ArrayRef, notation: &Notation) -> Self {
        if let Some(of) = array.as_any_dictionary_opt() {
            let text = |value: usize| {
                let mut cell = Vec::new();
                text::put(of.values(), value, &mut cell);
                cell
            };
            let mut of_rows = vec![None; array.len()];
            keys(array, |row, key| of_rows[row] = key);
            return Cells::Dictionary((0..of.values().len()).map(text).collect(), of_rows);
        }
        let of = array.data_type();
        // Singles are compared by their digits, as in files of text; and numbers may mark missing values.
        let is_exact = (of.is_integer() || *of == DataType::Float64) && !notation.has_marks();
        let numbers = is_exact.then(|| to_f64(array));
        match numbers
            .filter(|numbers| !of.is_integer() || numbers.iter().all(|value| value.abs() < MAX_EXACT))
        {
            Some(numbers) => Cells::Numbers(array, numbers),
            None => Cells::Texts(array),
        }
    }

    /// The cell of a row; `room` holds its text.
    fn get<'c>(&'c self, row: usize, room: &'c mut Vec<u8>) -> Cell<'c> {
        match self {
            Cells::Same(value) => Cell::Text(value),
            Cells::Numbers(array, numbers) if array.is_valid(row) && numbers[row].is_finite() => {
                Cell::Number(numbers[row])
            }
            Cells::Dictionary(texts, keys) => Cell::Text(keys[row].map_or(b"".as_slice(), |key| &texts[key])),
            Cells::Numbers(array, _) | Cells::Texts(array) => {
                room.clear();
                text::put(array, row, room);
                Cell::Text(room)
            }
        }
    }
}

/// The rows of `batch` that `filter` keeps, with the columns `wanted`.
///
/// - `columns`: an array, or one value of all rows, per column of the filter
pub(in crate::table) fn kept(
    batch: &RecordBatch,
    columns: &[Result<ArrayRef, &[u8]>],
    wanted: &[usize],
    filter: &Filter,
    notation: &Notation,
) -> RecordBatch {
    let columns: Vec<Cells<'_>> = columns
        .iter()
        .map(|column| match column {
            Ok(array) => Cells::new(array, notation),
            Err(value) => Cells::Same(value),
        })
        .collect();
    let mut rooms: Vec<Vec<u8>> = vec![Vec::new(); columns.len()];
    let keeps = (0..batch.num_rows()).map(|row| {
        let cells: Vec<Cell<'_>> =
            columns.iter().zip(&mut rooms).map(|(cells, room)| cells.get(row, room)).collect();
        Some(filter.keeps(&|column| cells[column], notation).expect("these numbers have one notation"))
    });
    let keeps: BooleanArray = keeps.collect();
    let rows = batch.project(wanted).expect("columns of the batch");
    filter_record_batch(&rows, &keeps).expect("a truth value per row")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::types::Int8Type;
    use arrow_array::{DictionaryArray, Int8Array, StringArray};

    use super::*;
    use crate::values::number::DecimalMark;

    #[test]
    fn a_dictionary_may_have_no_values() {
        let notation = Notation::new(DecimalMark::Point, &[]);
        for (values, texts) in [(vec![], ["", ""]), (vec!["a"], ["a", ""])] {
            let key = (!values.is_empty()).then_some(0);
            let keys = Int8Array::from(vec![key, None]);
            let values = Arc::new(StringArray::from(values));
            let array: ArrayRef = Arc::new(DictionaryArray::<Int8Type>::try_new(keys, values).unwrap());
            let cells = Cells::new(&array, &notation);
            for (row, text) in texts.into_iter().enumerate() {
                assert!(
                    matches!(cells.get(row, &mut Vec::new()), Cell::Text(cell) if cell == text.as_bytes())
                );
            }
        }
    }
}
