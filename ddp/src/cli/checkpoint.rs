//! `ddp-train checkpoint`, as typed.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::count;

/// `ddp-train checkpoint`
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// List checkpoints, and what is wrong with those that can't be used
    Ls(CheckpointLsArgs),
    /// Read every byte and prove that each row was used once an epoch; exit status 1 if anything is wrong
    Verify(CheckpointVerifyArgs),
    /// Show what a checkpoint is of
    Show(CheckpointShowArgs),
    /// Delete old checkpoints
    Prune(CheckpointPruneArgs),
    /// Write the mean of the weights of several checkpoints
    Average(CheckpointAverageArgs),
    /// Write the weights of a checkpoint as plain safetensors under PyTorch's names
    Export(CheckpointExportArgs),
}

/// `ddp-train checkpoint ls`
#[derive(Debug, Clone, Args)]
#[command(after_help = "It looks at manifests and lengths; `ddp-train checkpoint verify` reads every byte.")]
pub struct CheckpointLsArgs {
    /// Folder of a run, of its checkpoints, or of one checkpoint
    pub path: PathBuf,

    /// Write one JSON object a checkpoint to stdout
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train checkpoint verify`
#[derive(Debug, Clone, Args)]
pub struct CheckpointVerifyArgs {
    /// Folder of a run, of its checkpoints, or of one checkpoint
    pub path: PathBuf,

    /// Write one JSON object a checkpoint to stdout
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train checkpoint show`
#[derive(Debug, Clone, Args)]
pub struct CheckpointShowArgs {
    /// Folder of one checkpoint, `latest` or `best`; of a run or its checkpoints the newest that can be used
    pub path: PathBuf,

    /// Show its config, as TOML, and nothing else
    #[arg(long, conflicts_with = "json")]
    pub config: bool,

    /// Write its manifest to stdout
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train checkpoint prune`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Only checkpoints whose every byte is right count; what is newer than the last of them stays."
)]
pub struct CheckpointPruneArgs {
    /// Folder of a run, or of its checkpoints
    pub path: PathBuf,

    /// How many of the newest stay
    #[arg(long, value_name = "N", value_parser = count)]
    pub keep: usize,

    /// Let the best one go, too, if it is not among the newest
    #[arg(long)]
    pub also_best: bool,

    /// Say what would be deleted, and delete nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Which weights are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum WeightsChoice {
    /// Their moving average where the run kept one, else the weights.
    #[default]
    Auto,
    /// The moving average.
    Ema,
    /// The weights that were trained.
    Model,
}

/// `ddp-train checkpoint average`
#[derive(Debug, Clone, Args)]
#[command(after_help = "For example: `ddp-train checkpoint average runs/a --last 5 --out mean.safetensors`.")]
pub struct CheckpointAverageArgs {
    /// Folders of checkpoints of one model; with --last, of one run
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,

    /// Take the newest of a run's checkpoints, this many
    #[arg(long, value_name = "K", value_parser = count)]
    pub last: Option<usize>,

    /// Which weights
    #[arg(long, value_enum, default_value_t)]
    pub weights: WeightsChoice,

    /// File to write
    #[arg(long, value_name = "FILE.safetensors")]
    pub out: PathBuf,

    /// Replace a file that is there
    #[arg(long)]
    pub overwrite: bool,
}

/// `ddp-train checkpoint export`
#[derive(Debug, Clone, Args)]
#[command(after_help = "examples/load_in_pytorch.py loads the file.")]
pub struct CheckpointExportArgs {
    /// Folder of one checkpoint, `latest` or `best`; of a run or its checkpoints the newest that can be used
    pub path: PathBuf,

    /// Which weights
    #[arg(long, value_enum, default_value_t)]
    pub weights: WeightsChoice,

    /// File to write
    #[arg(long, value_name = "FILE.safetensors")]
    pub out: PathBuf,

    /// Replace a file that is there
    #[arg(long)]
    pub overwrite: bool,
}
