//! Resuming a run: finds the checkpoint, checks that it belongs to this run, and restores the trainer from it.
//!
//! ```
//! use ddp::prelude::*;
//! use ddp::train::resume::{ResumeFrom, Resumed};
//!
//! // A run's folder: its newest checkpoint.
//! let from = ResumeFrom::Path("tests/fixtures/saved_runs/regression/finished".into());
//! let resumed = Resumed::find(&World::single(), Some(&from), None)?.expect("a run with checkpoints");
//! assert_eq!((resumed.state().step, resumed.manifest().world_size), (80, 1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod checks;
pub mod rates;

use std::ffi::OsString;
use std::io::{self, BufRead as _, BufReader};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use ddp_comm::World;
use tracing::{info, warn};

use crate::checkpoint::{
    Best, Checkpoint, CheckpointError, CheckpointStore, Fault, Located, Manifest, RunState, Search, Skipped,
    StateReader, StateShare, step_name,
};
use crate::config::{Config, Overrides};
use crate::data::Loaded;
use crate::run_folder::error::FolderError;
use crate::run_folder::folder::{self, CHECKPOINTS, Existing, METRICS_FILE, MODEL_FILE};
use crate::storage::fingerprint::fingerprint;
use crate::storage::user_file::open_regular;
use crate::train::error::{Result, Stop, TrainError};
use crate::train::trainer::Trainer;

/// The checkpoint to resume from, as the user named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumeFrom {
    /// The newest valid checkpoint of the output folder.
    Auto,
    /// This checkpoint, or the newest valid one of this run.
    Path(PathBuf),
}

/// The checkpoint that a run resumes from.
#[derive(Debug)]
pub struct Resumed {
    checkpoint: Checkpoint,
    /// Store with older checkpoints, unless one checkpoint was named; known to rank 0.
    store: Option<CheckpointStore>,
    /// Newer checkpoints that can't be used, with their faults; known to rank 0.
    skipped: Vec<Skipped>,
    /// Weights of the run's best evaluation after [`Resumed::restore`], on the ranks that may save them, if the checkpoint has them.
    best_weights: Option<Vec<f32>>,
}

impl Resumed {
    /// Finds the checkpoint that `from` names, in the run's folder `out` for [`ResumeFrom::Auto`]: of several the newest whose
    /// manifest and file sizes are right. Checksums are compared while it is [read](Self::restore). Rank 0 searches for all ranks.
    ///
    /// # Errors
    /// [`Stop`] with a [`CheckpointError`], on all ranks alike.
    pub fn find(world: &World, from: Option<&ResumeFrom>, out: Option<&Path>) -> Result<Option<Self>, Stop> {
        let Some(from) = from else { return Ok(None) };
        let found = match world.rank().0 {
            0 => find_checkpoint(from, out),
            _ => Ok(None),
        };
        Self::on_all_ranks(world, found)
    }

    /// Finds the newest checkpoint in the folder `out` of a training loop of a program's own, as [`Resumed::find`] does; None without
    /// any. Collective.
    ///
    /// # Errors
    /// [`Stop`] with a [`CheckpointError`], on all ranks alike.
    pub(crate) fn newest_of(world: &World, out: &Path) -> Result<Option<Self>, Stop> {
        let found = match world.rank().0 {
            0 => newest_in(out),
            _ => Ok(None),
        };
        Self::on_all_ranks(world, found)
    }

    /// Shares rank 0's result with all ranks.
    fn on_all_ranks(world: &World, found: Result<Option<Self>>) -> Result<Option<Self>, Stop> {
        let with_path = |found: Self| {
            let path = std::path::absolute(found.checkpoint.path())
                .map_err(|source| FolderError::Unwritable { path: PathBuf::from("."), source })?;
            Ok((found, path))
        };
        let found = found.and_then(|found| found.map(with_path).transpose());
        let (found, path) = world.collective_result(found)?.unzip();
        let path = shared_path(world, path.as_deref().unwrap_or(Path::new("")))?;
        if path.as_os_str().is_empty() {
            return Ok(None);
        }
        let resumed = found.map_or_else(|| open(&path, Checkpoint::read_manifest), Ok);
        let manifest = |resumed: &Self| {
            let fingerprint = format!("{:016x}", fingerprint(&resumed.manifest().to_bytes()));
            vec![("--resume (fingerprint of the manifest)".to_owned(), fingerprint)]
        };
        Ok(Some(world.agreed_result(resumed, manifest)?))
    }

    /// State of the run at the checkpoint.
    pub fn state(&self) -> &RunState {
        &self.manifest().run
    }

    /// State of the run that continues under `config`, which may judge weights by another metric. Its best evaluation counts as long as the
    /// weights are there.
    pub fn state_under(&self, config: &Config) -> RunState {
        let mut state = self.state().clone();
        let judge = config.checkpoint.keep_best.as_ref().map(ToString::to_string);
        let is_missing = |best: &Best| state.keeps_best_weights && !self.lists_weights_of(best);
        if state.best.as_ref().is_some_and(|best| Some(&best.metric) != judge.as_ref() || is_missing(best)) {
            state.best = None;
        }
        // From the next evaluation on.
        state.keeps_best_weights |= judge.is_some() && state.best.is_none();
        state
    }

    /// Whether the checkpoint has the weights of this evaluation: they are its own, or it has a file of them.
    fn lists_weights_of(&self, best: &Best) -> bool {
        best.step == self.state().step || self.checkpoint.best_path().is_some()
    }

    /// Interval of evaluations in steps before the run was resumed, which may have changed.
    ///
    /// # Errors
    /// See [`Config::load`].
    pub fn eval_every_steps(&self) -> Result<u64> {
        Ok(self.config(&Overrides::default())?.train.eval_every_steps)
    }

    /// Manifest of the checkpoint.
    pub fn manifest(&self) -> &Manifest {
        self.checkpoint.manifest()
    }

    /// Weights of the run's best evaluation after [`Resumed::restore`], if the run keeps them: on rank 0, and on rank 1 for the loss of that one.
    pub fn best_weights(&self) -> Option<&[f32]> {
        self.best_weights.as_deref()
    }

    /// Returns the run's saved config with the settings of the command line applied, for a run without a config file.
    ///
    /// # Errors
    /// See [`Config::load`].
    pub fn config(&self, overrides: &Overrides) -> Result<Config> {
        Ok(Config::from_saved_with(&self.manifest().config, self.checkpoint.path(), overrides)?)
    }

    /// The folder of the run that the checkpoint belongs to, whatever the words of its path.
    ///
    /// # Errors
    /// [`FolderError::NoRun`] for a checkpoint that lies outside of a run, such as a copy.
    pub fn run_folder(&self) -> Result<PathBuf> {
        let path = self.checkpoint.path();
        let run = run_of(path).or_else(|| run_of(&path.canonicalize().ok()?));
        Ok(run.ok_or_else(|| FolderError::NoRun { checkpoint: path.to_owned() })?)
    }

    /// Returns the folder in which the run continues, and how to treat its contents.
    ///
    /// # Errors
    /// [`FolderError::Behind`] if that folder holds later checkpoints than the named one: two runs would continue in it;
    /// [`FolderError::Continued`] if another run has saved them since the search.
    pub fn folder(&self, out: Option<&Path>) -> Result<(PathBuf, Existing)> {
        let run = match (self.run_folder(), out) {
            // A copy continues elsewhere.
            (Err(_), Some(out)) => return Ok((out.to_owned(), Existing::Refuse)),
            (run, _) => run?,
        };
        let is = |a: &Path, b: &Path| a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b));
        if let Some(out) = out.filter(|out| !is(out, &run)) {
            return Ok((out.to_owned(), Existing::Refuse));
        }
        let (store, step) = (CheckpointStore::for_run(&run), self.state().step);
        let is_good =
            |later: &u64| store.checkpoint(*later).is_ok_and(|checkpoint| checkpoint.verify().is_ok());
        // Later checkpoints that can't be used do not block the run.
        if let Some(newest) = store.steps()?.into_iter().rev().take_while(|later| *later > step).find(is_good)
        {
            // Another rank, or an earlier check, found it damaged, although it looks intact now.
            if let Some(skipped) = self.skipped.iter().find(|skipped| skipped.name == step_name(newest)) {
                let (path, fault) = (store.step_folder(newest), skipped.fault.clone());
                return Err(CheckpointError::Damaged { path, fault }.into());
            }
            // None of them was there at the search, unless the user has named one checkpoint.
            let error = match self.store {
                Some(_) => FolderError::Continued { path: run },
                None => FolderError::Behind { run, step, newest },
            };
            return Err(error.into());
        }
        Ok((run, Existing::Continue))
    }

    /// Restores weights, optimizer state and step count of the trainer. Collective. If the checkpoint turns out to be damaged, the next
    /// older intact one of the same run is used; returns the one that was used.
    ///
    /// # Errors
    /// [`Stop`] with [`CheckpointError::OtherModel`], [`CheckpointError::Gap`], or [`CheckpointError::Damaged`] if no older checkpoint
    /// is left.
    pub fn restore(
        self,
        world: &World,
        config: &Config,
        data: &Loaded,
        trainer: &mut Trainer<'_>,
    ) -> Result<Self, Stop> {
        // The loader's partition depends on it.
        let global_rows = self.state().global_rows;
        let restored = self.restore_any(world, trainer, |older| {
            older.check_config(config, world.world_size())?;
            older.check_data(config, data)?;
            older.check_rows(global_rows)
        })?;
        world.collective_result(restored.check_preprocessor(data))?;
        Ok(restored)
    }

    /// [`Resumed::restore`] without the checks of the run; `check` is of the older checkpoints.
    pub(crate) fn restore_any(
        mut self,
        world: &World,
        trainer: &mut Trainer<'_>,
        check: impl Fn(&Self) -> Result<()>,
    ) -> Result<Self, Stop> {
        loop {
            let read = match share_state(world, &self.checkpoint)? {
                Ok(reader) => {
                    let best_weights = trainer.restore(&self.checkpoint, &reader);
                    best_weights.map(|best_weights| self.best_weights = best_weights)
                }
                Err(fault) => Err(self.checkpoint.damaged(fault).into()),
            };
            let (damage, rest) = match read {
                Err(TrainError::Checkpoint(error)) => match *error {
                    CheckpointError::Damaged { fault, .. } => (Some(fault), Ok(())),
                    other => (None, Err(other.into())),
                },
                rest => (None, rest),
            };
            world.collective_result(rest)?;
            let Some(damage) = damage_on_any_rank(world, damage)? else { return Ok(self) };
            let older = match world.rank().0 {
                0 => self.older(damage).map(Some),
                _ => Ok(None),
            };
            self = Self::on_all_ranks(world, older)?
                .expect("rank 0 found a checkpoint, or its error was returned");
            world.collective_result(check(&self))?;
        }
    }

    /// Finds the next older checkpoint that looks intact, on rank 0.
    fn older(&self, damage: Fault) -> Result<Self> {
        let path = self.checkpoint.path().to_owned();
        let Some(store) = self.store.clone() else {
            return Err(CheckpointError::Damaged { path, fault: damage }.into());
        };
        let step = self.state().step;
        let is_new =
            |later: &u64| *later > step && !self.skipped.iter().any(|of| of.name == step_name(*later));
        if store.steps()?.iter().any(is_new) {
            // The run that saves them has deleted this one, which is older than those that it keeps.
            return Err(FolderError::Continued { path: self.run_folder()? }.into());
        }
        let mut skipped = self.skipped.clone();
        skipped.push(Skipped { name: step_name(step), fault: damage });
        let mut search = store.newest(step, Checkpoint::verify_model)?;
        skipped.append(&mut search.skipped);
        let Search { found, skipped } = Search { skipped, ..search }.found_in(&store, store.folder())?;
        let checkpoint = found.expect("something was found");
        Ok(Resumed { checkpoint, store: Some(store), skipped, best_weights: None })
    }

    /// Reports the checkpoint that the run resumes from, and the skipped ones.
    pub fn announce(&self, world_size: usize) {
        for skipped in &self.skipped {
            warn!("skipped checkpoint {skipped}");
        }
        let Manifest { run, world_size: before, .. } = self.manifest();
        let ranks = if world_size == *before {
            String::new()
        } else {
            format!("; {before} ranks before, {world_size} now, still {} rows per step", run.global_rows)
        };
        info!("resuming after step {} from {}{ranks}", run.step, self.checkpoint.path().display());
    }
}

/// Finds the requested checkpoint.
fn find_checkpoint(from: &ResumeFrom, out: Option<&Path>) -> Result<Option<Resumed>> {
    let (named, store) = match from {
        ResumeFrom::Path(path) => match Located::new(path)? {
            Located::One(path) => return open(&path, Checkpoint::read).map(Some),
            Located::Store(store) => (path.as_path(), store),
        },
        ResumeFrom::Auto => {
            let out = out.ok_or(FolderError::NoneToResume)?;
            if out.exists() && !out.is_dir() {
                return Err(FolderError::IsFile { path: out.to_owned() }.into());
            }
            let store = CheckpointStore::for_run(out);
            if folder::check_free(out).is_ok() {
                // Where the folder can't be written, there is nothing to overwrite either.
                let _ = store.restore_names();
            }
            // Checkpoints that can't be used are an error: a new run would overwrite what may be repairable.
            if store.steps()?.is_empty() {
                if store.is_bare() && has_saved(out) {
                    return Err(FolderError::CheckpointsGone { path: store.folder().to_owned() }.into());
                }
                let is_finished = out.join(MODEL_FILE).exists();
                let finished = || FolderError::Finished { path: out.to_owned() }.into();
                return if is_finished { Err(finished()) } else { Ok(None) };
            }
            (out, store)
        }
    };
    newest_of_store(store, named)
}

/// Whether the events of the run in `out` tell of a checkpoint.
fn has_saved(out: &Path) -> bool {
    let events = open_regular(&out.join(METRICS_FILE)).map(BufReader::new);
    events.is_ok_and(|events| {
        events.lines().map_while(io::Result::ok).any(|line| line.starts_with(r#"{"event":"checkpoint""#))
    })
}

/// Finds the newest checkpoint in the folder of a training loop of a program's own.
fn newest_in(out: &Path) -> Result<Option<Resumed>> {
    let store = CheckpointStore::for_run(out);
    if store.steps()?.is_empty() { Ok(None) } else { newest_of_store(store, out) }
}

/// Finds the newest checkpoint that looks intact in a store that the user named `named`.
fn newest_of_store(store: CheckpointStore, named: &Path) -> Result<Option<Resumed>> {
    let Search { found, skipped } =
        store.newest(u64::MAX, Checkpoint::verify_model)?.found_in(&store, named)?;
    Ok(found.map(|checkpoint| Resumed { checkpoint, store: Some(store), skipped, best_weights: None }))
}

/// Opens the checkpoint in a folder, if it looks intact.
fn open(path: &Path, read: impl FnOnce(&Path) -> Result<Checkpoint, Fault>) -> Result<Resumed> {
    let damaged = |fault| CheckpointError::Damaged { path: path.to_owned(), fault };
    let checkpoint = read(path).map_err(damaged)?;
    Ok(Resumed { checkpoint, store: None, skipped: Vec::new(), best_weights: None })
}

/// Exchanges the headers of the state files, of which each rank opens its share; an inner error is the fault of a file, on all ranks
/// alike. Collective.
fn share_state(world: &World, checkpoint: &Checkpoint) -> Result<Result<StateReader, Fault>> {
    let share = StateShare::open(checkpoint, world.rank().0, world.world_size());
    // Invalid headers usually mean a changed file: report that fault first.
    let share = share.map_err(|fault| checkpoint.verify().err().unwrap_or(fault));
    let message = match &share {
        Ok(share) => [b"h", share.to_bytes().as_slice()].concat(),
        Err(fault) => format!("f{fault}").into_bytes(),
    };
    let all = world.group().all_gather_bytes(&message)?;
    let mut headers = Vec::new();
    for (rank, message) in all.iter().enumerate() {
        match message.split_first() {
            Some((b'h', header)) => headers.push(header),
            fault => {
                let reason = fault.map_or(&[][..], |(_, text)| text);
                let reason = String::from_utf8_lossy(reason).into_owned();
                return Ok(Err(share.err().unwrap_or(Fault::OnRank { rank, reason })));
            }
        }
    }
    Ok(share.and_then(|share| StateReader::from_shares(checkpoint, share, &headers)))
}

/// Shares the first fault that any rank found with all ranks; rank 0 keeps its own.
fn damage_on_any_rank(world: &World, damage: Option<Fault>) -> Result<Option<Fault>> {
    let text = damage.as_ref().map(ToString::to_string).unwrap_or_default();
    let all = world.group().all_gather_bytes(text.as_bytes())?;
    let first = all
        .iter()
        .enumerate()
        .find(|(_, text)| !text.is_empty())
        .map(|(rank, text)| Fault::OnRank { rank, reason: String::from_utf8_lossy(text).into_owned() });
    Ok(if world.rank().0 == 0 { damage.or(first) } else { first })
}

/// Shares rank 0's path with all ranks, as an absolute one.
///
/// # Errors
/// [`FolderError::Unwritable`] if it can't be made absolute.
pub fn shared_folder(world: &World, folder: Option<&Path>) -> Result<PathBuf, Stop> {
    let absolute = folder.map(|folder| {
        std::path::absolute(folder)
            .map_err(|source| TrainError::from(FolderError::Unwritable { path: folder.to_owned(), source }))
    });
    let own = world.collective_result(absolute.transpose())?;
    Ok(shared_path(world, own.as_deref().unwrap_or(Path::new("")))?)
}

/// Shares rank 0's path with all ranks.
pub(crate) fn shared_path(world: &World, own: &Path) -> Result<PathBuf> {
    let paths = world.group().all_gather_bytes(own.as_os_str().as_bytes())?;
    Ok(PathBuf::from(OsString::from_vec(paths[0].clone())))
}

/// `<run>` of `<run>/checkpoints/step-<N>`, if the path names it.
fn run_of(path: &Path) -> Option<PathBuf> {
    let store = path.parent().filter(|store| store.ends_with(CHECKPOINTS))?;
    let run = store.parent().filter(|run| !run.as_os_str().is_empty())?;
    path.file_name().map(|_| run.to_owned())
}
