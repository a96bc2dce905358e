//! The reader against one that takes every row through the `csv` crate: the same rows, or the same error.

use std::fs::{self, File};
use std::io::{self, BufReader, Read, Seek as _, SeekFrom, Write as _};
use std::thread;

use ::csv::{ByteRecord, Position, ReaderBuilder};
use ddp::config::{Config, Delimiter};
use ddp::data::DataError;
use ddp_kernels::cpu::threads::join_pool;
use proptest::prelude::*;

use super::*;
use crate::formats::error::CsvError;
use crate::formats::table::csv;
use crate::formats::table::source::Source;

fn open(path: &Path, spec: &SourceSpec<'_>) -> Result<TextRows> {
    match csv::open(path, &spec.read_options())? {
        Source::Text(source) => TextRows::open(path, source, spec),
        #[cfg(feature = "parquet")]
        Source::Batches(_) => unreachable!("CSV is text"),
    }
}

/// Rows of the file at `path`, or the message of what is wrong with it, cell by cell.
fn reference(path: &Path, spec: &SourceSpec<'_>) -> Result<TableRows, String> {
    let opened = open(path, spec).map_err(|error| error.to_string())?;
    let (plan, notation) = (opened.plan().clone(), opened.notation.clone());
    let given = if spec.data.delimiter == Delimiter::Semicolon { b';' } else { b',' };
    let delimiter = opened.source.delimiter().unwrap_or(given);
    let file = File::open(path).unwrap();
    let mut builder = ReaderBuilder::new();
    builder.flexible(true).buffer_capacity(1 << 20).delimiter(delimiter);
    let mut reader = builder.from_reader(file);
    reader.byte_headers().unwrap();
    let mut rows = TableRows::new(&plan, spec);
    let mut record = ByteRecord::new();
    while reader.read_byte_record(&mut record).unwrap() {
        let line = || line_of(path, record.position());
        if is_unclosed(path, record.position().unwrap(), delimiter) {
            return Err(CsvError::QuoteUnclosed { path: path.to_owned(), line: line() }.to_string());
        }
        if record.len() != plan.names.len() {
            let (expected, got) = (plan.names.len(), record.len());
            return Err(CsvError::Ragged { path: path.to_owned(), line: line(), expected, got }.to_string());
        }
        let row = rows.begin_row();
        for ((bytes, role), name) in record.iter().zip(&plan.roles).zip(&plan.names) {
            cell::put(&mut rows, row, *role, bytes, &notation).map_err(|problem| {
                let cells = record.iter().zip(&plan.roles).zip(&plan.names);
                let cells = cells.map(|((cell, role), name)| (name.as_str(), *role, cell));
                error_of_cell(path, line(), name, problem, cells, &notation).to_string()
            })?;
        }
        let column = if plan.names.iter().any(|name| name == "label") { "label" } else { "" };
        rows.set_place(|| format!("data file `{}`: line {}, column \"{column}\"", path.display(), line()));
    }
    Ok(rows)
}

/// Line, from 1, at which the record starts; `position` is before the empty lines in front of it.
fn line_of(path: &Path, position: Option<&Position>) -> u64 {
    let position = position.unwrap();
    let mut file = File::open(path).unwrap();
    file.seek(SeekFrom::Start(position.byte())).unwrap();
    let bytes = BufReader::new(file).bytes().map(Result::unwrap);
    let blank = bytes.take_while(|byte| matches!(byte, b'\r' | b'\n'));
    position.line() + blank.filter(|&byte| byte == b'\n').count() as u64
}

/// Whether the file ends inside quotes of the record that starts at `position`.
fn is_unclosed(path: &Path, position: &Position, delimiter: u8) -> bool {
    let text = fs::read(path).unwrap();
    let text = &text[position.byte() as usize..];
    let blank = text.iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
    let (mut is_quoted, mut is_cell_start) = (false, true);
    let mut at = blank;
    while at < text.len() {
        let byte = text[at];
        if is_quoted {
            match (byte, text.get(at + 1)) {
                (b'"', Some(b'"')) => at += 1,
                (b'"', _) => is_quoted = false,
                _ => {}
            }
        } else if byte == b'"' && is_cell_start {
            is_quoted = true;
        } else if matches!(byte, b'\r' | b'\n') {
            return false;
        }
        is_cell_start = !is_quoted && byte == delimiter;
        at += 1;
    }
    is_quoted
}

/// Gives a few bytes at a time, as a pipe may.
struct Drops(Box<dyn Read + Send>, usize);

impl Read for Drops {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.1 = self.1 % 7 + 1;
        let n = self.1.min(out.len());
        self.0.read(&mut out[..n])
    }
}

/// The rows after `n_skipped` that are skipped, from blocks of `block_bytes`.
fn read_blocks(
    path: &Path,
    spec: &SourceSpec<'_>,
    block_bytes: usize,
    n_skipped: usize,
) -> Result<TableRows, String> {
    let mut source: Box<dyn Read + Send> = Box::new(File::open(path).unwrap());
    if block_bytes < 100 {
        source = Box::new(Drops(source, 0));
    }
    let read = || {
        let source = csv::from_text(source, block_bytes, path, &spec.read_options())?;
        let mut reader = TextRows::open(path, source, spec)?;
        let mut rows = TableRows::new(reader.plan(), spec);
        let mut left = n_skipped;
        while left > 0 {
            left -= reader.skip(left)?;
        }
        while reader.read(&mut rows, 3)? > 0 {}
        Ok(rows)
    };
    read().map_err(|error: DataError| error.to_string())
}

fn config(sets: &[&str]) -> Config {
    Config::load(None, &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>()).unwrap()
}

/// Bits of everything that was read.
fn shown(rows: Result<TableRows, String>) -> Result<String, String> {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    rows.map(|rows| {
        let (features, weights) = (bits(&rows.features), rows.weights.as_ref().map(|weights| bits(weights)));
        let categories: Vec<_> = rows.vocabularies.iter().map(|vocabulary| vocabulary.values()).collect();
        format!("{} {features:?} {:?} {weights:?} {categories:?}", rows.n_rows, rows.targets)
    })
}

const SETS: &[&[&str]] = &[
    &[],
    &["data.task=regression", "data.target=[\"label\", \"b\"]"],
    &["data.missing=mean", "data.categorical=[\"a\"]", "data.weight=b"],
    &["data.drop=[\"b\"]", "data.missing=zero"],
    &["data.task=multilabel", "data.target=[\"a\", \"label\"]"],
    &["data.categorical=[\"c\", \"b\"]", "data.classes=2"],
    &["data.missing=mean", "data.missing_values=[\"-1\", \"a\"]"],
    &["data.missing=mean", "data.delimiter=;"],
];

fn cell() -> impl Strategy<Value = String> {
    prop_oneof![
        12 => "-?[0-9]{1,3}(\\.[0-9]{1,9})?",
        12 => "[01]",
        2 => "[0-9.eE+-]{1,6}",
        1 => "[ \t]?[0-9]{1,2}[ \t]?",
        1 => "\"[0-9a,\n\r]{0,3}(\"\")?\"?",
        1 => "[a-c\"\r\n ,é]{0,3}",
        2 => "\"[0-9a., ]{0,4}\"",
        1 => prop::sample::select(vec!["", "NA", "NaN", "inf", "?", "-1", "1e39", "12345678901234567890123"])
            .prop_map(str::to_owned),
    ]
}

fn table() -> impl Strategy<Value = String> {
    let line_end =
        || prop::sample::select(vec!["\n", "\n", "\n", "\r\n", "\r\n", "\n\n", "\r", "\n\r\n", "\r\r\n"]);
    let n_cells = prop_oneof![30 => Just(4usize), 1 => 1usize..7];
    let row = (n_cells.prop_flat_map(|n| prop::collection::vec(cell(), n)), line_end())
        .prop_map(|(cells, end)| cells.join(",") + end);
    let header = prop::sample::select(vec![
        "a,b,c,label",
        "\"a\",b, c,label",
        "\u{feff}a,b,label,c",
        "\n\nc,a,b,label",
    ]);
    (header, line_end(), prop::collection::vec(row, 0..8), any::<bool>()).prop_map(
        |(header, end, rows, is_cut)| {
            let text = format!("{header}{end}{}", rows.concat());
            if is_cut { text.trim_end_matches(['\n', '\r']).to_owned() } else { text }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn rows_and_errors_are_those_of_the_csv_crate(text in table(), block_bytes in prop::sample::select(vec![4usize, 16, 99, 4096])) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rows.csv");
        fs::write(&path, &text).unwrap();
        for sets in SETS {
            let config = config(sets);
            let spec = SourceSpec::train(&config.data);
            let (want, got) = (reference(&path, &spec), read_blocks(&path, &spec, block_bytes, 0));
            if let Ok(want) = &want {
                let n_skipped = (text.len() % 4).min(want.n_rows);
                let rest = read_blocks(&path, &spec, block_bytes, n_skipped).unwrap();
                prop_assert_eq!(rest.n_rows, want.n_rows - n_skipped, "{:?} {:?}", sets, text);
                if want.vocabularies.is_empty() {
                    let bits = |rows: &TableRows, first: usize| -> Vec<u32> {
                        rows.features[first * rows.n_features..].iter().map(|value| value.to_bits()).collect()
                    };
                    prop_assert_eq!(bits(&rest, 0), bits(want, n_skipped), "{:?} {:?}", sets, text);
                }
            }
            prop_assert_eq!(shown(got), shown(want), "{:?} {:?}", sets, text);
        }
    }
}

/// Enough rows for several threads. Every `odd_every`-th is not plain; the last one has a wrong cell on request.
fn long_table(odd_every: usize, is_wrong: bool) -> String {
    let odd = [
        "\n7,0.5,u,1\n",
        "\"-3\",1e3,v,0\n",
        "1,,w,1\n",
        "5,6,\"x,\"\"y\",0\n",
        "2,0.25,z,1\r\n",
        "1,2,3,007\n",
    ];
    let mut text = "a,b,c,label\n".to_owned();
    for row in 1..=20_000usize {
        if row % odd_every == 0 {
            text += odd[row / odd_every % odd.len()];
        } else {
            text += &format!(
                "{},-{}.{:03},k{},{}\n",
                row * 7919 % 1009,
                row % 13,
                row * 31 % 1000,
                row % 17,
                row % 2
            );
        }
    }
    text + if is_wrong { "1,2x,k1,0\n" } else { "" }
}

#[test]
fn rows_and_errors_are_the_same_on_any_number_of_threads() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    let config = config(&["data.missing=mean", "data.categorical=[\"c\"]"]);
    for (odd_every, is_wrong) in
        [(usize::MAX, false), (usize::MAX, true), (6007, false), (101, true), (3, false)]
    {
        fs::write(&path, long_table(odd_every, is_wrong)).unwrap();
        let spec = SourceSpec::train(&config.data);
        let want = shown(reference(&path, &spec));
        assert_eq!(want.is_err(), is_wrong);
        for n_threads in [1, 2, 5] {
            let read = || {
                join_pool(n_threads).unwrap();
                let mut reader = open(&path, &spec).unwrap();
                let mut rows = TableRows::new(reader.plan(), &spec);
                while reader.read(&mut rows, 1 << 15).map_err(|error| error.to_string())? > 0 {}
                Ok(rows)
            };
            let got = thread::scope(|scope| scope.spawn(read).join().unwrap());
            assert!(shown(got) == want, "odd rows every {odd_every} on {n_threads} threads");
        }
    }
}

/// A file of about `mib` MiB, 64 columns of floats or 20 of floats and integers, and the label.
fn speed_file(path: &Path, is_mixed: bool, mib: usize) {
    let mut random = 1u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 40
    };
    let n_columns = if is_mixed { 19 } else { 63 };
    let names: Vec<String> = (0..n_columns).map(|i| format!("c{i}")).collect();
    let mut text = format!("{},label\n", names.join(","));
    while text.len() < mib << 20 {
        for column in 0..n_columns {
            match (is_mixed, column % 3) {
                (true, 0) => text += &format!("{},", next() % 100_000),
                (true, 1) => text += &format!("-{}.{},", next() % 1000, next() % 100),
                _ => text += &format!("0.{:06},", next() % 1_000_000),
            }
        }
        text += &format!("{}\n", next() % 10);
    }
    File::create(path).unwrap().write_all(text.as_bytes()).unwrap();
}

/// Seconds for which this thread has been on a core: other programs do not count.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    stat.split(' ').next().unwrap().parse::<f64>().unwrap() / 1e9
}

/// MB a second of one core. `cargo test --release -p ddp --lib csv_speed -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
#[allow(clippy::print_stdout)]
fn csv_speed() {
    let folder = tempfile::tempdir().unwrap();
    for (is_mixed, what) in [(false, "64 columns of floats"), (true, "20 columns, mixed")] {
        let path = folder.path().join("rows.csv");
        speed_file(&path, is_mixed, 64);
        let size_mb = fs::metadata(&path).unwrap().len() as f64 / 1e6;
        let config = config(&[]);
        let spec = SourceSpec::train(&config.data);
        let mut speeds = [Vec::new(), Vec::new()];
        for _ in 0..7 {
            let start = cpu_seconds();
            let n_want = reference(&path, &spec).unwrap().n_rows;
            speeds[0].push(size_mb / (cpu_seconds() - start));
            let start = cpu_seconds();
            let mut reader = open(&path, &spec).unwrap();
            let mut rows = TableRows::new(reader.plan(), &spec);
            while reader.read(&mut rows, 4096).unwrap() > 0 {}
            speeds[1].push(size_mb / (cpu_seconds() - start));
            assert_eq!(rows.n_rows, n_want);
        }
        let [old, new] = speeds.map(|mut speeds| {
            speeds.sort_by(f64::total_cmp);
            speeds[3]
        });
        println!("{what}: {old:.0} MB/s through the csv crate, {new:.0} MB/s");
    }
}
