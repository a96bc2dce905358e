//! The command line: raw arguments, as typed. [`Config`](crate::config::Config) makes sense of them.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Trains dense networks on every core and GPU there is, data-parallel.
#[derive(Debug, Parser)]
#[command(
    name = "ddp-train",
    version,
    about,
    arg_required_else_help = true,
    after_help = "Several ranks: `mpirun -n N ddp-train train ...`.\n\
                  Exit status: 0 done, 1 the run failed, 2 bad usage, config or data."
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
    /// Measure speed
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Print a completion script for a shell
    Completions {
        /// The shell to complete in
        shell: Shell,
    },
}

/// `ddp-train train`
#[derive(Debug, Clone, Args)]
#[command(after_help = "A config to start from, with its defaults: `ddp-train train --dry-run > run.toml`.")]
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

    /// Threads a rank [default: cores of the host divided by its ranks]
    #[arg(long, value_name = "N", value_parser = count)]
    pub threads: Option<usize>,

    /// Start from these weights instead of random ones
    #[arg(long, value_name = "FILE.safetensors")]
    pub init_from: Option<PathBuf>,

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

/// `ddp-train eval`
#[derive(Debug, Clone, Args)]
pub struct EvalArgs {
    /// Folder of a run, or its model.safetensors
    #[arg(long, value_name = "PATH")]
    pub checkpoint: PathBuf,

    /// Rows to evaluate on: a CSV file or builtin:digits [default: the run's own]
    #[arg(long, value_name = "PATH")]
    pub data: Option<String>,

    /// Write the result as one JSON object to stdout
    #[arg(long)]
    pub json: bool,
}

/// `ddp-train bench`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time training steps on resident random rows
    Step(BenchStepArgs),
}

/// `ddp-train bench step`
#[derive(Debug, Clone, Args)]
pub struct BenchStepArgs {
    /// Widths of the layers, from features to outputs
    #[arg(long, value_name = "I,H,...,O", default_value = "784,1024,1024,10", value_parser = dims)]
    pub dims: Dims,

    /// Rows a rank and step
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = count)]
    pub batch: usize,

    /// Steps to time
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = count)]
    pub steps: usize,

    /// Steps before the clock starts
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub warmup: usize,

    /// The optimiser
    #[arg(long, value_enum, default_value_t)]
    pub optim: BenchOptim,

    /// Number format of the matrix products
    #[arg(long, value_enum, default_value_t)]
    pub dtype: BenchDtype,

    /// Threads a rank [default: cores of the host divided by its ranks]
    #[arg(long, value_name = "N", value_parser = count)]
    pub threads: Option<usize>,

    /// Write the result as one JSON object to stdout
    #[arg(long)]
    pub json: bool,
}

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum ProgressChoice {
    /// A bar if stderr is a terminal, else lines.
    #[default]
    Auto,
    /// A bar; without a terminal, lines.
    Bar,
    /// Lines.
    Plain,
    /// Nothing.
    None,
}

/// Optimiser of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum BenchOptim {
    /// SGD with momentum 0.9.
    Sgd,
    /// AdamW.
    #[default]
    #[value(name = "adamw")]
    AdamW,
}

/// Number format of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum BenchDtype {
    /// IEEE single precision.
    #[default]
    F32,
}

/// Widths of layers: at least two, each at least 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dims(pub Vec<usize>);

/// The completion script of `shell`, on stdout.
pub fn completions(shell: Shell) {
    use clap::CommandFactory as _;
    clap_complete::generate(shell, &mut Cli::command(), "ddp-train", &mut std::io::stdout());
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

fn dims(text: &str) -> Result<Dims, String> {
    let widths: Option<Vec<usize>> = text
        .split(',')
        .map(|width| width.trim().parse().ok().filter(|width| (1..=1 << 24).contains(width)))
        .collect();
    match widths {
        Some(widths) if widths.len() >= 2 => Ok(Dims(widths)),
        _ => Err("expected at least two widths of 1 or above\nhint: for example 784,1024,10".to_owned()),
    }
}

#[cfg(test)]
#[path = "cli_tests.rs"]
mod tests;
