//! Compresses blocks of a text file. Concatenated, the compressed blocks are a valid compressed file.

use std::io::Write as _;

use crate::formats::compression::Compression;

pub(super) fn compressed(bytes: Vec<u8>, compression: Compression) -> Vec<u8> {
    const INFALLIBLE: &str = "compressing in memory does not fail";
    match compression {
        // No name of a file to write means an archive.
        Compression::None | Compression::Zip => bytes,
        Compression::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
            encoder.write_all(&bytes).expect(INFALLIBLE);
            encoder.finish().expect(INFALLIBLE)
        }
        Compression::Zstd => zstd::encode_all(&bytes[..], 0).expect(INFALLIBLE),
    }
}
