//! Reads arbitrary bytes as the ranges of optimizer state that a file holds.
#![no_main]

#[path = "../checks.rs"]
#[allow(dead_code)]
mod checks;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| checks::state(bytes));
