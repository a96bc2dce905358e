//! Checkpoints on disk: what is written comes back on any number of ranks, every damage is found, and whatever fails at
//! whatever moment, a whole checkpoint is there.

// A test that can't go on panics, and one that is skipped says so.
#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

#[path = "../common/mod.rs"]
mod common;

mod command;
mod damage;
mod faults;
mod faulty_disk;
mod fixture;
mod full_disk;
mod keep;
mod kills;
mod large;
mod pytorch;
mod ranks;
mod round_trip;
mod writer;
