//! Output of successful runs: results on stdout, progress on stderr, nothing else.

// A test that cannot continue panics, and a test that is skipped prints that it is.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::ddp_train;

fn run(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(ddp_train());
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

/// Events that nobody reads do not block the run, however many there are.
#[test]
fn events_that_nobody_reads_do_not_hold_the_run() {
    // First less than the pipe and the run's own queue can hold, then far more.
    for (epochs, is_lost) in [("20", false), ("500", true)] {
        let folder = tempfile::tempdir().unwrap();
        let rows = "x,label\n1,0\n2,1\n3,0\n4,1\n";
        std::fs::write(folder.path().join("rows.csv"), rows).unwrap();
        let sets = ["--set", "train.batch_size=1", "--set", "log.every_steps=1", "--device", "cpu"];
        let args = [
            "train",
            "rows.csv",
            "--hidden",
            "2",
            "--out",
            "out",
            "--json",
            "--threads",
            "1",
            "--epochs",
            epochs,
        ];
        let mut command = Command::new(ddp_train());
        command.args(args).args(sets).current_dir(folder.path()).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let unread = child.stdout.take().unwrap();
        let mut stderr = child.stderr.take().unwrap();
        let stderr = std::thread::spawn(move || {
            let mut text = String::new();
            std::io::Read::read_to_string(&mut stderr, &mut text).unwrap();
            text
        });
        let started = Instant::now();
        while child.try_wait().unwrap().is_none() && started.elapsed() < Duration::from_secs(100) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = child.try_wait().unwrap();
        let _ = child.kill();
        let stderr = stderr.join().unwrap();
        assert_eq!(status.and_then(|status| status.code()), Some(0), "{stderr}");
        let lost =
            "warning: stopped writing events to stdout: nothing reads it; metrics.jsonl has all of them";
        assert_eq!(stderr.matches(lost).count(), usize::from(is_lost), "{stderr}");
        let events = std::fs::read_to_string(folder.path().join("out/metrics.jsonl")).unwrap();
        assert!(events.lines().last().unwrap().contains("\"event\":\"end\""));
        assert!(!is_lost || events.len() > 400_000, "{} bytes", events.len());
        drop(unread);
    }
}

#[test]
fn json_is_all_there_is_on_stdout() {
    let folder = tempfile::tempdir().unwrap();
    let output = run(folder.path(), &train(&["--json", "-v", "--out", "out"]));
    let metrics = std::fs::read(folder.path().join("out/metrics.jsonl")).unwrap();
    assert_eq!(output.stdout, metrics);
    let events: Vec<serde_json::Value> =
        text(metrics).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    // Checkpoints are reported once they are on disk, between other lines.
    let (saved, events): (Vec<_>, Vec<_>) =
        events.into_iter().partition(|event| event["event"] == "checkpoint");
    assert_eq!(saved.len(), 1, "one at the end");
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
        let first = format!("{progress}: 1,438 rows");
        let starts = [first.as_str(), "epoch 1/2  ", "step 50  ", "epoch 2/2  ", "done  ", "report: "];
        // Steps are printed as time passes, unless all are wanted.
        let starts = starts.iter().filter(|start| progress == "plain" || !start.starts_with("step"));
        let starts: Vec<_> = starts.copied().collect();
        let lines: Vec<_> = stderr.lines().filter(|line| !line.starts_with(' ')).collect();
        assert_eq!(lines.len(), starts.len(), "{stderr}");
        for (line, start) in lines.into_iter().zip(starts) {
            assert!(line.starts_with(start), "{start:?}: {stderr}");
        }
        assert!(
            stderr.ends_with(&format!("files in {progress}\nreport: {progress}/report.html\n")),
            "{stderr}"
        );
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
    for part in ["64-128-64-10 layers", "128 -> 64", "32 rows per step", "dry run: "] {
        assert!(stderr.contains(part), "no {part:?} in {stderr}");
    }
    // The printed config is complete: training with it writes the same one.
    std::fs::write(folder.path().join("run.toml"), &dry.stdout).unwrap();
    run(folder.path(), &["train", "run.toml", "--out", "out", "--threads", "1"]);
    assert_eq!(std::fs::read(folder.path().join("out/config.toml")).unwrap(), dry.stdout);
}

/// `script` from util-linux gives the program a terminal.
#[test]
fn a_terminal_gets_a_bar_with_colors_unless_unwanted() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: needs script (util-linux)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let on_terminal = |out: &str, no_color: Option<&str>| {
        let line =
            format!("stty rows 24 cols 120; \"$PROGRAM\" train --set train.epochs=2 --threads 1 --out {out}");
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm-256color").env("PROGRAM", ddp_train());
        command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
        command.envs(no_color.map(|value| ("NO_COLOR", value)));
        let output = command.current_dir(folder.path()).stdin(Stdio::null()).output().unwrap();
        assert!(output.status.success(), "{output:#?}");
        text(output.stdout)
    };
    let (colors, none) = (on_terminal("a", None), on_terminal("b", Some("1")));
    for shown in [&colors, &none] {
        assert!(shown.contains('█') && shown.contains("samples/s"), "{shown}");
        assert!(
            shown.contains("epoch     step  train_loss")
                && shown.contains("2/2")
                && shown.contains("files in "),
            "{shown}"
        );
    }
    assert!(colors.contains("\x1b[36m") && !none.contains("\x1b[36m") && !none.contains("\x1b[34m"));
}

#[test]
fn completions_name_the_flags() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = text(run(folder.path(), &["completions", shell]).stdout);
        assert!(script.contains("ddp-train") && script.contains("init-from"), "{shell}");
    }
}

/// Commands whose results go to stdout, in a folder with a run in `out`.
const RESULTS: [&[&str]; 29] = [
    &["config", "keys"],
    &["config", "keys", "--json"],
    &["config", "schema"],
    &["checkpoint", "show", "out"],
    &["checkpoint", "show", "out", "--config"],
    &["checkpoint", "ls", "out"],
    &["checkpoint", "ls", "out", "--json"],
    &["checkpoint", "verify", "out"],
    &["checkpoint", "prune", "out", "--keep", "9"],
    &["checkpoint", "export", "out", "--out", "w.safetensors", "--overwrite"],
    &["eval", "--checkpoint", "out"],
    &[
        "bench",
        "kernels",
        "--device",
        "cpu",
        "--rows",
        "16",
        "--cols",
        "24",
        "--repeats",
        "1",
        "--repeat-ms",
        "0",
    ],
    &[
        "bench", "step", "--device", "cpu", "--dims", "8,16,4", "--batch", "4", "--steps", "2", "--warmup",
        "1",
    ],
    &["describe"],
    &["describe", "--json"],
    &["find-lr", "--device", "cpu"],
    &["find-batch-size", "--device", "cpu", "--max", "2"],
    &["sweep", "--out", "swept", "--epochs", "1", "--", "--device", "cpu"],
    &["runs", "ls", "."],
    &["runs", "diff", "out", "out"],
    &["runs", "show", "out", "--json"],
    &["plan", "--gpu", "cpu"],
    &["data", "inspect", "rows.csv"],
    &["data", "convert", "rows.csv", "rows.parquet", "--overwrite"],
    &["devices"],
    &["doctor"],
    &["doctor", "--json"],
    &["completions", "bash"],
    &["train", "--dry-run"],
];

fn with_a_run() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rows.csv"), "a,label\n1,0\n2,1\n3,0\n4,1\n").unwrap();
    run(folder.path(), &train(&["-q", "--out", "out"]));
    folder
}

#[test]
fn results_that_cannot_be_written_are_an_error() {
    let folder = with_a_run();
    let full = || std::fs::File::options().write(true).open("/dev/full").unwrap();
    for args in RESULTS.iter().chain(&[&["--help"][..], &["train", "--help"], &["--version"]]) {
        let mut command = Command::new(ddp_train());
        let output = command.args(*args).current_dir(folder.path()).stdout(full()).output().unwrap();
        let stderr = text(output.stderr);
        assert_eq!(output.status.code(), Some(74), "{args:?}: {stderr}");
        let want = "error: can't write to stdout: No space left on device (os error 28)\n\
                    hint: the disk it is redirected to is full: free some space, or redirect it elsewhere\n";
        assert!(stderr.ends_with(want), "{args:?}: {stderr}");
    }
    // The run is more important than its report.
    let mut command = Command::new(ddp_train());
    command.args(train(&["--json", "--out", "json"])).current_dir(folder.path()).stdout(full());
    let output = command.output().unwrap();
    let stderr = text(output.stderr);
    assert!(output.status.success(), "{stderr}");
    assert_eq!(
        stderr.matches("warning: stopped writing events to stdout: No space left").count(),
        1,
        "{stderr}"
    );
    assert!(folder.path().join("json/model.safetensors").exists());
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    let folder = with_a_run();
    for args in RESULTS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(ddp_train());
        let output = command.args(args).current_dir(folder.path()).stdout(writer).output().unwrap();
        let stderr = text(output.stderr);
        assert!(output.status.success(), "{args:?}: {stderr}");
        assert!(!stderr.contains("error") && !stderr.contains("panicked"), "{args:?}: {stderr}");
    }
}
