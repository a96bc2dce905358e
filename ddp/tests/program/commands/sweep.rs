//! Sweeps: all points are trained, compared and resumed, whatever happens to some of them.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::common::{
    children, kill_9, mpirun, refused, run, run_line, run_line_ok, run_ok, signal, single, start, temp_dir,
    write,
};
use crate::virtual_gpu::command_under_virtual_gpus;

const FAST: &str = "--epochs 1 --batch-size 128 -- --device cpu --threads 1";

#[track_caller]
fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| panic!("{text}"))
}

#[test]
fn models_without_held_out_rows_are_compared_with_a_note() {
    let folder = temp_dir();
    write(folder.path(), "rows.csv", "x,y\n1,0\n2,1\n3,0\n4,1\n");
    let shown = run_line_ok(folder.path(), &format!("sweep rows.csv --target y --out s {FAST}")).stdout;
    assert!(shown.contains("train_loss") && shown.contains("note: the loss of training rows"), "{shown}");
}

#[test]
fn commands_that_are_shown_quote_folders_with_blanks() {
    let folder = temp_dir();
    let in_folder = |line: &str| {
        let words = line.split(' ').map(|word| if word == "DIR" { "my sweep/seed=0" } else { word });
        let words: Vec<_> = words.map(|word| if word == "OUT" { "my sweep" } else { word }).collect();
        let mut command = single(&words);
        command.current_dir(folder.path());
        run_ok(command)
    };
    let shown = in_folder(&format!("sweep --seeds 1 --out OUT {FAST}")).stdout;
    assert!(shown.contains("\nnext: ddp-train eval --checkpoint 'my sweep/seed=0'\n"), "{shown}");
    let said = in_folder("train --resume DIR --device cpu").stderr;
    assert!(said.contains("my sweep/seed=0 is complete after 12 steps"), "{said}");
    assert!(said.contains("hint: `ddp-train eval --checkpoint 'my sweep/seed=0'` evaluates it"), "{said}");
}

/// Waits until `is_so`, at most 60 s.
#[track_caller]
fn wait_until(is_so: impl Fn() -> bool) {
    for _ in 0..6000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("it never was so");
}

#[test]
fn points_are_compared_over_seeds_and_a_failing_one_does_not_stop_the_others() {
    let folder = temp_dir();
    // One rate is far too high.
    let line = format!(
        "sweep --grid optimizer.lr=1e9,1e-2 --grid model.hidden=[8],[16] --seeds 2 --jobs 2 --out s --json {FAST}"
    );
    let outcome = run_line(folder.path(), &line);
    assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
    let report = json(&outcome.stdout);
    assert_eq!(
        (report["metric"].as_str(), report["report"].as_str()),
        (Some("eval_loss"), Some("s/report.html"))
    );
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 4);
    let rate = |point: &Value| point["values"]["optimizer.lr"].as_str().unwrap().to_owned();
    assert_eq!(points.iter().map(rate).collect::<Vec<_>>(), ["1e-2", "1e-2", "1e9", "1e9"]);
    assert!(points[0]["mean"].as_f64() < points[1]["mean"].as_f64(), "the best one first");
    for point in &points[..2] {
        let values: Vec<f64> =
            point["runs"].as_array().unwrap().iter().map(|run| run["value"].as_f64().unwrap()).collect();
        let mean = (values[0] + values[1]) / 2.0;
        assert!((point["mean"].as_f64().unwrap() - mean).abs() < 1e-12, "{point}");
        let sd = (values[0] - values[1]).abs() / 2.0_f64.sqrt();
        assert!((point["sd"].as_f64().unwrap() - sd).abs() < 1e-12 && sd > 0.0, "{point}");
    }
    assert_eq!(points[3]["runs"][0]["state"], "failed", "{points:?}");
    let error = points[3]["runs"][0]["error"].as_str().unwrap();
    assert!(error.starts_with("loss is ") && error.ends_with("weights were not updated"), "{error}");
    let (_, hint) = outcome.stderr.split_once(&format!("failed: {error}\nhint: ")).unwrap();
    let hint = hint.lines().next().unwrap();
    assert!(hint.contains("; its output is in s/lr=1e9,hidden=") && hint.ends_with(".stderr"), "{hint}");
    assert!(folder.path().join("s/lr=1e-2,hidden=16,seed=1/model.safetensors").exists());
    assert!(folder.path().join("s/report.html").exists());

    // What is complete is not trained again, and values may be added.
    let more =
        format!("sweep --grid optimizer.lr=1e-2,1e-3 --grid model.hidden=[8],[16] --seeds 2 --out s {FAST}");
    let outcome = run_line_ok(folder.path(), &more);
    assert!(outcome.stderr.contains("4 of 8 are complete already"), "{}", outcome.stderr);
    assert!(outcome.stdout.starts_with("optimizer.lr  model.hidden  eval_loss"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("2 of 2\n"), "{}", outcome.stdout);
    refused(
        folder.path(),
        &more.replace("--epochs 1", "--epochs 2"),
        &["`s` holds a sweep of another config: `epochs = 2` was `epochs = 1`", "hint: name another folder"],
    );
}

/// Starts a sweep whose runs last until they are stopped, and waits until one has saved a checkpoint.
fn begin(folder: &Path, line: &str) -> crate::common::Job {
    let args: Vec<&str> = line.split_whitespace().collect();
    let mut command = single(&args);
    command.current_dir(folder);
    let job = start(command);
    let first = folder.join("s/lr=1e-3,seed=0/checkpoints/latest");
    wait_until(|| first.exists());
    job
}

#[test]
fn an_interrupted_sweep_goes_on() {
    let folder = temp_dir();
    let endless = "sweep --grid optimizer.lr=1e-3 --seeds 3 --jobs 2 --out s --batch-size 8 --set train.epochs=EPOCHS \
                   --set checkpoint.every_steps=20 -- --device cpu --threads 1";
    let steps = |name: &str| {
        let text = fs::read_to_string(folder.path().join(format!("s/{name}/metrics.jsonl"))).unwrap();
        text.lines().filter_map(|line| json(line)["step"].as_u64()).max().unwrap()
    };
    let line = endless.replace("EPOCHS", "3000");
    let job = begin(folder.path(), &line);
    signal("INT", job.pid());
    let outcome = job.wait();
    assert_eq!(outcome.status.code(), Some(85), "{outcome:?}");
    assert!(outcome.stderr.contains("hint: the same command continues the sweep"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("lr=1e-3,seed=0: stopped\n"), "{}", outcome.stdout);
    assert!(outcome.stdout.contains("lr=1e-3,seed=2: not started\n"), "{}", outcome.stdout);
    let after = steps("lr=1e-3,seed=0");

    // Killed, it leaves a run that goes on by itself; the next sweep waits for it.
    let job = begin(folder.path(), &line);
    wait_until(|| steps("lr=1e-3,seed=0") > after + 100);
    let runs = children(job.pid());
    kill_9(job.pid());
    job.wait();
    assert!(!runs.is_empty());
    let job = begin(folder.path(), &line);
    std::thread::sleep(Duration::from_millis(200));
    assert!(children(job.pid()).iter().all(|pid| !runs.contains(pid)));
    runs.iter().for_each(|pid| signal("TERM", *pid));
    // Whichever ends first has a place first, and the last run has the other one.
    let resumed = |seed: u32| {
        let metrics = folder.path().join(format!("s/lr=1e-3,seed={seed}/metrics.jsonl"));
        fs::read_to_string(metrics).unwrap().matches("\"event\":\"resume\"").count()
    };
    wait_until(|| resumed(0).max(resumed(1)) >= 2);
    signal("TERM", job.pid());
    assert_eq!(job.wait().status.code(), Some(85));
    assert!(steps("lr=1e-3,seed=0") > after + 100, "it continued");
}

#[test]
fn a_run_that_was_stopped_is_neither_judged_nor_forgotten() {
    let folder = temp_dir();
    let line = "sweep --grid optimizer.lr=1e-3,1e-2 --epochs 18 --batch-size 8 --hidden 256,256 --set checkpoint.every_steps=100 PRUNE \
                --out s -- --device cpu --threads 1";
    for (prune, pruned) in [("--prune", "pruned: 1 after epoch 6"), ("", "1 of 1\n")] {
        let _ = fs::remove_dir_all(folder.path().join("s"));
        let line = line.replace("PRUNE", prune);
        let job = begin(folder.path(), &line);
        children(job.pid()).into_iter().for_each(|pid| signal("TERM", pid));
        let outcome = job.wait();
        assert_eq!(outcome.status.code(), Some(85), "{outcome:?}");
        assert!(outcome.stdout.contains("lr=1e-3,seed=0: stopped\n"), "{}", outcome.stdout);
        let end = "stopped by a signal to a run\nhint: the same command continues the sweep";
        assert!(outcome.stderr.contains(end), "{}", outcome.stderr);
        assert!(!outcome.stderr.contains(" continue\n"), "{}", outcome.stderr);
        let outcome = run_line_ok(folder.path(), &line);
        assert!(outcome.stdout.contains(pruned), "{}", outcome.stdout);
    }
}

#[test]
fn what_cannot_be_is_refused_before_anything_starts() {
    let folder = temp_dir();
    let refuse = |line: &str, parts: &[&str]| {
        refused(folder.path(), &format!("sweep --out s {line}"), parts);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{line}");
    };
    refuse("--grid optimizer.lrr=1,2", &["optimizer.lrr", "did you mean"]);
    refuse("--grid optimizer.lr=1e-3,-1", &["optimizer.lr", "-1"]);
    refuse("--random 2 --range optimizer.lr=0..1:log", &["above 0 with :log"]);
    refuse("--grid train.seed=1,2", &["train.seed is set by more than one of --grid"]);
    refuse(
        "--grid checkpoint.keep_best=eval_loss,eval_accuracy",
        &["judged by eval_loss and by eval_accuracy", "judge all by one metric"],
    );
    refuse(
        "--lr 0.5 --set optimizer.lr=1e-3",
        &["`--set optimizer.lr=1e-3` and `--lr 0.5` both give `optimizer.lr`"],
    );
    for stop in
        ["--set train.stop_after_steps=5", "--grid train.stop_after_epochs=1,2", "-- --stop-after-steps 5"]
    {
        refuse(stop, &["train.stop_after_steps or _epochs in a sweep: no run would be complete"]);
    }
    refuse("-- --resume auto", &["--resume in a sweep: its runs have folders in --out"]);
    refuse("-- --dry-run", &["--dry-run"]);
    refuse("-- --no-such-flag", &["--no-such-flag"]);
    let mut job = mpirun(&[(2, &["sweep", "--out", "s", "--grid", "optimizer.lr=1"])]);
    job.current_dir(folder.path());
    let outcome = run(job);
    assert_eq!(outcome.status.code(), Some(78), "{outcome:?}");
    assert!(outcome.stderr.contains("`--ranks N` gives each run N ranks"), "{}", outcome.stderr);
}

#[test]
fn each_run_has_ranks_of_its_own() {
    let folder = temp_dir();
    let line = "sweep --random 1 --range optimizer.lr=1e-3..1e-2:log --ranks 2 --out s --epochs 1 -- --device cpu --threads 1";
    run_line_ok(folder.path(), line);
    let runs = run_line_ok(folder.path(), "runs ls s --json").stdout;
    let run = json(&runs);
    assert_eq!(run["state"], "complete");
    let shown = json(
        &run_line_ok(folder.path(), &format!("runs show {} --json", run["path"].as_str().unwrap())).stdout,
    );
    assert_eq!(shown["world_size"], 2);
    assert!((1e-3..=1e-2).contains(&shown["config"]["optimizer.lr"].as_f64().unwrap()), "{shown}");
}

#[test]
fn runs_side_by_side_have_gpus_of_their_own() {
    let folder = temp_dir();
    let sweep = |line: &str| {
        let line = format!(
            "sweep --grid optimizer.lr=1e-3,1e-2 --epochs 1 --batch-size 256 --out s {line} -v -- --check off"
        );
        let mut command = single(&line.split_whitespace().collect::<Vec<_>>());
        command.current_dir(folder.path());
        command_under_virtual_gpus(2, &command)
    };
    let Some(outcome) = sweep("") else { return };
    outcome.ok();
    for gpu in ["0", "1"] {
        let part = format!("CUDA_VISIBLE_DEVICES=\"{gpu}\"");
        assert!(outcome.stderr.contains(&part), "no {part} in {}", outcome.stderr);
    }
    let refused = sweep("--jobs 3").unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("--jobs 3: the GPUs here are enough for 2 runs at a time"),
        "{}",
        refused.stderr
    );
}

#[test]
fn pruned_points_stop_early_and_the_best_one_has_the_bits_of_a_run_of_its_own() {
    let folder = temp_dir();
    let flags = "--epochs 9 --batch-size 128 --set schedule.kind=cosine -- --device cpu --threads 1";
    let grid = "--grid optimizer.lr=1e-5,1e-4,3e-3,1e-2 --seeds 2";
    let line = format!("sweep {grid} --prune --out s --json {flags}");
    let outcome = run_line_ok(folder.path(), &line);
    let report = json(&outcome.stdout);
    // Of 4 points, 2 continue after epoch 1 and 1 after epoch 3.
    assert_eq!(report["pruned"], serde_json::json!({"1": 4, "3": 2}));
    assert_eq!(report["saved_epochs"], 4 * 8 + 2 * 6);
    let points = report["points"].as_array().unwrap();
    assert_eq!(points[0]["n_complete"], 2);
    let state = |point: &Value| point["runs"][0]["state"].as_str().unwrap().to_owned();
    assert_eq!(points.iter().map(state).collect::<Vec<_>>(), ["complete", "pruned", "pruned", "pruned"]);
    assert!(outcome.stderr.contains("epoch 1: 4 of 8 runs continue"), "{}", outcome.stderr);

    // A run of its own, with the same name.
    let rate = points[0]["values"]["optimizer.lr"].as_str().unwrap();
    let name = format!("lr={rate},seed=1");
    let alone = format!(
        "train --epochs 9 --batch-size 128 --set schedule.kind=cosine --set optimizer.lr={rate} --seed 1 --device cpu --threads 1 --quiet \
         --out alone/{name}"
    );
    run_line_ok(folder.path(), &alone);
    let model = |of: &str| fs::read(folder.path().join(of).join(&name).join("model.safetensors")).unwrap();
    assert!(model("s") == model("alone"), "other bits");

    // The same command again trains nothing and tells the same; other points are refused, since some were pruned already.
    let again = run_line_ok(folder.path(), &line);
    assert_eq!(json(&again.stdout), report);
    let text = run_line_ok(folder.path(), &line.replace(" --json", "")).stdout;
    assert!(text.contains("pruned: 4 after epoch 1, 2 after epoch 3, which saved 44 of 72 epochs"), "{text}");
    refused(folder.path(), &line.replace("1e-2", "2e-2"), &["pruned among themselves"]);
    refused(
        folder.path(),
        "sweep --grid optimizer.lr=1,2 --steps 9 --prune --out t",
        &["--prune needs runs of several epochs"],
    );

    for grid in
        ["--grid train.epochs=9,27", "--random 2 --range train.epochs=9..27", "--grid train.steps=90,270"]
    {
        let parts = ["in a sweep: with --prune all points have the length of the config", "hint: remove it"];
        refused(folder.path(), &format!("sweep {grid} --prune --out t"), &parts);
    }

    // A run that fails is named each time, and stands in nobody's way.
    let failing =
        format!("sweep --grid optimizer.lr=1e30,1e-3,1e-2 --prune --out f --set optimizer.kind=sgd {flags}");
    for _ in 0..2 {
        let outcome = run_line(folder.path(), &failing);
        assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
        let failed =
            outcome.stdout.lines().find(|line| line.starts_with("lr=1e30,seed=0: failed: ")).unwrap();
        assert!(failed.contains("loss is "), "{failed}");
        assert!(
            outcome.stdout.contains("pruned: 1 after epoch 3, which saved 6 of 27 epochs"),
            "{}",
            outcome.stdout
        );
    }
    refused(
        folder.path(),
        "sweep --seeds 3 --epochs 9 --set checkpoint.keep_best=none --prune --out k",
        &["the best evaluation"],
    );

    // Without it, those that were pruned train to the end.
    let all = json(&run_line_ok(folder.path(), &line.replace(" --prune", "")).stdout);
    assert!(all["points"].as_array().unwrap().iter().all(|point| point["n_complete"] == 2), "{all}");
}

#[test]
fn folds_judge_a_point_on_all_rows() {
    let folder = temp_dir();
    let rows: String =
        (0..60).map(|row| format!("{},{}\n", row % 7, if row % 7 > 3 { "high" } else { "low" })).collect();
    write(folder.path(), "rows.csv", &format!("x,y\n{rows}"));
    let line = "sweep rows.csv --target y --folds 3 --out s --json --epochs 2 -- --device cpu --threads 1";
    let report = json(&run_line_ok(folder.path(), line).stdout);
    let point = &report["points"][0];
    assert_eq!((point["n_complete"].as_u64(), point["sd"].is_f64()), (Some(3), true), "{report}");
    for fold in 1..=3 {
        let saved =
            fs::read_to_string(folder.path().join(format!("s/seed=0,fold={fold}-3/config.toml"))).unwrap();
        assert!(
            saved.contains(&format!("fold = \"{fold}/3\"")) && !saved.contains("\neval_fraction = "),
            "{saved}"
        );
    }
}

#[test]
fn without_the_best_weights_the_last_evaluation_judges() {
    let folder = temp_dir();
    let line =
        format!("sweep --grid optimizer.lr=1e-3,1e-2 --out s --json --set checkpoint.keep_best=none {FAST}");
    let report = json(&run_line_ok(folder.path(), &line).stdout);
    assert_eq!(report["metric"], "eval_loss");
    let end = |run: &Value| {
        let path = folder.path().join(run["path"].as_str().unwrap()).join("metrics.jsonl");
        json(fs::read_to_string(path).unwrap().lines().last().unwrap())
    };
    for point in report["points"].as_array().unwrap() {
        let run = &point["runs"][0];
        assert_eq!(run["value"], end(run)["eval_loss"], "{report}");
    }
    let text = run_line_ok(folder.path(), &line.replace(" --json", "")).stdout;
    assert!(!text.contains("note: the loss of training rows"), "{text}");
    let by = "--set train.early_stop_metric=eval_accuracy --set checkpoint.keep_best=none";
    let line = line.replace("--set checkpoint.keep_best=none", by).replace("--out s", "--out a");
    let report = json(&run_line_ok(folder.path(), &line).stdout);
    let best = &report["points"][0]["runs"][0];
    assert_eq!((&report["metric"], &best["value"]), (&"eval_accuracy".into(), &end(best)["eval_accuracy"]));
}

#[test]
fn a_point_that_is_drawn_twice_is_trained_once() {
    let folder = temp_dir();
    let line =
        "sweep --random 3 --range train.batch_size=31..32 --jobs 3 --out s --json --epochs 1 -- --device cpu";
    let outcome = run_line_ok(folder.path(), line);
    assert!(outcome.stderr.contains("--random 3: the ranges have 2 distinct points"), "{}", outcome.stderr);
    let report = json(&outcome.stdout);
    assert_eq!(report["points"].as_array().unwrap().len(), 2, "{report}");
}

#[test]
fn pruning_continues_while_a_run_succeeds() {
    let folder = temp_dir();
    // Two of four fail before the first rung, and as many continue after it.
    let line = "sweep --grid optimizer.lr=1e30,1e31,1e-3,1e-2 --prune=2 --epochs 4 --batch-size 128 --set optimizer.kind=sgd --out s --json -- \
                --device cpu --threads 1";
    let outcome = run_line(folder.path(), line);
    assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
    let report = json(&outcome.stdout);
    let states: Vec<_> = report["points"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| point["runs"][0]["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["complete", "failed", "failed", "pruned"], "{report}");
}

#[test]
fn pruning_without_rows_to_evaluate_on_is_refused_before_the_first_run() {
    let folder = temp_dir();
    let rows: String = (0..60).map(|row| format!("{},{}\n", row % 7, row % 7 / 4)).collect();
    write(folder.path(), "rows.csv", &format!("x,y\n{rows}"));
    write(folder.path(), "few.csv", "x,y\n1,0\n2,1\n3,0\n4,1\n");
    write(folder.path(), "run.toml", "[data]\ntrain = \"rows.csv\"\ntarget = \"y\"\n");
    let flags = "--grid optimizer.lr=1e-3,1e-2 --epochs 3 --prune --out s";
    for run in ["run.toml", "rows.csv --target y --plain", "few.csv --target y", "run.toml --eval none"] {
        refused(
            folder.path(),
            &format!("sweep {run} {flags}"),
            &["--prune has nothing to judge the runs by"],
        );
        assert!(!folder.path().join("s").exists(), "{run}");
    }
    refused(folder.path(), &format!("sweep run.toml {flags} --set data.train=away.csv"), &["away.csv"]);
    // Of a table without a config, a fifth of the rows is held out.
    for (out, run) in [("t", "rows.csv --target y"), ("u", "run.toml --eval-fraction 0.2")] {
        let line = format!("sweep {run} {flags} -- --device cpu --threads 1")
            .replace("--out s", &format!("--out {out}"));
        assert!(run_line_ok(folder.path(), &line).stdout.contains("pruned: 1 after epoch 1"));
    }
}
