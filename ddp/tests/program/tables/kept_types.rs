//! `predict --keep` from Parquet or Arrow to Parquet keeps the types of the columns, including nulls.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow_array::types::Float32Type;
use arrow_array::{Array, ArrayRef, Int64Array, ListArray, RecordBatch};
use arrow_schema::DataType;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::common::{ranks, refused, run_line_ok, run_ok, temp_dir, write};
use crate::data::formats::arrow_file;

/// A table with columns of all kinds, some with gaps.
fn table(n_rows: usize) -> String {
    let mut text = "id,amount,day,at,member,city,x,label\n".to_owned();
    for n in 0..n_rows {
        let amount = if n % 7 == 3 { String::new() } else { format!("{}.25", n % 100) };
        let city = if n % 5 == 2 { "" } else { ["Bern", "Köln"][n % 2] };
        let day = n % 28 + 1;
        write!(text, "{},{amount},2024-05-{day:02},2024-05-{day:02}T12:30:15,", 10_000_000_000 + n).unwrap();
        writeln!(text, "{},{city},{:.3},{}", n % 3 == 0, (n as f64).sin(), n % 2).unwrap();
    }
    text
}

fn batches(path: &Path) -> Vec<RecordBatch> {
    let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap()).unwrap();
    reader.with_batch_size(1 << 20).build().unwrap().map(Result::unwrap).collect()
}

/// The values of a column as strings, batch by batch.
fn values(batches: &[RecordBatch], name: &str) -> (DataType, Vec<String>) {
    let mut all = Vec::new();
    for batch in batches {
        let column = batch.column_by_name(name).unwrap();
        let text = |row: usize| {
            if column.is_null(row) { "null".to_owned() } else { format!("{:?}", column.slice(row, 1)) }
        };
        all.extend((0..batch.num_rows()).map(text));
    }
    (batches[0].column_by_name(name).unwrap().data_type().clone(), all)
}

#[test]
fn kept_columns_have_the_types_of_the_input() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "rows.csv", &table(3_000));
    run_line_ok(folder, "data convert rows.csv rows.parquet");
    arrow_file(&folder.join("rows.parquet"), &folder.join("rows.feather"));
    let drop = "--set data.drop=[\"id\",\"amount\",\"day\",\"at\",\"member\",\"city\"]";
    run_line_ok(folder, &format!("train rows.csv {drop} --epochs 1 --hidden 4 --device cpu --out run"));
    let names = ["id", "amount", "day", "at", "member", "city"];
    let expected = batches(&folder.join("rows.parquet"));
    for (n_ranks, data) in [(1, "rows.parquet"), (2, "rows.parquet"), (1, "rows.feather")] {
        let path = |name: &str| folder.join(name).display().to_string();
        let (run, data, out) = (path("run"), path(data), path("out.parquet"));
        let args = ["predict", "--checkpoint", &run, "--data", &data, "--out", &out, "--overwrite"];
        let more = ["--keep", &names.join(","), "--device", "cpu"];
        run_ok(ranks(n_ranks, &[args.as_slice(), &more].concat()));
        let got = batches(Path::new(&out));
        for name in names {
            assert_eq!(values(&got, name), values(&expected, name), "{name} of {data}");
        }
        assert_eq!(got.iter().map(RecordBatch::num_rows).sum::<usize>(), 3_000);
        assert_eq!(values(&got, "prediction").0, DataType::Int64);
    }
    let types = names.map(|name| values(&expected, name).0);
    assert_eq!((&types[0], &types[1], &types[4]), (&DataType::Int64, &DataType::Float64, &DataType::Boolean));
    assert!(types[2..4].iter().all(DataType::is_temporal), "{types:?}");
    // CSV has no types.
    run_line_ok(folder, "predict --checkpoint run --data rows.csv --out text.parquet --keep id --device cpu");
    assert_eq!(values(&batches(&folder.join("text.parquet")), "id").0, DataType::Utf8);
}

/// Writes a table of lists with two numbers, and of lists with one to three.
fn write_lists(path: &Path) {
    let number = |n: i32| Some((n as f32 * 0.7).sin());
    let pairs = (0..900).map(|n| Some(vec![number(n), number(n + 1)]));
    let others = (0..900).map(|n| (n % 5 != 2).then(|| (0..n % 3 + 1).map(number).collect::<Vec<_>>()));
    let columns: [(&str, ArrayRef); 4] = [
        ("id", Arc::new(Int64Array::from_iter_values(0..900))),
        ("emb", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(pairs))),
        ("other", Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(others))),
        ("label", Arc::new(Int64Array::from_iter_values((0..900).map(|n| n % 2)))),
    ];
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let mut writer = ArrowWriter::try_new(File::create(path).unwrap(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

#[test]
fn whole_lists_are_kept_where_the_output_holds_lists() {
    let folder = temp_dir();
    let folder = folder.path();
    write_lists(&folder.join("rows.parquet"));
    let train =
        "train rows.parquet --set data.drop=[\"id\",\"other\"] --epochs 1 --hidden 4 --device cpu --out run";
    run_line_ok(folder, train);
    arrow_file(&folder.join("rows.parquet"), &folder.join("rows.feather"));
    let expected = batches(&folder.join("rows.parquet"));
    for (n_ranks, data) in [(1, "rows.parquet"), (2, "rows.parquet"), (1, "rows.feather")] {
        let path = |name: &str| folder.join(name).display().to_string();
        let (run, data, out) = (path("run"), path(data), path("out.parquet"));
        let args = ["predict", "--checkpoint", &run, "--data", &data, "--out", &out, "--overwrite"];
        let more = ["--keep", "other,emb,id,emb[1]", "--device", "cpu"];
        run_ok(ranks(n_ranks, &[args.as_slice(), &more].concat()));
        let got = batches(Path::new(&out));
        for name in ["id", "emb", "other"] {
            assert_eq!(values(&got, name), values(&expected, name), "{name} of {data}");
        }
        let names: Vec<String> = got[0].schema().fields().iter().map(|field| field.name().clone()).collect();
        assert_eq!(names, ["other", "emb", "id", "emb[1]", "prediction"]);
    }
    for column in ["emb", "other"] {
        let line = format!(
            "predict --checkpoint run --data rows.parquet --out out.csv --keep {column} --device cpu"
        );
        refused(folder, &line, &[&format!("column \"{column}\""), "write the predictions to .parquet"]);
    }
    let line = "predict --checkpoint run --data rows.parquet --out out.csv --keep emb[1] --device cpu";
    run_line_ok(folder, line);
}
