//! Parquet: columns in row groups.
//!
//! Source: <https://parquet.apache.org/docs/file-format/>; decoded by the crate `parquet`.

mod thrift;
mod page_flags;
mod bounds;
mod embedded;
mod file;
mod lists;
mod side_by_side;
mod units;
#[cfg(test)]
mod bounds_tests;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_schema::{DataType, SchemaRef};
pub use bounds::malformed;
use ddp::data::parallel;
use ddp::storage::write_error::WriteError;
pub use file::ParquetFile;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReader;
use parquet::basic::{Compression, Encoding};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

use self::file::{PageFile, guarded};
use self::lists::Probe;
use crate::formats::error::{Result, RowsError};
use crate::formats::table::batch_source::{BatchSource, Batches, Selection, list_len_in};
use crate::formats::table::plain::PlainTypes;
use crate::formats::table::source::{ReadOptions, Source};
use crate::formats::write::{Chunk, RecordBatches, Schema, Staging};

/// Reads the rows of a Parquet file in batches, once its lists have the expected lengths.
///
/// Opens a file and reads its footer.
pub fn open(path: &Path, options: &ReadOptions<'_>) -> Result<Source> {
    Ok(Source::Batches(Box::new(ParquetFile::open(path, options)?)))
}

impl ParquetFile {
    /// The rows of the row groups `groups` with the columns of `selection`.
    ///
    /// # Errors
    /// [`ColumnError::ListLength`](crate::formats::error::ColumnError::ListLength), before a list is decoded.
    pub fn read_groups(&self, selection: &Selection, groups: Range<usize>) -> Result<Batches> {
        lists::check(self, &selection.lists, groups.clone(), selection.max_len)?;
        Ok(Box::new(self.rows(groups, &selection.roots, selection.batch_rows)?))
    }

    fn rows(&self, groups: Range<usize>, roots: &[usize], batch_rows: usize) -> Result<Rows> {
        let (row, end) = (self.first_row(groups.start), self.first_row(groups.end));
        let pages = self.pages()?;
        let reader = self.batches(pages.clone(), groups.clone(), roots, batch_rows)?;
        let (file, plain, leaves) = (self.clone(), self.plain.of(roots), self.leaves(roots));
        Ok(Rows { file, reader, plain, row, end, batch_rows, pages, leaves, unchecked: groups, checked: row })
    }
}

impl BatchSource for ParquetFile {
    fn schema(&self) -> &SchemaRef {
        self.plain.schema()
    }

    fn first_list_len(&self, root: usize) -> Result<Option<usize>> {
        if self.n_rows() == 0 {
            return Err(RowsError::NoRows { path: self.path.clone() });
        }
        // The first rows nearly always have one.
        for is_first in [true, false] {
            let n_rows = match lists::probe(self, root, is_first)? {
                Probe::TooLong(len) => return Ok(Some(len)),
                Probe::Rows(n_rows) => n_rows,
            };
            let n_batches = if is_first { 1 } else { usize::MAX };
            for batch in self.rows(0..self.group_rows.len(), &[root], n_rows)?.take(n_batches) {
                if let Some(len) = list_len_in(batch?.column(0)) {
                    return Ok(Some(len));
                }
            }
        }
        Ok(None)
    }

    fn read(&self, selection: &Selection) -> Result<Batches> {
        let (n_groups, n_threads) = (self.group_rows.len(), parallel::n_threads());
        if n_threads < 2 || selection.roots.is_empty() || self.n_rows() <= selection.batch_rows {
            return self.read_groups(selection, 0..n_groups);
        }
        lists::check(self, &selection.lists, 0..n_groups, selection.max_len)?;
        side_by_side::decode(self, selection, n_threads)
    }
}

/// Rows that are decoded in batches.
struct Rows {
    file: ParquetFile,
    reader: ParquetRecordBatchReader,
    plain: PlainTypes,
    /// Number of the next row in the file.
    row: usize,
    /// End of the rows according to the footer.
    end: usize,
    /// Most rows of a batch.
    batch_rows: usize,
    /// The pages that are decoded, those of `leaves`.
    pages: PageFile,
    leaves: Vec<usize>,
    /// Row groups whose pages are still to be checked, and the number of the first row that none of the others has.
    unchecked: Range<usize>,
    checked: usize,
}

impl Rows {
    /// Checks the pages of the row groups that the next batch may need, shortly before they are read.
    fn check_pages(&mut self) -> Result<()> {
        while self.checked < self.row.saturating_add(self.batch_rows) {
            let Some(group) = self.unchecked.next() else { break };
            let Self { file, pages, batch_rows, .. } = self;
            self.leaves.iter().try_for_each(|&leaf| file.check_pages(pages, group, leaf, *batch_rows))?;
            self.checked += file.group_rows[group];
        }
        Ok(())
    }
}

impl Iterator for Rows {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Err(error) = self.check_pages() {
            return Some(Err(error));
        }
        let Self { file: ParquetFile { path, .. }, reader, plain, row, end, .. } = self;
        match guarded(path, || reader.next().transpose()?.map(|batch| plain.convert(batch)).transpose()) {
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

/// Bytes of rows in a row group, which readers decode as a unit.
const GROUP_BYTES: usize = 16 << 20;
/// Rows in a row group.
pub(crate) const MAX_GROUP_ROWS: usize = 1 << 20;
/// Memory of the writer for a row group; texts and their dictionaries come on top of the rows.
const WRITER_BYTES: usize = 3 * GROUP_BYTES;

/// Writes typed columns to a file, missing values as null.
pub struct ParquetWriter {
    batches: RecordBatches,
    file: BatchFile,
}

impl ParquetWriter {
    /// Creates the file `path` for rows of `schema`.
    ///
    /// # Errors
    /// [`RowsError::Write`]
    pub fn create(schema: &Schema, path: &Path, staging: &mut Staging) -> Result<Self> {
        Self::with_groups(schema, path, staging, MAX_GROUP_ROWS)
    }

    /// Creates the file as [`ParquetWriter::create`], with at most `max_rows` rows in a row group.
    ///
    /// # Errors
    /// [`RowsError::Write`]
    pub(crate) fn with_groups(
        schema: &Schema,
        path: &Path,
        staging: &mut Staging,
        max_rows: usize,
    ) -> Result<Self> {
        let batches = RecordBatches::new(schema);
        let group_rows = (GROUP_BYTES / schema.row_bytes()).clamp(1, max_rows);
        let file = BatchFile::new(path, staging.create(path)?, batches.columns(), group_rows)?;
        Ok(ParquetWriter { batches, file })
    }

    /// Appends rows.
    ///
    /// # Errors
    /// [`RowsError::Write`]
    pub fn write(&mut self, rows: Chunk) -> Result<()> {
        self.file.write(&self.batches.batch(rows))?;
        if self.file.writer.memory_size() > WRITER_BYTES {
            self.file.end_group()?;
        }
        Ok(())
    }

    /// Completes the file on the disk; it keeps its temporary name.
    ///
    /// # Errors
    /// [`RowsError::Write`]
    pub fn finish(mut self) -> Result<()> {
        Ok(self.file.finish()?)
    }
}

/// A file of record batches that is being written.
pub(crate) struct BatchFile {
    path: PathBuf,
    /// Its columns, with types that Parquet has.
    columns: SchemaRef,
    writer: ArrowWriter<File>,
}

impl BatchFile {
    /// Starts the file `path` of row groups of at most `group_rows` rows.
    pub(crate) fn new(
        path: &Path,
        file: File,
        columns: &SchemaRef,
        group_rows: usize,
    ) -> Result<Self, WriteError> {
        // Fast to decompress: rows that exceed the memory are decoded in every epoch.
        let columns = &units::schema(columns);
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some(group_rows))
            // A dictionary of numbers takes far more memory than the numbers, and there may be thousands of columns.
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::PLAIN);
        for field in columns.fields() {
            let is_text = matches!(
                field.data_type(),
                DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(..)
            );
            if is_text {
                let name = ColumnPath::from(field.name().clone());
                properties = properties.set_column_dictionary_enabled(name, true);
            }
        }
        let writer = ArrowWriter::try_new(file, columns.clone(), Some(properties.build()));
        let writer = writer.map_err(|error| write_error(path, error))?;
        Ok(BatchFile { path: path.to_owned(), columns: columns.clone(), writer })
    }

    pub(crate) fn write(&mut self, batch: &RecordBatch) -> Result<(), WriteError> {
        let batch = units::batch(batch, &self.columns);
        self.writer.write(&batch).map_err(|error| write_error(&self.path, error))
    }

    /// Ends the row group of the batches so far.
    pub(crate) fn end_group(&mut self) -> Result<(), WriteError> {
        self.writer.flush().map_err(|error| write_error(&self.path, error))
    }

    /// Completes the file on the disk.
    pub(crate) fn finish(&mut self) -> Result<(), WriteError> {
        self.writer.finish().map_err(|error| write_error(&self.path, error))?;
        self.writer.inner().sync_all().map_err(|source| WriteError { path: self.path.clone(), source })
    }
}

pub(crate) fn write_error(path: &Path, error: ParquetError) -> WriteError {
    let source = match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => *error,
            Err(error) => std::io::Error::other(error),
        },
        error => std::io::Error::other(error),
    };
    WriteError { path: path.to_owned(), source }
}
