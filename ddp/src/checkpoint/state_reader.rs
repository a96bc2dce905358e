//! Reads optimizer state from a checkpoint for the shards that a rank holds now.
//!
//! The state files record which elements of which parameters they hold, so a run can resume with another number of ranks, or
//! another sharding, than it was saved with.

use std::collections::HashMap;
use std::path::PathBuf;

use ddp_kernels::cpu::threads;
use rayon::prelude::*;

use super::error::CheckpointError;
use super::fault::Fault;
use super::names::STATE_PREFIX;
use super::opened::Checkpoint;
use super::options::SHARD_RANGES_KEY;
use super::shard_range::ShardRange;
use crate::storage::fault::FileFault;
use crate::storage::tensor_file::{Target, TensorFile};

/// Elements that a thread reads at a time.
const READ_ELEMENTS: usize = 2 << 20;

/// The state files of a checkpoint, open.
#[derive(Debug)]
pub struct StateReader {
    path: PathBuf,
    names: Vec<String>,
    files: Vec<TensorFile>,
    /// Stored ranges by name of the parameter, in the order of its elements.
    stored: HashMap<String, Vec<Stored>>,
    /// Elements of each parameter.
    numels: HashMap<String, usize>,
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
    /// Opens the state files of a checkpoint.
    ///
    /// # Errors
    /// The [`Fault`] of a file.
    pub fn open(checkpoint: &Checkpoint) -> Result<Self, Fault> {
        let manifest = checkpoint.manifest();
        let (mut files, mut stored) = (Vec::new(), HashMap::<String, Vec<Stored>>::new());
        for entry in manifest.files.iter().filter(|entry| entry.name.starts_with(STATE_PREFIX)) {
            let file = TensorFile::open(&checkpoint.path().join(&entry.name))?;
            let malformed = |reason: String| FileFault::Malformed { name: entry.name.clone(), reason };
            let shard_ranges = file.metadata().remove(SHARD_RANGES_KEY).unwrap_or_default();
            let shard_ranges: Vec<ShardRange> = serde_json::from_str(&shard_ranges)
                .map_err(|error| malformed(format!("`{SHARD_RANGES_KEY}`: {error}")))?;
            for ShardRange { param, start, end, offset } in shard_ranges {
                if start > end {
                    return Err(malformed(format!("a range of {param} ends before it starts")).into());
                }
                if offset.checked_add(end - start).is_none() {
                    return Err(malformed(format!("a range of {param} starts at element {offset}")).into());
                }
                stored.entry(param).or_default().push(Stored { start, end, file: files.len(), offset });
            }
            files.push(file);
        }
        stored.values_mut().for_each(|of_param| of_param.sort_by_key(|stored| (stored.start, stored.end)));
        let numels = manifest.parameters.iter().map(|p| (p.name.clone(), p.numel())).collect();
        let (path, names) = (checkpoint.path().to_owned(), manifest.state.clone());
        Ok(StateReader { path, names, files, stored, numels })
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
        let read =
            |run: Run<'_>| self.files[run.file].read(name, run.offset..run.offset + run.out.len(), run.out);
        threads::join_any_pool();
        let all: Result<(), FileFault> = runs.into_par_iter().map(read).collect();
        all.map_err(|fault| CheckpointError::Damaged { path: self.path.clone(), fault: fault.into() })
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
            let file = &self.files[run.file];
            let at = file.place(name, run.offset..run.offset + run.out.len())?;
            Ok((file.name(), Target { at, out: bytemuck::cast_slice_mut(run.out) }))
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
                match file.dims(name) {
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
