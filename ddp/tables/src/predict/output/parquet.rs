//! A rank's blocks as row groups of a Parquet file, and their join: row groups are copied without decoding them.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, Float64Array, Int64Array, RecordBatch, StringArray};
use arrow_schema::{DataType, Field, Schema};
use ddp::storage::write_error::WriteError;
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, ParquetMetaData, ParquetMetaDataReader};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;

use crate::formats::table::parquet::{BatchFile, MAX_GROUP_ROWS, write_error};
use crate::predict::error::Result;
use crate::predict::output::block::{Block, ColumnKind, OutputColumn, Values};
use crate::predict::output::index::Located;
use crate::predict::output::temporary::Temporary;

/// The row groups of one rank; a single rank writes the output itself.
pub(super) struct RankRowGroups {
    columns: Vec<OutputColumn>,
    schema: Arc<Schema>,
    file: BatchFile,
    is_single: bool,
}

impl RankRowGroups {
    pub(super) fn create(
        columns: &[OutputColumn],
        names: &Temporary,
        rank: usize,
        world_size: usize,
    ) -> Result<Self> {
        let is_single = world_size == 1;
        let path = if is_single { names.whole() } else { names.shard(rank) };
        let field = |column: &OutputColumn| {
            let (kind, is_nullable) = match &column.kind {
                ColumnKind::Kept => (DataType::Utf8, false),
                ColumnKind::KeptAs(of_input) => (of_input.clone(), true),
                ColumnKind::Label(labels) if labels.integers.is_some() => (DataType::Int64, true),
                ColumnKind::Label(_) => (DataType::Utf8, true),
                ColumnKind::Binary => (DataType::Int64, true),
                ColumnKind::Value => (DataType::Float64, true),
                ColumnKind::Probability => (DataType::Float32, true),
            };
            Field::new(&column.name, kind, is_nullable)
        };
        let schema = Arc::new(Schema::new(columns.iter().map(field).collect::<Vec<_>>()));
        let file = names.create(&path).map_err(|source| WriteError { path: path.clone(), source })?;
        let file = BatchFile::new(&path, file, &schema, MAX_GROUP_ROWS)?;
        Ok(RankRowGroups { columns: columns.to_vec(), schema, file, is_single })
    }

    /// Writes a block as a row group.
    pub(super) fn write(&mut self, block: &Block) -> Result<()> {
        let columns = self.columns.iter().zip(&block.columns);
        let columns: Vec<Column<'_>> = columns.map(|(column, values)| array(column, values, block)).collect();
        let piece_rows = columns.iter().find_map(|column| match column {
            Column::Pieces(pieces) => Some(pieces.iter().map(|piece| piece.len()).collect()),
            Column::Whole(_) => None,
        });
        let mut start = 0;
        for (piece, n_rows) in piece_rows.unwrap_or_else(|| vec![block.n_rows]).into_iter().enumerate() {
            let of_piece = columns.iter().map(|column| match column {
                Column::Pieces(pieces) => pieces[piece].clone(),
                Column::Whole(array) => array.slice(start, n_rows),
            });
            let batch = RecordBatch::try_new(self.schema.clone(), of_piece.collect());
            let batch = batch.expect("columns follow the schema");
            self.file.write(&batch)?;
            start += n_rows;
        }
        Ok(self.file.end_group()?)
    }

    /// Completes the shard.
    pub(super) fn finish(&mut self) -> Result<()> {
        Ok(self.file.finish()?)
    }

    /// Completes the output on rank 0 after all ranks have finished their shards; returns its size in bytes.
    pub(super) fn join(self, names: &Temporary, blocks: &[Located], tick: &dyn Fn()) -> Result<u64> {
        let whole = names.whole();
        if !self.is_single {
            let joined = append_row_groups(&whole, names, blocks, tick);
            joined.map_err(|error| write_error(&whole, error))?;
        }
        let size = std::fs::metadata(&whole).map(|data| data.len());
        Ok(size.map_err(|source| WriteError { path: whole, source })?)
    }
}

/// The values of a column in a block.
enum Column<'a> {
    Whole(ArrayRef),
    /// Arrays of consecutive rows.
    Pieces(&'a [ArrayRef]),
}

fn array<'a>(column: &OutputColumn, values: &'a Values, block: &Block) -> Column<'a> {
    let valid = |row: &usize| block.is_valid(*row);
    let rows = 0..block.n_rows;
    Column::Whole(match (values, &column.kind) {
        (Values::Arrays(pieces), _) => return Column::Pieces(pieces),
        (Values::Texts(texts), _) => Arc::new(StringArray::from_iter_values(texts.iter())),
        (Values::Labels(classes), ColumnKind::Label(labels)) => match &labels.integers {
            Some(integers) => {
                let label = |row: usize| valid(&row).then(|| integers[classes[row] as usize]);
                Arc::new(rows.map(label).collect::<Int64Array>())
            }
            None => {
                let label = |row: usize| valid(&row).then(|| labels.names[classes[row] as usize].as_str());
                Arc::new(rows.map(label).collect::<StringArray>())
            }
        },
        (Values::Labels(classes), _) => {
            Arc::new(rows.map(|row| valid(&row).then(|| i64::from(classes[row]))).collect::<Int64Array>())
        }
        (Values::Binary(values), _) => {
            Arc::new(rows.map(|row| valid(&row).then(|| i64::from(values[row]))).collect::<Int64Array>())
        }
        (Values::Numbers(values), _) => {
            Arc::new(rows.map(|row| valid(&row).then(|| values[row])).collect::<Float64Array>())
        }
        (Values::Probabilities(values), _) => {
            Arc::new(rows.map(|row| valid(&row).then(|| values[row])).collect::<Float32Array>())
        }
    })
}

/// Copies the row groups of all shards in the order of the blocks.
fn append_row_groups(
    whole: &Path,
    names: &Temporary,
    blocks: &[Located],
    tick: &dyn Fn(),
) -> std::result::Result<(), ParquetError> {
    let n_ranks = blocks.iter().map(|located| located.rank + 1).max().unwrap_or(0);
    let mut shards: Vec<(File, ParquetMetaData)> = Vec::new();
    for rank in 0..n_ranks {
        let file = names.open(&names.shard(rank))?;
        let metadata = ParquetMetaDataReader::new().parse_and_finish(&file)?;
        shards.push((file, metadata));
    }
    let description = shards[0].1.file_metadata();
    let schema = description.schema_descr().root_schema_ptr();
    let kept: Option<Vec<KeyValue>> = description.key_value_metadata().cloned();
    let properties = WriterProperties::builder().set_key_value_metadata(kept).build();
    let mut writer = SerializedFileWriter::new(names.create(whole)?, schema, Arc::new(properties))?;
    let mut next_group = vec![0; n_ranks];
    for Located { rank, .. } in blocks {
        let (file, metadata) = &shards[*rank];
        let group = metadata.row_group(next_group[*rank]);
        next_group[*rank] += 1;
        tick();
        let mut copy = writer.next_row_group()?;
        for column in group.columns() {
            let result = ColumnCloseResult {
                bytes_written: column.compressed_size() as u64,
                rows_written: group.num_rows() as u64,
                metadata: column.clone(),
                bloom_filter: None,
                column_index: None,
                offset_index: None,
            };
            copy.append_column(file, result)?;
        }
        copy.close()?;
    }
    let file = writer.into_inner()?;
    file.sync_all()?;
    Ok(())
}
