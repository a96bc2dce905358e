//! Checks of GPUs against the CPU: all of them for `devices --check`, and the run's own before its first start on a GPU.
//!
//! A check runs in a process of its own, which is this program again: an illegal address, a crash or a hang there leaves this process
//! able to report it.

mod process;
mod at_start;
mod report;

pub(super) use at_start::{StartCheck, at_first_start, library_words};
pub(super) use process::{child, copied};
pub(super) use report::check_devices;
