//! Reads optimizer state from a checkpoint for the shards that a rank holds now.
//!
//! The state files record which elements of which parameters they hold, so a run can resume with another number of ranks, or
//! another sharding, than it was saved with.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::OnceLock;

use ddp_kernels::cpu::threads;
use rayon::prelude::*;

use super::error::CheckpointError;
use super::fault::Fault;
use super::opened::Checkpoint;
use super::shard_range::ShardRange;
use super::state_header::{StateHeader, StateShare};
use crate::storage::fault::FileFault;
use crate::storage::tensor_file::{Target, TensorFile};

/// Elements that a thread reads at a time.
const READ_ELEMENTS: usize = 2 << 20;

/// The state files of a checkpoint.
#[derive(Debug)]
pub struct StateReader {
    path: PathBuf,
    names: Vec<String>,
    files: Vec<StateFile>,
    /// Stored ranges by name of the parameter, in the order of its elements.
    stored: HashMap<String, Vec<Stored>>,
    /// Elements of each parameter.
    numels: HashMap<String, usize>,
}

/// A state file; opened when it is read first.
#[derive(Debug)]
struct StateFile {
    header: StateHeader,
    opened: OnceLock<TensorFile>,
}

/// A stored range of a parameter and its location.
#[derive(Debug, Clone, Copy)]
struct Stored {
    start: usize,
    end: usize,
    file: usize,
    offset: usize,
}

/// Elements of a state tensor to read from one location.
struct Run<'a> {
    file: usize,
    offset: usize,
    out: &'a mut [f32],
}

impl StateReader {
    /// Opens all state files of a checkpoint.
    ///
    /// # Errors
    /// The [`Fault`] of a file.
    pub fn open(checkpoint: &Checkpoint) -> Result<Self, Fault> {
        let StateShare { files, headers } = StateShare::open(checkpoint, 0, 1)?;
        Ok(Self::new(checkpoint, headers, files))
    }

    /// Reads a checkpoint whose headers the ranks have exchanged: `own` is this rank's share, and `all` are those of all ranks, as
    /// [`StateShare::to_bytes`] returns them. Other files are opened when they are read.
    ///
    /// # Errors
    /// [`Fault::File`] if the bytes are not those of headers.
    pub fn from_shares(checkpoint: &Checkpoint, own: StateShare, all: &[&[u8]]) -> Result<Self, Fault> {
        let mut headers = Vec::new();
        for share in all {
            let share: Vec<StateHeader> = serde_json::from_slice(share).map_err(|error| {
                FileFault::Malformed { name: "optimizer state".to_owned(), reason: error.to_string() }
            })?;
            headers.extend(share);
        }
        Ok(Self::new(checkpoint, headers, own.files))
    }

    /// `opened` are some of the files that the headers are of.
    fn new(checkpoint: &Checkpoint, headers: Vec<StateHeader>, opened: Vec<TensorFile>) -> Self {
        let mut opened: HashMap<_, _> =
            opened.into_iter().map(|file| (file.name().to_owned(), file)).collect();
        let (mut files, mut stored) = (Vec::new(), HashMap::<String, Vec<Stored>>::new());
        for mut header in headers {
            for ShardRange { param, start, end, offset } in std::mem::take(&mut header.ranges) {
                stored.entry(param).or_default().push(Stored { start, end, file: files.len(), offset });
            }
            let opened = opened.remove(&header.file).map_or_else(OnceLock::new, OnceLock::from);
            files.push(StateFile { header, opened });
        }
        stored.values_mut().for_each(|of_param| of_param.sort_by_key(|stored| (stored.start, stored.end)));
        let manifest = checkpoint.manifest();
        let numels = manifest.parameters.iter().map(|p| (p.name.clone(), p.numel())).collect();
        let (path, names) = (checkpoint.path().to_owned(), manifest.state.clone());
        StateReader { path, names, files, stored, numels }
    }

    /// Opens the file at `index`, if it is not open.
    fn file(&self, index: usize) -> Result<&TensorFile, FileFault> {
        let StateFile { header, opened } = &self.files[index];
        match opened.get() {
            Some(file) => Ok(file),
            None => {
                let file = TensorFile::open(&self.path.join(&header.file))?;
                Ok(opened.get_or_init(|| file))
            }
        }
    }

    /// Opens the file of this name, if it is not open; None if it is no state file.
    ///
    /// # Errors
    /// Same as [`TensorFile::open`].
    pub(super) fn file_named(&self, name: &str) -> Result<Option<&TensorFile>, FileFault> {
        let index = self.files.iter().position(|file| file.header.file == name);
        index.map(|index| self.file(index)).transpose()
    }

    /// Names of the state tensors.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Reads the ranges `wanted` of the state `name`, each to its offset in `out`, from all files that hold some of them; other
    /// elements of `out` are unchanged.
    ///
    /// # Errors
    /// [`CheckpointError::Gap`] if an element is in no file, [`CheckpointError::Damaged`] if a file can't be read.
    ///
    /// # Panics
    /// If ranges overlap in `out` or end after it.
    pub fn read(&self, wanted: &[ShardRange], name: &str, out: &mut [f32]) -> Result<(), CheckpointError> {
        let runs = self.runs(wanted, name, out)?;
        let damaged =
            |fault: FileFault| CheckpointError::Damaged { path: self.path.clone(), fault: fault.into() };
        // Before the threads, which would open a file several times.
        runs.iter().try_for_each(|run| self.file(run.file).map(drop)).map_err(damaged)?;
        let read =
            |run: Run<'_>| self.file(run.file)?.read(name, run.offset..run.offset + run.out.len(), run.out);
        threads::join_any_pool();
        let all: Result<(), FileFault> = runs.into_par_iter().map(read).collect();
        all.map_err(damaged)
    }

    /// Locates the elements that [`read`](Self::read) reads, with their targets, each with the name of its file.
    ///
    /// # Errors
    /// See [`read`](Self::read).
    ///
    /// # Panics
    /// See [`read`](Self::read).
    pub(super) fn places<'a>(
        &self,
        wanted: &[ShardRange],
        name: &str,
        out: &'a mut [f32],
    ) -> Result<Vec<(&str, Target<'a>)>, CheckpointError> {
        let place = |run: Run<'a>| {
            let header = &self.files[run.file].header;
            let at = header.place(name, run.offset, run.offset + run.out.len())?;
            Ok((header.file.as_str(), Target { at, out: bytemuck::cast_slice_mut(run.out) }))
        };
        let places: Result<_, Fault> = self.runs(wanted, name, out)?.into_iter().map(place).collect();
        places.map_err(|fault| CheckpointError::Damaged { path: self.path.clone(), fault })
    }

    fn runs<'a>(
        &self,
        wanted: &[ShardRange],
        name: &str,
        out: &'a mut [f32],
    ) -> Result<Vec<Run<'a>>, CheckpointError> {
        let mut in_order: Vec<&ShardRange> = wanted.iter().filter(|range| !range.is_empty()).collect();
        in_order.sort_by_key(|range| range.offset);
        let (mut rest, mut at, mut runs) = (out, 0, Vec::new());
        for range in in_order {
            let (_, after) = rest.split_at_mut(range.offset - at);
            let (values, after) = after.split_at_mut(range.len());
            (rest, at) = (after, range.offset + range.len());
            self.find(range, name, values, &mut runs)?;
        }
        Ok(runs)
    }

    /// Adds to `runs` the locations from which `out`, the elements of `range`, are read.
    fn find<'a>(
        &self,
        range: &ShardRange,
        name: &str,
        mut out: &'a mut [f32],
        runs: &mut Vec<Run<'a>>,
    ) -> Result<(), CheckpointError> {
        let gap = |start, end| CheckpointError::Gap {
            path: self.path.clone(),
            state: name.to_owned(),
            param: range.param.clone(),
            start,
            end,
        };
        let stored = match self.stored.get(&range.param) {
            Some(stored) if self.names.iter().any(|known| known == name) => stored.as_slice(),
            _ => return Err(gap(range.start, range.end)),
        };
        let mut at = range.start;
        for part in stored {
            if at < range.end && part.start > at {
                return Err(gap(at, part.start.min(range.end)));
            }
            let end = part.end.min(range.end);
            while at < end {
                let (values, after) = out.split_at_mut((end - at).min(READ_ELEMENTS));
                runs.push(Run { file: part.file, offset: part.offset + at - part.start, out: values });
                at += runs.last().map_or(0, |run| run.out.len());
                out = after;
            }
        }
        if at < range.end { Err(gap(at, range.end)) } else { Ok(()) }
    }

    /// Checks that each element of each parameter is stored exactly once, and that the files' tensors are as long as their
    /// ranges say. Checks nothing where the run had no state.
    pub(super) fn check(&self) -> Result<(), Fault> {
        if self.names.is_empty() {
            return Ok(());
        }
        let malformed = |reason: String| FileFault::Malformed { name: "optimizer state".to_owned(), reason };
        for (param, &numel) in &self.numels {
            let mut at = 0;
            for part in self.stored.get(param).into_iter().flatten().filter(|part| part.start < part.end) {
                if part.start != at {
                    let what = if part.start > at { "missing" } else { "stored twice" };
                    let (low, high) = (at.min(part.start), at.max(part.start));
                    return Err(malformed(format!("elements {low} to {high} of {param} are {what}")).into());
                }
                at = part.end;
            }
            if at != numel {
                return Err(malformed(format!("{at} of {numel} elements of {param} are stored")).into());
            }
        }
        if let Some(param) = self.stored.keys().find(|&param| !self.numels.contains_key(param)) {
            return Err(malformed(format!("it holds {param}, which is not in the model")).into());
        }
        for (index, file) in self.files.iter().enumerate() {
            let ends = self.stored.values().flatten().filter(|part| part.file == index);
            let needed = ends.map(|part| part.offset + part.end - part.start).max().unwrap_or(0);
            for name in &self.names {
                match file.header.dims(name) {
                    Some(&[got]) if got >= needed => {}
                    got => {
                        return Err(
                            malformed(format!("{name} is {got:?}, expected at least [{needed}]")).into()
                        );
                    }
                }
            }
        }
        Ok(())
    }
}
