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
fn files_with_their_columns_in_other_orders_show_each_value_under_its_name() {
    let folder = temp_dir();
    let folder = folder.path();
    let endings: &[&str] =
        if cfg!(feature = "parquet") { &["csv", "jsonl", "parquet"] } else { &["csv", "jsonl"] };
    write(folder, "a.csv", "x,y,label\n1,2,a\n3,4,b\n");
    write(folder, "b.csv", "y,x,label\n20,10,a\n40,30,b\n");
    for ending in endings {
        std::fs::create_dir(folder.join(ending)).unwrap();
        for part in ["a", "b"] {
            let out = format!("{ending}/{part}.{ending}");
            match *ending {
                "csv" => drop(std::fs::copy(folder.join(format!("{part}.csv")), folder.join(out)).unwrap()),
                _ => in_format(folder, &format!("{part}.csv"), &out, "--target label"),
            }
        }
        let text = run_line_ok(folder, &format!("data show {ending} --rows 1..3")).stdout;
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let [names, of_a, of_b] = &lines[..] else { panic!("{text}") };
        let cell =
            |row: &[&str], name: &str| row[names.iter().position(|of| *of == name).unwrap()].to_owned();
        assert_eq!(["x", "y", "label"].map(|name| cell(of_a, name)), ["3", "4", "b"], "{ending}: {text}");
        assert_eq!(["x", "y", "label"].map(|name| cell(of_b, name)), ["10", "20", "a"], "{ending}: {text}");
    }
    // The value of a folder takes the place of a column of its files.
    for (group, text) in [("1", "g,x,label\n7,1,a\n"), ("2", "label,x,g\nb,2,7\n")] {
        std::fs::create_dir_all(folder.join(format!("groups/g={group}"))).unwrap();
        write(folder, &format!("groups/g={group}/rows.csv"), text);
    }
    let text = run_line_ok(folder, "data show groups --rows 0..2").stdout;
    assert_eq!(text, "row  g  x  label\n  0  1  1      a\n  1  2  2      b\n");
}

#[test]
fn files_with_other_columns_are_refused() {
    let folder = temp_dir();
    let folder = folder.path();
    std::fs::create_dir(folder.join("parts")).unwrap();
    let line = |of: &dyn Fn(usize) -> String, n: usize| (0..n).map(of).collect::<Vec<_>>().join(",");
    let file = |n: usize| format!("{}\n{}\n", line(&|i| format!("c{i}"), n), line(&|i| i.to_string(), n));
    write(folder, "parts/a.csv", &file(14));
    write(folder, "parts/b.csv", &file(13));
    assert!(run_line_ok(folder, "data show parts --rows 0").stdout.contains("c13"));
    let outcome = run_line(folder, "data show parts --rows 0..2");
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("14 columns against 13"), "{}", outcome.stderr);
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
    for (set, message) in [
        ("data.filter=label=7", "`data.filter` keeps none of the 5 rows of rows.csv"),
        ("data.filter=label=0", "rows.csv with `data.filter` has 2 rows, numbered from 0: there is no row 3"),
        ("data.max_rows=2", "rows.csv with `data.max_rows` has 2 rows, numbered from 0: there is no row 3"),
    ] {
        let outcome = run_line(folder, &format!("data show rows.csv --rows 3 --set {set}"));
        assert_eq!(outcome.status.code(), Some(2), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(message), "{}", outcome.stderr);
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
