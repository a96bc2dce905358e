//! A folder of a mounted bucket in the place of a store: files are written once and whole, and neither renamed nor appended to.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};

use ddp::checkpoint::MANIFEST_FILE;
use ddp::storage::fingerprint::Fingerprint;
use ddp::storage::user_file::{open_regular, open_unlinked, read_regular};
use rustix::io::Errno;
use serde::de::IgnoredAny;

use super::terms::{Fault, If, Object};

/// Largest file that is read into memory.
const MAX_BYTES: u64 = 1 << 30;

/// Names and sizes of the files below `folder`, relative to `home`. A manifest that a killed process has left half-written is left out.
pub(super) fn list(home: &Path, below: &str) -> Result<Vec<(String, u64)>, Fault> {
    let (mut found, mut due) = (Vec::new(), vec![home.join(below)]);
    while let Some(folder) = due.pop() {
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(|error| fault(&folder, &error))?,
        };
        for entry in entries {
            let path = entry.map_err(|error| fault(&folder, &error))?.path();
            let data = fs::symlink_metadata(&path).map_err(|error| fault(&path, &error))?;
            if data.is_dir() {
                due.push(path);
            } else if data.is_file() && (!path.ends_with(MANIFEST_FILE) || is_whole(&path)) {
                let name = path.strip_prefix(home).unwrap_or(&path).to_string_lossy().into_owned();
                found.push((name, data.len()));
            }
        }
    }
    Ok(found)
}

fn is_whole(manifest: &Path) -> bool {
    let text = read_regular(manifest, MAX_BYTES);
    text.is_ok_and(|text| serde_json::from_slice::<IgnoredAny>(&text).is_ok())
}

pub(super) fn get(home: &Path, name: &str) -> Result<Option<Object>, Fault> {
    let path = home.join(name);
    match read_regular(&path, MAX_BYTES) {
        Ok(bytes) => Ok(Some(Object { tag: Some(tag(&bytes)), bytes })),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(fault(&path, &error)),
    }
}

/// The condition is checked before the file is written: such a mount has no call that does both, but for a file that is new.
pub(super) fn put(home: &Path, name: &str, bytes: &[u8], condition: If<'_>) -> Result<Option<String>, Fault> {
    if let If::Unchanged(of) = condition
        && get(home, name)?.and_then(|object| object.tag).as_deref() != Some(of)
    {
        return Ok(None);
    }
    let path = home.join(name);
    match create(&path, condition == If::Absent).and_then(|file| write(file, bytes)) {
        Ok(()) => Ok(Some(tag(bytes))),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(fault(&path, &error)),
    }
}

/// Whether this process may write is asked once: whatever it has written by then appears when the file is closed.
pub(super) fn upload(
    home: &Path,
    name: &str,
    from: &File,
    may_write: &dyn Fn() -> bool,
) -> Result<Option<u64>, Fault> {
    let path = home.join(name);
    if !may_write() {
        return Ok(None);
    }
    copy(from, &path).map(Some).map_err(|error| fault(&path, &error))
}

pub(super) fn fetch(home: &Path, name: &str, to: &Path) -> io::Result<()> {
    copy(&open_regular(&home.join(name))?, to).map(drop)
}

/// Copies a file, and makes the folders above the copy; returns its number of bytes.
fn copy(mut from: &File, to: &Path) -> io::Result<u64> {
    from.rewind()?;
    let mut file = create(to, false)?;
    let n_bytes = io::copy(&mut from, &mut file)?;
    sync(&file).map(|()| n_bytes)
}

pub(super) fn delete(home: &Path, name: &str) -> Result<(), Fault> {
    let path = home.join(name);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(fault(&path, &error)),
        _ => {
            // Folders without files mean nothing in a bucket; some mounts show them.
            let _ = path.parent().filter(|parent| *parent != home).map(fs::remove_dir);
            Ok(())
        }
    }
}

/// A new file. One that is there is removed first, for some mounts do not write over it.
fn create(path: &Path, is_new: bool) -> io::Result<File> {
    path.parent().map_or(Ok(()), fs::create_dir_all)?;
    if !is_new && fs::symlink_metadata(path).is_ok() {
        fs::remove_file(path)?;
    }
    open_unlinked(OpenOptions::new().write(true).create_new(true), path)
}

fn write(mut file: File, bytes: &[u8]) -> io::Result<()> {
    file.write_all(bytes)?;
    sync(&file)
}

/// Brings a file to the store, which mounts without this call do when it is closed.
fn sync(file: &File) -> io::Result<()> {
    match file.sync_all() {
        Err(error)
            if [Errno::INVAL, Errno::NOSYS, Errno::OPNOTSUPP]
                .map(Errno::raw_os_error)
                .contains(&error.raw_os_error().unwrap_or_default()) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

fn tag(bytes: &[u8]) -> String {
    let mut hash = Fingerprint::default();
    hash.text(&String::from_utf8_lossy(bytes));
    format!("{:016x}", hash.finish())
}

fn fault(path: &Path, error: &io::Error) -> Fault {
    (format!("{}: {error}", path.display()), "check the mount, and what it may write and delete".to_owned())
}

/// The home of a mount.
pub(super) fn home(address: &str) -> PathBuf {
    std::path::absolute(address).unwrap_or_else(|_| address.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_a_bucket() {
        let folder = tempfile::tempdir().unwrap();
        let home = folder.path();
        assert_eq!((list(home, "").unwrap(), get(home, "a/b").unwrap()), (Vec::new(), None));
        let first = put(home, "a/b", b"one", If::Absent).unwrap().unwrap();
        assert_eq!(put(home, "a/b", b"two", If::Absent).unwrap(), None);
        let second = put(home, "a/b", b"two", If::Unchanged(&first)).unwrap().unwrap();
        assert_eq!(put(home, "a/b", b"three", If::Unchanged(&first)).unwrap(), None);
        assert_eq!(get(home, "a/b").unwrap().unwrap(), Object { bytes: b"two".to_vec(), tag: Some(second) });
        let file = File::open(home.join("a/b")).unwrap();
        for _ in 0..2 {
            assert_eq!(upload(home, "checkpoints/step-1/manifest.json", &file, &|| true).unwrap(), Some(3));
        }
        assert_eq!(upload(home, "x", &file, &|| false).unwrap(), None, "another process writes");
        assert_eq!(list(home, "").unwrap(), [("a/b".to_owned(), 3)], "that is no manifest");
        delete(home, "a/b").unwrap();
        delete(home, "a/b").unwrap();
        assert_eq!(list(home, "").unwrap(), []);
    }
}
