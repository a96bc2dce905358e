//! `data.split`: the run, `eval` and a resumed run evaluate the same rows on any number of ranks.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use crate::common::{ddp_train, quoted, ranks, run, run_ok, single, temp_dir, train, write};
use crate::data::files::{Element, npy};

const N_ROWS: usize = 120;

/// A table of patients with 5 rows each.
fn table(folder: &Path) -> String {
    let mut text = "patient,when,x,y\n".to_owned();
    for row in 0..N_ROWS {
        let x = (row as f64 * 0.7).sin();
        writeln!(text, "no {},2024-01-01 {:02}:{:02},{x},{}", row / 5, row / 60, row % 60, 3.0 * x + 0.5)
            .unwrap();
    }
    quoted(&write(folder, "rows.csv", &text))
}

fn config(train: &str, split: &str) -> String {
    let other = if split.contains("patient") { "when" } else { "patient" };
    format!(
        "[data]\ntrain = {train}\ntarget = \"y\"\ndrop = [\"{other}\"]\nsplit = {{ {split} }}\neval_fraction = 0.25\n\
         [model]\nhidden = [8]\n[train]\nepochs = 4\nglobal_batch_size = 30\n"
    )
}

/// The evaluation of a run's folder.
fn evaluated(n_ranks: usize, run_folder: &Path) -> Value {
    let run_folder = run_folder.to_str().unwrap();
    let outcome = run_ok(ranks(n_ranks, &["eval", "--device", "cpu", "--json", "--checkpoint", run_folder]));
    serde_json::from_str(&outcome.stdout).unwrap()
}

#[test]
fn a_run_and_its_evaluation_have_the_same_rows() {
    let folder = temp_dir();
    let rows = table(folder.path());
    for (split, n_eval, other) in [("group = \"patient\"", 30, "when"), ("time = \"when\"", 30, "patient")] {
        let run = train(1, &config(&rows, split), &[]);
        let figures = evaluated(1, &run.out());
        assert_eq!(figures["rows"].as_u64(), Some(n_eval), "{split}");
        assert_eq!(figures["eval_mae"].as_f64(), Some(run.end("eval_mae")), "{split}");
        let saved = std::fs::read_to_string(run.out().join("config.toml")).unwrap();
        assert!(saved.contains(&format!("split = {{ {split} }}\n")), "{saved}");
        // Rows for other purposes do not need this column.
        let other = write(folder.path(), "other.csv", &format!("x,y,{other}\n0.5,2,a\n0.1,1,b\n"));
        let out = run.out();
        let args =
            ["eval", "--json", "--checkpoint", out.to_str().unwrap(), "--data", other.to_str().unwrap()];
        assert_eq!(serde_json::from_str::<Value>(&run_ok(single(&args)).stdout).unwrap()["rows"], 2);
        let args = ["predict", "--checkpoint", args[3], "--data", args[5], "--out", "-"];
        assert_eq!(run_ok(single(&args)).stdout.lines().count(), 3);
    }
}

#[test]
fn the_number_of_ranks_changes_no_row() {
    let folder = temp_dir();
    let config = config(&table(folder.path()), "group = \"patient\"");
    let of_one = train(1, &config, &[]);
    let figures = evaluated(1, &of_one.out());
    for n_ranks in [2, 3] {
        let of_ranks = train(n_ranks, &config, &[]);
        assert!((of_ranks.end("eval_mae") - of_one.end("eval_mae")).abs() < 1e-5, "{n_ranks} ranks");
        let mut of_same = evaluated(n_ranks, &of_one.out());
        let close = |key: &str, other: &Value| {
            (figures[key].as_f64().unwrap() - other[key].as_f64().unwrap()).abs() < 1e-6
        };
        assert!(close("eval_mae", &of_same) && of_same["rows"] == figures["rows"], "{of_same} {figures}");
        of_same = evaluated(n_ranks, &of_ranks.out());
        assert_eq!(of_same["rows"], figures["rows"]);
    }
}

#[test]
fn a_resumed_run_evaluates_the_same_rows() {
    let folder = temp_dir();
    let config = config(&table(folder.path()), "group = \"patient\"");
    let whole = train(1, &config, &[]);
    let file = write(folder.path(), "run.toml", &config);
    let out = folder.path().join("out");
    let args = ["train", file.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let stopped = run(single(&[&args[..], &["--set", "train.stop_after_steps=5"]].concat()));
    assert_eq!(stopped.status.code(), Some(85), "{}", stopped.stderr);
    assert!(
        stopped.stderr.contains("split by \"patient\": 18 groups (90 rows) to train on"),
        "{}",
        stopped.stderr
    );
    run_ok(single(&[&args[..], &["--resume", "auto"]].concat()));
    assert_eq!(evaluated(1, &out)["eval_mae"].as_f64(), Some(whole.end("eval_mae")));
    // Moving one row to another group changes the split.
    let rows = folder.path().join("rows.csv");
    let text = std::fs::read_to_string(&rows).unwrap().replacen("no 3,", "no 4,", 1);
    std::fs::write(&rows, text).unwrap();
    let changed =
        run(single(&[&args[..3], &[folder.path().join("other").to_str().unwrap(), "--dry-run"]].concat()));
    assert!(!changed.stderr.contains("18 groups (90 rows) to train on"), "{}", changed.stderr);
}

#[test]
fn rows_without_named_columns_are_refused_and_pipes_are_split() {
    let folder = temp_dir();
    let put = |name: &str, bytes: Vec<u8>| std::fs::write(folder.path().join(name), bytes).unwrap();
    put("x.npy", npy(Element::F64, false, &[4, 1], &[1.0, 2.0, 3.0, 4.0]));
    put("y.npy", npy(Element::I64, false, &[4], &[0.0, 1.0, 0.0, 1.0]));
    let split = ["--set", "data.split={group=\"g\"}", "--set", "data.eval_fraction=0.5", "--dry-run"];
    let mut of_arrays = single(&[&["train", "x.npy", "--set", "data.labels=y.npy"], &split[..]].concat());
    of_arrays.current_dir(folder.path());
    let outcome = run(of_arrays);
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.stderr);
    for part in ["`data.split`", "x.npy", "holds arrays", "hint: use a table with that column", "`data.eval`"]
    {
        assert!(outcome.stderr.contains(part), "no {part:?} in {}", outcome.stderr);
    }
    let pipe = format!("cat '{}'", folder.path().join("rows.csv").display());
    table(folder.path());
    let program = ddp_train();
    let line = format!(
        "{pipe} | {program} train --data /dev/stdin --target y --set 'data.split={{group=\"patient\"}}' --eval-fraction 0.2 --set 'data.drop=[\"when\"]' --set data.format=csv --dry-run"
    );
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", &line]);
    let outcome = run(shell);
    // Its column is taken while the rows are read.
    assert_eq!(outcome.status.code(), Some(0), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("split by \"patient\""), "{}", outcome.stderr);
}
