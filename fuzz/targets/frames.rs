//! Parses arbitrary bytes as frames that a watchdog receives.
#![no_main]

#[path = "../checks.rs"]
#[allow(dead_code)]
mod checks;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| checks::frames(bytes));
