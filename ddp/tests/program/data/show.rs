//! `ddp-train data show`: prints rows by index, from every format.

#![allow(clippy::unwrap_used)]

use serde_json::Value;

use crate::common::{run_line, run_line_ok, temp_dir, write};
use crate::data::files::Element;
use crate::data::formats::{as_arrays, in_format};

const ROWS: &str = "a,b,label\n0.5,-1.25,0\n1.5,2,1\n-3,0.125,0\n8,1e20,1\n0,7,1\n";

/// Rows of `stdout`, with their cells as numbers, which are the same in every format.
fn objects(stdout: &str) -> Vec<(u64, Vec<(String, f64)>)> {
    let object = |line: &str| {
        let object: Value = serde_json::from_str(line).unwrap();
        let cells = object["cells"].as_object().unwrap().iter();
        let cells = cells.map(|(name, cell)| (name.clone(), cell.as_str().unwrap().parse().unwrap()));
        (object["row"].as_u64().unwrap(), cells.collect())
    };
    stdout.lines().map(object).collect()
}

#[test]
fn every_format_shows_the_same_rows() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "rows.csv", ROWS);
    let text = run_line_ok(folder, "data show rows.csv --rows 1,3..5").stdout;
    assert_eq!(
        text,
        "row    a     b  label\n  1  1.5     2      1\n  3    8  1e20      1\n  4    0     7      1\n"
    );
    let kept = run_line_ok(folder, "data show rows.csv --rows 1.. --set data.filter=label=0").stdout;
    assert_eq!(kept, "row   a      b  label\n  1  -3  0.125      0\n");
    let want = objects(&run_line_ok(folder, "data show rows.csv --rows 3..,1 --json").stdout);
    assert_eq!(want.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [1, 3, 4]);
    let tables = ["csv.gz", "tsv", "jsonl", "jsonl.zst"];
    let binary: &[&str] = if cfg!(feature = "parquet") { &["parquet", "arrow"] } else { &[] };
    for ending in tables.iter().chain(binary).chain(&["npz", "safetensors"]) {
        let name = format!("out.{ending}");
        match *ending {
            "npz" | "safetensors" => as_arrays(folder, "rows.csv", &name, "label", &[], Element::F64),
            _ => in_format(folder, "rows.csv", &name, ""),
        }
        let shown = run_line_ok(folder, &format!("data show out.{ending} --rows 3..,1 --json"));
        let mut rows = objects(&shown.stdout);
        // Arrays store the labels under a different name.
        rows.iter_mut().for_each(|(_, cells)| cells.sort_by(|a, b| a.0.cmp(&b.0)));
        let numbers = |rows: &[(u64, Vec<(String, f64)>)]| {
            rows.iter()
                .map(|(row, cells)| (*row, cells.iter().map(|cell| cell.1).collect()))
                .collect::<Vec<(u64, Vec<f64>)>>()
        };
        assert_eq!(numbers(&rows), numbers(&want), "{ending}: {}", shown.stdout);
    }
    as_arrays(folder, "rows.csv", "out.npy", "label", &[], Element::F64);
    let single = run_line_ok(folder, "data show out.npy --labels out.labels.npy --rows 2");
    assert!(
        single.stdout.lines().nth(1).unwrap().split_whitespace().eq(["2", "-3", "0.125", "0"]),
        "{}",
        single.stdout
    );
}

#[test]
fn rows_are_counted_over_all_files_and_many_columns_stand_below_each_other() {
    let folder = temp_dir();
    let folder = folder.path();
    std::fs::create_dir(folder.join("parts")).unwrap();
    write(folder, "parts/a.csv", ROWS);
    write(folder, "parts/b.csv", ROWS);
    let text = run_line_ok(folder, "data show parts --rows 4..6").stdout;
    assert_eq!(text, "row    a      b  label\n  4    0      7      1\n  5  0.5  -1.25      0\n");
    let digits = run_line_ok(folder, "data show builtin:digits --rows 0,7").stdout;
    let lines: Vec<_> = digits.lines().collect();
    assert_eq!((lines.len(), lines[0].split_whitespace().count()), (66, 5), "{digits}");
    assert!(lines[65].starts_with("label"), "{digits}");
}

#[test]
fn rows_that_are_not_there_are_refused() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "rows.csv", ROWS);
    for rows in ["5", "0..6", "2,17"] {
        let outcome = run_line(folder, &format!("data show rows.csv --rows {rows}"));
        assert_eq!(outcome.status.code(), Some(2), "{}", outcome.stderr);
        assert!(
            outcome.stderr.contains("rows.csv has 5 rows, numbered from 0: there is no row "),
            "{}",
            outcome.stderr
        );
    }
    for rows in ["x", "3..3", "-1", "1,,2"] {
        let outcome = run_line(folder, &format!("data show rows.csv --rows={rows}"));
        assert_eq!(outcome.status.code(), Some(2), "{}", outcome.stderr);
        assert!(
            outcome.stderr.contains("hint: 3,17,100..120 are rows 3, 17 and 100 to 119"),
            "{}",
            outcome.stderr
        );
    }
}
