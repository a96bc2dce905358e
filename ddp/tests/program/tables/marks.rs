//! Strings that mark missing values, `data.missing_values`, in tables of all formats; decimal marks of rows for a model.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::common::{ddp_train, refused, run_line, run_line_ok, temp_dir, write};
use crate::data::files::Element;
use crate::data::formats::{as_arrays, in_format};

/// Rows with -999 among temperatures, NA among cities, and labels missing in some rows.
fn table() -> String {
    let mut text = "temperature,count,city,label\n".to_owned();
    for n in 0..240 {
        let temperature =
            if n % 8 == 3 { "-999".to_owned() } else { format!("{:.2}", (n as f64).sin() * 20.0) };
        let city = ["Bern", "NA", "unknown", "Oslo", ""][n % 5];
        let label = if n % 30 == 7 { "NA" } else { ["yes", "no", "maybe"][n % 3] };
        writeln!(text, "{temperature},{},{city},{label}", n * 7 % 11).unwrap();
    }
    text
}

/// Metrics of the last event, and predictions.
fn figures(folder: &Path, name: &str, more: &str) -> (Vec<Value>, String) {
    let run = format!("run-{}", name.replace('.', "-"));
    let keys = "--set data.categorical=city --set data.missing=mean --set data.missing_target=skip";
    let keys = format!("{keys} --set data.missing_values=[\"-999\",\"unknown\"] {more}");
    run_line_ok(
        folder,
        &format!(
            "train {name} --target label {keys} --eval-fraction 0.25 --epochs 3 --hidden 8 --device cpu --out {run}"
        ),
    );
    let events = std::fs::read_to_string(folder.join(&run).join("metrics.jsonl")).unwrap();
    let end: Value = serde_json::from_str(events.lines().last().unwrap()).unwrap();
    let figures =
        ["train_loss", "eval_loss", "eval_accuracy", "samples"].map(|key| end[key].clone()).to_vec();
    let line = format!("predict --checkpoint {run} --data {name} --out {run}.csv --proba --device cpu");
    run_line_ok(folder, &line);
    (figures, std::fs::read_to_string(folder.join(format!("{run}.csv"))).unwrap())
}

#[test]
fn marks_mean_the_same_in_all_formats() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "rows.csv", &table());
    let expected = figures(folder, "rows.csv", "");
    assert!(expected.0.iter().all(Value::is_number), "{expected:?}");
    for name in ["plain.parquet", "plain.feather", "plain.jsonl"] {
        in_format(folder, "rows.csv", name, "--target count --task regression");
        assert_eq!(figures(folder, name, ""), expected, "{name}");
    }
    // In the target column, missing labels are nulls.
    write(folder, "nulls.csv", &table().replace(",NA\n", ",\n"));
    for (from, name) in [("rows.csv", "target.parquet"), ("nulls.csv", "target.jsonl")] {
        in_format(folder, from, name, "--target label");
        assert_eq!(figures(folder, name, ""), expected, "{name}");
    }
    let marks = "--set data.missing_values=[\"-999\",\"unknown\"]";
    run_line_ok(folder, &format!("data convert rows.csv marked.parquet --target label {marks}"));
    assert_eq!(figures(folder, "marked.parquet", ""), expected);
    run_line_ok(folder, &format!("data convert plain.parquet again.parquet --target label {marks}"));
    assert_eq!(figures(folder, "again.parquet", ""), expected);
    let text = run_line_ok(folder, "data show marked.parquet --rows 0.. --json").stdout;
    assert!(!text.contains("-999") && !text.contains("unknown") && text.contains(r#""city":"NA""#), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains(r#""label":"""#)).count(), 8, "{text}");
}

#[test]
fn missing_labels_of_parquet_are_errors_or_classes_as_in_csv() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "rows.csv", &table());
    // A different target, so that the labels stay strings.
    run_line_ok(folder, "data convert rows.csv rows.parquet --target count --task regression");
    let keys = "--set data.drop=[\"city\",\"temperature\"] --epochs 1 --hidden 4 --device cpu";
    for name in ["rows.csv", "rows.parquet"] {
        let train = format!("train --plain {name} --target label {keys}");
        refused(folder, &format!("{train} --out out"), &["\"NA\"", "`data.missing_values` = [\"\"]"]);
        let out = format!("kept-{name}");
        run_line_ok(folder, &format!("{train} --set data.missing_values=[\"\"] --out {out}"));
        let shown = run_line_ok(folder, &format!("checkpoint show {out}"));
        assert!(shown.stdout.contains("NA"), "{}", shown.stdout);
    }
    let outcome = run_line(folder, "data inspect rows.parquet --target label");
    assert!(outcome.stdout.contains("label is missing in 8 rows"), "{}", outcome.stdout);
}

#[test]
fn inspect_names_numbers_that_mark_missing_values() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "rows.csv", &table());
    run_line_ok(folder, "data convert rows.csv rows.parquet");
    as_arrays(folder, "rows.csv", "rows.npz", "count", &["label", "city"], Element::F32);
    for name in ["rows.csv", "rows.parquet"] {
        let words = |more: &str| {
            let outcome = run_line_ok(folder, &format!("data inspect {name} --target label {more}"));
            outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        let text = words("");
        let warning =
            "is far outside the other values: if it marks a missing value, list it in `data.missing_values`";
        assert!(text.contains("warning: temperature: -999 in ") && text.contains(warning), "{text}");
        let text = words("--missing-value=-999");
        assert!(!text.contains("far outside"), "{text}");
        assert!(
            text.contains("missing_values = [\"-999\"]") && text.contains("missing = \"mean\""),
            "{text}"
        );
    }
    let outcome = run_line_ok(folder, "data inspect rows.npz");
    let text = outcome.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("if it marks a missing value, write NaN in its place"), "{text}");
}

/// The decimal mark that training rows showed is that of rows for the model; `--set` reads them in another way.
#[test]
fn rows_for_a_model_are_read_by_the_decimal_mark_of_training() {
    let folder = temp_dir();
    let folder = folder.path();
    let rows = |x: &dyn Fn(usize) -> String| {
        (0..40).fold("x;y\n".to_owned(), |text, n| format!("{text}{};{n}\n", x(n)))
    };
    write(folder, "train.csv", &rows(&|n| format!("{n},5")));
    write(folder, "open.csv", "x;y\n1,234;3\n2,345;4\n");
    write(folder, "point.csv", "x;y\n1.5;3\n2.25;4\n");
    write(folder, "commas.csv", "x,y\n1.234,3\n2.345,4\n");
    write(folder, "point_commas.csv", "x,y\n1.5,3\n2.25,4\n");
    let train = "train train.csv --target y --task regression --epochs 2 --hidden 4 --device cpu";
    run_line_ok(folder, &format!("{train} --set data.delimiter=; --out run"));
    let predicted = |name: &str, more: &str| {
        let line = format!("predict run {name} --out out.csv --overwrite --device cpu {more}");
        run_line_ok(folder, &line);
        std::fs::read_to_string(folder.join("out.csv")).unwrap()
    };
    let by_commas = "--set data.delimiter=,";
    assert_eq!(predicted("open.csv", ""), predicted("commas.csv", by_commas));
    assert_eq!(predicted("point.csv", "--set data.decimal=."), predicted("point_commas.csv", by_commas));
    let loss = |name: &str, more: &str| {
        let line = format!("eval --checkpoint run --data {name} --json --device cpu {more}");
        let figures: Value = serde_json::from_str(&run_line_ok(folder, &line).stdout).unwrap();
        figures["eval_loss"].as_f64().unwrap()
    };
    assert_eq!(loss("open.csv", ""), loss("commas.csv", by_commas));
    assert_eq!(loss("point.csv", "--set data.decimal=."), loss("point_commas.csv", by_commas));
    let parts = ["`point.csv` have a decimal point, unlike those of the model", "--set data.decimal=."];
    refused(folder, "predict run point.csv --out no.csv --device cpu", &parts);
    refused(folder, "eval --checkpoint run --data point.csv --device cpu", &parts);
    refused(folder, "predict run open.csv --out no.csv --set data.normalize=none", &["the model decides it"]);
    // A pipe can't be opened twice.
    let piped = std::process::Command::new("sh")
        .args(["-c", &format!("cat open.csv | {} predict run - --out -", ddp_train())])
        .current_dir(folder)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(piped.stdout).unwrap(), predicted("open.csv", ""));
}
