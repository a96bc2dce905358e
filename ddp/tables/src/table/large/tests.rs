//! Files written by the library itself: read whole and by row groups, whole and damaged.

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Float32Builder, ListBuilder};
use arrow_array::{types, *};
use ddp::config::{Config, DataFormat};
use ddp::data::datasets::subset::split;
use ddp::data::error::Result;
use ddp::data::order::epoch_order::{BlockLayout, BlockOrder, RowOrder};
use ddp::data::{Dataset, Summary};
use ddp_comm::{HostShare, threads};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;

use crate::formats::Reader;
use crate::formats::table::parquet::ParquetFile;
use crate::formats::table::source::ReadOptions;
use crate::source::SourceSpec;
use crate::table::batches::Columns;
use crate::table::large::blocks::ParquetRows;
use crate::table::large::open::{complete, layout, scratch_bytes};
use crate::testing::{gathered, try_gather};
use crate::{formats, table};

/// Columns in the order of their names.
pub(in crate::table) fn write(path: &Path, columns: Vec<(&str, ArrayRef)>, group_rows: usize) {
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, array)| (name, array, true)),
    );
    let batch = batch.unwrap();
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(group_rows))
        .set_compression(parquet::basic::Compression::SNAPPY)
        .build();
    let mut writer =
        ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

pub(in crate::table) fn open_with(
    source: &Path,
    sets: &[&str],
    memory_bytes: u64,
) -> Result<Arc<dyn Dataset>> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let config = Config::load(None, &sets).unwrap();
    let source = source.display().to_string();
    let spec = SourceSpec { source: &source, memory_bytes, ..SourceSpec::train(&config.data) };
    let Reader::Table(parquet) = &formats::find(DataFormat::Parquet).unwrap().reader else { unreachable!() };
    table::open(&crate::open::files::files_of(&source)?, parquet, &spec)
}

/// Same as [`open_with`], with room for all rows.
pub(in crate::table) fn open_whole(source: &Path, sets: &[&str]) -> Result<Arc<dyn Dataset>> {
    open_with(source, sets, 1 << 30)
}

#[track_caller]
pub(in crate::table) fn assert_refused(result: Result<Arc<dyn Dataset>>, parts: &[&str]) {
    let message = ddp_kernels::hint::with_hint(&result.expect_err("refused"));
    for part in parts.iter().chain(&["hint: "]) {
        assert!(message.contains(part), "{part}: {message}");
    }
}

pub(in crate::table) fn all(dataset: &dyn Dataset) -> (Vec<f32>, Vec<f32>, Option<Vec<f32>>) {
    gathered(dataset, &(0..dataset.len()).collect::<Vec<_>>())
}

/// `n_rows` rows that tell their own number: features x0.. and "city", a label and a weight.
fn numbered(path: &Path, n_rows: usize, first: usize, group_rows: usize) {
    let numbers = || first..first + n_rows;
    let column = |k: usize| {
        Arc::new(Float32Array::from_iter_values(numbers().map(|i| (i * 10 + k) as f32))) as ArrayRef
    };
    let names: Vec<String> = (0..6).map(|k| format!("x{k}")).collect();
    let mut columns: Vec<(&str, ArrayRef)> =
        names.iter().enumerate().map(|(k, name)| (&name[..], column(k))).collect();
    let cities = ["Oslo", "Bern", "Rome"];
    let city: DictionaryArray<types::Int32Type> = numbers().map(|i| cities[i % 3]).collect();
    columns.push(("city", Arc::new(city)));
    columns.push(("label", Arc::new(Int64Array::from_iter_values(numbers().map(|i| (i % 5) as i64)))));
    columns.push(("weight", Arc::new(Float64Array::from_iter_values(numbers().map(|i| i as f64 / 8.0)))));
    write(path, columns, group_rows);
}

const NUMBERED: [&str; 3] = ["data.target=label", "data.weight=weight", "data.categorical=[\"city\"]"];

#[track_caller]
fn assert_numbered(dataset: &dyn Dataset, rows: &[usize]) {
    let (x, labels, weights) = gathered(dataset, rows);
    let weights = weights.unwrap();
    for (n, &i) in rows.iter().enumerate() {
        // Bern 1, Oslo 2, Rome 3.
        let city = [2.0, 1.0, 3.0][i % 3];
        let expected: Vec<f32> = (0..6).map(|k| (i * 10 + k) as f32).chain([city]).collect();
        assert_eq!(x[n * 7..][..7], expected, "row {i}");
        assert_eq!((labels[n], weights[n]), ((i % 5) as f32, i as f32 / 8.0), "row {i}");
    }
}

/// Uneven row groups, and a second file.
fn numbered_files(folder: &Path) {
    numbered(&folder.join("a.parquet"), 1000, 0, 96);
    numbered(&folder.join("b.parquet"), 250, 1000, 70);
}

/// The rows of [`numbered_files`] by row groups, with memory for `n_held` of them and for `n_decodes` at a time; also the bytes of a decode
/// beyond its rows, and all bytes.
fn numbered_blocks(
    folder: &Path,
    [n_held, n_decodes]: [usize; 2],
    slots: Option<&HostShare>,
) -> (ParquetRows, usize, usize) {
    let needs = [&NUMBERED[..], &["data.shuffle_mode=blocks"]].concat();
    let files = [folder.join("a.parquet"), folder.join("b.parquet")];
    let spec_files: Vec<_> =
        files.iter().map(|path| ParquetFile::open(path, &ReadOptions::default()).unwrap()).collect();
    assert_eq!(spec_files[0].group_rows.len(), 11);
    let config = Config::load(None, &needs.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()).unwrap();
    let source = folder.display().to_string();
    let spec = SourceSpec { source: &source, slots, ..SourceSpec::train(&config.data) };
    let opened: Vec<_> = spec_files
        .into_iter()
        .map(|file| (file.clone(), Columns::new(&file.path, &file, &spec).unwrap()))
        .collect();
    let scratch = scratch_bytes(&opened);
    // Rows of 40 bytes.
    let budget = n_decodes * scratch + n_held * 96 * 40;
    let (layout, _) = complete(layout(&opened[0].1, &spec), &opened, &spec).unwrap();
    let spec = SourceSpec { memory_bytes: budget as u64, ..spec };
    (ParquetRows::new(opened, layout, scratch, &spec), scratch, budget)
}

/// All ranks of a host take their rows of each step, window by window, with the next one announced.
#[test]
fn ranks_of_a_host_decode_each_row_group_once() {
    let folder = tempfile::tempdir().unwrap();
    numbered_files(folder.path());
    let (n_ranks, n_epochs, n_groups) = (3, 3, 15);
    let decoded = |memory: [usize; 2]| {
        threads::run(n_ranks, |world| {
            let host = world.share_host(|| None).unwrap().unwrap();
            let (blocks, ..) = numbered_blocks(folder.path(), memory, Some(&host));
            world.group().barrier().unwrap();
            let layout = Arc::new(BlockLayout::new(1250, 40, blocks.block_ends(), 300 * 40));
            for epoch in 0..n_epochs {
                let order = BlockOrder::new(&layout, 3, epoch);
                let rows = RowOrder::Blocks(order.clone());
                let mut next = 0;
                for step in (0..1250).collect::<Vec<_>>().chunks(30) {
                    let end = order.window_of(step[step.len() - 1]) + 2;
                    for window in next..end {
                        blocks.prefetch(&order.window_rows(window).collect::<Vec<_>>());
                    }
                    next = next.max(end);
                    let own = step.iter().skip(world.rank().0).step_by(n_ranks);
                    assert_numbered(&blocks, &own.map(|&i| rows.index(i)).collect::<Vec<_>>());
                    // As the gradients' sum would.
                    world.group().barrier().unwrap();
                }
            }
            blocks.n_decoded()
        })
    };
    // All groups stay.
    let of_ranks = decoded([40, 16]);
    assert_eq!(of_ranks.iter().sum::<usize>(), n_groups, "{of_ranks:?}");
    // Some must go, each when it is of no more use to any rank; one that came late may have to decode it again.
    let of_ranks = decoded([9, 1]);
    let n_decoded = of_ranks.iter().sum::<usize>();
    assert!(n_decoded >= n_groups && n_decoded < 2 * n_groups * n_epochs as usize, "{of_ranks:?}");
}

#[test]
fn rows_are_the_same_whole_and_by_row_groups_and_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    numbered_files(folder.path());
    let whole = open_whole(folder.path(), &NUMBERED).unwrap();
    assert!(whole.block_ends().is_none());
    let rows: Vec<usize> = (0..1250).collect();
    assert_numbered(&*whole, &rows);

    let (blocks, scratch, budget) = numbered_blocks(folder.path(), [3, 1], None);
    assert_eq!(blocks.layout(), whole.layout());
    assert_eq!(blocks.block_ends().unwrap().len(), 15);
    assert_eq!(blocks.len(), 1250);
    assert_numbered(&blocks, &rows);
    assert_numbered(&blocks, &[1249, 0, 500, 0, 96, 95]);

    // In the order of an epoch, with the next window announced, by several threads at a time.
    let order = BlockOrder::new(&Arc::new(BlockLayout::new(1250, 40, blocks.block_ends(), 150 * 40)), 3, 1);
    let positions: Vec<usize> = (0..1250).collect();
    let rows = RowOrder::Blocks(order.clone());
    std::thread::scope(|scope| {
        for part in 0..3 {
            let (order, rows, positions, blocks) = (&order, &rows, &positions, &blocks);
            scope.spawn(move || {
                let mut seen = None;
                for step in positions.chunks(32).skip(part).step_by(3) {
                    let window = order.window_of(step[0]);
                    if seen.replace(window) != Some(window) {
                        blocks.prefetch(&order.window_rows(window + 1).collect::<Vec<_>>());
                    }
                    assert_numbered(blocks, &step.iter().map(|&i| rows.index(i)).collect::<Vec<_>>());
                }
            });
        }
    });
    let peak = blocks.peak_bytes();
    assert!(peak <= budget && peak > scratch, "{peak} bytes of {budget}");
    let fingerprint = blocks.fingerprint().unwrap();
    assert_eq!(fingerprint, blocks.fingerprint().unwrap());

    // Rows are split across row groups.
    let blocks: Arc<dyn Dataset> = Arc::new(blocks);
    let (train, eval) = split(&blocks, 0.2, 1).unwrap();
    train.prefetch(&[0..train.len(), 3..3]);
    let sum = all(&train).1.len() + all(&eval).1.len();
    assert_eq!((sum, train.block_ends().unwrap().last()), (1250, Some(&1000)));
}

#[test]
fn row_groups_are_opened_only_for_an_order_that_suits_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    numbered(&path, 40_000, 0, 2000);
    let memory = 1200 << 10;
    assert_refused(open_with(&path, &NUMBERED, memory), &["data.shuffle_mode", "\"blocks\"", "numpy.save"]);
    let blocks = [&NUMBERED[..], &["data.shuffle_mode=blocks"]].concat();
    assert_refused(open_with(&path, &blocks, 200 << 10), &["largest row group", "row_group_size"]);
    let rows = open_with(&path, &blocks, memory).unwrap();
    assert_eq!(rows.block_ends().unwrap().len(), 20);
    assert_eq!(
        Summary(&*rows).to_string(),
        format!("{}: 40000 rows x 7 features, 5 classes, weighted", path.display())
    );
    let in_order = [&NUMBERED[..], &["data.shuffle=false"]].concat();
    assert!(open_with(&path, &in_order, memory).unwrap().block_ends().is_some());

    // Another file, of the same length.
    let other = folder.path().join("other.parquet");
    fs::copy(&path, &other).unwrap();
    fs::rename(&other, &path).unwrap();
    let message = try_gather(&*rows, &[39_999]).unwrap_err().to_string();
    assert!(message.contains("changed while it was read"), "{message}");
    // No table at all.
    fs::write(&path, b"PAR1").unwrap();
    let message = try_gather(&*rows, &[0]).unwrap_err().to_string();
    assert!(message.contains("changed while it was read"), "{message}");
}

#[test]
fn targets_keep_their_digits_whole_and_by_row_groups() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    let (n_rows, base) = (200_000, 1_700_000_000_000_000_000_i64);
    let x: ArrayRef = Arc::new(Float32Array::from_iter_values((0..n_rows).map(|i| i as f32)));
    let y: ArrayRef = Arc::new(Int64Array::from_iter_values((0..n_rows).map(|i| base + i)));
    write(&path, vec![("x", x), ("y", y)], 2000);
    let sets = ["data.target=[\"y\"]", "data.task=regression", "data.shuffle_mode=blocks"];
    for (memory, is_whole) in [(1 << 30, true), (1200 << 10, false)] {
        let rows = open_with(&path, &sets, memory).unwrap();
        assert_eq!(rows.block_ends().is_none(), is_whole);
        let mut differences = [0.0; 4];
        assert!(rows.gather_target_doubles(&[77_777, 0, 1999, 2000], &[1.7e18], &mut differences).unwrap());
        assert_eq!(differences, [77_777.0, 0.0, 1999.0, 2000.0]);
    }
}

#[test]
fn damaged_files_are_errors_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.parquet");
    numbered(&path, 300, 0, 100);
    let whole = fs::read(&path).unwrap();
    let damaged = folder.path().join("damaged.parquet");
    for len in (0..whole.len()).step_by(97).chain([whole.len() - 1, whole.len() - 8]) {
        fs::write(&damaged, &whole[..len]).unwrap();
        assert_refused(open_whole(&damaged, &NUMBERED), &["damaged.parquet", "Parquet"]);
    }
    // A flipped bit may be in a value; whatever it does, it does not panic.
    let mut n_errors = 0;
    for at in (0..whole.len()).step_by(13) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        fs::write(&damaged, &bytes).unwrap();
        let result = open_whole(&damaged, &NUMBERED).map(|rows| drop(all(&*rows)));
        n_errors += usize::from(result.is_err());
    }
    assert!(n_errors > 50, "{n_errors} errors");
}

/// A kilobyte of zeros may stand for a list of any length.
#[test]
fn lists_longer_than_a_table_has_columns_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("list.parquet");
    let n = 1 << 21;
    let mut lists = ListBuilder::new(Float32Builder::new());
    for _ in 0..2 {
        lists.values().append_slice(&vec![0.0; n]);
        lists.append(true);
    }
    let labels: ArrayRef = Arc::new(Int64Array::from(vec![1, 0]));
    write(&path, vec![("label", labels), ("x", Arc::new(lists.finish()))], 2);
    assert_refused(
        open_whole(&path, &["data.target=label"]),
        &["column \"x\"", "lists of at most 1048576 numbers", &format!("lists of {n} or more"), "npy"],
    );
}

#[test]
fn rows_without_a_target_are_left_out_whole_and_by_row_groups() {
    const N_ROWS: usize = 40_000;
    let numbers = || 0..N_ROWS as i64;
    let is_there = |i: &i64| i % 7 != 3 && i % 1000 != 0;
    let kept = |i: i64| is_there(&i).then_some(i);
    let text = |i: i64| if i % 7 == 3 { Some("") } else { kept(i).map(|i| ["cat", "dog"][i as usize % 2]) };
    let float = |i: i64| if i % 7 == 3 { Some(f64::NAN) } else { kept(i).map(|i| 0.5 + (i % 5) as f64) };
    let texts: StringArray = numbers().map(text).collect();
    let dictionary: DictionaryArray<types::Int32Type> =
        numbers().map(|i| kept(i).map(|i| ["cat", "dog"][i as usize % 2])).collect();
    let whole_floats = numbers().map(|i| float(i).map(|value| value - 0.5));
    let targets: [(&str, ArrayRef); 6] = [
        ("integers", Arc::new(numbers().map(|i| kept(i).map(|i| i % 3)).collect::<Int64Array>())),
        ("truths", Arc::new(numbers().map(|i| kept(i).map(|i| i % 2 == 0)).collect::<BooleanArray>())),
        ("texts", Arc::new(texts)),
        ("dictionary", Arc::new(dictionary)),
        ("whole floats", Arc::new(whole_floats.collect::<Float64Array>())),
        ("quantities", Arc::new(numbers().map(float).collect::<Float64Array>())),
    ];
    let expected: Vec<i64> = numbers().filter(is_there).collect();
    for (name, target) in targets {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.parquet");
        let columns = ["x0", "x1", "x2", "x3", "x4", "x5"];
        let feature = || Arc::new(numbers().map(|i| Some(i as f32)).collect::<Float32Array>()) as ArrayRef;
        let mut columns: Vec<_> = columns.iter().map(|name| (*name, feature())).collect();
        columns.push(("label", target));
        write(&path, columns, 1000);
        let sets = ["data.missing_target=skip", "data.shuffle_mode=blocks", "data.train=rows.parquet"];
        let whole = open_whole(&path, &sets).unwrap();
        let large = open_with(&path, &sets, 900_000).unwrap();
        assert!(whole.block_ends().is_none() && large.block_ends().is_some());
        assert_eq!((whole.layout(), all(&*whole)), (large.layout(), all(&*large)), "{name}");
        assert_eq!(whole.n_without_target(), N_ROWS - expected.len(), "{name}");
        let (x, _, _) = all(&*whole);
        assert!(x.chunks(6).zip(&expected).all(|(x, i)| x[0] == *i as f32), "{name}");
        assert_eq!(x.len(), 6 * expected.len());
        assert_refused(open_whole(&path, &sets[1..]), &["row ", "\"label\"", "`data.missing_target`"]);
    }
}
