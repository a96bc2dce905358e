//! A file some of whose bytes are read as others: flags and types that a library cannot take as they are.

use std::io::{self, Read, Seek, SeekFrom};
use std::sync::Arc;

/// Offsets in a file and the bytes to read there, ascending.
pub(super) type Patches = Arc<[(u64, u8)]>;

/// Reads a file with patches.
pub(super) struct Patched<R> {
    inner: R,
    position: u64,
    patches: Patches,
}

impl<R> Patched<R> {
    /// Reads `inner`, which is at `position` of the file.
    pub(super) fn new(inner: R, position: u64, patches: Patches) -> Self {
        Patched { inner, position, patches }
    }
}

impl<R: Read> Read for Patched<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(out)?;
        patch(&mut out[..n], self.position, &self.patches);
        self.position += n as u64;
        Ok(n)
    }
}

impl<R: Seek> Seek for Patched<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.position = self.inner.seek(to)?;
        Ok(self.position)
    }
}

/// Patches `bytes`, which start at `start` of the file.
pub(super) fn patch(bytes: &mut [u8], start: u64, patches: &[(u64, u8)]) {
    let first = patches.partition_point(|(offset, _)| *offset < start);
    for (offset, byte) in &patches[first..] {
        let Some(place) = bytes.get_mut((offset - start) as usize) else { return };
        *place = *byte;
    }
}
