//! `eval --importance` from a user's point of view.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::common::ranks;
use crate::common::{made_up_csv, quoted, run, run_ok, single, temp_dir, write};
use crate::data::files::{Element, npy};

/// A trained model in its own folder.
struct Model {
    folder: TempDir,
}

impl Model {
    /// Trains on `table` with these additional lines of a config.
    fn from_table(table: &str, config: &str) -> Self {
        let folder = temp_dir();
        let path = write(folder.path(), "table.csv", table);
        Self::train(folder, &format!("[data]\ntrain = {}\n{config}", quoted(&path)))
    }

    fn train(folder: TempDir, config: &str) -> Self {
        let config = write(folder.path(), "run.toml", config);
        let out = folder.path().join("out");
        run_ok(single(&["train", text(&config), "--out", text(&out), "--quiet", "--device", "cpu"]));
        Model { folder }
    }

    fn args(&self, args: &[&str]) -> Vec<String> {
        let out = self.folder.path().join("out");
        let all = ["eval", "--checkpoint", text(&out), "--device", "cpu", "--importance"];
        all.iter().chain(args).map(|arg| (*arg).to_owned()).collect()
    }

    /// Output of `eval --importance --json`.
    fn importance(&self, args: &[&str]) -> Value {
        let args = self.args(&[args, &["--json"]].concat());
        serde_json::from_str(&run_ok(single(&args.iter().map(String::as_str).collect::<Vec<_>>())).stdout)
            .unwrap()
    }

    /// Checks that 2 and 3 ranks print the same as one.
    fn assert_same_on_all_numbers_of_ranks(&self) {
        let args = self.args(&["--json", "--repeats", "3"]);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let alone = run_ok(single(&args)).stdout;
        for n in [2, 3] {
            assert_eq!(run_ok(ranks(n, &args)).stdout, alone, "{n} ranks");
        }
    }

    /// The message of a refused command.
    fn refused(&self, args: &[&str]) -> String {
        let args = self.args(args);
        let outcome = run(single(&args.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(outcome.status.code(), Some(2), "{}", outcome.stderr);
        outcome.stderr
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Name, mean and deviation of each column, as printed.
fn columns(report: &Value) -> Vec<(&str, f64, f64)> {
    let column = |column: &'_ Value| -> (f64, f64) {
        (column["mean"].as_f64().unwrap(), column["std"].as_f64().unwrap())
    };
    let all = report["importance"].as_array().unwrap();
    all.iter().map(|of| (of["column"].as_str().unwrap(), column(of).0, column(of).1)).collect()
}

fn mean_of(report: &Value, name: &str) -> f64 {
    columns(report).iter().find(|(column, ..)| *column == name).unwrap().1
}

/// A pseudo-random number in -1..1, determined by row and column.
fn noise(row: usize, column: usize) -> f64 {
    let mut z = (row as u64 * 64 + column as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ z >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z >> 40) as f64 / f64::from(1 << 23) - 1.0
}

/// A label that depends on a string and on a number with missing values; a date and another number are unrelated to it.
fn pets() -> String {
    let mut csv = "kind,size,noise,born,weight,label\n".to_owned();
    for row in 0..300 {
        let kind = ["cat", "dog", "fish"][(noise(row, 0) * 1.5 + 1.5) as usize];
        let size = noise(row, 1);
        let label = if kind == "cat" || size > 0.5 { "yes" } else { "no" };
        let size = if row % 13 == 0 { String::new() } else { format!("{size:.4}") };
        let month = row % 12 + 1;
        writeln!(csv, "{kind},{size},{:.4},2024-{month:02}-11,{},{label}", noise(row, 2), 1 + row % 3)
            .unwrap();
    }
    csv
}

const PETS: &str = "target = [\"label\"]\ncategorical = [\"kind\"]\nmissing = \"mean\"\ndatetime = \"parts\"\nweight = \"weight\"\n\
                    eval_fraction = 0.5\n[model]\nhidden = [16]\n[optimizer]\nlr = 0.02\n[train]\nepochs = 20\nbatch_size = 16\n";

#[test]
fn columns_have_the_importance_and_the_names_of_the_table() {
    for encode in ["", "encode = \"embedding\"\n"] {
        let model = Model::from_table(&pets(), &format!("{encode}{PETS}"));
        let report = model.importance(&[]);
        let found = columns(&report);
        // The order of the two relevant columns depends on the training.
        let mut names: Vec<&str> = found.iter().map(|(name, ..)| *name).collect();
        names[..2].sort_unstable();
        names[2..].sort_unstable();
        assert_eq!(names, ["kind", "size", "born", "noise"], "{found:?}");
        assert!(found.is_sorted_by(|a, b| a.1 >= b.1), "{found:?}");
        assert!(found[1].1 > 0.1 && found[2..].iter().all(|(_, mean, _)| mean.abs() < 0.05), "{found:?}");
        assert_eq!((&report["metric"], &report["direction"]), (&"eval_accuracy".into(), &"drop".into()));
        assert_eq!(
            (&report["rows"], &report["repeats"], &report["seed"]),
            (&150.into(), &5.into(), &0.into())
        );
        assert_eq!(report["importance"][0]["repeats"].as_array().unwrap().len(), 5);
        assert_ne!(columns(&model.importance(&["--seed", "1"])), found);
        model.assert_same_on_all_numbers_of_ranks();
    }
}

/// A table may have columns of the names that the parts of a date would have.
#[test]
fn columns_are_parts_of_a_date_where_the_table_has_the_date() {
    const PARTS: [&str; 7] = ["p.year", "p.month", "p.day", "p.weekday", "p.hour", "p.minute", "p.second"];
    let csv = |names: &[&str]| {
        let mut csv = format!("{},born,y\n", names.join(","));
        for row in 0..60 {
            let value = |name: &str| (row + name.len()) % 7;
            names.iter().for_each(|name| write!(csv, "{},", value(name)).unwrap());
            writeln!(csv, "{}-0{}-11,{}", 2020 + row % 3, 1 + row % 9, row % 2).unwrap();
        }
        csv
    };
    let model = Model::from_table(
        &csv(&PARTS),
        "target = [\"y\"]\ndatetime = \"parts\"\neval_fraction = 0.5\n[train]\nepochs = 1\n",
    );
    let names = |args: &[&str]| {
        let report = model.importance(args);
        let mut names: Vec<String> = columns(&report).iter().map(|(name, ..)| (*name).to_owned()).collect();
        names.sort();
        names
    };
    let mut expected = [&["born"], &PARTS[..]].concat();
    expected.sort_unstable();
    assert_eq!(names(&[]), expected);
    // Columns are found in any order, and one that is missing is named.
    let mut reversed = PARTS;
    reversed.reverse();
    let other = write(model.folder.path(), "other.csv", &csv(&reversed));
    assert_eq!(names(&["--data", text(&other)]), expected);
    let fewer = write(model.folder.path(), "fewer.csv", &csv(&PARTS[1..]));
    let refused = model.refused(&["--data", text(&fewer)]);
    assert!(
        refused.contains("its 7 feature columns differ from the 2 of the model: \"p.year\" is missing"),
        "{refused}"
    );
}

#[test]
fn the_table_is_sorted_and_says_what_the_numbers_mean() {
    let model = Model::from_table(&pets(), PETS);
    let args = model.args(&["--metrics", "log_loss", "--repeats", "2"]);
    let outcome = run_ok(single(&args.iter().map(String::as_str).collect::<Vec<_>>()));
    let line = |start: &str| outcome.stdout.lines().position(|line| line.starts_with(start)).unwrap();
    assert!(outcome.stdout.starts_with("150 rows of "), "{}", outcome.stdout);
    assert!(line("log loss ") < line("column  increase of log loss"), "{}", outcome.stdout);
    assert!(line("column") < line("kind") && line("kind") < line("noise"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("2 permutations of each column, seed 0"), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("9 evaluations of 150 rows"), "{}", outcome.stderr);
}

/// Settings with which a linear regression of these rows becomes exact.
const LINEAR: &str = "task = \"regression\"\nnormalize = \"standard\"\n[model]\nhidden = []\n[optimizer]\nlr = 0.05\n\
                      [schedule]\nkind = \"cosine\"\n[train]\nepochs = 60\nbatch_size = 20\n";

#[test]
fn importance_has_the_expectation_of_scikit_learn() {
    let path = crate::common::ddp_folder().join("../tests/golden/importance.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let floats =
        |value: &Value| value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    let x: Vec<f64> = golden["x"].as_array().unwrap().iter().flat_map(floats).collect();
    let y = floats(&golden["y"]);
    let folder = temp_dir();
    let array = |name: &str, bytes: Vec<u8>| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        quoted(&path)
    };
    let x = array("x.npy", npy(Element::F32, false, &[y.len(), 4], &x));
    let y = array("y.npy", npy(Element::F32, false, &[y.len()], &y));
    let config = format!("[data]\ntrain = {x}\nlabels = {y}\neval = {x}\neval_labels = {y}\n{LINEAR}");
    let model = Model::train(folder, &config);
    for (flags, key, direction) in
        [(&[][..], "eval_r2", "drop"), (&["--metrics", "mae"], "eval_mae", "increase")]
    {
        const REPEATS: f64 = 60.0;
        let report = model.importance(&[flags, &["--repeats", "60"]].concat());
        assert_eq!((&report["metric"], &report["direction"]), (&key.into(), &direction.into()));
        let (means, deviations) = (floats(&golden[key]["mean"]), floats(&golden[key]["std"]));
        for column in 0..4 {
            let got = mean_of(&report, &format!("f{column}"));
            let (want, deviation) = (means[column], deviations[column]);
            // Four standard errors of the difference of two means, plus the residual of the fit.
            let error = deviation * (1.0 / REPEATS + 1.0 / golden["n_repeats"].as_f64().unwrap()).sqrt();
            assert!((got - want).abs() <= 4.0 * error + 1e-3, "{key} f{column}: {got}, expected {want}");
        }
    }
    model.assert_same_on_all_numbers_of_ranks();
}

#[test]
fn several_targets_and_labels_have_an_importance_too() {
    // Target t depends on columns t to t + 2 of six.
    for (task, targets, metric) in [
        ("regression", "[\"t0\", \"t1\"]", "eval_r2"),
        ("multilabel", "[\"t0\", \"t1\", \"t2\"]", "eval_accuracy"),
    ] {
        let config = format!(
            "target = {targets}\ntask = \"{task}\"\neval_fraction = 0.4\n[model]\nhidden = [32]\n[optimizer]\nlr = 0.02\n\
             [train]\nepochs = 20\nbatch_size = 16\n"
        );
        let model = Model::from_table(&made_up_csv(400, 6, task, 0), &config);
        let report = model.importance(&[]);
        assert_eq!(report["metric"], metric);
        assert!(
            mean_of(&report, "f1") > 0.1 && mean_of(&report, "f1") > 3.0 * mean_of(&report, "f5"),
            "{report}"
        );
    }
}

#[test]
fn the_metric_is_the_one_that_the_run_judged_by() {
    let judged = format!("{PETS}\n[checkpoint]\nkeep_best = \"eval_f1_macro\"\n");
    assert_eq!(
        Model::from_table(&pets(), &judged).importance(&["--repeats", "1"])["metric"],
        "eval_f1_macro"
    );
    let stopped = format!("{PETS}early_stop_patience = 50\nearly_stop_metric = \"eval_balanced_accuracy\"\n");
    let report = Model::from_table(&pets(), &stopped).importance(&["--repeats", "1"]);
    assert_eq!(report["metric"], "eval_balanced_accuracy");
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let model = Model::from_table(&pets(), PETS);
    for names in ["accuracy,roc_auc", "confusion_matrix", "default"] {
        let refused = model.refused(&["--metrics", names]);
        assert!(
            refused.contains(&format!("measures one metric, got --metrics {names}\nhint: ")),
            "{refused}"
        );
    }
    assert!(model.refused(&["--metrics", "mae"]).contains("task \"classification\" does not give it"));
    assert!(model.refused(&["--metrics", "age.accuracy"]).contains("no heads: write accuracy alone"));
    assert!(model.refused(&["--repeats", "0"]).contains("expected a whole number of 1 or above"));
    let one: String = pets().lines().take(2).map(|line| format!("{line}\n")).collect();
    let one = write(model.folder.path(), "one.csv", &one);
    let refused = model.refused(&["--data", text(&one)]);
    assert!(
        refused.contains("needs at least 2 evaluation rows, got 1 of ") && refused.contains("hint: "),
        "{refused}"
    );
    assert!(!refused.contains("evaluations of"), "{refused}");
    let alike: String =
        pets().lines().filter(|line| !line.ends_with("no")).map(|line| format!("{line}\n")).collect();
    let alike = write(model.folder.path(), "alike.csv", &alike);
    let refused = model.refused(&["--data", text(&alike), "--metrics", "roc_auc"]);
    assert!(refused.contains("ROC AUC is not defined for the rows of "), "{refused}");
    let out = model.folder.path().join("out");
    for flag in ["--repeats", "--seed"] {
        let outcome = run(single(&["eval", "--checkpoint", text(&out), flag, "3"]));
        assert_eq!(outcome.status.code(), Some(2));
        assert!(outcome.stderr.contains("--importance"), "{}", outcome.stderr);
    }
}
