//! What the program prints when all is well: results on stdout, progress on stderr, nothing else.

// A test that can't go on panics, and one that is skipped says so.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ddp-train");

fn run(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(PROGRAM);
    command.args(args).current_dir(folder).stdin(Stdio::null());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{args:?}: {output:#?}");
    output
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

fn train<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["train", "--set", "train.epochs=2", "--threads", "1"], more].concat()
}

#[test]
fn json_is_all_there_is_on_stdout() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &train(&["--json", "-v", "--out", "out"]));
    let metrics = std::fs::read(folder.path().join("out/metrics.jsonl")).unwrap();
    assert_eq!(output.stdout, metrics);
    let events: Vec<serde_json::Value> =
        text(metrics).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Checkpoints are told of when they are safe, between whatever else there is to tell.
    let (saved, events): (Vec<_>, Vec<_>) =
        events.into_iter().partition(|event| event["event"] == "checkpoint");
    assert_eq!(saved.len(), 2);
    let kinds: Vec<_> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["epoch", "step", "epoch", "end"]);

    let output = run(folder.path(), &["eval", "--checkpoint", "out", "--json"]);
    let eval: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(eval["eval_accuracy"], events[3]["eval_accuracy"]);
    assert!(output.stderr.is_empty());

    let bench =
        ["bench", "step", "--dims", "8,4", "--batch", "2", "--steps", "3", "--device", "cpu", "--json"];
    let bench: serde_json::Value = serde_json::from_slice(&run(folder.path(), &bench).stdout).unwrap();
    for key in ["samples_per_s", "step_ms_median", "startup_s", "peak_rss_mib", "world_size"] {
        assert!(bench[key].is_number(), "{key}: {bench}");
    }
}

#[test]
fn quiet_says_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &train(&["-q", "--out", "out"]));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:#?}");
}

#[test]
fn progress_is_lines_where_no_one_watches() {
    let folder = tempfile::tempdir().unwrap();
    for progress in ["auto", "bar", "plain"] {
        let output = run(folder.path(), &train(&["--progress", progress, "--out", progress]));
        assert!(output.stdout.is_empty());
        let stderr = text(output.stderr);
        assert!(!stderr.contains('\x1b') && !stderr.contains('\r'), "{stderr}");
        let starts = ["digits: 1438 rows", "epoch 1/2  ", "step 50  ", "epoch 2/2  ", "done  ", "  ", "  "];
        assert_eq!(stderr.lines().count(), starts.len(), "{stderr}");
        for (line, start) in stderr.lines().zip(starts) {
            assert!(line.starts_with(start), "{start:?}: {stderr}");
        }
        assert!(stderr.ends_with(&format!("files in {progress}\n")), "{stderr}");
    }
    let stderr = text(run(folder.path(), &train(&["--progress", "none", "--out", "none"])).stderr);
    assert!(stderr.lines().nth(1).unwrap().starts_with("done  "), "{stderr}");
}

#[test]
fn a_dry_run_gives_a_config_and_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let sets = ["--set", "optimizer.kind=sgd", "--out", "out"];
    let dry = run(folder.path(), &train(&[&sets[..], &["--dry-run"]].concat()));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let stderr = text(dry.stderr);
    for part in ["64-128-64-10 layers", "128 -> 64", "32 rows a step", "dry run: "] {
        assert!(stderr.contains(part), "no {part:?} in {stderr}");
    }
    // The config is whole: training with it writes the same one.
    std::fs::write(folder.path().join("run.toml"), &dry.stdout).unwrap();
    run(folder.path(), &["train", "run.toml", "--out", "out", "--threads", "1"]);
    assert_eq!(std::fs::read(folder.path().join("out/config.toml")).unwrap(), dry.stdout);
}

/// `script` from util-linux gives the program a terminal.
#[test]
fn a_terminal_gets_a_bar_with_colours_unless_unwanted() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: needs script (util-linux)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let on_terminal = |out: &str, no_color: Option<&str>| {
        let line = format!("stty cols 120; \"$PROGRAM\" train --set train.epochs=2 --threads 1 --out {out}");
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm-256color").env("PROGRAM", PROGRAM);
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        command.envs(no_color.map(|value| ("NO_COLOR", value)));
        let output = command.current_dir(folder.path()).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{output:#?}");
        text(output.stdout)
    };
    let (colours, none) = (on_terminal("a", None), on_terminal("b", Some("1")));
    for shown in [&colours, &none] {
        assert!(shown.contains('█') && shown.contains("rows/s"), "{shown}");
        assert!(shown.contains("epoch 2/2  train_loss") && shown.contains("files in "), "{shown}");
    }
    assert!(colours.contains("\x1b[36m") && !none.contains("\x1b[36m") && !none.contains("\x1b[34m"));
}

#[test]
fn completions_name_the_flags() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = text(run(folder.path(), &["completions", shell]).stdout);
        assert!(script.contains("ddp-train") && script.contains("init-from"), "{shell}");
    }
}
