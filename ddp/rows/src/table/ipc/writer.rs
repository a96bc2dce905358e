//! Writes `.arrow` and `.feather`, compressed by lz4 as pandas does.

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use arrow_ipc::CompressionType;
use arrow_ipc::writer::{FileWriter, IpcWriteOptions};
use arrow_schema::ArrowError;

use crate::error::WriteError;
use crate::error::{Result, RowsError};
use crate::write::{Chunk, ColumnWriter, OutFiles, RecordBatches, Schema, Staging};

/// Opens the file of a writer.
pub fn create(schema: &Schema, files: &OutFiles, staging: &mut Staging) -> Result<Box<dyn ColumnWriter>> {
    let path = files.rows.clone();
    let batches = RecordBatches::new(schema);
    let file = BufWriter::with_capacity(1 << 18, staging.create(&path)?);
    let options = IpcWriteOptions::default().try_with_compression(Some(CompressionType::LZ4_FRAME));
    let writer =
        options.and_then(|options| FileWriter::try_new_with_options(file, batches.columns(), options));
    let writer = writer.map_err(|error| failed(&path, error))?;
    Ok(Box::new(IpcWriter { path, batches, writer }))
}

/// Writes record batches.
struct IpcWriter {
    path: PathBuf,
    batches: RecordBatches,
    writer: FileWriter<BufWriter<File>>,
}

impl ColumnWriter for IpcWriter {
    fn write(&mut self, rows: Chunk) -> Result<()> {
        let batch = self.batches.batch(rows);
        self.writer.write(&batch).map_err(|error| failed(&self.path, error))
    }

    fn finish(self: Box<Self>) -> Result<()> {
        let Self { path, writer, .. } = *self;
        let file = writer.into_inner().map_err(|error| failed(&path, error))?;
        let end = || file.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all();
        Ok(end().map_err(|source| WriteError { path: path.clone(), source })?)
    }
}

fn failed(path: &Path, error: ArrowError) -> RowsError {
    let source = match error {
        ArrowError::IoError(_, source) => source,
        error => std::io::Error::other(error),
    };
    WriteError { path: path.to_owned(), source }.into()
}
