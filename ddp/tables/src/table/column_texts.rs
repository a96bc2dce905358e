//! One column of a table as text, read from the first row to the last in blocks.

use std::path::{Path, PathBuf};

use ddp::data::error::{DataError, Result};

use crate::error::TableError;
use crate::formats::error::CellProblem;
use crate::formats::table::source::TableFormat;
use crate::source::{KnownFeatures, SourceSpec, ToPredict};
use crate::table::cell_reader::CellReader;
use crate::table::filtered::filter_of;
use crate::table::row_reader::CommonMark;
use crate::table::rows::TableRows;
use crate::table::shards::{Shards, shards};
use crate::values::number::DecimalMark;

/// Rows that are read at a time.
const BLOCK_ROWS: usize = 4096;

/// Calls `take` with the text of `column` in each row of `files`, in order and without white space around it, and the decimal mark of the
/// file.
///
/// # Errors
/// [`DataError`] if a file cannot be read; [`TableError::SplitCell`], with file and line, for a problem that `take` returns.
pub(crate) fn for_each_text(
    files: &[PathBuf],
    format: &TableFormat,
    spec: &SourceSpec<'_>,
    column: &str,
    mut take: impl FnMut(&str, DecimalMark) -> Result<(), CellProblem>,
) -> Result<()> {
    let kept = [column.to_owned()];
    let filter = filter_of(spec)?;
    let spec = SourceSpec {
        features: Some(KnownFeatures::from_shards(&[], spec.source)),
        to_predict: Some(ToPredict {
            kept: &kept,
            skips_bad_rows: false,
            only_kept: true,
            keeps_types: false,
        }),
        filter: filter.as_ref(),
        ..*spec
    };
    let Shards { files, types } = shards(files.to_vec(), format, &spec);
    let spec = SourceSpec { types: Some(&types), ..spec };
    filter.iter().for_each(|filter| _ = filter.take_counts());
    let mut mark = CommonMark::new(&spec);
    for path in &files {
        let mut reader = mark.open(path, format, &spec)?;
        let mut rows = TableRows::new(reader.plan(), &spec);
        let mut first = 0;
        while reader.read(&mut rows, BLOCK_ROWS)? > 0 {
            for row in 0..rows.n_rows {
                if let Err(problem) = take(rows.kept[0].texts.get(row).trim(), reader.decimal()) {
                    let place = place(path, format, &spec, first + row)?;
                    return Err(DataError::from(TableError::SplitCell {
                        place,
                        column: column.to_owned(),
                        problem,
                    }));
                }
            }
            first += rows.n_rows;
            rows.clear();
        }
    }
    Ok(())
}

/// The place of row `row` of a file, from 0: its line in a text.
fn place(path: &Path, format: &TableFormat, spec: &SourceSpec<'_>, row: usize) -> Result<String> {
    // It is read once more.
    spec.filter.iter().for_each(|filter| _ = filter.take_counts());
    let mut cells = CellReader::open(path, format, spec)?;
    for _ in 0..row {
        cells.record()?;
    }
    let unit = if cells.types().is_some() { "row" } else { "line" };
    let line = cells.record()?.map_or(row as u64, |record| record.line);
    Ok(format!("data file `{}`, {unit} {line}", path.display()))
}
