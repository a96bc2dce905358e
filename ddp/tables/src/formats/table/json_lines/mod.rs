//! JSON lines: one object per line, whose keys are the names of columns, or one array of such objects. A key that a line lacks is a
//! missing value; a list of numbers is a column per element.

mod array;
mod lines;

use std::path::{Path, PathBuf};

use ddp::storage::user_file;

use self::lines::{Cells, Fault, Keys, Lines};
use crate::formats::error::{ColumnError, Result, RowsError};
use crate::formats::foreign::without_mark;
use crate::formats::table::source::{FileColumns, ReadOptions, Record, Source, TextSource};
use crate::values::notation::Notation;
use crate::values::number::DecimalMark;

/// Whether a text begins with an object, or with an array of objects.
pub(crate) fn has_signature(begin: &[u8]) -> bool {
    let text = without_mark(begin).trim_ascii_start();
    let objects = text.strip_prefix(b"[").map_or(text, <[u8]>::trim_ascii_start);
    let is_array = objects.len() < text.len();
    objects.strip_prefix(b"{").is_some_and(|rest| is_array || rest.trim_ascii_start().starts_with(b"\""))
}

/// Opens a file of objects: reads the keys of all lines; the lines are then read again as records.
pub fn open(path: &Path, options: &ReadOptions<'_>) -> Result<Source> {
    let file = user_file::open("data file", path)?;
    if !file.metadata().is_ok_and(|data| data.is_file()) {
        let (path, format) = (path.to_owned(), "JSON lines");
        let reason = "it is a pipe, but its lines are read twice".to_owned();
        return Err(RowsError::Malformed { path, format, reason, hint: "save it as a file first" });
    }
    let keys = Keys::from_file(path, options.dropped, options.memory_bytes)?;
    if keys.n_columns == 0 {
        return Err(RowsError::NoRows { path: path.to_owned() });
    }
    let lines = || Lines::open(path, options.memory_bytes);
    let are_dates = vec![false; keys.n_columns];
    let mut source = JsonSource {
        path: path.to_owned(),
        columns: FileColumns { names: keys.names(), are_dates, ..FileColumns::default() },
        notation: Notation::new(DecimalMark::Point, options.missing_values),
        cells: Cells::default(),
        lines: lines()?,
        keys,
    };
    source.find_dates()?;
    source.lines = lines()?;
    Ok(Source::Text(Box::new(source)))
}

/// The objects of one file.
struct JsonSource {
    path: PathBuf,
    lines: Lines,
    keys: Keys,
    columns: FileColumns,
    notation: Notation,
    cells: Cells,
}

impl JsonSource {
    /// Marks the columns whose first value is a date.
    fn find_dates(&mut self) -> Result<()> {
        let mut are_dates = vec![None; self.keys.n_columns];
        while are_dates.contains(&None) {
            let notation = self.notation.clone();
            let Some(record) = self.next(true)? else { break };
            for (is_date, cell) in are_dates.iter_mut().zip(record.cells()) {
                *is_date = is_date.or_else(|| notation.is_date(cell));
            }
        }
        self.columns.are_dates = are_dates.into_iter().map(|is_date| is_date == Some(true)).collect();
        Ok(())
    }
}

impl TextSource for JsonSource {
    fn columns(&self) -> &FileColumns {
        &self.columns
    }

    fn notation(&self) -> &Notation {
        &self.notation
    }

    fn fraction(&self) -> Option<f64> {
        self.lines.n_bytes.map(|n_bytes| self.lines.n_read() as f64 / n_bytes.max(1) as f64)
    }

    fn next(&mut self, may_be_bad: bool) -> Result<Option<Record<'_>>> {
        let (keys, cells, path) = (&self.keys, &mut self.cells, &self.path);
        let read = self.lines.next(|line, object| match keys.cells(&object, cells) {
            Ok(()) => Ok((line, false)),
            Err((_, Fault::Length { .. })) if may_be_bad => Ok((line, true)),
            Err((_, Fault::NewKey)) => Err(RowsError::Changed { path: path.clone() }),
            Err((key, Fault::Length { expected, got })) => Err(RowsError::from(ColumnError::ListLength {
                place: format!("data file `{}`, line {line}", path.display()),
                column: format!("column \"{key}\""),
                expected,
                got,
            })),
        })?;
        Ok(read.map(|(line, is_bad)| self.cells.record(line, is_bad)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_known_after_a_byte_order_mark_too() {
        for (text, is_json) in
            [("{\"a\":1}\n", true), (" [ {\"a\":1},", true), ("[1]", false), ("{a,b}\n", false)]
        {
            for text in [text.to_owned(), format!("\u{feff}{text}")] {
                assert_eq!(has_signature(text.as_bytes()), is_json, "{text:?}");
            }
        }
    }
}
