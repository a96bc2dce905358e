//! `ddp-train bench`, as typed.

use std::path::PathBuf;

use clap::{ArgAction, Args, Subcommand, ValueEnum};

use super::{count, device};
use crate::train::trainer::GraphMode;

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
    /// Time checkpoints: the pause of a snapshot, writing, reading
    Checkpoint(BenchCheckpointArgs),
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

    /// Products and sums over GPUs take only what gives the same bits each time, as `train.deterministic` asks for
    #[arg(long)]
    pub deterministic: bool,

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

/// `ddp-train bench checkpoint`
#[derive(Debug, Clone, Args)]
#[command(after_help = "By default 1 GiB: weights and two numbers of AdamW's state for each.")]
pub struct BenchCheckpointArgs {
    /// Folder on the disk to measure; what is made in it is removed
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Widths of the layers, from features to outputs
    #[arg(long, value_name = "I,H,...,O", default_value = "9459,9459", value_parser = dims)]
    pub dims: Dims,

    /// Numbers of the optimiser's state for each weight
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub states: usize,

    /// Checkpoints to write and read
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count)]
    pub repeats: usize,

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
