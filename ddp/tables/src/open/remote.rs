//! Rows in object stores and behind HTTPS: their objects become files of this host, which all else reads.
//!
//! The files lie in a private folder for each source, in `data.cache` or else in the folder for temporary files, under the names of their
//! objects. Whoever comes first on a host fetches; others wait for the folder's lock. Objects are compared with the store at each start, by
//! size and entity tag, so each one is fetched once per host, and again if it has changed. Without `data.cache` the last process removes
//! the folder; what a killed one leaves, the next start removes.

mod terms;
mod signed;
mod mount;
#[cfg(feature = "stores")]
mod store;
#[cfg(feature = "stores")]
mod bucket;
#[cfg(feature = "stores")]
mod fetch;

use std::fs::File;
use std::path::{Path, PathBuf};

use ddp::checkpoint::{CheckpointStore, step_of};
use ddp::data::error::{DataError, Result};
use ddp::run_folder::folder::CHECKPOINTS;
use tracing::warn;

pub use self::signed::hide_signatures;
use self::signed::shown;
use self::terms::Fault;
pub use self::terms::{If, OWNER, Object, Take, checkpoint, complete_checkpoints};
use crate::error::TableError;

/// Beginnings of addresses that name objects.
const SCHEMES: &[&str] = &["s3://", "gs://", "az://", "abfs://", "abfss://", "https://", "http://", "hf://"];

/// Whether `source` is an address of objects rather than a path.
pub fn is_address(source: &str) -> bool {
    SCHEMES.iter().any(|scheme| source.starts_with(scheme))
}

/// The path, or the pattern of paths, that stands for `source` on this host, after its objects were fetched.
///
/// - `keep`: the folder of `data.cache`
///
/// # Errors
/// [`TableError::Store`] with the address and what the store has said.
pub(crate) fn local(source: &str, keep: Option<&str>) -> Result<String> {
    fetch::local(source, keep.map(Path::new), Take::Rows, u64::MAX)
        .map_err(|fault| store_error(source, fault))
}

fn store_error(source: &str, (reason, hint): Fault) -> DataError {
    TableError::Store { source_name: shown(source).to_owned(), reason, hint }.into()
}

/// Whether results can go to an address: stores whose objects can be written under a condition.
pub fn takes_results(address: &str) -> bool {
    is_address(address) && !address.starts_with("http") && !address.starts_with("hf://")
}

/// The folder of this host with what `take` says of the objects below `address`, which it fetches; a path of this host stays. The last
/// process that uses it removes it. A newest checkpoint that is damaged gives way to the one before it.
///
/// # Errors
/// [`TableError::Store`] with the address and what the store has said.
pub fn local_run(path: &Path, take: Take) -> Result<PathBuf> {
    let Some(address) = path.to_str().filter(|text| is_address(text)) else { return Ok(path.to_owned()) };
    let fetch = |end| {
        let copies = fetch::local(address, None, take, end).map(PathBuf::from);
        copies.map(Some).map_err(|fault| store_error(address, fault))
    };
    Ok(intact(address, take, fetch)?.expect("each fetch has copies"))
}

/// Brings the newest intact checkpoint of a run by `fetch`, which returns the folder with the newest one before a step, or none if it is not
/// wanted; returns the folder.
fn intact(
    address: &str,
    take: Take,
    fetch: impl Fn(u64) -> Result<Option<PathBuf>>,
) -> Result<Option<PathBuf>> {
    let (mut end, mut skipped) = (u64::MAX, Vec::new());
    loop {
        let Some(folder) = fetch(end)? else { return Ok(None) };
        if !take.is_of_newest() || !folder.is_dir() {
            return Ok(Some(folder));
        }
        let store = CheckpointStore::for_run(&folder);
        let failed = |reason: String| store_error(address, (reason, "check the disk".to_owned()));
        let search = store.newest_valid().map_err(|error| failed(error.to_string()))?;
        if search.found.is_some() {
            return Ok(Some(folder));
        }
        let damaged = search.skipped.into_iter().find_map(|skipped| Some((step_of(&skipped.name)?, skipped)));
        match damaged {
            Some((step, fault)) => {
                warn!("skipped checkpoint {fault} (in {address})");
                end = step;
                skipped.push(fault.to_string());
            }
            None if skipped.is_empty() => return Ok(Some(folder)),
            None => {
                let reason = format!("none of its checkpoints can be used:\n  {}", skipped.join("\n  "));
                let hint = "copy intact checkpoints there, or start a new run at another address".to_owned();
                return Err(store_error(address, (reason, hint)));
            }
        }
    }
}

/// A folder of a bucket, in a store or mounted. Names of objects are relative to it. All calls wait for the store, which is asked again
/// after errors of the server and of the network for up to a minute.
#[derive(Debug)]
pub struct Bucket {
    address: String,
    folder: BucketFolder,
}

#[derive(Debug)]
enum BucketFolder {
    Store(bucket::Folder),
    Mount(PathBuf),
}

impl Bucket {
    /// Opens the folder at `address`, or, for a path, of a mounted bucket; asks the store nothing.
    ///
    /// # Errors
    /// [`TableError::Store`] if the address names no such folder or its store is not configured, as from all other calls with what the
    /// store has said.
    pub fn open(address: &str) -> Result<Self> {
        let folder = if is_address(address) {
            BucketFolder::Store(bucket::Folder::open(address).map_err(|fault| store_error(address, fault))?)
        } else {
            BucketFolder::Mount(mount::home(address))
        };
        Ok(Bucket { address: address.to_owned(), folder })
    }

    /// Names and sizes in bytes of the objects below the folder `below`.
    ///
    /// # Errors
    /// See [`Bucket::open`].
    pub fn list(&self, below: &str) -> Result<Vec<(String, u64)>> {
        self.said(
            below,
            match &self.folder {
                BucketFolder::Store(folder) => folder.list(below),
                BucketFolder::Mount(home) => mount::list(home, below),
            },
        )
    }

    /// A small object, if it is there.
    ///
    /// # Errors
    /// See [`Bucket::open`].
    pub fn get(&self, name: &str) -> Result<Option<Object>> {
        self.said(
            name,
            match &self.folder {
                BucketFolder::Store(folder) => folder.get(name),
                BucketFolder::Mount(home) => mount::get(home, name),
            },
        )
    }

    /// Writes a small object; returns its entity tag, or none if `condition` did not hold.
    ///
    /// # Errors
    /// See [`Bucket::open`].
    pub fn put(&self, name: &str, bytes: Vec<u8>, condition: If<'_>) -> Result<Option<String>> {
        self.said(
            name,
            match &self.folder {
                BucketFolder::Store(folder) => folder.put(name, bytes, condition),
                BucketFolder::Mount(home) => mount::put(home, name, &bytes, condition),
            },
        )
    }

    /// Writes a file as an object; returns its number of bytes, or none if `may_write` has said no before the object was there. It is
    /// asked before each part of a large file.
    ///
    /// # Errors
    /// See [`Bucket::open`].
    pub fn upload(&self, name: &str, file: &File, may_write: &dyn Fn() -> bool) -> Result<Option<u64>> {
        self.said(
            name,
            match &self.folder {
                BucketFolder::Store(folder) => folder.upload(name, file, may_write),
                BucketFolder::Mount(home) => mount::upload(home, name, file, may_write),
            },
        )
    }

    /// Deletes an object, if it is there.
    ///
    /// # Errors
    /// See [`Bucket::open`].
    pub fn delete(&self, name: &str) -> Result<()> {
        self.said(
            name,
            match &self.folder {
                BucketFolder::Store(folder) => folder.delete(name),
                BucketFolder::Mount(home) => mount::delete(home, name),
            },
        )
    }

    /// Brings what a run continues from into an empty folder, with the newest checkpoint that is intact. Returns whether that is newer than
    /// `own`; otherwise the folder is of no use.
    ///
    /// # Errors
    /// See [`Bucket::open`]; none of several checkpoints is intact, and `own` is none.
    pub fn fetch_start(&self, own: Option<u64>, to: &Path) -> Result<bool> {
        let failed = |error: std::io::Error| {
            let hint = "free some space, or name another folder with TMPDIR".to_owned();
            store_error(&self.address, (format!("can't write to {}: {error}", to.display()), hint))
        };
        let fetched = intact(&self.address, Take::Start, |end| {
            let objects = self.list("")?;
            let complete = complete_checkpoints(objects.iter().map(|(name, _)| name.as_str()));
            if own.is_some() && complete.into_iter().rfind(|step| *step < end) <= own {
                return Ok(None);
            }
            // A damaged one.
            let _ = std::fs::remove_dir_all(to.join(CHECKPOINTS));
            let brought = match &self.folder {
                BucketFolder::Store(_) => {
                    let copies = fetch::local(&self.address, None, Take::Start, end);
                    move_into(Path::new(&copies.map_err(|fault| store_error(&self.address, fault))?), to)
                }
                BucketFolder::Mount(home) => {
                    let mut objects = Take::Start.chosen(objects, "", end).into_iter();
                    objects.try_for_each(|(name, _)| mount::fetch(home, &name, &to.join(&name)))
                }
            };
            brought.map(|()| Some(to.to_owned())).map_err(failed)
        });
        Ok(fetched?.is_some())
    }

    /// Whether it is a mount, which has no conditional writes.
    pub fn is_mount(&self) -> bool {
        matches!(self.folder, BucketFolder::Mount(_))
    }

    fn said<T>(&self, name: &str, result: Result<T, Fault>) -> Result<T> {
        result.map_err(|fault| store_error(format!("{}/{name}", self.address).trim_end_matches('/'), fault))
    }
}

/// Moves all files below a folder into another one of the same file system.
fn move_into(from: &Path, to: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let path = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            std::fs::create_dir_all(&path)?;
            move_into(&entry.path(), &path)?;
        } else {
            std::fs::rename(entry.path(), path)?;
        }
    }
    Ok(())
}

/// Removes the copies of this process that no other one uses, and that are not to be kept.
pub fn release() {
    fetch::release();
}

#[cfg(not(feature = "stores"))]
mod bucket {
    use std::fs::File;

    use super::Fault;
    use super::fetch::absent;
    use super::terms::{If, Object};

    /// No value of it is there.
    #[derive(Debug)]
    pub(super) enum Folder {}

    impl Folder {
        pub(super) fn open(_: &str) -> Result<Self, Fault> {
            absent()
        }

        pub(super) fn list(&self, _: &str) -> Result<Vec<(String, u64)>, Fault> {
            match *self {}
        }

        pub(super) fn get(&self, _: &str) -> Result<Option<Object>, Fault> {
            match *self {}
        }

        pub(super) fn put(&self, _: &str, _: Vec<u8>, _: If<'_>) -> Result<Option<String>, Fault> {
            match *self {}
        }

        pub(super) fn upload(&self, _: &str, _: &File, _: &dyn Fn() -> bool) -> Result<Option<u64>, Fault> {
            match *self {}
        }

        pub(super) fn delete(&self, _: &str) -> Result<(), Fault> {
            match *self {}
        }
    }
}

#[cfg(not(feature = "stores"))]
mod fetch {
    use std::path::Path;

    use super::terms::{Fault, Take};

    pub(super) fn local(_: &str, _: Option<&Path>, _: Take, _: u64) -> Result<String, Fault> {
        absent()
    }

    pub(super) fn absent<T>() -> Result<T, Fault> {
        let hint = "the wheel and the image can; or build with `DDP_FEATURES=parquet,stores ./launch/build`; or copy the files to a path \
                    that all hosts see";
        Err(("this build has no object stores (feature `stores`)".to_owned(), hint.to_owned()))
    }

    pub(super) fn release() {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_from_paths() {
        for address in
            ["s3://b/k.csv", "gs://b/p/*.parquet", "https://host/a.csv?x=1", "hf://datasets/o/n/a.parquet"]
        {
            assert!(is_address(address), "{address}");
        }
        for path in ["a.csv", "./s3:/b", "builtin:digits", "/s3://b"] {
            assert!(!is_address(path), "{path}");
        }
        assert_eq!(local_run(Path::new("a"), Take::Model).unwrap(), Path::new("a"));
    }
}
