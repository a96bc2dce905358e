//! `data convert` preserves the rows: training from the new files gives the same bits.

mod packages;

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{run_ok, same_bits, single, temp_dir, train, write};

fn fixtures(name: &str) -> PathBuf {
    crate::common::ddp_folder().join("tests/fixtures/tables").join(name)
}

/// Converts in `folder` and returns the output.
#[track_caller]
fn convert(folder: &Path, args: &[&str]) -> String {
    let mut command = single(&["data", "convert"]);
    command.args(args).current_dir(folder);
    run_ok(command).stdout
}

/// Endings of the formats for tables, and of those for arrays.
fn endings() -> Vec<&'static str> {
    let mut endings = vec!["csv.gz", "tsv", "jsonl", "npy", "npz", "safetensors"];
    endings.extend(["parquet", "feather"].into_iter().filter(|_| cfg!(feature = "parquet")));
    endings
}

/// Rows of a label, short decimals and integers; `last` returns the last cell of a row.
fn table(last: impl Fn(u32) -> String) -> String {
    let mut csv = "short,whole,kind,last\n".to_owned();
    for row in 0..60u32 {
        let kind = ["wolf", "ant", "Cat"][(row * 11 % 3) as usize];
        csv += &format!("{}.{},{},{kind},{}\n", row * 7 % 23, row % 10, row * row % 31, last(row));
    }
    csv
}

#[test]
fn training_from_converted_files_gives_the_same_bits() {
    let short = table(|row| format!("-0.00{}", row % 17));
    let long = table(|row| format!("{}.{:06}", 1_700_000_000 + row, 123_457 * row % 1_000_000));
    for (text, dtype) in
        [(short, "f32, which keeps every digit"), (long, "f64, because f32 would lose digits")]
    {
        let folder = temp_dir();
        let csv = write(folder.path(), "rows.csv", &text);
        let run_of = |path: &Path| {
            let name = path.to_str().unwrap();
            let mut config = format!(
                "[data]\ntrain = {name:?}\neval = {name:?}\nnormalize = \"standard\"\ntarget = \"kind\"\n"
            );
            if name.ends_with(".npy") {
                let labels = path.with_extension("labels.npy");
                config += &format!("labels = {labels:?}\neval_labels = {labels:?}\n");
            }
            config += "[model]\nhidden = [8]\n[train]\nepochs = 2\nglobal_batch_size = 8\n";
            train(1, &config, &[])
        };
        let want = run_of(&csv);
        for ending in endings() {
            let out = format!("new.{ending}");
            let said = convert(folder.path(), &["rows.csv", &out, "--target", "kind"]);
            if ["npy", "npz", "safetensors"].contains(&ending) {
                assert!(said.contains(&format!("features are {dtype}")), "{ending}: {said}");
            }
            let got = run_of(&folder.path().join(&out));
            assert_eq!(got.numbers("step", "loss"), want.numbers("step", "loss"), "{ending} {dtype}");
            assert!(same_bits(&got.weights(), &want.weights()), "{ending} {dtype}");
            assert_eq!(got.end("eval_accuracy"), want.end("eval_accuracy"));
        }
    }
}

#[test]
fn labels_in_safetensors_are_those_of_the_model() {
    let folder = temp_dir();
    write(folder.path(), "rows.csv", &table(|row| row.to_string()));
    convert(folder.path(), &["rows.csv", "rows.safetensors", "--target", "kind"]);
    let labels = fs::read_to_string(folder.path().join("rows.safetensors.labels.json")).unwrap();
    assert_eq!(labels, "[\"Cat\",\"ant\",\"wolf\"]\n");
    let rows = folder.path().join("rows.safetensors");
    let config = format!("[data]\ntrain = {rows:?}\n[model]\nhidden = [8]\n[train]\nepochs = 1\n");
    let run = train(1, &config, &[]);
    let (out, csv) = (run.out(), folder.path().join("predicted.csv"));
    run_ok(single(&[
        "predict",
        "--checkpoint",
        out.to_str().unwrap(),
        "--data",
        rows.to_str().unwrap(),
        "--out",
        csv.to_str().unwrap(),
        "--proba",
    ]));
    let header = fs::read_to_string(csv).unwrap().lines().next().unwrap().to_owned();
    assert_eq!(header, "prediction,proba_Cat,proba_ant,proba_wolf");
}

#[test]
fn both_parts_of_a_folder_of_idx_files_are_converted() {
    let folder = temp_dir();
    let mnist = fixtures("mnist");
    let said = convert(folder.path(), &[mnist.to_str().unwrap(), "digits.npz"]);
    assert!(said.contains("train: 20 rows") && said.contains("eval: 8 rows"), "{said}");
    assert!(said.contains("features are u8, as in the input"), "{said}");
    let config = |data: String| {
        format!("[data]\n{data}\n[model]\nhidden = [8]\n[train]\nepochs = 2\nglobal_batch_size = 4\n")
    };
    let want = train(1, &config(format!("train = {mnist:?}")), &[]);
    let [rows, eval] = ["digits.npz", "digits.eval.npz"].map(|name| folder.path().join(name));
    let got = train(1, &config(format!("train = {rows:?}\neval = {eval:?}")), &[]);
    assert_eq!(got.numbers("step", "loss"), want.numbers("step", "loss"));
    assert_eq!(got.end("eval_loss"), want.end("eval_loss"));
    assert!(same_bits(&got.weights(), &want.weights()));
}

#[test]
fn names_of_folders_become_columns_with_types() {
    let folder = temp_dir();
    for (day, is_new, row) in [("2024-02-28", "true", "0.5,0"), ("2024-02-29", "false", "1.5,1")] {
        let part = folder.path().join(format!("rows/day={day}/new={is_new}"));
        fs::create_dir_all(&part).unwrap();
        write(&part, "part.csv", &format!("a,label\n{row}\n"));
    }
    let rows = |name: &str| fs::read_to_string(folder.path().join(name)).unwrap();
    convert(folder.path(), &["rows", "out.csv"]);
    assert_eq!(rows("out.csv"), "a,label,day,new\n0.5,0,2024-02-28,true\n1.5,1,2024-02-29,false\n");
    convert(folder.path(), &["rows", "out.jsonl"]);
    assert_eq!(
        rows("out.jsonl"),
        "{\"a\":0.5,\"label\":0,\"day\":\"2024-02-28\",\"new\":true}\n{\"a\":1.5,\"label\":1,\"day\":\"2024-02-29\",\"new\":false}\n"
    );
    if cfg!(feature = "parquet") {
        convert(folder.path(), &["rows", "out.parquet"]);
        convert(folder.path(), &["out.parquet", "back.csv"]);
        assert_eq!(rows("back.csv"), rows("out.csv"));
        // Folders of typed files also have types.
        for (day, is_new) in [("2024-02-28", "true"), ("2024-02-29", "false")] {
            let part = format!("typed/day={day}/new={is_new}");
            fs::create_dir_all(folder.path().join(&part)).unwrap();
            let from = format!("rows/day={day}/new={is_new}/part.csv");
            convert(folder.path(), &[&from, &format!("{part}/part.parquet")]);
        }
        convert(folder.path(), &["typed", "typed.parquet"]);
        convert(folder.path(), &["typed.parquet", "typed.csv"]);
        assert_eq!(rows("typed.csv"), rows("out.csv"));
    }
    convert(folder.path(), &["rows", "out.npz"]);
    convert(folder.path(), &["out.npz", "seconds.csv"]);
    assert_eq!(rows("seconds.csv"), "f0,f1,f2,label\n0.5,1709078400,1,0\n1.5,1709164800,0,1\n");
}
