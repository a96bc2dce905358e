//! Tables of text that exceed the memory: they are written to a Parquet file without a name, whose row groups are decoded on demand.
//!
//! The file is open for as long as its rows are in use, and other ranks of the host open it through the process that made it. So it is gone
//! when the run ends, however it ends.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use ddp::config::table_options::Decimal;
use ddp::config::{DataConfig, EvalSource, ShuffleMode};
use ddp::data::datasets::dataset::{Dataset, RowLayout};
use ddp::data::datasets::wrapper::{Changes, DatasetWrapper};
use ddp::data::error::{DataError, Result};
use ddp::host_memory::size;
use ddp::storage::user_file::{create_new, open_regular, open_unlinked};
use ddp::storage::write_error::WriteError;
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use tracing::info;

use crate::error::TableError;
use crate::formats::arrays::reader::SplitSide;
use crate::formats::table::parquet::{MAX_GROUP_ROWS, ParquetWriter};
use crate::formats::table::source::TableFormat;
use crate::formats::write::{Group, Schema, Staging};
use crate::source::SourceSpec;
use crate::table::cell_chunks::CellColumns;
use crate::table::chunk_reader::ChunkReader;
use crate::table::large;

/// Name of a folder in which rows are written, around the process and the time.
const PREFIX: &str = "ddp-train-";
const SUFFIX: &str = "-rows";
/// Name of a file in it on which the process that writes holds a lock.
const LOCK: &str = "lock";
/// Rows that are read and written at a time.
const CHUNK_ROWS: usize = 1 << 14;
/// Most bytes of a column in a decoded row: the seven parts of a date, and the exact value.
const COLUMN_BYTES: u64 = 36;

/// Rows of a table of text, in a file without a name.
#[derive(Debug)]
struct SpilledRows {
    rows: Arc<dyn Dataset>,
    layout: RowLayout,
    _file: Option<File>,
}

impl DatasetWrapper for SpilledRows {
    const CHANGES: Changes = Changes::Nothing;

    fn inner(&self) -> &dyn Dataset {
        &*self.rows
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }
}

/// Whether rows that exceed the memory may be written to a file: the format is text, and rows are not drawn from all over the file.
pub(super) fn may_spill(files: &[PathBuf], format: &TableFormat, spec: &SourceSpec<'_>) -> bool {
    let data = spec.data;
    let is_drawn = spec.side == SplitSide::Train && data.shuffle && data.shuffle_mode == ShuffleMode::Full;
    format.is_text
        && !is_drawn
        && files.iter().all(|file| fs::metadata(file).is_ok_and(|data| data.is_file()))
}

/// Writes the rows of `files` to a file without a name, and opens it; returns its path for other processes, too. `None` if the rows fit the
/// memory after all.
///
/// # Errors
/// Errors of reading the rows; [`WriteError`] if the disk has no room.
pub(super) fn spill(
    files: &[PathBuf],
    format: &TableFormat,
    spec: &SourceSpec<'_>,
) -> Result<Option<(Arc<dyn Dataset>, PathBuf)>> {
    let folder = std::env::temp_dir();
    let failed = |source| DataError::from(WriteError { path: folder.clone(), source });
    remove_left_over(&folder);
    // Nobody else may read the rows while their file has a name.
    let (private, _lock) = private_folder(&folder).map_err(failed)?;
    let written = write(files, format, spec, &private);
    let file = written.and_then(|(path, decimal)| Ok((open_regular(&path).map_err(failed)?, decimal)));
    // The file stays as long as it is open.
    fs::remove_dir_all(&private).map_err(failed)?;
    let (file, decimal) = file?;
    let n_bytes = file.metadata().map_err(failed)?.len();
    info!(
        "{} exceeds the memory for rows: it is kept as Parquet in `{}`, {}, until the run ends",
        spec.source,
        folder.display(),
        size(n_bytes)
    );
    let path = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));
    Ok(open(&path, Some((file, decimal)), spec)?.map(|rows| (rows, path)))
}

/// Creates a folder of a name that no other process has, and the lock that says that it is in use. Processes of other containers may have the
/// same number.
fn private_folder(folder: &Path) -> io::Result<(PathBuf, File)> {
    let private = loop {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let private = folder.join(format!("{PREFIX}{}-{:x}{SUFFIX}", std::process::id(), now.as_nanos()));
        match DirBuilder::new().mode(0o700).create(&private) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            created => break created.map(|()| private)?,
        }
    };
    // The lock has its name once it is held.
    let unnamed = private.join("new");
    let lock = create_new(&unnamed)?;
    let _ = flock(&lock, FlockOperation::NonBlockingLockExclusive);
    fs::rename(unnamed, private.join(LOCK))?;
    Ok((private, lock))
}

/// Removes the folders of processes that were killed while they wrote.
fn remove_left_over(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_private = name.to_str().is_some_and(|name| name.starts_with(PREFIX) && name.ends_with(SUFFIX));
        let is_own = || entry.metadata().is_ok_and(|data| data.is_dir() && data.uid() == geteuid().as_raw());
        let is_left = || {
            let lock = open_unlinked(File::options().read(true).write(true), &entry.path().join(LOCK));
            lock.is_ok_and(|lock| flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok())
        };
        if is_private && is_own() && is_left() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Opens rows that [`spill`] has written, here, where the decimal mark of their files is known, or in another process.
pub(super) fn open(
    path: &Path,
    written: Option<(File, Decimal)>,
    spec: &SourceSpec<'_>,
) -> Result<Option<Arc<dyn Dataset>>> {
    // Only what is used was written.
    let eval = match &spec.data.eval {
        EvalSource::Split(_) => EvalSource::None,
        other => other.clone(),
    };
    let data = DataConfig { drop: Vec::new(), eval, ..spec.data.clone() };
    let spec = SourceSpec { data: &data, types: None, taken: None, host: None, ..*spec };
    let rows = large::open(&[path.to_owned()], &spec).map_err(without_file)?;
    let (file, decimal) = written.unzip();
    Ok(rows.map(|rows| {
        let layout = RowLayout { decimal: decimal.unwrap_or_default(), ..rows.layout().clone() };
        Arc::new(SpilledRows { rows, layout, _file: file }) as Arc<dyn Dataset>
    }))
}

/// The error without advice on the file, which is not the user's.
fn without_file(mut error: DataError) -> DataError {
    if let Some(TableError::TooLarge { hint, .. }) = error.source_error_mut() {
        "raise the limit".clone_into(hint);
    }
    error
}

/// Rows in a row group. Two are in memory at a time, with the pages and the batches of their decode: each takes an eighth of it.
fn group_rows(groups: &[Group], memory_bytes: u64) -> usize {
    let n_columns: usize = groups.iter().map(|group| group.names.len()).sum();
    (memory_bytes / 8 / (n_columns as u64 * COLUMN_BYTES + 1)).clamp(1, MAX_GROUP_ROWS as u64) as usize
}

/// Writes the rows to a file in `folder`; returns its path, and the decimal mark of their files.
fn write(
    files: &[PathBuf],
    format: &TableFormat,
    spec: &SourceSpec<'_>,
    folder: &Path,
) -> Result<(PathBuf, Decimal)> {
    let cells = CellColumns::scan(files, format, spec)?;
    // The rows are read again.
    spec.filter.iter().for_each(|filter| _ = filter.take_counts());
    let schema = Schema { source: spec.source.to_owned(), groups: cells.groups() };
    let mut staging = Staging::new(folder);
    let path = folder.join("rows.parquet");
    let group_rows = group_rows(&schema.groups, spec.memory_bytes);
    let mut writer = ParquetWriter::with_groups(&schema, &path, &mut staging, group_rows)?;
    for file in files {
        let mut reader = ChunkReader::from_text(file, format, spec, &cells)?;
        while let Some(chunk) = reader.next(CHUNK_ROWS)? {
            writer.write(chunk)?;
        }
    }
    writer.finish()?;
    staging.commit(&[])?;
    Ok((path, cells.decimal()))
}

/// Whether an error says that rows exceed the memory.
pub(super) fn is_too_large(error: &DataError) -> bool {
    matches!(TableError::of(error), Some(TableError::TooLarge { .. }))
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use ddp::config::Config;
    use ddp_comm::{World, threads};

    use super::*;
    use crate::load::load;
    use crate::testing::gathered;

    /// All rows in their order, on this many ranks.
    fn loaded(sets: &[String], n_ranks: usize) -> Vec<Vec<u32>> {
        let config = Config::load(None, sets).unwrap();
        let contents = |world: &World| {
            let loaded = load(&config, world).unwrap();
            let rows = &*loaded.train;
            let (x, y, _) = gathered(rows, &(0..rows.len()).collect::<Vec<_>>());
            x.iter().chain(&y).map(|value| value.to_bits()).collect()
        };
        match n_ranks {
            1 => vec![contents(&World::single())],
            n => threads::run(n, |world| contents(&world)),
        }
    }

    #[test]
    fn text_that_exceeds_the_memory_gives_the_same_rows() {
        let folder = tempfile::tempdir().unwrap();
        let mut text = "a,kind,day,b,note,side,y\n".to_owned();
        for row in 0..60_000u32 {
            let (kind, side) =
                (["red", "green", "blue"][row as usize % 3], if row % 5 == 0 { "test" } else { "train" });
            let day = 1 + row % 28;
            writeln!(
                text,
                "{}.25,{kind},2024-05-{day:02},{},x{row},{side},{}",
                row % 1009,
                f64::from(row) / 7.0,
                row % 2
            )
            .unwrap();
        }
        let path = folder.path().join("rows.csv");
        fs::write(&path, text).unwrap();
        for more in [
            &["data.eval=none"][..],
            &["data.split={column=\"side\"}"],
            &["data.split={column=\"side\"}", "data.max_rows=50000"],
            &["data.split={column=\"side\"}", "data.max_rows=70000"],
        ] {
            let sets = |mib: usize| -> Vec<String> {
                let mut sets = vec![
                    format!("data.train={}", path.display()),
                    "data.target=y".to_owned(),
                    "data.categorical=[\"kind\"]".to_owned(),
                    "data.drop=[\"note\"]".to_owned(),
                    "data.shuffle_mode=blocks".to_owned(),
                    format!("data.loader_memory_mib={mib}"),
                ];
                sets.extend(more.iter().map(|set| (*set).to_owned()));
                if more.len() == 1 && more[0].starts_with("data.eval") {
                    sets.push("data.drop=[\"note\", \"side\"]".to_owned());
                }
                sets
            };
            let want = loaded(&sets(64), 1);
            for n_ranks in [1, 3] {
                let got = loaded(&sets(2), n_ranks);
                assert!(got.iter().all(|rows| *rows == want[0]), "{more:?} on {n_ranks} ranks");
            }
        }
        // Other tests of this process may be writing, for a while on a busy machine.
        let own = format!("{PREFIX}{}-", std::process::id());
        let all = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
        let left: Vec<_> =
            all.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own)).collect();
        let begun = std::time::Instant::now();
        while left.iter().any(|entry| entry.path().exists()) {
            assert!(begun.elapsed().as_secs() < 900, "the file has no name");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn row_groups_fit_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        let names = |n: usize| (0..n).map(|column| format!("x{column}")).collect::<Vec<_>>().join(",");
        let config = |mib: usize| {
            let sets = [
                format!("data.train={}", path.display()),
                "data.target=x0".to_owned(),
                "data.task=regression".to_owned(),
                "data.shuffle_mode=blocks".to_owned(),
                format!("data.loader_memory_mib={mib}"),
            ];
            Config::load(None, &sets).unwrap()
        };
        // As a single row group, they would take 4.8 MB twice.
        let mut text = names(20) + "\n";
        for row in 0..60_000 {
            let cells: Vec<String> = (0..20).map(|column| ((row * (column + 1)) % 100).to_string()).collect();
            writeln!(text, "{}", cells.join(",")).unwrap();
        }
        fs::write(&path, text).unwrap();
        let [want, got] = [64, 2].map(|mib| SourceSpec::train(&config(mib).data).open().unwrap());
        assert!(want.block_ends().is_none() && got.block_ends().is_some_and(|ends| ends.len() > 1));
        let rows: Vec<usize> = (0..60_000).step_by(7).collect();
        assert_eq!(gathered(&*got, &rows), gathered(&*want, &rows));
        // More columns than fit: the user has no file of row groups to convert.
        let row = format!("{}\n", vec!["1"; 3000].join(","));
        fs::write(&path, names(3000) + "\n" + &row.repeat(300)).unwrap();
        let error = SourceSpec::train(&config(1).data).open().unwrap_err();
        let message = ddp_kernels::hint::with_hint(&error);
        assert!(message.contains("row group") && message.contains("hint: raise the limit"), "{message}");
    }

    #[test]
    fn rows_that_are_drawn_from_all_over_the_file_name_the_way_out() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        fs::write(&path, "x,y\n".to_owned() + &"0.25,1\n0.5,0\n".repeat(200_000)).unwrap();
        let sets = [
            format!("data.train={}", path.display()),
            "data.target=y".to_owned(),
            "data.loader_memory_mib=1".to_owned(),
        ];
        let config = Config::load(None, &sets).unwrap();
        let error = load(&config, &World::single()).unwrap_err();
        let message = ddp_kernels::hint::with_hint(error.error().unwrap());
        assert!(message.contains("data.shuffle_mode"), "{message}");
    }

    #[test]
    fn folders_of_killed_processes_are_removed_and_those_in_use_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let (in_use, lock) = private_folder(folder.path()).unwrap();
        let (left, killed) = private_folder(folder.path()).unwrap();
        assert_ne!(in_use, left);
        drop(killed);
        let other = folder.path().join("ddp-train-notes");
        fs::create_dir(&other).unwrap();
        remove_left_over(folder.path());
        assert!(in_use.exists() && !left.exists() && other.exists());
        drop(lock);
    }
}
