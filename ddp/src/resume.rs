//! Where a run goes on: which checkpoint, whether it is of this very run, and what is taken from it.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use ddp_comm::World;
use ddp_kernels::{Device, TensorRef, ops};

use crate::checkpoint::{
    Checkpoint, CheckpointError, CheckpointStore, Manifest, RunState, Search, Skipped, StateReader,
};
use crate::checkpointing::pieces_in_place;
use crate::cli::{ResumeFrom, TrainArgs};
use crate::config::{Batch, Config};
use crate::data::{Loaded, fingerprint};
use crate::error::{Error, Result};
use crate::folder_error::FolderError;
use crate::outcome::Stop;
use crate::progress::Progress;
use crate::rundir::{Existing, MODEL_FILE};
use crate::trainer::Trainer;

/// The checkpoint that a run goes on from.
#[derive(Debug)]
pub struct Resumed {
    checkpoint: Checkpoint,
    /// Newer ones that can't be used, and why; known to rank 0.
    skipped: Vec<Skipped>,
}

impl Resumed {
    /// The checkpoint that `args` ask for, if they ask for one and it is there. Rank 0 looks and checks every byte; the others
    /// take what it has found.
    ///
    /// # Errors
    /// [`Stop`] with a [`CheckpointError`], on all ranks alike.
    pub fn find(world: &World, args: &TrainArgs) -> Result<Option<Self>, Stop> {
        let Some(from) = &args.resume else { return Ok(None) };
        let found = match world.rank().0 {
            0 => look(from, args.out.as_deref()),
            _ => Ok(None),
        };
        let found = world.collective_result(found)?;
        let path = found.as_ref().map(|found| std::path::absolute(found.checkpoint.path()));
        let failed = |source| Error::from(FolderError::Unwritable { path: PathBuf::from("."), source });
        let path = world.collective_result(path.transpose().map_err(failed))?;
        let path = shared_path(world, path.as_deref().unwrap_or(Path::new("")))?;
        if path.as_os_str().is_empty() {
            return Ok(None);
        }
        let damaged = |fault| CheckpointError::Damaged { path: path.clone(), fault };
        let resumed = match found {
            Some(found) => Ok(found),
            // Rank 0 has read every byte.
            None => Checkpoint::read(&path)
                .map(|checkpoint| Resumed { checkpoint, skipped: Vec::new() })
                .map_err(|fault| Error::from(damaged(fault))),
        };
        let resumed = world.collective_result(resumed)?;
        let manifest = format!("{:016x}", fingerprint(&resumed.manifest().to_bytes()));
        world
            .agree(&[("--resume (fingerprint of the manifest)".to_owned(), manifest)])
            .map_err(Error::from)?;
        Ok(Some(resumed))
    }

    /// Where the run stood.
    pub fn state(&self) -> &RunState {
        &self.manifest().run
    }

    /// What it says of itself.
    pub fn manifest(&self) -> &Manifest {
        self.checkpoint.manifest()
    }

    /// The config to train with where no file of it is given: the run's own, with what flags say of it.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn config(&self, sets: &[String]) -> Result<Config> {
        Config::from_toml_with(&self.manifest().config, self.checkpoint.path(), sets)
    }

    /// Whether `config` trains the very run that the checkpoint is of, on `world_size` ranks.
    ///
    /// # Errors
    /// [`FolderError::OtherRun`], with every difference.
    pub fn check_config(&self, config: &Config, world_size: usize) -> Result<()> {
        let saved = Config::from_toml(&self.manifest().config, self.checkpoint.path())?;
        let mut differences: Vec<String> = Vec::new();
        for difference in config.differences(&saved) {
            let (key, ours, theirs) = (difference.key, difference.ours, difference.theirs);
            differences.push(format!("{key} is {ours}, and {theirs} in the checkpoint"));
        }
        // Rows of a rank are what they are told to be, and with another number of ranks the global batch stays.
        let (train, rows) = (&config.train, self.manifest().run.global_rows);
        let keeps_batch = match train.batch {
            Batch::PerRank(_) => {
                (train.batch, train.grad_accum_steps) == (saved.train.batch, saved.train.grad_accum_steps)
                    || train.global_rows(world_size) == Some(rows as usize)
            }
            Batch::Global(global_rows) => global_rows as u64 == rows,
        };
        if !keeps_batch {
            let ours = train.global_rows(world_size).unwrap_or(usize::MAX);
            differences
                .push(format!("a step takes {ours} rows over all ranks, and {rows} in the checkpoint"));
        }
        self.refuse(differences)
    }

    /// Whether these are the rows that the run was trained on.
    ///
    /// # Errors
    /// [`FolderError::OtherRun`].
    pub fn check_data(&self, data: &Loaded) -> Result<()> {
        let (theirs, ours) = (&self.manifest().data_fingerprint, data.fingerprint_hex());
        let differences = match *theirs == ours {
            true => Vec::new(),
            false => vec![format!(
                "rows and columns of the data have the fingerprint {ours}, and {theirs} in the checkpoint"
            )],
        };
        self.refuse(differences)
    }

    fn refuse(&self, differences: Vec<String>) -> Result<()> {
        match differences.is_empty() {
            true => Ok(()),
            false => Err(FolderError::OtherRun {
                path: self.checkpoint.path().to_owned(),
                differences: differences.join("\n  "),
            }
            .into()),
        }
    }

    /// The folder in which the run goes on, and what becomes of what it holds.
    ///
    /// # Errors
    /// [`FolderError::Behind`] where that folder holds later checkpoints: two runs would go on in it.
    pub fn folder(&self, out: Option<&Path>) -> Result<(PathBuf, Existing)> {
        // <run>/checkpoints/step-<N>
        let run = self.checkpoint.path().ancestors().nth(2).unwrap_or(Path::new(".")).to_owned();
        let is = |a: &Path, b: &Path| a.canonicalize().is_ok_and(|a| b.canonicalize().is_ok_and(|b| a == b));
        if let Some(out) = out.filter(|out| !is(out, &run)) {
            return Ok((out.to_owned(), Existing::Refuse));
        }
        let (store, step) = (CheckpointStore::of_run(&run), self.state().step);
        let is_good =
            |later: &u64| store.checkpoint(*later).is_ok_and(|checkpoint| checkpoint.verify().is_ok());
        // Those that can't be used are no run that goes on.
        if let Some(newest) = store.steps()?.into_iter().rev().take_while(|later| *later > step).find(is_good)
        {
            return Err(FolderError::Behind { run, step, newest }.into());
        }
        Ok((run, Existing::Continue))
    }

    /// Gives the trainer weights, optimiser state and number of steps of the checkpoint.
    ///
    /// # Errors
    /// Files that are of another model, or hold less than the run needs.
    pub fn restore(&self, trainer: &mut Trainer<'_>) -> Result<()> {
        let layout = trainer.model().layout().clone();
        let mut weights = vec![0.0f32; layout.flat_len()];
        self.checkpoint.read_weights(&layout, &mut weights)?;
        trainer.set_weights(TensorRef::from_slice(&weights, &[weights.len()])?)?;
        let pieces = pieces_in_place(&layout, &trainer.state_pieces_to_restore());
        let damaged = |fault| CheckpointError::Damaged { path: self.checkpoint.path().to_owned(), fault };
        let reader = StateReader::open(&self.checkpoint).map_err(damaged)?;
        for (name, tensor) in trainer.state_mut() {
            if tensor.device() == Device::Cpu {
                let values = tensor.view_mut().into_slice::<f32>("resume", name)?;
                reader.read(&pieces, name, values)?;
            } else {
                let mut values = vec![0.0f32; tensor.numel()];
                reader.read(&pieces, name, &mut values)?;
                ops::copy(TensorRef::from_slice(&values, &[values.len()])?, tensor.view_mut())?;
            }
        }
        trainer.set_n_steps(self.state().step);
        if let Some(state) = self.state().loss_scaler {
            trainer.set_loss_scaler_state(state)?;
        }
        Ok(())
    }

    /// Tells where the run goes on.
    pub fn announce(&self, progress: &Progress, world_size: usize) {
        for skipped in &self.skipped {
            progress.note(&format!("not used: checkpoint {skipped}"));
        }
        let Manifest { run, world_size: before, .. } = self.manifest();
        let ranks = match world_size == *before {
            true => String::new(),
            false => {
                format!("; {before} ranks then, {world_size} now, {} rows a step as before", run.global_rows)
            }
        };
        progress.note(&format!(
            "resumes after step {} from {}{ranks}",
            run.step,
            self.checkpoint.path().display()
        ));
    }
}

/// The checkpoint that is asked for.
fn look(from: &ResumeFrom, out: Option<&Path>) -> Result<Option<Resumed>> {
    let search = match from {
        ResumeFrom::Path(path) => Checkpoint::find(path)?,
        ResumeFrom::Auto => {
            let out = out.ok_or(FolderError::NoneToResume)?;
            if out.exists() && !out.is_dir() {
                return Err(FolderError::IsFile { path: out.to_owned() }.into());
            }
            let store = CheckpointStore::of_run(out);
            // What is there and can't be used is an error: starting afresh would lose what may be mended.
            if store.steps()?.is_empty() {
                return match out.join(MODEL_FILE).exists() {
                    true => Err(FolderError::Finished { path: out.to_owned() }.into()),
                    false => Ok(None),
                };
            }
            Checkpoint::find(store.folder())?
        }
    };
    let Search { found, skipped } = search;
    Ok(found.map(|checkpoint| Resumed { checkpoint, skipped }))
}

/// Rank 0's path, on all ranks.
pub(crate) fn shared_path(world: &World, own: &Path) -> Result<PathBuf> {
    let paths = world.group().all_gather_bytes(own.as_os_str().as_bytes())?;
    Ok(PathBuf::from(OsString::from_vec(paths[0].clone())))
}
