//! Several models that predict together: the mean of all, and of each row by the models that did not train on it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{ranks, refused, run_line_ok, run_ok, temp_dir, write};

const N_ROWS: usize = 240;

/// Rows with two features and targets; every ninth row has none.
fn table(target: impl Fn(usize, f64) -> String) -> String {
    let mut csv = "id,day,a,b,y\n".to_owned();
    for row in 0..N_ROWS {
        let x = |i: usize| ((row * 31 + i * 17) as f64 * 0.37).sin();
        let y = if row % 9 == 4 { String::new() } else { target(row, x(0)) };
        writeln!(csv, "r{row},{},{:.5},{:.5},{y}", row * 7 % N_ROWS, x(0), x(1)).unwrap();
    }
    csv
}

/// The predictions of a file of JSON lines by their id; `None` for a row without one.
fn read(path: &Path, column: &str) -> BTreeMap<String, Option<f64>> {
    let text = fs::read_to_string(path).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    rows.map(|row| (row["id"].as_str().unwrap().to_owned(), row[column].as_f64())).collect()
}

/// Predictions of `args` on one rank, which three ranks repeat.
fn predicted(folder: &Path, args: &str, column: &str) -> BTreeMap<String, Option<f64>> {
    let mut texts = Vec::new();
    for n in [1, 3] {
        let line = format!("predict {args} --keep id --out p{n}.jsonl --overwrite --device cpu");
        let mut command = ranks(n, &line.split_whitespace().collect::<Vec<_>>());
        command.current_dir(folder);
        run_ok(command);
        texts.push(fs::read(folder.join(format!("p{n}.jsonl"))).unwrap());
    }
    assert!(texts[0] == texts[1], "predictions depend on the number of ranks: {args}");
    read(&folder.join("p1.jsonl"), column)
}

/// Predictions of each fold's model, of their ensemble and out of fold.
struct CrossValidation {
    of_fold: Vec<BTreeMap<String, Option<f64>>>,
    together: BTreeMap<String, Option<f64>>,
    out_of_fold: BTreeMap<String, Option<f64>>,
}

impl CrossValidation {
    fn new(folder: &Path, sets: &str, more: &str, column: &str) -> Self {
        let sweep = format!(
            "sweep rows.csv --target y --folds 3 --epochs 3 --drop id {sets} --set data.missing_target=skip --out cv -- --device cpu"
        );
        let shown = run_line_ok(folder, &sweep).stdout;
        assert!(shown.contains("next: ddp-train predict cv --out-of-fold --out "), "{shown}");
        let of_fold = (1..=3)
            .map(|fold| predicted(folder, &format!("cv/seed=0,fold={fold}-3 rows.csv {more}"), column))
            .collect();
        CrossValidation {
            of_fold,
            together: predicted(folder, &format!("cv rows.csv {more}"), column),
            out_of_fold: predicted(folder, &format!("cv --out-of-fold {more}"), column),
        }
    }

    fn check_means(&self, tolerance: f64) {
        assert_eq!(self.together.len(), N_ROWS);
        for (id, mean) in &self.together {
            let sum: f64 = self.of_fold.iter().map(|of| of[id].unwrap()).sum();
            assert!((mean.unwrap() - sum / 3.0).abs() < tolerance, "{id}: {mean:?}");
        }
    }

    /// The fold whose model predicted each row, by its number from 0.
    fn folds(&self, tolerance: f64) -> BTreeMap<&str, usize> {
        let mut folds = BTreeMap::new();
        for (id, value) in &self.out_of_fold {
            let Some(value) = value else { continue };
            let is_of = |of: &usize| (self.of_fold[*of][id].unwrap() - value).abs() < tolerance;
            let found: Vec<usize> = (0..3).filter(is_of).collect();
            assert_eq!(found.len(), 1, "{id}: {value} is of one fold's model");
            folds.insert(id.as_str(), found[0]);
        }
        folds
    }
}

fn row_of(id: &str) -> usize {
    id[1..].parse().unwrap()
}

#[test]
fn classes_out_of_fold_are_of_the_model_that_did_not_see_the_row() {
    let folder = temp_dir();
    let is_yes = |row: usize, x: f64| x > 0.2 || row.is_multiple_of(10);
    let csv = table(|row, x| if is_yes(row, x) { "yes" } else { "no" }.to_owned());
    write(folder.path(), "rows.csv", &csv);
    let all =
        CrossValidation::new(folder.path(), "--drop day --set data.filter=a<0.9", "--proba", "proba_yes");
    all.check_means(1e-6);
    let folds = all.folds(1e-6);
    let n_kept = all.out_of_fold.len();
    assert!(n_kept < N_ROWS, "the filter applies");
    assert!(all.out_of_fold.iter().all(|(id, value)| value.is_none() == (row_of(id) % 9 == 4)));
    for fold in 0..3 {
        let line =
            format!("eval --checkpoint cv/seed=0,fold={}-3 --json --metrics log_loss --device cpu", fold + 1);
        let report: Value = serde_json::from_str(&run_line_ok(folder.path(), &line).stdout).unwrap();
        let rows: Vec<&str> = folds.iter().filter(|(_, of)| **of == fold).map(|(id, _)| *id).collect();
        assert_eq!(report["rows"].as_u64(), Some(rows.len() as u64), "{report}");
        let x = |row: usize| ((row * 31) as f64 * 0.37).sin();
        let loss: f64 = rows
            .iter()
            .map(|id| {
                let p = all.out_of_fold[*id].unwrap();
                -(if is_yes(row_of(id), x(row_of(id))) { p } else { 1.0 - p }).ln()
            })
            .sum();
        let mean = loss / rows.len() as f64;
        assert!((report["eval_log_loss"].as_f64().unwrap() - mean).abs() < 1e-5, "{mean}: {report}");
    }
}

#[test]
fn values_by_time_leave_the_first_span_without_prediction() {
    let folder = temp_dir();
    // Far from zero, so that a mean in the units of one model would be off.
    write(folder.path(), "rows.csv", &table(|row, x| format!("{}", 5e5 + 100.0 * x + row as f64)));
    let all = CrossValidation::new(
        folder.path(),
        r#"--set data.split={time="day"} --set data.normalize_target=standard"#,
        "",
        "prediction",
    );
    all.check_means(0.05);
    let folds = all.folds(1e-3);
    let day = |id: &str| row_of(id) * 7 % N_ROWS;
    for (id, value) in &all.out_of_fold {
        match folds.get(id.as_str()) {
            Some(fold) => assert!((60 * fold + 55..60 * fold + 125).contains(&day(id)), "{id}: fold {fold}"),
            None => assert!(value.is_none() && (day(id) < 70 || row_of(id) % 9 == 4), "{id}"),
        }
    }
    assert!(folds.len() > 120);
}

#[test]
fn models_that_do_not_belong_together_are_refused() {
    let folder = temp_dir();
    write(folder.path(), "rows.csv", &table(|row, _| ["low", "high"][row % 2].to_owned()));
    write(folder.path(), "other.csv", &table(|row, _| ["low", "top"][row % 2].to_owned()));
    for name in ["rows", "other"] {
        let line = format!(
            "train {name}.csv --target y --drop id --epochs 1 --set data.missing_target=skip --set data.eval=none --out {name} --quiet --device cpu"
        );
        run_line_ok(folder.path(), &line);
    }
    for (name, more) in [("fold", "data.fold=1/2"), ("other-fold", "data.fold=2/2 --set data.max_rows=100")] {
        let line = format!(
            "train rows.csv --target y --drop id --epochs 1 --set data.missing_target=skip --set {more} --out {name} --quiet --device cpu"
        );
        run_line_ok(folder.path(), &line);
    }
    fs::create_dir(folder.path().join("empty")).unwrap();
    write(&folder.path().join("empty"), "sweep.json", r#"{"config": "", "runs": {}}"#);
    for (line, parts) in [
        (
            "predict --checkpoint rows --checkpoint other --data rows.csv --out p.csv",
            &["predict other targets or classes", "hint: models predict together if"][..],
        ),
        (
            "predict --checkpoint fold --checkpoint other-fold --out-of-fold --out p.csv",
            &["trained on other rows than the first model, or reads them by other keys", "--folds K"],
        ),
        ("predict --checkpoint rows --checkpoint rows --data rows.csv --out p.xyz", &["p.xyz", "hint: "]),
        (
            "predict rows --out-of-fold --out p.csv",
            &["`rows/model.safetensors` trained on all of its rows", "--folds K"],
        ),
        ("predict rows rows.csv --out-of-fold --out p.csv", &["--out-of-fold"]),
        (
            "predict empty rows.csv --out p.csv",
            &["is the folder of a sweep, and none of its points is complete"],
        ),
        ("predict --checkpoint rows --checkpoint rows --serve", &["--serve keeps a single model"]),
        (
            "predict --checkpoint rows --checkpoint rows --data - --out p.csv",
            &["2 models read the rows in turn"],
        ),
    ] {
        refused(folder.path(), line, parts);
    }
}

#[test]
fn heads_of_other_quantiles_are_refused() {
    let folder = temp_dir();
    let folder = folder.path();
    let rows = (0..40).map(|row| format!("{},{},{}\n", row % 7, row % 5, row % 3)).collect::<String>();
    write(folder, "rows.csv", &format!("a,y,z\n{rows}"));
    for (name, quantile) in [("low", 0.1), ("high", 0.9)] {
        let text = format!(
            "[data]\ntrain = \"rows.csv\"\neval = \"none\"\n[train]\nepochs = 1\n\
             [[heads]]\nname = \"y\"\ntask = \"regression\"\nloss = {{ kind = \"quantile\", quantile = {quantile} }}\n\
             [[heads]]\nname = \"z\"\ntask = \"regression\"\n"
        );
        write(folder, &format!("{name}.toml"), &text);
        run_line_ok(folder, &format!("train {name}.toml --out {name} --quiet --device cpu"));
    }
    let line =
        |others: &str| format!("predict --checkpoint low {others} --data rows.csv --out p.csv --device cpu");
    refused(folder, &line("--checkpoint high"), &["or by other losses", "hint: models predict together if"]);
    run_line_ok(folder, &line("--checkpoint low"));
}

#[test]
fn the_first_rows_of_arrays_are_predicted_out_of_fold() {
    let folder = temp_dir();
    for fold in ["1/2", "2/2"] {
        let out = fold.replace('/', "-");
        let line = format!(
            "train builtin:digits --epochs 1 --set data.max_rows=300 --set data.fold={fold} --out {out} --quiet --device cpu"
        );
        run_line_ok(folder.path(), &line);
    }
    // By flags, and by place.
    for models in ["--checkpoint 1-2 --checkpoint 2-2", "1-2 2-2"] {
        let line = format!("predict {models} --out-of-fold --out p.csv --overwrite --device cpu");
        let shown = run_line_ok(folder.path(), &line).stderr;
        assert!(shown.contains("300 rows -> p.csv, using 2 models"), "{shown}");
    }
    let line = "predict 1-2 2-2 builtin:digits --out all.csv --device cpu";
    assert!(run_line_ok(folder.path(), line).stderr.contains("using 2 models"));
    let text = fs::read_to_string(folder.path().join("p.csv")).unwrap();
    assert!(text.lines().count() == 301 && text.lines().all(|line| !line.is_empty()), "{text}");
}
