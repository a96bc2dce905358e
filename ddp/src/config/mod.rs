//! The run's config: a TOML file and `--set` arguments become one checked [`Config`], once.
//!
//! First in the data flow: all later code relies on these types and does not validate again. Each section is a file with its
//! struct, the rows of its keys ([`key`]), reading with checks, and writing. `reader` parses text into settings, `raw` adds the
//! defaults, `document` writes; `reference` and `schema` describe the keys. `table` holds the rows of all sections; the files
//! that sections import know no section and take the table as an argument.
//!
//! To add a key, edit the file of its section: the field, the row, and one line each in `read` and `write`. To refuse it next to
//! another one, add a row to [`conflicts`].
//!
//! ```
//! use ddp::config::Config;
//! use ddp::kernels::hint::with_hint;
//!
//! let config = Config::load(None, &["train.epochs=3".to_owned(), "optimizer.lr=0.01".to_owned()])?;
//! assert_eq!(config.optimizer.lr, 0.01);
//! let error = with_hint(&Config::load(None, &["train.epoch=3".to_owned()]).unwrap_err());
//! assert!(error.contains("did you mean"), "{error}");
//! # Ok::<(), ddp::config::ConfigError>(())
//! ```

#[doc(hidden)]
pub mod table_options;
mod data_values;
mod other_values;
mod typed_texts;
pub mod key;
mod limits;
mod nearest;
mod key_table;
mod origin;
mod error;
mod overrides;
pub mod precision;
mod section;
mod setting;
mod value;
mod reader;
mod eval_metric;
mod raw;
mod conflict_values;
pub mod conflicts;
pub mod reference;
mod rows_memory;
mod watchdog;
mod comm;
pub mod gpu_features;
mod log;
mod loss_names;
mod nested;
mod layer_kinds;
mod layers;
mod presets;
mod run;
mod split;
mod table_text;
mod writer;
mod bad_steps;
mod loss;
mod heads;
mod data_sources;
mod data;
mod model;
mod name;
mod paths;
mod schedule;
mod optimizer;
mod train;
mod checkpoint;
mod table;
mod document;
pub mod examples;
mod resume;
mod without_effect;
pub mod schema;
#[cfg(test)]
mod tests;

use std::path::Path;

pub use ddp_kernels::ops::{Activation, ElementLoss, Gate, OptimizerKind};

pub use self::bad_steps::{BadStep, BadSteps, Spike};
pub use self::checkpoint::CheckpointConfig;
pub use self::comm::{CommConfig, CommDtype, ZeroStage};
pub use self::data::DataConfig;
#[doc(hidden)]
pub use self::data::{DEFAULT_FEATURES_KEY, DEFAULT_LABELS_KEY};
pub use self::data_sources::EvalSource;
pub use self::data_values::{
    Balance, Encode, ExtraColumns, FingerprintKind, Missing, MissingTarget, Normalize, NormalizeTarget,
    Placement, ShuffleMode, Task, UnknownLabel,
};
pub use self::error::ConfigError;
use self::error::Result;
pub use self::eval_metric::{EvalMetric, JudgeMetric, MetricSet, MetricTable, UnknownMetric};
pub use self::heads::HeadConfig;
pub(crate) use self::layers::for_each_layer_kind;
pub use self::layers::{LayerConfig, LayerEntry};
pub use self::log::LogConfig;
pub use self::loss::{ClassWeights, HeadLoss, Loss};
pub use self::model::{ModelConfig, Norm};
pub use self::nearest::nearest;
pub(crate) use self::optimizer::AGAINST_DIVERGENCE;
pub use self::optimizer::{OptimizerConfig, ParamGroup};
pub use self::origin::Origin;
pub use self::other_values::settings_for_value;
pub use self::overrides::{Overrides, ShortForm};
pub use self::precision::Precision;
pub use self::presets::ModelKind;
use self::raw::RawConfig;
pub use self::resume::{Difference, resumable_keys};
pub use self::run::{FileMode, RunConfig};
pub use self::schedule::{ScheduleConfig, ScheduleShape, Span, Warmup};
pub use self::split::{Fold, Split};
use self::table::TABLE;
pub use self::table::{find_key, is_section, keys, keys_for_flag, keys_with_prefix};
pub use self::table_options::{DataFormat, Decimal, Delimiter, Header, format_by_name};
pub use self::table_text::Datetime;
pub use self::train::{Batch, Determinism, EmaEval, Length, OnReplicaDifference, TrainConfig, WeightInit};
pub use self::watchdog::WatchdogConfig;

/// The whole config of a run, checked. Made by [`Config::load`] and [`Config::from_saved`].
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Name of the run, used in the name of its folder. Default: the name of `--out`, else the stem of the config file, else of the data.
    pub name: String,
    /// `[data]`
    pub data: DataConfig,
    /// `[model]`
    pub model: ModelConfig,
    /// `[loss]`, with `auto` resolved to the task's loss.
    pub loss: Loss,
    /// `[optimizer]`
    pub optimizer: OptimizerConfig,
    /// `[schedule]`
    pub schedule: ScheduleConfig,
    /// `[train]`
    pub train: TrainConfig,
    /// `[comm]`
    pub comm: CommConfig,
    /// `[checkpoint]`
    pub checkpoint: CheckpointConfig,
    /// `[log]`
    pub log: LogConfig,
    /// `[watchdog]`
    pub watchdog: WatchdogConfig,
    /// `[run]`
    pub run: RunConfig,
    given: Given,
}

/// The settings that a config was read from. They make no difference between configs with the same values.
#[derive(Debug, Clone)]
struct Given {
    raw: RawConfig,
    /// Whether the name is that of the run's folder.
    is_folder_name: bool,
}

impl PartialEq for Given {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

fn stem(file: Option<&Path>) -> Option<&str> {
    file?.file_stem()?.to_str()
}

impl Config {
    /// Reads `file` (if none, all defaults on `builtin:digits`), applies the settings of the command line on top, and checks
    /// everything.
    ///
    /// A key on the command line also replaces its alternative in the file: `--set train.steps=5` over `epochs = 30` is no
    /// conflict.
    ///
    /// # Errors
    /// The first key that can't be used, and where it was given; [`ConfigError::NoData`] for a file without `data.train`.
    pub fn load_with(file: Option<&Path>, overrides: &Overrides) -> Result<Self> {
        let settings = match file {
            Some(path) => reader::file(&TABLE, path)?,
            None => Vec::new(),
        };
        let upper = reader::overrides(&TABLE, overrides)?;
        let raw = RawConfig::layered(&TABLE, settings, upper)?;
        let named = overrides.folder.as_deref();
        let config = Self::resolve(&raw, named.or_else(|| stem(file)))?.named_by_folder(named);
        match file {
            Some(path) if raw.given("data.train").is_none() => {
                Err(ConfigError::NoData { path: path.to_owned() })
            }
            _ => config.of_user(),
        }
    }

    /// The config, unless it has what only saved configs may have.
    fn of_user(self) -> Result<Self> {
        self.data.check_eval_labels(&self.given.raw)?;
        Ok(self)
    }

    /// [`Config::load_with`] with the text of a file that is not on disk.
    ///
    /// # Errors
    /// Same as [`Config::load_with`].
    pub fn load_above(text: &str, overrides: &Overrides) -> Result<Self> {
        Self::from_saved_with(text, Path::new("suggested settings"), overrides)?.of_user()
    }

    /// [`Config::load_with`] with `--set` arguments only.
    ///
    /// # Errors
    /// Same as [`Config::load_with`].
    pub fn load(file: Option<&Path>, sets: &[String]) -> Result<Self> {
        Self::load_with(file, &Overrides::from_sets(sets))
    }

    /// Reads a config that [`Config::to_toml`] wrote, from a checkpoint or model; `path` is its origin in messages.
    ///
    /// A key that the text lacks has its default.
    ///
    /// # Errors
    /// Same as [`Config::load`]; keys of later versions may be unknown to this version.
    pub fn from_saved(text: &str, path: &Path) -> Result<Self> {
        Self::from_saved_with(text, path, &Overrides::default())
    }

    /// Same as [`Config::from_saved`], with the settings of the command line applied on top as in [`Config::load_with`].
    ///
    /// # Errors
    /// Same as [`Config::load`].
    pub fn from_saved_with(text: &str, path: &Path, overrides: &Overrides) -> Result<Self> {
        let settings = reader::document(&TABLE, text, path)?;
        let upper = reader::overrides(&TABLE, overrides)?;
        let raw = RawConfig::layered(&TABLE, settings, upper)?;
        let named = overrides.folder.as_deref();
        Ok(Self::resolve(&raw, named)?.named_by_folder(named))
    }

    fn named_by_folder(mut self, folder: Option<&str>) -> Self {
        self.given.is_folder_name = folder.is_some() && self.given.raw.given("name").is_none();
        self
    }

    /// Checks the settings; a run without a name is called `named`, as its folder or its config file.
    fn resolve(given: &RawConfig, named: Option<&str>) -> Result<Self> {
        let raw = &model::without_replaced(given);
        let mut data = DataConfig::read(raw)?;
        if data.normalize == Normalize::Auto && model::is_periodic_mlp(raw)? {
            data.normalize = Normalize::Robust;
        }
        let loss = match data.task {
            Task::Heads => Loss::Heads(heads::losses(raw)?),
            task => Loss::read(raw, task, data.auto_task, data.classes)?,
        };
        if loss.predicts_logarithms() {
            data.normalize_target = NormalizeTarget::None;
        }
        let train = TrainConfig::read(raw, &data)?;
        let config = Config {
            name: name::read(raw, named, &data)?,
            model: ModelConfig::read(raw)?,
            optimizer: OptimizerConfig::read(raw)?,
            schedule: ScheduleConfig::read(raw)?,
            comm: CommConfig::read(raw)?,
            checkpoint: CheckpointConfig::read(raw, &data, &train)?,
            train,
            log: LogConfig::read(raw)?,
            watchdog: WatchdogConfig::read(raw)?,
            run: RunConfig::read(raw)?,
            data,
            loss,
            given: Given { raw: given.clone(), is_folder_name: false },
        };
        config.check_conflicts(raw, None)?;
        Ok(config)
    }

    /// Refuses settings that exclude each other; `eval` is the value of `data.eval` where it is unset.
    fn check_conflicts(&self, raw: &RawConfig, eval: Option<&str>) -> Result<()> {
        let task = ("data.task", Some(self.data.task.name()));
        conflicts::check(raw, &[task, ("loss.kind", Some(self.loss.kind_in(raw)?)), ("data.eval", eval)])
    }

    /// This config with the task that the targets decided on, which all other keys must fit.
    ///
    /// # Errors
    /// The first key that does not fit the task, with its place.
    pub fn decided(self, task: Task) -> Result<Self> {
        self.with_setting(&format!("data.task={task}"))
    }

    /// Checks that no setting needs rows to evaluate on, where `data.eval` is unset and there are none.
    ///
    /// # Errors
    /// The setting that needs them, with its place.
    pub fn check_unset_eval(&self) -> Result<()> {
        match self.data.eval {
            EvalSource::Unset => {
                self.check_conflicts(&model::without_replaced(&self.given.raw), Some("none"))
            }
            _ => Ok(()),
        }
    }

    /// Checks the settings that this config was read from again, with one `--set` argument laid over them. The name and the source of the
    /// evaluation rows, which were decided before, stay.
    ///
    /// # Errors
    /// The first key that can't be used.
    pub fn with_setting(&self, set: &str) -> Result<Self> {
        let upper = reader::overrides(&TABLE, &Overrides::from_sets(&[set.to_owned()]))?;
        let mut config = Self::resolve(&self.given.raw.clone().overlaid(upper)?, None)?;
        config.given.is_folder_name = self.given.is_folder_name;
        config.name.clone_from(&self.name);
        config.data.eval.clone_from(&self.data.eval);
        Ok(config)
    }

    /// The metrics of each evaluation, and those of the last one; for ordered classes they include the metrics of class
    /// distances.
    pub fn metrics(&self) -> [MetricSet; 2] {
        let sets = self.train.metrics(self.data.task);
        if self.loss == Loss::Ordinal && self.train.eval_metrics.iter().any(|name| name == "default") {
            sets.map(|set| set.with(EvalMetric::ClassMae).with(EvalMetric::QuadraticKappa))
        } else {
            sets
        }
    }

    /// Names of the model's outputs if the config determines them: the target columns of multilabel and regression.
    pub fn output_names(&self) -> Option<Vec<String>> {
        let is_named =
            !matches!(self.data.task, Task::Classification | Task::Heads) && !self.data.target.is_empty();
        is_named.then(|| self.data.target.clone())
    }

    /// Returns this config without the limit that was set for one leg of the run.
    #[must_use]
    pub fn without_stop(&self) -> Self {
        let mut config = self.clone();
        config.train.stop_after_steps = None;
        config.train.stop_after_epochs = None;
        config
    }
}
