//! `runs ls`, `diff` and `show`: complete, failed, stopped and damaged runs.

use std::fs;

use serde_json::Value;

use crate::common::{refused, run_line, run_line_ok, temp_dir};

#[test]
fn runs_are_listed_compared_and_shown_whatever_has_become_of_them() {
    let folder = temp_dir();
    let path = folder.path();
    let train = |out: &str, more: &str| {
        let line =
            format!("train --out runs/{out} --epochs 2 --batch-size 64 --device cpu --threads 1 -q {more}");
        run_line(path, &line).status.code()
    };
    assert_eq!(train("a", "--eval-fraction 0.25"), Some(0));
    assert_eq!(train("b", "--lr 1e9"), Some(1));
    assert_eq!(train("c", "--set train.stop_after_steps=3 --hidden 8"), Some(85));
    assert_eq!(
        run_line(path, "train --resume runs/c --set train.stop_after_steps=5 --device cpu -q").status.code(),
        Some(85)
    );
    fs::create_dir_all(path.join("runs/d/metrics.jsonl")).unwrap();
    fs::create_dir_all(path.join("runs/no-run")).unwrap();
    fs::create_dir_all(path.join("runs/e")).unwrap();
    let events = fs::read_to_string(path.join("runs/a/metrics.jsonl")).unwrap();
    fs::write(path.join("runs/e/metrics.jsonl"), format!("half a li\n{}", &events[..events.len() - 20]))
        .unwrap();
    fs::write(path.join("runs/e/config.toml"), "name = \"x\u{1b}[31m\"\n[optimizer\n").unwrap();

    let lines = run_line_ok(path, "runs ls --json").stdout;
    let runs: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let of = |key: &str| runs.iter().map(|run| run[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("name"), ["a", "b", "c", "d", "e"]);
    assert_eq!(of("state"), ["complete", "failed", "stopped", "unreadable", "interrupted"]);
    assert_eq!(runs[0]["metric"], "eval_loss");
    assert!(runs[1]["error"].as_str().unwrap().starts_with("loss is "), "{lines}");
    assert_eq!((&runs[2]["step"], &runs[4]["n_damaged_lines"]), (&Value::from(5), &Value::from(2)));
    let table = run_line_ok(path, "runs ls").stdout;
    assert!(table.starts_with("run  state ") && table.contains("2 damaged lines"), "{table}");
    assert!(run_line_ok(path, "runs ls runs/no-run").stdout.contains("no runs in runs/no-run"));
    assert_eq!(run_line_ok(path, "runs ls runs/a --json").stdout.lines().count(), 1);

    let diff = run_line_ok(path, "runs diff runs/a runs/c").stdout;
    for part in
        ["setting ", "data.eval_fraction ", "0.25", "model.hidden ", "[8]", "eval_accuracy", "state  "]
    {
        assert!(diff.contains(part), "no {part:?} in {diff}");
    }
    let same: Value =
        serde_json::from_str(&run_line_ok(path, "runs diff runs/a runs/a --json").stdout).unwrap();
    assert_eq!(same["settings"].as_array().unwrap().len(), 0);

    let show = run_line_ok(path, "runs show runs/c").stdout;
    for part in [
        "c: stopped\n",
        "359 for evaluation, 64-8-10 layers",
        "\nhidden = [8]",
        "\nresumed after step 3 on 1 rank",
        "2 checkpoints, the last one after step 5",
        "train.stop_after_steps\n",
    ] {
        assert!(show.contains(part), "no {part:?} in {show}");
    }
    let shown = run_line_ok(path, "runs show runs/e").stdout;
    assert!(shown.contains("2 damaged lines") && !shown.contains('\u{1b}'), "{shown}");
    let json: Value = serde_json::from_str(&run_line_ok(path, "runs show runs/a --json").stdout).unwrap();
    assert_eq!(
        (&json["config"]["train.epochs"], &json["best"]["metric"]),
        (&Value::from(2), &Value::from("eval_loss"))
    );
    refused(path, "runs show runs/no-run", &["holds no run", "hint: "]);
    refused(path, "runs diff runs/a", &["RUN"]);
    refused(
        path,
        "runs ls missing",
        &["can't list the runs in `missing`: No such file", "hint: name their folder"],
    );
    refused(&path.join("runs"), "runs ls", &["can't list the runs in `runs`: No such file"]);
}
