//! Folders of tables as other programs write them: sub-folders, marker files, lake tables, columns of folders.

use std::fmt::Write as _;
use std::fs;
use std::io::Write as _;
use std::path::Path;

use crate::common::{read_weights, run_line, run_line_ok, same_bits, temp_dir};

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
    output(folder.path(), &format!("train --plain rows {quick} --out rows/run"));
    let again = output(folder.path(), &format!("train --plain rows {quick} --out run"));
    assert!(again.contains("run: 120 rows"), "{again}");

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
        ("_versions/1.manifest", "Lance"),
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
    let row = output(folder.path(), "data show rows --rows 0 --json");
    assert!(row.contains(r#"{"g":"1","x":"0","y":"0"}"#), "{row}");
    // The features are x and the folder's value, which varies.
    if cfg!(feature = "parquet") {
        output(folder.path(), "data convert rows all.parquet");
        let first = output(folder.path(), "data show all.parquet --rows 0 --json");
        assert!(first.contains(r#"{"g":"1","x":"0","y":"0"}"#), "{first}");
    }
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

#[test]
fn further_files_may_have_their_columns_in_another_order() {
    let folder = temp_dir();
    let rows = |range: std::ops::Range<usize>, is_other: bool| -> String {
        let row = |n: usize| {
            let (x, z, y) = (n * 7 % 11, ["u", "v", "w"][n % 3], n % 2);
            if is_other { format!("{y},{z},{x}\n") } else { format!("{x},{z},{y}\n") }
        };
        let header = if is_other { "y,z,x\n" } else { "x,z,y\n" };
        header.to_owned() + &range.map(row).collect::<String>()
    };
    fs::create_dir(folder.path().join("rows")).unwrap();
    fs::write(folder.path().join("rows/a.csv"), rows(0..40, false)).unwrap();
    fs::write(folder.path().join("rows/b.csv"), rows(40..80, true)).unwrap();
    fs::write(folder.path().join("all.csv"), rows(0..80, false)).unwrap();
    let train = |source: &str| {
        let quick = "--target y --categorical z --epochs 2 --hidden 4 --device cpu --threads 1";
        output(folder.path(), &format!("train {source} {quick} --out of-{source}"));
        read_weights(&folder.path().join(format!("of-{source}/model.safetensors")))
    };
    assert!(same_bits(&train("rows"), &train("all.csv")));
    let columns = |source: &str| {
        let shown = output(folder.path(), &format!("data inspect {source} --target y"));
        shown[shown.find("column ").unwrap()..shown.find("[data]").unwrap()].to_owned()
    };
    assert_eq!(columns("rows"), columns("all.csv"));
    let predict = |source: &str| {
        let line = format!("predict --checkpoint of-rows --data {source} --keep z,x --out p-{source}.csv");
        output(folder.path(), &line);
        fs::read_to_string(folder.path().join(format!("p-{source}.csv"))).unwrap()
    };
    assert_eq!(predict("rows"), predict("all.csv"));
}

#[test]
fn titles_above_the_names_and_names_of_rows_are_left_out() {
    let folder = temp_dir();
    let rows = |name: &str| {
        (0..40)
            .map(|n| format!("{}{};{}\n", name.replace('#', &n.to_string()), n % 7, n % 2))
            .collect::<String>()
    };
    let quick = "--epochs 1 --hidden 2 --device cpu --eval-fraction 0.2";
    fs::write(folder.path().join("title.csv"), format!("Draws of 2025\nx;label\n{}", rows(""))).unwrap();
    fs::write(folder.path().join("r.csv"), format!("x;label\n{}", rows("row#;"))).unwrap();
    for (file, note) in [
        ("title.csv", "the line \"Draws of 2025\" above the names is taken for a title"),
        ("r.csv", "column 1 has no name and is left out, like row numbers of pandas or R"),
    ] {
        let shown = output(folder.path(), &format!("data inspect {file}"));
        assert!(shown.contains(note) && shown.contains("40 rows"), "{shown}");
        let trained = output(folder.path(), &format!("train {file} {quick} --out run-{file}"));
        assert_eq!(trained.matches(note).count(), 1, "{trained}");
        assert!(trained.contains(", 1-2-2 layers"), "{trained}");
    }
    // An error still names the line of the file.
    fs::write(folder.path().join("bad.csv"), format!("Draws of 2025\nx;label\n{}a;1\n", rows(""))).unwrap();
    let refused = run_line(folder.path(), &format!("train --plain bad.csv {quick} --out bad"));
    assert!(refused.stderr.contains("line 43, column \"x\""), "{}", refused.stderr);
}

#[test]
fn an_archive_of_one_table_is_read() {
    let folder = temp_dir();
    write(&folder.path().join("rows.csv"), None);
    let rows = fs::read(folder.path().join("rows.csv")).unwrap();
    let archive = |name: &str, members: &[&str]| {
        let mut archive = zip::ZipWriter::new(fs::File::create(folder.path().join(name)).unwrap());
        for member in members {
            archive.start_file(*member, zip::write::SimpleFileOptions::default()).unwrap();
            archive.write_all(&rows).unwrap();
        }
        archive.finish().unwrap();
    };
    archive("one.zip", &["__MACOSX/._rows.csv", "rows.csv"]);
    archive("two.zip", &["a.csv", "b.csv"]);
    let shown = output(folder.path(), "data inspect one.zip --target y");
    assert!(shown.contains("one.zip: CSV, zip, 40 rows x 2 columns"), "{shown}");
    let quick = "--target y --epochs 1 --hidden 2 --device cpu --threads 1";
    for source in ["one.zip", "rows.csv"] {
        output(folder.path(), &format!("train {source} {quick} --out of-{source}"));
    }
    let weights = |source: &str| read_weights(&folder.path().join(format!("of-{source}/model.safetensors")));
    assert!(same_bits(&weights("one.zip"), &weights("rows.csv")));
    let refused = run_line(folder.path(), "data inspect two.zip --target y");
    assert!(refused.stderr.contains("is a zip archive\nhint: unpack it first"), "{}", refused.stderr);
}

#[test]
fn ragged_lists_that_are_dropped_are_no_error() {
    let folder = temp_dir();
    let row = |n: usize| format!("{{\"x\": {n}, \"l\": {:?}, \"y\": {}}}\n", vec![1; 1 + n % 3], n % 2);
    fs::write(folder.path().join("rows.jsonl"), (0..40).map(row).collect::<String>()).unwrap();
    let refused = run_line(folder.path(), "data inspect rows.jsonl --target y");
    assert!(refused.stderr.contains("column \"l\": expected a list of 1 numbers"), "{}", refused.stderr);
    let shown = output(folder.path(), "data inspect rows.jsonl --target y --drop l --write-config run.toml");
    assert!(shown.contains("l dropped") && shown.contains("drop = [\"l\"]"), "{shown}");
    output(folder.path(), "train run.toml --epochs 1 --hidden 2 --device cpu --out run");
    output(folder.path(), "predict --checkpoint run --data rows.jsonl --out predicted.csv");
}
