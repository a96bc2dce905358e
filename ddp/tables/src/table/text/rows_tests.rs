//! Every bad file says which line and column; good files are read as written.

use std::{fs, io};

use ddp::config::{Config, DataFormat, Task};
use ddp::data::datasets::resident::{Targets, TensorDataset};
use ddp::data::{Summary, TargetLayout};

use super::*;
use crate::formats;
use crate::formats::Reader;
use crate::formats::table::csv;
use crate::formats::table::source::{ReadOptions, Source};
use crate::table::read_all;

fn columns(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Reads a file with these `--set` arguments.
fn read_with(path: &Path, sets: &[String]) -> Result<TensorDataset> {
    let config = Config::load(None, sets).unwrap();
    let source = path.display().to_string();
    let spec = SourceSpec { source: &source, ..SourceSpec::train(&config.data) };
    let Reader::Table(csv) = &formats::find(DataFormat::Csv).unwrap().reader else { unreachable!() };
    read_all(&[path.to_owned()], csv, &spec)
}

fn read_bytes(bytes: &[u8], task: Task, targets: &[&str], classes: Option<usize>) -> Result<TensorDataset> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    fs::write(&path, bytes).unwrap();
    let mut sets = vec![format!("data.task={task}"), format!("data.target={targets:?}")];
    sets.extend(classes.map(|classes| format!("data.classes={classes}")));
    read_with(&path, &sets)
}

fn classes_of(text: &str) -> Result<TensorDataset> {
    read_bytes(text.as_bytes(), Task::Classification, &["label"], None)
}

#[track_caller]
fn assert_refused(result: Result<TensorDataset>, parts: &[&str]) {
    let error = result.expect_err("refused");
    let message = ddp_kernels::hint::with_hint(&error);
    assert!(!error.is_failure(), "{message}");
    for part in parts.iter().chain(&["rows.csv"]) {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
    assert!(message.lines().last().unwrap_or_default().starts_with("hint: "), "{message}");
}

#[test]
fn classification_is_read() {
    let text = "\u{feff}a, label ,\"b, c\"\r\n1,0,2.5\r\n\r\n-1e-3,2.0,\" 7 \"\r\n";
    let data = classes_of(text).unwrap();
    assert_eq!(data.layout.features, ["a", "b, c"]);
    assert_eq!((data.len(), data.layout.n_features()), (2, 2));
    assert_eq!(data.features, [1.0, 2.5, -1e-3, 7.0]);
    assert_eq!(data.targets, Targets::Labels(vec![0, 1]));
    assert_eq!(data.layout.targets, TargetLayout::Classes { n_classes: 2 });
    assert_eq!(data.layout.labels.as_ref().unwrap().to_json(), "[0,2]", "no class without rows");
    assert!(data.source.ends_with("rows.csv"));
    let summary = Summary(&data).to_string();
    assert!(summary.ends_with("rows.csv: 2 rows x 2 features, 2 classes"), "{summary}");
}

/// A compressed file of a few KiB that is hundreds of MiB of one line.
#[test]
fn a_line_without_an_end_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv.zst");
    let mut packer = zstd::Encoder::new(fs::File::create(&path).unwrap(), 1).unwrap();
    io::Write::write_all(&mut packer, b"x,label\n1,0\n").unwrap();
    let block = vec![b'1'; 1 << 20];
    (0..300).for_each(|_| io::Write::write_all(&mut packer, &block).unwrap());
    packer.finish().unwrap();
    let parts = ["line 3", "exceeds 256 MiB", "line ends"];
    assert_refused(read_with(&path, &[]), &parts);
}

#[test]
fn numbers_are_the_nearest_f32() {
    let data = classes_of("x,label\n0.1,0\n16777217,1\n1e-45,1\n-0,1\n.5,1\n+2,1").unwrap();
    assert_eq!(data.features, [0.1, 16_777_216.0, 1e-45, 0.0, 0.5, 2.0]);
    assert_eq!(data.len(), 6, "the last line end is optional");
}

/// Rows of a file with 70 rows of `usual` and the cell `last` of column `x` in the one after them.
fn after_usual_rows(header: &str, usual: &str, last: &str, sets: &[&str]) -> Result<TensorDataset> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    fs::write(&path, format!("{header}\n{}{last}\n", format!("{usual}\n").repeat(70))).unwrap();
    read_with(&path, &sets.iter().chain(&["data.target=y"]).map(|set| (*set).to_owned()).collect::<Vec<_>>())
}

#[test]
fn numbers_that_the_first_rows_leave_unclear_are_refused() {
    let tags = |last: &str, sets: &[&str]| {
        let sets = [&["data.drop=tags"], sets].concat();
        after_usual_rows("tags\tx\ty", "1,2\t7\t0", &format!("3,4\t{last}\t1"), &sets)
    };
    assert_refused(
        tags("12.5", &[]),
        &[
            "line 72",
            "\"12.5\" has a point, and numbers of the first rows have a decimal comma",
            "`data.decimal`",
        ],
    );
    for (decimal, value) in [(".", 12.5), (",", 12.5)] {
        let data = tags("12.5", &[&format!("data.decimal={decimal}")]).unwrap();
        assert_eq!(data.features.last(), Some(&value), "{decimal}");
    }
    let wholes = |last: &str, sets: &[&str]| after_usual_rows("x;y", "858;0", &format!("{last};1"), sets);
    for last in ["1.234", "\"1.234\"", "1.234.567"] {
        assert_refused(wholes(last, &[]), &["line 72", "may be", "`data.decimal`"]);
    }
    for (last, value) in [("1.5", 1.5), ("1,5", 1.5), ("0.125", 0.125), ("1.25e-1", 0.125), ("1234", 1234.0)]
    {
        assert_eq!(wholes(last, &[]).unwrap().features.last(), Some(&value), "{last}");
    }
    assert_eq!(wholes("1.234", &["data.decimal=,"]).unwrap().features.last(), Some(&1234.0));
    assert_eq!(wholes("1.234", &["data.decimal=."]).unwrap().features.last(), Some(&1.234));
}

#[test]
fn dates_after_the_first_rows_become_parts() {
    for sets in [&[][..], &["data.filter=x > 0"]] {
        let sets = [&["data.datetime=parts", "data.missing=zero"], sets].concat();
        let data = after_usual_rows("when,x,y", ",1,0", "2024-05-31,1,1", &sets).unwrap();
        assert_eq!(data.layout.features[..2], ["when.year", "when.month"], "{sets:?}");
        assert!(data.features.contains(&2024.0));
    }
}

#[test]
fn a_first_row_may_exceed_a_block() {
    let row = "12345,".repeat(60_000);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    fs::write(&path, format!("{row}0\n{row}1\n")).unwrap();
    let sets = ["data.header=false", "data.target=column_60001"].map(str::to_owned);
    assert_eq!(read_with(&path, &sets).unwrap().layout.n_features(), 60_000);
}

#[test]
fn lines_that_end_with_carriage_returns_are_read_as_records_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    for (end, has_lines) in [("\r", false), ("\n", true), ("\r\n", true)] {
        fs::write(&path, ["", "x,y", "1.5,0", "2.5,1", ""].join(end)).unwrap();
        let Source::Text(source) = csv::open(&path, &ReadOptions::default()).unwrap() else { unreachable!() };
        assert_eq!(source.has_lines(), has_lines, "{end:?}");
        assert_eq!(read_with(&path, &["data.target=y".to_owned()]).unwrap().features, [1.5, 2.5], "{end:?}");
    }
}

#[test]
fn several_targets_come_in_the_order_of_the_config() {
    let bytes = b"t1,x,t0\n1,2,3\n4,5,6\n";
    let data = read_bytes(bytes, Task::Regression, &["t0", "t1"], None).unwrap();
    assert_eq!(data.features, [2.0, 5.0]);
    let names = columns(&["t0", "t1"]);
    assert_eq!(data.targets, Targets::Values(vec![3.0, 1.0, 6.0, 4.0]));
    assert_eq!(data.layout.targets, TargetLayout::Values { names });

    let data = read_bytes(b"x,a,b\n1,0,1\n2,1.0,0\n", Task::Multilabel, &["a", "b"], None).unwrap();
    assert!(matches!(data.targets, Targets::Values(values) if values == [0.0, 1.0, 1.0, 0.0]));
}

#[test]
fn given_classes_count_more_than_the_labels() {
    let data = read_bytes(b"x,label\n1,0\n", Task::Classification, &["label"], Some(4)).unwrap();
    assert_eq!(data.layout.targets.n_outputs(), 4);
}

#[test]
fn files_without_rows() {
    assert_refused(classes_of(""), &["the file is empty"]);
    assert_refused(classes_of("\n\n"), &["the file is empty"]);
    assert_refused(classes_of("x,label\n"), &["no rows after the header"]);
    assert_refused(classes_of("x,label"), &["no rows after the header"]);
}

#[test]
fn headers_that_are_none() {
    assert_refused(
        classes_of("1,2,0\n3,4,1\n"),
        &["line 1: expected column names, got what looks like a row: 1, 2, 0\n", "`data.header` = false"],
    );
    assert_refused(
        classes_of("x,,label\n0,1,0\n"),
        &["line 1: column 2 has no name", "`data.drop` = [\"Unnamed: 1\"]"],
    );
    assert_refused(classes_of("x,y,x,label\n1,2,3,0\n"), &["line 1: columns 1 and 3 are both named \"x\""]);
    assert_refused(
        classes_of("label\n1\n"),
        &["line 1: no feature columns, only the target label", "`data.target` is a"],
    );
    assert_refused(
        classes_of(",label\n0,1\n1,0\n"),
        &["no feature columns", "hint: column 1 has no name and is left out"],
    );
    assert_refused(classes_of("x,lable\n1,0\n"), &["no target column \"label\"", "did you mean \"lable\"?"]);
    assert_refused(
        classes_of("x,y,z\n1,0,1\n"),
        &["set `data.target` (--target) to one of the columns: x, y, z"],
    );
    assert_refused(
        classes_of(",x,z\n0,1,0\n"),
        &["set `data.target` (--target) to one of the columns: x, z"],
    );
    let wide = (0..99).map(|i| format!("c{i},")).collect::<String>() + "end\n";
    assert_refused(classes_of(&wide), &["c0, c1, c2, c3, c4, c5, c6, ... end"]);
    assert_refused(
        read_bytes(b"x,\xff\n1,0\n", Task::Classification, &["label"], None),
        &["line 1, column \"2\": not UTF-8"],
    );
}

#[test]
fn rows_without_a_header() {
    let iris = "5.1,3.5,Iris-setosa\n4.9,3.0,Iris-setosa\n7.0,3.2,Iris-versicolor\n";
    let refused = "line 1: expected column names, got what looks like a row: 5.1, 3.5, Iris-setosa\n";
    assert_refused(classes_of(iris), &[refused]);
    assert_refused(classes_of("p,x,p\ne,x,s\n"), &["both named \"p\"", "`data.header` = false"]);
    assert_refused(
        classes_of("# made by a logger\n# 2024\na,label\n1,0\n"),
        &["looks like a comment: # made by a logger\n", "grep -v '^#'"],
    );
    // Numbers that ascend are names: wavelengths, years.
    assert_eq!(classes_of("400.5,401,label\n1,2,0\n1,3,1\n").unwrap().layout.features, ["400.5", "401"]);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    let read = |text: &str, sets: &[&str]| {
        fs::write(&path, text).unwrap();
        read_with(&path, &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>())
    };
    let sets = ["data.header=false", "data.target=column_3"];
    let data = read(iris, &sets).unwrap();
    assert_eq!(data.layout.features, ["column_1", "column_2"]);
    assert_eq!(data.features, [5.1, 3.5, 4.9, 3.0, 7.0, 3.2]);
    // Blanks in place of commas; the first row decides on the decimal mark too.
    let blanks = " 1.5   2  0\n 2  3.5  1\n";
    assert_eq!(read(blanks, &sets).unwrap().features, [1.5, 2.0, 2.0, 3.5]);
    assert_eq!(read("1,5;2;0\n2;3;1\n", &sets).unwrap().features, [1.5, 2.0, 2.0, 3.0]);
    assert_refused(read("", &sets), &["the file is empty"]);
    assert_refused(read("1,2,0\n1,2\n", &sets), &["line 2: expected 3 cells"]);
    assert_refused(read(iris, &["data.header=false"]), &["no target column \"label\"", "column_3"]);
    // A name that is a number counts as one where the config says so.
    let named = read("7,5,label\n1,2,0\n1,3,1\n", &["data.header=true"]).unwrap();
    assert_eq!(named.layout.features, ["7", "5"]);
}

#[test]
fn ragged_rows() {
    assert_refused(
        classes_of("x,y,label\n1,2,0\n1,0\n"),
        &["line 3: expected 3 cells as in the header, got 2", "cut off"],
    );
    assert_refused(
        classes_of("x,y,label\n1,2,0,5\n"),
        &["line 2: expected 3 cells", "got 4", "decimals need a point"],
    );
}

#[test]
fn lines_are_counted_as_an_editor_does() {
    for (text, line) in [
        ("x,label\n\n\n1,0\n\nz,1\n", 6),
        ("x,label\r\n\r\n1,0\r\nz,1\r\n", 4),
        ("\u{feff}x,label\r\n1,0\r\n\r\n\r\nz,1", 5),
        ("\"x\ny\",label\n1,0\nz,1\n", 4),
        ("x,label\n1,0\n\"1\",0\nz,1", 4),
    ] {
        let place = format!("line {line}, column \"");
        assert_refused(classes_of(text), &[&place, "expected a number, got \"z\""]);
    }
}

#[test]
fn cells_that_are_no_numbers() {
    let cell = |cell: &str| classes_of(&format!("x,age,label\n1,2,0\n3,{cell},1\n"));
    let place = "line 3, column \"age\": ";
    for text in ["old", "1.5.5", "1 2", "0x10", "--1", "1_000", "\"a\nb\""] {
        assert_refused(cell(text), &[place, "expected a number, got \""]);
    }
    for text in ["nAN", "inf", "-Infinity", "1e39"] {
        assert_refused(cell(text), &[place, &format!("expected a finite number, got \"{text}\"")]);
    }
    for text in ["", "  ", "\"\""] {
        assert_refused(cell(text), &[place, "the cell is empty"]);
    }
    let bytes = b"x,age,label\n1,2,0\n3,\xff\xfe,1\n";
    assert_refused(read_bytes(bytes, Task::Classification, &["label"], None), &[place, "not UTF-8"]);
    assert_refused(cell(&"long".repeat(1000)), &["longlong", "...\""]);
}

#[test]
fn labels_that_are_no_classes() {
    let label = |label: &str, classes| {
        let text = format!("x,label\n1,0\n3,{label}\n");
        read_bytes(text.as_bytes(), Task::Classification, &["label"], classes)
    };
    let place = "line 3, column \"label\": ";
    assert_refused(label("1.5", None), &[place, "whole class number, got 1.5", "\"regression\""]);
    assert_refused(label("-1", Some(2)), &[place, "0 or above, got -1"]);
    assert_refused(label("cat", Some(2)), &[place, "label \"cat\" is none of the 2 classes", "0, 1"]);
    assert_refused(label("nan", None), &[place, "the label is missing"]);
    assert_refused(label("inf", None), &[place, "expected a finite number"]);
    assert_refused(label("", None), &[place, "the cell is empty"]);
    assert_refused(label("3", Some(3)), &[place, "label 3 is out of range, expected 0 to 2 (3 classes)"]);
    assert_refused(label("1e300", Some(3)), &[place, "label \"1e300\" is none of the 3 classes"]);
    assert_refused(label("0", None), &["all 2 rows have label 0", "two classes or more"]);
    assert_refused(label("0.0", None), &["all 2 rows have label 0", "two classes or more"]);
}

#[test]
fn multilabel_takes_0_and_1_only() {
    let result = read_bytes(b"x,a,b\n1,0,1\n2,0.5,0\n", Task::Multilabel, &["a", "b"], None);
    assert_refused(result, &["line 3, column \"a\": expected 0 or 1 for task \"multilabel\", got 0.5"]);
}

#[test]
fn files_that_are_none() {
    let folder = tempfile::tempdir().unwrap();
    let read = |path: &Path| read_with(path, &[]);
    let message = ddp_kernels::hint::with_hint(&read(&folder.path().join("gone.csv")).unwrap_err());
    assert!(
        message.contains("data file") && message.contains("gone.csv` does not exist\nhint: "),
        "{message}"
    );
    let message = ddp_kernels::hint::with_hint(&read(folder.path()).unwrap_err());
    assert!(message.contains("is a folder") && message.contains("hint: "), "{message}");
}

/// The features of a table, NaN as a missing value.
fn features_of(text: &str, sets: &[&str]) -> Vec<f32> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    fs::write(&path, text).unwrap();
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    read_with(&path, &sets).unwrap_or_else(|error| panic!("{text:?}: {error}")).features
}

#[test]
fn a_wrong_delimiter_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    fs::write(&path, "a;b;label\n1;0;1\n").unwrap();
    let read = read_with(&path, &["data.delimiter=tab".to_owned()]);
    assert_refused(read, &["no target column", "set `data.delimiter`"]);
}

#[test]
fn all_delimiters_and_decimal_marks_give_the_same_rows() {
    let plain = features_of("a,b,label\n1.5,-2,0\n0.25,1e3,1\n", &[]);
    assert_eq!(plain, [1.5, -2.0, 0.25, 1000.0]);
    for text in [
        "a\tb\tlabel\n1.5\t-2\t0\n0.25\t1e3\t1\n",
        "a;b;label\r\n1,5;-2;0\r\n0,25;1e3;1\r\n",
        "\u{feff}\"a\"|\"b\"|\"label\"\n\"1.5\"|-2|0\n0.25|1e3|1",
        "a\tb\tlabel\n1,5\t-2\t0\n,25\t1e3\t1\n".replace("\n,25", "\n0,25").as_str(),
        ",a,b,label\n0,1.5,-2,0\n1,0.25,1e3,1\n",
    ] {
        assert_eq!(features_of(text, &[]), plain, "{text:?}");
    }
    // The first comma comes after the rows that are looked at.
    let rows: String = (0..100).map(|row| format!("{row};{}\n", row % 2)).collect();
    let last = *features_of(&format!("a;label\n{rows}1,5;1\n"), &[]).last().unwrap();
    assert_eq!(last, 1.5);
}

#[test]
fn commas_in_numbers_are_named() {
    let hint = "for a comma between thousands set `data.decimal`";
    assert_refused(classes_of("a,label\n\"1,234\",0\n"), &["line 2, column \"a\"", "\"1,234\"", hint]);
    assert_refused(classes_of("a;b;label\n2.5;1;1\n1;2,5;0\n"), &["line 3, column \"b\"", "\"2,5\"", hint]);
    assert_refused(classes_of("a;label\n1,234;0\n"), &["\"1,234\" may be 1234 or 1.234", "`data.decimal`"]);
}

#[test]
fn thousands_are_told_from_fractions() {
    assert_eq!(features_of("a;label\n2.5;1\n1,234;0\n", &[]), [2.5, 1234.0]);
    assert_eq!(features_of("a;label\n1.234,5;0\n2,5;1\n", &[]), [1234.5, 2.5]);
    let quoted = "a,label\n\"1,234\",0\n7,1\n";
    assert_eq!(features_of(quoted, &["data.decimal=\".\""]), [1234.0, 7.0]);
    assert_eq!(features_of(quoted, &["data.decimal=\",\""]), [1.234, 7.0]);
}

#[test]
fn words_marks_and_times_are_numbers() {
    let text = "a,b,c,label\nTrue,2024-05-31T12:30:15Z,00:01:00,0\nno,1970-01-02,PT2S,1\n";
    assert_eq!(features_of(text, &[]), [1.0, 1_717_158_615.0, 60.0, 0.0, 86_400.0, 2.0]);

    let marks = ["", "NA", "N/A", "n/a", "null", "NULL", "-", "?", "NaN", "None", "<NA>"];
    for mark in marks {
        let text = format!("a,b,label\n1,{mark},0\n{mark},2,1\n");
        let features = features_of(&text, &["data.missing=mean"]);
        assert!(features[1].is_nan() && features[2].is_nan(), "{mark}: {features:?}");
        assert_refused(classes_of(&text), &["line 2, column \"b\"", "expected a number", "`data.missing`"]);
    }
    let sets = ["data.missing=mean", "data.missing_values=[\"-999\", \"unknown\"]"];
    let features = features_of("a,b,label\n-999,unknown,0\n-999.0,-99,1\n", &sets);
    assert!(features[..3].iter().all(|value| value.is_nan()) && features[3] == -99.0, "{features:?}");
}

#[test]
fn dates_become_parts() {
    let parts = "data.datetime=parts";
    let text = "when,x,label\n2024-05-31 12:30:15,1,0\n,2,1\n";
    let features = features_of(text, &[parts, "data.missing=mean"]);
    assert_eq!(features[..8], [2024.0, 5.0, 31.0, 4.0, 12.0, 30.0, 15.0, 1.0]);
    assert!(features[8..15].iter().all(|value| value.is_nan()) && features[15] == 2.0);

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.csv");
    fs::write(&path, text).unwrap();
    let read = |text: &str| {
        fs::write(&path, text).unwrap();
        read_with(&path, &[parts.to_owned()])
    };
    let rows = read("when,label\n2024-05-31,0\n2024-06-01,1\n").unwrap();
    let names: Vec<_> = ["year", "month", "day", "weekday", "hour", "minute", "second"]
        .map(|part| format!("when.{part}"))
        .to_vec();
    assert_eq!(rows.layout.features, names);
    assert_refused(read("when,label\n2024-05-31,0\nlater,1\n"), &["line 3", "expected a date", "\"later\""]);
    assert_refused(
        read("when,label\n2024-05-31,0\n,1\n"),
        &["line 3", "the cell is empty", "`data.missing`"],
    );
}

#[test]
fn an_index_without_a_name_is_left_out() {
    let rows = classes_of(",x,label\n0,5,0\n1,6,1\n").unwrap();
    assert_eq!((rows.layout.features, rows.features), (columns(&["x"]), vec![5.0, 6.0]));
    assert_eq!(rows.layout.left_out.len(), 1);
}

#[test]
fn a_quote_without_its_end_is_named() {
    for text in ["x,label\n1,0\n\"2,1\n3,0\n4,1\n", "x,label\n1,0\n2,\"1", "x,label\n1,0\n2,\"1\n"] {
        assert_refused(classes_of(text), &["line 3", "a quote", "never closed"]);
    }
    assert_refused(classes_of("\"x,label\n1,0\n"), &["line 1", "never closed"]);
    assert!(
        classes_of("x,note,label\n1,\"a\nb\",0\n2,\"\"\"\",\"1\"")
            .is_err_and(|error| { error.to_string().contains("column \"note\"") })
    );
}
