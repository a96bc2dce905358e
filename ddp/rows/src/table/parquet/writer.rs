//! Writes `.parquet`: typed columns, missing values as null.

use std::fs::File;
use std::path::{Path, PathBuf};

use arrow_schema::DataType;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;

use crate::error::WriteError;
use crate::error::{Result, RowsError};
use crate::write::{Chunk, ColumnWriter, OutFiles, RecordBatches, Schema, Staging};

/// Bytes of rows in a row group, which readers decode as a unit.
const GROUP_BYTES: usize = 16 << 20;
/// Memory of the writer for a row group; texts and their dictionaries come on top of the rows.
const WRITER_BYTES: usize = 3 * GROUP_BYTES;

/// Opens the file of a writer.
pub fn create(schema: &Schema, files: &OutFiles, staging: &mut Staging) -> Result<Box<dyn ColumnWriter>> {
    Ok(Box::new(ParquetWriter::new(schema, &files.rows, staging)?))
}

/// Writes columns.
struct ParquetWriter {
    path: PathBuf,
    batches: RecordBatches,
    writer: ArrowWriter<File>,
}

impl ParquetWriter {
    fn new(schema: &Schema, path: &Path, staging: &mut Staging) -> Result<Self> {
        let batches = RecordBatches::new(schema);
        // Fast to decompress: rows that exceed the memory are decoded in every epoch.
        let mut properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_max_row_group_row_count(Some((GROUP_BYTES / schema.row_bytes()).clamp(1, 1 << 20)))
            // A dictionary of numbers takes far more memory than the numbers, and there may be thousands of columns.
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::PLAIN);
        for field in batches.columns().fields() {
            let is_text = matches!(
                field.data_type(),
                DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View | DataType::Dictionary(..)
            );
            if is_text {
                let name = ColumnPath::from(field.name().clone());
                properties = properties.set_column_dictionary_enabled(name, true);
            }
        }
        let file = staging.create(path)?;
        let writer = ArrowWriter::try_new(file, batches.columns().clone(), Some(properties.build()));
        let writer = writer.map_err(|error| failed(path, error))?;
        Ok(ParquetWriter { path: path.to_owned(), batches, writer })
    }
}

impl ColumnWriter for ParquetWriter {
    fn write(&mut self, rows: Chunk) -> Result<()> {
        let batch = self.batches.batch(rows);
        let written = self.writer.write(&batch).and_then(|()| {
            if self.writer.memory_size() > WRITER_BYTES { self.writer.flush() } else { Ok(()) }
        });
        written.map_err(|error| failed(&self.path, error))
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { path, mut writer, .. } = *self;
        writer.finish().map_err(|error| failed(&path, error))?;
        Ok(writer.inner().sync_all().map_err(|source| WriteError { path, source })?)
    }
}

fn failed(path: &Path, error: ParquetError) -> RowsError {
    let source = match error {
        ParquetError::External(error) => match error.downcast::<std::io::Error>() {
            Ok(error) => *error,
            Err(error) => std::io::Error::other(error),
        },
        error => std::io::Error::other(error),
    };
    WriteError { path: path.to_owned(), source }.into()
}
