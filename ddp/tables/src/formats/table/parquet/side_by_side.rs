//! Decodes the row groups of a file on several threads, and gives their batches in order.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Builder;
use std::{iter, vec};

use arrow_array::RecordBatch;

use crate::formats::error::Result;
use crate::formats::table::batch_source::Selection;
use crate::formats::table::parquet::bounds::malformed;
use crate::formats::table::parquet::file::ParquetFile;

/// Batches of a row group that wait to be taken, for each thread.
const N_WAITING: usize = 4;

type Batch = Result<RecordBatch>;

/// The batches of all row groups in order, decoded by `n_threads` threads that end with this iterator.
///
/// # Errors
/// A row group that can't be opened, where the system starts no thread for it.
pub(super) fn decode(
    file: &ParquetFile,
    selection: &Selection,
    n_threads: usize,
) -> Result<impl Iterator<Item = Batch> + Send + use<>> {
    let n_groups = file.group_rows.len();
    let (mut to, mut from): (Vec<_>, Vec<_>) = (0..n_groups).map(|_| sync_channel(N_WAITING)).unzip();
    let mut of_threads: Vec<Vec<(usize, SyncSender<Batch>)>> =
        iter::repeat_with(Vec::new).take(n_threads).collect();
    for (group, to) in to.drain(..).enumerate() {
        of_threads[group % n_threads].push((group, to));
    }
    let mut others = Vec::new();
    for groups in of_threads {
        let (file, selection) = (file.clone(), selection.clone());
        let first = groups[0].0;
        let work = move || groups.into_iter().all(|(group, to)| send(&file, &selection, group, &to));
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

/// Sends the batches of a row group; false once nobody takes them.
fn send(file: &ParquetFile, selection: &Selection, group: usize, to: &SyncSender<Batch>) -> bool {
    match file.rows(group..group + 1, &selection.roots, selection.batch_rows) {
        Ok(mut rows) => rows.all(|batch| to.send(batch).is_ok()),
        Err(error) => to.send(Err(error)).is_ok(),
    }
}

/// Where the batches of a row group come from.
enum Source {
    Thread(Receiver<Batch>),
    Own(Box<dyn Iterator<Item = Batch> + Send>),
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
            let batch = match &mut self.current {
                None => None,
                Some(Source::Thread(from)) => from.recv().ok(),
                Some(Source::Own(rows)) => rows.next(),
            };
            if let Some(batch) = batch {
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
