//! Arguments of `ddp-train checkpoint`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{count, local_path};

/// `ddp-train checkpoint`
#[derive(Debug, Subcommand)]
pub enum CheckpointCommand {
    /// List checkpoints, with the reason for each that can't be used
    Ls(CheckpointLsArgs),
    /// Read every byte and prove that each row was used once per epoch; exit status 1 if anything is wrong
    Verify(CheckpointVerifyArgs),
    /// Show the manifest of a checkpoint
    Show(CheckpointShowArgs),
    /// Delete old checkpoints
    Prune(CheckpointPruneArgs),
    /// Average the weights of several checkpoints
    Average(CheckpointAverageArgs),
    /// Write a model for other programs: safetensors with PyTorch's parameter names, or ONNX with the preprocessing inside
    Export(CheckpointExportArgs),
}

/// `ddp-train checkpoint ls`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Checks manifests and file lengths only; `ddp-train checkpoint verify` reads every byte."
)]
pub struct CheckpointLsArgs {
    /// Run folder, its checkpoints folder, or one checkpoint
    pub path: PathBuf,

    /// Print one JSON object per checkpoint
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train checkpoint verify`
#[derive(Debug, Clone, Args)]
pub struct CheckpointVerifyArgs {
    /// Run folder, its checkpoints folder, or one checkpoint
    pub path: PathBuf,

    /// Print one JSON object per checkpoint
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train checkpoint show`
#[derive(Debug, Clone, Args)]
pub struct CheckpointShowArgs {
    /// One checkpoint, `latest` or `best`; for a run folder, its newest valid checkpoint
    pub path: PathBuf,

    /// Print only its config, as TOML
    #[arg(long, conflicts_with = "json")]
    pub config: bool,

    /// Print its manifest and the model's preprocessing as JSON
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train checkpoint prune`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Only checkpoints that verify byte for byte count toward --keep; any newer than the last of those are kept."
)]
pub struct CheckpointPruneArgs {
    /// Run folder, or its checkpoints folder
    pub path: PathBuf,

    /// Number of newest checkpoints to keep
    #[arg(long, value_name = "N", value_parser = count)]
    pub keep: usize,

    /// Also delete the best checkpoint if it is not among the newest
    #[arg(long)]
    pub also_best: bool,

    /// Show what would be deleted, and delete nothing
    #[arg(long)]
    pub dry_run: bool,
}

/// Weights to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum WeightsChoice {
    /// The EMA if the run kept one, else the trained weights.
    #[default]
    Auto,
    /// The exponential moving average (EMA) of the weights.
    Ema,
    /// The trained weights.
    Model,
}

/// `ddp-train checkpoint average`
#[derive(Debug, Clone, Args)]
#[command(after_help = "For example: `ddp-train checkpoint average runs/a --last 5 --out mean.safetensors`.")]
pub struct CheckpointAverageArgs {
    /// Checkpoints of one model; with --last, one run folder
    #[arg(required = true)]
    pub paths: Vec<PathBuf>,

    /// Average the K newest checkpoints of a run
    #[arg(long, value_name = "K", value_parser = count)]
    pub last: Option<usize>,

    /// Weights to use
    #[arg(long, value_enum, default_value_t)]
    pub weights: WeightsChoice,

    /// Output file
    #[arg(long, value_name = "FILE.safetensors", value_parser = local_path())]
    pub out: PathBuf,

    /// Replace an existing file
    #[arg(long)]
    pub overwrite: bool,
}

/// Format of an exported model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// The weights, with PyTorch's parameter names.
    Safetensors,
    /// From the columns of the data to labels or quantities, for onnxruntime and others.
    Onnx,
}

/// `ddp-train checkpoint export`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
For example: `ddp-train checkpoint export runs/a --out model.onnx`.
examples/load_in_pytorch.py and examples/predict_with_onnxruntime.py load the files.")]
pub struct CheckpointExportArgs {
    /// One checkpoint, `latest` or `best`; for a run folder, its newest valid checkpoint; or a model file (`.safetensors`)
    pub path: PathBuf,

    /// Format [default: by the ending of the output file, .onnx or .safetensors]
    #[arg(long, value_enum)]
    pub format: Option<ExportFormat>,

    /// Weights to use
    #[arg(long, value_enum, default_value_t)]
    pub weights: WeightsChoice,

    /// Output file
    #[arg(long, value_name = "FILE", value_parser = local_path())]
    pub out: PathBuf,

    /// ONNX: write the weights to FILE.data next to FILE, as is always done above 2 GiB
    #[arg(long)]
    pub external_data: bool,

    /// Replace an existing file
    #[arg(long)]
    pub overwrite: bool,
}
