//! Real-world tables: files written by pandas, pyarrow and NumPy (`tests/fixtures/tables/make.py`), in all formats.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

#[cfg(feature = "parquet")]
use crate::common::run_line_ok;
use crate::common::{Outcome, run, run_ok, single, temp_dir};
use crate::data::formats::in_format;

fn fixtures(name: &str) -> PathBuf {
    crate::common::ddp_folder().join("tests/fixtures/tables").join(name)
}

/// Runs the program in `folder` on the CPU.
fn in_folder(folder: &Path, args: &[&str]) -> Command {
    let mut command = single(args);
    command.current_dir(folder).env("RAYON_NUM_THREADS", "1").env("CUDA_VISIBLE_DEVICES", "");
    command
}

/// Trains a small model in `folder` on `source` and returns the folder of the run.
fn train(folder: &Path, source: &str, sets: &[&str]) -> (TempDir, Outcome) {
    let out = temp_dir();
    let train = format!("data.train={source:?}");
    let run_folder = out.path().join("run");
    let mut args = vec!["train", "--device", "cpu", "--out", run_folder.to_str().unwrap(), "--set", &train];
    for set in ["train.epochs=3", "train.batch_size=8", "model.hidden=[8]"].iter().chain(sets) {
        args.extend(["--set", set]);
    }
    let outcome = run_ok(in_folder(folder, &args));
    (out, outcome)
}

/// The evaluation of a run with additional arguments.
fn evaluate(folder: &Path, out: &TempDir, more: &[&str]) -> Value {
    let run_folder = out.path().join("run");
    let args = ["eval", "--device", "cpu", "--json", "--checkpoint", run_folder.to_str().unwrap()];
    let outcome = run_ok(in_folder(folder, &[&args[..], more].concat()));
    let mut figures: Value = serde_json::from_str(&outcome.stdout).unwrap();
    // File names are not metrics.
    for key in ["data", "model"] {
        figures.as_object_mut().unwrap().remove(key);
    }
    figures
}

/// Files of a fixture that this build reads and whose names end like tables or files of several arrays.
fn files(name: &str) -> Vec<String> {
    let entries = fs::read_dir(fixtures(name)).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    let is_arrow = |name: &String| ["parquet", "feather", "arrow"].iter().any(|part| name.contains(part));
    names.retain(|name| !name.ends_with(".npy") && name != "split.npz");
    names.retain(|name| cfg!(feature = "parquet") || !is_arrow(name));
    names
}

#[test]
fn the_same_rows_give_the_same_figures_in_every_format() {
    let folder = fixtures("plain");
    let sets = ["data.normalize=standard"];
    let mut figures = Vec::new();
    for name in files("plain") {
        let (out, _) = train(&folder, &name, &sets);
        figures.push((evaluate(&folder, &out, &["--data", &name]), name));
    }
    for name in ["x_c.npy", "x_fortran.npy"] {
        let (out, _) = train(&folder, name, &[sets[0], "data.labels=y.npy"]);
        figures.push((evaluate(&folder, &out, &["--data", name, "--labels", "y.npy"]), name.to_owned()));
    }
    assert!(figures.len() >= if cfg!(feature = "parquet") { 19 } else { 11 }, "{figures:?}");
    for (figure, name) in &figures {
        assert_eq!(figure, &figures[0].0, "{name} against {}", figures[0].1);
    }
}

#[test]
fn texts_dates_and_gaps_give_the_same_figures_in_every_table() {
    let folder = fixtures("mixed");
    for datetime in ["data.datetime=parts", "data.drop=[\"joined\"]"] {
        let sets = [datetime, "data.categorical=[\"city\"]", "data.missing=mean", "data.normalize=standard"];
        let (out, _) = train(&folder, "comma.csv", &sets);
        let first = evaluate(&folder, &out, &["--data", "comma.csv"]);
        for name in files("mixed") {
            // Trained on one format, evaluated on another.
            assert_eq!(evaluate(&folder, &out, &["--data", &name]), first, "{name}");
        }
        let (of_last, _) = train(&folder, files("mixed").last().unwrap(), &sets);
        assert_eq!(evaluate(&folder, &of_last, &["--data", "comma.csv"]), first);
    }
}

#[test]
fn a_column_splits_the_rows_alike_in_every_table() {
    let folder = fixtures("mixed");
    for sets in [
        &["data.split={group=\"city\"}", "data.eval_fraction=0.3", "data.drop=[\"joined\"]"][..],
        &["data.split={time=\"joined\"}", "data.eval_fraction=0.25", "data.categorical=[\"city\"]"],
        &["data.split={column=\"member\",eval=\"true\"}", "data.drop=[\"joined\", \"city\"]"],
    ] {
        let sets = [sets, &["data.missing=mean"]].concat();
        let (out, outcome) = train(&folder, "comma.csv", &sets);
        let first = evaluate(&folder, &out, &[]);
        assert!(outcome.stderr.contains("split by \"") && first["rows"].as_u64().unwrap() < 30, "{first}");
        for name in files("mixed") {
            let (out, outcome) = train(&folder, &name, &sets);
            assert!(outcome.stderr.contains("split by \""), "{name}: {}", outcome.stderr);
            assert_eq!(evaluate(&folder, &out, &[]), first, "{name} with {sets:?}");
        }
    }
}

#[test]
fn an_index_that_pandas_wrote_is_left_out_and_reported() {
    let names: &[&str] =
        if cfg!(feature = "parquet") { &["index.csv", "index.parquet"] } else { &["index.csv"] };
    for name in names {
        let (_, outcome) = train(&fixtures("plain"), name, &[]);
        assert!(
            outcome.stderr.contains("3-8-3") && outcome.stderr.contains("left out"),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn test_rows_next_to_the_training_rows_are_evaluated_on() {
    let (out, outcome) = train(&fixtures("plain"), "split.npz", &[]);
    assert!(outcome.stderr.contains("30 rows and 10 for evaluation"), "{}", outcome.stderr);
    assert!(evaluate(&fixtures("plain"), &out, &[])["eval_loss"].is_number());
    // So no rows are taken from the training rows for evaluation.
    let inspected = run_ok(in_folder(&fixtures("plain"), &["data", "inspect", "split.npz"]));
    assert!(
        inspected.stdout.contains("x_train") && !inspected.stdout.contains("eval_fraction"),
        "{inspected:?}"
    );
    let (_, outcome) = train(&fixtures("plain"), "split.npz", &["data.eval=none"]);
    assert!(!outcome.stderr.contains("for evaluation"), "{}", outcome.stderr);

    let (out, outcome) = train(&fixtures(""), "mnist", &[]);
    assert!(outcome.stderr.contains("20 rows and 8 for evaluation"), "{}", outcome.stderr);
    let own = evaluate(&fixtures(""), &out, &[]);
    assert_eq!(evaluate(&fixtures(""), &out, &["--data", "mnist"]), own);
}

/// All kinds of values, read as text, as JSON or with the types of the file.
#[cfg(feature = "parquet")]
#[test]
fn a_table_has_one_profile_in_all_formats() {
    let folder = temp_dir();
    let row = |n: usize| {
        let x = if n % 7 == 3 { String::new() } else { format!("{}", (n * 37 % 101) as f64 / 8.0) };
        let city = ["Bern", "\"Rome, old\"", ""][n % 3];
        let (big, day, flag) = (9_007_199_254_740_993 + n, 1 + n % 28, n.is_multiple_of(5));
        format!("{x},{},{city},2024-02-{day:02},{flag},{big},{}\n", n % 11, n % 2)
    };
    let rows: String = (0..300).map(row).collect();
    fs::write(folder.path().join("rows.csv"), format!("x,n,city,day,flag,big,label\n{rows}")).unwrap();
    let columns = |name: &str| {
        let profile = run_line_ok(folder.path(), &format!("data inspect {name} --json")).stdout;
        let mut profile: Value = serde_json::from_str(&profile).unwrap();
        for column in profile["columns"].as_array_mut().unwrap() {
            column.as_object_mut().unwrap().remove("stored_as");
        }
        profile["columns"].take()
    };
    let of_csv = columns("rows.csv");
    assert_eq!(of_csv[0]["n_missing"], 43);
    assert_eq!(of_csv[5]["n_distinct"], 300);
    for name in ["rows.parquet", "rows.arrow", "rows.jsonl"] {
        in_format(folder.path(), "rows.csv", name, "");
        assert_eq!(columns(name), of_csv, "{name}");
    }
}

#[test]
#[cfg(feature = "parquet")]
fn folders_named_like_columns_are_columns() {
    let (_, outcome) = train(&fixtures("hive"), "rows", &["data.categorical=[\"kind\"]"]);
    // a, b, c, year, and kind, which is unknown or one of two values.
    assert!(outcome.stderr.contains("40 rows, 7-8-3"), "{}", outcome.stderr);
    let outcome = run_ok(in_folder(&fixtures("hive"), &["data", "inspect", "rows", "--json"]));
    let profile: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let columns = profile["columns"].as_array().unwrap();
    let names: Vec<&str> = columns.iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["a", "b", "c", "label", "year", "kind"]);
    assert_eq!(columns[5]["values"][0]["value"], "p q");
    let refused =
        run(in_folder(&fixtures("hive"), &["train", "--set", "data.train=rows", "--out", "/dev/null/x"]));
    assert!(refused.stderr.contains("column \"kind\" of its folder's name"), "{}", refused.stderr);
}

#[test]
#[cfg(feature = "parquet")]
fn typed_files_are_inspected_like_text() {
    let profile = |name: &str| -> Value {
        let outcome = run_ok(in_folder(&fixtures("mixed"), &["data", "inspect", name, "--json"]));
        serde_json::from_str(&outcome.stdout).unwrap()
    };
    let text = profile("comma.csv");
    for (name, types) in [
        ("snappy.parquet", ["largeutf8", "string"]),
        ("lz4.feather", ["largeutf8", "string"]),
        ("dictionary.parquet", ["dictionary of string", "dictionary of string"]),
    ] {
        let typed = profile(name);
        for (column, of_text) in
            typed["columns"].as_array().unwrap().iter().zip(text["columns"].as_array().unwrap())
        {
            for key in ["name", "type", "n_missing", "n_distinct", "mean", "is_target"] {
                assert_eq!(column[key], of_text[key], "{name}: {column}");
            }
        }
        let city = typed["columns"][0]["stored_as"].as_str().unwrap();
        assert!(types.contains(&city), "{name}: {city}");
        assert_eq!(typed["columns"][2]["stored_as"], "timestamp");
        assert_eq!(typed["columns"][4]["stored_as"], "int64");
    }
}

#[test]
fn other_formats_are_named_with_a_hint_to_convert_them() {
    for (name, parts) in [
        ("rows.pkl", ["Python pickle", "read it with Python and save the table as Parquet or CSV"]),
        ("pickle.npy", ["Python pickle", "numpy.save"]),
        ("rows.xlsx", ["Excel workbook", "save the table as CSV"]),
        ("signature.xls", ["Excel workbook", "save the table as CSV"]),
        ("signature.h5", ["HDF5", "numpy.save"]),
        ("columns.json", ["JSON that is not one row per line", "lines=True"]),
        ("utf16.csv", ["UTF-16", "iconv -f UTF-16 -t UTF-8 OLD.csv"]),
        ("objects.npy", ["pickle", "numpy.save"]),
        ("scalar.npy", ["no dimensions", "[rows, features]"]),
    ] {
        let set = format!("data.train={name}");
        for args in [&["train", "--out", "/dev/null/x", "--set", &set][..], &["data", "inspect", name]] {
            let outcome = run(in_folder(&fixtures("foreign"), args));
            assert_eq!(outcome.status.code(), Some(2), "{name}: {}", outcome.stderr);
            let mut lines = outcome.stderr.lines();
            let (message, hint) = (lines.next().unwrap(), lines.next().unwrap());
            assert!(message.contains(name) && message.contains(parts[0]), "{message}");
            assert!(hint.starts_with("hint: ") && hint.contains(parts[1]), "{hint}");
        }
    }
}

#[test]
fn settings_of_another_format_are_refused() {
    for (folder, name, set, part) in [
        ("plain", "rows.jsonl", "data.delimiter=tab", "no cells with delimiters"),
        ("plain", "rows.npz", "data.missing_values=[\"-1\"]", "holds arrays, not a table"),
        ("plain", "rows.npz", "data.datetime=parts", "has no dates"),
    ] {
        let train = format!("data.train={name}");
        let args = ["train", "--out", "/dev/null/x", "--set", &train, "--set", set];
        let outcome = run(in_folder(&fixtures(folder), &args));
        assert_eq!(outcome.status.code(), Some(2), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(part) && outcome.stderr.contains("hint: "), "{}", outcome.stderr);
    }
}

#[test]
fn rows_to_evaluate_and_to_predict_may_be_in_another_format() {
    let folder = temp_dir();
    let row = |n: usize| (n * 7 % 11, n % 2);
    let tabs: String = (0..40).map(row).map(|(x, y)| format!("{x}\t{y}\n")).collect();
    let json: String = (0..40).map(row).map(|(x, y)| format!("{{\"x\":{x},\"y\":{y}}}\n")).collect();
    fs::write(folder.path().join("train.tsv"), format!("x\ty\n{tabs}")).unwrap();
    fs::write(folder.path().join("rows.jsonl"), json).unwrap();
    let out = folder.path().join("run");
    let out = out.to_str().unwrap();
    let sets = ["data.train=train.tsv", "data.target=y", "data.delimiter=tab", "data.format=csv"];
    let mut args = vec!["train", "--device", "cpu", "--out", out, "--epochs", "1"];
    sets.iter().for_each(|set| args.extend(["--set", set]));
    run_ok(in_folder(folder.path(), &args));
    let figures = |data: &str| {
        let args = ["eval", "--device", "cpu", "--json", "--checkpoint", out, "--data", data];
        let figures: Value = serde_json::from_str(&run_ok(in_folder(folder.path(), &args)).stdout).unwrap();
        figures["eval_loss"].clone()
    };
    assert_eq!(figures("rows.jsonl"), figures("train.tsv"));
    let predicted = |data: &str| {
        let to = folder.path().join("predicted.csv");
        let args =
            ["predict", "--device", "cpu", "--checkpoint", out, "--data", data, "--overwrite", "--out"];
        run_ok(in_folder(folder.path(), &[&args[..], &[to.to_str().unwrap()]].concat()));
        fs::read_to_string(to).unwrap()
    };
    assert_eq!(predicted("rows.jsonl"), predicted("train.tsv"));
}

/// The path of the data is relative to the folder of training; evaluation and resuming start in a different folder.
#[test]
fn a_run_is_evaluated_and_resumed_from_any_folder() {
    let elsewhere = temp_dir();
    let sets = ["data.eval=tab.tsv", "checkpoint.every_epochs=1", "train.stop_after_steps=5"];
    let out = temp_dir();
    let run_folder = out.path().join("run");
    let mut args = vec!["train", "--device", "cpu", "--out", run_folder.to_str().unwrap()];
    for set in ["data.train=comma.csv", "train.epochs=2", "train.batch_size=8"].iter().chain(&sets) {
        args.extend(["--set", set]);
    }
    let stopped = run(in_folder(&fixtures("plain"), &args));
    assert_eq!(stopped.status.code(), Some(85), "{}", stopped.stderr);
    let resume = ["train", "--device", "cpu", "--resume", run_folder.to_str().unwrap()];
    run_ok(in_folder(elsewhere.path(), &resume));
    let figures = evaluate(elsewhere.path(), &out, &[]);
    assert_eq!(figures, evaluate(&fixtures("plain"), &out, &["--data", "comma.csv"]));
    let saved = fs::read_to_string(run_folder.join("config.toml")).unwrap();
    assert!(saved.contains(fixtures("plain/comma.csv").to_str().unwrap()), "{saved}");
}

#[test]
#[cfg(feature = "parquet")]
fn a_folder_that_does_not_exist_is_written_to() {
    let folder = temp_dir();
    let table = fixtures("plain/semicolon.csv");
    let args = ["data", "convert", table.to_str().unwrap(), "parts/", "--target", "label"];
    run_ok(in_folder(folder.path(), &args));
    assert!(folder.path().join("parts/part-00000.parquet").exists());
    // It exists now.
    run_ok(in_folder(folder.path(), &[&args[..], &["--overwrite"]].concat()));
}
