//! The virtual NCCL: results of each operation over threads and over processes, what happens when ranks differ, die,
//! abort or share a GPU, and the faults on request.
#![allow(clippy::unwrap_used)]

mod failures;
#[path = "../common/libs.rs"]
mod libs;
mod mistakes;
mod operations;
mod rank;
mod registered;
