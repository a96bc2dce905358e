//! Data-parallel training of dense networks.
//!
//! Start at [`commands::train`]: a training run from the command line's arguments to the model's file. The rooms, from top to bottom
//! (a room imports only from rooms below it):
//!
//! [`commands`] -> [`cli`] -> [`train`] -> [`checkpoint`] -> [`data_parallel`] -> [`optim`] -> [`model`] -> [`data`] -> [`report`] ->
//! [`run_folder`] -> [`config`] -> [`storage`]. Above them all: [`error`], the sum of the rooms' errors, and [`exit`].

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
pub mod model;
pub mod optim;
pub mod report;
pub mod run_folder;
pub mod storage;
pub mod train;

pub use error::{Error, Result};
