//! Reads the rows of a Parquet file in batches, once its lists have the expected lengths.

use std::ops::Range;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;

use super::file::{ParquetFile, guarded, malformed};
use super::lists::{self, Probe};
use crate::error::{Result, RowsError};
use crate::table::batch_source::{BatchSource, Batches, Selection, list_len_in};
use crate::table::source::{ReadOptions, Source};

/// Opens a file and reads its footer.
pub fn open(path: &Path, _: &ReadOptions<'_>) -> Result<Source> {
    Ok(Source::Batches(Box::new(ParquetFile::open(path)?)))
}

impl ParquetFile {
    /// The rows of the row groups `groups` with the columns of `selection`.
    ///
    /// # Errors
    /// [`ColumnError::ListLength`](crate::error::ColumnError::ListLength), before a list is decoded.
    pub fn read_groups(&self, selection: &Selection, groups: Range<usize>) -> Result<Batches> {
        lists::check(self, &selection.lists, groups.clone(), selection.max_len)?;
        let row = self.first_row(groups.start);
        let end = self.first_row(groups.end);
        let reader = self.batches(groups, &selection.roots, selection.batch_rows)?;
        Ok(Box::new(Rows { path: self.path.clone(), reader, row, end }))
    }
}

impl BatchSource for ParquetFile {
    fn schema(&self) -> &SchemaRef {
        self.metadata.schema()
    }

    fn first_list_len(&self, root: usize) -> Result<Option<usize>> {
        let n_rows = match lists::probe(self, root)? {
            Probe::TooLong(len) => return Ok(Some(len)),
            Probe::Rows(n_rows) => n_rows,
        };
        let mut batches = self.batches(0..self.group_rows.len(), &[root], n_rows)?;
        match guarded(&self.path, || batches.next().transpose())? {
            None => Err(RowsError::NoRows { path: self.path.clone() }),
            Some(batch) => Ok(list_len_in(batch.column(0))),
        }
    }

    fn read(&self, selection: &Selection) -> Result<Batches> {
        self.read_groups(selection, 0..self.group_rows.len())
    }
}

/// Rows that are decoded in batches.
struct Rows {
    path: PathBuf,
    reader: ParquetRecordBatchReader,
    /// Number of the next row in the file.
    row: usize,
    /// End of the rows according to the footer.
    end: usize,
}

impl Iterator for Rows {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        let Self { path, reader, row, end } = self;
        match guarded(path, || reader.next().transpose()) {
            Ok(Some(batch)) => {
                *row += batch.num_rows();
                Some(Ok(batch))
            }
            Ok(None) if row == end => None,
            Ok(None) => {
                let reason = format!("its rows end at row {row}, but its footer declares {end}");
                Some(Err(malformed(path, reason)))
            }
            Err(error) => Some(Err(error)),
        }
    }
}
