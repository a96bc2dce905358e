//! Folders of tables as other programs write them: sub-folders, marker files, lake tables, columns of folders.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::common::{run_line, run_line_ok, temp_dir};

/// Writes 40 rows of a feature, a target and `more`.
fn write(path: &Path, more: Option<(&str, &str)>) {
    let mut text = format!("x,y{}\n", more.map_or(String::new(), |(name, _)| format!(",{name}")));
    for row in 0..40 {
        let more = more.map_or(String::new(), |(_, value)| format!(",{value}"));
        writeln!(text, "{},{}{more}", f64::from(row) / 7.0, row % 2).unwrap();
    }
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

/// Both streams with single blanks, since long lines are wrapped.
#[track_caller]
fn output(folder: &Path, line: &str) -> String {
    let outcome = run_line_ok(folder, line);
    format!("{} {}", outcome.stdout, outcome.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn rows_in_sub_folders_are_read() {
    let folder = temp_dir();
    for name in ["a.csv", "2024/b.csv", "2024/01/c.csv", "_tmp/d.csv", ".old/e.csv", "_SUCCESS"] {
        write(&folder.path().join("rows").join(name), None);
    }
    let shown = output(folder.path(), "data inspect rows --target y -v");
    assert!(shown.contains("rows: CSV, 120 rows x 2 columns (3 files"), "{shown}");
    for name in ["_SUCCESS", "_tmp", ".old"] {
        assert!(shown.contains(&format!("rows/{name}: skipped: ")), "{name}: {shown}");
    }
    let quick = "--target y --epochs 1 --hidden 2 --device cpu";
    // A run among the rows is none of them.
    output(folder.path(), &format!("train rows {quick} --out rows/run"));
    let again = output(folder.path(), &format!("train rows {quick} --out run"));
    assert!(again.contains("rows: 120 rows"), "{again}");

    write(&folder.path().join("rows/test/f.csv"), None);
    let note = "sub-folder rows/test is left out: to evaluate on its rows, set `data.eval` to it (--eval)";
    let shown = output(folder.path(), "data inspect rows --target y");
    assert!(shown.contains("120 rows") && shown.contains(note), "{shown}");
    let train =
        |more: &str, out: &str| output(folder.path(), &format!("train rows {quick} {more} --out {out}"));
    assert_eq!(train("", "run2").matches(note).count(), 1);
    let evaluated = train("--eval rows/test", "run3");
    assert!(!evaluated.contains("left out") && evaluated.contains("40 for evaluation"), "{evaluated}");
}

#[test]
fn files_of_lake_tables_are_not_read_without_their_log() {
    for (log, name) in [
        ("_delta_log/00000000000000000000.json", "Delta Lake"),
        ("metadata/v1.metadata.json", "Iceberg"),
        (".hoodie/hoodie.properties", "Hudi"),
    ] {
        let folder = temp_dir();
        let rows = folder.path().join("rows");
        write(&rows.join("part-0.csv"), None);
        write(&rows.join("k=1/part-1.csv"), None);
        fs::create_dir_all(rows.join(log).parent().unwrap()).unwrap();
        fs::write(rows.join(log), "{}").unwrap();
        for source in ["rows", "rows/*.csv", "rows/k=*/*.csv"] {
            let refused = run_line(folder.path(), &format!("data inspect {source} --target y"));
            assert_eq!(refused.status.code(), Some(2), "{source}: {}", refused.stdout);
            assert!(refused.stderr.contains(&format!("is a {name} table")), "{}", refused.stderr);
            assert!(refused.stderr.contains("hint: export its current rows: "), "{}", refused.stderr);
        }
    }
}

#[test]
fn the_value_of_a_folder_applies_to_a_column_of_its_files() {
    let folder = temp_dir();
    write(&folder.path().join("rows/g=1/a.csv"), Some(("g", "7")));
    write(&folder.path().join("rows/g=2/a.csv"), Some(("g", "7")));
    let note = "column \"g\" of the files is left out: the names of their folders (`g=...`) have its value";
    let shown = output(folder.path(), "data inspect rows --target y");
    assert!(shown.contains(note) && !shown.contains("drop ="), "{shown}");
    let trained = output(
        folder.path(),
        "train rows --target y --epochs 1 --hidden 2 --device cpu --eval-fraction 0.2 --out run",
    );
    assert_eq!(trained.matches(note).count(), 1, "{trained}");
    // The features are x and the folder's value, which varies.
    output(folder.path(), "data convert rows all.csv");
    let all = fs::read_to_string(folder.path().join("all.csv")).unwrap();
    assert!(all.starts_with("x,y,g\n0,0,1\n"), "{all}");
    output(folder.path(), "predict --checkpoint run --data rows --keep g --out kept.csv");
    let kept = fs::read_to_string(folder.path().join("kept.csv")).unwrap();
    assert_eq!(kept.lines().filter(|line| line.starts_with("2,")).count(), 40, "{kept}");
}

#[test]
fn columns_that_training_lacks_are_left_out() {
    let folder = temp_dir();
    write(&folder.path().join("train.csv"), None);
    write(&folder.path().join("more.csv"), Some(("id", "a")));
    let train = "train train.csv --target y --eval more.csv --epochs 1 --hidden 2 --device cpu --out";
    let note = "more.csv: column \"id\" is left out: train.csv does not have it";
    let trained = output(folder.path(), &format!("{train} run"));
    assert_eq!(trained.matches(note).count(), 1, "{trained}");
    let refused = run_line(folder.path(), &format!("{train} strict --set data.extra_columns=error"));
    assert!(refused.stderr.contains("\"id\" is extra"), "{}", refused.stderr);
    let evaluated = output(folder.path(), "eval --checkpoint run --data more.csv");
    assert!(evaluated.contains("more.csv: column \"id\" is left out"), "{evaluated}");
    let strict = run_line(folder.path(), "eval --checkpoint run --data more.csv --strict-columns");
    assert!(strict.stderr.contains("\"id\" is extra"), "{}", strict.stderr);
}
