//! Decodes a file on several threads, and gives its batches in order: each thread some of the columns, or, where a few columns have wide
//! lists, some of the row groups.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;
use std::{iter, vec};

use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_schema::{Fields, Schema};

use crate::formats::error::Result;
use crate::formats::table::batch_source::{Batches, Selection};
use crate::formats::table::parquet::bounds::malformed;
use crate::formats::table::parquet::file::ParquetFile;

/// Batches of some columns that wait to be taken.
const WAITING_OF_COLUMNS: usize = 4;
/// Batches of a row group that wait to be taken, for each thread: others are decoded meanwhile.
const WAITING_OF_GROUP: usize = 16;

type Batch = Result<RecordBatch>;

/// The batches of all rows in order, decoded by up to `n_threads` threads that end with this iterator.
///
/// # Errors
/// Columns or a row group that can't be opened, where the system starts no thread for it.
pub(super) fn decode(file: &ParquetFile, selection: &Selection, n_threads: usize) -> Result<Batches> {
    let n_groups = file.group_rows.len();
    if selection.roots.len() >= n_threads || n_groups < 2 {
        let sets = column_sets(file, &selection.roots, n_threads);
        return Ok(Box::new(ColumnSets::decode(file, selection, &sets)?));
    }
    Ok(Box::new(decode_groups(file, selection, n_threads.min(n_groups))?))
}

/// Divides the columns into up to `n_sets` ranges of about as many bytes in the file.
fn column_sets(file: &ParquetFile, roots: &[usize], n_sets: usize) -> Vec<Range<usize>> {
    let groups = file.metadata.metadata().row_groups();
    let bytes_of = |root: &usize| -> u64 {
        let of_leaf =
            |leaf: usize| groups.iter().map(move |group| group.column(leaf).compressed_size().max(1) as u64);
        file.leaves(std::slice::from_ref(root)).into_iter().flat_map(of_leaf).sum()
    };
    let bytes: Vec<u64> = roots.iter().map(bytes_of).collect();
    let (total, mut before, mut sets) = (bytes.iter().sum::<u64>().max(1), 0, Vec::new());
    let mut start = 0;
    for (at, bytes) in bytes.iter().enumerate() {
        before += bytes;
        // The share of the sets so far.
        let share = total * (sets.len() as u64 + 1) / n_sets as u64;
        if before >= share || at + 1 == roots.len() {
            sets.push(start..at + 1);
            start = at + 1;
        }
    }
    sets
}

/// The batches of sets of columns, joined.
struct ColumnSets {
    path: PathBuf,
    sources: Vec<Source>,
    /// Rows to come.
    left: usize,
}

impl ColumnSets {
    fn decode(file: &ParquetFile, selection: &Selection, sets: &[Range<usize>]) -> Result<Self> {
        let all_groups = 0..file.group_rows.len();
        let source = |set: &Range<usize>| {
            let selection = Selection { roots: selection.roots[set.clone()].to_vec(), ..selection.clone() };
            let (to, from) = sync_channel(WAITING_OF_COLUMNS);
            let (own, groups, of_thread) = (file.clone(), all_groups.clone(), selection.clone());
            let work = move || send(&own, &of_thread, groups, &to);
            if Builder::new().name("decode".to_owned()).spawn(work).is_ok() {
                return Ok(Source::Thread(from));
            }
            // Without a thread of their own, columns are decoded where they are taken.
            let rows = file.rows(all_groups.clone(), &selection.roots, selection.batch_rows)?;
            Ok(Source::Own(Box::new(rows)))
        };
        let sources = sets.iter().map(source).collect::<Result<_>>()?;
        Ok(ColumnSets { path: file.path.clone(), sources, left: file.n_rows() })
    }

    /// The next batches of all sets; `None` at the end.
    fn batches(&mut self) -> Result<Option<Vec<RecordBatch>>> {
        let mut batches = Vec::with_capacity(self.sources.len());
        for source in &mut self.sources {
            batches.extend(source.next().transpose()?);
        }
        let n_rows = batches.first().map_or(0, RecordBatch::num_rows);
        if batches.is_empty() && self.left == 0 {
            return Ok(None);
        }
        if batches.len() < self.sources.len() || batches.iter().any(|batch| batch.num_rows() != n_rows) {
            // A thread has ended without a word, or columns have other numbers of rows.
            return Err(malformed(&self.path, "its content can't be decoded".to_owned()));
        }
        self.left -= n_rows.min(self.left);
        Ok(Some(batches))
    }
}

impl Iterator for ColumnSets {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let batches = match self.batches() {
            Ok(batches) => batches?,
            Err(error) => return Some(Err(error)),
        };
        let fields: Fields =
            batches.iter().flat_map(|batch| batch.schema_ref().fields().iter().cloned()).collect();
        let columns = batches.iter().flat_map(|batch| batch.columns().iter().cloned()).collect();
        let n_rows = RecordBatchOptions::new().with_row_count(Some(batches[0].num_rows()));
        let joined = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &n_rows);
        Some(joined.map_err(|error| malformed(&self.path, error.to_string())))
    }
}

/// The batches of all row groups in order, decoded by `n_threads` threads.
fn decode_groups(
    file: &ParquetFile,
    selection: &Selection,
    n_threads: usize,
) -> Result<impl Iterator<Item = Batch> + Send + use<>> {
    let n_groups = file.group_rows.len();
    let (mut to, mut from): (Vec<_>, Vec<_>) = (0..n_groups).map(|_| sync_channel(WAITING_OF_GROUP)).unzip();
    let mut of_threads: Vec<Vec<(usize, SyncSender<Batch>)>> =
        iter::repeat_with(Vec::new).take(n_threads).collect();
    for (group, to) in to.drain(..).enumerate() {
        of_threads[group % n_threads].push((group, to));
    }
    let mut others = Vec::new();
    for groups in of_threads {
        let (file, selection) = (file.clone(), selection.clone());
        let first = groups[0].0;
        let work =
            move || groups.into_iter().all(|(group, to)| send(&file, &selection, group..group + 1, &to));
        if Builder::new().name("decode".to_owned()).spawn(work).is_err() {
            others.push(first);
        }
    }
    // Without a thread of their own, groups are decoded where they are taken.
    let mut sources: Vec<Source> = from.drain(..).map(Source::Thread).collect();
    for first in others {
        for group in (first..n_groups).step_by(n_threads) {
            let rows = file.rows(group..group + 1, &selection.roots, selection.batch_rows)?;
            sources[group] = Source::Own(Box::new(rows));
        }
    }
    let n_rows = file.group_rows.clone().into_iter();
    Ok(Groups { path: file.path.clone(), sources: sources.into_iter(), n_rows, current: None, left: 0 })
}

/// Sends the batches of row groups; false once nobody takes them.
fn send(file: &ParquetFile, selection: &Selection, groups: Range<usize>, to: &SyncSender<Batch>) -> bool {
    match file.rows(groups, &selection.roots, selection.batch_rows) {
        Ok(mut rows) => rows.all(|batch| to.send(batch).is_ok()),
        Err(error) => to.send(Err(error)).is_ok(),
    }
}

/// Where batches come from.
enum Source {
    Thread(Receiver<Batch>),
    Own(Box<dyn Iterator<Item = Batch> + Send>),
}

impl Source {
    fn next(&mut self) -> Option<Batch> {
        match self {
            Source::Thread(from) => from.recv().ok(),
            Source::Own(rows) => rows.next(),
        }
    }
}

struct Groups {
    path: PathBuf,
    sources: vec::IntoIter<Source>,
    /// Rows of the groups to come.
    n_rows: vec::IntoIter<usize>,
    current: Option<Source>,
    /// Rows of the current group to come.
    left: usize,
}

impl Iterator for Groups {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        loop {
            if let Some(batch) = self.current.as_mut().and_then(Source::next) {
                self.left -= batch.as_ref().map_or(0, RecordBatch::num_rows).min(self.left);
                return Some(batch);
            }
            if std::mem::take(&mut self.left) > 0 {
                // Its thread has ended without a word.
                return Some(Err(malformed(&self.path, "its content can't be decoded".to_owned())));
            }
            self.current = Some(self.sources.next()?);
            self.left = self.n_rows.next()?;
        }
    }
}
