//! Fetches the objects of an address into the folder of their copies, and holds that folder while it is used.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ddp::storage::atomic_write::write_atomic;
use ddp::storage::fingerprint::Fingerprint;
use ddp::storage::user_file::{open_regular, open_unlinked, read_regular};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt as _};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tracing::{debug, info};

use super::signed::shown;
use super::store::{CHANGED, NOT_THERE, OF_READING, Source, is_inside, open, said};
use super::terms::{Fault, Take};
use crate::formats;
use crate::open::pattern::{is_pattern, without_lists};

/// Name of the list of what is there.
const INDEX: &str = ".objects.json";
/// Name of the folder of objects that are not complete.
const NEW: &str = ".new";
/// Begin of the name of a folder that is being removed.
const GONE: &str = ".gone-";
/// Largest such list.
const MAX_INDEX_BYTES: u64 = 1 << 30;
/// Locked by each process that uses the copies, and by the one that fetches.
const LOCK: &str = ".lock";
const FETCH_LOCK: &str = ".fetch";
/// Most requests at a time.
const CONCURRENT: usize = 8;
/// Bytes of a request of a large object.
const PART_BYTES: u64 = 16 << 20;
/// Times that a run is listed, whose objects come and go while it goes on.
const MAX_LISTS: usize = 10;
/// Time between two lines about the progress.
const PROGRESS: Duration = Duration::from_secs(5);

/// The copies of one source, locked while this value is there.
struct Held {
    folder: PathBuf,
    lock: File,
    is_kept: bool,
    local: String,
}

/// The copies that this process uses, by source and folder.
static HELD: LazyLock<Mutex<HashMap<Id, Held>>> = LazyLock::new(Mutex::default);

/// An address, the folder of `data.cache`, what is taken, and the step before which the newest checkpoint is.
type Id = (String, Option<PathBuf>, Take, u64);

/// An object as it was when it was fetched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    size: u64,
    tag: Option<String>,
    modified: String,
}

impl Known {
    fn of(meta: &ObjectMeta) -> Self {
        Known { size: meta.size, tag: meta.e_tag.clone(), modified: meta.last_modified.to_rfc3339() }
    }
}

pub(super) fn local(address: &str, keep: Option<&Path>, take: Take, end: u64) -> Result<String, Fault> {
    let id = (address.to_owned(), keep.map(Path::to_owned), take, end);
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = held.get(&id) {
        return Ok(found.local.clone());
    }
    let copies = copy(address, keep, take, end)?;
    let local = copies.local.clone();
    held.insert(id, copies);
    Ok(local)
}

pub(super) fn release() {
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    for (_, Held { folder, lock, is_kept, .. }) in held.drain() {
        if !is_kept {
            remove_unused(&folder, &lock);
        }
    }
}

fn copy(address: &str, keep: Option<&Path>, take: Take, end: u64) -> Result<Held, Fault> {
    let source = open(address, OF_READING)?;
    let parent = match keep {
        Some(keep) => keep.join("objects"),
        None => {
            std::env::temp_dir().join(format!("ddp-train-objects-{}", rustix::process::getuid().as_raw()))
        }
    };
    private_folder(&parent).map_err(|error| on_disk(&parent, &error))?;
    let mut hash = Fingerprint::default();
    hash.text(address);
    hash.text(take.name());
    if end < u64::MAX {
        hash.text(&end.to_string());
    }
    let folder = parent.join(format!("{:016x}", hash.finish()));
    if keep.is_none() {
        remove_abandoned(&parent, &folder);
    }
    let lock = lock(&folder).map_err(|error| on_disk(&folder, &error))?;
    let copied = copy_locked(address, &source, (take, end), &folder, keep.is_some());
    if copied.is_err() && keep.is_none() {
        remove_unused(&folder, &lock);
    }
    copied?;
    let home = folder.join(&source.place);
    // The folder is not part of the pattern.
    let local = if is_pattern(&source.typed) {
        let home = glob::Pattern::escape(&home.to_string_lossy());
        format!("{home}/{}", source.typed)
    } else {
        home.join(&source.typed).to_string_lossy().into_owned()
    };
    Ok(Held { folder, lock, is_kept: keep.is_some(), local })
}

/// A folder that only this user can enter, and that belongs to it.
fn private_folder(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let found = fs::symlink_metadata(path)?;
    let is_own = found.is_dir() && found.uid() == rustix::process::getuid().as_raw();
    if is_own { Ok(()) } else { Err(std::io::Error::other("it belongs to another user, or is a link")) }
}

/// Fetches while no other process does.
fn copy_locked(
    address: &str,
    source: &Source,
    of: (Take, u64),
    folder: &Path,
    is_kept: bool,
) -> Result<(), Fault> {
    let path = folder.join(FETCH_LOCK);
    let fetching = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let fetching = fetching.map_err(|error| on_disk(&path, &error))?;
    flock(&fetching, FlockOperation::LockExclusive).map_err(|error| on_disk(&path, &error.into()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| (error.to_string(), "allow this process more threads".to_owned()))?;
    runtime.block_on(async {
        for _ in 1..MAX_LISTS {
            if fetch(shown(address), source, of, folder, is_kept, true).await? {
                return Ok(());
            }
        }
        fetch(shown(address), source, of, folder, is_kept, false).await.map(drop)
    })
}

/// Locks a folder, which is made, against its removal.
fn lock(folder: &Path) -> std::io::Result<File> {
    loop {
        match private_folder(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            made => made?,
        }
        let path = folder.join(LOCK);
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = match file {
            // The last process that used it has just removed it.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            file => file?,
        };
        flock(&file, FlockOperation::LockShared)?;
        if fs::metadata(&path).is_ok_and(|there| file.metadata().is_ok_and(|own| own.ino() == there.ino())) {
            return Ok(file);
        }
    }
}

/// Removes a folder that no other process uses.
fn remove_unused(folder: &Path, lock: &File) {
    let Some(name) = folder.file_name().and_then(|name| name.to_str()) else { return };
    let gone = folder.with_file_name(format!("{GONE}{name}-{}", std::process::id()));
    // Under another name, for it is not gone at once, and another process may come. What is left, the next start removes.
    if flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok() && fs::rename(folder, &gone).is_ok() {
        let _ = fs::remove_dir_all(gone);
    }
}

/// Removes copies that no process uses.
fn remove_abandoned(parent: &Path, own: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let folder = entry.path();
        if entry.file_name().as_encoded_bytes().starts_with(GONE.as_bytes()) {
            let _ = fs::remove_dir_all(folder);
            continue;
        }
        let Ok(lock) = open_regular(&folder.join(LOCK)) else { continue };
        if folder != own {
            remove_unused(&folder, &lock);
        }
    }
}

fn on_disk(path: &Path, error: &std::io::Error) -> Fault {
    let hint =
        "objects are copied to `data.cache`, or else to TMPDIR: name a folder with room for them".to_owned();
    (format!("can't write their copies to {}: {error}", path.display()), hint)
}

/// Brings the copies in `folder` up to date. Returns whether all are, unless objects of a run have gone or changed since they were listed and
/// it `may_repeat`.
async fn fetch(
    address: &str,
    source: &Source,
    (take, end): (Take, u64),
    folder: &Path,
    is_kept: bool,
    may_repeat: bool,
) -> Result<bool, Fault> {
    let objects = named(source, take, end).await?;
    let home = folder.join(&source.place);
    let index = folder.join(INDEX);
    let known: Option<BTreeMap<String, Known>> =
        read_regular(&index, MAX_INDEX_BYTES).ok().and_then(|text| serde_json::from_slice(&text).ok());
    if known.is_none() && home.exists() {
        // Nobody knows what is there, and what has left the store would be read.
        fs::remove_dir_all(&home).map_err(|error| on_disk(&home, &error))?;
    }
    let known = known.unwrap_or_default();
    let is_there = |(name, meta): &&(String, ObjectMeta)| {
        let size = fs::metadata(home.join(name)).map(|data| data.len());
        known.get(name) == Some(&Known::of(meta)) && size.is_ok_and(|size| size == meta.size)
    };
    let mut due: Vec<&(String, ObjectMeta)> = objects.iter().filter(|object| !is_there(object)).collect();
    let n_bytes: u64 = due.iter().filter(|(name, _)| !take.is_by_size(name)).map(|(_, meta)| meta.size).sum();
    let mut all: BTreeMap<&String, Known> =
        objects.iter().map(|(name, meta)| (name, Known::of(meta))).collect();
    // A folder or a pattern would find what the store no longer has.
    for name in known.keys().filter(|name| !all.contains_key(name)) {
        let _ = fs::remove_file(home.join(name));
    }
    if due.is_empty() && known.len() == all.len() {
        debug!("{address}: {} objects were fetched before", objects.len());
        return Ok(true);
    }
    let started = Instant::now();
    info!("fetching {} objects of {address}, {}", due.len(), mib(n_bytes));
    let mut jobs = Vec::new();
    for &(name, meta) in due.iter() {
        let path = folder.join(NEW).join(name);
        let file = new_file(&path).map_err(|error| on_disk(&path, &error))?;
        if take.is_by_size(name) {
            file.set_len(meta.size).map_err(|error| on_disk(&path, &error))?;
            continue;
        }
        // Not every server knows ranges.
        let part = if source.is_single { u64::MAX } else { PART_BYTES };
        let starts = (0..meta.size.max(1)).step_by(usize::try_from(part).unwrap_or(usize::MAX));
        jobs.extend(
            starts.map(|start| (name, path.clone(), meta, start..meta.size.min(start.saturating_add(part)))),
        );
    }
    let n_requests = jobs.len();
    let store = &*source.store;
    let parts = jobs.into_iter().map(|(name, path, meta, range)| {
        let part = part(store, path, meta, range);
        async move { (name, part.await) }
    });
    let mut parts = stream::iter(parts).buffer_unordered(CONCURRENT);
    let (mut n_done, mut reported, mut gone) = (0, Instant::now(), BTreeSet::new());
    while let Some((name, fetched)) = parts.next().await {
        match fetched {
            Ok(n) => n_done += n,
            Err((_, hint)) if may_repeat && take != Take::Rows && [CHANGED, NOT_THERE].contains(&&*hint) => {
                gone.insert(name);
            }
            Err(fault) => return Err(fault),
        }
        if reported.elapsed() > PROGRESS {
            reported = Instant::now();
            info!(
                "fetched {} of {}, {} per s",
                mib(n_done),
                mib(n_bytes),
                mib((n_done as f64 / started.elapsed().as_secs_f64()) as u64)
            );
        }
    }
    drop(parts);
    let to_come = || Known { size: u64::MAX, tag: None, modified: String::new() };
    due.retain(|(name, _)| !gone.contains(name));
    // What is there of them is known, so that the next fetch removes it.
    all.iter_mut().filter(|(name, _)| gone.contains(**name)).for_each(|(_, of)| *of = to_come());
    // A fetch that ends between the moves below leaves none of them without a name in the list.
    let names = due.iter().map(|(name, _)| (name, to_come()));
    write_index(&index, &known.iter().map(|(name, of)| (name, of.clone())).chain(names).collect())?;
    for (name, _) in &due {
        let path = home.join(name);
        let parent = path.parent().map_or(Ok(()), private_parents);
        let new = folder.join(NEW).join(name);
        // A file whose bytes are lost with the power would count as fetched.
        let synced = parent.and_then(|()| if is_kept { open_regular(&new)?.sync_all() } else { Ok(()) });
        // Who has mapped an earlier version keeps it.
        let moved = synced.and_then(|()| fs::rename(&new, &path));
        moved.map_err(|error| on_disk(&path, &error))?;
    }
    // Last, so that an interrupted fetch is repeated.
    write_index(&index, &all)?;
    debug!(
        "{address}: {n_requests} requests for {} objects in {:.2} s",
        due.len(),
        started.elapsed().as_secs_f64()
    );
    Ok(gone.is_empty())
}

fn write_index(path: &Path, objects: &BTreeMap<&String, Known>) -> Result<(), Fault> {
    let text = serde_json::to_vec(objects).unwrap_or_default();
    write_atomic(path, &text).map_err(|error| on_disk(path, &error.source))
}

fn private_parents(path: &Path) -> std::io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn new_file(path: &Path) -> std::io::Result<File> {
    path.parent().map_or(Ok(()), private_parents)?;
    let _ = fs::remove_file(path);
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// The objects that a source names, with their names below its place.
async fn named(source: &Source, take: Take, end: u64) -> Result<Vec<(String, ObjectMeta)>, Fault> {
    let Source { store, key, typed, is_single, .. } = source;
    if *is_single {
        // A signed link may be for GET alone.
        let meta = match store.head(key).await {
            Ok(meta) => meta,
            Err(_) => store.get_opts(key, GetOptions::default()).await.map_err(|error| said(&error))?.meta,
        };
        return Ok(vec![(typed.clone(), meta)]);
    }
    if !is_pattern(typed) && !typed.is_empty() {
        match store.head(key).await {
            Ok(meta) => return Ok(vec![(typed.clone(), meta)]),
            Err(object_store::Error::NotFound { .. }) => {}
            Err(error) => return Err(said(&error)),
        }
    }
    let listed: Vec<ObjectMeta> =
        store.list(Some(key)).try_collect().await.map_err(|error: object_store::Error| said(&error))?;
    let patterns: Vec<glob::Pattern> =
        without_lists(typed).iter().filter_map(|pattern| glob::Pattern::new(pattern).ok()).collect();
    let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
    let is_named = |name: &str| {
        if take != Take::Rows {
            true
        } else if is_pattern(typed) {
            patterns.iter().any(|pattern| pattern.matches_with(name, options))
        } else {
            formats::by_name(Path::new(name)).is_some()
        }
    };
    let n_listed = listed.len();
    let listed: Vec<_> = listed.into_iter().map(|meta| (meta.location.to_string(), meta)).collect();
    // Some tools mark folders by objects of no bytes.
    let folders: BTreeSet<String> =
        listed.iter().filter_map(|(name, _)| Some(name.rsplit_once('/')?.0.to_owned())).collect();
    let is_marker = |name: &str, meta: &ObjectMeta| {
        meta.size == 0 && (folders.contains(name) || formats::by_name(Path::new(name)).is_none())
    };
    let objects: Vec<_> = listed
        .into_iter()
        .filter(|(name, meta)| is_named(name) && is_inside(name) && !is_marker(name, meta))
        .collect();
    let objects = take.chosen(objects, typed, end);
    if objects.is_empty() {
        let endings = formats::usual_endings();
        let what = if n_listed == 0 {
            "the store lists no object there".to_owned()
        } else {
            format!("none of {n_listed} objects there matches, or has a name that ends in {endings}")
        };
        return Err((what, NOT_THERE.to_owned()));
    }
    Ok(objects)
}

/// Fetches a range of an object to its file; returns the number of bytes.
async fn part(
    store: &dyn ObjectStore,
    path: PathBuf,
    meta: &ObjectMeta,
    range: std::ops::Range<u64>,
) -> Result<u64, Fault> {
    let is_whole = range.start == 0 && range.end == meta.size;
    let options = GetOptions {
        // A weak tag matches nothing.
        if_match: meta.e_tag.clone().filter(|tag| !tag.starts_with("W/")),
        range: (!is_whole).then(|| GetRange::Bounded(range.clone())),
        ..GetOptions::default()
    };
    let answer = store.get_opts(&meta.location, options).await.map_err(|error| said(&error))?;
    if Known::of(&answer.meta) != Known::of(meta) {
        return Err((format!("{} has changed while it was read", meta.location), CHANGED.to_owned()));
    }
    let file =
        open_unlinked(OpenOptions::new().write(true), &path).map_err(|error| on_disk(&path, &error))?;
    let mut bytes = answer.into_stream();
    let mut at = range.start;
    while let Some(chunk) = bytes.next().await {
        let chunk = chunk.map_err(|error| said(&error))?;
        file.write_all_at(&chunk, at).map_err(|error| on_disk(&path, &error))?;
        at += chunk.len() as u64;
    }
    if at != range.end {
        let text = format!(
            "{} ended after {} of {} bytes",
            meta.location,
            at - range.start,
            range.end - range.start
        );
        return Err((text, "start again; if it happens again, check the network".to_owned()));
    }
    Ok(at - range.start)
}

fn mib(bytes: u64) -> String {
    ddp::report::units::mib(bytes)
}
