//! Checkpoints of training loops of a program's own: the files and the guarantees of a run of `ddp-train`, without its config.

use std::path::{Path, PathBuf};

use ddp_comm::{CommError, Failure, World};
use ddp_kernels::KernelError;

use crate::checkpoint::manifest::MAX_COUNT;
use crate::checkpoint::{CheckpointStore, RunState, SaveOutcome};
use crate::data::{SavedPreprocessor, numbered_columns};
use crate::model::file::ModelInfo;
use crate::train::error::{Result, Stop, TrainError};
use crate::train::rank_save::{RankSave, SaveSettings};
use crate::train::resume::{Resumed, shared_folder};
use crate::train::trainer::Trainer;

/// Saves a trainer after any step and resumes it to the bit: weights, registered buffers, optimizer state with the moving average,
/// loss scale, number of steps, and the rows used so far.
///
/// All ranks see the same folder. A checkpoint appears under its name when it is complete and on disk. A run may resume on another
/// number of ranks.
///
/// ```
/// use ddp::nn::{Activation, LossHead, Precision, Sequential, Sizes};
/// use ddp::optim::{OptimizerConfig, OptimizerKind};
/// use ddp::prelude::*;
/// use ddp::train::{Checkpoints, Trainer, TrainerOptions};
///
/// let folder = std::env::temp_dir().join(format!("ddp_checkpoints_{}", std::process::id()));
/// ddp::launch(2, |world| -> ddp::Result<()> {
///     let adamw = OptimizerConfig::new(OptimizerKind::AdamW, 1e-2);
///     let sizes = Sizes { max_rows: 16, device: Device::Cpu, precision: Precision::F32 };
///     let layers = || Sequential::new(4).linear(8).activation(Activation::Relu).linear(2);
///     let trainer = || {
///         Trainer::for_layers(world, layers(), sizes, LossHead::mse(), &adamw, TrainerOptions::default())
///     };
///     // A loop would train first; `cursor` counts the rows that all ranks have used, the `cursor` of a `BatchPlan`.
///     let (before, cursor) = (trainer()?, 0);
///     Checkpoints::new(world, &before, &folder)?.save(&before, cursor)?;
///
///     let mut after = trainer()?;
///     let checkpoints = Checkpoints::new(world, &after, &folder)?;
///     assert_eq!(checkpoints.resume(&mut after)?, Some(cursor));
///     Ok(())
/// })?;
/// # std::fs::remove_dir_all(folder).unwrap();
/// # Ok::<(), ddp::Error>(())
/// ```
pub struct Checkpoints<'w> {
    world: &'w World,
    folder: PathBuf,
    /// None on ranks that save nothing.
    rank_save: Option<RankSave>,
}

impl<'w> Checkpoints<'w> {
    /// Checkpoints of `trainer` in `folder`/checkpoints, which is created, of which the newest two are kept. Collective.
    ///
    /// # Errors
    /// `TrainError::Checkpoint` if the folder can't be created; `TrainError::Comm`.
    pub fn new(world: &'w World, trainer: &Trainer<'_>, folder: &Path) -> Result<Self> {
        Self::keeping(world, trainer, folder, 2)
    }

    /// Same as [`Checkpoints::new`], with another number of newest checkpoints that are kept; 0 keeps all. Collective.
    ///
    /// # Errors
    /// Same as [`Checkpoints::new`].
    pub fn keeping(world: &'w World, trainer: &Trainer<'_>, folder: &Path, keep: usize) -> Result<Self> {
        let folder = shared_folder(world, Some(folder)).map_err(on_this_rank)?;
        let n_features = trainer.model().n_features();
        let settings = SaveSettings {
            info: ModelInfo {
                config: String::new(),
                preprocessor: SavedPreprocessor::identity(numbered_columns(n_features)),
                n_steps: None,
                held_out: None,
            },
            data_fingerprint: String::new(),
            keep,
            keep_best: false,
            is_async: false,
            is_by_clock: false,
        };
        let store = CheckpointStore::for_run(&folder);
        let rank_save = RankSave::prepare(world, settings, trainer, store).map_err(on_this_rank)?;
        Ok(Checkpoints { world, folder, rank_save })
    }

    /// Saves the trainer; waits for its steps and for the disk. A checkpoint of the same step is replaced. Collective.
    ///
    /// - `cursor`: rows that all ranks have used since the start, or any other number below 2^52 that the loop continues from
    ///
    /// # Errors
    /// `TrainError::Checkpoint` on all ranks if it could not be saved on one; older checkpoints are intact then.
    pub fn save(&mut self, trainer: &Trainer<'_>, cursor: u64) -> Result<()> {
        if cursor >= MAX_COUNT {
            let problem = format!("the cursor is {cursor}");
            return Err(KernelError::misuse("Checkpoints::save", problem, "a number below 2^52").into());
        }
        let mut run = RunState {
            cursor,
            // The loop knows its epochs; the file says that the first one is under way.
            n_rows: cursor.saturating_add(1),
            global_rows: 1,
            ..RunState::default()
        };
        let saved = match &mut self.rank_save {
            Some(rank_save) => rank_save.save(trainer, &mut run, None, false).and_then(|()| {
                let failed = |outcome| match outcome {
                    SaveOutcome::Failed { error, .. } => Some(TrainError::from(error)),
                    SaveOutcome::Saved(_) => None,
                };
                rank_save.poll().into_iter().find_map(failed).map_or(Ok(()), Err)
            }),
            None => Ok(()),
        };
        self.world.collective_result(saved).map_err(|failure| on_this_rank(Stop::Agreed(failure)))
    }

    /// Restores the newest intact checkpoint into the trainer, before its first step, and returns its cursor; None without a
    /// checkpoint. Collective.
    ///
    /// # Errors
    /// `TrainError::Checkpoint` on all ranks if checkpoints are there and none can be used, or the newest is of another model.
    pub fn resume(&self, trainer: &mut Trainer<'_>) -> Result<Option<u64>> {
        let Some(newest) = Resumed::newest_of(self.world, &self.folder).map_err(on_this_rank)? else {
            return Ok(None);
        };
        let restored = newest.restore_any(self.world, trainer, |_| Ok(())).map_err(on_this_rank)?;
        Ok(Some(restored.state().cursor))
    }
}

/// The error that this rank returns of one that all ranks know.
fn on_this_rank(stop: Stop) -> TrainError {
    match stop {
        Stop::Agreed(Failure::Here { error, .. }) | Stop::Alone(error) => error,
        Stop::Agreed(Failure::Elsewhere { rank }) => {
            let text = "its own error says why".to_owned();
            CommError::FailedElsewhere { rank, operation: "checkpoint", text }.into()
        }
        Stop::Agreed(Failure::Comm(error)) => error.into(),
    }
}
