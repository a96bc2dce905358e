//! Data files that can't be trained on: the message contains the file, the line, the column and the cell.

use super::harness::{GOOD_CSV, Place};

/// Trains on `rows`, which is refused, both as training rows and as evaluation rows.
#[track_caller]
fn refuses(rows: &str, parts: &[&str]) {
    refuses_with(rows, &[], parts);
}

#[track_caller]
fn refuses_with(rows: &str, sets: &[&str], parts: &[&str]) {
    let place = Place::with(&[("rows.csv", rows), ("good.csv", GOOD_CSV)]);
    let mut args = vec!["train", "--out", "out", "--set", "data.train=rows.csv"];
    sets.iter().for_each(|set| args.extend(["--set", set]));
    place.refuses(&args, parts);
    args[4] = "data.train=good.csv";
    args.extend(["--set", "data.eval=rows.csv"]);
    place.refuses(&args, parts);
}

#[test]
fn missing_files() {
    let place = Place::with(&[("folder/x", "")]);
    let train = |source| ["train", "--set", source, "--out", "out"];
    place.refuses(
        &train("data.train=no.csv"),
        &["data file `no.csv` does not exist", "hint: relative paths start"],
    );
    place.refuses(
        &train("data.train=folder"),
        &[
            "no data file for `folder`",
            "hint: the folder contains no file whose name ends in csv, parquet, arrow, jsonl, npy",
        ],
    );
    place.refuses(&train("data.eval=no.csv"), &["data file `no.csv` does not exist"]);
    place.refuses(
        &train("data.train=builtin:mnist"),
        &["no built-in data set `builtin:mnist`", "builtin:digits"],
    );
    for args in [&train("data.train=digits")[..], &["train", "digits", "--out", "out"]] {
        place.refuses(
            args,
            &["data file `digits` does not exist", "hint: the bundled data set is `builtin:digits`"],
        );
    }
    place.refuses(
        &["train", "--set", "data.task=regression"],
        &["builtin:digits", "task \"regression\"", "hint: "],
    );
}

#[test]
fn empty_files() {
    refuses("", &["data file `rows.csv`: the file is empty", "hint: the first row holds the column names"]);
    refuses("\n\n", &["the file is empty"]);
    refuses("x,y,label\n", &["data file `rows.csv`: no rows after the header"]);
}

#[test]
fn ragged_rows() {
    refuses(
        "x,y,label\n0,1,0\n1,0\n0,2,0\n",
        &[
            "data file `rows.csv`: line 3: expected 3 cells as in the header, got 2",
            "hint: is the row cut off",
        ],
    );
    refuses("x,y,label\n0,1,0\n\n1,5,0,1\n", &["line 4: expected 3 cells", "got 4", "decimals need a point"]);
}

#[test]
fn cells_that_are_no_numbers() {
    refuses(
        "x,y,label\n0,1,0\n1,red,1\n",
        &[
            "data file `rows.csv`: line 3, column \"y\": expected a number, got \"red\"",
            "hint: if it marks a missing value, `--set 'data.missing_values=[\"red\"]'` and set `data.missing`; else list the column in \
             `data.categorical` or `data.drop`, such as `--set data.categorical=y`",
        ],
    );
    for (name, word) in [("a b", "'data.categorical=a b'"), ("7 km", "'data.categorical=\"7 km\"'")] {
        let place = Place::with(&[("rows.csv", &format!("{name},label\nred,0\n1,1\n"))]);
        place.refuses(
            &["train", "--plain", "rows.csv", "--out", "out"],
            &[&format!("such as `--set {word}`;")],
        );
    }
    for text in ["NaN", "nan", "NAN", "-nan", "-", "n/a", "?"] {
        let parts = ["line 2, column \"x\": the value is missing", text, "hint: set `data.missing`"];
        refuses(&format!("x,y,label\n{text},1,0\n1,0,1\n"), &parts);
    }
    for text in ["nAN", "inf", "-Infinity", "1e39"] {
        refuses(
            &format!("x,y,label\n{text},1,0\n1,0,1\n"),
            &["line 2, column \"x\": expected a finite number", text, "hint: correct the value"],
        );
    }
    refuses("x,y,label\n0,1,0\n1,,1\n", &["line 3, column \"y\": the cell is empty, expected a number"]);
    refuses("x,y,label\n0,1,\n1,2,1\n", &["line 2, column \"label\": the cell is empty"]);
}

#[test]
fn labels() {
    refuses_with(
        "x,y,label\n0,1,0\n1,0,7\n",
        &["data.classes=2"],
        &[
            "data file `rows.csv`: line 3, column \"label\": label 7 is out of range, expected 0 to 1",
            "set `data.classes` to 8",
        ],
    );
    refuses_with(
        "x,y,label\n0,1,0\n1,0,1.5\n",
        &["data.task=classification"],
        &["line 3, column \"label\": expected a whole class number, got 1.5", "\"regression\""],
    );
    refuses_with("x,y,label\n0,1,0\n1,0,-1\n", &["data.classes=2"], &["line 3", "0 or above, got -1"]);
    refuses_with(
        "x,y,label\n0,1,0\n1,0,cat\n",
        &["data.classes=2"],
        &["line 3, column \"label\": label \"cat\" is none of the 2 classes"],
    );
    refuses(
        "x,y,label\n0,1,0\n1,0,NA\n",
        &["line 3, column \"label\": the label is missing, got \"NA\"", "hint: fill in the label"],
    );
    Place::with(&[("rows.csv", "x,y,label\n0,1,a\n1,0,a\n")]).refuses(
        &["train", "--set", "data.train=rows.csv"],
        &["all 2 rows have label a", "two classes or more"],
    );
    refuses_with(
        "x,y,label\n0,1,0\n1,0,2\n",
        &["data.task=multilabel"],
        &["expected 0 or 1 for task \"multilabel\", got 2"],
    );
    // A label that occurs only in the evaluation rows.
    let place = Place::with(&[("train.csv", GOOD_CSV), ("eval.csv", "x,y,label\n0,1,2\n")]);
    place.refuses(
        &["train", "--set", "data.train=train.csv", "--set", "data.eval=eval.csv"],
        &["data file `eval.csv`: line 2, column \"label\": label 2 is out of range"],
    );
}

#[test]
fn headers() {
    refuses(
        "x,y,klass\n0,1,0\n1,0,1\n",
        &["data file `rows.csv`: line 1: no target column \"label\"", "hint: set `data.target`", "klass"],
    );
    refuses("x,y,Label\n0,1,0\n", &["no target column \"label\"", "did you mean \"Label\"?"]);
    refuses("x,x,label\n0,1,0\n", &["line 1: columns 1 and 2 are both named \"x\"", "hint: rename"]);
    refuses(
        "0,1,0\n1,0,1\n",
        &[
            "line 1: expected column names, got what looks like a row: 0, 1, 0\n",
            "hint: `data.header` = false",
        ],
    );
    refuses("label\n0\n1\n", &["no feature columns"]);
    refuses("x,,label\n0,1,0\n", &["line 1: column 2 has no name"]);
    let place = Place::with(&[("rows.csv", "x;y;label\n0;1;0\n")]);
    let sets = ["--set", "data.train=rows.csv", "--set", "data.delimiter=tab"];
    let args = [&["train", "--out", "out"][..], &sets].concat();
    place.refuses(&args, &["no target column \"label\"", "hint: set `data.delimiter` to the character"]);
}

#[test]
fn columns_differ() {
    let place = Place::with(&[("train.csv", GOOD_CSV), ("eval.csv", "x,z,label\n0,1,1\n")]);
    place.refuses(
        &["train", "--set", "data.train=train.csv", "--set", "data.eval=eval.csv"],
        &["eval.csv", "train.csv", "\"y\" is missing, \"z\" is extra"],
    );
}

#[test]
fn no_test_rows() {
    let place = Place::with(&[("rows.csv", GOOD_CSV)]);
    let train = |set| ["train", "--set", "data.train=rows.csv", "--set", set, "--out", "out"];
    place.refuses(
        &train("data.eval_fraction=0.01"),
        &[
            "rows.csv: no test rows left when 8 rows are split by `data.eval_fraction` = 0.01",
            "hint: change `data.eval_fraction`",
        ],
    );
    place.refuses(&train("data.eval_fraction=0.99"), &["no training rows left"]);
}
