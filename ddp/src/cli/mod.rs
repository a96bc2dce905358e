//! The command line: raw arguments, as typed. [`Config`](crate::config::Config) makes sense of them.

mod bench;
mod checkpoint;
mod config;
mod data;
mod describe;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};
use clap_complete::Shell;

pub use self::bench::{
    BenchAddmmArgs, BenchAllreduceArgs, BenchCheckpointArgs, BenchCommand, BenchCopyArgs, BenchDtype,
    BenchKernelsArgs, BenchLoaderArgs, BenchOptim, BenchPlaceArgs, BenchStepArgs, BenchTimingArgs, Dims,
};
pub use self::checkpoint::{
    CheckpointAverageArgs, CheckpointCommand, CheckpointExportArgs, CheckpointLsArgs, CheckpointPruneArgs,
    CheckpointShowArgs, CheckpointVerifyArgs, WeightsChoice,
};
pub use self::config::{ConfigCommand, ConfigKeysArgs};
pub use self::data::{ConvertArgs, ConvertDtype, DataCommand, InspectArgs};
pub use self::describe::DescribeArgs;
use crate::config::{CommDtype, resumable_keys};
use crate::error::Result;
use crate::report::progress::ProgressChoice;
use crate::train::resume::ResumeFrom;
use crate::train::trainer::GraphMode;

/// Trains dense networks on every core and GPU there is, data-parallel.
#[derive(Debug, Parser)]
#[command(
    name = "ddp-train",
    version,
    about,
    arg_required_else_help = true,
    after_help = "Several ranks: `mpirun -n N ddp-train train ...`.\n\
                  Exit status: 0 done, 1 the run failed, 2 bad usage, config or data, 74 disk full or I/O error, \
                  78 wrong world or environment, 85 stopped by a signal or train.stop_after_steps and saved, \
                  130 interrupted twice, 143 ended by mpirun before saving."
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model
    Train(TrainArgs),
    /// Evaluate a trained model
    Eval(EvalArgs),
    /// Tell a run's layers, work and memory, for any number of ranks
    Describe(DescribeArgs),
    /// List the keys of configs, print their JSON schema
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Look at data files, and convert them
    #[command(subcommand)]
    Data(DataCommand),
    /// List, check, prune, average and export checkpoints
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Measure speed
    #[command(subcommand)]
    Bench(BenchCommand),
    /// List GPUs, the libraries that they need, and the CPU
    Devices(DevicesArgs),
    /// Print a completion script for a shell
    Completions {
        /// The shell to complete in
        shell: Shell,
    },
}

/// `ddp-train train`
#[derive(Debug, Clone, Args)]
#[command(after_help = train_help())]
pub struct TrainArgs {
    /// Config of the run, TOML [default: train on builtin:digits]
    #[arg(value_name = "RUN.toml")]
    pub config: Option<PathBuf>,

    /// Set one key of the config, over the file; may be repeated. For example
    /// `--set optimizer.lr=0.01 --set model.hidden=[64,32]`
    #[arg(long, value_name = "SECTION.KEY=VALUE", action = ArgAction::Append)]
    pub set: Vec<String>,

    /// Folder for the run's files [default: runs/NAME-TIME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// Where to compute: auto, cpu, cuda (one GPU a rank) or cuda:N
    #[arg(long, default_value = "auto", value_parser = device)]
    pub device: String,

    /// Let several ranks use one GPU, which is slow and only for tests
    #[arg(long)]
    pub share_gpu: bool,

    /// Whether a step on a GPU is captured once and replayed as a CUDA graph
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub cuda_graph: GraphMode,

    /// Number format in which gradients travel between GPUs, over `comm.dtype` of the config
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub comm_dtype: Option<CommDtype>,

    /// Threads a rank [default: cores of the host divided by its ranks]
    #[arg(long, value_name = "N", value_parser = count)]
    pub threads: Option<usize>,

    /// Start from these weights instead of random ones
    #[arg(long, value_name = "FILE.safetensors")]
    pub init_from: Option<PathBuf>,

    /// Go on from a checkpoint: `auto` takes the newest good one of --out, and starts afresh where there is none yet; PATH
    /// is a run's folder or one checkpoint. Without RUN.toml the run's own config counts
    #[arg(long, value_name = "auto|PATH", value_parser = resume_from, conflicts_with_all = ["overwrite", "init_from"])]
    pub resume: Option<ResumeFrom>,

    /// Progress on stderr; auto is a bar on a terminal and plain lines elsewhere
    #[arg(long, value_enum, default_value_t)]
    pub progress: ProgressChoice,

    /// Also write the lines of metrics.jsonl to stdout
    #[arg(long)]
    pub json: bool,

    /// Check config, data and model, print the config with every key to stdout, and stop
    #[arg(long)]
    pub dry_run: bool,

    /// Replace the run that the output folder holds
    #[arg(long)]
    pub overwrite: bool,

    /// Also show the resolved config and the model's layers
    #[arg(short, long, conflicts_with = "quiet")]
    pub verbose: bool,

    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

fn resume_from(text: &str) -> Result<ResumeFrom, String> {
    match text {
        "" => Err("expected auto or a path\nhint: --resume auto --out DIR".to_owned()),
        "auto" => Ok(ResumeFrom::Auto),
        path => Ok(ResumeFrom::Path(PathBuf::from(path))),
    }
}

fn train_help() -> String {
    format!(
        "A config to start from, with its defaults: `ddp-train train --dry-run > run.toml`.\n\
         SIGTERM, SIGINT and SIGUSR1 let the step end, save a checkpoint and exit with 85; a second SIGINT exits at once.\n\
         With --resume the config may differ from the checkpoint's in the number of ranks and in: {}.",
        resumable_keys().join(", ")
    )
}

/// `ddp-train eval`
#[derive(Debug, Clone, Args)]
pub struct EvalArgs {
    /// Folder of a run or of a checkpoint, or a model.safetensors
    #[arg(long, value_name = "PATH")]
    pub checkpoint: PathBuf,

    /// Rows to evaluate on: a file, a folder, a pattern or builtin:digits [default: the run's own]
    #[arg(long, value_name = "PATH")]
    pub data: Option<String>,

    /// Labels of those rows, where they lie in a file of their own (npy, IDX)
    #[arg(long, value_name = "PATH")]
    pub labels: Option<String>,

    /// Where to compute: auto, cpu, cuda (one GPU a rank) or cuda:N
    #[arg(long, default_value = "auto", value_parser = device)]
    pub device: String,

    /// Write the result as one JSON object to stdout
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train devices`
#[derive(Debug, Clone, Args)]
pub struct DevicesArgs {
    /// Write the list as one JSON object to stdout
    #[arg(long)]
    pub json: bool,
}

fn device(text: &str) -> Result<String, String> {
    let is_index = |index: &str| {
        !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit()) && index.parse::<u32>().is_ok()
    };
    match text {
        "auto" | "cpu" | "cuda" => Ok(text.to_owned()),
        _ if text.strip_prefix("cuda:").is_some_and(is_index) => Ok(text.to_owned()),
        "mps" | "rocm" | "hip" | "xpu" | "tpu" | "vulkan" | "metal" => {
            Err("not supported by this build\nhint: use auto, cpu, cuda or cuda:N".to_owned())
        }
        _ => Err("expected auto, cpu, cuda or cuda:N\nhint: cuda:0 is the first GPU".to_owned()),
    }
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(number) if (1..=1 << 31).contains(&number) => Ok(number),
        _ => Err("expected a whole number of 1 or above\nhint: for example 4".to_owned()),
    }
}
