//! Reads the rows of a file of record batches into a table.

use std::path::Path;

use arrow_array::RecordBatch;
use arrow_schema::DataType;

use super::file::{Batches, batches};
use crate::data::error::Result;
use crate::data::source::SourceSpec;
use crate::data::table::columns::ColumnPlan;
use crate::data::table::inferred::Destination;
use crate::data::table::parquet::{ArrowCells, BatchChunks, BatchRows, Columns, ListColumn, list_len_in};
use crate::data::table::reader::{CellReader, ChunkReader, TableReader};
use crate::data::table::rows::TableRows;

/// Opens a file to read its rows.
pub(crate) fn open(path: &Path, spec: &SourceSpec<'_>) -> Result<Box<dyn TableReader>> {
    let schema = batches(path, None)?.schema();
    let columns = Columns::new(path, &schema, &|root| first_list_len(path, root), spec)?;
    let roots = columns.roots();
    Ok(Box::new(IpcReader { batches: batches(path, Some(roots))?, rows: BatchRows::new(path, columns, 0) }))
}

/// Opens a file to read its cells as text.
pub(crate) fn open_cells(path: &Path, spec: &SourceSpec<'_>) -> Result<Box<dyn CellReader>> {
    let mut batches = batches(path, None)?;
    let (schema, owned) = (batches.schema(), path.to_owned());
    let next = Box::new(move || batches.next(&owned));
    Ok(Box::new(ArrowCells::new(path, &schema, &|root| first_list_len(path, root), next, spec)?))
}

/// Opens a file to convert its columns.
pub(crate) fn open_chunks(
    path: &Path,
    spec: &SourceSpec<'_>,
    to: Destination,
) -> Result<Box<dyn ChunkReader>> {
    let schema = batches(path, None)?.schema();
    let open =
        |roots: &[usize], _: &[ListColumn]| -> Result<Box<dyn FnMut() -> Result<Option<RecordBatch>>>> {
            let mut batches = batches(path, Some(roots.to_vec()))?;
            let owned = path.to_owned();
            Ok(Box::new(move || batches.next(&owned)))
        };
    Ok(Box::new(BatchChunks::open(path, &schema, &|root| first_list_len(path, root), open, spec, to)?))
}

/// The length of the first list of a column.
fn first_list_len(path: &Path, root: usize) -> Result<Option<usize>> {
    let mut batches = batches(path, Some(vec![root]))?;
    while let Some(batch) = batches.next(path)? {
        if let Some(len) = list_len_in(batch.column(0)) {
            return Ok(Some(len));
        }
    }
    Ok(None)
}

/// Reads the rows of one file in order.
struct IpcReader {
    batches: Batches,
    rows: BatchRows,
}

impl TableReader for IpcReader {
    fn plan(&self) -> &ColumnPlan {
        &self.rows.columns.plan
    }

    fn kept_types(&self) -> Vec<Option<DataType>> {
        self.rows.columns.kept_types.clone()
    }

    fn read(&mut self, rows: &mut TableRows, max_rows: usize) -> Result<usize> {
        loop {
            let batch = match self.rows.pending.take() {
                Some(batch) => batch,
                None => match self.batches.next(&self.rows.path)? {
                    Some(batch) => batch,
                    None => return Ok(0),
                },
            };
            if batch.num_rows() > 0 {
                return self.rows.read(batch, rows, max_rows);
            }
        }
    }
}
