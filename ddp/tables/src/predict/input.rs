//! Rows to predict: blocks of an array, or blocks read from a table.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ddp::config::DataConfig;
use ddp::data::datasets::batch::BatchMut;
use ddp::data::vocabulary::{CategoryColumn, Vocabulary};
use ddp::data::{DataError, Dataset, RowLayout, TargetLayout, Targets, TensorDataset};

use crate::error::TableError;
use crate::fit::preprocess::ColumnCodes;
use crate::formats::Reader;
use crate::open::files::files_and_format;
use crate::predict::error::Result;
use crate::predict::output::block::{ColumnKind, OutputColumn};
use crate::predict::saved_model::SavedModel;
use crate::source::{SourceSpec, ToPredict};
use crate::table::exact_columns::ExactColumns;
use crate::table::{ExactRows, KeptValues, TableRows, TableStream, filter_of};
use crate::values::filter::Filter;

/// Bytes of a block's features as f32.
const BLOCK_BYTES: usize = 32 << 20;
/// Maximum number of rows of a block.
const BLOCK_ROWS: usize = 1 << 16;

/// Selection of the rows that the user requested.
#[derive(Debug, Clone)]
pub struct InputSpec {
    /// A file, a folder, a file name pattern or `builtin:NAME`.
    pub source: String,
    /// Columns to pass through.
    pub keep: Vec<String>,
    /// Rows to predict, from 0.
    pub rows: Range<usize>,
    /// Whether rows that cannot be read get no prediction instead of ending the command.
    pub skips_bad_rows: bool,
    /// Whether the columns to pass through keep their types, if the file has types.
    pub keeps_types: bool,
    /// Whether `data.filter` of the model applies, as it does to the rows that it trained on.
    pub filters: bool,
}

impl InputSpec {
    fn to_predict(&self) -> ToPredict<'_> {
        let InputSpec { keep, skips_bad_rows, keeps_types, .. } = self;
        ToPredict { kept: keep, skips_bad_rows: *skips_bad_rows, only_kept: false, keeps_types: *keeps_types }
    }
}

/// This rank's blocks: every `world_size`-th block.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) rank: usize,
    pub(crate) world_size: usize,
    /// Rows of a block.
    pub(crate) block_rows: usize,
}

/// Rows of a block of so many columns.
pub(crate) fn block_rows(n_columns: usize) -> usize {
    (BLOCK_BYTES / (4 * n_columns.max(1))).clamp(1, BLOCK_ROWS)
}

impl Share {
    fn owns(self, block: usize) -> bool {
        block % self.world_size == self.rank
    }
}

/// Blocks of rows, with the columns of the model.
pub(crate) struct Input {
    /// The rows by their index; for a table only the rows of blocks that are in use.
    pub(crate) rows: Arc<dyn Dataset>,
    /// Ranges of this rank's blocks, in order.
    pub(crate) blocks: Box<dyn Iterator<Item = Range<usize>> + Send>,
    /// Rows of a block; the last one may have fewer.
    pub(crate) block_rows: usize,
    /// The table behind `rows`.
    pub(crate) table: Option<Arc<StreamedRows>>,
    /// Columns to pass through, with the types that they keep.
    pub(crate) kept: Vec<OutputColumn>,
    /// Index of the first row.
    pub(crate) first_row: usize,
    /// Columns that are not used, with the reason.
    pub(crate) left_out: Vec<String>,
}

impl Input {
    /// Opens the rows.
    ///
    /// # Errors
    /// [`PredictError::Data`](super::PredictError::Data), with file and column.
    pub(crate) fn open(saved: &SavedModel, spec: &InputSpec, share: Share) -> Result<Self> {
        let of_model = SourceSpec::train(&saved.config.data);
        let filter = if spec.filters { filter_of(&of_model)? } else { None };
        let source = SourceSpec {
            filter: filter.as_ref(),
            source: &spec.source,
            labels: None,
            features: Some(saved.known_features()),
            to_predict: Some(spec.to_predict()),
            ..of_model
        };
        let block_rows = share.block_rows;
        if !spec.source.starts_with("builtin:") {
            let (files, format) = files_and_format(&source)?;
            if let Reader::Table(table) = &format.reader {
                let stream = TableStream::open(files, table, &source)?;
                let columns = OwnedColumns::new(saved, filter, spec);
                return Ok(Self::from_table(stream, saved, columns, share));
            }
        }
        let rows = source.open()?;
        // Arrays have no filter, but the first rows.
        let n_rows = rows.len().min(of_model.data.max_rows.filter(|_| spec.filters).unwrap_or(usize::MAX));
        let range = spec.rows.start.min(n_rows)..spec.rows.end.min(n_rows);
        if range.is_empty() {
            return Err(no_rows(spec, rows.len()).into());
        }
        let first_row = range.start;
        let starts = range.clone().step_by(block_rows).enumerate();
        let blocks = starts
            .filter(move |(block, _)| share.owns(*block))
            .map(move |(_, start)| start..(start + block_rows).min(range.end));
        // Arrays have no columns to pass through.
        let left_out = rows.layout().left_out.clone();
        Ok(Input {
            rows,
            blocks: Box::new(blocks),
            block_rows,
            table: None,
            kept: Vec::new(),
            first_row,
            left_out,
        })
    }

    fn from_table(stream: TableStream, saved: &SavedModel, known: OwnedColumns, share: Share) -> Self {
        let Share { block_rows, .. } = share;
        let spec = &known.spec.clone();
        let plan = &saved.preprocessor.plan;
        let mut layout = RowLayout::new(plan.columns.clone(), TargetLayout::Values { names: Vec::new() });
        layout.has_missing = known.spec().may_miss();
        layout.categories = categories(&plan.columns, &plan.vocabularies);
        let rows = Arc::new(StreamedRows {
            layout: layout.clone(),
            source: spec.source.clone(),
            in_use: Mutex::default(),
            end: Mutex::default(),
        });
        let kept = kept_columns(&stream, spec);
        let left_out = stream.plan().left_out.clone();
        let mut block_of_rows = TableRows::new(stream.plan(), &known.spec());
        block_of_rows.exact = ExactColumns::from_columns(&saved.preprocessor.has_offsets());
        let blocks = BlockReader {
            block_of_rows,
            stream,
            columns: known,
            rows: rows.clone(),
            share,
            block_rows,
            range: spec.rows.clone(),
            next_row: 0,
            block: 0,
            is_over: false,
        };
        let first_row = spec.rows.start;
        Input {
            rows: rows.clone(),
            blocks: Box::new(blocks),
            block_rows,
            table: Some(rows),
            kept,
            first_row,
            left_out,
        }
    }

    /// Index, over all ranks, of the block that starts at row `start`.
    pub(crate) fn block_number(&self, start: usize) -> u64 {
        ((start - self.first_row) / self.block_rows) as u64
    }
}

/// The columns to pass through.
fn kept_columns(stream: &TableStream, spec: &InputSpec) -> Vec<OutputColumn> {
    let kind = |index: usize| match stream.kept_type(index) {
        #[cfg(feature = "parquet")]
        Some(of_file) => ColumnKind::KeptAs(of_file.clone()),
        _ => ColumnKind::Kept,
    };
    let column = |(index, name): (usize, &String)| OutputColumn { name: name.clone(), kind: kind(index) };
    spec.keep.iter().enumerate().map(column).collect()
}

fn no_rows(spec: &InputSpec, n_rows: usize) -> DataError {
    DataError::from(TableError::NoRowsInRange {
        source_name: spec.source.clone(),
        n_rows,
        start: spec.rows.start,
        end: spec.rows.end,
    })
}

fn categories(columns: &[String], vocabularies: &[Vocabulary]) -> Vec<CategoryColumn> {
    let column = |vocabulary: &Vocabulary| {
        let column = columns.iter().position(|name| name == vocabulary.name())?;
        Some(CategoryColumn { column, vocabulary: vocabulary.clone() })
    };
    vocabularies.iter().filter_map(column).collect()
}

/// Owns everything that a [`SourceSpec`] borrows.
struct OwnedColumns {
    data: DataConfig,
    plan: ColumnCodes,
    filter: Option<Arc<Filter>>,
    spec: InputSpec,
}

impl OwnedColumns {
    fn new(saved: &SavedModel, filter: Option<Arc<Filter>>, spec: &InputSpec) -> Self {
        OwnedColumns {
            data: saved.config.data.clone(),
            plan: saved.preprocessor.plan.clone(),
            filter,
            spec: spec.clone(),
        }
    }

    fn spec(&self) -> SourceSpec<'_> {
        SourceSpec {
            source: &self.spec.source,
            labels: None,
            features: Some(self.plan.known_features("the model")),
            to_predict: Some(self.spec.to_predict()),
            filter: self.filter.as_ref(),
            ..SourceSpec::train(&self.data)
        }
    }
}

/// Reads a table block by block, drops the blocks of other ranks, and publishes this rank's blocks in [`StreamedRows`].
struct BlockReader {
    stream: TableStream,
    /// The block that is being read.
    block_of_rows: TableRows,
    columns: OwnedColumns,
    rows: Arc<StreamedRows>,
    share: Share,
    block_rows: usize,
    range: Range<usize>,
    /// Index of the next row of the table.
    next_row: usize,
    /// Index of the next block.
    block: usize,
    is_over: bool,
}

impl BlockReader {
    /// The next block of this rank; `None` at the end.
    fn read(&mut self) -> ddp::data::error::Result<Option<Range<usize>>> {
        loop {
            let spec = self.columns.spec();
            let rows = &mut self.block_of_rows;
            rows.clear();
            // Rows before the first requested row form a block that belongs to no rank.
            let is_before = self.next_row < self.range.start;
            let wanted = if is_before {
                (self.range.start - self.next_row).min(self.block_rows)
            } else {
                self.block_rows.min(self.range.end - self.next_row)
            };
            let is_own = !is_before && self.share.owns(self.block);
            let n = match wanted {
                0 => 0,
                _ if is_own => self.stream.read(rows, wanted, &spec)?,
                _ => self.stream.skip(wanted, &spec)?,
            };
            let range = self.next_row..self.next_row + n;
            self.next_row = range.end;
            if n == 0 {
                if self.block == 0 {
                    return Err(no_rows(&self.columns.spec, self.next_row));
                }
                return Ok(None);
            }
            if is_before {
                continue;
            }
            self.block += 1;
            if is_own {
                self.rows.publish(range.start, rows);
                return Ok(Some(range));
            }
        }
    }
}

impl Iterator for BlockReader {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        if self.is_over {
            return None;
        }
        let block = self.read();
        self.is_over = !matches!(block, Ok(Some(_)));
        match block {
            Ok(block) => block,
            Err(error) => {
                *lock(&self.rows.end) = Some(error);
                None
            }
        }
    }
}

/// Rows of the table's blocks that have been read and are still in use.
#[derive(Debug)]
pub(crate) struct StreamedRows {
    layout: RowLayout,
    source: String,
    /// Blocks by the index of their first row.
    in_use: Mutex<BTreeMap<usize, Arc<StreamedBlock>>>,
    /// The error that ended the reading.
    end: Mutex<Option<DataError>>,
}

#[derive(Debug)]
pub(crate) struct StreamedBlock {
    rows: ExactRows,
    pub(crate) kept: Vec<KeptValues>,
    /// Rows with values that can't be used, ascending.
    pub(crate) bad_rows: Vec<usize>,
}

impl StreamedRows {
    /// Moves the rows out of `rows`.
    fn publish(&self, first: usize, rows: &mut TableRows) {
        let mut bad_rows = rows.bad_rows.as_mut().map(std::mem::take).unwrap_or_default();
        bad_rows.sort_unstable();
        let block = StreamedBlock {
            rows: ExactRows {
                rows: TensorDataset {
                    features: std::mem::take(&mut rows.features),
                    targets: Targets::Values(Vec::new()),
                    weights: None,
                    layout: self.layout.clone(),
                    source: self.source.clone(),
                },
                exact: rows.exact.take(),
                exact_targets: ExactColumns::new(0, false),
            },
            kept: rows.kept.iter_mut().map(KeptValues::take).collect(),
            bad_rows,
        };
        lock(&self.in_use).insert(first, Arc::new(block));
    }

    /// Calls `read` for each run of `rows` that lies in one block, with its positions in `rows`, the block, and the indices of
    /// its rows within the block.
    fn by_block(
        &self,
        rows: &[usize],
        mut read: impl FnMut(Range<usize>, &StreamedBlock, &[usize]) -> ddp::data::error::Result<()>,
    ) -> ddp::data::error::Result<()> {
        let mut start = 0;
        while let Some(&first) = rows.get(start) {
            let (begin, block) = {
                let in_use = lock(&self.in_use);
                let (begin, block) = in_use.range(..=first).next_back().expect("rows of a block in use");
                (*begin, block.clone())
            };
            let block_end = begin + block.rows.len();
            let n = rows[start..].iter().take_while(|row| (begin..block_end).contains(*row)).count();
            let numbers: Vec<usize> = rows[start..start + n].iter().map(|row| row - begin).collect();
            assert!(n > 0, "row {first} is in a block in use");
            read(start..start + n, &block, &numbers)?;
            start += n;
        }
        Ok(())
    }

    /// Rows among `rows` with values that can't be used.
    pub(crate) fn bad_among(&self, rows: &[usize]) -> ddp::data::error::Result<HashSet<usize>> {
        let mut bad = HashSet::new();
        self.by_block(rows, |places, block, numbers| {
            let both = rows[places].iter().zip(numbers);
            bad.extend(both.filter(|(_, n)| block.bad_rows.binary_search(n).is_ok()).map(|(row, _)| *row));
            Ok(())
        })?;
        Ok(bad)
    }

    /// Takes the block that starts at row `first`, which frees its memory.
    pub(crate) fn take(&self, first: usize) -> Arc<StreamedBlock> {
        lock(&self.in_use).remove(&first).expect("a block is taken once")
    }

    /// The error that ended the reading, if any.
    pub(crate) fn take_error(&self) -> Option<DataError> {
        lock(&self.end).take()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Dataset for StreamedRows {
    /// Upper bound of the row indices; the number of rows is unknown until the last row has been read.
    fn len(&self) -> usize {
        isize::MAX as usize
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> ddp::data::error::Result<()> {
        let BatchMut { mut x, mut targets, .. } = out;
        self.by_block(rows, |places, block, numbers| {
            let x = x.reborrow().rows(places.start, places.end)?;
            let targets = targets.reborrow().rows(places.start, places.end)?;
            block.rows.gather(numbers, BatchMut { x, targets, weights: None })
        })
    }

    fn gather_doubles(
        &self,
        rows: &[usize],
        origin: &[f64],
        out: &mut [f64],
    ) -> ddp::data::error::Result<bool> {
        let width = origin.len();
        self.by_block(rows, |places, block, numbers| {
            let out = &mut out[places.start * width..places.end * width];
            block.rows.gather_doubles(numbers, origin, out).map(|_| ())
        })?;
        Ok(true)
    }

    fn fingerprint(&self) -> ddp::data::error::Result<u64> {
        Ok(0)
    }

    fn source(&self) -> &str {
        &self.source
    }
}
