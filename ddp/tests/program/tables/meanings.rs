//! Meaning of a column: the same in all files and formats, or an error names the difference: kinds of values, truth values, time zones.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::common::{Outcome, refused, run_line_ok, temp_dir, write};
use crate::data::formats::in_format;

const QUICK: &str = "--plain --epochs 1 --hidden 4 --device cpu --target y";

/// A table whose label follows from its column `t`, whose cell in row `n` is `t(n)`.
fn table(t: impl Fn(usize) -> String) -> String {
    let mut text = "t,x,y\n".to_owned();
    for n in 0..80 {
        writeln!(text, "{},{:.2},{}", t(n), (n as f64).sin(), u8::from(n >= 40)).unwrap();
    }
    text
}

/// A day of 2024, with a time zone if `zone` is one.
fn date(n: usize, zone: &str) -> String {
    format!("2024-{:02}-{:02} 07:22:11{zone}", 1 + n / 28, 1 + n % 28)
}

/// Milliseconds since 1970, as pandas' `to_json` writes dates.
fn milliseconds(n: usize) -> String {
    (1_704_093_731_000 + n as u64 * 86_400_000).to_string()
}

fn shown(outcome: &Outcome) -> String {
    format!("{}{}", outcome.stdout, outcome.stderr)
}

fn trained(folder: &Path, data: &str, more: &str) -> String {
    shown(&run_line_ok(folder, &format!("train {data} {QUICK} {more}")))
}

#[test]
fn values_of_another_kind_are_refused_by_name() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "dates.csv", &table(|n| date(n, "")));
    write(folder, "numbers.csv", &table(milliseconds));
    write(folder, "times.csv", &table(|n| format!("PT{n}S")));
    let json = |name: &str, cell: &dyn Fn(usize) -> String| {
        let rows = (0..80).map(|n| format!("{{\"t\":{},\"x\":0.5,\"y\":{}}}\n", cell(n), u8::from(n >= 40)));
        write(folder, name, &rows.collect::<String>());
    };
    json("ms.jsonl", &milliseconds);
    json("iso.jsonl", &|n| format!("\"{}\"", date(n, "").replace(' ', "T")));
    trained(folder, "dates.csv", "--out dates");
    trained(folder, "numbers.csv", "--out numbers");
    trained(folder, "times.csv", "--out times");
    for (model, data, found, expected) in [
        ("dates", "ms.jsonl", "numbers", "dates"),
        ("dates", "numbers.csv", "numbers", "dates"),
        ("dates", "times.csv", "times or durations", "dates"),
        ("numbers", "dates.csv", "dates", "numbers"),
        ("numbers", "iso.jsonl", "dates", "numbers"),
        ("times", "numbers.csv", "numbers", "times or durations"),
    ] {
        let message =
            format!("data file `{data}`: column \"t\" holds {found}, but the model has {expected} there");
        refused(folder, &format!("eval --checkpoint {model} --data {data}"), &[&message]);
        refused(folder, &format!("predict --checkpoint {model} --data {data} --out p.csv"), &[&message]);
        let message = format!("column \"t\" holds {found}, but the model of --init-from has {expected}");
        refused(folder, &format!("train {data} {QUICK} --init-from {model} --out other"), &[&message]);
    }
    run_line_ok(folder, "eval --checkpoint dates --data iso.jsonl");
    let message = "data file `ms.jsonl`: column \"t\" holds numbers, but dates.csv has dates there";
    refused(folder, &format!("train dates.csv {QUICK} --eval ms.jsonl --out e"), &[message]);
    // Files of one table, and the rows of a run that is resumed.
    fs::create_dir(folder.join("parts")).unwrap();
    fs::copy(folder.join("dates.csv"), folder.join("parts/a.csv")).unwrap();
    fs::copy(folder.join("numbers.csv"), folder.join("parts/b.csv")).unwrap();
    let message = "data file `parts/b.csv`: column \"t\" holds numbers, but parts/a.csv has dates there";
    refused(folder, &format!("train parts {QUICK} --out p"), &[message]);
    fs::copy(folder.join("numbers.csv"), folder.join("dates.csv")).unwrap();
    let message = "column \"t\" holds numbers, but the run to be resumed has dates there";
    let line = "train dates.csv --target y --hidden 4 --device cpu --epochs 2 --out dates --resume auto";
    refused(folder, line, &[message]);
}

#[test]
fn truth_values_are_the_same_categories_and_classes_in_all_files() {
    let folder = temp_dir();
    let folder = folder.path();
    let rows = |words: [&str; 2]| {
        let mut text = "flag,kind,x,y\n".to_owned();
        for n in 0..200 {
            let (flag, kind) = (n * 7 % 11 % 2, n * 5 % 13 % 2);
            let label = words[flag ^ kind];
            writeln!(text, "{},{},0.{},{label}", words[flag], ["bus", "van"][kind], n % 7).unwrap();
        }
        text
    };
    let tables = [["False", "True"], ["FALSE", "TRUE"], ["false", "true"]];
    for (name, words) in ["python.csv", "r.csv", "json.csv"].iter().zip(tables) {
        write(folder, name, &rows(words));
    }
    in_format(folder, "python.csv", "lines.jsonl", "");
    let mut names = vec!["python.csv", "r.csv", "json.csv", "lines.jsonl"];
    if cfg!(feature = "parquet") {
        run_line_ok(folder, "data convert python.csv typed.parquet");
        names.push("typed.parquet");
    }
    for data in &names {
        let keys =
            "--categorical flag,kind --epochs 60 --lr 2e-2 --hidden 16 --target y --device cpu --overwrite";
        run_line_ok(folder, &format!("train {data} {keys} --out run"));
        for other in &names {
            let outcome = run_line_ok(folder, &format!("eval --checkpoint run --data {other} --json"));
            let metrics: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
            assert!(metrics["eval_accuracy"].as_f64().unwrap() > 0.99, "{data} on {other}: {metrics}");
        }
    }
}

#[test]
fn time_zones_that_differ_between_files_are_named() {
    let folder = temp_dir();
    let folder = folder.path();
    fs::create_dir(folder.join("parts")).unwrap();
    write(folder, "naive.csv", &table(|n| date(n, "")));
    write(folder, "zoned.csv", &table(|n| date(n, " UTC")));
    fs::copy(folder.join("naive.csv"), folder.join("parts/a.csv")).unwrap();
    fs::copy(folder.join("zoned.csv"), folder.join("parts/b.csv")).unwrap();
    let note = "times of \"t\" have a time zone, and none in";
    let notes = |text: String| text.replace("\n  ", " ").matches(note).count();
    assert_eq!(notes(trained(folder, "parts", "--out parts-run")), 1);
    assert_eq!(notes(trained(folder, "parts", "--set data.datetime=parts --out of-parts")), 1);
    assert_eq!(notes(trained(folder, "naive.csv", "--eval zoned.csv --out run")), 1);
    assert_eq!(
        notes(shown(&run_line_ok(folder, "predict --checkpoint run --data zoned.csv --out p.csv"))),
        1
    );
    assert_eq!(notes(shown(&run_line_ok(folder, "eval --checkpoint run --data naive.csv"))), 0);
    let inspected = shown(&run_line_ok(folder, "data inspect parts --target y"));
    assert!(inspected.contains("80 times without a time zone"), "{inspected}");
}

#[test]
fn infinite_dates_are_missing_values() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "t.csv", &table(|n| if n % 20 == 0 { "infinity".to_owned() } else { date(n, "") }));
    refused(folder, &format!("train t.csv {QUICK} --out run"), &["line 2, column \"t\"", "(\"infinity\")"]);
    let note = "4 infinite dates of \"t\" are missing values";
    for datetime in ["seconds", "parts"] {
        let out = trained(
            folder,
            "t.csv",
            &format!("--set data.missing=mean --set data.datetime={datetime} --out {datetime}"),
        );
        assert_eq!(out.matches(note).count(), 1, "{out}");
        let predicted = run_line_ok(
            folder,
            &format!("predict --checkpoint {datetime} --data t.csv --out {datetime}.csv"),
        );
        assert!(predicted.stderr.contains(note), "{}", predicted.stderr);
    }
    let inspected = shown(&run_line_ok(folder, "data inspect t.csv --target y"));
    assert!(inspected.contains("4 values beyond the calendar"), "{inspected}");
    assert!(inspected.contains("missing = \"mean\""), "{inspected}");
    if cfg!(feature = "parquet") {
        run_line_ok(folder, "data convert t.csv t.parquet");
    }
}

#[test]
fn dates_in_other_notations_are_named_and_not_taken_for_identifiers() {
    let folder = temp_dir();
    let folder = folder.path();
    for (name, cell) in [
        ("zone.csv", &(|n: usize| format!("{} CEST", date(n, ""))) as &dyn Fn(usize) -> String),
        ("half.csv", &|n| format!("2024-01-{:02} 0{}:30:00 PM", 1 + n % 28, 1 + n / 28)),
        ("month.csv", &|n| format!("{:02}-Jan-{}", 1 + n % 28, 1990 + n / 28)),
    ] {
        write(folder, name, &table(cell));
        let text =
            shown(&run_line_ok(folder, &format!("data inspect {name} --target y"))).replace("\n  ", " ");
        assert!(text.contains("t seems to hold numbers or dates as text"), "{name}: {text}");
        assert!(!text.contains("identifier"), "{name}: {text}");
    }
    write(folder, "utc.csv", &table(|n| date(n, " UTC")));
    let text = shown(&run_line_ok(folder, "data inspect utc.csv --target y"));
    assert!(text.lines().any(|line| line.starts_with("t ") && line.contains("date")), "{text}");
}

#[test]
fn columns_that_vary_by_rounding_are_named_and_stay_small() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "t.csv", &table(|n| if n % 2 == 0 { "0.30000000000000004" } else { "0.3" }.to_owned()));
    let out = trained(folder, "t.csv", "--out run");
    assert!(out.contains("\"t\" of t.csv differs only by rounding"), "{out}");
    let inspected = shown(&run_line_ok(folder, "data inspect t.csv --target y"));
    assert!(inspected.contains("the same value in all rows: t"), "{inspected}");
}
