//! Arguments of `ddp-train config`, `describe`, `doctor` and `report`, and flags about checks of GPUs against the CPU.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use ddp::run_folder::folder::RUNS;

use super::{RunConfigArgs, count, device, out_folder};

/// `ddp-train report`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
The page is one HTML file that loads nothing: curves, findings, times, tables, settings. Every run writes its own when it ends.
For example: `ddp-train report runs/a runs/b` draws both and lists the settings that differ.")]
pub struct ReportArgs {
    /// Run folders; they may be running, stopped or failed
    #[arg(required = true, value_name = "RUN")]
    pub runs: Vec<PathBuf>,

    /// Output file; replaces an earlier page [default: report.html, in the folder of a single RUN]
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
}

/// `ddp-train config`
#[derive(Debug, Clone, Subcommand)]
pub enum ConfigCommand {
    /// List the config keys: type, range, default, meaning
    Keys(ConfigKeysArgs),
    /// Print the JSON schema of the config, for completion and checks in editors
    #[command(
        after_help = "For example: `ddp-train config schema > run.schema.json`, and `#:schema ./run.schema.json` as the first line of \
                      run.toml, for editors with a TOML language server (Taplo, Even Better TOML)."
    )]
    Schema,
}

/// `ddp-train config keys`
#[derive(Debug, Clone, Args)]
#[command(after_help = "For example: `ddp-train config keys optimizer`.")]
pub struct ConfigKeysArgs {
    /// Only keys that start with this prefix, such as `train` or `optimizer.w`
    #[arg(value_name = "PREFIX", default_value = "", hide_default_value = true)]
    pub prefix: String,

    /// Print a Markdown page
    #[arg(long, conflicts_with = "json")]
    pub markdown: bool,

    /// Print one JSON object per key, one per line
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train describe`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Reads the data for the number of features and classes, as `train` does, but builds no model: neither the ranks \
                  nor the GPU need to exist.\n\
                  For example: `ddp-train describe run.toml --world-size 8 --device cuda`."
)]
pub struct DescribeArgs {
    /// Config or data of the run.
    #[command(flatten)]
    pub run: RunConfigArgs,

    /// Ranks of the run [default: ranks of this command]
    #[arg(long, value_name = "N", value_parser = count)]
    pub world_size: Option<usize>,

    /// ZeRO stage, overrides `comm.zero`: 0 off, 1 shards the optimizer state, 2 also the gradients
    #[arg(long, value_name = "STAGE", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub zero: Option<u8>,

    /// Device of the ranks: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_parser = device)]
    pub device: String,

    /// Print the report as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train doctor`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Start it as the run is started: `mpirun -n N ddp-train doctor`, with the same hosts and flags of mpirun. \
                        Exit status 1 if a check fails; warnings are no failure."
)]
pub struct DoctorArgs {
    /// Output folder of the run, of this host or of a bucket, where what a run does is tried
    #[arg(long, value_name = "DIR", default_value = RUNS, value_parser = out_folder())]
    pub out: PathBuf,

    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// When a run checks its GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CheckMode {
    /// At the first start of such a model with a GPU model, driver, libraries and program.
    Auto,
    /// At each start.
    Always,
    /// Never.
    Off,
}

/// Check of the GPU before a command computes on it.
#[derive(Debug, Clone, Copy, Args)]
pub struct StartCheckArgs {
    /// Check of the GPU against the CPU before the data are read: auto at the first start of such a model with a GPU model, driver,
    /// libraries and program, always at each start, off never [default: DDP_TRAIN_CHECK of the environment, else auto]
    #[arg(long, value_enum, value_name = "MODE")]
    pub check: Option<CheckMode>,

    /// Its time limit.
    #[command(flatten)]
    pub limit: CheckArgs,
}

/// Models that the process of a check trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Checked {
    /// That of the config on stdin.
    Run,
    /// Examples of all kinds.
    All,
}

/// Time limit of a check.
#[derive(Debug, Clone, Copy, Args)]
pub struct CheckArgs {
    /// Seconds without a result after which a check of a GPU, or the trial of the collectives of several, is ended
    #[arg(long, value_name = "S", default_value_t = 60.0, value_parser = seconds)]
    pub check_timeout: f64,
}

impl CheckArgs {
    /// The limit.
    pub fn limit(&self) -> Duration {
        Duration::from_secs_f64(self.check_timeout)
    }
}

pub(super) fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 1e6 => Ok(seconds),
        _ => Err("expected a number above 0\nhint: for example 120".to_owned()),
    }
}
