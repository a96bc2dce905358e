//! `data convert` preserves the rows: training from the new files gives the same bits.
#![cfg(feature = "parquet")]

mod packages;

use std::fs;
use std::path::{Path, PathBuf};

use arrow_schema::DataType;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::common::{run_line_ok, run_ok, same_bits, single, temp_dir, train, write};
use crate::data::formats::in_format;

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
    for text in [short, long] {
        let folder = temp_dir();
        let csv = write(folder.path(), "rows.csv", &text);
        let run_of = |path: &Path| {
            let config = format!(
                "[data]\ntrain = {path:?}\neval = {path:?}\nnormalize = \"standard\"\ntarget = \"kind\"\n\
                 [model]\nhidden = [8]\n[train]\nepochs = 2\nglobal_batch_size = 8\n"
            );
            train(1, &config, &[])
        };
        let want = run_of(&csv);
        for ending in ["tsv", "jsonl", "feather"] {
            in_format(folder.path(), "rows.csv", &format!("from.{ending}"), "");
        }
        for from in ["rows.csv", "from.tsv", "from.jsonl", "from.feather"] {
            convert(folder.path(), &[from, "new.parquet", "--target", "kind", "--overwrite"]);
            let got = run_of(&folder.path().join("new.parquet"));
            assert_eq!(got.numbers("step", "loss"), want.numbers("step", "loss"), "{from}");
            assert!(same_bits(&got.weights(), &want.weights()), "{from}");
            assert_eq!(got.end("eval_accuracy"), want.end("eval_accuracy"));
        }
    }
}

#[test]
fn both_parts_of_a_folder_of_idx_files_are_converted() {
    let folder = temp_dir();
    let mnist = fixtures("mnist");
    let said = convert(folder.path(), &[mnist.to_str().unwrap(), "digits.parquet"]);
    assert!(said.contains("train: 20 rows") && said.contains("eval: 8 rows"), "{said}");
    let config = |data: String| {
        format!(
            "[data]\nnormalize = \"none\"\ntask = \"classification\"\n{data}\n\
             [model]\nhidden = [8]\n[train]\nepochs = 2\nglobal_batch_size = 4\n"
        )
    };
    let want = train(1, &config(format!("train = {mnist:?}")), &[]);
    let [rows, eval] = ["digits.parquet", "digits.eval.parquet"].map(|name| folder.path().join(name));
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
    let rows = |name: &str| {
        let shown = run_line_ok(folder.path(), &format!("data show {name} --rows 0..2")).stdout;
        shown.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let want = "row a label day new 0 0.5 0 2024-02-28 true 1 1.5 1 2024-02-29 false";
    convert(folder.path(), &["rows", "out.parquet"]);
    assert_eq!(rows("out.parquet"), want);
    // Folders of typed files also have types.
    for (day, is_new) in [("2024-02-28", "true"), ("2024-02-29", "false")] {
        let part = format!("typed/day={day}/new={is_new}");
        fs::create_dir_all(folder.path().join(&part)).unwrap();
        let from = format!("rows/day={day}/new={is_new}/part.csv");
        convert(folder.path(), &[&from, &format!("{part}/part.parquet")]);
    }
    convert(folder.path(), &["typed", "typed.parquet"]);
    assert_eq!(rows("typed.parquet"), want);
    let types = |name: &str| {
        let file = fs::File::open(folder.path().join(name)).unwrap();
        let schema = ParquetRecordBatchReaderBuilder::try_new(file).unwrap().schema().clone();
        schema.fields().iter().map(|field| field.data_type().clone()).collect::<Vec<_>>()
    };
    let want = [DataType::Float64, DataType::Int64, DataType::Date32, DataType::Boolean];
    assert_eq!((&types("out.parquet")[..], &types("typed.parquet")[..]), (&want[..], &want[..]));
}
