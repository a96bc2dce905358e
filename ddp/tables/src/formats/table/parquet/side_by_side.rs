//! Decodes a file on several threads, and gives its batches in order: each thread some of the columns, or, where a few columns have wide
//! lists, some of the row groups.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::Builder;

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Fields, Schema};

use crate::formats::error::{Result, RowsError};
use crate::formats::table::batch_source::{Batches, Selection};
use crate::formats::table::parquet::bounds::malformed;
use crate::formats::table::parquet::file::ParquetFile;

/// Batches of some columns that wait to be taken, where they have texts or lists, which may be of any length.
const WAITING_OF_COLUMNS: usize = 4;
/// Batches of numbers, or of row groups, that wait to be taken, for each thread: the pages at the begin of a row group take as long as many
/// batches.
const WAITING_OF_GROUPS: usize = 16;

type Batch = Result<RecordBatch>;

/// The batches of all rows in order, decoded by up to `n_threads` threads that end with this iterator.
pub(super) fn decode(file: &ParquetFile, selection: &Selection, n_threads: usize) -> Result<Batches> {
    let n_groups = file.group_rows.len();
    if selection.roots.len() >= n_threads || n_groups < 2 {
        let sets = column_sets(file, &selection.roots, n_threads);
        if sets.len() < 2 {
            return file.read_groups(selection, 0..n_groups);
        }
        let all_groups = 0..n_groups;
        let schema = file.metadata.schema();
        let are_numbers = selection.roots.iter().all(|root| schema.field(*root).data_type().is_primitive());
        let n_waiting = if are_numbers { WAITING_OF_GROUPS } else { WAITING_OF_COLUMNS };
        let source = |set: &Range<usize>| {
            let selection = Selection { roots: selection.roots[set.clone()].to_vec(), ..selection.clone() };
            Source::of(file, &selection, std::slice::from_ref(&all_groups), n_waiting)
        };
        let sources = sets.iter().map(source).collect();
        return Ok(Box::new(ColumnSets { path: file.path.clone(), sources, left: file.n_rows() }));
    }
    let n_threads = n_threads.min(n_groups);
    let source = |first: usize| {
        let groups: Vec<_> = (first..n_groups).step_by(n_threads).map(|group| group..group + 1).collect();
        Source::of(file, selection, &groups, WAITING_OF_GROUPS)
    };
    let (path, n_rows) = (file.path.clone(), file.group_rows.clone());
    Ok(Box::new(Groups { path, sources: (0..n_threads).map(source).collect(), n_rows, group: 0, left: 0 }))
}

/// Divides the columns into up to `n_sets` ranges of about as many bytes in the file.
fn column_sets(file: &ParquetFile, roots: &[usize], n_sets: usize) -> Vec<Range<usize>> {
    let schema = file.metadata.parquet_schema();
    let mut bytes = vec![1u64; roots.len()];
    for leaf in 0..schema.num_columns() {
        let Ok(at) = roots.binary_search(&schema.get_column_root_idx(leaf)) else { continue };
        let groups = file.metadata.metadata().row_groups().iter();
        bytes[at] += groups.map(|group| group.column(leaf).compressed_size().max(0) as u64).sum::<u64>();
    }
    let total: u64 = bytes.iter().sum();
    let (mut before, mut start, mut sets) = (0u64, 0, Vec::new());
    for (at, bytes) in bytes.into_iter().enumerate() {
        // The share of the sets so far: a column that goes beyond it by more than is missing begins the next one.
        let share = total * (sets.len() as u64 + 1) / n_sets as u64;
        let (beyond, missing) = ((before + bytes).saturating_sub(share), share.saturating_sub(before));
        if at > start && sets.len() + 1 < n_sets && beyond > missing {
            sets.push(start..at);
            start = at;
        }
        before += bytes;
    }
    sets.push(start..roots.len());
    sets
}

/// Where batches come from: a thread, or, where the system starts none, this one.
enum Source {
    Thread(Receiver<Batch>),
    Own(Box<dyn Iterator<Item = Batch> + Send>),
}

impl Source {
    /// The batches of these row groups, of which so many wait to be taken.
    fn of(file: &ParquetFile, selection: &Selection, groups: &[Range<usize>], n_waiting: usize) -> Self {
        let batches = || {
            // Its own descriptor, so that the system reads ahead for this thread.
            let (file, selection, groups) = (file.reopened(), selection.clone(), groups.to_vec());
            groups.into_iter().flat_map(move |groups| -> Box<dyn Iterator<Item = Batch> + Send> {
                match file.rows(groups, &selection.roots, selection.batch_rows) {
                    Ok(rows) => Box::new(rows),
                    Err(error) => Box::new(std::iter::once(Err(error))),
                }
            })
        };
        let (to, from) = sync_channel(n_waiting);
        let mut of_thread = batches();
        let work = move || of_thread.all(|batch| to.send(batch).is_ok());
        match Builder::new().name("decode".to_owned()).spawn(work) {
            Ok(_) => Source::Thread(from),
            Err(_) => Source::Own(Box::new(batches())),
        }
    }

    fn next(&mut self) -> Option<Batch> {
        match self {
            Source::Thread(from) => from.recv().ok(),
            Source::Own(batches) => batches.next(),
        }
    }
}

/// The error where a thread has ended without a word, or columns have other numbers of rows.
fn undecodable(path: &Path) -> RowsError {
    malformed(path, "its content can't be decoded".to_owned())
}

/// The batches of sets of columns, joined.
struct ColumnSets {
    path: PathBuf,
    /// Empty after an error.
    sources: Vec<Source>,
    /// Rows to come.
    left: usize,
}

impl ColumnSets {
    /// The next batches of all sets; none at the end.
    fn batches(&mut self) -> Result<Vec<RecordBatch>> {
        let mut batches = Vec::with_capacity(self.sources.len());
        for source in &mut self.sources {
            batches.extend(source.next().transpose()?);
        }
        let n_rows = batches.first().map_or(0, RecordBatch::num_rows);
        let is_whole = batches.len() == self.sources.len() || (batches.is_empty() && self.left == 0);
        if !is_whole || batches.iter().any(|batch| batch.num_rows() != n_rows) {
            return Err(undecodable(&self.path));
        }
        self.left -= n_rows.min(self.left);
        Ok(batches)
    }

    /// The batches as one; `None` at the end.
    fn joined(&mut self) -> Result<Option<RecordBatch>> {
        let batches = self.batches()?;
        let Some(first) = batches.first() else { return Ok(None) };
        let n_rows = RecordBatchOptions::new().with_row_count(Some(first.num_rows()));
        let fields = batches.iter().flat_map(|batch| batch.schema_ref().fields().iter().cloned());
        let schema = Arc::new(Schema::new(fields.collect::<Fields>()));
        let columns = batches.iter().flat_map(|batch| batch.columns().iter().cloned()).collect();
        let joined = RecordBatch::try_new_with_options(schema, columns, &n_rows);
        joined.map(Some).map_err(|error| malformed(&self.path, error.to_string()))
    }
}

impl Iterator for ColumnSets {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let joined = self.joined();
        if joined.is_err() {
            (self.sources, self.left) = (Vec::new(), 0);
        }
        joined.transpose()
    }
}

/// The batches of row groups, of which each source has every so many.
struct Groups {
    path: PathBuf,
    sources: Vec<Source>,
    n_rows: Vec<usize>,
    /// The next group, and the rows of the one before that are to come.
    group: usize,
    left: usize,
}

impl Iterator for Groups {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        while self.left == 0 {
            self.left = *self.n_rows.get(self.group)?;
            self.group += 1;
        }
        let at = (self.group - 1) % self.sources.len();
        let batch = self.sources[at].next().unwrap_or_else(|| Err(undecodable(&self.path)));
        match &batch {
            Ok(rows) => self.left -= rows.num_rows().min(self.left),
            Err(_) => (self.left, self.n_rows) = (0, Vec::new()),
        }
        Some(batch)
    }
}
