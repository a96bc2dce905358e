//! The subcommands, one room each: they map arguments to a result on stdout or to a run folder.
//!
//! Runs `ddp-train train --epochs 1 --out DIR` on the bundled digits from within a program:
//!
//! ```
//! use ddp_train::cli::{Cli, Command};
//! use ddp_train::commands::train::train;
//! use ddp::prelude::*;
//! use ddp_train::report::log::Log;
//! use ddp::train::stop_signals::StopSignals;
//!
//! let folder = tempfile::tempdir()?;
//! let out = folder.path().join("digits");
//! let line = ["ddp-train", "train", "--quiet", "--epochs", "1", "--device", "cpu", "--out"];
//! let line = line.into_iter().map(Into::into).chain([out.clone().into()]).collect();
//! let Command::Train(args) = Cli::parse_arguments(line, None)?.command else { unreachable!() };
//!
//! let world = World::init()?;
//! train(&world, &Log::none(&world), &StopSignals::default(), &args)?;
//!
//! let mut model = ddp_tables::Predictor::open(&out)?;
//! let predictions = model.predict(&[0.0_f32; 2 * 64])?;
//! assert_eq!(predictions.classes().len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod checkpoint;
pub mod config;
pub mod data;
mod bare_table;
mod self_check;
pub mod devices;
mod eval_report;
mod importance;
pub mod launch;
pub mod man;
pub mod report;
pub mod live;
mod late_ranks;
mod watchdog;
pub mod train;
pub mod find;
pub mod runs;
pub mod sweep;
mod model_device;
mod model_rows;
pub mod bench;
pub mod describe;
pub mod plan;
pub mod doctor;
pub mod predict;
pub mod eval;

use ddp_comm::World;
use tracing::warn;

/// Warns on rank 0 that this program is a quick build, if it is one.
fn warn_if_quick_build(world: &World) {
    if env!("DDP_TRAIN_IS_QUICK") == "true" && world.rank().0 == 0 {
        warn!(
            "this program is a quick build, which reads tables and trains small networks slowly\n\
             hint: ./launch/build optimizes it"
        );
    }
}
