//! Parses arbitrary bytes as the header of an IDX file: they give a type and a shape, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ddp_tables::formats::arrays::idx;

fuzz_target!(|bytes: &[u8]| {
    if let Ok((_, shape)) = idx::header(bytes) {
        assert!(!shape.is_empty() && 4 + 4 * shape.len() <= bytes.len());
    }
});
