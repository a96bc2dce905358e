//! Checks that config, data and world continue the run of a checkpoint.

use super::Resumed;
use crate::config::{Batch, Config, Task};
use crate::data::{LabelVocabulary, Loaded};
use crate::model::file::{ModelInfo, labels_of};
use crate::run_folder::error::FolderError;
use crate::storage::tensor_file::TensorFile;
use crate::train::error::{Result, TrainError};
use crate::train::setup;

impl Resumed {
    /// Checks that `config` on `world_size` ranks continues the checkpoint's run.
    ///
    /// # Errors
    /// [`FolderError::OtherRun`], with every difference.
    pub fn check_config(&self, config: &Config, world_size: usize) -> Result<()> {
        let mut saved = Config::from_saved(&self.manifest().config, self.checkpoint.path())?;
        if saved.data.auto_task && !config.data.auto_task {
            // Of a build that did not write the task of an initial model's classes.
            saved = saved.decided(config.data.task)?;
        }
        let mut differences: Vec<String> = Vec::new();
        for difference in config.differences(&saved) {
            let (key, ours, theirs) = (difference.key, difference.ours, difference.theirs);
            differences.push(format!("{key} is {ours}, but {theirs} in the checkpoint"));
        }
        // The per-rank batch is as configured; with another number of ranks the global batch must stay the same.
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
                .push(format!("a step takes {ours} rows over all ranks, but {rows} in the checkpoint"));
        }
        self.refuse(differences)
    }

    /// Checks that a model with batch norm takes its statistics of as many rows as the checkpoint's run.
    ///
    /// # Errors
    /// [`TrainError::BatchNormChange`].
    pub fn check_batch_norm(&self, config: &Config, world_size: usize) -> Result<()> {
        if !config.model.mixes_rows() {
            return Ok(());
        }
        let saved = Config::from_saved(&self.manifest().config, self.checkpoint.path())?;
        let n_micro = |config: &Config, world_size| {
            setup::n_micro_batches(&config.train, world_size, Some(self.state().global_rows as usize))
        };
        let (ours, theirs) = (n_micro(config, world_size), n_micro(&saved, self.manifest().world_size));
        if ours == theirs { Ok(()) } else { Err(TrainError::BatchNormChange { ours, theirs }) }
    }

    /// Checks that the data is that of the checkpoint's run.
    ///
    /// # Errors
    /// [`FolderError::OtherData`].
    pub fn check_data(&self, config: &Config, data: &Loaded) -> Result<()> {
        let (theirs, ours) = (&self.manifest().data_fingerprint, &data.data_fingerprint);
        if theirs == ours {
            return Ok(());
        }
        let mut differences = Vec::new();
        let (n_rows, n_before) = (data.train.len() as u64, self.state().n_rows);
        if n_rows != n_before {
            differences.push(format!("{n_rows} training rows, but {n_before} in the checkpoint"));
        }
        if let (Ok(Some(theirs)), Some(ours)) = (self.labels(), data.labels())
            && theirs != *ours
        {
            let (ours, theirs) = (ours.summary(), theirs.summary());
            differences.push(format!("the classes are {ours}, but {theirs} in the checkpoint"));
        }
        let saved = Config::from_saved(&self.manifest().config, self.checkpoint.path())?;
        if saved.data.eval != config.data.eval {
            differences.push(
                "`data.eval` names other rows than in the checkpoint, whose evaluations would not compare"
                    .to_owned(),
            );
        }
        differences.push(format!("the fingerprint of the data is {ours}, but {theirs} in the checkpoint"));
        let (path, differences) = (self.checkpoint.path().to_owned(), differences.join("\n  "));
        Err(FolderError::OtherData { path, differences }.into())
    }

    /// The config with which the data of the run is loaded: runs of earlier versions number their classes from 0, also where
    /// some have no rows.
    #[must_use]
    pub fn config_of_data(&self, config: &Config) -> Config {
        let mut config = config.clone();
        let last = format!("layers.{}.weight", config.model.n_hidden_linear());
        let last = self.manifest().parameters.iter().find(|parameter| parameter.name == last);
        if config.data.task == Task::Classification
            && config.data.classes.is_none()
            && let (Ok(None), Some(last)) = (self.labels(), last)
        {
            config.data.classes = last.shape.first().map(|n_outputs| config.loss.n_targets(*n_outputs));
        }
        config
    }

    /// The labels of the checkpoint's classes; `None` if it lists none.
    fn labels(&self) -> Result<Option<LabelVocabulary>, String> {
        let file = TensorFile::open(&self.checkpoint.model_path()).map_err(|fault| fault.to_string())?;
        labels_of(&file.metadata())
    }

    /// Config and preprocessor of the checkpoint's model.
    ///
    /// # Errors
    /// See [`ModelInfo::read`].
    pub fn model_info(&self) -> Result<ModelInfo> {
        Ok(ModelInfo::read(&self.checkpoint.model_path())?)
    }

    /// Checks that the rows are converted as the checkpoint's model expects, once its bytes are verified.
    pub(super) fn check_preprocessor(&self, data: &Loaded) -> Result<()> {
        let mut theirs = self.model_info()?.preprocessor;
        // Files of earlier versions list no labels.
        theirs.labels = theirs.labels.or_else(|| data.preprocessor.labels.clone());
        let is_same = theirs == data.preprocessor;
        let difference = "the normalization of the rows was read from a newer, damaged checkpoint: \
                          resume from this one with --resume and its path";
        self.refuse((!is_same).then(|| difference.to_owned()).into_iter().collect())
    }

    /// Checks the rows per step of an older checkpoint.
    pub(super) fn check_rows(&self, global_rows: u64) -> Result<()> {
        let theirs = self.state().global_rows;
        let difference = || {
            format!(
                "a step took {theirs} rows over all ranks, but {global_rows} in the newer, damaged checkpoint"
            )
        };
        self.refuse((theirs != global_rows).then(difference).into_iter().collect())
    }

    fn refuse(&self, differences: Vec<String>) -> Result<()> {
        if differences.is_empty() {
            return Ok(());
        }
        let (path, differences) = (self.checkpoint.path().to_owned(), differences.join("\n  "));
        Err(FolderError::OtherRun { path, differences }.into())
    }
}
