//! Rows from files of all formats: each is visited once per epoch with its own label and weight, damaged files never crash the
//! program, and its memory stays below the configured limit.

mod changed;
mod convert;
mod every_row;
pub(crate) mod files;
pub(crate) mod formats;
mod folders;
mod labels;
mod memory;
mod mutated;
mod opens;
mod runs;
mod sets;
mod show;
mod shrink;
mod split;
mod tasks;
