//! The subcommands, a room each: arguments in, a result on stdout or a run's folder out.

pub mod bench;
pub mod checkpoint;
pub mod completions;
pub mod config;
pub mod data;
pub mod describe;
pub mod devices;
pub mod eval;
mod eval_report;
mod importance;
mod importance_report;
pub mod launch;
pub mod man;
pub mod predict;
pub mod torchrun;
pub mod train;
mod watchdog;
