//! `ddp-train describe`, as typed.

use std::path::PathBuf;

use clap::{ArgAction, Args};

use super::{count, device};

/// `ddp-train describe`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "It reads the data for the numbers of features and classes, as `train` does, and makes no model: neither \
                  the ranks nor the GPU that it tells of need be there.\n\
                  For example: `ddp-train describe run.toml --world-size 8 --device cuda`."
)]
pub struct DescribeArgs {
    /// Config of the run, TOML [default: train on builtin:digits]
    #[arg(value_name = "RUN.toml")]
    pub config: Option<PathBuf>,

    /// Set one key of the config, over the file; may be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE", action = ArgAction::Append)]
    pub set: Vec<String>,

    /// Ranks of the run [default: those that describe it]
    #[arg(long, value_name = "N", value_parser = count)]
    pub world_size: Option<usize>,

    /// What the ranks divide between them, over `comm.zero` of the config: 0 nothing, 1 the optimiser's state, 2 also gradients
    #[arg(long, value_name = "STAGE", value_parser = clap::value_parser!(u8).range(0..=2))]
    pub zero: Option<u8>,

    /// Where the ranks compute: auto, cpu, cuda or cuda:N
    #[arg(long, default_value = "auto", value_parser = device)]
    pub device: String,

    /// Write all of it as one JSON object to stdout
    #[arg(long)]
    pub json: bool,
}
