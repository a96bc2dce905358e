//! The driver side of the virtual GPU: mistakes that it must find, and programs in which it must find none.
#![allow(
    clippy::undocumented_unsafe_blocks,
    clippy::multiple_unsafe_ops_per_block,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a client in C has no checks either, and each process here has one purpose"
)]

mod capture;
mod faults;
mod ipc;
mod kernels;
mod memory;
mod order;
mod pools;
mod setup;
#[path = "../support/mod.rs"]
mod support;
