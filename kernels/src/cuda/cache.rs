//! Compiled kernels on disk, so that a second start compiles nothing.
//!
//! The folder is private (mode 0700, owned by the user, no symbolic link) because its contents run on the device. The name of
//! an entry is the hash of everything that determines its content; the entry begins with the hash of the rest, so a torn or
//! altered one is detected and rebuilt. Entries are written under a temporary name and renamed. Processes of one host need the same
//! entries at the same time: one makes an entry while the others wait for it.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

/// Length in bytes of the hash at the start of an entry.
const HASH_LEN: usize = 16;

/// Longest wait for another process that makes an entry: it may be frozen, and a shared file system may not grant locks.
const MAX_WAIT: Duration = Duration::from_secs(30);
/// Time between two tries.
const WAIT_STEP: Duration = Duration::from_millis(10);

/// A private folder of entries.
#[derive(Debug, Clone)]
pub(super) struct Cache {
    folder: PathBuf,
}

impl Cache {
    /// Opens the user's cache: `DDP_TRAIN_CACHE`, else `ddp-train` in `XDG_CACHE_HOME` or `~/.cache`. None if the folder cannot be
    /// created or other users could write to it.
    pub(super) fn for_user() -> Option<Self> {
        let path = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let folder = path("DDP_TRAIN_CACHE").or_else(|| {
            let base = path("XDG_CACHE_HOME").or_else(|| Some(path("HOME")?.join(".cache")))?;
            Some(base.join("ddp-train"))
        })?;
        Self::at(&folder.join("kernels"))
    }

    pub(super) fn at(folder: &Path) -> Option<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(folder).ok()?;
        let meta = fs::symlink_metadata(folder).ok()?;
        // The user of this process, from /proc.
        let user = fs::metadata("/proc/self").ok()?.uid();
        let is_private = meta.is_dir() && meta.uid() == user && meta.permissions().mode() & 0o077 == 0;
        is_private.then(|| Cache { folder: folder.to_owned() })
    }

    fn file(&self, key: &Key) -> PathBuf {
        self.folder.join(format!("{}.bin", key.0))
    }

    /// Reads the entry of this key, if it exists and is intact.
    pub(super) fn read(&self, key: &Key) -> Option<Vec<u8>> {
        let mut bytes = fs::read(self.file(key)).ok()?;
        if bytes.len() < HASH_LEN {
            return None;
        }
        let payload = bytes.split_off(HASH_LEN);
        (xxh3_128(&payload).to_le_bytes() == *bytes).then_some(payload)
    }

    /// Waits until no other process or thread makes the entry of this key, and keeps others from it as long as the result lives. None
    /// where locks do not work, or after [`MAX_WAIT`]: then the entry may be made twice, which does no harm.
    pub(super) fn reserve(&self, key: &Key) -> Option<File> {
        self.reserve_within(key, MAX_WAIT)
    }

    fn reserve_within(&self, key: &Key, limit: Duration) -> Option<File> {
        // A few files that stay: to remove one would let two processes lock two files of one name.
        let name = format!(".lock-{}", &key.0[..1]);
        let file =
            File::options().write(true).create(true).truncate(false).open(self.folder.join(name)).ok()?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Some(file),
                Err(TryLockError::WouldBlock) if start.elapsed() < limit => sleep(WAIT_STEP),
                Err(_) => return None,
            }
        }
    }

    /// Writes the entry. A failure only makes the next start slower.
    pub(super) fn write(&self, key: &Key, payload: &[u8]) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let beside = self.folder.join(format!(".{}.{}.{number}", key.0, std::process::id()));
        let written = File::create(&beside).and_then(|mut file| {
            file.write_all(&xxh3_128(payload).to_le_bytes())?;
            file.write_all(payload)?;
            fs::rename(&beside, self.file(key))
        });
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
    }
}

/// The name of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key(String);

impl Key {
    /// Hashes these parts, each with its length, so that their boundaries count.
    pub(super) fn new(parts: &[&[u8]]) -> Self {
        let mut hash = Xxh3::new();
        for part in parts {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part);
        }
        Key(format!("{:032x}", hash.digest128()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_cache(name: &str, test: impl FnOnce(&Path, &Cache)) {
        let folder = std::env::temp_dir().join(format!("ddp-kernels-cache-{name}-{}", std::process::id()));
        test(&folder, &Cache::at(&folder).unwrap());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_entry_comes_back_and_a_damaged_one_does_not() {
        with_cache("entry", |folder, cache| {
            let key = Key::new(&[b"source", b"options"]);
            assert_eq!(cache.read(&key), None);
            cache.write(&key, b"image");
            assert_eq!(cache.read(&key).as_deref(), Some(&b"image"[..]));
            assert_eq!(fs::read_dir(folder).unwrap().count(), 1, "no temporary file is left");
            let whole = fs::read(cache.file(&key)).unwrap();
            for length in 0..whole.len() {
                fs::write(cache.file(&key), &whole[..length]).unwrap();
                assert_eq!(cache.read(&key), None, "cut to {length} bytes");
            }
            for bit in 0..whole.len() * 8 {
                let mut flipped = whole.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                fs::write(cache.file(&key), &flipped).unwrap();
                assert_eq!(cache.read(&key), None, "bit {bit}");
            }
        });
    }

    #[test]
    fn one_at_a_time_makes_an_entry() {
        with_cache("reserve", |_, cache| {
            let key = Key::new(&[b"source"]);
            let reserved = cache.reserve(&key).unwrap();
            assert!(cache.reserve_within(&key, Duration::ZERO).is_none());
            let waiting = std::thread::spawn({
                let (cache, key) = (cache.clone(), key.clone());
                move || {
                    let reserved = cache.reserve(&key);
                    (reserved.is_some(), cache.read(&key))
                }
            });
            cache.write(&key, b"image");
            drop(reserved);
            assert_eq!(waiting.join().unwrap(), (true, Some(b"image".to_vec())));
            assert!(
                cache.reserve_within(&key, Duration::ZERO).is_some(),
                "a thread that ended keeps nothing"
            );
        });
    }

    #[test]
    fn a_folder_that_others_can_read_or_that_is_a_link_is_not_used() {
        with_cache("private", |folder, _| {
            let open = folder.join("open");
            fs::create_dir(&open).unwrap();
            fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
            assert!(Cache::at(&open).is_none());
            let link = folder.join("link");
            std::os::unix::fs::symlink(folder, &link).unwrap();
            assert!(Cache::at(&link).is_none());
            assert!(Cache::at(&folder.join("a/b")).is_some());
        });
    }

    #[test]
    fn parts_do_not_run_into_each_other() {
        assert_ne!(Key::new(&[b"ab", b"c"]), Key::new(&[b"a", b"bc"]));
    }
}
