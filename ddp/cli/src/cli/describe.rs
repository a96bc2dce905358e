//! Arguments of `ddp-train describe`.

use clap::Args;

use super::{RunConfigArgs, count, device};

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
