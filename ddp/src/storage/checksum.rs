//! Checksum of checkpoint files: 128-bit XXH3, written as 32 hexadecimal digits.
//!
//! Detects accidental changes (a random change goes unnoticed with probability 2^-128) at several GB/s; it is not cryptographic.
//!
//! Source: Y. Collet, xxHash, `XXH3_128bits`.

use std::fmt;
use std::io::{self, Read};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

/// Number of digits of a [`Checksum`] in text form.
pub(crate) const N_DIGITS: usize = 32;

/// XXH3-128 digest as 32 lower-case hexadecimal digits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Checksum(String);

impl Checksum {
    /// Hashes `bytes`.
    pub fn of(bytes: &[u8]) -> Self {
        Checksum::from_u128(xxhash_rust::xxh3::xxh3_128(bytes))
    }

    /// Hashes what is left of a reader; returns its number of bytes too.
    ///
    /// # Errors
    /// I/O errors of the reader.
    pub(crate) fn of_reader(mut reader: impl Read) -> io::Result<(u64, Self)> {
        let (mut hasher, mut buffer) = (Hasher::new(), vec![0; 1 << 20]);
        loop {
            match reader.read(&mut buffer) {
                Ok(0) => return Ok((hasher.n_bytes(), hasher.checksum())),
                Ok(n) => hasher.update(&buffer[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn from_u128(digest: u128) -> Self {
        Checksum(format!("{digest:032x}"))
    }

    /// The digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Incremental checksum.
#[derive(Clone)]
pub(crate) struct Hasher {
    hash: Box<Xxh3>,
    n_bytes: u64,
}

impl Hasher {
    /// Creates a hasher.
    pub(crate) fn new() -> Self {
        Hasher { hash: Box::new(Xxh3::new()), n_bytes: 0 }
    }

    /// Appends bytes.
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.n_bytes += bytes.len() as u64;
    }

    /// Number of bytes hashed so far.
    pub(crate) fn n_bytes(&self) -> u64 {
        self.n_bytes
    }

    /// Checksum of the bytes hashed so far.
    pub(crate) fn checksum(&self) -> Checksum {
        Checksum::from_u128(self.hash.digest128())
    }
}

impl Default for Hasher {
    fn default() -> Self {
        Hasher::new()
    }
}

impl fmt::Debug for Hasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hasher").field("n_bytes", &self.n_bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_that_of_xxhash_also_piece_by_piece() {
        // `xxhsum -H2` of the reference implementation for empty input.
        assert_eq!(Checksum::of(b"").as_str(), "99aa06d3014798d86001c324468d497f");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let mut hasher = Hasher::new();
        bytes.chunks(777).for_each(|chunk| hasher.update(chunk));
        assert_eq!((hasher.checksum(), hasher.n_bytes()), (Checksum::of(&bytes), 100_000));
    }
}
