//! The run's config: a TOML file and `--set` arguments become one checked [`Config`], once.
//!
//! First in the data flow: everything after it takes these types as they are and checks nothing again. A section is a file: its
//! struct, the rows of its keys ([`key`]), reading with checks, writing. `reader` turns text into settings, `raw` adds the defaults,
//! `writer` writes; `reference` and `schema` describe the keys.
//!
//! To add a key, edit its section's file: the field, the row, and a line each in `read` and `write`.

mod checkpoint;
mod comm;
mod data;
mod data_format;
mod error;
pub mod key;
mod log;
mod loss;
mod model;
mod name;
mod optimizer;
mod origin;
mod paths;
pub mod precision;
mod raw;
mod reader;
pub mod reference;
mod resume;
mod schedule;
pub mod schema;
mod setting;
mod table;
mod table_text;
mod train;
mod value;
mod writer;

#[cfg(test)]
mod tests;

use std::path::Path;

use self::raw::{RawConfig, Source};

pub use self::checkpoint::CheckpointConfig;
pub use self::comm::{CommConfig, CommDtype, ZeroStage};
pub use self::data::{DataConfig, Encode, EvalSource, Missing, Normalize, Placement, ShuffleMode, Task};
pub use self::data_format::DataFormat;
pub(crate) use self::data_format::format_by_name;
pub use self::error::ConfigError;
pub use self::log::LogConfig;
pub use self::loss::Loss;
pub use self::model::{ModelConfig, Norm};
pub use self::optimizer::{OptimizerConfig, OptimizerKind, ParamGroup};
pub use self::origin::Origin;
pub use self::precision::Precision;
pub use self::resume::{Difference, resumable_keys};
pub use self::schedule::{ScheduleConfig, ScheduleShape, Span, Warmup};
pub(crate) use self::table::nearest;
pub use self::table::{keys, keys_with_prefix};
pub use self::table_text::{Datetime, Delimiter};
pub use self::train::{Batch, Determinism, EvalMetric, Length, TrainConfig};
pub use ddp_kernels::ops::Activation;

/// Result of this room's functions.
type Result<T, E = ConfigError> = std::result::Result<T, E>;

/// Widths and counts beyond these are typing errors; below them nothing overflows.
const MAX_WIDTH: u64 = 1 << 24;
const MAX_STEPS: u64 = 1_000_000_000_000;

/// The whole config of a run, checked. Made by [`Config::load`] and [`Config::from_saved`].
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Name of the run, used in its folder's name. Default: stem of the config file, else of the data.
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
}

impl Config {
    /// Reads `file` (none: all defaults, on `builtin:digits`), lays the `--set` arguments over it in their order, and checks
    /// everything.
    ///
    /// A key given by `--set` also replaces its alternative in the file: `--set train.steps=5` over `epochs = 30` is no conflict.
    ///
    /// # Errors
    /// The first key that can't be used, with its place.
    pub fn load(file: Option<&Path>, sets: &[String]) -> Result<Self> {
        let settings = match file {
            Some(path) => reader::file(path)?,
            None => Vec::new(),
        };
        let sets = reader::set_arguments(sets)?;
        Self::resolve(&RawConfig::layered(settings, sets, Source::Typed)?, file)
    }

    /// Reads a config that [`Config::to_toml`] wrote, from a checkpoint or model; `path` is where messages say that it stands.
    ///
    /// A key that it lacks has the value that was meant before the key existed, which need not be today's default.
    ///
    /// # Errors
    /// As [`Config::load`]: keys of later versions may be unknown to this one.
    pub fn from_saved(text: &str, path: &Path) -> Result<Self> {
        Self::from_saved_with(text, path, &[])
    }

    /// As [`Config::from_saved`], with the `--set` arguments laid over it as by [`Config::load`].
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn from_saved_with(text: &str, path: &Path, sets: &[String]) -> Result<Self> {
        let settings = reader::document(text, path)?;
        let sets = reader::set_arguments(sets)?;
        Self::resolve(&RawConfig::layered(settings, sets, Source::Saved)?, None)
    }

    /// Checks the settings; `file` gives the name of a run that has none.
    fn resolve(raw: &RawConfig, file: Option<&Path>) -> Result<Self> {
        let data = DataConfig::read(raw)?;
        let loss = Loss::read(raw, &data)?;
        Ok(Config {
            name: name::read(raw, file, &data)?,
            model: ModelConfig::read(raw)?,
            optimizer: OptimizerConfig::read(raw)?,
            schedule: ScheduleConfig::read(raw)?,
            train: TrainConfig::read(raw, &data)?,
            comm: CommConfig::read(raw)?,
            checkpoint: CheckpointConfig::read(raw, &data)?,
            log: LogConfig::read(raw)?,
            data,
            loss,
        })
    }

    /// The resolved config as TOML, with every key: loading it gives this config again. Values that equal the default are marked
    /// `# default`; keys without a value are comments.
    pub fn to_toml(&self) -> String {
        writer::document(self)
    }

    /// This config without a limit that was set for one leg of the run.
    #[must_use]
    pub fn without_stop(&self) -> Self {
        let mut config = self.clone();
        config.train.stop_after_steps = None;
        config
    }

    /// Each key with its value as TOML text, in fixed order: the list that ranks compare at start.
    pub fn agreement_entries(&self) -> Vec<(String, String)> {
        let entries = writer::entries(self).into_iter().filter(|entry| entry.key.is_compared);
        entries.map(|entry| (entry.key.name.to_owned(), entry.value)).collect()
    }
}
