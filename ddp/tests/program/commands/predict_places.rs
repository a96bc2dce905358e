//! Places that `predict` can't write, and files that it can't read: what it says of them.

use rustix::fs::{CWD, FileType, Mode};

use crate::common::{refused, run_line, run_line_ok, temp_dir, write};
use crate::data::files::{Element, npy};

fn trained() -> tempfile::TempDir {
    let folder = temp_dir();
    let rows: String = (0..40).map(|i| format!("{i},{},{}\n", i % 3, i % 2)).collect();
    write(folder.path(), "rows.csv", &format!("a,b,label\n{rows}"));
    run_line_ok(folder.path(), "train rows.csv --target label --epochs 1 --device cpu --out r --quiet");
    folder
}

#[test]
fn predictions_take_the_place_of_no_rows() {
    let folder = trained();
    let before = std::fs::read(folder.path().join("rows.csv")).unwrap();
    std::os::unix::fs::symlink("rows.csv", folder.path().join("link.csv")).unwrap();
    for (data, out) in [("rows.csv", "rows.csv"), ("./rows.csv", "link.csv"), ("*.csv", "rows.csv")] {
        let line = format!("predict r {data} --out {out} --overwrite --device cpu");
        refused(folder.path(), &line, &["the predictions would replace the rows", "name another file"]);
    }
    // A link to nothing is in the way too.
    std::os::unix::fs::symlink("nothing", folder.path().join("dangling.csv")).unwrap();
    refused(folder.path(), "predict r rows.csv --out dangling.csv --device cpu", &["exists", "--overwrite"]);
    assert_eq!(std::fs::read(folder.path().join("rows.csv")).unwrap(), before);
}

/// Root could make a file of `/dev/null`; a pipe is as little a file.
#[test]
fn no_command_puts_a_file_in_the_place_of_a_pipe() {
    let folder = trained();
    for (name, line) in [
        ("pipe.csv", "predict r rows.csv --out pipe.csv --overwrite --device cpu"),
        ("pipe.model", "checkpoint export r --out pipe.model --overwrite --format safetensors"),
        ("pipe.parquet", "data convert rows.csv pipe.parquet --overwrite"),
        ("pipe.toml", "data inspect rows.csv --write-config pipe.toml --overwrite"),
    ] {
        let pipe = folder.path().join(name);
        let made = rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0);
        made.unwrap();
        let outcome = run_line(folder.path(), line);
        assert_ne!(outcome.status.code(), Some(0), "{line}");
        for part in ["it is a named pipe, expected a regular file", "hint: name a file that does not exist"] {
            assert!(outcome.stderr.contains(part), "{line}: {}", outcome.stderr);
        }
        assert!(!std::fs::metadata(&pipe).unwrap().is_file(), "{line}");
    }
}

#[test]
fn hints_name_what_helps_the_command() {
    let folder = trained();
    write(folder.path(), "twice.csv", "a,b,b\n1,2,3\n");
    write(folder.path(), "cell.csv", "a,b\n1,2\n3,x\n");
    let predict =
        |data: &str| run_line(folder.path(), &format!("predict r {data} --out - --device cpu")).stderr;
    let twice = predict("twice.csv");
    assert!(twice.contains("hint: correct the first line; ") && !twice.contains("--bad-rows"), "{twice}");
    assert!(predict("cell.csv").contains("--bad-rows null"), "{}", predict("cell.csv"));
    let range = predict("rows.csv --rows 100..");
    assert!(range.contains("`rows.csv` has 40 rows, so none is in 100..\n"), "{range}");
    refused(folder.path(), "data cache ls nowhere", &["folder `nowhere` does not exist"]);
}

/// Rows of arrays are read while they are evaluated.
#[test]
fn hints_of_arrays_name_flags_of_eval() {
    let folder = temp_dir();
    let bytes = |shape: &[usize], values: &[f64]| npy(Element::I64, false, shape, values);
    let x: Vec<f64> = (0..40).map(|i| f64::from(i % 7)).collect();
    let y: Vec<f64> = (0..20).map(|i| f64::from(i % 2)).collect();
    std::fs::write(folder.path().join("x.npy"), bytes(&[20, 2], &x)).unwrap();
    std::fs::write(folder.path().join("y.npy"), bytes(&[20], &y)).unwrap();
    let other: Vec<f64> = y.iter().map(|y| y * 7.0).collect();
    std::fs::write(folder.path().join("other.npy"), bytes(&[20], &other)).unwrap();
    run_line_ok(folder.path(), "train x.npy --labels y.npy --epochs 1 --device cpu --out r --quiet");
    refused(
        folder.path(),
        "eval r --data x.npy",
        &["has no labels", "hint: name their labels with --labels FILE"],
    );
    for how in ["", " --importance"] {
        let line = format!("eval r --data x.npy --labels other.npy --device cpu{how}");
        refused(
            folder.path(),
            &line,
            &["label 7", "hint: correct the label, or leave out such rows with --unknown-label skip"],
        );
    }
}
