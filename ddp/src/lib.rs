//! Data-parallel training of dense networks.
//!
//! Start at [`commands::train`]: a training run, from command-line arguments to the model file. The modules, from top to bottom
//! (each imports only from modules below it):
//!
//! [`commands`] -> [`cli`] -> [`train`] -> [`predict`] -> [`checkpoint`] -> [`data_parallel`] -> [`optim`] -> [`export`] ->
//! [`model`] -> [`data`] -> [`report`] -> [`run_folder`] -> [`config`] -> [`storage`]. Above them all: [`error`], the union of the
//! modules' errors, and [`exit`]; below them all: [`exit_code`], the table of exit statuses.

#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod cli;
pub mod commands;
pub mod config;
pub mod data;
pub mod data_parallel;
pub mod error;
mod error_hints;
pub mod exit;
pub mod exit_code;
pub mod export;
pub mod model;
pub mod optim;
pub mod predict;
pub mod report;
pub mod run_folder;
pub mod storage;
pub mod train;

pub use error::{Error, Result};
pub use predict::Predictor;
