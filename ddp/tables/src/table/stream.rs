//! Rows of tables, read from the first to the last in blocks, whatever their number.

use std::path::{Path, PathBuf};

use ddp::data::error::{DataError, Result};

use crate::formats::error::{CsvError, RowsError};
use crate::formats::table::source::TableFormat;
use crate::shared_types::SharedTypes;
use crate::source::SourceSpec;
use crate::table::columns::{ColumnPlan, same_names};
use crate::table::kept::KeptType;
use crate::table::row_reader::{CommonMark, RowReader};
use crate::table::rows::TableRows;
use crate::table::shards::{Shards, shards};

/// Reads the rows of several files as one table.
pub(crate) struct TableStream {
    files: Vec<PathBuf>,
    types: SharedTypes,
    plan: ColumnPlan,
    kept_types: Vec<Option<KeptType>>,
    format: &'static TableFormat,
    /// Reader of the current file.
    reader: Option<RowReader>,
    mark: CommonMark,
    n_opened: usize,
    /// Whether the current file has yielded a row.
    has_rows: bool,
}

impl TableStream {
    /// Opens the first file.
    ///
    /// # Errors
    /// A [`DataError`](ddp::data::DataError) that names the file or the column.
    pub(crate) fn open(
        files: Vec<PathBuf>,
        format: &'static TableFormat,
        spec: &SourceSpec<'_>,
    ) -> Result<Self> {
        let Shards { files, types } = shards(files, format, spec);
        let mut mark = CommonMark::new(spec);
        let reader = mark.open(&files[0], format, &SourceSpec { types: Some(&types), ..*spec })?;
        let (plan, kept_types) = (reader.plan().clone(), reader.kept_types());
        Ok(TableStream {
            files,
            types,
            plan,
            kept_types,
            format,
            reader: Some(reader),
            mark,
            n_opened: 1,
            has_rows: false,
        })
    }

    /// Columns of the files and their roles.
    pub(crate) fn plan(&self) -> &ColumnPlan {
        &self.plan
    }

    /// The type that kept column `index` has in the files; `None` for text.
    pub(crate) fn kept_type(&self, index: usize) -> Option<&KeptType> {
        self.kept_types[index].as_ref()
    }

    /// Fails unless a further file has the same types of kept columns.
    fn check_kept_types(&self, path: &Path, types: &[Option<KeptType>]) -> Result<()> {
        let mut both = self.plan.kept.iter().zip(self.kept_types.iter().zip(types));
        let Some((column, (first, other))) = both.find(|(_, (first, other))| first != other) else {
            return Ok(());
        };
        let (names, word) = (self.plan.all_names(), |of: &Option<KeptType>| {
            of.as_ref().map_or_else(|| "text".to_owned(), ToString::to_string)
        });
        let difference = format!(
            "column \"{}\" is {} in one and {} in the other",
            names[*column],
            word(first),
            word(other)
        );
        Err(DataError::from(RowsError::ShardsDiffer {
            first: self.files[0].clone(),
            other: path.to_owned(),
            difference,
        }))
    }

    /// Skips up to `max_rows` rows, whose values are not looked at, and returns their number, which is smaller only at the end.
    ///
    /// # Errors
    /// A [`DataError`](ddp::data::DataError) that names the file.
    pub(crate) fn skip(&mut self, max_rows: usize, spec: &SourceSpec<'_>) -> Result<usize> {
        self.each_file(max_rows, spec, |reader, n_rows| reader.skip(n_rows))
    }

    /// Appends up to `max_rows` rows to `rows` and returns their number, which is smaller only at the end.
    ///
    /// # Errors
    /// A [`DataError`](ddp::data::DataError) that names the file, the row and the column.
    pub(crate) fn read(
        &mut self,
        rows: &mut TableRows,
        max_rows: usize,
        spec: &SourceSpec<'_>,
    ) -> Result<usize> {
        let n_read = self.each_file(max_rows, spec, |reader, n_rows| reader.read(rows, n_rows))?;
        if n_read < max_rows {
            rows.kinds.note(&self.plan, spec.source);
        }
        Ok(n_read)
    }

    /// Calls `take` with the reader of a file and the number of rows that are wanted, file after file.
    fn each_file(
        &mut self,
        max_rows: usize,
        spec: &SourceSpec<'_>,
        mut take: impl FnMut(&mut RowReader, usize) -> Result<usize>,
    ) -> Result<usize> {
        let mut n_read = 0;
        while n_read < max_rows {
            let Some(reader) = &mut self.reader else {
                let is_full = spec.filter.is_some_and(|filter| filter.is_full());
                let Some(path) = self.files.get(self.n_opened).filter(|_| !is_full) else { break };
                let spec = SourceSpec { types: Some(&self.types), ..*spec };
                let reader = self.mark.open(path, self.format, &spec)?;
                same_names(&self.files[0], &self.plan.names, path, &reader.plan().names)?;
                self.check_kept_types(path, &reader.kept_types())?;
                (self.reader, self.has_rows) = (Some(reader), false);
                self.n_opened += 1;
                continue;
            };
            match take(reader, max_rows - n_read)? {
                0 if !self.has_rows && spec.filter.is_none() => {
                    return Err(CsvError::NoRows { path: self.files[self.n_opened - 1].clone() }.into());
                }
                0 => self.reader = None,
                n => {
                    self.has_rows = true;
                    n_read += n;
                }
            }
        }
        Ok(n_read)
    }
}
