//! Rows from files of all formats: each arrives once an epoch with its own label and weight, damaged files never take the
//! program down, and what it holds in memory stays below what the config grants.

// A test that can't go on panics, and one that is skipped says so.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

#[path = "../common/mod.rs"]
mod common;
mod every_row;
mod files;
mod memory;
mod mutated;
mod runs;
mod sets;
mod shrink;
