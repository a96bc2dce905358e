//! Parses arbitrary bytes as the header of a `.npy` file: they give a header within their bounds, or an error.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ddp_tables::formats::arrays::npy::header;

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    // The same bytes are used as the dictionary in a well-formed frame.
    let text = &bytes[..bytes.len().min(1000)];
    let mut framed = b"\x93NUMPY\x01\x00".to_vec();
    framed.extend((text.len() as u16).to_le_bytes());
    framed.extend(text);
    check(&framed);
});

fn check(bytes: &[u8]) {
    match header::parse(bytes) {
        Ok(parsed) => assert!(parsed.len <= bytes.len()),
        Err(reason) => assert!(!reason.is_empty() && reason.len() < 200, "{reason}"),
    }
}
