//! Rows from files of all formats: each arrives once per epoch with its own label and weight, damaged files never take the
//! program down, and what it holds in memory stays below what the config grants.

mod changed;
mod convert;
mod every_row;
pub(crate) mod files;
mod labels;
mod memory;
mod mutated;
mod runs;
mod sets;
mod show;
mod shrink;
mod split;
