//! Arguments of `ddp-train runs`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use ddp::run_folder::folder::RUNS;

/// `ddp-train runs`
#[derive(Debug, Clone, Subcommand)]
pub enum RunsCommand {
    /// List the runs in a folder: state, steps, best evaluation, time
    Ls(RunsLsArgs),
    /// Compare two runs: the settings that differ, and their metrics side by side
    Diff(RunsDiffArgs),
    /// Show a run: data, hardware, metrics, settings, restarts
    Show(RunsShowArgs),
}

/// `ddp-train runs ls`
#[derive(Debug, Clone, Args)]
pub struct RunsLsArgs {
    /// Folder of run folders, such as that of a sweep
    #[arg(value_name = "DIR", default_value = RUNS)]
    pub folder: PathBuf,

    /// Print one JSON object per run
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train runs diff`
#[derive(Debug, Clone, Args)]
pub struct RunsDiffArgs {
    /// Two run folders
    #[arg(required = true, num_args = 2, value_names = ["RUN", "RUN"])]
    pub runs: Vec<PathBuf>,

    /// Print the differences as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train runs show`
#[derive(Debug, Clone, Args)]
pub struct RunsShowArgs {
    /// Run folder
    pub run: PathBuf,

    /// Print the run as one JSON object, with all settings
    #[arg(long)]
    pub json: bool,
}
