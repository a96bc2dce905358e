//! `libcuda`, by subject. Every function is exported by [`crate::abi::api`]; its body returns a `CUresult`.
//!
//! Handles other than contexts are numbers that are never reused, so that a destroyed handle is recognized.

pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod error;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod handle;
pub(crate) mod ipc;
pub(crate) mod launch;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod pool;
pub(crate) mod stream;

pub(crate) use context::current;
pub(crate) use stream::{stream, streams_to_order_with};

use crate::code::{INVALID_DEVICE, INVALID_VALUE};
use crate::config::CONFIG;
use crate::report::report;
use std::ffi::c_int;

/// The ordinal behind a `CUdevice`.
fn ordinal(device: c_int) -> Result<usize, i32> {
    usize::try_from(device).ok().filter(|&d| d < CONFIG.devices()).ok_or(INVALID_DEVICE)
}

/// Reports a mistake that is visible at the call.
fn wrong(call: &str, what: &str) -> i32 {
    report(&format!("{call}: {what}"));
    INVALID_VALUE
}
