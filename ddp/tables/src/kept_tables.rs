//! Tables that were read, kept for later starts: in the folder `data.cache`, or in memory that a launcher holds.
//!
//! A kept table is the file of a [`HostShare`] with a header. Its name and its header hold a key of all that it was made from, so that a
//! table that changed is never taken for the old one. It gets its name when it is complete, and its checksum is compared before it is used.
//!
//! ```
//! use ddp_tables::kept_tables::entries;
//!
//! let folder = tempfile::tempdir()?;
//! assert!(entries(folder.path())?.is_empty());
//! # Ok::<(), std::io::Error>(())
//! ```

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{io, thread};

use ddp::config::{Config, EvalSource};
use ddp::data::heads_to_json;
use ddp::storage::fingerprint::Fingerprint;
use ddp::storage::user_file::{self, create_new, open_unlinked};
use ddp_comm::{HostShare, KeptFile, KeptMemory};
use ddp_kernels::cpu::mapped_file::MappedFile;
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use tracing::{debug, info, warn};

use crate::fit::preprocess::Preprocessor;
use crate::formats::Reader;
use crate::formats::arrays::reader::SplitSide;
use crate::open::files::files_and_format;
use crate::source::SourceSpec;
use crate::table::partition_columns;

/// First bytes of a kept table; the number changes with the format of the records.
const MAGIC: &[u8; 8] = b"DDPROWS5";
/// Bytes of the header, a page: the records after it can be mapped.
const HEADER_BYTES: u64 = 4096;
/// Ending of the names of kept tables.
const ENDING: &str = "rows";
/// Time after a change of a file for which a further one may leave its times as they are.
const TICK: Duration = Duration::from_millis(50);
/// Places of a file whose bytes are part of the key, and their length.
const N_SAMPLES: u64 = 8;
const SAMPLE_BYTES: usize = 4096;

/// A table that is being read and is to be kept, on the first rank of a host. Dropped without [`KeptTable::complete`], it leaves nothing.
#[derive(Debug)]
pub(crate) struct KeptTable {
    /// Hash of its files before they were read, and the key of it and the config.
    files: u64,
    key: u64,
    /// Where it is written, and its name in the end; `None` in memory.
    paths: Option<[PathBuf; 2]>,
}

/// Header of a file.
struct Header {
    /// Of the config, and of the config with the task on which the targets decided: that of a run that resumes.
    keys: [u64; 2],
    /// End of the records; 0 while they are written.
    end: u64,
    /// Hash of all bytes after the header.
    checksum: u64,
}

/// Opens the kept rows of `config`, or a place for them; `None` if it asks for none, or there is none.
///
/// - `model`: the preprocessor by whose columns rows are read, and whether its classes are those of the rows
pub(crate) fn open(config: &Config, model: Option<(&Preprocessor, bool)>) -> Option<(KeptFile, KeptTable)> {
    let Some(folder) = &config.data.cache else {
        let memory = KeptMemory::from_launcher()?;
        let files = files_hash(config)?;
        return in_memory(memory, KeptTable { files, key: key(config, model, files)?, paths: None });
    };
    // A fault of the files is reported when they are opened.
    let files = files_hash(config)?;
    in_folder(Path::new(folder), KeptTable { files, key: key(config, model, files)?, paths: None })
}

fn in_folder(folder: &Path, table: KeptTable) -> Option<(KeptFile, KeptTable)> {
    let key = table.key;
    let path = named(folder, key);
    let failed = |what: &str, error: &io::Error| {
        warn!("`data.cache`: {what} `{}`: {error}; the table is not kept", folder.display());
    };
    match open_private(&path) {
        Ok(file) if is_complete(&file, &path, key) => {
            info!("rows as they were read before: {}", path.display());
            let kept = KeptFile { file, start: HEADER_BYTES, is_complete: true };
            return Some((kept, table));
        }
        Ok(_) => warn!("{} is damaged: the table is read again", path.display()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => warn!("{} can't be used: {error}; the table is read again", path.display()),
    }
    if let Err(error) = fs::create_dir_all(folder) {
        failed("can't create", &error);
        return None;
    }
    remove_left_over(folder);
    let temporary = folder.join(format!(".{key:016x}.{}.tmp", std::process::id()));
    let create = || {
        let file = create_new(&temporary)?;
        file.set_permissions(fs::Permissions::from_mode(0o600))?;
        // Held until the process ends: then another one may remove it.
        let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
        Ok(file)
    };
    match create() {
        Ok(file) => {
            let kept = KeptFile { file, start: HEADER_BYTES, is_complete: false };
            Some((kept, KeptTable { files: table.files, key, paths: Some([temporary, path]) }))
        }
        Err(error) => {
            failed("can't write to", &error);
            None
        }
    }
}

fn in_memory(file: File, table: KeptTable) -> Option<(KeptFile, KeptTable)> {
    if is_complete(&file, Path::new("memory of the launcher"), table.key) {
        debug!("rows as they were read before, in memory of the launcher");
        return Some((KeptFile { file, start: HEADER_BYTES, is_complete: true }, table));
    }
    // One job at a time writes it, and never over records that are complete: others may have mapped them. With the lock, none completes them.
    let is_free = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    let is_empty = Header::read(&file).is_none_or(|header| header.end == 0);
    (is_free && is_empty && file.set_len(0).is_ok())
        .then_some((KeptFile { file, start: HEADER_BYTES, is_complete: false }, table))
}

impl KeptTable {
    /// Keeps the records of `host`, which are all that the rows need.
    ///
    /// - `config`: with the task on which the targets decided
    pub(crate) fn complete(
        mut self,
        host: &HostShare,
        config: &Config,
        model: Option<(&Preprocessor, bool)>,
    ) {
        if !host.leads() || host.is_of_now() {
            return;
        }
        if host.is_moved() {
            warn!("`data.cache` has no room for the rows: they are held in memory, and not kept");
            return;
        }
        if files_hash(config) != Some(self.files) {
            warn!("the table is not kept: its files changed while they were read");
            return;
        }
        let file = host.file();
        let end = host.position();
        let decided = key(config, model, self.files).unwrap_or(self.key);
        let complete = || -> io::Result<()> {
            file.set_len(end)?;
            let checksum = checksum(&file, end).ok_or(io::ErrorKind::InvalidData)?;
            // The header last: without it there are no rows.
            if self.paths.is_some() {
                file.sync_data()?;
            }
            file.write_all_at(&Header { keys: [self.key, decided], end, checksum }.encode(), 0)?;
            if let Some([temporary, path]) = &self.paths {
                file.sync_data()?;
                fs::rename(temporary, path)?;
                if decided != self.key {
                    // A run that resumes looks for this one; where links are unknown, it reads the table once more.
                    let link = named(path.parent().unwrap_or(Path::new(".")), decided);
                    let _ = fs::remove_file(&link);
                    let _ = fs::hard_link(path, link);
                }
            }
            Ok(())
        };
        match complete() {
            Ok(()) => self.paths = None,
            Err(error) => warn!("the table can't be kept: {error}"),
        }
    }
}

impl Drop for KeptTable {
    fn drop(&mut self) {
        if let Some([temporary, _]) = &self.paths {
            let _ = fs::remove_file(temporary);
        }
    }
}

impl Header {
    fn encode(&self) -> Vec<u8> {
        let numbers = [self.keys[0], self.keys[1], self.end, self.checksum].map(u64::to_le_bytes);
        [&MAGIC[..], &numbers.concat()].concat()
    }

    fn read(file: &File) -> Option<Self> {
        let mut bytes = [0; 40];
        file.read_exact_at(&mut bytes, 0).ok()?;
        let number = |index: usize| bytes[8 * index..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        (&bytes[..8] == MAGIC).then_some(Header {
            keys: [number(1)?, number(2)?],
            end: number(3)?,
            checksum: number(4)?,
        })
    }
}

/// Whether a file holds all records of the rows with this key, as they were written.
fn is_complete(file: &File, path: &Path, key: u64) -> bool {
    let Some(header) = Header::read(file) else { return false };
    let len = file.metadata().map_or(0, |metadata| metadata.len());
    let is_whole = header.keys.contains(&key) && header.end > HEADER_BYTES && header.end == len;
    is_whole && checksum_at(file, path, header.end) == Some(header.checksum)
}

fn checksum(file: &File, end: u64) -> Option<u64> {
    checksum_at(file, Path::new("kept rows"), end)
}

fn checksum_at(file: &File, path: &Path, end: u64) -> Option<u64> {
    let map = MappedFile::map(file, path, HEADER_BYTES, end - HEADER_BYTES).ok()?;
    let mut hash = Fingerprint::default();
    hash.bytes(map.bytes());
    map.is_intact().then(|| hash.finish())
}

/// Opens a file of the cache, which must be a regular file of this user alone.
fn open_private(path: &Path) -> io::Result<File> {
    open_private_with(File::options().read(true), path)
}

fn open_private_with(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let file = open_unlinked(options, path)?;
    let metadata = file.metadata()?;
    if metadata.uid() != geteuid().as_raw() || metadata.permissions().mode() & 0o022 != 0 {
        return Err(io::Error::other("other users may write it"));
    }
    Ok(file)
}

/// Removes what ended processes did not complete.
fn remove_left_over(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let is_temporary = path.extension().is_some_and(|ending| ending == "tmp")
            && entry.file_name().to_string_lossy().starts_with('.');
        // The process that writes it holds a lock.
        let is_left = || {
            // Over NFS a lock that excludes others is for files that are open for writing.
            open_private_with(File::options().read(true).write(true), &path)
                .is_ok_and(|file| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok())
        };
        if is_temporary && is_left() {
            let _ = fs::remove_file(&path);
        }
    }
}

/// The file of the table with this key.
fn named(folder: &Path, key: u64) -> PathBuf {
    folder.join(format!("{key:016x}.{ENDING}"))
}

/// A kept table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Names of its file: a second one is that for runs that resume.
    pub paths: Vec<PathBuf>,
    /// Size of the file.
    pub n_bytes: u64,
    /// When it was made.
    pub made: SystemTime,
}

/// The kept tables of a folder, the oldest first.
///
/// # Errors
/// The system's error, if the folder can't be read.
pub fn entries(folder: &Path) -> io::Result<Vec<Entry>> {
    let mut entries: HashMap<u64, Entry> = HashMap::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_kept = path.extension().is_some_and(|ending| ending == ENDING);
        let Ok(file) = (if is_kept { open_private(&path) } else { continue }) else { continue };
        if let (Some(_), Ok(metadata)) = (Header::read(&file), file.metadata()) {
            let (n_bytes, made) = (metadata.len(), metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
            let entry = entries.entry(metadata.ino()).or_insert(Entry { paths: Vec::new(), n_bytes, made });
            entry.paths.push(path);
        }
    }
    let mut entries: Vec<Entry> = entries.into_values().collect();
    entries.iter_mut().for_each(|entry| entry.paths.sort());
    entries.sort_by(|a, b| (a.made, &a.paths).cmp(&(b.made, &b.paths)));
    Ok(entries)
}

/// A key of all that the rows of `config` are made from: its files, settings, the program.
fn key(config: &Config, model: Option<(&Preprocessor, bool)>, files: u64) -> Option<u64> {
    let mut hash = Fingerprint::default();
    hash.number(files);
    // Each build may read a cell differently.
    let program = fs::metadata(std::env::current_exe().ok()?).ok()?;
    [program.len(), program.mtime() as u64, program.mtime_nsec() as u64]
        .into_iter()
        .for_each(|n| hash.number(n));
    if config.data.holds_out() {
        hash.number(config.train.seed);
    }
    hash.text(&data_section(config));
    if let Some((known, has_classes)) = model {
        let saved = known.to_saved();
        hash.text(&saved.columns);
        hash.text(&saved.labels.filter(|_| has_classes).map_or(String::new(), |labels| labels.to_json()));
        hash.text(&heads_to_json(if has_classes { &saved.heads } else { &[] }));
    }
    Some(hash.finish())
}

/// The settings of `config` that say how rows are read, without the names of files: a run that resumes has absolute ones.
fn data_section(config: &Config) -> String {
    let mut config = config.clone();
    config.data.cache = None;
    config.data.train.clear();
    if let EvalSource::Source(source) = &mut config.data.eval {
        source.clear();
    }
    let text = config.to_toml();
    let is_head = |line: &&str| line.starts_with("heads");
    let lines = text.lines().skip_while(|line| *line != "[data]").skip(1);
    let of_data = lines.take_while(|line| !line.starts_with('['));
    text.lines().filter(is_head).chain(of_data).collect::<Vec<_>>().join("\n")
}

/// A hash of the files that `config` names, of their times and of some of their bytes; `None` if its rows are no table of regular files.
fn files_hash(config: &Config) -> Option<u64> {
    let mut hash = Fingerprint::default();
    let train = SourceSpec::train(&config.data);
    if !add_files(&mut hash, &train)? {
        return None;
    }
    if let EvalSource::Source(source) = &config.data.eval {
        // Arrays for evaluation are opened by each rank.
        add_files(&mut hash, &SourceSpec { source, side: SplitSide::Test, ..train })?;
    }
    Some(hash.finish())
}

/// Adds the files of a table; returns whether the rows are one, and `None` if its files are not known by their times.
fn add_files(hash: &mut Fingerprint, spec: &SourceSpec<'_>) -> Option<bool> {
    if spec.source.starts_with("builtin:") {
        return Some(false);
    }
    let (files, format) = files_and_format(spec).ok()?;
    if !matches!(format.reader, Reader::Table(_)) {
        return Some(false);
    }
    for path in &files {
        let metadata = settled(path)?;
        hash.text(&fs::canonicalize(path).ok()?.to_string_lossy());
        // Which folders above a file are columns depends on the source, which is no part of the key.
        for (name, value) in partition_columns(path, spec) {
            hash.text(&name);
            hash.text(&value);
        }
        let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
        [metadata.dev(), metadata.ino(), metadata.len()].into_iter().for_each(|number| hash.number(number));
        times.into_iter().for_each(|number| hash.number(number as u64));
        let file = user_file::open_regular(path).ok()?;
        let mut sample = [0; SAMPLE_BYTES];
        for index in 0..N_SAMPLES {
            let at = metadata.len().saturating_sub(SAMPLE_BYTES as u64) / (N_SAMPLES - 1) * index;
            let n = file.read_at(&mut sample, at).ok()?;
            hash.bytes(&sample[..n]);
        }
    }
    Some(true)
}

/// Facts about a regular file that has not just changed: a change from now on gives it other times.
fn settled(path: &Path) -> Option<fs::Metadata> {
    loop {
        let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let changed =
            SystemTime::UNIX_EPOCH + Duration::new(metadata.ctime() as u64, metadata.ctime_nsec() as u32);
        // A clock of another machine may be ahead: then nothing is kept.
        let age = SystemTime::now().duration_since(changed).ok()?;
        if age >= TICK {
            return Some(metadata);
        }
        thread::sleep(TICK - age);
    }
}

#[cfg(test)]
#[path = "kept_tables_tests.rs"]
mod tests;
