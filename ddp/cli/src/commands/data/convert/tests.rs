//! Rows and types are the same in Parquet, from any format and for any division into files; a failed conversion leaves no files.

use std::fs;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use clap::Parser as _;

fn run(args: &ConvertArgs) -> Result<String> {
    super::run(args, Meter::none())
}

use arrow_array::builder::{Float64Builder, ListBuilder};
use arrow_array::{Array as _, ArrayRef, Int16Array, Int64Array, RecordBatch, StringArray};
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
        "safetensors" => io::write_safetensors(path, &named).unwrap(),
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
fn a_failed_conversion_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.csv");
    table(&bad, "classification", false, 5000);
    let good = fs::read_to_string(&bad).unwrap();
    fs::write(&bad, format!("{good}1,1e999,0\n")).unwrap();
    let out = folder.path().join("out.parquet");
    let keys = keys(&bad, "classification", false);
    let message = convert_rows(&words(&bad, &out, &keys)).unwrap_err().to_string();
    assert!(message.contains("line 5002, column \"y, z\""), "{message}");
    let mut parts = words(&bad, &folder.path().join("new/parts/"), &keys);
    parts.extend(["--rows-per-file", "1000"].map(str::to_owned));
    assert!(convert_rows(&parts).is_err());
    assert_eq!(names_in(folder.path()), ["bad.csv"]);

    // Existing files are left unchanged.
    fs::write(&out, b"precious").unwrap();
    assert_refused(&[text(&bad), text(&out), "--target", "kind"], &["out.parquet` exists", "--overwrite"]);
    assert!(run(&args(&[text(&bad), text(&out), "--target", "kind", "--overwrite"])).is_err());
    assert_eq!(fs::read(&out).unwrap(), b"precious");

    // A killed process left a file behind; the file of a live process is kept.
    fs::write(folder.path().join(".out.parquet.4294967294.convert"), b"half").unwrap();
    let live = format!(".out.parquet.{}.convert", 1);
    fs::write(folder.path().join(&live), b"half").unwrap();
    fs::write(&bad, good).unwrap();
    run(&args(&[text(&bad), text(&out), "--target", "kind", "--overwrite"])).unwrap();
    assert_eq!(names_in(folder.path()), [&live[..], "bad.csv", "out.parquet"]);
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

/// Rows of `city`, a category of `first`, as safetensors with the codes and their meaning, and the labels of `first`.
fn with_codes(first: &dyn Dataset, path: &Path) {
    let (x, targets, _) = gathered(first, &(0..first.len()).collect::<Vec<_>>());
    let layout = first.layout();
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let targets: Vec<u8> = targets.iter().flat_map(|class| (*class as i64).to_le_bytes()).collect();
    let x = bytes(&x);
    let view = |dtype, shape: &[usize], bytes| {
        safetensors::tensor::TensorView::new(dtype, shape.to_vec(), bytes).unwrap()
    };
    let tensors = [
        ("features", view(safetensors::Dtype::F32, &[first.len(), layout.n_features()], &x)),
        ("labels", view(safetensors::Dtype::I64, &[first.len()], &targets)),
    ];
    let metadata = [
        ("ddp_train.features", serde_json::to_string(&layout.features).unwrap()),
        ("ddp_train.categories", serde_json::to_string(&layout.categories).unwrap()),
    ];
    let metadata = metadata.into_iter().map(|(key, text)| (key.to_owned(), text)).collect();
    fs::write(path, safetensors::serialize(tensors, Some(metadata)).unwrap()).unwrap();
}

fn open_categorical(path: &Path) -> Arc<dyn Dataset> {
    let sets = [format!("data.train={path:?}"), "data.categorical=[\"city\"]".to_owned()];
    SourceSpec::train(&Config::load(None, &sets).unwrap().data).open().unwrap()
}

#[test]
fn categories_keep_their_texts() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let first = at("first.csv");
    fs::write(&first, "size,city,label\n1,Rome,0\n2,\"Bern, BE\",1\n3,,1\n4,Rome,0\n").unwrap();
    let expected = open_categorical(&first);
    let stored = at("rows.safetensors");
    with_codes(&*expected, &stored);
    let keys = [("categorical", "city".to_owned())];
    for (from, keys) in [(&first, &keys[..]), (&first, &[]), (&stored, &[])] {
        let mut words = words(from, &at("rows.parquet"), keys);
        words.push("--overwrite".to_owned());
        convert_rows(&words).unwrap();
        let rows = open_categorical(&at("rows.parquet"));
        assert_eq!(rows.layout().categories, expected.layout().categories);
        assert_eq!(bits(&*rows), bits(&*expected));
    }
    // Numbers that are categories are texts if they are named.
    fs::write(&first, "size,city,label\n1,30,0\n2,07,1\n").unwrap();
    convert_rows(&words(&first, &at("texts.parquet"), &keys)).unwrap();
    assert_eq!(cells(&at("texts.parquet"))[1..], rows_of("1,30,0\n2,07,1\n"));
}

#[test]
fn rows_of_any_format_have_the_categories_of_a_file_with_codes() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Values that could be mistaken for codes of categories.
    fs::write(at("first.csv"), "size,city,label\n1,30,0\n2,1,1\n3,2,1\n4,30,0\n").unwrap();
    fs::write(at("eval.csv"), "size,city,label\n5,30,0\n6,7,1\n").unwrap();
    with_codes(&*open_categorical(&at("first.csv")), &at("rows.safetensors"));
    let plain = open(&at("eval.csv"), &[]);
    for name in ["plain.npy", "plain.safetensors"] {
        as_arrays(&*plain, &at(name));
    }
    let load = |train: &str, eval: &str, more: &[&str]| {
        let mut sets = vec![format!("data.train={:?}", at(train)), format!("data.eval={:?}", at(eval))];
        sets.extend(more.iter().map(|set| (*set).to_owned()));
        let config = Config::load(None, &sets).unwrap();
        ddp_tables::load(&config, &ddp_comm::World::single())
            .map_err(|stop| crate::exit::Stop::from(stop).to_string())
    };
    let categorical = ["data.categorical=[\"city\"]"];
    let expected = bits(&*load("first.csv", "eval.csv", &categorical).unwrap().eval.unwrap());
    convert_rows(&words(&at("eval.csv"), &at("texts.parquet"), &[("categorical", "city".to_owned())]))
        .unwrap();
    for table in ["eval.csv", "texts.parquet"] {
        let eval = load("rows.safetensors", table, &[]).unwrap().eval.unwrap();
        assert!(bits(&*eval) == expected, "{table}");
    }

    // An array does not describe its columns, but it has no categories.
    let labels = format!("data.eval_labels={:?}", at("plain.labels.npy"));
    let message = load("rows.safetensors", "plain.npy", &[&labels]).unwrap_err();
    assert!(message.contains("\"city\" holds categories in") && message.contains("hint: "), "{message}");
    let labels = format!("data.labels={:?}", at("plain.labels.npy"));
    let message = load("plain.npy", "rows.safetensors", &[&labels]).unwrap_err();
    assert!(message.contains("\"city\" holds categories in"), "{message}");
    let message = load("rows.safetensors", "plain.safetensors", &[]).unwrap_err();
    assert!(message.contains("\"city\" holds categories in"), "{message}");
}

#[test]
fn missing_values_are_kept_and_infinite_ones_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("first.csv"), "x,y,label\n1,NA,0\n,7,1\n").unwrap();
    run(&args(&[text(&at("first.csv")), text(&at("rows.parquet"))])).unwrap();
    assert_eq!(cells(&at("rows.parquet")), rows_of("x,y,label\n1,,0\n,7,1\n"));
    let array = |values: &[f32]| {
        let x = Tensor::from_slice(values, &[2, 2], Device::Cpu).unwrap();
        let labels = Tensor::from_slice(&[0_i64, 1], &[2], Device::Cpu).unwrap();
        io::write_npz(at("rows.npz"), &[("features", &x), ("labels", &labels)]).unwrap();
    };
    array(&[1.0, f32::NAN, f32::NAN, 7.0]);
    run(&args(&[text(&at("rows.npz")), text(&at("of-array.parquet"))])).unwrap();
    let of_array = cells(&at("of-array.parquet"));
    assert_eq!(of_array[0], ["f0", "f1", "label"]);
    let number = |row: usize, column: usize| {
        of_array[row][column].parse::<f64>().ok().filter(|number| !number.is_nan())
    };
    assert_eq!([number(1, 0), number(1, 1), number(2, 0), number(2, 1)], [Some(1.0), None, None, Some(7.0)]);
    array(&[1.0, f32::INFINITY, 2.0, 7.0]);
    assert_refused(&[text(&at("rows.npz")), text(&at("y.parquet"))], &["rows.npz", "inf"]);
}

#[test]
fn places_that_make_no_sense_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&folder.path().join(name)).to_owned();
    let input = "builtin:digits";
    for (name, parts) in [
        ("rows", ["to Parquet, and to nothing else", "in / for a folder"]),
        ("rows.csv", ["to Parquet, and to nothing else", "polars and DuckDB"]),
        ("rows.jsonl.gz", ["to Parquet, and to nothing else", "polars and DuckDB"]),
        ("rows.feather", ["to Parquet, and to nothing else", "polars and DuckDB"]),
        ("rows.npy", ["to Parquet, and to nothing else", "numpy.save"]),
        ("rows.npz", ["to Parquet, and to nothing else", "numpy.save"]),
        ("rows.safetensors", ["to Parquet, and to nothing else", "safetensors.numpy.save_file"]),
        ("rows.parquet.gz", ["to Parquet, and to nothing else", "end its name in .parquet"]),
    ] {
        assert_refused(&[input, &at(name)], &parts);
    }
    let message = run(&args(&[input, &at("none/rows.parquet"), "--target", "x"])).unwrap_err().to_string();
    assert!(message.contains("builtin:digits"), "{message}");
    assert_refused(&[&at("none.csv"), &at("rows.parquet")], &["none.csv` does not exist"]);
    assert_eq!(names_in(folder.path()), [""; 0]);
    let summary = run(&args(&[input, &at("digits.parquet")])).unwrap();
    assert!(summary.starts_with("1,438 rows in 1 file, 0.") && summary.contains(" MB in "), "{summary}");
}

#[test]
fn only_former_parts_are_replaced_and_never_what_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    table(&at("rows.csv"), "classification", false, 20);
    let others =
        ["other.parquet", "part-1.parquet", "part-00001.old.parquet", "part-0000x.parquet", "part-00001.csv"];
    for name in others {
        fs::write(at(name), b"precious").unwrap();
    }
    let out = format!("{}/", folder.path().display());
    let convert = |from: &str, to: &str, more: &[&str]| {
        let from = at(from);
        run(&args(&[&[text(&from), to, "--target", "kind", "--overwrite"], more].concat()))
    };
    for (n_rows, n_parts) in [("5", 4), ("10", 2)] {
        convert("rows.csv", &out, &["--rows-per-file", n_rows]).unwrap();
        let parts: Vec<_> =
            names_in(folder.path()).into_iter().filter(|name| name.starts_with("part-0000")).collect();
        assert_eq!(parts.len(), n_parts + 3, "{parts:?}");
    }
    for name in others {
        assert_eq!(fs::read(at(name)).unwrap(), b"precious", "{name}");
    }
    convert("rows.csv", &out, &[]).unwrap();

    // Numbered files whose names end like those of this command.
    let numbered = ["out-00007.x.parquet", "out-00007.parquet", "out-007.parquet"];
    for name in numbered {
        fs::write(at(name), b"precious").unwrap();
    }
    convert("rows.csv", text(&at("out.parquet")), &["--rows-per-file", "10"]).unwrap();
    assert_eq!(numbered.map(|name| at(name).exists()), [true, false, true]);

    let before = fs::read(at("part-00000.parquet")).unwrap();
    for to in [&out, text(&at("part-00000.parquet"))] {
        let message = convert("part-00000.parquet", to, &[]).unwrap_err().to_string();
        assert!(
            message.contains("part-00000.parquet`, which is an input") && message.contains("hint: "),
            "{message}"
        );
    }
    assert_eq!(fs::read(at("part-00000.parquet")).unwrap(), before);
    let message = run(&args(&[text(&at("rows.csv")), &out])).unwrap_err().to_string();
    assert!(message.contains("part-00000.parquet` exists"), "{message}");
}

#[test]
fn a_code_beyond_the_vocabulary_is_an_unknown_value() {
    let folder = tempfile::tempdir().unwrap();
    let (first, stored) = (folder.path().join("first.csv"), folder.path().join("rows.safetensors"));
    let table = folder.path().join("rows.parquet");
    fs::write(&first, "size,city,label\n1,Rome,0\n5,Bern,1\n").unwrap();
    with_codes(&*open_categorical(&first), &stored);
    let mut bytes = fs::read(&stored).unwrap();
    let at = bytes.windows(4).position(|bytes| bytes == 2.0f32.to_le_bytes()).unwrap();
    for code in [3.0, 1e30, f32::from_bits(0x4eff_ffff)] {
        bytes[at..at + 4].copy_from_slice(&code.to_le_bytes());
        fs::write(&stored, &bytes).unwrap();
        convert_rows(&[&words(&stored, &table, &[])[..], &["--overwrite".to_owned()]].concat()).unwrap();
        assert_eq!(gathered(&*open_categorical(&table), &[0, 1]).0, [1.0, 0.0, 5.0, 1.0]);
    }
}

#[test]
fn tables_keep_their_values_and_types() {
    let mut state = 1u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state ^ (state >> 29)
    };
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut lines = "whole,large,number,truth,text,date,moment,time,kind\n".to_owned();
    for row in 0..200 {
        let number = loop {
            let value = f64::from_bits(random());
            if value.is_finite() {
                break value;
            }
        };
        let mut of = |texts: &[&'static str]| texts[random() as usize % texts.len()].to_owned();
        let texts = [
            of(&["true", "false"]),
            of(&["Bern", "öß \u{1f600}", "NA", "7", "x'y", "true"]),
            of(&["cat", "dog", "True", "3"]),
        ];
        let [truth, text, kind] = texts;
        let cells = [
            (random() as i64).to_string(),
            (random() | 1 << 63).to_string(),
            format!("{number:e}"),
            truth,
            text,
            format!("20{:02}-0{}-1{}", random() % 100, 1 + random() % 9, random() % 10),
            format!("1999-12-31 23:59:{:02}.{:06}", random() % 60, 1 + random() % 999_999),
            format!("0{}:30:00", random() % 10),
            kind,
        ];
        // The last row turns the text column into strings; the second row lacks values.
        let cells: Vec<String> = cells
            .into_iter()
            .enumerate()
            .map(|(column, cell)| match (row, column) {
                (1, 0..8) => String::new(),
                (199, 4) => "late".to_owned(),
                (199, 8) => "cat".to_owned(),
                _ => cell,
            })
            .collect();
        lines += &(cells.join(",") + "\n");
    }
    fs::write(at("first.csv"), &lines).unwrap();
    for (from, to) in [("first.csv", "one.parquet"), ("one.parquet", "other.parquet")] {
        run(&args(&[text(&at(from)), text(&at(to)), "--target", "kind"])).unwrap();
        let (want, got) = (rows_of(&lines), cells(&at(to)));
        assert_eq!((want.len(), &want[0]), (got.len(), &got[0]), "{to}");
        for (row, (want, got)) in want.iter().zip(&got).enumerate().skip(1) {
            for (column, (want, got)) in want.iter().zip(got).enumerate() {
                let is_same = match column {
                    2 if !want.is_empty() => {
                        want.parse::<f64>().unwrap().to_bits() == got.parse::<f64>().unwrap().to_bits()
                    }
                    6 => want.trim_end_matches('0') == got.trim_end_matches('0'),
                    _ => want == got,
                };
                assert!(is_same, "{to}, row {row}, column {column}: {want} became {got}");
            }
        }
    }
    fs::write(at("wide.csv"), "a,label\n9007199254740993,0\n0.5,1\n").unwrap();
    let said = run(&args(&[text(&at("wide.csv")), text(&at("wide.parquet"))])).unwrap();
    assert!(said.contains("1 value was rounded to f64"), "{said}");
}

#[test]
fn columns_of_parquet_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let mut lists = ListBuilder::new(Float64Builder::new());
    lists.append_value([Some(0.1), None]);
    lists.append_null();
    lists.append_value([Some(3.0), Some(1e300)]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("spectrum", Arc::new(lists.finish())),
        ("gaps", Arc::new(Int16Array::from(vec![Some(300), None, Some(-7)]))),
        ("city", Arc::new(StringArray::from(vec!["Rome", "Bern", "Rome"]))),
        ("label", Arc::new(Int64Array::from(vec![0, 1, 0]))),
    ];
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let mut writer =
        ArrowWriter::try_new(File::create(at("in.parquet")).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    run(&args(&[text(&at("in.parquet")), text(&at("out.parquet"))])).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(at("out.parquet")).unwrap()).unwrap();
    let batches: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
    assert_eq!(batches, [batch]);
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
