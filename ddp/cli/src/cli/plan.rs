//! Arguments of `ddp-train plan`.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValuesParser;
use ddp::cost::hardware::Hardware;

use super::{RunConfigArgs, count};

/// `ddp-train plan`
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Neither the ranks nor the GPUs need to exist. Memory comes from the code that allocates it; times are estimates: one H100 was measured, several GPUs were not.
For example: `ddp-train plan run.toml --world 1,8,64 --gpu h100`; without the data: `--rows 1000000 --features 512 --set data.classes=10`.
With measured constants: `ddp-train bench addmm --json >> m.json`, the same with `copy` and `step`, `mpirun -n N ddp-train bench allreduce --json >> m.json`, \
then `ddp-train plan run.toml --calibrate m.json`.")]
pub struct PlanArgs {
    /// Config or data of the run.
    #[command(flatten)]
    pub run: RunConfigArgs,

    /// Numbers of ranks to plan for, separated by commas
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,8", value_parser = count)]
    pub world: Vec<usize>,

    /// Device of the ranks [default: the GPU of this machine, or cpu]
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(Hardware::names()), ignore_case = true)]
    pub gpu: Option<String>,

    /// Ranks of a full host
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = count)]
    pub per_host: usize,

    /// Network bandwidth of a host in Gbit/s [default: usual for the device]
    #[arg(long, value_name = "GBIT", value_parser = positive)]
    pub network_gbit: Option<f64>,

    /// Memory of the device in GiB, or of a rank on the CPU [default: that of the GPU; unknown for cpu]
    #[arg(long, value_name = "GIB", value_parser = positive)]
    pub memory_gib: Option<f64>,

    /// Number of training rows, instead of that of the data
    #[arg(long, value_name = "N", value_parser = count)]
    pub rows: Option<usize>,

    /// Number of features of data that is not here, which is then not read
    #[arg(long, value_name = "N", value_parser = count, requires = "rows")]
    pub features: Option<usize>,

    /// Results of `ddp-train bench ... --json`, which replace tabled constants; may be repeated
    #[arg(long, value_name = "FILE")]
    pub calibrate: Vec<PathBuf>,

    /// Print one JSON object per number of ranks
    #[arg(long)]
    pub json: bool,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number <= 1e6 => Ok(number),
        _ => Err("expected a number above 0\nhint: for example 100".to_owned()),
    }
}
