//! Saves checkpoints atomically: whenever the process ends, an intact one exists.
//!
//! Each rank writes its files to a temporary folder and syncs them. Rank 0 then writes the manifest, syncs it and the folder,
//! renames the folder, and syncs the parent folder. Only then does the checkpoint count; `latest` follows, and older ones are
//! deleted after the new one was verified.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Acquire;
use std::time::Instant;

use ddp_kernels::Tensor;
use ddp_kernels::cpu::threads;
use ddp_kernels::hint::with_hint;
use rayon::prelude::*;

use super::buffers_file::{self, BUFFERS_FILE};
use super::error::CheckpointError;
use super::fault::{Newest, Room};
use super::gather::{self, Missing, Note};
use super::manifest::{Manifest, ManifestHead};
use super::names::{MANIFEST_FILE, MODEL_FILE, Marker, state_file};
use super::options::{BEST_FILE, SaveOptions};
use super::run_state::RunState;
use super::snapshot::SnapshotBuffers;
use super::store::CheckpointStore;
use crate::storage::disk::{DiskError, OpenFile, at, free_bytes, is_full};
use crate::storage::fault::FileEntry;
use crate::storage::tensor_file;

/// Number of the first save after a loss, above those of any process.
pub(super) const FIRST_OF_SURVIVORS: u64 = 1 << 32;

/// Saves the checkpoints of a run; one per rank that saves.
#[derive(Debug)]
pub struct Saver {
    store: CheckpointStore,
    options: SaveOptions,
    /// Saves so far, the same on all ranks.
    n_saves: u64,
    /// Set when the process ends: rank 0 then stops waiting for other ranks.
    abandoned: Arc<AtomicBool>,
}

/// Contents of a checkpoint, as one rank brings them. All but the state is rank 0's.
#[derive(Debug, Clone, Copy, Default)]
pub struct Contents<'a> {
    /// All weights on rank 0, in the flat buffer's order; None on the others.
    pub weights: Option<&'a [f32]>,
    /// The weights of the best evaluation, in the flat buffer's order, if they are saved. Rank 1 may hold them too, for the loss of
    /// rank 0, and saves none.
    pub best: Option<&'a [f32]>,
    /// Registered buffers by name, in host memory.
    pub registered: &'a [(String, Tensor)],
    /// This rank's state, one tensor per name of [`SaveOptions::state_names`], in parts that follow each other.
    pub state: &'a [Vec<&'a [f32]>],
}

impl<'a> Contents<'a> {
    /// Files of weights.
    fn models(&self) -> impl Iterator<Item = (&'static str, &'a [f32])> {
        let models = [(MODEL_FILE, self.weights), (BEST_FILE, self.weights.and(self.best))];
        models.into_iter().filter_map(|(name, weights)| Some((name, weights?)))
    }
}

/// A saved checkpoint; on ranks other than 0, this rank's files.
#[derive(Debug, Clone, PartialEq)]
pub struct Saved {
    /// Optimizer steps completed, as in its folder's name.
    pub step: u64,
    /// Time from the call to the last sync, in s.
    pub seconds: f64,
    /// Bytes of its files; on ranks other than 0, of their own.
    pub bytes: u64,
    /// Steps whose checkpoints were deleted.
    pub deleted: Vec<u64>,
    /// Warnings after the checkpoint was safe, such as a `latest` that could not be written.
    pub notes: Vec<String>,
}

impl Saver {
    /// Creates a saver to `store`, which rank 0 has [prepared](CheckpointStore::prepare) before any rank saves.
    pub fn new(store: CheckpointStore, options: SaveOptions) -> Self {
        Saver { store, options, n_saves: 0, abandoned: Arc::default() }
    }

    /// A saver whose first save has this number.
    pub(super) fn from_attempt(store: CheckpointStore, options: SaveOptions, n_saves: u64) -> Self {
        Saver { n_saves, ..Self::new(store, options) }
    }

    /// The folder that the next save of `step` writes to.
    pub(super) fn temp_folder(&self, step: u64) -> PathBuf {
        self.store.temp_folder(step, self.n_saves)
    }

    /// Options of the saver.
    pub fn options(&self) -> &SaveOptions {
        &self.options
    }

    /// Store that it saves to.
    pub fn store(&self) -> &CheckpointStore {
        &self.store
    }

    pub(super) fn abandoned(&self) -> Arc<AtomicBool> {
        self.abandoned.clone()
    }

    /// Whether a save failed because a rank is lost, which the report of that says.
    pub(crate) fn is_given_up(&self, error: &CheckpointError) -> bool {
        matches!(error, CheckpointError::Abandoned { .. }) && self.options.is_rank_lost.load(Acquire)
    }

    /// Whether rank 0 waits for no other rank any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Acquire) || self.options.is_rank_lost.load(Acquire)
    }

    /// Saves a checkpoint, which is on disk when rank 0's call returns. All ranks below
    /// [`n_savers`](SaveOptions::n_savers) call it, equally often, with the same `run`.
    ///
    /// - `weights`: all of them on rank 0, in the flat buffer's order; None on the others
    /// - `state`: this rank's state, one tensor per name of [`state_names`](SaveOptions::state_names)
    ///
    /// # Errors
    /// [`CheckpointError::Save`], [`CheckpointError::RanksMissing`], [`CheckpointError::RankFailed`]: older checkpoints are
    /// unchanged. [`CheckpointError::ReadBack`]: older checkpoints are unchanged, next to a bad new one.
    pub fn save(
        &mut self,
        run: &RunState,
        weights: Option<&[f32]>,
        state: &[&[f32]],
    ) -> Result<Saved, CheckpointError> {
        let state: Vec<_> = state.iter().map(|&values| vec![values]).collect();
        self.save_all(run, Contents { weights, state: &state, ..Contents::default() })
    }

    /// Same as [`Saver::save`], of all that a checkpoint can hold.
    ///
    /// # Errors
    /// See [`Saver::save`].
    pub fn save_all(&mut self, run: &RunState, contents: Contents<'_>) -> Result<Saved, CheckpointError> {
        let (started, attempt) = (Instant::now(), self.n_saves);
        self.n_saves += 1;
        let temp = self.store.temp_folder(run.step, attempt);
        // A survivor is not alone: others may be writing.
        if self.options.rank == 0 && attempt < FIRST_OF_SURVIVORS {
            self.store.remove_temps_before(attempt);
        }
        threads::join_any_pool();
        // No later step makes the weights finite again, and saving them would delete older checkpoints.
        if contents.weights.is_some_and(|weights| !weights.par_iter().all(|weight| weight.is_finite())) {
            self.discard_all(&temp);
            return Err(CheckpointError::NotFinite { step: run.step, newest: self.newest(run.step) });
        }
        let needed = self.needed_bytes(&contents);
        let own = self.write_files(&temp, &contents).map_err(|error| {
            let error = self.failed(run.step, needed, error);
            self.give_up(&temp, &error);
            error
        })?;
        let mut saved = Saved {
            step: run.step,
            seconds: 0.0,
            bytes: own.iter().map(|file| file.bytes).sum(),
            deleted: Vec::new(),
            notes: Vec::new(),
        };
        if self.options.rank > 0 {
            gather::leave_note(self.store.disk(), &temp, self.options.rank, &Note::Done(own))
                .map_err(|error| self.failed(run.step, needed, error))
                .inspect_err(|error| self.give_up(&temp, error))?;
            saved.seconds = started.elapsed().as_secs_f64();
            return Ok(saved);
        }
        let manifest =
            self.finish(&temp, run, own, needed).inspect_err(|error| self.give_up(&temp, error))?;
        (saved.seconds, saved.bytes) = (started.elapsed().as_secs_f64(), manifest.n_bytes());
        self.follow_up(run, &mut saved)?;
        Ok(saved)
    }

    /// [`Saver::save_all`] of a snapshot.
    ///
    /// # Errors
    /// See [`Saver::save`].
    pub fn save_snapshot(
        &mut self,
        run: &RunState,
        snapshot: &SnapshotBuffers,
    ) -> Result<Saved, CheckpointError> {
        let state: Vec<_> = snapshot.state().into_iter().map(|values| vec![values]).collect();
        self.save_all(
            run,
            Contents {
                weights: Some(snapshot.weights()).filter(|weights| !weights.is_empty()),
                best: snapshot.best(),
                registered: snapshot.registered(),
                state: &state,
            },
        )
    }

    /// Writes this rank's files.
    fn write_files(&self, temp: &Path, contents: &Contents<'_>) -> Result<Vec<FileEntry>, DiskError> {
        let (disk, options) = (self.store.disk(), &self.options);
        disk.create_dir_all(temp).map_err(at("make", temp))?;
        let mut files = Vec::new();
        for (name, weights) in contents.models() {
            let (tensors, metadata) = options.model(weights, contents.registered);
            files.push(tensor_file::write(disk, &temp.join(name), &tensors, &metadata)?);
        }
        if !contents.registered.is_empty() {
            let tensors = buffers_file::tensors(contents.registered);
            files.push(tensor_file::write(disk, &temp.join(BUFFERS_FILE), &tensors, &HashMap::new())?);
        }
        if !options.state_names.is_empty() {
            let (tensors, metadata) = options.state(contents.state);
            let path = temp.join(state_file(options.rank, options.n_savers));
            files.push(tensor_file::write(disk, &path, &tensors, &metadata)?);
        }
        let sync = |(file, entry): (OpenFile, FileEntry)| {
            disk.sync(&file).map_err(at("sync", &file.path))?;
            Ok(entry)
        };
        files.into_iter().map(sync).collect()
    }

    fn needed_bytes(&self, contents: &Contents<'_>) -> u64 {
        let (tensors, metadata) = self.options.state(contents.state);
        let state = if tensors.is_empty() { 0 } else { tensor_file::file_bytes(&tensors, &metadata) };
        let of_model = |(_, weights)| {
            let (tensors, metadata) = self.options.model(weights, contents.registered);
            tensor_file::file_bytes(&tensors, &metadata)
        };
        let registered = match contents.registered {
            [] => 0,
            buffers => tensor_file::file_bytes(&buffers_file::tensors(buffers), &HashMap::new()),
        };
        state + registered + contents.models().map(of_model).sum::<u64>()
    }

    /// Waits for the other ranks' files and completes the checkpoint, on rank 0.
    fn finish(
        &self,
        temp: &Path,
        run: &RunState,
        own: Vec<FileEntry>,
        needed: u64,
    ) -> Result<Manifest, CheckpointError> {
        let options = &self.options;
        let others = gather::wait(temp, options.n_savers, options.rank_timeout, &|| self.is_abandoned())
            .map_err(|missing| self.missing(run.step, missing))?;
        let head = ManifestHead {
            run_id: options.run_id.clone(),
            world_size: options.world_size,
            data_fingerprint: options.data_fingerprint.clone(),
            run: run.clone(),
            parameters: options.parameters(),
            state: options.state_names.clone(),
            config: options.info.config.clone(),
        };
        let manifest = Manifest::new(head, own.into_iter().chain(others).collect());
        self.commit(temp, &manifest).map_err(|error| self.failed(run.step, needed, error))?;
        Ok(manifest)
    }

    fn commit(&self, temp: &Path, manifest: &Manifest) -> Result<(), DiskError> {
        let disk = self.store.disk();
        gather::remove_notes(disk, temp, self.options.n_savers)?;
        let path = temp.join(MANIFEST_FILE);
        let mut file = disk.create(&path).map_err(at("make", &path))?;
        disk.write(&mut file, &manifest.to_bytes()).map_err(at("write", &path))?;
        disk.sync(&file).map_err(at("sync", &path))?;
        disk.sync_dir(temp).map_err(at("sync", temp))?;
        self.store.commit(temp, manifest.run.step)
    }

    /// Updates the markers and deletes old checkpoints after verifying the new one, on rank 0.
    fn follow_up(&self, run: &RunState, saved: &mut Saved) -> Result<(), CheckpointError> {
        // Where the step of the best evaluation was not saved, each later checkpoint has its weights.
        let has_best =
            || self.store.checkpoint(run.step).is_ok_and(|checkpoint| checkpoint.best_path().is_some());
        // The marker may have been left as it was, by a full disk or the end of the process.
        let best = run.best.as_ref().filter(|_| self.options.keep_best).map(|best| best.step);
        let best = best.and_then(|best| {
            let is_there = best == run.step || self.store.checkpoint(best).is_ok();
            if is_there { Some(best) } else { has_best().then_some(run.step) }
        });
        let best = best.filter(|best| self.store.marked_step(Marker::Best) != Some(*best));
        let markers = [Some((Marker::Latest, run.step)), best.map(|best| (Marker::Best, best))];
        for (marker, step) in markers.into_iter().flatten() {
            if let Err(DiskError { action, path, source }) = self.store.mark(marker, step) {
                saved.notes.push(format!("can't {action} `{}`: {source}", path.display()));
            }
        }
        // The marker can name an older checkpoint, if the run's best could not be saved.
        let of_run = run.best.iter().map(|best| best.step);
        let marked = self.store.marked_step(Marker::Best).into_iter();
        let spared: Vec<u64> = marked.chain(of_run).filter(|_| self.options.keep_best).collect();
        // Checkpoints of later steps were damaged when this run resumed.
        let looks_intact = |step| self.store.checkpoint(step).is_ok();
        let due = match self.options.keep {
            0 => Ok(Vec::new()),
            keep => self.store.superfluous(run.step, keep, &spared, looks_intact),
        };
        let due = due.unwrap_or_else(|error| {
            saved.notes.push(with_hint(&error));
            Vec::new()
        });
        if due.is_empty() {
            return Ok(());
        }
        let read_back = self.store.checkpoint(run.step).and_then(|checkpoint| checkpoint.verify());
        read_back.map_err(|fault| CheckpointError::ReadBack { step: run.step, fault })?;
        for step in due {
            match self.store.delete(step) {
                Ok(()) => saved.deleted.push(step),
                Err(error) => saved.notes.push(with_hint(&error)),
            }
        }
        Ok(())
    }

    /// Removes the files of all ranks, on rank 0 before it has written its own. The others may still be writing, and would make the folder
    /// anew.
    fn discard_all(&self, temp: &Path) {
        let SaveOptions { n_savers, rank_timeout, .. } = self.options;
        // Rank 0 has failed already; the next save removes what ranks that are late leave.
        let _ = gather::wait(temp, n_savers, rank_timeout, &|| self.is_abandoned());
        let _ = self.store.remove(temp);
    }

    /// Removes the written files after a failure, and reports the failure to rank 0.
    pub(super) fn give_up(&self, temp: &Path, error: &CheckpointError) {
        // The disk has failed already: the next start removes what this can't.
        if self.options.rank == 0 {
            let _ = self.store.remove(temp);
        } else {
            let path = temp.join(state_file(self.options.rank, self.options.n_savers));
            let _ = self.store.remove(&path);
            let note = Note::Failed(with_hint(error));
            // Rank 0 may not have made it yet, and would wait in vain for a note that has no place.
            let _ = self.store.disk().create_dir_all(temp);
            let _ = gather::leave_note(self.store.disk(), temp, self.options.rank, &note);
        }
    }

    pub(super) fn failed(&self, step: u64, needed_bytes: u64, error: DiskError) -> CheckpointError {
        let DiskError { action, path, source } = error;
        let free_bytes = if is_full(&source) { free_bytes(self.store.folder()) } else { None };
        let room = Room { needed_bytes, free_bytes };
        // The new one has its final name by then, but may not be on disk.
        let is_placed = action == "sync" && path == self.store.folder();
        let newest = if is_placed { Newest(self.store.newest_step_below(step)) } else { self.newest(step) };
        CheckpointError::Save { step, action, path, source, room, newest }
    }

    pub(super) fn missing(&self, step: u64, missing: Missing) -> CheckpointError {
        let newest = self.newest(step);
        match missing {
            Missing::Failed { rank, reason } => {
                // The newest checkpoint is reported by this rank's own error.
                let reason = reason.lines().next().unwrap_or_default().to_owned();
                CheckpointError::RankFailed { step, rank, reason, newest }
            }
            Missing::Silent { ranks, waited } => CheckpointError::RanksMissing {
                step,
                ranks: gather::list_ranks(&ranks),
                waited,
                folder: self.store.folder().to_owned(),
                newest,
            },
            Missing::Abandoned => CheckpointError::Abandoned { step, newest },
        }
    }

    /// Newest checkpoint to resume from, up to `step`: later ones were damaged when this run resumed.
    fn newest(&self, step: u64) -> Newest {
        Newest(self.store.newest_step_below(step + 1))
    }
}
