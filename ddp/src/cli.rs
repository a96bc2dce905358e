//! The command line: raw arguments, as typed. [`Config`](crate::config::Config) makes sense of them.

use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::config::CommDtype;
use crate::trainer::GraphMode;

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

/// `ddp-train bench`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time training steps on resident random rows
    Step(BenchStepArgs),
    /// Time matrix products, in TFLOP/s by shape and number format
    Addmm(BenchAddmmArgs),
    /// Time copies in memory and between host and GPU, in GB/s by size
    Copy(BenchCopyArgs),
    /// Time sums over all ranks by size: ms, and GB/s as nccl-tests counts them
    Allreduce(BenchAllreduceArgs),
    /// Time how fast a run's rows are made ready: rows/s and GB/s, beside a plain copy
    Loader(BenchLoaderArgs),
    /// Time the operations that are bound by memory, in GB/s and as a share of a plain copy
    Kernels(BenchKernelsArgs),
}

/// Where a benchmark runs and what it prints.
#[derive(Debug, Clone, Args)]
pub struct BenchPlaceArgs {
    /// Where to compute: auto, cpu, cuda (one GPU a rank) or cuda:N
    #[arg(long, default_value = "auto", value_parser = device)]
    pub device: String,

    /// Let several ranks use one GPU, which is slow and only for tests
    #[arg(long)]
    pub share_gpu: bool,

    /// Threads a rank [default: cores of the host divided by its ranks]
    #[arg(long, value_name = "N", value_parser = count)]
    pub threads: Option<usize>,

    /// Write results to stdout as JSON, one object a line
    #[arg(long)]
    pub json: bool,
}

/// How often something is timed.
#[derive(Debug, Clone, Copy, Args)]
pub struct BenchTimingArgs {
    /// Times that each thing is measured after a warm-up; their median, least and largest are told
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = count)]
    pub repeats: usize,

    /// Least length of one measurement in ms: what is shorter is done several times in it
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pub repeat_ms: u32,
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

    /// Steps before the clock starts; on a GPU at least 4, until graphs are captured
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub warmup: usize,

    /// The optimiser
    #[arg(long, value_enum, default_value_t)]
    pub optim: BenchOptim,

    /// Number format of the matrix products; on the CPU f32
    #[arg(long, value_enum, default_value_t)]
    pub dtype: BenchDtype,

    /// Whether a step on a GPU is captured once and replayed as a CUDA graph
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub cuda_graph: GraphMode,

    /// Where and how.
    #[command(flatten)]
    pub place: BenchPlaceArgs,
}

/// `ddp-train bench addmm`
#[derive(Debug, Clone, Args)]
pub struct BenchAddmmArgs {
    /// Widths of layers, whose forward and backward products are timed
    #[arg(long, value_name = "I,H,...,O", default_value = "784,1024,1024,10", value_parser = dims)]
    pub dims: Dims,

    /// Rows of the layers' inputs
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = count)]
    pub batch: usize,

    /// Sides of square products [default: 1024,2048,4096,8192; on the CPU 512,1024,2048]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = count)]
    pub square: Vec<usize>,

    /// Number formats [default: all; on the CPU f32]
    #[arg(long, value_enum, value_name = "FORMAT,...", value_delimiter = ',')]
    pub dtype: Vec<BenchDtype>,

    /// How often.
    #[command(flatten)]
    pub timing: BenchTimingArgs,

    /// Where and how.
    #[command(flatten)]
    pub place: BenchPlaceArgs,
}

/// `ddp-train bench copy`
#[derive(Debug, Clone, Args)]
pub struct BenchCopyArgs {
    /// Bytes to copy, each a number alone or with KiB, MiB or GiB
    #[arg(long, value_name = "BYTES,...", default_value = "64KiB,1MiB,16MiB,256MiB", value_delimiter = ',', value_parser = bytes)]
    pub sizes: Vec<usize>,

    /// How often.
    #[command(flatten)]
    pub timing: BenchTimingArgs,

    /// Where and how.
    #[command(flatten)]
    pub place: BenchPlaceArgs,
}

/// `ddp-train bench allreduce`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Several ranks: `mpirun -n N ddp-train bench allreduce`; one rank alone sums nothing."
)]
pub struct BenchAllreduceArgs {
    /// Bytes to sum, each a number alone or with KiB, MiB or GiB
    #[arg(long, value_name = "BYTES,...", default_value = "4KiB,64KiB,1MiB,4MiB,16MiB,32MiB,64MiB,128MiB", value_delimiter = ',', value_parser = bytes)]
    pub sizes: Vec<usize>,

    /// How often.
    #[command(flatten)]
    pub timing: BenchTimingArgs,

    /// Where and how.
    #[command(flatten)]
    pub place: BenchPlaceArgs,
}

/// `ddp-train bench kernels`
#[derive(Debug, Clone, Args)]
pub struct BenchKernelsArgs {
    /// Rows of the tensors
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = count)]
    pub rows: usize,

    /// Columns of the tensors
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = count)]
    pub cols: usize,

    /// Number formats, f32 or bf16 [default: both; on the CPU f32]
    #[arg(long, value_enum, value_name = "FORMAT,...", value_delimiter = ',')]
    pub dtype: Vec<BenchDtype>,

    /// How often.
    #[command(flatten)]
    pub timing: BenchTimingArgs,

    /// Where and how.
    #[command(flatten)]
    pub place: BenchPlaceArgs,
}

/// `ddp-train bench loader`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "For example: `ddp-train bench loader --set data.train=x.npy --set data.labels=y.npy`."
)]
pub struct BenchLoaderArgs {
    /// Config of the run whose rows are loaded [default: builtin:digits]
    #[arg(value_name = "RUN.toml")]
    pub config: Option<PathBuf>,

    /// Set one key of the config, over the file; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE", action = ArgAction::Append)]
    pub set: Vec<String>,

    /// Times that a pass over some batches is measured; the median, least and largest are told
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = count)]
    pub repeats: usize,

    /// Length of one measurement in ms
    #[arg(long, value_name = "MS", default_value_t = 300)]
    pub repeat_ms: u32,

    /// Where and how.
    #[command(flatten)]
    pub place: BenchPlaceArgs,
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
    /// Single precision whose products look at 11 bits of their factors, on GPUs.
    Tf32,
    /// bf16 with sums in single precision, on GPUs.
    Bf16,
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

fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match &text[digits.len()..] {
        "" | "B" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1 << 30),
        _ => None,
    };
    let number = digits.parse::<usize>().ok().zip(unit).and_then(|(n, unit)| n.checked_mul(unit));
    match number {
        Some(bytes) if (1..=1 << 40).contains(&bytes) => Ok(bytes),
        _ => {
            Err("expected a number of bytes, alone or with KiB, MiB or GiB\nhint: for example 4MiB"
                .to_owned())
        }
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
