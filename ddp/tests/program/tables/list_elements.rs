//! Elements of lists as targets, weights, categories and in filters: they are the same in each format.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use arrow_array::types::Float64Type;
use arrow_array::{ArrayRef, Float64Array, ListArray, RecordBatch};
use parquet::arrow::ArrowWriter;

use crate::common::{run_line_ok, temp_dir};
use crate::data::formats::arrow_file;

const N_ROWS: usize = 400;

/// Two numbers, two bits and a category; the first number is the same in all rows where it is `constant`.
fn list(row: usize, constant: bool) -> [f64; 5] {
    let number = |n: usize| ((row * 7 + n) as f64 * 0.7).sin();
    let bit = |n: usize| f64::from(number(n) > 0.0);
    [if constant { 0.5 } else { number(0) }, number(1), bit(0), bit(1), (row % 3) as f64]
}

/// Writes the same rows as JSON lines, Parquet and Arrow.
fn write_rows(folder: &Path, name: &str, constant: bool) {
    let y = |row: usize| list(row, false)[1] * 2.0 + list(row, false)[4];
    let mut text = String::new();
    for row in 0..N_ROWS {
        writeln!(text, "{{\"emb\":{:?},\"y\":{:?}}}", list(row, constant), y(row)).unwrap();
    }
    let path = |ending: &str| folder.join(format!("{name}.{ending}"));
    fs::write(path("jsonl"), text).unwrap();
    let lists = (0..N_ROWS).map(|row| Some(list(row, constant).map(Some)));
    let columns: [(&str, ArrayRef); 2] = [
        ("emb", Arc::new(ListArray::from_iter_primitive::<Float64Type, _, _>(lists))),
        ("y", Arc::new(Float64Array::from_iter_values((0..N_ROWS).map(y)))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let file = File::create(path("parquet")).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    arrow_file(&path("parquet"), &path("arrow"));
}

#[test]
fn elements_are_the_same_in_each_format() {
    let folder = temp_dir();
    let folder = folder.path();
    write_rows(folder, "rows", false);
    write_rows(folder, "constant", true);
    let uses = [
        ("rows", "--target emb[1] --task regression"),
        ("rows", "--target emb[0] --task regression --set data.weight=emb[2]"),
        ("rows", "--target emb[2] --target emb[3] --task multilabel"),
        ("rows", "--target emb[3] --task classification --categorical emb[4]"),
        ("rows", "--target y --categorical emb[0] --drop emb[2]"),
        ("rows", "--target y --set data.filter=\"emb[1]\">0"),
        ("constant", "--target y"),
    ];
    for (number, (name, flags)) in uses.into_iter().enumerate() {
        let mut predictions = Vec::new();
        for format in ["jsonl", "parquet", "arrow"] {
            let (rows, run) = (format!("{name}.{format}"), format!("{format}{number}"));
            let train = "--hidden 4 --epochs 2 --eval-fraction 0.2 --plain --device cpu --out";
            run_line_ok(folder, &format!("train {rows} {flags} {train} {run}"));
            let data = format!("--checkpoint {run} --data {rows} --device cpu");
            let eval = run_line_ok(folder, &format!("eval {data}")).stdout;
            let metrics: Vec<String> =
                eval.lines().filter(|line| !line.contains(format)).map(str::to_owned).collect();
            run_line_ok(folder, &format!("predict {data} --out {run}.csv"));
            predictions.push((fs::read_to_string(folder.join(format!("{run}.csv"))).unwrap(), metrics));
        }
        assert!(predictions[0].0.lines().count() > 300, "{flags}");
        assert_eq!(predictions[1], predictions[0], "Parquet, {name} {flags}");
        assert_eq!(predictions[2], predictions[0], "Arrow, {name} {flags}");
    }
    // The list is kept as a whole, too, where some of its elements are features.
    run_line_ok(
        folder,
        "predict --checkpoint parquet6 --data constant.parquet --keep emb --out kept.parquet",
    );
    run_line_ok(folder, "data inspect constant.parquet --target y --write-config inspected.toml");
    run_line_ok(folder, "train inspected.toml --epochs 1 --device cpu --out inspected");
}
