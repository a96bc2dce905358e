//! Loads weights and state from a checkpoint in one pass: checksums are computed while bytes are copied to their targets, so
//! resuming takes as long as reading.
//!
//! The state files are assigned to the ranks. Each rank reads its own files whole, and of the others what it needs; so all
//! ranks together verify every byte, and with the same number of ranks each opens only the file that it wrote. With another number of
//! ranks, a rank also reads bytes that another rank verifies: this detects faults on the disk, not on the way to one host.

use std::collections::HashMap;
use std::path::PathBuf;

use ddp_kernels::cpu::threads;
use rayon::prelude::*;

use super::buffers_file::BUFFERS_FILE;
use super::error::CheckpointError;
use super::fault::Fault;
use super::names::{MODEL_FILE, STATE_PREFIX};
use super::opened::Checkpoint;
use super::options::BEST_FILE;
use super::shard_range::ShardRange;
use super::state_reader::StateReader;
use super::verify::check_checksum;
use crate::model::layout::{ParamLayout, Statistic};
use crate::storage::checksum::Hasher;
use crate::storage::fault::{FileEntry, FileFault};
use crate::storage::stream;
use crate::storage::stream::Caching;
use crate::storage::tensor_file::{Target, TensorFile};

/// Targets of a rank's load.
#[derive(Debug)]
pub struct Load<'a> {
    /// Layout of the model's parameters in the flat buffer.
    pub layout: &'a ParamLayout,
    /// The flat buffer; its gaps are unchanged.
    pub weights: &'a mut [f32],
    /// Ranges of parameters that the rank holds state of.
    pub shard_ranges: &'a [ShardRange],
    /// State tensors by name; elements in no range are unchanged.
    pub state: Vec<(&'a str, &'a mut [f32])>,
    /// This rank.
    pub rank: usize,
    /// Number of ranks, all of which load.
    pub world_size: usize,
    /// The state files, of which this rank has opened its [share](super::StateShare).
    pub reader: &'a StateReader,
    /// Whether other processes of the host read the same files.
    pub caching: Caching,
}

impl Checkpoint {
    /// Reads weights and state, and compares the checksums of this rank's share of the files. The checkpoint is intact only if
    /// this succeeds on all ranks; until then the result must not be used.
    ///
    /// # Errors
    /// [`CheckpointError::OtherModel`] with every difference if names or shapes differ from the layout's,
    /// [`CheckpointError::Gap`] for missing state, and [`CheckpointError::Damaged`].
    ///
    /// # Panics
    /// If the weights are not of the layout's length, or ranges overlap in a state tensor or end after it.
    pub fn load(&self, load: Load<'_>) -> Result<(), CheckpointError> {
        let Load { layout, weights, shard_ranges, state, rank, world_size, reader, caching } = load;
        assert_eq!(weights.len(), layout.flat_len(), "elements of the flat buffer");
        self.check_layout(layout)?;
        let damaged = |fault: Fault| self.damaged(fault);
        // Invalid headers usually mean a changed file: report that fault first.
        let invalid = |fault| self.damaged(self.verify().err().unwrap_or(fault));
        let model = TensorFile::open(&self.model_path()).map_err(Fault::File).map_err(invalid)?;
        self.check_content(&model, reader).map_err(invalid)?;

        let mut targets: HashMap<&str, Vec<Target<'_>>> = HashMap::new();
        for (name, values) in by_parameter(layout, weights) {
            let at = model.place(name, 0..values.len()).map_err(Fault::File).map_err(damaged)?;
            targets.entry(MODEL_FILE).or_default().push(Target { at, out: bytemuck::cast_slice_mut(values) });
        }
        for (name, values) in state {
            for (file, target) in reader.places(shard_ranges, name, values)? {
                targets.entry(file).or_default().push(target);
            }
        }
        let mut files = Vec::new();
        for (entry, verifier) in self.verifiers(world_size) {
            let is_whole = verifier.is_none_or(|verifier| verifier == rank);
            files.push((entry, is_whole, targets.remove(entry.name.as_str()).unwrap_or_default()));
        }
        if let Some(name) = targets.keys().next() {
            // The file exists, but the manifest does not list it.
            return Err(damaged(FileFault::Missing { name: (*name).to_owned() }.into()));
        }
        let read = |(entry, is_whole, targets): (&FileEntry, bool, Vec<Target<'_>>)| {
            if !is_whole && targets.is_empty() {
                return Ok(());
            }
            let opened = match entry.name.as_str() {
                MODEL_FILE => Some(&model),
                name => reader.file_named(name)?,
            };
            match opened {
                Some(file) if !is_whole => read_some(file, targets),
                _ => self.read_whole(entry, opened, targets, caching),
            }
        };
        threads::join_any_pool();
        files.into_par_iter().map(read).collect::<Result<(), Fault>>().map_err(damaged)
    }

    /// The model file of the best evaluation, if the checkpoint has one besides its own.
    pub fn best_path(&self) -> Option<PathBuf> {
        let path = self.path().join(BEST_FILE);
        self.manifest().files.iter().any(|entry| entry.name == BEST_FILE).then_some(path)
    }

    /// Reads the weights of the best evaluation into a flat buffer of the layout, followed by its statistics, if the checkpoint has
    /// them in a file of their own. [`Checkpoint::load`] compares the file's checksum.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`].
    pub fn best_weights(&self, layout: &ParamLayout) -> Result<Option<Vec<f32>>, CheckpointError> {
        self.best_path().map(|_| self.weights_and_statistics(layout, BEST_FILE)).transpose()
    }

    /// Reads the weights of the best evaluation from their own file or, if the checkpoint is of that step, from its model's, and compares
    /// its checksum.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`].
    pub fn weights_of_best(&self, layout: &ParamLayout) -> Result<Vec<f32>, CheckpointError> {
        let name = self.best_path().map_or(MODEL_FILE, |_| BEST_FILE);
        let mut entries = self.manifest().files.iter().filter(|entry| entry.name == name);
        let verified = entries.try_for_each(|entry| self.verify_file(entry, Caching::Keep));
        verified.map_err(|fault| self.damaged(fault))?;
        self.weights_and_statistics(layout, name)
    }

    fn weights_and_statistics(&self, layout: &ParamLayout, name: &str) -> Result<Vec<f32>, CheckpointError> {
        let damaged = |fault: FileFault| self.damaged(fault);
        let file = TensorFile::open(&self.path().join(name)).map_err(damaged)?;
        let mut weights = vec![0.0; layout.flat_len()];
        for (name, values) in by_parameter(layout, &mut weights) {
            file.read(name, 0..values.len(), values).map_err(damaged)?;
        }
        for Statistic { name, .. } in layout.statistics() {
            weights.extend(file.tensor(name).map_err(damaged)?);
        }
        Ok(weights)
    }

    /// The files, each with the rank of `world_size` that reads it whole; None stands for all.
    fn verifiers(&self, world_size: usize) -> impl Iterator<Item = (&FileEntry, Option<usize>)> {
        let mut n_state = 0;
        self.manifest().files.iter().map(move |entry| {
            let verifier = match entry.name.as_str() {
                // All ranks read the weights whole.
                MODEL_FILE => None,
                BEST_FILE | BUFFERS_FILE => Some(0),
                _ => {
                    n_state += 1;
                    Some((n_state - 1) % world_size)
                }
            };
            (entry, verifier)
        })
    }

    /// The state files that a rank of `world_size` reads whole.
    pub(super) fn state_files_of(&self, rank: usize, world_size: usize) -> impl Iterator<Item = &FileEntry> {
        let own = self.verifiers(world_size).filter(move |(_, verifier)| *verifier == Some(rank));
        own.map(|(entry, _)| entry).filter(|entry| entry.name.starts_with(STATE_PREFIX))
    }

    /// Reads a whole file, copies the targets' bytes, and compares its checksum.
    fn read_whole(
        &self,
        entry: &FileEntry,
        opened: Option<&TensorFile>,
        mut targets: Vec<Target<'_>>,
        caching: Caching,
    ) -> Result<(), Fault> {
        targets.sort_by_key(|target| target.at);
        let (mut hasher, mut first) = (Hasher::new(), 0);
        let take = |start: u64, bytes: &[u8]| {
            // In chunks that stay in the core's cache between hashing and copying.
            for (i, bytes) in bytes.chunks(stream::SEEN_BYTES).enumerate() {
                let start = start + (i * stream::SEEN_BYTES) as u64;
                hasher.update(bytes);
                first += scatter(start, bytes, &mut targets[first..]);
            }
        };
        let read = match opened {
            Some(file) => file.stream(caching, take),
            None => stream::read(&self.path().join(&entry.name), caching, take),
        };
        check_checksum(entry, read.map(|_| (hasher.n_bytes(), hasher.checksum())))
    }
}

/// Reads the targets' bytes.
fn read_some(file: &TensorFile, targets: Vec<Target<'_>>) -> Result<(), Fault> {
    targets.into_par_iter().map(|Target { at, out }| Ok(file.read_at(at, out)?)).collect()
}

/// Each parameter's slice of the flat buffer.
fn by_parameter<'a>(layout: &'a ParamLayout, flat: &'a mut [f32]) -> Vec<(&'a str, &'a mut [f32])> {
    let (mut rest, mut at, mut parts) = (flat, 0, Vec::new());
    for entry in layout.entries() {
        let (_, after) = rest.split_at_mut(entry.start - at);
        let (values, after) = after.split_at_mut(entry.numel());
        (rest, at) = (after, entry.range().end);
        parts.push((entry.name.as_str(), values));
    }
    parts
}

/// Copies a file's `bytes` at `start` to the overlapping `targets`, which are in file order. Returns how many leading targets
/// are complete.
fn scatter(start: u64, bytes: &[u8], targets: &mut [Target<'_>]) -> usize {
    let end = start + bytes.len() as u64;
    let mut n_complete = 0;
    for (i, target) in targets.iter_mut().enumerate() {
        if target.at >= end {
            break;
        }
        let target_end = target.at + target.out.len() as u64;
        let (from, to) = (target.at.max(start), target_end.min(end));
        if from < to {
            let source = &bytes[(from - start) as usize..(to - start) as usize];
            target.out[(from - target.at) as usize..(to - target.at) as usize].copy_from_slice(source);
        }
        if target_end <= end && i == n_complete {
            n_complete += 1;
        }
    }
    n_complete
}
