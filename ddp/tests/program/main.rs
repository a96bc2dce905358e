//! Whole-program tests: each starts the real `ddp-train`, also under `mpirun`, and checks its output, files and exit status.
//!
//! They are one binary, because each additional one would link all crates again. `tests/vgpu/all` selects modules by name.

// Test code panics if it cannot proceed; a skipped test prints its reason.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../virtual_gpu/mod.rs"]
mod virtual_gpu;

mod bad_input;
mod checkpoint;
mod commands;
mod data;
mod faults;
mod gpu;
mod ranks;
mod runs;
mod tables;
