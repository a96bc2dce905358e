//! The run's config: TOML file and `--set` arguments become one checked [`Config`], once.
//!
//! First in the data flow: everything after it takes these types as they are and checks nothing
//! again. The road is `read` (text -> settings with their place), `keys` (which keys exist),
//! `resolve` (settings -> checked values), `write` (values -> TOML and the ranks' comparison).

mod keys;
mod origin;
pub mod precision;
mod read;
mod resolve;
mod resolve_training;
mod resume;
mod schedule;
mod setting;
mod training;
mod write;

#[cfg(test)]
mod tests;

use std::path::Path;

pub use ddp_kernels::ops::Activation;
pub(crate) use keys::nearest;
pub use origin::Origin;
pub use resume::{Difference, RESUMABLE};
pub use schedule::{ScheduleConfig, ScheduleShape, Span, Warmup};
pub use training::{
    Batch, CheckpointConfig, CommConfig, CommDtype, Determinism, EvalMetric, Length, LogConfig,
    OptimizerConfig, OptimizerKind, ParamGroup, TrainConfig, ZeroStage,
};

use crate::error::Result;
pub use precision::Precision;

/// Everything a run is told, checked. Made by [`Config::load`].
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

/// `[data]`: which rows, and what they mean.
#[derive(Debug, Clone, PartialEq)]
pub struct DataConfig {
    /// `builtin:NAME`, a file, a folder, or a pattern of files.
    pub train: String,
    /// Labels of `train` where they lie in files of their own (npy, IDX): a file or a pattern.
    pub labels: Option<String>,
    /// Where the rows for evaluation come from.
    pub eval: EvalSource,
    /// Labels of `eval`, as `labels`.
    pub eval_labels: Option<String>,
    /// Weights of `eval` where they lie in files of their own (npy, IDX): a file or a pattern.
    pub eval_weight: Option<String>,
    /// Format of the files.
    pub format: DataFormat,
    /// Name of the features in npz and safetensors files.
    pub features_key: String,
    /// Name of the labels in npz and safetensors files.
    pub labels_key: String,
    /// Column names of the targets; one for classification.
    pub target: Vec<String>,
    /// What the targets are.
    pub task: Task,
    /// Number of classes; `None` means largest label of the training rows + 1.
    pub classes: Option<usize>,
    /// Where a row's weight in loss and metrics stands: a column, an array's name, or an npy file with those of `train`.
    pub weight: Option<String>,
    /// Columns that are no features.
    pub drop: Vec<String>,
    /// Columns whose values are names rather than quantities.
    pub categorical: Vec<String>,
    /// What the model gets for a category.
    pub encode: Encode,
    /// Width of a category's embedding; `None` means one that grows with the number of values.
    pub embedding_dim: Option<usize>,
    /// What a missing value becomes.
    pub missing: Missing,
    /// Normalisation of the features.
    pub normalize: Normalize,
    /// Whether each epoch visits the training rows in a new order.
    pub shuffle: bool,
    /// How far rows move in that order.
    pub shuffle_mode: ShuffleMode,
    /// Size of the window within which `shuffle_mode = "blocks"` mixes rows, in MiB.
    pub shuffle_window_mib: usize,
    /// Where rows wait for their step.
    pub placement: Placement,
    /// Batches that are made ready ahead of the step, at least 1.
    pub prefetch: usize,
    /// Threads that make them ready; 0 means as many as fit.
    pub loader_threads: usize,
    /// Host memory that a rank's rows may take, in MiB.
    pub loader_memory_mib: usize,
}

/// Format of data files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataFormat {
    /// By the name's ending.
    Auto,
    /// Comma-separated values.
    Csv,
    /// NumPy's file of one array.
    Npy,
    /// NumPy's archive of arrays.
    Npz,
    /// Named tensors.
    Safetensors,
    /// Apache Parquet.
    Parquet,
    /// MNIST's format.
    Idx,
}

/// What the model gets for a category.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encode {
    /// A column a value: 1 where the row has it, else 0.
    OneHot,
    /// A row of a table that is learned.
    Embedding,
}

/// What a missing value becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// An error that names it.
    Error,
    /// The column's mean over the training rows, and a 1 in a column of its own.
    Mean,
    /// 0, and a 1 in a column of its own.
    Zero,
}

/// How far rows move in a new order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShuffleMode {
    /// Any row to any place.
    Full,
    /// Blocks of neighbouring rows to any place, rows within a window of such blocks: for disks, and for Parquet.
    Blocks,
}

/// Where rows wait for their step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// On the GPU if there is room, else on the host.
    Auto,
    /// On the host: batches are copied to the GPU.
    Host,
    /// On the GPU, where batches are gathered; an error if there is no room.
    Device,
}

/// Where evaluation rows come from.
#[derive(Debug, Clone, PartialEq)]
pub enum EvalSource {
    /// No evaluation.
    None,
    /// `builtin:NAME` (its test rows), a file, a folder, or a pattern of files.
    Source(String),
    /// This part of the training rows, in (0, 1), drawn by the seed and taken out of training.
    Fraction(f64),
}

/// What the targets of a row are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// One class index in `0..classes`.
    Classification,
    /// One real number for each target column.
    Regression,
    /// 0 or 1 for each target column.
    Multilabel,
}

/// Normalisation of features, fitted on the training rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Normalize {
    /// Features as they are.
    None,
    /// Mean 0, standard deviation 1 (population).
    Standard,
    /// Smallest value 0, largest 1.
    MinMax,
}

/// `[model]`: a multilayer perceptron.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Widths of the hidden layers; empty means a linear model.
    pub hidden: Vec<usize>,
    /// After each hidden layer.
    pub activation: Activation,
    /// Probability in [0, 1) with which a hidden value is dropped in training.
    pub dropout: f64,
    /// Normalisation between layers.
    pub norm: Norm,
    /// Adds a hidden layer's input to its output where the widths are equal.
    pub residual: bool,
    /// Whether linear layers have a bias.
    pub bias: bool,
}

/// Normalisation between layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Norm {
    /// None.
    None,
    /// Layer norm (arXiv:1607.06450) after each hidden linear layer.
    Layer,
}

/// `[loss]`: what is minimised; always the mean over the rows of a global batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Loss {
    /// Softmax cross-entropy on class indices.
    CrossEntropy {
        /// In [0, 1), as in PyTorch.
        label_smoothing: f64,
        /// One positive weight a class; the mean is then weighted, as in PyTorch.
        class_weights: Option<Vec<f32>>,
    },
    /// Binary cross-entropy with logits.
    Bce,
    /// Mean squared error.
    Mse,
    /// Huber loss: quadratic up to `delta`, then linear.
    Huber {
        /// Positive.
        delta: f64,
    },
}

impl Config {
    /// Reads `file` (none: all defaults, on `builtin:digits`), lays the `--set` arguments over it in
    /// their order, and checks everything.
    ///
    /// A key given by `--set` also takes the place of its alternative in the file: `--set
    /// train.steps=5` over `epochs = 30` is no conflict.
    ///
    /// # Errors
    /// What is wrong with the first bad key, with its place: all are the user's (exit status 2).
    pub fn load(file: Option<&Path>, sets: &[String]) -> Result<Self> {
        let mut settings = match file {
            Some(path) => read::file(path)?,
            None => Vec::new(),
        };
        let from_args = sets.iter().map(|arg| read::set_argument(arg)).collect::<Result<Vec<_>>>()?;
        setting::overlay(&mut settings, from_args)?;
        resolve::config(settings, file)
    }

    /// The config that [`Config::to_toml`] wrote, from a model's file.
    ///
    /// # Errors
    /// As [`Config::load`]: a later version's keys may be unknown to this one.
    pub fn from_toml(text: &str, path: &Path) -> Result<Self> {
        let mut settings = read::document(text, path)?;
        setting::overlay(&mut settings, Vec::new())?;
        resolve::config(settings, None)
    }

    /// As [`Config::from_toml`], with the `--set` arguments laid over it as [`Config::load`] does.
    ///
    /// # Errors
    /// As [`Config::load`].
    pub fn from_toml_with(text: &str, path: &Path, sets: &[String]) -> Result<Self> {
        let mut settings = read::document(text, path)?;
        let from_args = sets.iter().map(|arg| read::set_argument(arg)).collect::<Result<Vec<_>>>()?;
        setting::overlay(&mut settings, from_args)?;
        resolve::config(settings, None)
    }

    /// The resolved config as TOML: loading it gives this config again.
    pub fn to_toml(&self) -> String {
        write::document(self)
    }

    /// This config without a limit that was set for one leg of the run.
    #[must_use]
    pub fn without_stop(&self) -> Self {
        let mut config = self.clone();
        config.train.stop_after_steps = None;
        config
    }

    /// Each key with its value as TOML text, in fixed order: what ranks compare at start. All but `name`, which only
    /// names a folder.
    pub fn agreement_entries(&self) -> Vec<(String, String)> {
        let mut entries = write::entries(self);
        entries.retain(|(key, _)| key != "name");
        entries
    }
}

/// Gives an enum its names in the config: `ALL`, `name()` and `Display`.
macro_rules! named {
    ($type:ident { $($variant:ident = $name:literal),+ $(,)? }) => {
        impl $type {
            /// Every value, in the order in which help lists them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The name in the config.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl setting::Named for $type {
            const VALUES: &'static [(&'static str, Self)] = &[$(($name, Self::$variant)),+];
        }
    };
}

named!(Task { Classification = "classification", Regression = "regression", Multilabel = "multilabel" });
named!(DataFormat {
    Auto = "auto",
    Csv = "csv",
    Npy = "npy",
    Npz = "npz",
    Safetensors = "safetensors",
    Parquet = "parquet",
    Idx = "idx",
});
named!(Encode { OneHot = "one_hot", Embedding = "embedding" });
named!(Missing { Error = "error", Mean = "mean", Zero = "zero" });
named!(ShuffleMode { Full = "full", Blocks = "blocks" });
named!(Placement { Auto = "auto", Host = "host", Device = "device" });
named!(Normalize { None = "none", Standard = "standard", MinMax = "minmax" });
impl setting::Named for Activation {
    const VALUES: &'static [(&'static str, Self)] = &[
        ("relu", Activation::Relu),
        ("gelu", Activation::Gelu),
        ("gelu_tanh", Activation::GeluTanh),
        ("silu", Activation::Silu),
        ("tanh", Activation::Tanh),
        ("sigmoid", Activation::Sigmoid),
    ];
}
named!(Norm { None = "none", Layer = "layer" });
named!(OptimizerKind { Sgd = "sgd", Adam = "adam", AdamW = "adamw" });
named!(CommDtype { F32 = "f32", Bf16 = "bf16" });
named!(EvalMetric { Loss = "eval_loss", Accuracy = "eval_accuracy", R2 = "eval_r2" });
impl setting::Named for Precision {
    const VALUES: &'static [(&'static str, Self)] = &[
        ("f32", Precision::F32),
        ("tf32", Precision::Tf32),
        ("bf16", Precision::Bf16),
        ("f16", Precision::F16),
    ];
}
