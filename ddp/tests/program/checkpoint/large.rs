//! Files of several chunks, which bypass the system's cache if the disk allows it: the bytes are the same as through the cache.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use ddp::checkpoint::{Checkpoint, CheckpointError, Fault};
use ddp::model::ParamLayout;
use ddp::storage::disk::{Disk, OpenFile, OsDisk};
use ddp::storage::fault::FileFault;
use rustix::fs::{OFlags, fcntl_getfl};
use tempfile::TempDir;

use super::fixture::*;

/// A folder on the disk that holds the sources, because a memory file system has no cache to bypass.
fn folder_on_disk() -> TempDir {
    TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// About 9 MiB of weights, and three times as much state; no file's length is a multiple of a block.
fn large_layout() -> ParamLayout {
    layout(&[1501, 1567, 3])
}

/// A disk that never bypasses the cache.
#[derive(Debug)]
struct CacheOnly;

impl Disk for CacheOnly {
    fn bypass_cache(&self, _: &mut OpenFile) {}
}

/// A disk whose writes fail after this many bytes.
#[derive(Debug)]
struct FullAfter(u64);

impl Disk for FullAfter {
    fn write(&self, file: &mut OpenFile, bytes: &[u8]) -> io::Result<()> {
        if file.file.metadata()?.len() + bytes.len() as u64 > self.0 {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        OsDisk.write(file, bytes)
    }
}

fn saved_on(disk: Arc<dyn Disk>, folder: &Path) -> Result<Checkpoint, CheckpointError> {
    let layout = large_layout();
    let store = saved(folder, &layout, 1, []);
    for result in save_on_ranks(folder, &layout, &run_state(1), &[disk], 1, |_| {}) {
        result?;
    }
    Ok(store.checkpoint(1).unwrap())
}

#[test]
fn around_the_cache_and_through_it_are_the_same_bytes() {
    let (around, through) = (folder_on_disk(), folder_on_disk());
    let one = saved_on(Arc::new(OsDisk), around.path()).unwrap();
    let other = saved_on(Arc::new(CacheOnly), through.path()).unwrap();
    assert_eq!(one.manifest().files, other.manifest().files);
    for file in &one.manifest().files {
        assert!(file.bytes > 9 << 20 && file.bytes % 4096 > 0, "{file:?}");
        let (a, b) = (one.path().join(&file.name), other.path().join(&file.name));
        assert!(fs::read(a).unwrap() == fs::read(b).unwrap(), "{}", file.name);
    }
    for checkpoint in [one, other] {
        assert_eq!(checkpoint.verify(), Ok(()));
        for n_ranks in [1, 3] {
            load(&checkpoint, &large_layout(), n_ranks).unwrap();
        }
    }
}

/// Faults at the end of each chunk, of the whole blocks and of the file, and in the middle.
#[test]
fn a_flipped_bit_is_found_wherever_it_is() {
    let dir = folder_on_disk();
    let checkpoint = saved_on(Arc::new(OsDisk), dir.path()).unwrap();
    for file in &checkpoint.manifest().files {
        let path = checkpoint.path().join(&file.name);
        let on_disk = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let (chunk, blocks) = (8 << 20, file.bytes / 4096 * 4096);
        for at in [0, chunk - 1, chunk, file.bytes / 2, blocks - 1, blocks, file.bytes - 1] {
            let mut byte = [0];
            on_disk.read_exact_at(&mut byte, at).unwrap();
            on_disk.write_all_at(&[byte[0] ^ 4], at).unwrap();
            assert!(
                matches!(checkpoint.verify(), Err(Fault::File(FileFault::Changed { .. }))),
                "byte {at} of {}",
                file.name
            );
            let error = load(&checkpoint, &large_layout(), 2).unwrap_err();
            assert!(error.to_string().contains("was changed"), "byte {at} of {}: {error}", file.name);
            on_disk.write_all_at(&byte, at).unwrap();
        }
    }
    load(&checkpoint, &large_layout(), 2).unwrap();
}

#[test]
fn a_disk_that_is_full_after_some_chunks_is_told() {
    for after in [0, 8 << 20, 16 << 20] {
        let dir = folder_on_disk();
        let error =
            ddp_kernels::hint::with_hint(&saved_on(Arc::new(FullAfter(after)), dir.path()).unwrap_err());
        assert!(
            error.contains("No space left on device") && error.contains("hint: the disk is full"),
            "{error}"
        );
        assert_eq!(names(&saved(dir.path(), &large_layout(), 1, [])), [""; 0], "nothing is left of it");
    }
}

/// Any buffer of the caller, aligned or not, with any answer of the file system.
#[test]
fn bytes_of_any_length_and_place_are_appended() {
    let dir = folder_on_disk();
    let path = dir.path().join("file");
    let mut file = OsDisk.create(&path).unwrap();
    OsDisk.bypass_cache(&mut file);
    let is_direct = |file: &File| fcntl_getfl(file).unwrap().contains(OFlags::DIRECT);
    let could = is_direct(&file.file);
    let memory: Vec<u8> = (0..40_000_u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let aligned = memory.as_ptr().align_offset(4096);
    let mut want = Vec::new();
    for (start, len) in [(aligned, 8192), (aligned, 4096 + 5), (3, 7000), (aligned, 4096), (0, 0), (1, 1)] {
        OsDisk.write(&mut file, &memory[start..start + len]).unwrap();
        want.extend_from_slice(&memory[start..start + len]);
        if start == aligned && len == 8192 {
            assert_eq!(is_direct(&file.file), could, "whole blocks go around the cache");
        }
    }
    assert!(!is_direct(&file.file), "the rest can't");
    // The file's end is no longer at a block: the system refuses to bypass the cache, and the bytes are written all the same.
    OsDisk.bypass_cache(&mut file);
    assert_eq!(is_direct(&file.file), could);
    OsDisk.write(&mut file, &memory[aligned..aligned + 8192]).unwrap();
    want.extend_from_slice(&memory[aligned..aligned + 8192]);
    assert!(!is_direct(&file.file) || !could);
    OsDisk.sync(&file).unwrap();
    assert!(fs::read(path).unwrap() == want);
}
