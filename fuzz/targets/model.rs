//! Reads arbitrary bytes as the header of a model file.
#![no_main]

#[path = "../checks.rs"]
#[allow(dead_code)]
mod checks;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| checks::model(bytes));
