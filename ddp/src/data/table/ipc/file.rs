//! Opens one file or stream of record batches.

use std::fs::File;
use std::io::{BufReader, Read as _, Seek as _};
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_ipc::reader::{FileReader, StreamReader};
use arrow_schema::{ArrowError, SchemaRef};
use ddp_comm::failure::catch_panic;

use crate::data::DataError;
use crate::data::error::Result;
use crate::storage::user_file;

/// The record batches of a file, in order.
pub(in crate::data::table) enum Batches {
    File(FileReader<BufReader<File>>),
    Stream(StreamReader<BufReader<File>>),
}

/// Opens a file; `columns` are the indices of those that are read, `None` for all.
pub(in crate::data::table) fn batches(path: &Path, columns: Option<Vec<usize>>) -> Result<Batches> {
    let unreadable = |source| DataError::Unreadable { path: path.to_owned(), source };
    let mut file = user_file::open("data file", path)?;
    let mut begin = [0; 6];
    let is_file = file.read_exact(&mut begin).is_ok() && begin == *b"ARROW1";
    file.rewind().map_err(unreadable)?;
    let file = BufReader::with_capacity(1 << 18, file);
    guarded(path, || {
        Ok(if is_file {
            Batches::File(FileReader::try_new(file, columns)?)
        } else {
            Batches::Stream(StreamReader::try_new(file, columns)?)
        })
    })
}

impl Batches {
    /// Columns of the batches.
    pub(in crate::data::table) fn schema(&self) -> SchemaRef {
        match self {
            Batches::File(reader) => reader.schema(),
            Batches::Stream(reader) => reader.schema(),
        }
    }

    /// The next batch; `None` at the end.
    pub(in crate::data::table) fn next(&mut self, path: &Path) -> Result<Option<RecordBatch>> {
        guarded(path, || match self {
            Batches::File(reader) => reader.next().transpose(),
            Batches::Stream(reader) => reader.next().transpose(),
        })
    }
}

/// Runs `call` and converts errors and panics of the library, which damaged content causes, to errors for the user.
fn guarded<T>(path: &Path, call: impl FnOnce() -> Result<T, ArrowError>) -> Result<T> {
    let reason = match catch_panic(call) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(error)) => error.to_string(),
        Err(_) => "its content can't be decoded".to_owned(),
    };
    let hint = "is the file cut off, damaged or still being written?";
    Err(DataError::Malformed { path: path.to_owned(), format: "Arrow IPC", reason, hint })
}
