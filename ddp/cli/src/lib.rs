//! `ddp-train`: the command line of the crate `ddp`.
//!
//! Start at [`commands::train`]: a training run, from command-line arguments to the model file. The modules are listed from
//! bottom to top: each imports only from modules above its line.

#![forbid(unsafe_code)]

pub mod error;
pub mod report;
pub mod cli;
pub mod exit;
pub mod bucket;
pub mod commands;

pub use error::{Error, Result};
