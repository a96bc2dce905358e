//! A folder of a bucket: its objects are listed, read, written and deleted one by one, some only if nobody else has written them.

use std::fs::File;
use std::io::{Read as _, Seek as _};

use futures_util::TryStreamExt as _;
use futures_util::stream::FuturesUnordered;
use object_store::path::Path as Key;
use object_store::{Error, ObjectStoreExt as _, PutMode, PutOptions, PutPayload, PutResult, UpdateVersion};

use super::store::{self, OF_RESULTS, Source, is_inside, said};
use super::terms::{Fault, If, Object};

/// Least bytes of a request of a large object, which also slow links bring within the limit of a request; more where there would be too many.
const PART_BYTES: u64 = 5 << 20;
/// Most parts of an object, of the 10,000 that S3 takes.
const MAX_PARTS: u64 = 9000;
/// Parts on their way at a time.
const CONCURRENT: usize = 4;
/// Largest object that is read into memory.
const MAX_BYTES: u64 = 1 << 30;

pub(super) struct Folder {
    source: Source,
    runtime: tokio::runtime::Runtime,
}

impl std::fmt::Debug for Folder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Folder").field("key", &self.source.key).finish_non_exhaustive()
    }
}

impl Folder {
    pub(super) fn open(address: &str) -> Result<Self, Fault> {
        let source = store::open(address, OF_RESULTS)?;
        if source.is_single || source.typed != source.key.as_ref() || source.typed.is_empty() {
            let hint = "write it as s3://BUCKET/FOLDER, gs://BUCKET/FOLDER or az://CONTAINER/FOLDER";
            return Err(("the address names no folder of a bucket".to_owned(), hint.to_owned()));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| (error.to_string(), "allow this process more threads".to_owned()))?;
        Ok(Folder { source, runtime })
    }

    fn key(&self, name: &str) -> Key {
        name.split('/')
            .filter(|part| !part.is_empty())
            .fold(self.source.key.clone(), |key, part| key.join(part))
    }

    pub(super) fn list(&self, below: &str) -> Result<Vec<(String, u64)>, Fault> {
        let (home, below) = (&self.source.key, self.key(below));
        let listed = self.runtime.block_on(self.source.store.list(Some(&below)).try_collect::<Vec<_>>());
        let listed = listed.map_err(|error| said(&error))?;
        let name = |key: &Key| {
            let rest = key.as_ref().strip_prefix(home.as_ref())?.strip_prefix('/')?;
            is_inside(rest).then(|| rest.to_owned())
        };
        Ok(listed.iter().filter_map(|meta| Some((name(&meta.location)?, meta.size))).collect())
    }

    pub(super) fn get(&self, name: &str) -> Result<Option<Object>, Fault> {
        self.runtime.block_on(async {
            let answer = match self.source.store.get(&self.key(name)).await {
                Err(Error::NotFound { .. }) => return Ok(None),
                answer => answer.map_err(|error| said(&error))?,
            };
            if answer.meta.size > MAX_BYTES {
                return Err((
                    format!("{name} has {} bytes", answer.meta.size),
                    "is it the folder of a run?".into(),
                ));
            }
            let tag = answer.meta.e_tag.clone();
            let bytes = answer.bytes().await.map_err(|error| said(&error))?.to_vec();
            Ok(Some(Object { bytes, tag }))
        })
    }

    pub(super) fn put(&self, name: &str, bytes: Vec<u8>, condition: If<'_>) -> Result<Option<String>, Fault> {
        let mode = match condition {
            If::Always => PutMode::Overwrite,
            If::Absent => PutMode::Create,
            If::Unchanged(tag) => {
                PutMode::Update(UpdateVersion { e_tag: Some(tag.to_owned()), version: None })
            }
        };
        let options = PutOptions { mode, ..PutOptions::default() };
        let key = self.key(name);
        let put = self.source.store.put_opts(&key, PutPayload::from(bytes), options);
        match self.runtime.block_on(put) {
            Ok(PutResult { e_tag, .. }) => Ok(Some(e_tag.unwrap_or_default())),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(None),
            Err(error) => Err(said(&error)),
        }
    }

    pub(super) fn upload(
        &self,
        name: &str,
        mut file: &File,
        may_write: &dyn Fn() -> bool,
    ) -> Result<Option<u64>, Fault> {
        let unread = |error: std::io::Error| {
            (format!("can't read the file for {name}: {error}"), "check the disk".to_owned())
        };
        file.rewind().map_err(unread)?;
        let n_bytes = file.metadata().map_err(unread)?.len();
        let part_bytes = PART_BYTES.max(n_bytes.div_ceil(MAX_PARTS));
        let next = || -> Result<Vec<u8>, Fault> {
            let mut chunk = Vec::new();
            file.take(part_bytes).read_to_end(&mut chunk).map_err(unread)?;
            Ok(chunk)
        };
        let first = next()?;
        if !may_write() {
            return Ok(None);
        }
        if (first.len() as u64) < part_bytes {
            let n_bytes = first.len() as u64;
            return self.put(name, first, If::Always).map(|_| Some(n_bytes));
        }
        let failed = |error: Error| said(&error);
        self.runtime.block_on(async {
            let mut upload = self.source.store.put_multipart(&self.key(name)).await.map_err(failed)?;
            let send = async {
                let (mut parts, mut bytes, mut n_bytes) = (FuturesUnordered::new(), first, 0);
                while !bytes.is_empty() && may_write() {
                    n_bytes += bytes.len() as u64;
                    parts.push(upload.put_part(bytes.into()));
                    if parts.len() == CONCURRENT {
                        parts.try_next().await.map_err(failed)?;
                    }
                    bytes = next()?;
                }
                while parts.try_next().await.map_err(failed)?.is_some() {}
                if !bytes.is_empty() || !may_write() {
                    return Ok(None);
                }
                upload.complete().await.map_err(failed)?;
                Ok(Some(n_bytes))
            };
            let sent = send.await;
            if !matches!(sent, Ok(Some(_))) {
                // Parts that are not put together cost money for ever.
                let _ = upload.abort().await;
            }
            sent
        })
    }

    pub(super) fn delete(&self, name: &str) -> Result<(), Fault> {
        match self.runtime.block_on(self.source.store.delete(&self.key(name))) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(said(&error)),
        }
    }
}
