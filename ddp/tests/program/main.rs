//! Whole-program tests: each starts the real `ddp-train`, also under `mpirun`, and checks its output, files and exit status.
//!
//! One binary, since every further one would link all crates again. `tests/vgpu/all` chooses modules by name.

// Test code panics where it cannot proceed; a skipped test prints its reason.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../virtual_gpu/mod.rs"]
mod virtual_gpu;

mod bad_input;
#[cfg(feature = "mpi")]
mod bad_steps;
mod batch_norm;
mod bench;
mod changed_data;
mod checkpoint;
mod command_line;
mod config_schema;
mod convert;
mod data;
mod data_show;
mod data_split;
mod describe;
mod determinism;
mod devices;
mod digits_kept;
mod disk_faults;
mod export;
mod failure;
mod gpu_failures;
mod gpu_program;
mod heads;
mod importance;
mod init_from;
#[cfg(all(feature = "mpi", feature = "parquet"))]
mod kept_types;
#[cfg(feature = "mpi")]
mod launch;
mod law;
mod logging;
mod lost_folder;
#[cfg(feature = "mpi")]
mod lost_rank;
#[cfg(feature = "parquet")]
mod marks;
mod matmul_choices;
mod metrics;
mod missing_targets;
#[cfg(feature = "mpi")]
mod mpi_start;
mod odd_tables;
mod ordinal;
mod other_names;
mod output;
mod parity;
mod precision;
mod predict;
mod predict_ended;
mod quality;
mod registered_buffers;
mod replicas;
mod resume;
mod saved_runs;
mod short_commands;
mod signals;
mod stopping;
mod tables;
mod targets;
#[cfg(feature = "mpi")]
mod traffic;
mod training;
