//! Parses arbitrary bytes as a config file.
#![no_main]

#[path = "../checks.rs"]
#[allow(dead_code)]
mod checks;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| checks::config(bytes));
