//! Rows are the same in every format and for any division into files; a failed conversion leaves no files.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Parser as _;

fn run(args: &ConvertArgs) -> Result<String> {
    super::run(args, Meter::none())
}

use ddp::data::Dataset;
use ddp::data::batch::BatchMut;
use ddp_kernels::{DType, Device, Tensor};
use ddp_tables::formats::write::Block;
use ddp_tables::source::SourceSpec;

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
    let name = path.to_string_lossy();
    let targets = if task == "classification" { "kind" } else { "a b" };
    let mut keys = vec![("task", task.to_owned())];
    let is_table = [".csv", ".tsv", ".jsonl", ".parquet", ".feather"].iter().any(|part| name.contains(part));
    if is_table {
        keys.extend(targets.split(' ').map(|target| ("target", target.to_owned())));
    }
    let is_npy = name.ends_with(".npy") || path.join("labels").exists();
    let beside = |what: &str| {
        if path.is_dir() {
            text(&path.join(what)).to_owned()
        } else {
            text(&path.with_extension(format!("{what}.npy"))).to_owned()
        }
    };
    if is_npy {
        keys.push(("labels", beside("labels")));
    }
    if is_weighted {
        let weight = if is_table {
            "w".to_owned()
        } else if is_npy {
            beside("weights")
        } else {
            "weights".to_owned()
        };
        keys.push(("weight", weight));
    }
    keys
}

fn open(path: &Path, keys: &[(&str, String)]) -> std::sync::Arc<dyn Dataset> {
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

fn endings() -> Vec<&'static str> {
    let mut endings = vec!["csv", "csv.gz", "csv.zst", "tsv", "jsonl", "npy", "npz", "safetensors"];
    endings.extend(["parquet", "feather"].into_iter().filter(|_| cfg!(feature = "parquet")));
    endings
}

#[test]
fn rows_are_the_same_bit_for_bit_from_any_format_to_any() {
    for (task, is_weighted) in
        [("classification", false), ("classification", true), ("regression", true), ("multilabel", false)]
    {
        let folder = tempfile::tempdir().unwrap();
        let first = folder.path().join("first.csv");
        table(&first, task, is_weighted, 300);
        let expected = bits(&*open(&first, &keys(&first, task, is_weighted)));
        for from_ending in endings() {
            let from = folder.path().join(format!("from.{from_ending}"));
            convert_rows(&words(&first, &from, &keys(&first, task, is_weighted))).unwrap();
            let rows = open(&from, &keys(&from, task, is_weighted));
            assert!(bits(&*rows) == expected, "{task} {from_ending}");
            if !from_ending.starts_with("np") {
                assert_eq!(rows.layout().features, ["x", "y, z"], "{from_ending}");
            }
            for to_ending in endings() {
                let to = folder.path().join(format!("to.{to_ending}"));
                let mut keys_from = keys(&from, task, is_weighted);
                // Arrays have no names of class indices and weights.
                let is_named = !["npy", "npz", "safetensors"].contains(&from_ending);
                if !is_named && task == "classification" {
                    keys_from.push(("target", "kind".to_owned()));
                }
                if !is_named && task != "classification" && from_ending != "safetensors" {
                    keys_from.extend([("target", "a".to_owned()), ("target", "b".to_owned())]);
                }
                let mut words = words(&from, &to, &keys_from);
                words.push("--overwrite".to_owned());
                convert_rows(&words).unwrap();
                let mut keys_to = keys(&to, task, is_weighted);
                for (key, value) in &mut keys_to {
                    if *key == "weight" && value == "w" && !is_named {
                        *value = "weight".to_owned();
                    }
                }
                assert!(bits(&*open(&to, &keys_to)) == expected, "{task} {from_ending} to {to_ending}");
            }
        }
        let left: Vec<_> = names_in(folder.path()).into_iter().filter(|name| name.starts_with('.')).collect();
        assert_eq!(left, [""; 0]);
    }
}

#[test]
fn parts_hold_the_same_rows() {
    for ending in endings() {
        let folder = tempfile::tempdir().unwrap();
        let first = folder.path().join("first.csv");
        table(&first, "classification", true, 1000);
        let keys_from = keys(&first, "classification", true);
        let expected = bits(&*open(&first, &keys_from));
        // A folder that does not exist yet.
        let parts = folder.path().join("parts/");
        let mut in_parts = words(&first, &parts, &keys_from);
        in_parts.extend(["--to", ending, "--rows-per-file", "300"].map(str::to_owned));
        assert!(convert_rows(&in_parts).unwrap().starts_with("1,000 rows in 4 files, "));
        let named = parts.join(format!("part-00003.{ending}"));
        assert!(named.exists());
        let mut keys_to = keys(&parts, "classification", true);
        if !["npy", "npz", "safetensors"].contains(&ending) {
            keys_to = keys_from.clone();
        }
        assert!(bits(&*open(&parts, &keys_to)) == expected, "{ending}");

        // Fewer parts replace all existing ones, but only on request.
        let last = in_parts.len() - 1;
        in_parts[last] = "600".to_owned();
        let message = convert_rows(&in_parts).unwrap_err().to_string();
        assert!(message.contains("part-0000") && message.contains("--overwrite"), "{message}");
        in_parts.push("--overwrite".to_owned());
        convert_rows(&in_parts).unwrap();
        assert!(!named.exists());
        assert!(bits(&*open(&parts, &keys_to)) == expected, "{ending}");

        // Numbered files.
        let numbered = folder.path().join(format!("rows.{ending}"));
        let mut in_files = words(&first, &numbered, &keys_from);
        in_files.extend(["--mib-per-file", "1"].map(str::to_owned));
        convert_rows(&in_files).unwrap();
        assert!(folder.path().join(format!("rows-00000.{ending}")).exists());
        assert!(convert_rows(&in_files).unwrap_err().to_string().contains("exists"));
    }
}

#[test]
fn a_conversion_that_fails_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.csv");
    table(&bad, "classification", false, 5000);
    let good = fs::read_to_string(&bad).unwrap();
    fs::write(&bad, format!("{good}1,1e999,0\n")).unwrap();
    for ending in endings() {
        let out = folder.path().join(format!("out.{ending}"));
        let message =
            convert_rows(&words(&bad, &out, &keys(&bad, "classification", false))).unwrap_err().to_string();
        assert!(message.contains("line 5002, column \"y, z\""), "{message}");
        let mut parts = words(&bad, &folder.path().join("new/parts/"), &keys(&bad, "classification", false));
        parts.extend(["--to", ending, "--rows-per-file", "1000"].map(str::to_owned));
        assert!(convert_rows(&parts).is_err());
    }
    assert_eq!(names_in(folder.path()), ["bad.csv"]);

    // Existing files are left unchanged.
    let out = folder.path().join("out.npy");
    fs::write(&out, b"precious").unwrap();
    assert_refused(&[text(&bad), text(&out), "--target", "kind"], &["out.npy` exists", "--overwrite"]);
    assert!(run(&args(&[text(&bad), text(&out), "--target", "kind", "--overwrite"])).is_err());
    assert_eq!(fs::read(&out).unwrap(), b"precious");

    // A killed process left a file behind; the file of a live process is kept.
    fs::write(folder.path().join(".out.npy.4294967294.convert"), b"half").unwrap();
    let live = format!(".out.npy.{}.convert", 1);
    fs::write(folder.path().join(&live), b"half").unwrap();
    fs::write(&bad, good).unwrap();
    run(&args(&[text(&bad), text(&out), "--target", "kind", "--overwrite"])).unwrap();
    assert_eq!(names_in(folder.path()), [&live[..], "bad.csv", "out.labels.npy", "out.npy"]);
}

#[test]
fn no_more_than_a_chunk_is_held() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first.csv");
    let row = "1.5,".repeat(99) + "0\n";
    let header: Vec<String> = (0..99).map(|i| format!("x{i}")).collect();
    fs::write(
        &first,
        format!("{},label\n{}{}", header.join(","), row.repeat(7_999), row.replace(",0", ",1")),
    )
    .unwrap();
    // Arrays are read faster than text.
    let stored = folder.path().join("stored.safetensors");
    run(&args(&[text(&first), text(&stored)])).unwrap();
    let mut from = vec![first.clone()];
    for ending in endings() {
        let out = folder.path().join(format!("rows.{ending}"));
        run(&args(&[text(&stored), text(&out)])).unwrap();
        from.push(out);
    }
    for path in from {
        let mut given = args(&[text(&path), "out.npy"]);
        if path.extension().is_some_and(|ending| ending == "npy") {
            given.labels = Some(text(&path.with_extension("labels.npy")).to_owned());
        }
        let config = Config::load(None, &sets(&given)).unwrap();
        let input = Input {
            data: &config.data,
            labels: given.labels.as_deref(),
            side: SplitSide::Train,
            keeps_missing: false,
            has_target: false,
            to: Destination::Arrays,
        };
        let mut source = Source::open(&input).unwrap();
        let (mut n_rows, mut largest) = (0, 0);
        while let Some(chunk) = source.next(usize::MAX).unwrap() {
            n_rows += chunk.n_rows;
            let n_bytes = |block: &Block| match block {
                Block::Numbers(numbers) => numbers.bytes.len(),
                _ => panic!("all columns are numbers"),
            };
            largest = largest.max(chunk.blocks.iter().map(n_bytes).sum());
        }
        // Rows of 6.4 MB.
        assert!(
            n_rows == 8_000 && largest <= CHUNK_BYTES + CHUNK_BYTES / 50,
            "{}: {largest}",
            path.display()
        );
        assert!(source.fraction().is_none_or(|part| part > 0.999), "{}", path.display());
    }
}

#[test]
fn categories_keep_their_texts() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first.csv");
    fs::write(&first, "size,city,label\n1,Rome,0\n2,\"Bern, BE\",1\n3,,1\n4,Rome,0\n").unwrap();
    let keys = [("categorical", "city".to_owned())];
    let open_table = |path: &Path| {
        let sets = [format!("data.train={path:?}"), "data.categorical=[\"city\"]".to_owned()];
        let config = Config::load(None, &sets).unwrap();
        SourceSpec::train(&config.data).open().unwrap()
    };
    let expected = open_table(&first);
    let stored = folder.path().join("rows.safetensors");
    convert_rows(&words(&first, &stored, &keys)).unwrap();
    let rows = open(&stored, &[]);
    assert_eq!(rows.layout().categories, expected.layout().categories);
    assert_eq!(bits(&*rows), bits(&*expected));
    let mut tables: Vec<PathBuf> = vec![folder.path().join("rows.csv")];
    tables.extend(cfg!(feature = "parquet").then(|| folder.path().join("rows.parquet")));
    for table in &tables {
        for (from, keys) in [(&first, &keys[..]), (&stored, &[])] {
            let mut words = words(from, table, keys);
            words.push("--overwrite".to_owned());
            convert_rows(&words).unwrap();
            let rows = open_table(table);
            assert_eq!(rows.layout().categories, expected.layout().categories);
            assert_eq!(bits(&*rows), bits(&*expected));
        }
    }
    assert_eq!(
        fs::read_to_string(&tables[0]).unwrap(),
        "size,city,label\n1,Rome,0\n2,\"Bern, BE\",1\n3,,1\n4,Rome,0\n"
    );
    let npy = folder.path().join("rows.npy");
    assert_refused(&[text(&first), text(&npy), "--categorical", "city"], &["\"city\"", ".safetensors"]);
}

#[test]
fn rows_of_any_format_have_the_categories_of_a_converted_file() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    // Values that could be mistaken for codes of categories.
    fs::write(at("first.csv"), "size,city,label\n1,30,0\n2,1,1\n3,2,1\n4,30,0\n").unwrap();
    fs::write(at("eval.csv"), "size,city,label\n5,30,0\n6,7,1\n").unwrap();
    let keys = [("categorical", "city".to_owned())];
    convert_rows(&words(&at("first.csv"), &at("rows.safetensors"), &keys)).unwrap();
    convert_rows(&words(&at("eval.csv"), &at("plain.npy"), &[])).unwrap();
    convert_rows(&words(&at("eval.csv"), &at("plain.safetensors"), &[])).unwrap();
    let load = |train: &str, eval: &str, more: &[&str]| {
        let mut sets = vec![format!("data.train={:?}", at(train)), format!("data.eval={:?}", at(eval))];
        sets.extend(more.iter().map(|set| (*set).to_owned()));
        let config = Config::load(None, &sets).unwrap();
        ddp_tables::load(&config, &ddp_comm::World::single())
            .map_err(|stop| crate::exit::Stop::from(stop).to_string())
    };
    let categorical = ["data.categorical=[\"city\"]"];
    let expected = bits(&*load("first.csv", "eval.csv", &categorical).unwrap().eval.unwrap());
    let mut tables = vec!["eval.csv"];
    if cfg!(feature = "parquet") {
        convert_rows(&words(&at("eval.csv"), &at("texts.parquet"), &keys)).unwrap();
        tables.push("texts.parquet");
    }
    for table in tables {
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
fn short_formats_hold_what_fits() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("first.csv");
    fs::write(&first, "x,y,label\n1,255,0\n0,300,1\n").unwrap();
    let out = folder.path().join("rows.safetensors");
    let place = ["first.csv`, row 1, column \"y\": 300 does not fit in u8"];
    assert_refused(&[text(&first), text(&out), "--dtype", "u8"], &place);
    for (dtype, name) in [("f16", "f16"), ("bf16", "bf16"), ("f32", "f32")] {
        run(&args(&[text(&first), text(&out), "--dtype", dtype, "--overwrite"])).unwrap();
        let rows = open(&out, &[]);
        assert_eq!(rows.layout().dtype.to_string(), name);
        assert_eq!(gathered(&*rows, &[0, 1]).0, [1.0, 255.0, 0.0, 300.0]);
    }
    fs::write(&first, "x,y,label\n1,255,0\n0,7,1\n").unwrap();
    run(&args(&[text(&first), text(&out), "--dtype", "u8", "--overwrite"])).unwrap();
    // Without another argument the format is kept.
    let npy = folder.path().join("rows.npz");
    run(&args(&[text(&out), text(&npy)])).unwrap();
    assert_eq!(open(&npy, &[]).layout().dtype.to_string(), "u8");
    assert_refused(&[text(&out), text(&folder.path().join("x.csv")), "--dtype", "u8"], &["CSV"]);
    assert_refused(
        &[text(&out), text(&folder.path().join("x.npy")), "--dtype", "bf16"],
        &["bf16", "safetensors"],
    );
}

#[test]
fn missing_values_are_refused_or_kept() {
    let folder = tempfile::tempdir().unwrap();
    let (first, out) = (folder.path().join("first.csv"), folder.path().join("rows.npz"));
    fs::write(&first, "x,y,label\n1,NA,0\n,7,1\n").unwrap();
    assert!(run(&args(&[text(&first), text(&out)])).is_err());
    run(&args(&[text(&first), text(&out), "--keep-missing"])).unwrap();
    let back = folder.path().join("back.csv");
    run(&args(&[text(&out), text(&back), "--keep-missing"])).unwrap();
    assert_eq!(fs::read_to_string(&back).unwrap(), "f0,f1,label\n1,,0\n,7,1\n");
    assert_refused(&[text(&out), text(&folder.path().join("y.csv"))], &["rows.npz", "NaN"]);
}

#[test]
fn places_that_make_no_sense_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| text(&folder.path().join(name)).to_owned();
    let input = "builtin:digits";
    assert_refused(&[input, &at("rows")], &["doesn't determine the format"]);
    assert_refused(&[input, &at("rows.npy.gz")], &["npy.gz files can be read but not written"]);
    assert_refused(&[input, text(folder.path())], &["is a folder", "--to"]);
    assert_refused(&[input, &at("rows.npy"), "--to", "npz"], &["its name ends in npy"]);
    let message = run(&args(&[input, &at("none/rows.npy"), "--target", "x"])).unwrap_err().to_string();
    assert!(message.contains("builtin:digits"), "{message}");
    assert_refused(&[&at("none.csv"), &at("rows.npy")], &["none.csv` does not exist"]);
    assert_eq!(names_in(folder.path()), [""; 0]);
    let summary = run(&args(&[input, &at("digits.npz")])).unwrap();
    assert!(summary.starts_with("1,438 rows in 1 file, 0.4 MB in "), "{summary}");
}

#[test]
fn only_former_parts_are_replaced_and_never_what_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    table(&at("rows.csv"), "classification", false, 20);
    let others = ["other.csv", "part-1.csv", "part-00001.old.csv", "part-0000x.csv", "labels/mine.npy"];
    fs::create_dir(at("labels")).unwrap();
    for name in others {
        fs::write(at(name), b"precious").unwrap();
    }
    let out = format!("{}/", folder.path().display());
    let convert = |from: &str, to: &str, more: &[&str]| {
        let from = at(from);
        run(&args(&[&[text(&from), to, "--target", "kind", "--overwrite"], more].concat()))
    };
    for (n_rows, n_parts) in [("5", 4), ("10", 2)] {
        for ending in endings() {
            convert("rows.csv", &out, &["--to", ending, "--rows-per-file", n_rows]).unwrap();
            let parts: Vec<_> =
                names_in(folder.path()).into_iter().filter(|name| name.starts_with("part-0000")).collect();
            assert_eq!(parts.len(), n_parts + 2, "{ending}: {parts:?}");
        }
    }
    for name in others {
        assert_eq!(fs::read(at(name)).unwrap(), b"precious", "{name}");
    }
    convert("rows.csv", &out, &["--to", "csv"]).unwrap();

    // Numbered files whose names end like those of this command.
    let numbered = ["out-00007.x.csv", "out-00007.csv", "out-007.csv"];
    for name in numbered {
        fs::write(at(name), b"precious").unwrap();
    }
    convert("rows.csv", text(&at("out.csv")), &["--rows-per-file", "10"]).unwrap();
    assert_eq!(numbered.map(|name| at(name).exists()), [true, false, true]);

    let before = fs::read(at("part-00000.csv")).unwrap();
    for to in [&out, text(&at("part-00000.csv"))] {
        let to_folder: &[&str] = if to.ends_with('/') { &["--to", "npz"] } else { &[] };
        let message = convert("part-00000.csv", to, to_folder).unwrap_err().to_string();
        assert!(
            message.contains("part-00000.csv`, which is an input") && message.contains("hint: "),
            "{message}"
        );
    }
    convert("rows.csv", text(&at("x.npy")), &[]).unwrap();
    let labels = at("x.labels.npy");
    let again = [text(&at("x.npy")), "--labels", text(&labels)].map(str::to_owned);
    let message =
        run(&args(&[&again[0], &out, "--to", "npy", "--labels", &again[2]])).unwrap_err().to_string();
    assert!(message.contains("part-00000.csv` exists"), "{message}");
    fs::rename(&labels, at("labels/part-00000.npy")).unwrap();
    let labels = at("labels/part-00000.npy");
    let words = [&again[0][..], &out, "--to", "npy", "--overwrite", "--labels", text(&labels)];
    let message = run(&args(&words)).unwrap_err().to_string();
    assert!(message.contains("labels/part-00000.npy`, which is an input"), "{message}");
    assert_eq!(fs::read(at("part-00000.csv")).unwrap(), before);
    assert!(labels.exists());
}

#[test]
fn a_code_beyond_the_vocabulary_is_an_unknown_value() {
    let folder = tempfile::tempdir().unwrap();
    let (first, stored) = (folder.path().join("first.csv"), folder.path().join("rows.safetensors"));
    fs::write(&first, "size,city,label\n1,Rome,0\n5,Bern,1\n").unwrap();
    let keys = [("categorical", "city".to_owned()), ("dtype", "f32".to_owned())];
    convert_rows(&words(&first, &stored, &keys)).unwrap();
    let mut bytes = fs::read(&stored).unwrap();
    let at = bytes.windows(4).position(|bytes| bytes == 2.0f32.to_le_bytes()).unwrap();
    for code in [3.0, 1e30, f32::from_bits(0x4eff_ffff)] {
        bytes[at..at + 4].copy_from_slice(&code.to_le_bytes());
        fs::write(&stored, &bytes).unwrap();
        let mut tables = vec![folder.path().join("rows.csv")];
        tables.extend(cfg!(feature = "parquet").then(|| folder.path().join("rows.parquet")));
        for table in tables {
            convert_rows(&[&words(&stored, &table, &[])[..], &["--overwrite".to_owned()]].concat()).unwrap();
            let sets = [format!("data.train={table:?}"), "data.categorical=[\"city\"]".to_owned()];
            let config = Config::load(None, &sets).unwrap();
            let rows = SourceSpec::train(&config.data).open().unwrap();
            assert_eq!(gathered(&*rows, &[0, 1]).0, [1.0, 0.0, 5.0, 1.0], "{}", table.display());
        }
    }
}
