//! Chunked transfer of large files: one thread writes or reads a chunk while another hashes and copies the next one, so that the
//! disk is the bottleneck.
//!
//! Chunks start and end at multiples of the disk block, as direct I/O ([`Caching::Bypass`]) requires. Direct I/O avoids the cost of
//! the page cache and leaves the cache to the training data.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::{io, thread};

use memmap2::MmapMut;
use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::storage::user_file::open_regular;

/// Alignment of memory and file offset for direct I/O: sufficient for most disks.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// Bytes per transfer.
pub(crate) const CHUNK_BYTES: usize = 8 << 20;
/// Number of bytes that are hashed and then copied while they are in the core's cache.
pub(crate) const SEEN_BYTES: usize = 256 << 10;

/// Use of the page cache for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Caching {
    /// Goes through the page cache, for other processes of the host or a second read.
    Keep,
    /// Uses direct I/O.
    Bypass,
}

/// Buffer aligned to [`BLOCK_BYTES`]; its first `len` bytes are in use. It is memory of the system, not of the allocator, which would keep it
/// for the thread that frees it: 50 MiB of a run that saves from time to time.
#[derive(Debug)]
struct Chunk {
    memory: MmapMut,
    len: usize,
}

impl Chunk {
    fn new(capacity: usize) -> io::Result<Self> {
        let memory = MmapMut::map_anon(capacity.next_multiple_of(BLOCK_BYTES).max(BLOCK_BYTES))?;
        Ok(Chunk { memory, len: 0 })
    }

    fn bytes(&self) -> &[u8] {
        &self.memory[..self.len]
    }

    fn room(&mut self) -> &mut [u8] {
        &mut self.memory[self.len..]
    }
}

/// Passes the concatenation of `parts` to `write` in chunks, while the next chunk is filled. `see` receives the same bytes in
/// order.
///
/// # Errors
/// The first error of `write`; `failed` converts an error of starting the thread or of a chunk's memory.
pub(crate) fn write<E: Send>(
    parts: &[&[u8]],
    mut see: impl FnMut(&[u8]),
    mut write: impl FnMut(&[u8]) -> Result<(), E> + Send,
    failed: impl Fn(io::Error) -> E,
) -> Result<(), E> {
    let n_bytes: usize = parts.iter().map(|part| part.len()).sum();
    let mut pieces = parts.iter().flat_map(|part| part.chunks(SEEN_BYTES)).peekable();
    let mut rest: &[u8] = &[];
    // Returns whether the chunk holds data.
    let mut fill = |chunk: &mut Chunk| {
        chunk.len = 0;
        while !chunk.room().is_empty() {
            if rest.is_empty() {
                let Some(piece) = pieces.next() else { break };
                see(piece);
                rest = piece;
            }
            let room = chunk.room();
            let n = room.len().min(rest.len());
            room[..n].copy_from_slice(&rest[..n]);
            chunk.len += n;
            rest = &rest[n..];
        }
        chunk.len > 0
    };
    let mut chunk = Chunk::new(n_bytes.min(CHUNK_BYTES)).map_err(&failed)?;
    if n_bytes <= CHUNK_BYTES {
        return if fill(&mut chunk) { write(chunk.bytes()) } else { Ok(()) };
    }
    let other = Chunk::new(CHUNK_BYTES).map_err(&failed)?;
    let (full, to_write) = mpsc::channel::<Chunk>();
    let (written, empty) = mpsc::channel::<Chunk>();
    thread::scope(|scope| {
        let work = move || -> Result<(), E> {
            for chunk in to_write {
                write(chunk.bytes())?;
                // The receiver may be gone after the last chunk.
                let _ = written.send(chunk);
            }
            Ok(())
        };
        let named = thread::Builder::new().name("checkpoint-write".to_owned());
        let writer = match named.spawn_scoped(scope, work) {
            Ok(writer) => writer,
            Err(error) => return Err(failed(error)),
        };
        // The writer disconnects only on an error, which it returns.
        produce([chunk, other], &full, &empty, |chunk| Ok(fill(chunk)))?;
        drop(full);
        writer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Reads a file from start to end; `see` receives the offset and the bytes of each chunk while the next one is read. Returns the
/// number of bytes.
pub(crate) fn read(path: &Path, caching: Caching, see: impl FnMut(u64, &[u8])) -> io::Result<u64> {
    read_opened(&open_regular(path)?, caching, see)
}

/// [`read`] for a file that is open; where in it other reads have come to does not matter.
pub(crate) fn read_opened(file: &File, caching: Caching, see: impl FnMut(u64, &[u8])) -> io::Result<u64> {
    let flags = fcntl_getfl(file)?;
    let read = read_whole(file, caching, see);
    if fcntl_getfl(file)? != flags {
        fcntl_setfl(file, flags)?;
    }
    read
}

fn read_whole(file: &File, caching: Caching, mut see: impl FnMut(u64, &[u8])) -> io::Result<u64> {
    let n_bytes = file.metadata()?.len();
    let is_large = n_bytes > CHUNK_BYTES as u64;
    let mut is_direct = caching == Caching::Bypass && is_large && bypass_cache(file);
    if !is_direct {
        // This is only an optimization: the system may ignore the advice.
        let _ = fadvise(file, 0, None, Advice::Sequential);
    }
    let mut next = 0;
    let mut fill = move |chunk: &mut Chunk| -> io::Result<bool> {
        chunk.len = 0;
        while !chunk.room().is_empty() {
            match file.read_at(chunk.room(), next) {
                Ok(0) => break,
                Ok(n) => {
                    next += n as u64;
                    chunk.len += n;
                    // A partial block is the end of the file; the rest of the chunk is unaligned.
                    if is_direct && n % BLOCK_BYTES > 0 {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if is_direct && wants_cache(&error) => {
                    use_cache(file)?;
                    is_direct = false;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(chunk.len > 0)
    };
    let mut at = 0;
    let mut take = |chunk: &Chunk| {
        see(at, chunk.bytes());
        at += chunk.len as u64;
    };
    let mut chunk = Chunk::new((n_bytes as usize).min(CHUNK_BYTES))?;
    if !is_large {
        while fill(&mut chunk)? {
            take(&chunk);
        }
        return Ok(at);
    }
    let other = Chunk::new(CHUNK_BYTES)?;
    let (full, to_take) = mpsc::channel::<Chunk>();
    let (taken, empty) = mpsc::channel::<Chunk>();
    thread::scope(|scope| {
        let work = move || produce([chunk, other], &full, &empty, fill);
        let reader = thread::Builder::new().name("checkpoint-read".to_owned()).spawn_scoped(scope, work)?;
        for chunk in to_take {
            take(&chunk);
            // The receiver may be gone after the last chunk.
            let _ = taken.send(chunk);
        }
        reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    Ok(at)
}

/// Fills two chunks in turn, sends them and receives them back, until `fill` has no more data or the receiver is
/// gone.
fn produce<E>(
    [mut chunk, other]: [Chunk; 2],
    full: &Sender<Chunk>,
    empty: &Receiver<Chunk>,
    mut fill: impl FnMut(&mut Chunk) -> Result<bool, E>,
) -> Result<(), E> {
    let mut other = Some(other);
    while fill(&mut chunk)? {
        if full.send(chunk).is_err() {
            break;
        }
        match other.take().or_else(|| empty.recv().ok()) {
            Some(next) => chunk = next,
            None => break,
        }
    }
    Ok(())
}

/// Switches later transfers to direct I/O; returns whether the file system supports it.
pub(crate) fn bypass_cache(file: impl AsFd) -> bool {
    fcntl_getfl(&file).is_ok_and(|flags| fcntl_setfl(&file, flags | OFlags::DIRECT).is_ok())
}

/// Switches later transfers back to the page cache.
pub(crate) fn use_cache(file: impl AsFd) -> io::Result<()> {
    Ok(fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::DIRECT)?)
}

/// Whether the error means that the file system can't bypass the cache after all, or needs larger blocks than [`BLOCK_BYTES`].
pub(crate) fn wants_cache(error: &io::Error) -> bool {
    [Errno::INVAL, Errno::OPNOTSUPP].map(|errno| Some(errno.raw_os_error())).contains(&error.raw_os_error())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn bytes(n: usize) -> Vec<u8> {
        (0..n).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        // Next to the test program, because a temporary folder may be in memory, without a disk.
        let program = std::env::current_exe().unwrap();
        let dir = tempfile::tempdir_in(program.parent().unwrap()).unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, bytes).unwrap();
        (dir, path)
    }

    /// Lengths around one block, one chunk, and several chunks.
    fn lengths() -> [usize; 11] {
        let (block, chunk) = (BLOCK_BYTES, CHUNK_BYTES);
        [
            0,
            1,
            block - 1,
            block,
            chunk - 1,
            chunk,
            chunk + 1,
            chunk + block,
            2 * chunk,
            2 * chunk + 5,
            3 * chunk + block,
        ]
    }

    #[test]
    fn parts_are_written_whole_and_in_their_order() {
        for n in lengths() {
            let all = bytes(n);
            let (first, second) = all.split_at(n / 3);
            let (mut seen, mut written, mut sizes) = (Vec::new(), Vec::new(), Vec::new());
            let write_one = |chunk: &[u8]| {
                assert_eq!(chunk.as_ptr().addr() % BLOCK_BYTES, 0);
                written.extend_from_slice(chunk);
                sizes.push(chunk.len());
                Ok(())
            };
            write(&[first, &[], second], |part| seen.extend_from_slice(part), write_one, |error| error)
                .unwrap();
            assert!(seen == all && written == all, "{n} bytes");
            assert!(sizes.iter().rev().skip(1).all(|&size| size == CHUNK_BYTES), "{n} bytes: {sizes:?}");
        }
    }

    #[test]
    fn the_first_error_ends_it() {
        for at in 0..4 {
            let all = bytes(3 * CHUNK_BYTES + 1);
            let mut n_calls = 0;
            let write_one = |_: &[u8]| {
                n_calls += 1;
                if n_calls > at { Err(at) } else { Ok(()) }
            };
            assert_eq!(write(&[&all], |_| {}, write_one, |_| usize::MAX), Err(at));
            assert_eq!(n_calls, at + 1);
        }
    }

    #[test]
    fn a_file_is_read_whole_around_the_cache_and_through_it() {
        for n in lengths() {
            let all = bytes(n);
            let (_dir, path) = file(&all);
            for caching in [Caching::Keep, Caching::Bypass] {
                let mut got = Vec::new();
                let n_bytes = read(&path, caching, |at, chunk| {
                    assert_eq!(at, got.len() as u64);
                    got.extend_from_slice(chunk);
                });
                assert_eq!(n_bytes.unwrap(), n as u64);
                assert!(got == all, "{n} bytes, {caching:?}");
            }
        }
        assert_eq!(
            read(Path::new("/nothing/there"), Caching::Keep, |_, _| {}).unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
