//! `ddp-train predict`: predictions are the same for every input format, every output format and any number of ranks.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{Outcome, ranks, refused, run, run_ok, single, temp_dir, train, write};
use crate::data::files::Element;
use crate::data::formats::{as_arrays, in_format};
use crate::virtual_gpu::under_virtual_gpus;

/// A table with an id, two features and a label of three classes.
fn table(n_rows: usize) -> String {
    let mut csv = "id,a,b,label\n".to_owned();
    for row in 0..n_rows {
        let x = |i: usize| ((row * 31 + i * 17) as f64 * 0.37).sin();
        let label = usize::from(x(0) > 0.0) + usize::from(x(1) > 0.3);
        writeln!(csv, "\"row, {row}\",{:.5},{:.5},{label}", x(0), x(1)).unwrap();
    }
    csv
}

/// A model of [`table`], and a folder for files.
struct Model {
    folder: TempDir,
    run: PathBuf,
}

impl Model {
    fn new() -> Self {
        let folder = temp_dir();
        let data = write(folder.path(), "train.csv", &table(600));
        let run = folder.path().join("run");
        let sets = [
            format!("data.train={}", data.display()),
            "data.target=[\"label\"]".to_owned(),
            "data.drop=[\"id\"]".to_owned(),
            "model.hidden=[16]".to_owned(),
            "train.epochs=4".to_owned(),
        ];
        let mut args = vec!["train", "--out", run.to_str().unwrap(), "--quiet", "--device", "cpu"];
        sets.iter().for_each(|set| args.extend(["--set", set]));
        run_ok(single(&args));
        Model { folder, run }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn args(&self, data: &Path, out: &str, more: &[&str]) -> Vec<String> {
        let out = if out == "-" { out.to_owned() } else { self.path(out).display().to_string() };
        let (run, data) = (self.run.display().to_string(), data.display().to_string());
        let args = ["predict", "--checkpoint", &run, "--data", &data, "--out", &out, "--device", "cpu"];
        args.iter().chain(more).map(|arg| (*arg).to_owned()).collect()
    }

    fn try_predict(&self, n_ranks: usize, data: &Path, out: &str, more: &[&str]) -> Outcome {
        let args = self.args(data, out, more);
        run(ranks(n_ranks, &args.iter().map(String::as_str).collect::<Vec<_>>()))
    }

    /// Predicts and returns the file's bytes.
    #[track_caller]
    fn predict(&self, n_ranks: usize, data: &Path, out: &str, more: &[&str]) -> Vec<u8> {
        let outcome = self.try_predict(n_ranks, data, out, more);
        assert!(outcome.status.success(), "{}", outcome.stderr);
        std::fs::read(self.path(out)).unwrap()
    }

    #[track_caller]
    fn refused(&self, data: &Path, out: &str, more: &[&str], parts: &[&str]) {
        let outcome = self.try_predict(1, data, out, more);
        assert_eq!(outcome.status.code(), Some(2), "{}", outcome.stderr);
        parts.iter().for_each(|part| assert!(outcome.stderr.contains(part), "{part}: {}", outcome.stderr));
        assert!(out == "-" || !self.path(out).exists());
        self.assert_no_temporary_files();
    }

    #[track_caller]
    fn assert_no_temporary_files(&self) {
        let names = std::fs::read_dir(self.folder.path()).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let left: Vec<String> = names.filter(|name| name.starts_with('.')).collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn lines(bytes: &[u8]) -> Vec<Vec<String>> {
    let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(bytes);
    reader.records().map(|record| record.unwrap().iter().map(str::to_owned).collect()).collect()
}

#[test]
fn predictions_are_those_that_eval_counts() {
    let model = Model::new();
    let data = model.path("train.csv");
    let predicted = lines(&model.predict(1, &data, "out.csv", &["--proba", "--keep", "id,label"]));
    assert_eq!(predicted[0], ["id", "label", "prediction", "proba_0", "proba_1", "proba_2"]);
    assert_eq!((predicted.len(), predicted[1][0].as_str()), (601, "row, 0"));
    let right = predicted[1..].iter().filter(|row| row[1] == row[2]).count();
    for row in &predicted[1..] {
        let p: Vec<f64> = row[3..].iter().map(|p| p.parse().unwrap()).collect();
        assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-6, "{row:?}");
        let best = (0..3).max_by(|&i, &j| p[i].total_cmp(&p[j])).unwrap();
        assert_eq!(best.to_string(), row[2]);
    }
    let (run, data) = (model.run.to_str().unwrap(), data.to_str().unwrap());
    let eval = run_ok(single(&["eval", "--checkpoint", run, "--data", data, "--json", "--device", "cpu"]));
    let eval: Value = serde_json::from_str(&eval.stdout).unwrap();
    assert!((eval["eval_accuracy"].as_f64().unwrap() - right as f64 / 600.0).abs() < 1e-9);
    assert!(right > 450, "{right} of 600 are right");
}

#[test]
fn columns_are_found_by_name_and_labels_are_not_needed() {
    let model = Model::new();
    let all = lines(&model.predict(1, &model.path("train.csv"), "all.csv", &[]));
    // Different column order, no id, no label.
    let rows = lines(table(600).as_bytes());
    let text: String = rows.iter().map(|row| format!("{},{}\n", row[2], row[1])).collect();
    let data = write(model.folder.path(), "bare.csv", &text);
    assert_eq!(lines(&model.predict(1, &data, "bare-out.csv", &[])), all);

    let missing = write(model.folder.path(), "missing.csv", "a,label\n1,0\n");
    model.refused(&missing, "x.csv", &[], &["\"b\" is missing", "the model"]);
    let extra = write(model.folder.path(), "extra.csv", "a,b,c\n1,0,3\n");
    let bare = write(model.folder.path(), "one.csv", "a,b\n1,0\n");
    model.refused(&extra, "x.csv", &["--strict-columns"], &["\"c\" is extra"]);
    assert_eq!(model.predict(1, &extra, "extra-out.csv", &[]), model.predict(1, &bare, "one-out.csv", &[]));
    let kept = lines(&model.predict(1, &extra, "kept.csv", &["--keep", "c"]));
    assert_eq!((kept[0].join(","), kept[1][0].as_str()), ("c,prediction".to_owned(), "3"));
    model.refused(&extra, "x.csv", &["--keep", "d"], &["--keep", "\"d\"", "hint: the columns are a, b, c"]);
    model.refused(&extra, "x.csv", &["--keep", "c,c"], &["two columns \"c\""]);
}

#[test]
fn every_format_holds_the_same_predictions() {
    let model = Model::new();
    let data = model.path("train.csv");
    let csv = model.predict(1, &data, "out.csv", &["--proba", "--keep", "id"]);
    let rows = lines(&csv);
    let json = model.predict(1, &data, "out.jsonl", &["--proba", "--keep", "id"]);
    let json: Vec<Value> = json
        .split(|byte| *byte == b'\n')
        .filter(|l| !l.is_empty())
        .map(|l| serde_json::from_slice(l).unwrap())
        .collect();
    assert_eq!(json.len(), 600);
    for (object, row) in json.iter().zip(&rows[1..]) {
        assert_eq!(
            (object["id"].as_str(), object["prediction"].to_string()),
            (Some(row[0].as_str()), row[1].clone())
        );
        let p = object["proba_2"].as_f64().unwrap();
        assert!((p - row[4].parse::<f64>().unwrap()).abs() < 1e-7);
    }

    let npy = model.predict(1, &data, "out.npy", &[]);
    let classes: Vec<String> = rows[1..].iter().map(|row| row[1].clone()).collect();
    let values =
        npy[npy.len() - 600 * 8..].as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b).to_string());
    assert_eq!(values.collect::<Vec<_>>(), classes);
    assert!(String::from_utf8_lossy(&npy[..128]).contains("'<i8', 'fortran_order': False, 'shape': (600,)"));
    assert!(!model.path("out.npy.labels.json").exists());
    let proba = model.predict(1, &data, "proba.npy", &["--proba"]);
    assert_eq!(
        std::fs::read_to_string(model.path("proba.npy.labels.json")).unwrap(),
        "[\"0\",\"1\",\"2\"]\n"
    );
    assert!(
        String::from_utf8_lossy(&proba[..128]).contains("'<f4', 'fortran_order': False, 'shape': (600, 3)")
    );

    for (row, of_row) in rows[1..].iter().zip(proba[proba.len() - 600 * 12..].as_chunks::<12>().0) {
        let of_row = of_row.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes).to_string());
        assert_eq!(of_row.collect::<Vec<_>>(), row[2..]);
    }
    // New predictions without labels take the place of old ones with their labels.
    assert_eq!(model.predict(1, &data, "proba.npy", &["--overwrite"]), npy);
    assert!(!model.path("proba.npy.labels.json").exists());
    for (name, more) in [("two.npy", vec![]), ("two-proba.npy", vec!["--proba"])] {
        let one = if more.is_empty() { &npy } else { &proba };
        assert_eq!(&model.predict(2, &data, name, &more), one, "{name}");
    }
    model.refused(&data, "x.npy", &["--keep", "id"], &["kept columns", "remove --keep"]);
    for name in ["x.csv.gz", "x.jsonl.zst"] {
        model.refused(&data, name, &[], &["without compression", "end it in .csv, .jsonl, .parquet or .npy"]);
    }
    model.refused(&data, "x.safetensors", &[], &["not written as safetensors", ".npy"]);
    model.refused(&data, "x.xlsx", &[], &["does not determine the format", ".parquet"]);
}

#[test]
fn any_number_of_ranks_writes_the_same_bytes() {
    let model = Model::new();
    // Four blocks; the last one is short.
    let mut text = "a,b,id\n".to_owned();
    (0..200_000).for_each(|row| writeln!(text, "{},{},{row}", row % 7, row % 5).unwrap());
    let data = write(model.folder.path(), "large.csv", &text);
    let one = model.predict(1, &data, "one.csv", &["--keep", "id", "--proba"]);
    assert_eq!(lines(&one).len(), 200_001);
    for n_ranks in [2, 3, 5] {
        let name = format!("{n_ranks}.csv");
        assert!(model.predict(n_ranks, &data, &name, &["--keep", "id", "--proba"]) == one, "{n_ranks} ranks");
    }
    let some =
        lines(&model.predict(2, &data, "some.csv", &["--keep", "id", "--proba", "--rows", "65535..131075"]));
    assert_eq!(some[1..], lines(&one)[65_536..131_076]);
    let none = model.try_predict(1, &data, "none.csv", &["--rows", "200000.."]);
    assert!(none.stderr.contains("has 200000 rows"), "{}", none.stderr);
    model.assert_no_temporary_files();
}

#[test]
fn batches_may_end_within_a_block_of_a_table() {
    let folder = temp_dir();
    // Enough columns that several batches, but not a whole number of blocks, are passed on together.
    let header: String = (0..20).map(|column| format!("f{column},")).collect();
    let rows = |n: usize, label: bool| {
        let mut text = format!("{}{}\n", header.trim_end_matches(','), if label { ",label" } else { "" });
        for row in 0..n {
            let cells: Vec<String> =
                (0..20).map(|column| ((row * 7 + column * 3) % 11).to_string()).collect();
            text += &cells.join(",");
            text += if label { [",0\n", ",1\n"][row % 2] } else { "\n" };
        }
        text
    };
    let data = write(folder.path(), "train.csv", &rows(64, true));
    let config = format!("[data]\ntrain = {}\n[train]\nepochs = 1\n", crate::common::quoted(&data));
    let trained = train(1, &config, &["--device", "cpu"]);
    let data = write(folder.path(), "rows.csv", &rows(70_000, false)).display().to_string();
    let checkpoint = trained.out().display().to_string();
    let predicted = |n_ranks: usize| {
        let out = folder.path().join(format!("{n_ranks}.csv"));
        let out_text = out.display().to_string();
        run_ok(ranks(
            n_ranks,
            &[
                "predict",
                "--checkpoint",
                &checkpoint,
                "--data",
                &data,
                "--out",
                &out_text,
                "--proba",
                "--device",
                "cpu",
            ],
        ));
        lines(&std::fs::read(out).unwrap())
    };
    let one = predicted(1);
    assert_eq!(one.len(), 70_001);
    // The rows repeat.
    assert_eq!(one[1..12], one[66_001..66_012]);
    assert_eq!(predicted(2), one);
}

#[test]
fn arrays_are_predicted_without_labels() {
    let model = Model::new();
    let csv = lines(&model.predict(1, &model.path("train.csv"), "out.csv", &["--proba"]));
    for name in ["rows.safetensors", "rows.npy"] {
        as_arrays(model.folder.path(), "train.csv", name, "label", &["id"], Element::F32);
    }
    let of_arrays = lines(&model.predict(1, &model.path("rows.safetensors"), "arrays.csv", &["--proba"]));
    assert_eq!(of_arrays, csv);
    let npy = model.path("rows.npy");
    std::fs::remove_file(model.path("rows.labels.npy")).unwrap();
    assert_eq!(lines(&model.predict(2, &npy, "npy.csv", &["--proba"])), csv);
    model.refused(&npy, "x.csv", &["--keep", "a"], &["--keep", "holds an array"]);
}

#[test]
fn bad_rows_stop_or_stay_empty() {
    let model = Model::new();
    let data = write(model.folder.path(), "bad.csv", "id,a,b\nx,1,2\ny,oops,2\nz,1,\nw,1,2\n");
    model.refused(&data, "x.csv", &[], &["line 3", "\"a\"", "oops"]);
    let rows =
        lines(&model.predict(1, &data, "null.csv", &["--bad-rows", "null", "--keep", "id", "--proba"]));
    let ids: Vec<&str> = rows[1..].iter().map(|row| row[0].as_str()).collect();
    assert_eq!(ids, ["x", "y", "z", "w"]);
    assert_eq!(rows[1][1..], rows[4][1..]);
    assert!(rows[2][1..].iter().chain(&rows[3][1..]).all(String::is_empty), "{rows:?}");
    let json = model.predict(1, &data, "null.jsonl", &["--bad-rows", "null"]);
    assert!(String::from_utf8(json).unwrap().lines().nth(1) == Some("{\"prediction\":null}"));
}

#[test]
fn values_unlike_those_of_training_are_counted() {
    let folder = temp_dir();
    let mut text = "a,city,label\n".to_owned();
    for row in 0..60 {
        let a = if row == 7 { String::new() } else { (row % 10).to_string() };
        writeln!(text, "{a},{},{}", ["Bern", "Rome"][row % 2], row % 2).unwrap();
    }
    let data = write(folder.path(), "train.csv", &text);
    let config = format!(
        "[data]\ntrain = {}\ncategorical = [\"city\"]\nmissing = \"mean\"\nnormalize = \"standard\"\n[train]\nepochs = 1\n",
        crate::common::quoted(&data)
    );
    let trained = train(1, &config, &["--device", "cpu"]);
    let rows = write(folder.path(), "rows.csv", "a,city\n5,Rome\n12,Oslo\n,Bern\n-1,Lima\n3,\n");
    let (checkpoint, rows) = (trained.out().display().to_string(), rows.display().to_string());
    let args = ["predict", "--checkpoint", &checkpoint, "--data", &rows, "--out", "-", "--device", "cpu"];
    for n_ranks in [1, 2] {
        let out = folder.path().join(format!("{n_ranks}.csv")).display().to_string();
        let args = args.map(|arg| if arg == "-" { out.as_str() } else { arg });
        let stderr = run_ok(ranks(n_ranks, &args)).stderr;
        for line in [
            "warning: categories that are empty or that training saw too rarely or never: \"city\" 3",
            "missing values filled in: \"a\" 1",
            "warning: values outside the range of training: \"a\" 2",
        ] {
            assert_eq!(stderr.lines().filter(|found| *found == line).count(), 1, "{line}: {stderr}");
        }
    }
}

#[test]
fn existing_files_and_failures_leave_the_folder_alone() {
    let model = Model::new();
    let data = model.path("train.csv");
    let old = write(model.folder.path(), "out.csv", "mine\n");
    let outcome = model.try_predict(1, &data, "out.csv", &[]);
    assert_eq!(outcome.status.code(), Some(2));
    assert!(outcome.stderr.contains("--overwrite"), "{}", outcome.stderr);
    assert_eq!(std::fs::read(&old).unwrap(), b"mine\n");
    assert!(model.predict(1, &data, "out.csv", &["--overwrite"]).starts_with(b"prediction\n"));
    // A failure in the last of several blocks.
    let mut text = "a,b\n".to_owned();
    (0..70_000).for_each(|row| writeln!(text, "{},1", row % 7).unwrap());
    text.push_str("oops,1\n");
    let data = write(model.folder.path(), "late.csv", &text);
    model.refused(&data, "late-out.csv", &[], &["line 70002"]);
    let two = model.try_predict(2, &data, "late-out.csv", &[]);
    assert!(two.status.code() == Some(2) && !model.path("late-out.csv").exists(), "{}", two.stderr);
    assert_eq!(two.stderr.matches("line 70002").count(), 1, "{}", two.stderr);
    model.assert_no_temporary_files();
    let nowhere = model.try_predict(1, &model.path("train.csv"), "no/such/folder.csv", &[]);
    assert_eq!(nowhere.status.code(), Some(74), "{}", nowhere.stderr);
}

#[test]
fn reads_stdin_and_prints_to_stdout() {
    let model = Model::new();
    let expected = model.predict(1, &model.path("train.csv"), "out.csv", &["--keep", "id"]);
    let args = model.args(Path::new("-"), "-", &["--keep", "id"]);
    let mut command = single(&args.iter().map(String::as_str).collect::<Vec<_>>());
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(table(600).as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(output.stdout == expected);
    let two = model.try_predict(2, &model.path("train.csv"), "-", &[]);
    assert!(two.status.code() == Some(2) && two.stderr.contains("single rank"), "{}", two.stderr);
}

#[test]
fn thresholds_and_probabilities_fit_the_task() {
    let csv = |task: &str| crate::common::made_up_csv(100, 3, task, 0);
    for (task, targets, columns) in [
        ("regression", "\"t0\", \"t1\"", "prediction_t0,prediction_t1"),
        ("multilabel", "\"t0\", \"t1\", \"t2\"", "prediction_t0,prediction_t1,prediction_t2"),
    ] {
        let folder = temp_dir();
        let data = write(folder.path(), "rows.csv", &csv(task));
        let config = format!(
            "[data]\ntrain = {}\ntask = \"{task}\"\ntarget = [{targets}]\n[train]\nepochs = 2\n[model]\nhidden = [8]\n",
            crate::common::quoted(&data)
        );
        let trained = train(1, &config, &["--device", "cpu"]);
        let (run_path, data) = (trained.out(), data.display().to_string());
        let predict = |more: &[&str]| {
            let mut args =
                vec!["predict", "--checkpoint", run_path.to_str().unwrap(), "--data", &data, "--out", "-"];
            args.extend(["--device", "cpu"].iter().chain(more));
            run(single(&args))
        };
        let plain = predict(&[]);
        assert!(plain.stdout.starts_with(&format!("{columns}\n")), "{}", plain.stdout);
        assert_eq!(plain.stdout.lines().count(), 101);
        let with = predict(&["--proba", "--threshold", "0.9"]);
        match task {
            "regression" => {
                assert!(with.status.code() == Some(2) && with.stderr.contains("no probabilities"))
            }
            _ => {
                assert!(with.stdout.lines().next().unwrap().ends_with("proba_t0,proba_t1,proba_t2"));
                for row in &lines(with.stdout.as_bytes())[1..] {
                    for label in 0..3 {
                        let p: f64 = row[3 + label].parse().unwrap();
                        assert_eq!(row[label] == "1", p >= 0.9, "{row:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn targets_and_times_keep_their_units_and_digits() {
    let folder = temp_dir();
    // The price depends on the second within a minute, which f32 can't resolve.
    let mut text = "time,price\n".to_owned();
    for row in 0..200_u64 {
        writeln!(text, "{},{}", 1_700_000_000_000_000_000 + row * 1_000, 250_000 + 40 * row).unwrap();
    }
    let data = write(folder.path(), "prices.csv", &text);
    let config = format!(
        "[data]\ntrain = {}\ntask = \"regression\"\ntarget = [\"price\"]\nnormalize = \"standard\"\nnormalize_target = \"standard\"\n\
         [train]\nepochs = 60\n[model]\nhidden = [16]\n[optimizer]\nkind = \"adamw\"\nlr = 0.01\n",
        crate::common::quoted(&data)
    );
    let trained = train(1, &config, &["--device", "cpu"]);
    let (checkpoint, data) = (trained.out().display().to_string(), data.display().to_string());
    let out = folder.path().join("out.csv");
    for n_ranks in [1, 2] {
        let mut args =
            vec!["predict", "--checkpoint", &checkpoint, "--data", &data, "--keep", "price", "--overwrite"];
        args.extend(["--out", out.to_str().unwrap(), "--device", "cpu"]);
        run_ok(ranks(n_ranks, &args));
        let rows = lines(&std::fs::read(&out).unwrap());
        assert_eq!(rows[0], ["price", "prediction"]);
        let numbers =
            rows[1..].iter().map(|row| (row[0].parse::<f64>().unwrap(), row[1].parse::<f64>().unwrap()));
        let worst = numbers.map(|(price, predicted)| (price - predicted).abs()).fold(0.0, f64::max);
        // The prices span a range of 8,000.
        assert!(worst < 400.0, "{worst}");
    }
    let mut predictor = ddp_tables::Predictor::open(trained.out()).unwrap();
    let times: Vec<f64> = (0..200).map(|row| 1.7e18 + f64::from(row) * 1e3).collect();
    let values = predictor.predict(&times).unwrap().values();
    let from_file = lines(&std::fs::read(&out).unwrap());
    for (value, row) in values.iter().zip(&from_file[1..]) {
        // f64 represents these times with a spacing of 256 ns.
        assert!((value - row[1].parse::<f64>().unwrap()).abs() < 50.0, "{value} {row:?}");
    }
}

#[test]
fn virtual_gpus_predict_like_the_cpu() {
    let model = Model::new();
    let cpu = lines(&model.predict(1, &model.path("train.csv"), "cpu.csv", &["--proba", "--keep", "id"]));
    for (n, name) in [(1, "rows.csv"), (2, "rows.safetensors")] {
        let data = match name {
            "rows.csv" => model.path("train.csv"),
            _ => {
                as_arrays(model.folder.path(), "train.csv", name, "label", &["id"], Element::F32);
                model.path(name)
            }
        };
        let (run, data, out) =
            (model.run.display().to_string(), data.display().to_string(), model.path(&format!("gpu{n}.csv")));
        let args = [
            "predict",
            "--checkpoint",
            &run,
            "--data",
            &data,
            "--out",
            out.to_str().unwrap(),
            "--proba",
            "--device",
            "cuda",
        ];
        let Some(outcome) = under_virtual_gpus(n, &args, &[]) else { return };
        assert!(outcome.status.success(), "{}", outcome.stderr);
        let gpu = lines(&std::fs::read(&out).unwrap());
        for (gpu, cpu) in gpu[1..].iter().zip(&cpu[1..]) {
            assert_eq!(gpu[0], cpu[1]);
            let gap = (gpu[1].parse::<f64>().unwrap() - cpu[2].parse::<f64>().unwrap()).abs();
            assert!(gap < 1e-5, "{gpu:?} {cpu:?}");
        }
        assert_eq!(gpu.len(), cpu.len());
    }
}

/// The rows of `csv` in each table format of this build, without quotes around numbers.
fn in_every_table(model: &Model, csv: &str) -> Vec<PathBuf> {
    let comma = write(model.folder.path(), "rows.csv", csv);
    let mut endings = vec!["jsonl"];
    endings.extend(["parquet", "feather"].iter().filter(|_| cfg!(feature = "parquet")));
    let converted = endings.iter().map(|ending| {
        let name = format!("rows.{ending}");
        in_format(model.folder.path(), "rows.csv", &name, "--target label --categorical id");
        model.path(&name)
    });
    let converted: Vec<PathBuf> = converted.collect();
    // Ids contain a comma and are quoted.
    let semicolon = csv.replace("\"row, ", "\"row\u{0} ").replace(',', ";").replace('\u{0}', ",");
    let semicolon = write(model.folder.path(), "semicolon.csv", &semicolon);
    [comma, semicolon].into_iter().chain(converted).collect()
}

#[test]
fn every_table_gives_the_same_predictions_and_kept_columns() {
    let model = Model::new();
    let tables = in_every_table(&model, &table(50));
    let more = ["--keep", "id,b,label", "--proba"];
    let expected = model.predict(1, &tables[0], "expected.csv", &more);
    assert_eq!(lines(&expected)[0][..4], ["id", "b", "label", "prediction"]);
    for path in &tables[1..] {
        let got = lines(&model.predict(1, path, "got.csv", &[&more[..], &["--overwrite"]].concat()));
        for (row, (got, want)) in got.iter().zip(lines(&expected)).enumerate() {
            // Some formats drop trailing zeros of a number.
            let number = |row: &[String]| row[1].parse::<f32>().ok();
            assert_eq!(number(got), number(&want), "{} row {row}", path.display());
            assert_eq!((&got[0], &got[2..]), (&want[0], &want[2..]), "{} row {row}", path.display());
        }
        assert_eq!(got.len(), 51);
    }
}

#[test]
fn rows_that_cannot_be_predicted_stay_empty_in_every_table() {
    let model = Model::new();
    let csv = "id,a,b,label\n\"row, 0\",0.5,0.1,0\n\"row, 1\",,0.2,1\n\"row, 2\",0.25,0.3,0\n";
    let more = ["--keep", "id", "--bad-rows", "null", "--overwrite"];
    let mut tables = in_every_table(&model, csv);
    let json = [r#"{"id": "row, 0", "a": 0.5, "b": 0.1}"#, r#"{"a": "oops", "id": "row, 1", "b": 0.2}"#];
    let json = format!("{}\n{}\n{}\n", json[0], json[1], r#"{"id": "row, 2", "a": 0.25, "b": 0.3}"#);
    tables.push(write(model.folder.path(), "bad.jsonl", &json));
    let expected = lines(&model.predict(1, &tables[0], "out.csv", &more));
    assert_eq!((expected[2][0].as_str(), expected[2][1].as_str()), ("row, 1", ""));
    assert!(!expected[1][1].is_empty() && !expected[3][1].is_empty());
    for path in &tables[1..] {
        let got = lines(&model.predict(1, path, "out.csv", &more));
        assert_eq!(got, expected, "{}", path.display());
    }
}

#[test]
fn stdin_may_have_any_delimiter() {
    let model = Model::new();
    let rows = "x;a;b\nr0;0,5;0,25\nr1;-0,5;1\n";
    let file = write(model.folder.path(), "comma.csv", "x,a,b\nr0,0.5,0.25\nr1,-0.5,1\n");
    let expected = model.predict(1, &file, "out.csv", &["--keep", "x", "--proba"]);
    let args = model.args(Path::new("-"), "-", &["--keep", "x", "--proba"]);
    let mut command = single(&args.iter().map(String::as_str).collect::<Vec<_>>());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(rows.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.stdout, expected);
}

#[test]
fn requests_on_stdin_are_answered_by_one_process_with_the_same_bytes() {
    let model = Model::new();
    let rows = write(model.folder.path(), "new.csv", &table(300));
    let plain = model.predict(1, &rows, "plain.npy", &["--proba"]);
    let kept = model.predict(1, &rows, "kept.csv", &["--keep", "id"]);
    let run = model.run.display().to_string();
    let mut command = single(&["predict", "--checkpoint", &run, "--serve", "--device", "cpu"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let (data, out) = (rows.display(), |name: &str| model.path(name).display().to_string());
    let requests = [
        format!(r#"{{"data":"{data}","out":"{}","proba":true}}"#, out("a.npy")),
        format!(r#"{{"data":"{data}.gone","out":"{}"}}"#, out("b.npy")),
        "{".to_owned(),
        format!(r#"{{"data":"{data}","out":"{data}"}}"#),
        "x".repeat(3 << 20),
        format!(r#"{{"data":"{data}","out":"{}","keep":["id"]}}"#, out("c.csv")),
        format!(r#"{{"data":"{data}","out":"{}","proba":true}}"#, out("a.npy")),
    ];
    stdin.write_all((requests.join("\n") + "\n").as_bytes()).unwrap();
    drop(stdin);
    let outcome = child.wait_with_output().unwrap();
    assert!(outcome.status.success(), "{}", outcome.status);
    let answers: Vec<Value> = outcome
        .stdout
        .split(|byte| *byte == b'\n')
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    assert_eq!(answers.len(), 7, "{answers:?}");
    for (answer, is_met) in answers.iter().zip([true, false, false, false, false, true, true]) {
        assert_eq!(answer["rows"] == 300, is_met, "{answer}");
        assert_eq!(answer["error"].is_null() && answer["hint"].is_null(), is_met, "{answer}");
    }
    assert!(answers[1]["error"].as_str().unwrap().contains("does not exist"), "{}", answers[1]);
    assert!(answers[2]["error"].as_str().unwrap().starts_with("request: "), "{}", answers[2]);
    assert!(answers[3]["error"].as_str().unwrap().contains("would replace the rows"), "{}", answers[3]);
    assert_eq!(std::fs::read(model.path("a.npy")).unwrap(), plain);
    assert_eq!(std::fs::read(model.path("c.csv")).unwrap(), kept);
    refused(model.folder.path(), "predict --checkpoint run --serve --data x.csv", &["cannot be used with"]);
}
