//! Arguments of `ddp-train bench`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use ddp::train::trainer::GraphMode;

use super::{RunConfigArgs, count, device};

/// `ddp-train bench`
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Time training steps on random rows in memory
    Step(BenchStepArgs),
    /// Time matmuls, in TFLOP/s by shape and data type
    Addmm(BenchAddmmArgs),
    /// Time copies within memory and between host and GPU, in GB/s by size
    Copy(BenchCopyArgs),
    /// Time all-reduce by size: ms, and algorithm and bus bandwidth in GB/s as in nccl-tests
    Allreduce(BenchAllreduceArgs),
    /// Time data loading of a run: samples/s and GB/s, next to a plain copy
    Loader(Box<BenchLoaderArgs>),
    /// Time checkpoints: pause of the snapshot, write, read
    Checkpoint(BenchCheckpointArgs),
    /// Time the memory-bound kernels, in GB/s and as a fraction of a plain copy
    Kernels(BenchKernelsArgs),
}

/// Device and output of a benchmark.
#[derive(Debug, Clone, Args)]
pub struct BenchPlaceArgs {
    /// Device to compute on: auto, cpu, cuda (one GPU per rank) or cuda:N
    #[arg(long, default_value = "auto", value_parser = device)]
    pub device: String,

    /// Let several ranks share a GPU; slow, for tests only
    #[arg(long)]
    pub share_gpu: bool,

    /// Do without all features of GPUs that docs/gpus.md lists; slower
    #[arg(long, conflicts_with = "bind")]
    pub safe: bool,

    /// Use only deterministic matmuls and reductions on GPUs, as `train.deterministic` does
    #[arg(long)]
    pub deterministic: bool,

    /// Bind each rank to the CPUs near its GPU (auto), unless the launcher has bound it, or bind nothing (none)
    #[arg(long, value_enum, value_name = "MODE", default_value_t)]
    pub bind: super::Bind,

    /// Threads per rank [default: the cores that it may run on, divided by the ranks that share them]
    #[arg(long, value_name = "N", value_parser = count)]
    pub threads: Option<usize>,

    /// Print results as JSON, one object per line
    #[arg(long)]
    pub json: bool,
}

/// Repetitions of a measurement.
#[derive(Debug, Clone, Copy, Args)]
pub struct BenchTimingArgs {
    /// Number of measurements after a warm-up; median, minimum and maximum are reported
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = count)]
    pub repeats: usize,

    /// Minimum length of one measurement in ms; shorter operations are repeated within it
    #[arg(long, value_name = "MS", default_value_t = 20)]
    pub repeat_ms: u32,
}

/// `ddp-train bench step`
#[derive(Debug, Clone, Args)]
pub struct BenchStepArgs {
    /// Layer widths, from features to outputs
    #[arg(long, value_name = "I,H,...,O", default_value = "784,1024,1024,10", value_parser = dims)]
    pub dims: Dims,

    /// Rows per rank and step
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = count)]
    pub batch: usize,

    /// Steps to time
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = count)]
    pub steps: usize,

    /// Times to measure --steps steps, one after the other in the same process; reported one by one and together
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count, conflicts_with = "forward")]
    pub repeats: usize,

    /// Time forward passes alone
    #[arg(long, conflicts_with_all = ["optim", "cuda_graph"])]
    pub forward: bool,

    /// Warm-up steps that are not timed; at least 4 on a GPU, so that graphs are captured
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub warmup: usize,

    /// Optimizer
    #[arg(long, value_enum, default_value_t)]
    pub optim: BenchOptim,

    /// Data type of the matmuls; f32 or bf16 on the CPU
    #[arg(long, value_enum, default_value_t)]
    pub dtype: BenchDtype,

    /// Whether to capture a GPU step once and replay it as a CUDA graph
    #[arg(long, value_name = "MODE", default_value = "auto", value_parser = super::run_config::graph_mode(), conflicts_with = "safe")]
    pub cuda_graph: GraphMode,

    /// Run the watchdog of several ranks, as training does
    #[arg(long)]
    pub watchdog: bool,

    /// Device and output.
    #[command(flatten)]
    pub place: BenchPlaceArgs,
}

impl BenchStepArgs {
    /// Whether steps on a GPU are captured.
    pub fn graph_mode(&self) -> GraphMode {
        if self.place.safe { GraphMode::Off } else { self.cuda_graph }
    }
}

/// `ddp-train bench addmm`
#[derive(Debug, Clone, Args)]
pub struct BenchAddmmArgs {
    /// Layer widths; the forward and backward matmuls of each layer are timed
    #[arg(long, value_name = "I,H,...,O", default_value = "784,1024,1024,10", value_parser = dims)]
    pub dims: Dims,

    /// Batch size
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = count)]
    pub batch: usize,

    /// Sizes of square matmuls [default: 1024,2048,4096,8192; on the CPU 512,1024,2048]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = count)]
    pub square: Vec<usize>,

    /// Data types [default: all; f32 on the CPU]
    #[arg(long, value_enum, value_name = "FORMAT,...", value_delimiter = ',')]
    pub dtype: Vec<BenchDtype>,

    /// Repetitions.
    #[command(flatten)]
    pub timing: BenchTimingArgs,

    /// Device and output.
    #[command(flatten)]
    pub place: BenchPlaceArgs,
}

/// `ddp-train bench copy`
#[derive(Debug, Clone, Args)]
pub struct BenchCopyArgs {
    /// Bytes to copy, each a plain number or with KiB, MiB or GiB
    #[arg(long, value_name = "BYTES,...", default_value = "64KiB,1MiB,16MiB,256MiB", value_delimiter = ',', value_parser = bytes)]
    pub sizes: Vec<usize>,

    /// Repetitions.
    #[command(flatten)]
    pub timing: BenchTimingArgs,

    /// Device and output.
    #[command(flatten)]
    pub place: BenchPlaceArgs,
}

/// `ddp-train bench checkpoint`
#[derive(Debug, Clone, Args)]
#[command(after_help = "The default is 1 GiB: weights and the two AdamW moments of each.")]
pub struct BenchCheckpointArgs {
    /// Folder on the disk to measure; files created there are deleted
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,

    /// Layer widths, from features to outputs
    #[arg(long, value_name = "I,H,...,O", default_value = "9459,9459", value_parser = dims)]
    pub dims: Dims,

    /// Optimizer state tensors per weight
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub states: usize,

    /// Checkpoints to write and read
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = count)]
    pub repeats: usize,

    /// Device and output.
    #[command(flatten)]
    pub place: BenchPlaceArgs,
}

/// `ddp-train bench allreduce`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Several ranks: `mpirun -n N ddp-train bench allreduce`; a single rank has nothing to reduce."
)]
pub struct BenchAllreduceArgs {
    /// Bytes to reduce, each a plain number or with KiB, MiB or GiB
    #[arg(long, value_name = "BYTES,...", default_value = "4KiB,64KiB,1MiB,4MiB,16MiB,32MiB,64MiB,128MiB", value_delimiter = ',', value_parser = bytes)]
    pub sizes: Vec<usize>,

    /// Ways to reduce, to compare them
    #[arg(long, value_enum, value_name = "PATH,...", value_delimiter = ',', default_value = "group")]
    pub path: Vec<AllreducePath>,

    /// Make this many ranks of threads of this process, without a launcher, and reduce in host memory
    #[arg(long, value_name = "N", value_parser = count)]
    pub rank_threads: Option<usize>,

    /// Repetitions.
    #[command(flatten)]
    pub timing: BenchTimingArgs,

    /// Device and output.
    #[command(flatten)]
    pub place: BenchPlaceArgs,
}

ddp_kernels::named_enum! {
    /// Way of an all-reduce.
    #[derive(ValueEnum)]
    pub enum AllreducePath {
        /// One call of the group: shared memory on one host, else MPI; NCCL between GPUs
        Group = "group",
        /// Four buckets at a time, as in a training step
        Scope = "scope",
        /// MPI messages in chunks, also on one host (host memory only)
        Messages = "messages",
        /// One MPI_Allreduce (host memory only)
        Mpi = "mpi",
    }
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

    /// Data types, f32 or bf16 [default: both; f32 on the CPU]
    #[arg(long, value_enum, value_name = "FORMAT,...", value_delimiter = ',')]
    pub dtype: Vec<BenchDtype>,

    /// Repetitions.
    #[command(flatten)]
    pub timing: BenchTimingArgs,

    /// Device and output.
    #[command(flatten)]
    pub place: BenchPlaceArgs,
}

/// `ddp-train bench loader`
#[derive(Debug, Clone, Args)]
#[command(after_help = "For example: `ddp-train bench loader x.npy --set data.labels=y.npy`.")]
pub struct BenchLoaderArgs {
    /// Config or data of the run whose rows are loaded.
    #[command(flatten)]
    pub run: RunConfigArgs,

    /// Number of measurements; median, minimum and maximum are reported
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = count)]
    pub repeats: usize,

    /// Length of one measurement in ms
    #[arg(long, value_name = "MS", default_value_t = 300)]
    pub repeat_ms: u32,

    /// Device and output.
    #[command(flatten)]
    pub place: BenchPlaceArgs,
}

/// Optimizer of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum BenchOptim {
    /// SGD with momentum 0.9.
    Sgd,
    /// AdamW.
    #[default]
    #[value(name = "adamw")]
    AdamW,
}

/// Data type of a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum BenchDtype {
    /// IEEE single precision.
    #[default]
    F32,
    /// f32 whose matmuls split their inputs into two numbers of 11 significant bits, on GPUs.
    F32x3,
    /// f32 whose matmuls round their inputs to 11 significant bits, on GPUs.
    Tf32,
    /// bf16 with f32 accumulation.
    Bf16,
}

/// Layer widths: at least two, each at least 1.
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
            Err("expected a number of bytes, plain or with KiB, MiB or GiB\nhint: for example 4MiB"
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
