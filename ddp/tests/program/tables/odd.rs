//! Tables that are easily misread: codes, thousands separators, spellings of one value, missing names, other delimiters.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{Outcome, read_weights, run_line, run_line_ok, same_bits, temp_dir};
use crate::data::files::{Element, npy};
use crate::data::formats::in_format;

const QUICK: &str = "--device cpu --epochs 2 --batch-size 8 --hidden 4";

/// Writes a table with a header and `n_rows` rows.
fn write(folder: &Path, name: &str, header: &str, n_rows: usize, row: impl Fn(usize) -> String) {
    let mut text = format!("{header}\n");
    for n in 0..n_rows {
        writeln!(text, "{}", row(n)).unwrap();
    }
    fs::write(folder.join(name), text).unwrap();
}

/// The error of a command that must fail.
#[track_caller]
fn error(folder: &Path, line: &str) -> String {
    let outcome = run_line(folder, line);
    assert!(!outcome.status.success(), "{line}: {}", outcome.stdout);
    outcome.stderr
}

#[track_caller]
fn assert_shows(outcome: &Outcome, parts: &[&str]) {
    let text = format!("{}{}", outcome.stdout, outcome.stderr);
    // Long lines are wrapped.
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

/// The column `prediction` of a CSV file.
fn predictions(folder: &Path, name: &str) -> Vec<String> {
    let text = fs::read_to_string(folder.join(name)).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("prediction"));
    lines.map(str::to_owned).collect()
}

#[test]
fn labels_that_look_like_integers_keep_their_spelling() {
    let folder = temp_dir();
    let folder = folder.path();
    let labels = ["007", "7", "0012"];
    write(folder, "codes.csv", "x,y,agent", 60, |n| format!("{},{},{}", n % 3, n % 5, labels[n % 3]));
    in_format(folder, "codes.csv", "codes.jsonl", "");
    let lines = fs::read_to_string(folder.join("codes.jsonl")).unwrap();
    assert!(lines.lines().nth(2).unwrap().contains("\"0012\""), "{lines}");
    let mut files = vec!["codes.csv", "codes.jsonl"];
    if cfg!(feature = "parquet") {
        run_line_ok(folder, "data convert codes.csv codes.parquet --target agent");
        files.push("codes.parquet");
    }
    for file in files {
        let inspected = run_line_ok(folder, &format!("data inspect {file} --target agent"));
        assert_shows(&inspected, &["007 20", "0012 20", "7 20"]);
        let out = format!("run-{file}");
        let train = format!("train {file} --target agent --device cpu --epochs 60 --lr 0.05 --out {out}");
        run_line_ok(folder, &train);
        run_line_ok(folder, &format!("predict --checkpoint {out} --data {file} --out {out}.csv"));
        let expected: Vec<&str> = (0..60).map(|n| labels[n % 3]).collect();
        assert_eq!(predictions(folder, &format!("{out}.csv")), expected, "{file}");
        let eval = run_line_ok(folder, &format!("eval --checkpoint {out} --data codes.csv --json"));
        let figures: Value = serde_json::from_str(&eval.stdout).unwrap();
        assert_eq!(figures["eval_accuracy"], 1.0, "{file}");
    }
    // Among fractions, a plus sign is part of a number.
    write(folder, "signed.csv", "x,label", 40, |n| format!("{n},{}", ["+7", "-1.5", "2e3"][n % 3]));
    assert_shows(&run_line_ok(folder, &format!("train --plain signed.csv {QUICK}")), &["regression"]);
}

#[test]
fn zip_codes_are_pointed_out() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "zip.csv", "x,zip,label", 60, |n| format!("{n},{:05},{}", 1234 + n % 7 * 1111, n % 2));
    let inspected = run_line_ok(folder, "data inspect zip.csv");
    assert_shows(
        &inspected,
        &["zip holds numbers with leading zeros, the first is \"01234\" in line 2", "data.categorical"],
    );
    if cfg!(feature = "parquet") {
        run_line_ok(folder, "data convert zip.csv zip.parquet");
        let first = run_line_ok(folder, "data show zip.parquet --rows 0 --json").stdout;
        assert!(first.contains("\"01234\""), "{first}");
    }
}

#[test]
fn a_comma_between_thousands_is_no_decimal_comma() {
    let folder = temp_dir();
    let folder = folder.path();
    let price = |n: usize| {
        if n.is_multiple_of(2) { format!("{}", 200 + n) } else { format!("{},{:03}", 10 + n, n * 7) }
    };
    write(folder, "price.tsv", "x\tprice", 40, |n| format!("{}\t{}", n % 2, price(n)));
    let message = error(folder, &format!("train --plain price.tsv --target price --task regression {QUICK}"));
    assert!(message.contains("column \"price\": \"11,007\" may be 11007 or 11.007"), "{message}");
    assert!(message.contains("data.decimal"), "{message}");
    let inspected = run_line_ok(folder, "data inspect price.tsv --target price");
    assert_shows(&inspected, &["\"11,007\" in line 3 may be 11007 or 11.007", "decimal = \".\""]);
    let range = |decimal: &str| {
        let line = format!("data inspect price.tsv --target price --json --decimal {decimal}");
        let profile: Value = serde_json::from_str(&run_line_ok(folder, &line).stdout).unwrap();
        (profile["columns"][1]["min"].as_f64().unwrap(), profile["columns"][1]["max"].as_f64().unwrap())
    };
    assert_eq!(range("."), (200.0, 49273.0));
    assert_eq!(range(","), (11.007, 238.0));
    for decimal in [".", ","] {
        let train = format!(
            "train price.tsv --target price --task regression {QUICK} --set data.decimal=\"{decimal}\""
        );
        run_line_ok(folder, &train);
    }
    // A German table: the comma is the decimal mark, so points separate thousands.
    write(folder, "de.csv", "flaeche;umsatz", 40, |n| format!("{},5;{}.982,02", n, 20 + n));
    let profile = run_line_ok(folder, "data inspect de.csv --target umsatz --json");
    let profile: Value = serde_json::from_str(&profile.stdout).unwrap();
    assert_eq!(profile["columns"][1]["min"], 20982.02);
    run_line_ok(folder, &format!("train de.csv --target umsatz {QUICK}"));
}

#[test]
fn texts_that_stand_for_numbers_and_dates_come_with_the_plain_notation() {
    let folder = temp_dir();
    let plain = ["write numbers as 1234.5 and dates as 2024-05-31", "`data.categorical`"];
    for (cell, parts) in [
        ("\"$1,575.44\"", plain),
        ("82.6 %", plain),
        ("1.01.2024 13:05", plain),
        ("blue", ["such as `--set data.categorical=x`", "list it in `data.missing_values`"]),
    ] {
        write(folder.path(), "table.csv", "x,y", 30, |row| format!("{cell},{}", row % 2));
        let message = error(folder.path(), "train --plain table.csv --target y");
        for part in parts {
            assert!(message.contains(part), "no {part:?} in: {message}");
        }
    }
}

#[test]
fn a_category_is_the_same_with_a_fraction_of_zeros() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "k.csv", "k,label", 60, |n| format!("{},{}", 1 + n % 3, ["a", "b", "c"][n % 3]));
    write(folder, "k_float.csv", "k,label", 60, |n| format!("{}.0,{}", 1 + n % 3, ["a", "b", "c"][n % 3]));
    write(folder, "k_new.csv", "k,label", 60, |n| format!("{},{}", 3 + n % 3, ["c", "a", "b"][n % 3]));
    for (file, out) in [("k.csv", "a"), ("k_float.csv", "b")] {
        let train = "--device cpu --epochs 60 --lr 0.05 --set data.categorical=k";
        run_line_ok(folder, &format!("train {file} {train} --out {out}"));
        for other in ["k.csv", "k_float.csv"] {
            let eval = run_line_ok(folder, &format!("eval --checkpoint {out} --data {other} --json"));
            let figures: Value = serde_json::from_str(&eval.stdout).unwrap();
            assert_eq!(figures["eval_accuracy"], 1.0, "{file} {other}");
            assert!(!eval.stderr.contains("did not see"), "{}", eval.stderr);
        }
        let eval = run_line_ok(folder, &format!("eval --checkpoint {out} --data k_new.csv"));
        assert_shows(
            &eval,
            &["categories that are empty or that training saw too rarely or never: \"k\" 40"],
        );
    }
}

#[test]
fn spellings_of_a_label_are_one_class_or_pointed_out() {
    let folder = temp_dir();
    let folder = folder.path();
    let spellings = ["Yes", "no", "yes", "No"];
    write(folder, "truth.csv", "x,label", 60, |n| format!("{},{}", n % 2, spellings[n % 4]));
    assert_shows(&run_line_ok(folder, "data inspect truth.csv"), &["Yes 30", "no 30"]);
    let train = format!("train truth.csv {QUICK} --out truth");
    assert_shows(&run_line_ok(folder, &train), &["classification of 2 classes"]);
    run_line_ok(folder, "eval --checkpoint truth --data truth.csv");
    run_line_ok(folder, "predict --checkpoint truth --data truth.csv --out truth.out.csv");
    assert!(predictions(folder, "truth.out.csv").iter().all(|label| label == "Yes" || label == "No"));
    let cities = ["Rome", "New York", "new york"];
    write(folder, "city.csv", "x,label", 60, |n| format!("{},{}", n % 2, cities[n % 3]));
    let warning = "differ only in case, spaces or invisible characters: New York / new york";
    assert_shows(&run_line_ok(folder, "data inspect city.csv"), &[warning]);
    assert_shows(&run_line_ok(folder, &format!("train city.csv {QUICK}")), &[warning]);
}

/// Names and labels with control characters, or that look like others, are printed escaped.
#[test]
fn what_a_table_says_neither_moves_the_cursor_nor_hides() {
    let folder = temp_dir();
    let folder = folder.path();
    let labels = ["x", "\u{200b}x", "\u{1b}[31mred"];
    write(folder, "hidden.csv", "a\u{1b}[2J,label", 60, |n| format!("{n},{}", labels[n % 3]));
    let shown = [
        r"a\u{1b}[2J",
        r"\u{200b}x",
        r"\u{1b}[31mred",
        r"only in case, spaces or invisible characters: x / \u{200b}x",
    ];
    let lines = [
        "data inspect hidden.csv",
        &format!("train hidden.csv {QUICK} --out hidden"),
        "eval --checkpoint hidden --data hidden.csv",
    ];
    for (line, shown) in lines.into_iter().zip([&shown[..], &shown[3..], &[]]) {
        let outcome = run_line_ok(folder, line);
        assert_shows(&outcome, shown);
        assert!(!(outcome.stdout + &outcome.stderr).contains(['\u{1b}', '\u{200b}']), "{line}");
    }
    let error = run_line(folder, "train hidden.csv --target other").stderr;
    assert!(error.contains(r"a\u{1b}[2J") && !error.contains('\u{1b}'), "{error}");
}

#[test]
fn an_empty_last_column_without_a_name_is_left_out() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "header.csv", "x,y,label,", 40, |n| format!("{n},1,{}", n % 2));
    write(folder, "rows.csv", "x,y,label,", 40, |n| format!("{n},1,{},", n % 2));
    write(folder, "full.csv", "x,y,label,", 40, |n| {
        format!("{n},1,{},{}", n % 2, if n == 5 { "z" } else { "" })
    });
    write(folder, "middle.csv", "x,,label", 40, |n| format!("{n},text,{}", n % 2));
    let note = "column 4 has no name and is left out: its cells are empty";
    for file in ["header.csv", "rows.csv"] {
        assert_shows(&run_line_ok(folder, &format!("train {file} {QUICK}")), &[note]);
        let inspected = run_line_ok(folder, &format!("data inspect {file}"));
        assert_shows(&inspected, &[note]);
        if cfg!(feature = "parquet") {
            run_line_ok(folder, &format!("data convert {file} {file}.parquet"));
        }
    }
    for (file, name, parts) in [
        ("full.csv", "Unnamed: 3", ["line 7, column \"Unnamed: 3\"", "\"z\" is in a column without a name"]),
        ("middle.csv", "Unnamed: 1", ["column 2 has no name", "data.drop"]),
    ] {
        let message = error(folder, &format!("train {file} {QUICK}"));
        assert!(parts.iter().all(|part| message.contains(part)) && message.contains(name), "{message}");
        fs::write(folder.join("run.toml"), format!("[data]\ntrain = \"{file}\"\ndrop = [\"{name}\"]\n"))
            .unwrap();
        run_line_ok(folder, &format!("train run.toml {QUICK}"));
    }
}

#[test]
fn blanks_separate_cells_and_other_formats_are_named() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "plain.csv", "x,y,label", 40, |n| format!("{n},{},{}", n % 5, n % 2));
    write(folder, "blanks.txt", "  x   y label", 40, |n| format!(" {n:3}  {}   {} ", n % 5, n % 2));
    let figures = |file: &str| {
        run_line_ok(folder, &format!("train --data {file} {QUICK} --out run-{file}"));
        let eval = run_line_ok(folder, &format!("eval --checkpoint run-{file} --data {file} --json"));
        let figures: Value = serde_json::from_str(&eval.stdout).unwrap();
        figures["eval_loss"].as_f64().unwrap()
    };
    assert_eq!(figures("blanks.txt"), figures("plain.csv"));
    let inspected = run_line_ok(folder, "data inspect blanks.txt --delimiter whitespace");
    assert_shows(&inspected, &["x 3 columns", "delimiter = \"whitespace\""]);
    write(folder, "wine.txt", "1 1:14.2 3:2.5", 40, |n| format!("{} 2:{n}.5 4:1", n % 2));
    write(folder, "w.txt", "@RELATION w", 40, |_| "@DATA".to_owned());
    for (file, name, hint) in
        [("wine.txt", "LIBSVM", "load_svmlight_file"), ("w.txt", "ARFF", "save the table as CSV")]
    {
        let message = error(folder, &format!("data inspect {file}"));
        assert!(message.contains(name) && message.contains(hint), "{message}");
    }
}

#[test]
fn all_columns_of_text_and_all_odd_values_are_named() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "texts.csv", "x,city,size,label", 40, |n| format!("{n},Bern,big,{}", n % 2));
    let message = error(folder, &format!("train --plain texts.csv {QUICK}"));
    assert!(message.contains("text in \"city\" (\"Bern\"), \"size\" (\"big\")"), "{message}");
    assert!(message.contains("`data.categorical` = [\"city\", \"size\"]"), "{message}");
    let cell = |n: usize| {
        ["missing", ".", "."].get(n).map_or(format!("{}.5", n * 7 % 11), |text| (*text).to_owned())
    };
    write(folder, "odd.csv", "x,y,label", 60, |n| format!("{},{},{}", cell(n), n * 3 % 17, n % 2));
    let inspected = run_line_ok(folder, "data inspect odd.csv");
    let parts = [
        "x: 3 of 60 values are not numbers, \".\" (2), \"missing\" (1)",
        "missing_values = [\".\", \"missing\"]",
        "missing = \"mean\"",
    ];
    assert_shows(&inspected, &parts);
    let section = &inspected.stdout[inspected.stdout.find("[data]").unwrap()..];
    assert!(!section.contains("drop"), "{section}");
    fs::write(folder.join("run.toml"), section).unwrap();
    run_line_ok(folder, &format!("train run.toml {QUICK}"));
}

#[test]
fn a_column_without_values_trains_a_model_that_can_be_used() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "rows.csv", "x,empty,label", 40, |n| format!("{},,{}", n * 7 % 11, n % 2));
    write(folder, "new.csv", "x,empty", 3, |n| format!("{n},{n}.5"));
    for missing in ["mean", "zero"] {
        let line = format!(
            "train --plain rows.csv {QUICK} --out {missing} --eval-fraction 0.2 --set data.missing={missing}"
        );
        let trained = run_line_ok(folder, &line);
        assert!(trained.stderr.contains("has a value of \"empty\""), "{}", trained.stderr);
        run_line_ok(folder, &format!("eval --checkpoint {missing}"));
        run_line_ok(folder, &format!("predict --checkpoint {missing} --data new.csv --out {missing}.csv"));
    }
}

#[test]
fn json_as_python_writes_it_is_read_or_named() {
    let folder = temp_dir();
    let folder = folder.path();
    let line = |n: usize| {
        format!(
            "{{\"x\": {}, \"y\": {n}, \"label\": {}}}",
            if n == 3 { "NaN".to_owned() } else { n.to_string() },
            n % 2
        )
    };
    let lines = |name: &str, line: &dyn Fn(usize) -> String| {
        fs::write(folder.join(name), (0..40).map(|n| line(n) + "\n").collect::<String>()).unwrap();
    };
    lines("nan.jsonl", &line);
    run_line_ok(folder, &format!("train nan.jsonl {QUICK} --set data.missing=mean"));
    assert!(error(folder, &format!("train --plain nan.jsonl {QUICK}")).contains("line 4, column \"x\""));
    lines("inf.jsonl", &|n| line(n).replace("NaN", "-Infinity"));
    assert!(error(folder, "data inspect inf.jsonl").contains("Infinity is not JSON"));
    fs::write(folder.join("columns.json"), r#"{"x":{"0":1,"1":2},"label":{"0":0,"1":1}}"#).unwrap();
    assert!(error(folder, "data inspect columns.json").contains("orient='records', lines=True"));
}

#[test]
fn an_array_of_objects_is_a_table() {
    let folder = temp_dir();
    let folder = folder.path();
    let object =
        |n: usize| format!("{{\"x\": {n}, \"at\": [{n}, 0.5], \"label\": \"{}\"}}", ["}{", "a, b"][n % 2]);
    let objects: Vec<String> = (0..40).map(object).collect();
    let text = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    text("lines.jsonl", &objects.join("\n"));
    text("rows.json", &format!("[{}]", objects.join(", ")));
    text("indented.json", &format!("[\r\n{}\r\n]\r\n", objects.join(",\r\n").replace("\": ", "\":\r\n    ")));
    for name in ["lines.jsonl", "rows.json", "indented.json"] {
        run_line_ok(folder, &format!("train {name} {QUICK} --out run-{name}"));
    }
    let model = |name: &str| read_weights(&folder.join(format!("run-{name}/model.safetensors")));
    assert!(same_bits(&model("lines.jsonl"), &model("rows.json")));
    assert!(same_bits(&model("lines.jsonl"), &model("indented.json")));
    run_line_ok(folder, "predict --checkpoint run-rows.json --data indented.json --out out.csv");
    assert_eq!(predictions(folder, "out.csv").len(), 40);
    if cfg!(feature = "parquet") {
        run_line_ok(folder, "data convert rows.json rows.parquet");
    }
    // Messages name the line on which the object begins.
    text(
        "odd.json",
        "[\n  {\n    \"x\": 1,\n    \"label\": 0\n  },\n  {\n    \"x\": \"?!\",\n    \"label\": 1\n  }\n]",
    );
    let message = error(folder, &format!("train --plain odd.json {QUICK}"));
    assert!(message.contains("line 6, column \"x\""), "{message}");
    text("cut.json", &format!("[{}", objects.join(",\n")));
    let message = error(folder, &format!("train --plain cut.json {QUICK}"));
    assert!(message.contains("line 40: the array has no end") && message.contains("cut off?"), "{message}");
}

#[test]
fn objects_in_json_are_flattened() {
    let folder = temp_dir();
    let folder = folder.path();
    let lines = |name: &str, line: &dyn Fn(usize) -> String| {
        fs::write(folder.join(name), (0..40).map(|n| line(n) + "\n").collect::<String>()).unwrap();
    };
    // Also null instead of the whole object, which is not a column.
    lines("nested.jsonl", &|n| match n {
        7 => "{\"sepal\": null, \"y\": 7, \"label\": 1}".to_owned(),
        _ => {
            let sepal = format!("{{\"length\": {n}, \"of\": {{\"tip\": [{n}, 1.5]}}}}");
            format!("{{\"sepal\": {sepal}, \"y\": {n}, \"label\": {}}}", n % 2)
        }
    });
    write(folder, "flat.csv", "sepal.length,sepal.of.tip[0],sepal.of.tip[1],y,label", 40, |n| match n {
        7 => ",,,7,1".to_owned(),
        _ => format!("{n},{n},1.5,{n},{}", n % 2),
    });
    for data in ["nested.jsonl", "flat.csv"] {
        run_line_ok(folder, &format!("train {data} {QUICK} --set data.missing=mean --out run-{data}"));
    }
    let model = |data: &str| read_weights(&folder.join(format!("run-{data}/model.safetensors")));
    assert!(same_bits(&model("nested.jsonl"), &model("flat.csv")));
    let columns = ["sepal.length", "sepal.of.tip[0]", "sepal.of.tip[1]"];
    assert_shows(&run_line_ok(folder, "data inspect nested.jsonl"), &columns);
    run_line_ok(folder, "predict --checkpoint run-flat.csv --data nested.jsonl --out out.csv");
    lines("lists.jsonl", &|n| {
        format!("{{\"visits\": [{{\"day\": {n}}}], \"y\": {n}, \"label\": {}}}", n % 2)
    });
    let inspected = run_line_ok(folder, "data inspect lists.jsonl");
    assert_shows(&inspected, &["warning: about as many values as rows, like an identifier: visits"]);
}

#[test]
fn labels_with_trailing_zeros_keep_their_spelling_next_to_texts() {
    let folder = temp_dir();
    let folder = folder.path();
    let labels = ["1.10", "1.1", "main"];
    write(folder, "versions.csv", "x,y,label", 60, |n| format!("{},{},{}", n % 3, n % 5, labels[n % 3]));
    run_line_ok(folder, "train versions.csv --device cpu --epochs 60 --lr 0.05 --out run");
    run_line_ok(folder, "predict --checkpoint run --data versions.csv --out out.csv");
    let expected: Vec<&str> = (0..60).map(|n| labels[n % 3]).collect();
    assert_eq!(predictions(folder, "out.csv"), expected);
    let eval = run_line_ok(folder, "eval --checkpoint run --data versions.csv --json");
    assert_eq!(serde_json::from_str::<Value>(&eval.stdout).unwrap()["eval_accuracy"], 1.0);
    // Prices are numbers.
    write(folder, "prices.csv", "x,label", 40, |n| format!("{n},{}.{}0", n + 1, n % 10));
    assert_shows(&run_line_ok(folder, &format!("train --plain prices.csv {QUICK}")), &["regression"]);
}

#[test]
fn flags_take_several_columns() {
    let folder = temp_dir();
    write(folder.path(), "rows.csv", "id,a,b,x,label", 60, |n| {
        format!("r{n},{},{},{},{}", ["u", "v"][n % 2], ["p", "q", "r"][n % 3], n * 7 % 11, n % 2)
    });
    let shown = run_line_ok(folder.path(), "data inspect rows.csv --drop id,x --write-config run.toml");
    assert_shows(&shown, &["drop = [\"id\", \"x\"]", "categorical = [\"a\", \"b\"]", "dropped"]);
    run_line_ok(folder.path(), &format!("train run.toml {QUICK} --out of-config"));
    run_line_ok(
        folder.path(),
        &format!("train rows.csv {QUICK} --drop id,x --categorical a,b --out of-flags --eval-fraction 0.2"),
    );
    let weights = |run: &str| read_weights(&folder.path().join(run).join("model.safetensors"));
    assert!(same_bits(&weights("of-config"), &weights("of-flags")));
    let refused = error(folder.path(), "data inspect rows.csv --drop idd");
    assert!(
        refused.contains("no column \"idd\" for `--drop`") && refused.contains("did you mean \"id\""),
        "{refused}"
    );
}

#[test]
fn the_config_that_inspect_writes_trains() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "odd.csv", "id;day;size;city;gap;label", 60, |n| {
        let gap = if n % 9 == 4 { "unknown".to_owned() } else { format!("{},5", n % 7) };
        let label = if n == 17 { "" } else { ["yes", "no"][n % 2] };
        format!(
            "{n};{:02}.05.2024;{},25;{};{gap};{label}",
            n % 28 + 1,
            n * 3,
            ["Bern", "Rome", "Oslo"][n % 3]
        )
    });
    let inspect = "data inspect odd.csv --target label --write-config run.toml";
    assert_shows(&run_line_ok(folder, inspect), &["run.toml", "label is missing in 1 row"]);
    let config = fs::read_to_string(folder.join("run.toml")).unwrap();
    for part in ["categorical", "missing_values", "missing_target = \"skip\"", "drop"] {
        assert!(config.contains(part), "no {part} in {config}");
    }
    let trained = run_line_ok(folder, "run.toml --out run --epochs 2 --device cpu");
    assert_shows(&trained, &["left out 1 row without a target"]);
    run_line_ok(folder, "eval --checkpoint run --data odd.csv --device cpu");
    run_line_ok(folder, "predict --checkpoint run --data odd.csv --out out.csv --device cpu");
    assert_eq!(predictions(folder, "out.csv").len(), 60);
    // An existing file is kept unless it may be replaced.
    assert!(error(folder, inspect).contains("--overwrite"));
    run_line_ok(folder, &format!("{inspect} --overwrite"));
    write(folder, "target.csv", "label", 20, |n| format!("{}", n % 2));
    let inspected = run_line_ok(folder, "data inspect target.csv --target label --write-config none.toml");
    assert!(inspected.stderr.contains("it can't train a model"), "{}", inspected.stderr);
    error(folder, "none.toml --device cpu");
}

#[cfg(feature = "parquet")]
#[test]
fn all_columns_of_text_are_named_at_once() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "rows.csv", "x,city,size,label", 20, |n| format!("{n},c{},s{},{}", n % 4, n % 3, n % 2));
    for format in ["parquet", "feather"] {
        let data = format!("rows.{format}");
        in_format(folder, "rows.csv", &data, "");
        let text = error(folder, &format!("train --plain {data} {QUICK}"));
        assert!(text.contains("2 columns are text: \"city\", \"size\""), "{text}");
        let hint = "`data.categorical` = [\"city\", \"size\"]";
        assert!(text.contains(hint), "{text}");
        run_line_ok(folder, &format!("train {data} {QUICK} --set data.categorical=[\"city\",\"size\"]"));
    }
}

#[test]
fn a_date_that_is_missing_is_named_as_in_the_table() {
    let folder = temp_dir();
    let folder = folder.path();
    let day = |n: usize| format!("2024-01-{:02}", 1 + n % 28);
    write(folder, "x.csv", "when,city,y", 40, |n| format!("{},{},{n}", day(n), ["Rome", "", "Bern"][n % 3]));
    write(folder, "no_date.csv", "city,y", 3, |n| format!("Rome,{n}"));
    let keys = "--set data.datetime=parts --set data.categorical=city --set data.task=regression --target y";
    run_line_ok(folder, &format!("train x.csv {QUICK} {keys} --out o"));
    let refusal = error(folder, "predict --checkpoint o --data no_date.csv --out p.csv --device cpu");
    assert!(
        refusal.contains("its 1 feature columns differ from the 2 of the model: \"when\" is missing"),
        "{refusal}"
    );
    // Empty in training too, so it is not "unseen".
    let eval = run_line_ok(folder, "eval --checkpoint o --data x.csv --device cpu");
    assert_shows(&eval, &["categories that are empty or that training saw too rarely or never: \"city\" 13"]);
}

/// Faults of a row that gets no prediction are not counted a second time.
#[test]
fn rows_without_a_prediction_are_in_no_count() {
    let folder = temp_dir();
    let folder = folder.path();
    let mut text = "a,b,city,y\n".to_owned();
    (0..60).for_each(|n| {
        writeln!(text, "{},{},{},{}", 10 + n % 10, 20 + n % 7, ["Bern", "Rome"][n % 2], n % 2).unwrap()
    });
    fs::write(folder.join("train.csv"), text).unwrap();
    let train = "train train.csv --target y --set data.normalize=standard --epochs 1 --device cpu -q";
    run_line_ok(folder, &format!("{train} --set data.categorical=city --out run"));
    // The cell in place of "oops" is outside the range, 99 and Oslo are next to one that is bad.
    fs::write(
        folder.join("rows.csv"),
        "a,b,city\noops,22,Rome\n99,oops,Oslo\n,99,Lima\n12,22,Rome\n98,22,Paris\n",
    )
    .unwrap();
    let of_table =
        run_line_ok(folder, "predict --checkpoint run --data rows.csv --bad-rows null --out rows.out.csv");
    for line in ["outside the range of training: \"a\" 1\n", "never: \"city\" 1\n"] {
        assert!(of_table.stderr.contains(line), "{line}: {}", of_table.stderr);
    }
    run_line_ok(folder, &format!("{train} --set data.drop=city --out arrays"));
    let rows = [f64::NAN, 22.0, 99.0, f64::NAN, f64::INFINITY, 22.0, 12.0, 22.0, 98.0, 22.0];
    fs::write(folder.join("rows.npy"), npy(Element::F32, false, &[5, 2], &rows)).unwrap();
    let of_array =
        run_line_ok(folder, "predict --checkpoint arrays --data rows.npy --bad-rows null --out array.csv");
    assert!(of_array.stderr.contains("outside the range of training: \"a\" 1\n"), "{}", of_array.stderr);
    for name in ["rows.out.csv", "array.csv"] {
        let predicted = fs::read_to_string(folder.join(name)).unwrap();
        let are_empty: Vec<bool> =
            predicted.lines().skip(1).map(|line| line.is_empty() || line == "\"\"").collect();
        assert_eq!(are_empty, [true, true, true, false, false], "{name}: {predicted}");
    }
}
