//! `ddp-train doctor`

use std::path::PathBuf;

use clap::Args;
use ddp::run_folder::folder::RUNS;

/// `ddp-train doctor`
#[derive(Debug, Clone, Args)]
#[command(
    after_help = "Start it as the run is started: `mpirun -n N ddp-train doctor`, with the same hosts and flags of mpirun. \
                        Exit status 1 if a check fails; warnings are no failure."
)]
pub struct DoctorArgs {
    /// Output folder of the run, whose file system is tried
    #[arg(long, value_name = "DIR", default_value = RUNS)]
    pub out: PathBuf,

    /// Print the result as one JSON object
    #[arg(long)]
    pub json: bool,
}
