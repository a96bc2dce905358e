//! Rows and types are the same in Parquet, from any format and for any division into files; a failed conversion leaves no files.

mod categories;
mod places;
mod types;

use std::fs;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use arrow_array::builder::{Float64Builder, ListBuilder};
use arrow_array::{Array as _, ArrayRef, Int16Array, Int64Array, RecordBatch, StringArray};
use clap::Parser as _;
use ddp::data::batch::BatchMut;
use ddp::data::{Dataset, TargetLayout};
use ddp_kernels::{DType, Device, Tensor};
use ddp_tables::formats::write::Block;
use ddp_tables::io;
use ddp_tables::source::SourceSpec;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use super::source::CHUNK_BYTES;
use super::*;
use crate::cli::{Cli, Command, DataCommand};
use crate::report::progress::ProgressChoice;

fn run(args: &ConvertArgs) -> Result<String> {
    super::run(args, Meter::none())
}

fn args(words: &[&str]) -> ConvertArgs {
    let cli = Cli::try_parse_from(["ddp-train", "data", "convert"].iter().chain(words)).unwrap();
    let Command::Data(DataCommand::Convert(args)) = cli.command else { panic!() };
    ConvertArgs { progress: ProgressChoice::None, ..*args }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[track_caller]
fn assert_refused(words: &[&str], parts: &[&str]) {
    let message = run(&args(words)).expect_err("refused").to_string();
    for part in parts.iter().chain(&["hint: "]) {
        assert!(message.contains(part), "{part}: {message}");
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Arguments that describe rows of a task in a format, as config keys or as command arguments.
fn keys(path: &Path, task: &str, is_weighted: bool) -> Vec<(&'static str, String)> {
    let targets: &[&str] = if task == "classification" { &["kind"] } else { &["a", "b"] };
    let mut keys = vec![("task", task.to_owned())];
    let beside = |what: &str| text(&path.with_extension(format!("{what}.npy"))).to_owned();
    let weight = match path.extension().unwrap().to_str().unwrap() {
        "npy" => {
            keys.push(("labels", beside("labels")));
            beside("weights")
        }
        "npz" | "safetensors" => "weights".to_owned(),
        _ => "w".to_owned(),
    };
    keys.extend(targets.iter().map(|target| ("target", (*target).to_owned())));
    keys.extend(is_weighted.then_some(("weight", weight)));
    keys
}

/// Opens rows; arrays have no names of targets.
fn open(path: &Path, keys: &[(&str, String)]) -> Arc<dyn Dataset> {
    let targets: Vec<_> = keys.iter().filter(|(key, _)| *key == "target").map(|(_, target)| target).collect();
    let mut sets: Vec<String> = keys
        .iter()
        .filter(|(key, _)| *key != "target")
        .map(|(key, value)| format!("data.{key}={value:?}"))
        .collect();
    sets.push(format!("data.train={path:?}"));
    if !targets.is_empty() {
        sets.push(format!("data.target={targets:?}"));
    }
    let config = Config::load(None, &sets).unwrap();
    SourceSpec::train(&config.data).open().unwrap()
}

/// Features, targets and weights of some rows, as f32.
fn gathered(dataset: &dyn Dataset, rows: &[usize]) -> (Vec<f32>, Vec<f32>, Option<Vec<f32>>) {
    let layout = dataset.layout();
    let zeros = |dims: &[usize], dtype| Tensor::zeros(dims, dtype, Device::Cpu).unwrap();
    let mut x = zeros(&[rows.len(), layout.n_features()], layout.dtype);
    let mut targets = zeros(&layout.targets.dims(rows.len()), layout.targets.dtype());
    let mut weights = layout.has_weights.then(|| zeros(&[rows.len()], DType::F32));
    let weights_out = weights.as_mut().map(Tensor::view_mut);
    let out = BatchMut { x: x.view_mut(), targets: targets.view_mut(), weights: weights_out };
    dataset.gather(rows, out).unwrap();
    let floats = |tensor: &Tensor| tensor.to_dtype(DType::F32).unwrap().to_vec::<f32>().unwrap();
    (floats(&x), floats(&targets), weights.as_ref().map(floats))
}

type Rows = (Vec<u32>, Vec<u32>, Option<Vec<u32>>);

/// The bits of the values of all rows.
fn bits(dataset: &dyn Dataset) -> Rows {
    let (x, targets, weights) = gathered(dataset, &(0..dataset.len()).collect::<Vec<_>>());
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    (bits(x), bits(targets), weights.map(bits))
}

/// Arguments that convert `from` to `to`.
fn words(from: &Path, to: &Path, keys: &[(&str, String)]) -> Vec<String> {
    let mut words = vec![text(from).to_owned(), text(to).to_owned()];
    words.extend(keys.iter().flat_map(|(key, value)| [format!("--{key}"), value.clone()]));
    words
}

fn convert_rows(words: &[String]) -> Result<String> {
    run(&args(&words.iter().map(String::as_str).collect::<Vec<_>>()))
}

/// A table of `n_rows` rows with floats of all magnitudes.
fn table(path: &Path, task: &str, is_weighted: bool, n_rows: usize) {
    let mut state = 1u32;
    let mut random = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state
    };
    let mut lines = String::from(if task == "classification" { "x,\"y, z\",kind" } else { "x,\"y, z\",a,b" });
    lines.push_str(if is_weighted { ",w\n" } else { "\n" });
    for _ in 0..n_rows {
        let mut number = || loop {
            let value = f32::from_bits(random());
            if value.is_finite() {
                return value;
            }
        };
        let features = format!("{:e},{}", number(), number());
        let targets = match task {
            "classification" => format!("{}", random() >> 29),
            "regression" => format!("{:e},{}", -0.0f32, f32::from(random() as u16)),
            _ => format!("{},{}", random() >> 31, random() >> 31),
        };
        let weight = if is_weighted { format!(",{}", (random() >> 20) as f32 / 7.0) } else { String::new() };
        lines.push_str(&format!("{features},{targets}{weight}\n"));
    }
    fs::write(path, lines).unwrap();
}

/// Writes rows as arrays: features, labels and weights.
fn as_arrays(rows: &dyn Dataset, path: &Path) {
    let n_rows = rows.len();
    let (x, targets, weights) = gathered(rows, &(0..n_rows).collect::<Vec<_>>());
    let tensor = |values: &[f32]| {
        let dims = if values.len() == n_rows { vec![n_rows] } else { vec![n_rows, values.len() / n_rows] };
        Tensor::from_slice(values, &dims, Device::Cpu).unwrap()
    };
    let targets = tensor(&targets);
    let is_class = matches!(rows.layout().targets, TargetLayout::Classes { .. });
    let targets = if is_class { targets.to_dtype(DType::I64).unwrap() } else { targets };
    let mut arrays = vec![("features", tensor(&x)), ("labels", targets)];
    arrays.extend(weights.map(|weights| ("weights", tensor(&weights))));
    let named: Vec<_> = arrays.iter().map(|(name, tensor)| (*name, tensor)).collect();
    match path.extension().unwrap().to_str().unwrap() {
        "npz" => io::write_npz(path, &named).unwrap(),
        "safetensors" => ddp::io::write_safetensors(path, &named).unwrap(),
        _ => {
            for (name, tensor) in named {
                let other = path.with_extension(format!("{name}.npy"));
                io::write_npy(if name == "features" { path } else { &other }, tensor).unwrap();
            }
        }
    }
}

/// Names and cells of a table, as `data show` prints them.
fn cells(path: &Path) -> Vec<Vec<String>> {
    let config = Config::load(None, &[format!("data.train={path:?}")]).unwrap();
    let spec = SourceSpec::train(&config.data);
    let (files, format) = files_and_format(&spec).unwrap();
    let Reader::Table(format) = &format.reader else { panic!("a table") };
    let mut reader = CellReader::open(&files[0], format, &spec).unwrap();
    let mut rows = vec![reader.columns().names.clone()];
    while let Some(record) = reader.record().unwrap() {
        rows.push(record.cells().map(|cell| String::from_utf8_lossy(cell).into_owned()).collect());
    }
    rows
}

/// Rows of text without quotes.
fn rows_of(csv: &str) -> Vec<Vec<String>> {
    csv.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect()
}

#[test]
fn rows_are_the_same_bit_for_bit_from_any_format() {
    for (task, is_weighted) in
        [("classification", false), ("classification", true), ("regression", true), ("multilabel", false)]
    {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let first = at("first.csv");
        table(&first, task, is_weighted, 300);
        let rows = open(&first, &keys(&first, task, is_weighted));
        let expected = bits(&*rows);
        fs::write(
            at("from.tsv"),
            fs::read_to_string(&first).unwrap().replace("\"y, z\"", "yz").replace(',', "\t"),
        )
        .unwrap();
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(&fs::read(&first).unwrap()).unwrap();
        fs::write(at("from.csv.gz"), packed.finish().unwrap()).unwrap();
        for name in ["from.npy", "from.npz", "from.safetensors"] {
            as_arrays(&*rows, &at(name));
        }
        for name in ["first.csv", "from.tsv", "from.csv.gz", "from.npy", "from.npz", "from.safetensors"] {
            let (from, to, again) = (at(name), at("to.parquet"), at("again.parquet"));
            let keys_from = keys(&from, task, is_weighted);
            let mut keys_to = keys(&to, task, is_weighted);
            if name.contains("np") || name.ends_with("safetensors") {
                keys_to
                    .iter_mut()
                    .filter(|(key, _)| *key == "weight")
                    .for_each(|(_, name)| *name = "weight".to_owned());
            }
            for (from, to, keys) in [(&from, &to, &keys_from), (&to, &again, &keys_to)] {
                let mut words = words(from, to, keys);
                words.push("--overwrite".to_owned());
                convert_rows(&words).unwrap();
                assert!(
                    bits(&*open(to, &keys_to)) == expected,
                    "{task} {} to {}",
                    from.display(),
                    to.display()
                );
            }
        }
        let left: Vec<_> = names_in(folder.path()).into_iter().filter(|name| name.starts_with('.')).collect();
        assert_eq!(left, [""; 0]);
    }
}

#[test]
fn parts_hold_the_same_rows() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first.csv");
    table(&first, "classification", true, 1000);
    let keys = keys(&first, "classification", true);
    let expected = bits(&*open(&first, &keys));
    // A folder that does not exist yet.
    let parts = folder.path().join("parts/");
    let mut in_parts = words(&first, &parts, &keys);
    in_parts.extend(["--rows-per-file", "300"].map(str::to_owned));
    assert!(convert_rows(&in_parts).unwrap().starts_with("1,000 rows in 4 files, "));
    assert!(parts.join("part-00003.parquet").exists());
    assert!(bits(&*open(&parts, &keys)) == expected);
    assert_refused(&in_parts.iter().map(String::as_str).collect::<Vec<_>>(), &["part-00000.parquet` exists"]);
    // Fewer parts replace all former ones.
    in_parts.extend(["--overwrite"].map(str::to_owned));
    in_parts[words(&first, &parts, &keys).len() + 1] = "600".to_owned();
    convert_rows(&in_parts).unwrap();
    assert_eq!(names_in(&parts), ["part-00000.parquet", "part-00001.parquet"]);
    assert!(bits(&*open(&parts, &keys)) == expected);

    let mut numbered = words(&first, &folder.path().join("rows.parquet"), &keys);
    numbered.extend(["--rows-per-file", "400"].map(str::to_owned));
    convert_rows(&numbered).unwrap();
    let pattern = folder.path().join("rows-*.parquet");
    assert!(bits(&*open(&pattern, &keys)) == expected);
    assert!(folder.path().join("rows-00002.parquet").exists());
}

#[test]
fn no_more_than_a_chunk_is_held() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let first = at("first.csv");
    let row = "1.5,".repeat(99) + "0\n";
    let header: Vec<String> = (0..99).map(|i| format!("x{i}")).collect();
    let rows = format!("{},label\n{}{}", header.join(","), row.repeat(7_999), row.replace(",0", ",1"));
    fs::write(&first, rows).unwrap();
    let rows = open(&first, &[]);
    for name in ["rows.npy", "rows.npz", "rows.safetensors"] {
        as_arrays(&*rows, &at(name));
    }
    run(&args(&[text(&first), text(&at("rows.parquet"))])).unwrap();
    for name in ["first.csv", "rows.parquet", "rows.npy", "rows.npz", "rows.safetensors"] {
        let path = at(name);
        let mut given = args(&[text(&path), "out.parquet"]);
        if name.ends_with(".npy") {
            given.labels = Some(text(&path.with_extension("labels.npy")).to_owned());
        }
        let config = Config::load(None, &sets(&given)).unwrap();
        let labels = given.labels.as_deref();
        let input = Input { data: &config.data, labels, side: SplitSide::Train, has_target: false };
        let mut source = Source::open(&input).unwrap();
        let (mut n_rows, mut largest) = (0, 0);
        while let Some(chunk) = source.next(usize::MAX).unwrap() {
            n_rows += chunk.n_rows;
            let n_bytes = |block: &Block| match block {
                Block::Numbers(numbers) => numbers.bytes.len(),
                Block::Arrow(array) => array.to_data().get_slice_memory_size().unwrap(),
                _ => panic!("all columns are numbers"),
            };
            largest = largest.max(chunk.blocks.iter().map(n_bytes).sum());
        }
        // Rows of 6.4 MB.
        assert!(n_rows == 8_000 && largest <= CHUNK_BYTES + CHUNK_BYTES / 10, "{name}: {largest}");
        assert!(source.fraction().is_none_or(|part| part > 0.999), "{name}");
    }
}

#[test]
fn tables_need_no_target() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let (first, out) = (at("first.csv"), at("rows.parquet"));
    fs::write(&first, "species,size,note\nsetosa,1.50,\nvirginica,,x\n").unwrap();
    run(&args(&[text(&first), text(&out)])).unwrap();
    assert_eq!(cells(&out), rows_of("species,size,note\nsetosa,1.5,\nvirginica,,x\n"));
    let message =
        run(&args(&[text(&first), text(&out), "--target", "kind", "--overwrite"])).unwrap_err().to_string();
    assert!(message.contains("kind"), "{message}");
}

#[test]
fn training_and_evaluation_rows_are_both_converted() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let x = |values: &[f32]| Tensor::from_slice(values, &[values.len() / 2, 2], Device::Cpu).unwrap();
    let y = |values: &[i64]| Tensor::from_slice(values, &[values.len()], Device::Cpu).unwrap();
    let arrays = [
        ("x_train", x(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
        ("y_train", y(&[0, 1, 0])),
        ("x_test", x(&[7.0, 8.0])),
        ("y_test", y(&[1])),
    ];
    let npz = at("both.npz");
    io::write_npz(&npz, &arrays.each_ref().map(|(name, array)| (*name, array))).unwrap();
    let (out, of_eval) = (at("out.parquet"), at("out.eval.parquet"));
    let said = run(&args(&[text(&npz), text(&out)])).unwrap();
    assert!(said.contains("train: 3 rows in") && said.contains("eval: 1 rows in"), "{said}");
    assert_eq!(cells(&out), rows_of("f0,f1,label\n1,2,0\n3,4,1\n5,6,0\n"));
    assert_eq!(cells(&of_eval), rows_of("f0,f1,label\n7,8,1\n"));
    assert!(run(&args(&[text(&npz), text(&out)])).unwrap_err().to_string().contains("exists"));

    let parts = format!("{}/", at("parts").display());
    run(&args(&[text(&npz), &parts])).unwrap();
    assert!(at("parts/part-00000.parquet").exists() && at("parts/eval/part-00000.parquet").exists());
    let only = at("only.parquet");
    run(&args(&[text(&npz), text(&only), "--subset", "eval"])).unwrap();
    assert_eq!(cells(&only), rows_of("f0,f1,label\n7,8,1\n"));
    let words = [text(&out), text(&only), "--split", "eval", "--overwrite"];
    let message = run(&args(&words)).unwrap_err().to_string();
    assert!(message.contains("holds no rows for evaluation"), "{message}");
}
