//! Fetches the objects of an address into the folder of their copies, and holds that folder while it is used.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Component, Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ddp::storage::fingerprint::Fingerprint;
use ddp::storage::user_file::{open_regular, open_unlinked, read_regular};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{
    BackoffConfig, ClientOptions, GetOptions, GetRange, HeaderMap, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, RetryConfig,
};
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tracing::{debug, info};

use super::{Fault, SIGNED, shown};
use crate::formats;
use crate::open::pattern::{is_pattern, without_lists};

/// Name of the list of what is there.
const INDEX: &str = ".objects.json";
/// Name of the folder of objects that are not complete.
const NEW: &str = ".new";
/// Begin of the name of a folder that is being removed.
const GONE: &str = ".gone-";
/// Time without a byte after which a request is tried again.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// Largest such list.
const MAX_INDEX_BYTES: u64 = 1 << 30;
/// Locked by each process that uses the copies, and by the one that fetches.
const LOCK: &str = ".lock";
const FETCH_LOCK: &str = ".fetch";
/// Most requests at a time.
const CONCURRENT: usize = 8;
/// Bytes of a request of a large object.
const PART_BYTES: u64 = 16 << 20;
/// Time between two lines about the progress.
const PROGRESS: Duration = Duration::from_secs(5);
/// Time for all tries of a request.
const RETRY_TIME: Duration = Duration::from_secs(60);
const MAX_RETRIES: usize = 6;
const CHANGED: &str = "the object has changed while it was read: start again when it is complete";
const NOT_THERE: &str = "check bucket, key and spelling; keys are case-sensitive";

/// The copies of one source, locked while this value is there.
struct Held {
    folder: PathBuf,
    lock: File,
    is_kept: bool,
    local: String,
}

/// The copies that this process uses, by source and folder.
static HELD: LazyLock<Mutex<HashMap<Id, Held>>> = LazyLock::new(Mutex::default);

/// An address, and the folder of `data.cache`.
type Id = (String, Option<PathBuf>);

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

/// A store, and the keys in it that a source names.
struct Source {
    store: Box<dyn ObjectStore>,
    key: Key,
    /// Path of the store below the folder of copies.
    place: String,
    /// The key as typed, with wildcards.
    typed: String,
    /// Whether the address is one object whatever its name, of a server that lists nothing.
    is_single: bool,
}

pub(super) fn local(address: &str, keep: Option<&Path>) -> Result<String, Fault> {
    let id = (address.to_owned(), keep.map(Path::to_owned));
    let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = held.get(&id) {
        return Ok(found.local.clone());
    }
    let copies = copy(address, keep)?;
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

fn copy(address: &str, keep: Option<&Path>) -> Result<Held, Fault> {
    let source = open(address)?;
    let parent = match keep {
        Some(keep) => keep.join("objects"),
        None => {
            std::env::temp_dir().join(format!("ddp-train-objects-{}", rustix::process::getuid().as_raw()))
        }
    };
    private_folder(&parent).map_err(|error| on_disk(&parent, &error))?;
    let mut hash = Fingerprint::default();
    hash.text(address);
    let folder = parent.join(format!("{:016x}", hash.finish()));
    if keep.is_none() {
        remove_abandoned(&parent, &folder);
    }
    let lock = lock(&folder).map_err(|error| on_disk(&folder, &error))?;
    let copied = copy_locked(address, &source, &folder);
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
fn copy_locked(address: &str, source: &Source, folder: &Path) -> Result<(), Fault> {
    let path = folder.join(FETCH_LOCK);
    let fetching = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let fetching = fetching.map_err(|error| on_disk(&path, &error))?;
    flock(&fetching, FlockOperation::LockExclusive).map_err(|error| on_disk(&path, &error.into()))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| (error.to_string(), "allow this process more threads".to_owned()))?;
    runtime.block_on(fetch(shown(address), source, folder))
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

fn open(address: &str) -> Result<Source, Fault> {
    let (scheme, rest) = address.split_once("://").expect("checked by the caller");
    let failed = |error: object_store::Error| said(&error);
    let retry = RetryConfig {
        backoff: BackoffConfig::default(),
        max_retries: MAX_RETRIES,
        retry_timeout: RETRY_TIME,
    };
    let options = ClientOptions::new()
        .with_connect_timeout(Duration::from_secs(10))
        .with_timeout_disabled()
        .with_read_timeout(READ_TIMEOUT);
    if let "http" | "https" | "hf" = scheme {
        let (url, options) =
            if scheme == "hf" { hugging_face(rest, options)? } else { (address.to_owned(), options) };
        if rest.split('/').next().is_some_and(|host| host.contains('@')) {
            let hint = "a password in an address shows in files and lists of processes: sign a link instead"
                .to_owned();
            return Err(("the address holds a user".to_owned(), hint));
        }
        let query = SIGNED.lock().unwrap_or_else(PoisonError::into_inner).get(&url).cloned();
        let url = query.map_or(url.clone(), |query| format!("{url}?{query}"));
        let plain = url.split(['?', '#']).next().unwrap_or_default();
        let name = plain.rsplit('/').next().unwrap_or_default().to_owned();
        if name.is_empty() || is_pattern(&name) {
            let hint = "name one file; a server of plain HTTPS lists nothing".to_owned();
            return Err(("the address names no file".to_owned(), hint));
        }
        let options = options.with_allow_http(scheme == "http" || url.starts_with("http://"));
        let store = HttpBuilder::new().with_url(&url).with_client_options(options).with_retry(retry).build();
        let store = Box::new(store.map_err(failed)?);
        return Ok(Source {
            store,
            key: Key::default(),
            place: scheme.to_owned(),
            typed: name,
            is_single: true,
        });
    }
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    let root = format!("{scheme}://{bucket}/");
    let store: Box<dyn ObjectStore> = match scheme {
        "s3" => {
            let is_plain = ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT"]
                .iter()
                .any(|name| std::env::var(name).is_ok_and(|value| value.starts_with("http://")));
            let builder = AmazonS3Builder::from_env().with_url(&root).with_retry(retry);
            let builder = builder.with_client_options(options.with_allow_http(is_plain));
            Box::new(builder.build().map_err(failed)?)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_url(&root).with_retry(retry);
            Box::new(builder.with_client_options(options).build().map_err(failed)?)
        }
        _ => {
            let builder = MicrosoftAzureBuilder::from_env().with_url(&root).with_retry(retry);
            Box::new(builder.with_client_options(options).build().map_err(failed)?)
        }
    };
    let typed = key.trim_end_matches('/').to_owned();
    if bucket.is_empty() || !(typed.is_empty() || without_lists(&typed).iter().all(|key| is_inside(key))) {
        let hint = "write it as SCHEME://BUCKET/KEY, without empty parts, `.` and `..`".to_owned();
        return Err(("the address is not one of a bucket and a key".to_owned(), hint));
    }
    let fixed = match typed.find(['*', '?', '[', '{']).filter(|_| is_pattern(&typed)) {
        Some(at) => typed[..at].rsplit_once('/').map_or("", |(before, _)| before),
        None => &typed,
    };
    let key = Key::parse(fixed)
        .map_err(|error| (error.to_string(), "write the key as the store lists it".to_owned()))?;
    Ok(Source { store, key, place: format!("{scheme}/{bucket}"), typed, is_single: false })
}

/// The address of a file of a data set of Hugging Face, `datasets/OWNER/NAME[@REVISION]/PATH`, and the token for it.
///
/// Source: the Hub's documentation, "Download files", for the form `/resolve/REVISION/PATH`.
fn hugging_face(rest: &str, options: ClientOptions) -> Result<(String, ClientOptions), Fault> {
    let parts: Vec<&str> = rest.splitn(4, '/').collect();
    let &["datasets", owner, name, file] = &parts[..] else {
        let hint = "for example hf://datasets/OWNER/NAME/data/train.parquet, with NAME@REVISION for another one than main".to_owned();
        return Err(("the address names no file of a data set".to_owned(), hint));
    };
    let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
    let host = std::env::var("HF_ENDPOINT").unwrap_or_else(|_| "https://huggingface.co".to_owned());
    let url = format!("{}/datasets/{owner}/{name}/resolve/{revision}/{file}", host.trim_end_matches('/'));
    let options =
        match std::env::var("HF_TOKEN").ok().and_then(|token| format!("Bearer {token}").parse().ok()) {
            Some(token) => {
                let mut headers = HeaderMap::new();
                headers.insert("authorization", token);
                options.with_default_headers(headers)
            }
            None => options,
        };
    Ok((url, options))
}

/// Brings the copies in `folder` up to date.
async fn fetch(address: &str, source: &Source, folder: &Path) -> Result<(), Fault> {
    let objects = named(source).await?;
    let home = folder.join(&source.place);
    let index = folder.join(INDEX);
    let known: BTreeMap<String, Known> = read_regular(&index, MAX_INDEX_BYTES)
        .ok()
        .and_then(|text| serde_json::from_slice(&text).ok())
        .unwrap_or_default();
    let is_there = |(name, meta): &&(String, ObjectMeta)| {
        let size = fs::metadata(home.join(name)).map(|data| data.len());
        known.get(name) == Some(&Known::of(meta)) && size.is_ok_and(|size| size == meta.size)
    };
    let due: Vec<&(String, ObjectMeta)> = objects.iter().filter(|object| !is_there(object)).collect();
    let n_bytes: u64 = due.iter().map(|(_, meta)| meta.size).sum();
    let all: BTreeMap<&String, Known> = objects.iter().map(|(name, meta)| (name, Known::of(meta))).collect();
    // A folder or a pattern would find what the store no longer has.
    for name in known.keys().filter(|name| !all.contains_key(name)) {
        let _ = fs::remove_file(home.join(name));
    }
    if due.is_empty() && known.len() == all.len() {
        debug!("{address}: {} objects were fetched before", objects.len());
        return Ok(());
    }
    let started = Instant::now();
    info!("fetching {} objects of {address}, {}", due.len(), mib(n_bytes));
    let mut jobs = Vec::new();
    for (name, meta) in &due {
        let path = folder.join(NEW).join(name);
        new_file(&path).map_err(|error| on_disk(&path, &error))?;
        // Not every server knows ranges.
        let part = if source.is_single { u64::MAX } else { PART_BYTES };
        let starts = (0..meta.size.max(1)).step_by(usize::try_from(part).unwrap_or(usize::MAX));
        jobs.extend(
            starts.map(|start| (path.clone(), meta, start..meta.size.min(start.saturating_add(part)))),
        );
    }
    let n_requests = jobs.len();
    let store = &*source.store;
    let parts = jobs.into_iter().map(|(path, meta, range)| part(store, path, meta, range));
    let mut parts = stream::iter(parts).buffer_unordered(CONCURRENT);
    let (mut n_done, mut reported) = (0, Instant::now());
    while let Some(n) = parts.try_next().await? {
        n_done += n;
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
    for (name, _) in &due {
        let path = home.join(name);
        let parent = path.parent().map_or(Ok(()), private_parents);
        // Who has mapped an earlier version keeps it.
        let moved = parent.and_then(|()| fs::rename(folder.join(NEW).join(name), &path));
        moved.map_err(|error| on_disk(&path, &error))?;
    }
    // Last, so that an interrupted fetch is repeated.
    let written =
        new_file(&index).and_then(|mut file| file.write_all(&serde_json::to_vec(&all).unwrap_or_default()));
    written.map_err(|error| on_disk(&index, &error))?;
    debug!(
        "{address}: {n_requests} requests for {} objects in {:.2} s",
        due.len(),
        started.elapsed().as_secs_f64()
    );
    Ok(())
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
async fn named(source: &Source) -> Result<Vec<(String, ObjectMeta)>, Fault> {
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
        if is_pattern(typed) {
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

/// Whether a name stays below the folder that it is joined to.
fn is_inside(name: &str) -> bool {
    Path::new(name).components().all(|part| matches!(part, Component::Normal(_)))
        && !name.split('/').any(str::is_empty)
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

/// Words of a store, with all causes, and a remedy.
fn said(error: &object_store::Error) -> Fault {
    use object_store::Error;
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let mut text = error.to_string();
    for cause in causes.map(ToString::to_string) {
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    // Links in it may be signed.
    let words = text
        .split(' ')
        .map(|word| if word.contains("://") { word.split('?').next().unwrap_or(word) } else { word });
    text = words.collect::<Vec<_>>().join(" ");
    // Stores answer in XML.
    let inside = |tag: &str| Some(text.split_once(&format!("<{tag}>"))?.1.split_once("</")?.0.to_owned());
    if let (Some(code), Some(message)) = (inside("Code"), inside("Message")) {
        text = format!("{code}: {message}");
    }
    let hint = match error {
        Error::NotFound { .. } => NOT_THERE,
        _ if text.starts_with("NoSuch") => NOT_THERE,
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            "the credentials are refused: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (GOOGLE_*, AZURE_*, HF_TOKEN), their rights to list \
             and read, and the clock; for a public bucket of S3 set AWS_SKIP_SIGNATURE=true"
        }
        Error::Precondition { .. } => CHANGED,
        _ if text.contains("169.254.169.254") => {
            "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket"
        }
        _ => "check the network, AWS_ENDPOINT_URL and AWS_REGION; docs/buckets.md",
    };
    (text, hint.to_owned())
}
