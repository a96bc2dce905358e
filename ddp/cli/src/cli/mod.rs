//! The command line: raw arguments, parsed by clap. [`Config`](ddp::config::Config) checks the settings of a run.
//!
//! ```
//! use ddp_train::cli::{Cli, Command};
//!
//! let parse = |line: &str| Cli::parse_arguments(line.split(' ').map(Into::into).collect(), None);
//!
//! let cli = parse("ddp-train train table.csv --target label -v")?;
//! assert_eq!(cli.log.verbose, 1);
//! assert!(matches!(cli.command, Command::Train(args) if args.device == "auto"));
//!
//! let error = parse("ddp-train train table.csv --trget label").unwrap_err();
//! assert!(error.to_string().contains("--target"));
//! # Ok::<(), clap::Error>(())
//! ```

pub mod column_names;
mod checkpoint;
mod run_config;
mod few_flags;
mod launch;
mod live;
mod plan;
mod predict;
mod data;
mod bench;
mod find;
mod runs;
mod sweep;
mod other_names;
mod launch_words;
mod rewrite;
mod tips;
#[cfg(test)]
mod guesses;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use clap::builder::{OsStringValueParser, PathBufValueParser, TypedValueParser};
use clap::{ArgAction, Args, CommandFactory as _, FromArgMatches as _, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use ddp::config::{CommDtype, MissingTarget, Overrides, UnknownLabel, resumable_keys};
use ddp::run_folder::folder::is_default_name;
use ddp::train::resume::ResumeFrom;
use ddp::train::trainer::GraphMode;
use ddp_kernels::OTHER_DEVICES;
use ddp_tables::open::remote;

pub use self::bench::{
    AllreducePath, BenchAddmmArgs, BenchAllreduceArgs, BenchCheckpointArgs, BenchCommand, BenchCopyArgs,
    BenchDtype, BenchKernelsArgs, BenchLoaderArgs, BenchOptim, BenchPlaceArgs, BenchStepArgs,
    BenchTimingArgs, Dims,
};
pub use self::checkpoint::{
    CheckpointAverageArgs, CheckpointCommand, CheckpointExportArgs, CheckpointLsArgs, CheckpointPruneArgs,
    CheckpointShowArgs, CheckpointVerifyArgs, ExportFormat, WeightsChoice,
};
pub use self::data::{
    CacheArgs, CacheCommand, ConvertArgs, ConvertSubset, DataCommand, InspectArgs, ShowArgs,
};
pub use self::few_flags::{
    CheckArgs, CheckMode, Checked, ConfigCommand, ConfigKeysArgs, DescribeArgs, DoctorArgs, ReportArgs,
    StartCheckArgs,
};
pub use self::find::{FindBatchSizeArgs, FindLrArgs};
pub use self::launch::{LaunchArgs, LauncherName, RankCount};
pub(crate) use self::live::limit;
pub use self::live::{StacksArgs, TraceArgs};
pub use self::plan::PlanArgs;
pub(crate) use self::predict::FILE_KEYS;
pub use self::predict::{BadRows, EvalArgs, PredictArgs};
pub use self::run_config::{RunConfigArgs, ShortFlags};
pub use self::runs::{RunsCommand, RunsDiffArgs, RunsLsArgs, RunsShowArgs};
pub use self::sweep::{Grid, Range, SweepArgs};
use crate::cli::rewrite::Rewritten;
pub use crate::cli::run_config::graph_mode_name;
pub use crate::cli::tips::with_implied_command;
use crate::report::log::{LogFormat, LogOptions};
use crate::report::progress::ProgressChoice;
use crate::report::prometheus;

/// Data-parallel training of dense networks on CPUs and GPUs
#[derive(Debug, Parser)]
#[command(
    name = "ddp-train",
    about,
    arg_required_else_help = true,
    version,
    after_help = "A table or a config alone is trained: `ddp-train table.csv --target label`, `ddp-train run.toml`.\n\
                  Several ranks: `mpirun -n N ddp-train ...`; without arguments they train the bundled digits.\n\
                  Exit status: 0 done, 1 the run failed, 2 bad usage, config or data, 74 disk full or I/O error, \
                  75 a rank was lost, to be resumed, 78 wrong world or environment, 85 stopped by a signal or train.stop_after_steps or _epochs and saved, \
                  130 interrupted twice, 143 ended by mpirun before saving."
)]
pub struct Cli {
    /// The log.
    #[command(flatten)]
    pub log: LogArgs,

    /// The command.
    #[command(subcommand)]
    pub command: Command,

    /// Words of other programs and what they were taken for, such as `--seed 3 sets train.seed`.
    #[arg(skip)]
    pub taken: Vec<String>,

    /// The words that clap has parsed, including the program's name; names from other programs are replaced.
    #[arg(skip)]
    pub words: Vec<OsString>,
}

/// Flags of all commands about notes and warnings.
#[derive(Debug, Clone, Args)]
pub struct LogArgs {
    /// Show more: -v for details (train: also the resolved config, the layers of the model and the exchange of gradients), -vv
    /// for every step and collective. The environment variable RUST_LOG chooses by module
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub verbose: u8,

    /// Form of the lines on stderr
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    pub log_format: LogFormat,
}

/// Version, commit, features and target of this build.
fn version(commit: Option<&str>) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let commit = commit.filter(|commit| !commit.is_empty()).unwrap_or("unknown");
    format!("{version} (commit {commit}; {})", env!("DDP_TRAIN_BUILD"))
}

/// The name of this build, which must be the same on all ranks. Called once per process: the string is never freed.
pub fn program(commit: Option<&str>) -> &'static str {
    format!("ddp-train {}", version(commit)).leak()
}

impl Cli {
    /// Parses `args`, the first of which is the program's name; `--version` prints `commit`, features and target.
    pub fn parse_arguments(args: Vec<OsString>, commit: Option<&str>) -> Result<Self, clap::Error> {
        // clap requires a string that lives as long as the program.
        let mut command = Self::command().version(&*version(commit).leak());
        let Rewritten { words, taken } = rewrite::rewrite(args, &command);
        let matches = command.try_get_matches_from_mut(&words);
        let matches = matches.map_err(|error| tips::with_tip(error, &command, &words))?;
        let mut cli = Self::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
        (cli.taken, cli.words) = (taken, words);
        if let Command::Launch(args) = &mut cli.command {
            cli.log.log_format = args.share_log_format(cli.log.log_format);
        }
        Ok(cli)
    }

    /// Whether the command is a training run, rather than only the check of one.
    pub fn is_run(&self) -> bool {
        matches!(&self.command, Command::Train(args) if !args.dry_run)
    }

    /// Whether the command computes on all ranks, so that it must join them.
    pub fn uses_ranks(&self) -> bool {
        matches!(
            &self.command,
            Command::Train(_)
                | Command::FindLr(_)
                | Command::FindBatchSize(_)
                | Command::Eval(_)
                | Command::Predict(_)
                | Command::Bench(_)
                | Command::Doctor(_)
        )
    }

    /// Tells the job from others whose ranks meet at the same place: its folder, else its config or rows. The same on all ranks.
    pub fn job(&self) -> String {
        match &self.command {
            Command::Train(args) => {
                let path = args.out.as_ref().or(args.run.run.as_ref()).map(|path| path.display().to_string());
                path.or_else(|| args.run.short.data.clone()).unwrap_or_default()
            }
            Command::Eval(_) => "eval".to_owned(),
            Command::Predict(_) => "predict".to_owned(),
            _ => String::new(),
        }
    }

    /// Log options from the flags; `directives` comes from `RUST_LOG`.
    pub fn log_options(&self, directives: Option<String>) -> LogOptions {
        let quiet = match &self.command {
            Command::Train(args)
            | Command::FindLr(FindLrArgs { train: args, .. })
            | Command::FindBatchSize(FindBatchSizeArgs { train: args, .. }) => args.quiet,
            _ => false,
        };
        LogOptions { verbosity: self.log.verbose, quiet, format: self.log.log_format, directives }
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Train a model
    Train(TrainArgs),
    /// Start the ranks of a training run, and start them again when a rank or host is lost
    Launch(LaunchArgs),
    /// Find a learning rate for a run, by a test over a range of rates
    FindLr(FindLrArgs),
    /// Find the largest batch that fits into memory, and the smallest that is fast
    FindBatchSize(FindBatchSizeArgs),
    /// Train runs over values of config keys and seeds, and compare them
    Sweep(SweepArgs),
    /// List, compare and show runs
    #[command(subcommand)]
    Runs(RunsCommand),
    /// Evaluate a trained model
    Eval(EvalArgs),
    /// Predict rows with a trained model
    Predict(PredictArgs),
    /// Show layers, FLOPs and memory of a run, for any number of ranks
    Describe(DescribeArgs),
    /// Predict memory, time and scaling of a run, on any number of ranks and on GPUs that need not be here
    Plan(PlanArgs),
    /// List the keys of a config or print its JSON schema
    #[command(subcommand)]
    Config(ConfigCommand),
    /// Inspect and convert data files
    #[command(subcommand)]
    Data(DataCommand),
    /// List, verify, show, prune, average and export checkpoints
    #[command(subcommand)]
    Checkpoint(CheckpointCommand),
    /// Make the page that shows a run, or several over each other
    Report(ReportArgs),
    /// Trace the next steps of a running job: what each rank does when, on one axis of time
    Trace(TraceArgs),
    /// Show where each rank of a running job stands: phase, step, collective, since when
    Stacks(StacksArgs),
    /// Measure speed
    #[command(subcommand)]
    Bench(BenchCommand),
    /// List GPUs, the CUDA libraries and the CPU
    Devices(DevicesArgs),
    /// Check launcher, hosts, GPUs, network, collectives and output folder before a run
    Doctor(DoctorArgs),
    /// Print a completion script for a shell
    Completions {
        /// Shell to generate the script for
        shell: Shell,
    },
    /// Write the man pages into a folder
    Man {
        /// Folder of the pages, such as ~/.local/share/man/man1
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
}

/// CPUs that a rank is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum Bind {
    /// Bind to the cores near the GPU, unless the launcher has bound the rank; on a CPU run on all allowed cores.
    #[default]
    Auto,
    /// Run on all allowed cores.
    None,
}

/// `ddp-train train`
#[derive(Debug, Clone, Args)]
#[command(after_help = train_help())]
pub struct TrainArgs {
    /// Config or data of the run.
    #[command(flatten)]
    pub run: RunConfigArgs,

    /// Output folder of the run, or s3://BUCKET/FOLDER [default: runs/NAME-TIME]
    #[arg(long, value_name = "DIR", value_parser = out_folder())]
    pub out: Option<PathBuf>,

    /// Device to compute on: auto, cpu, cuda (one GPU per rank) or cuda:N
    #[arg(long, default_value = "auto", value_parser = device)]
    pub device: String,

    /// Let several ranks share a GPU; slow, for tests only
    #[arg(long)]
    pub share_gpu: bool,

    /// Whether to capture a GPU step once and replay it as a CUDA graph
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = run_config::graph_mode())]
    pub cuda_graph: GraphMode,

    /// Do without all features of GPUs that docs/gpus.md lists: graphs, fused matmuls, registered buffers and others; slower
    #[arg(long, conflicts_with_all = ["cuda_graph", "bind"])]
    pub safe: bool,

    /// Check of the GPU.
    #[command(flatten)]
    pub check: StartCheckArgs,

    /// Data type of gradients sent between GPUs; overrides `comm.dtype` of the config
    #[arg(long, value_name = "FORMAT", value_parser = run_config::comm_dtype())]
    pub comm_dtype: Option<CommDtype>,

    /// Bind each rank to the CPUs near its GPU (auto), unless the launcher has bound it, or bind nothing (none)
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub bind: Bind,

    /// Threads per rank [default: the cores that it may run on, divided by the ranks that share them]
    #[arg(long, value_name = "N", value_parser = count)]
    pub threads: Option<usize>,

    /// Initialize a new run's weights from this model instead of randomly: a model file, a run folder or a checkpoint folder
    #[arg(long, value_name = "PATH")]
    pub init_from: Option<PathBuf>,

    /// With --init-from: fit normalization, missing values, vocabularies and target scale to the training rows instead of
    /// taking them from the model
    #[arg(long, requires = "init_from")]
    pub refit_preprocessing: bool,

    /// With --init-from: initialize the output layer randomly, for the labels or targets of the training rows. It may have
    /// another width than in the model; the target scale is fitted anew
    #[arg(long, requires = "init_from")]
    pub new_head: bool,

    /// Resume from a checkpoint: `auto` uses the newest valid one in --out, or starts a new run if there is none yet; PATH
    /// is a run folder or one checkpoint. Without RUN.toml the saved config of the run is used
    #[arg(long, value_name = "auto|PATH", value_parser = OsStringValueParser::new().try_map(resume_from), conflicts_with = "overwrite")]
    pub resume: Option<ResumeFrom>,

    /// With --resume: let batch norm take its statistics of other micro-batches than the checkpoint's run did, which makes it another
    /// run
    #[arg(long, requires = "resume")]
    pub allow_batchnorm_change: bool,

    /// With --resume: keep the learning-rate schedule of the checkpoint's run where the run is longer now; after its end the rate of
    /// its last step holds
    #[arg(long, requires = "resume")]
    pub keep_schedule: bool,

    /// Progress on stderr; auto shows a bar on a terminal and plain lines elsewhere
    #[arg(long, value_enum, default_value_t)]
    pub progress: ProgressChoice,

    /// Also write the lines of metrics.jsonl to stdout
    #[arg(long)]
    pub json: bool,

    /// Serve metrics of the running job for Prometheus at http://ADDRESS/metrics, on rank 0: PORT for this host alone, :PORT for all
    /// interfaces
    #[arg(long, value_name = "ADDRESS", value_parser = prometheus::address)]
    pub metrics_addr: Option<SocketAddr>,

    /// Refuse a world of another number of ranks
    #[arg(long, value_name = "N", value_parser = count)]
    pub expect_world: Option<usize>,

    /// Refuse ranks that run on another number of hosts
    #[arg(long, value_name = "N", value_parser = count)]
    pub expect_hosts: Option<usize>,

    /// Id of the job that starts the ranks, repeated in `done.json`, which a complete run writes last
    #[arg(long, value_name = "ID", value_parser = job_id)]
    pub job_id: Option<String>,

    /// Trace the steps from FIRST to LAST on all ranks, into the folder traces of the run; ui.perfetto.dev opens the file
    #[arg(long, value_name = "FIRST..LAST", value_parser = live::step_range)]
    pub trace: Option<(u64, u64)>,

    /// Check config, data and model, print the resolved config to stdout, and exit
    #[arg(long)]
    pub dry_run: bool,

    /// Delete the run that the output folder holds and start a new one
    #[arg(long)]
    pub overwrite: bool,

    /// Print errors only
    #[arg(short, long, conflicts_with = "verbose")]
    pub quiet: bool,
}

impl TrainArgs {
    /// Values that override the config file; a run is named after its folder.
    pub fn overrides(&self) -> Overrides {
        let of_resumed = || match &self.resume {
            Some(ResumeFrom::Path(path)) => {
                let checkpoints = path.ancestors().find(|folder| folder.ends_with("checkpoints"));
                Some(checkpoints.and_then(Path::parent).unwrap_or(path))
            }
            _ => None,
        };
        let folder = self.out.as_deref().or_else(of_resumed).and_then(|out| out.file_name()?.to_str());
        let folder = folder.filter(|name| !is_default_name(name));
        Overrides { folder: folder.map(str::to_owned), ..self.run.overrides() }
    }

    /// Whether steps on a GPU are captured.
    pub fn graph_mode(&self) -> GraphMode {
        if self.safe { GraphMode::Off } else { self.cuda_graph }
    }
}

fn resume_from(text: OsString) -> Result<ResumeFrom, String> {
    match text.to_str() {
        Some("") => Err("expected auto or a path\nhint: --resume auto --out DIR".to_owned()),
        Some("auto") => Ok(ResumeFrom::Auto),
        _ => Ok(ResumeFrom::Path(text.into())),
    }
}

fn job_id(text: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match text {
        _ if !text.is_empty() && text.len() <= 64 && text.chars().all(is_plain) => Ok(text.to_owned()),
        _ => Err("expected 1 to 64 letters, digits, `.`, `_` or `-`\nhint: for example a date: 2026-01-31"
            .to_owned()),
    }
}

fn train_help() -> String {
    format!(
        "Write a config with all defaults: `ddp-train train --dry-run > run.toml`; list the keys: `ddp-train config keys`.\n\
         On SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU or SIGPWR, and when its launcher ends, the run finishes the step, saves a checkpoint and exits with 85 (before the first step it saves nothing); a second SIGINT exits at once.\n\
         With --resume, the number of ranks and these keys may differ from the checkpoint: {}.",
        resumable_keys().join(", ")
    )
}

/// `ddp-train devices`
#[derive(Debug, Clone, Args)]
pub struct DevicesArgs {
    /// Print the list as one JSON object
    #[arg(long)]
    pub json: bool,

    /// Compile the kernels of GPUs into the cache, for these architectures (90 for an H100 or H200) or "all"; needs NVRTC and no GPU
    #[arg(long, value_name = "ARCH,..", value_parser = architectures)]
    pub compile: Option<Architectures>,

    /// Train small models of every kind on each GPU and on the CPU, compare all that they compute, and copy between the GPUs; exit
    /// status 1 if anything differs
    #[arg(long, conflicts_with = "compile")]
    pub check: bool,

    /// With --check: this GPU only
    #[arg(long, value_name = "N")]
    pub gpu: Option<u32>,

    /// Time limit of a check.
    #[command(flatten)]
    pub check_args: CheckArgs,

    /// Whether the checks capture steps as CUDA graphs
    #[arg(long, hide = true, default_value = "auto", value_parser = run_config::graph_mode())]
    pub cuda_graph: GraphMode,

    /// The part of --check that runs in a process of its own
    #[arg(long, hide = true, value_enum, requires = "gpu")]
    pub check_child: Option<Checked>,
}

/// Architectures of GPUs, such as 90; none stands for all that the compiler supports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Architectures(pub Vec<i32>);

fn architectures(text: &str) -> Result<Architectures, String> {
    if text == "all" {
        return Ok(Architectures(Vec::new()));
    }
    let number = |arch: &str| arch.strip_prefix("sm_").unwrap_or(arch).parse().ok().filter(|n| *n > 0);
    let numbers: Option<_> = text.split(',').map(number).collect();
    numbers.map(Architectures).ok_or_else(|| "expected architectures such as 80,90, or all".to_owned())
}

fn device(text: &str) -> Result<String, String> {
    let is_index = |index: &str| {
        !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit()) && index.parse::<u32>().is_ok()
    };
    match text {
        "auto" | "cpu" | "cuda" => Ok(text.to_owned()),
        _ if text.strip_prefix("cuda:").is_some_and(is_index) => Ok(text.to_owned()),
        _ if OTHER_DEVICES.contains(&text) => {
            Err("not supported by this build\nhint: use auto, cpu, cuda or cuda:N".to_owned())
        }
        _ => Err("expected auto, cpu, cuda or cuda:N\nhint: cuda:0 is the first GPU".to_owned()),
    }
}

fn unknown_label(text: &str) -> Result<UnknownLabel, String> {
    let found = UnknownLabel::ALL.iter().find(|treatment| treatment.name() == text).copied();
    found.ok_or_else(|| "expected error or skip".to_owned())
}

fn missing_target(text: &str) -> Result<MissingTarget, String> {
    let found = MissingTarget::ALL.iter().find(|treatment| treatment.name() == text).copied();
    found.ok_or_else(|| "expected error or skip".to_owned())
}

/// Parses a path of results, which no store takes.
fn local_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.to_str().filter(|text| text.contains("://")) {
        Some(address) => {
            Err(format!("{address} is an address, and this is written to a path of this host or a mount"))
        }
        None => Ok(path),
    })
}

/// Parses the folder of a run, which may be one of a bucket.
fn out_folder() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.to_str().filter(|text| text.contains("://")) {
        Some(address) if !remote::takes_results(address) => {
            Err(format!("results go to a folder of this host, or of a bucket at s3://, gs:// or az:// (docs/buckets.md), not to {address}"))
        }
        _ => Ok(path),
    })
}

fn count(text: &str) -> Result<usize, String> {
    match text.parse::<usize>() {
        Ok(number) if (1..=1 << 31).contains(&number) => Ok(number),
        _ => Err("expected a whole number of 1 or above\nhint: for example 4".to_owned()),
    }
}
