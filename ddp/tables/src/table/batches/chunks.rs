//! Reads record batches as typed columns, to convert them to Parquet.

use std::path::Path;

use arrow_array::RecordBatch;
use ddp::data::error::Result;

use crate::formats::table::batch_source::{BatchSource, Batches, Selection};
use crate::formats::table::source::FileColumns;
use crate::formats::write::{Block, Chunk, Group, Kind, Purpose};
use crate::source::SourceSpec;
use crate::table::batches::columns::pandas_indices;
use crate::table::batches::marks::{nullable, without_marked};
use crate::table::columns::{ColumnPlan, Partition};
use crate::values::notation::Notation;
use crate::values::number::DecimalMark;

/// Rows that are decoded at a time.
const BATCH_ROWS: usize = 4096;
/// Values that are decoded at a time.
const BATCH_VALUES: usize = 1 << 18;

/// Reads the rows of one file.
pub(in crate::table) struct BatchChunks {
    groups: Vec<Group>,
    partitions: Vec<Partition>,
    batches: Batches,
    notation: Notation,
    pending: Option<RecordBatch>,
}

impl BatchChunks {
    /// Starts to read `source`, the file `path`.
    pub(in crate::table) fn open(
        path: &Path,
        source: &dyn BatchSource,
        spec: &SourceSpec<'_>,
    ) -> Result<Self> {
        let (mut groups, mut roots) = (Vec::new(), Vec::new());
        let schema = source.schema();
        let notation = Notation::new(DecimalMark::Point, &spec.data.missing_values);
        let of_pandas = pandas_indices(schema);
        let names: Vec<String> = schema.fields().iter().map(|field| field.name().clone()).collect();
        let indices = (0..names.len()).filter(|&at| of_pandas.contains(&names[at])).collect();
        let are_dates = vec![false; names.len()];
        let columns = FileColumns { names, are_dates, indices, ..FileColumns::default() };
        let plan = ColumnPlan::new(path, columns, spec)?;
        for (root, (field, role)) in schema.fields().iter().zip(&plan.roles).enumerate() {
            if let Some(purpose) = role.purpose() {
                let field = if notation.has_marks() { nullable(field) } else { field.clone() };
                groups.push(Group::column(purpose, field.name().clone(), Kind::Arrow(field)));
                roots.push(root);
            }
        }
        let batch_rows = (BATCH_VALUES / roots.len().max(1)).clamp(1, BATCH_ROWS);
        let batches = source.read(&Selection { roots, lists: Vec::new(), max_len: 0, batch_rows })?;
        Ok(BatchChunks { groups, partitions: plan.partitions, batches, notation, pending: None })
    }

    /// The columns of the file that are converted.
    pub(in crate::table) fn groups(&self) -> &[Group] {
        &self.groups
    }

    /// Columns with one value for the whole file, which the groups lack.
    pub(in crate::table) fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Up to `max_rows` next rows; `None` at the end.
    pub(in crate::table) fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>> {
        let next = self.pending.take().map(Ok).or_else(|| self.batches.next());
        let Some(batch) = next.transpose()? else { return Ok(None) };
        let n_rows = batch.num_rows().min(max_rows);
        if n_rows < batch.num_rows() {
            self.pending = Some(batch.slice(n_rows, batch.num_rows() - n_rows));
        }
        let blocks = self.groups.iter().zip(batch.columns()).map(|(group, array)| {
            let array = array.slice(0, n_rows);
            Block::Arrow(match group.purpose {
                Purpose::Weight => array,
                _ => without_marked(&array, &self.notation),
            })
        });
        Ok(Some(Chunk { n_rows, blocks: blocks.collect() }))
    }
}
