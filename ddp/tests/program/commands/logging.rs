//! Notes, warnings and failures: on the terminal, in the log files of the ranks, and in the events.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{children, ddp_train, run, run_ok, single, start, temp_dir};
use crate::common::{mpirun, ranks};

/// A training run of one short epoch, on the CPU.
fn train<'a>(out: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let mut args = vec!["train", "--out", out.to_str().unwrap(), "--threads", "1", "--device", "cpu"];
    // So that one epoch is enough for a model of which the review finds nothing to warn.
    args.extend(["--set", "train.epochs=1", "--set", "model.hidden=[16]", "--set", "optimizer.lr=0.02"]);
    args.extend(more);
    args
}

/// Settings under which the loss is NaN in one of the first steps.
const DIVERGES: [&str; 6] =
    ["--set", "optimizer.kind=sgd", "--set", "optimizer.lr=1e30", "--set", "log.every_steps=1"];

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn log_of(out: &Path, rank: usize) -> String {
    read(&out.join(format!("logs/rank-{rank}.log")))
}

fn levels(log: &str) -> Vec<&str> {
    let levels = log.lines().filter(|line| !line.starts_with("    "));
    levels.map(|line| line.split_whitespace().nth(1).unwrap()).collect()
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[test]
fn rank_0_logs_what_it_shows() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let shown = run_ok(single(&train(&out, &[]))).stderr;
    let log = log_of(&out, 0);
    assert!(levels(&log).iter().all(|level| *level == "INFO"), "{log}");
    for line in log.lines().filter(|line| !line.starts_with("    ")) {
        let (time, rest) = line.split_once(' ').unwrap();
        assert!(time.len() == "2026-11-21T08:30:00.123456Z".len() && time.ends_with('Z'), "{line}");
        assert!(rest.contains("rank=0 host="), "{line}");
    }
    for part in ["out: 1,438 rows", "epoch 1/1  train_loss", "done  eval_loss", "files in "] {
        assert!(shown.contains(part) && log.contains(part), "no {part:?} in {shown} or {log}");
    }
    // A resumed run appends to the file.
    run_ok(single(&train(&out, &["--resume", "auto", "--set", "train.epochs=2"])));
    let both = log_of(&out, 0);
    assert!(both.starts_with(&log) && both.contains("resuming after step 45"), "{both}");
    // A new run starts a new file, and keeps files that do not belong to a run.
    fs::write(out.join("logs/notes.txt"), "mine").unwrap();
    run_ok(single(&train(&out, &["--overwrite"])));
    assert!(!log_of(&out, 0).contains("resuming"));
    assert_eq!(read(&out.join("logs/notes.txt")), "mine");
    // A log file shows that a folder contains a run.
    let old = folder.path().join("old");
    fs::create_dir_all(old.join("logs")).unwrap();
    fs::write(old.join("logs/rank-0.log"), "old").unwrap();
    let refused = run(single(&train(&old, &[])));
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stderr.contains("already holds a run (logs/rank-0.log)"), "{}", refused.stderr);
}

#[test]
fn without_a_run_there_is_no_log() {
    let folder = temp_dir();
    let mut command = single(&["train", "--dry-run"]);
    command.current_dir(folder.path());
    run_ok(command);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn every_rank_has_its_log() {
    let folder = temp_dir();
    let (out, verbose) = (folder.path().join("out"), folder.path().join("verbose"));
    let shown = run_ok(ranks(2, &train(&out, &[]))).stderr;
    assert_eq!(shown.matches("out: 1,438 rows").count(), 1, "{shown}");
    assert!(levels(&log_of(&out, 0)).contains(&"INFO"));
    assert_eq!(log_of(&out, 1), "", "nothing to warn of");
    run_ok(ranks(2, &train(&verbose, &["-v"])));
    let log = log_of(&verbose, 1);
    assert!(log.contains("INFO  rank=1 host=") && log.contains("DEBUG rank=1 host="), "{log}");
    assert_eq!(fs::read_dir(out.join("logs")).unwrap().count(), 2, "nothing else is left");
}

#[test]
fn a_warning_of_rank_1_is_shown_once() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    fs::create_dir_all(out.join("logs/rank-1.log")).unwrap();
    let shown = run_ok(ranks(2, &train(&out, &[]))).stderr;
    let warnings: Vec<_> = shown.lines().filter(|line| line.contains("warning: ")).collect();
    assert_eq!(warnings.len(), 1, "{shown}");
    assert!(warnings[0].starts_with("[rank 1 ") && warnings[0].contains("can't write the log `"), "{shown}");
    assert!(log_of(&out, 0).contains("done  "));
}

#[test]
fn a_run_does_not_need_its_logs() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("logs"), "a file").unwrap();
    let shown = run_ok(single(&train(&out, &[]))).stderr;
    assert_eq!(shown.matches("warning: can't write logs in `").count(), 1, "{shown}");
    assert!(shown.contains("the run continues without them") && shown.contains("done  "), "{shown}");
    assert!(out.join("model.safetensors").exists());
    // Through a link in its place, any file of the user would grow.
    let (linked, precious) = (folder.path().join("linked"), folder.path().join("precious"));
    fs::create_dir_all(linked.join("logs")).unwrap();
    fs::write(&precious, "my thesis").unwrap();
    std::os::unix::fs::symlink(&precious, linked.join("logs/rank-0.log")).unwrap();
    let shown = run_ok(single(&train(&linked, &["--resume", "auto"]))).stderr;
    assert_eq!(shown.matches("warning: can't write the log `").count(), 1, "{shown}");
    assert!(shown.contains("it is a link") && linked.join("model.safetensors").exists(), "{shown}");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "my thesis");
}

#[test]
fn more_is_shown_on_request() {
    let folder = temp_dir();
    let out = |name: &str| folder.path().join(name);
    let with = |name: &str, more: &[&str], directives: Option<&str>| {
        let mut command = single(&train(&out(name), more));
        command.env_remove("RUST_LOG").envs(directives.map(|value| ("RUST_LOG", value)));
        run_ok(command).stderr
    };
    let usual = with("usual", &[], None);
    assert!(!usual.contains("debug: ") && !usual.contains("trace: "), "{usual}");
    let debug = with("v", &["-v"], None);
    for part in ["debug: config of the run:\nname = \"v\"", "layer  in -> out", "checkpoint saved step=45"] {
        assert!(debug.contains(part), "no {part:?} in {debug}");
    }
    assert!(!debug.contains("trace: "), "{debug}");
    let sampled = with("s", &["-v", "--set", "log.every_steps=20"], None);
    assert_eq!(sampled.matches("debug: epoch{epoch=1}: step{step=").count(), 2, "{sampled}");
    let trace = with("vv", &["-vv"], None);
    assert_eq!(trace.matches("trace: epoch{epoch=1}: step{step=").count(), 45, "{trace}");
    assert!(trace.contains("load{data=builtin:digits}: collective{call=all_gather of "), "{trace}");
    let by_module = with("m", &[], Some("ddp::train=debug"));
    assert!(
        by_module.contains("checkpoint saved") && !by_module.contains("config of the run"),
        "{by_module}"
    );
    assert!(log_of(&out("m"), 0).contains("DEBUG rank=0"));
    let invalid = with("i", &[], Some("ddp=loud"));
    assert_eq!(
        invalid.matches("warning: RUST_LOG is ignored: `ddp=loud` is invalid").count(),
        1,
        "{invalid}"
    );
    let quiet = with("q", &["-q"], Some("trace"));
    assert_eq!(quiet, "");
}

#[test]
fn a_missing_driver_is_news_only_where_a_gpu_is_expected() {
    let folder = temp_dir();
    let args = ["train", "--threads", "1", "--set", "train.steps=1"];
    let shown_with = |devices: &str, more: &[&str]| {
        let mut command = single(&[&args, more].concat());
        command.env("NVIDIA_VISIBLE_DEVICES", devices).env_remove("CUDA_VISIBLE_DEVICES");
        command.current_dir(folder.path());
        run_ok(command).stderr
    };
    let shown = |more: &[&str]| shown_with("void", more);
    let usual = shown(&["--out", "a"]);
    assert!(!usual.contains("no NVIDIA driver"), "{usual}");
    let expected = shown_with("all", &["--out", "c"]);
    let is_news = expected.contains("--device auto chose the CPU: no NVIDIA driver");
    assert!(is_news || !expected.contains("1 rank on cpu,"), "{expected}");
    let verbose = shown(&["--out", "b", "-v"]);
    let is_told = verbose.contains("debug: --device auto chose the CPU: no NVIDIA driver");
    assert!(is_told || !verbose.contains("1 rank on cpu,"), "{verbose}");
}

#[test]
fn lines_can_be_json() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let shown = run_ok(single(&train(&out, &["--log-format", "json", "-v"]))).stderr;
    let lines = json_lines(&shown);
    for line in &lines {
        for key in ["timestamp", "level", "rank", "host", "target", "message", "fields", "spans"] {
            assert!(!line[key].is_null(), "no {key} in {line}");
        }
        assert_eq!((&line["rank"], &line["spans"][0]["name"]), (&0.into(), &"run".into()), "{line}");
    }
    let epoch = lines.iter().find(|line| line["target"] == "ddp::progress").unwrap();
    assert_eq!((&epoch["spans"][1]["epoch"], &epoch["fields"]["step"]), (&1.into(), &45.into()));
    assert!(lines.iter().any(|line| line["level"] == "debug"));
    // A failure is also a JSON line on the terminal; the file stays text.
    let failed = run(single(&train(&out, &["--log-format", "json"])));
    let last = json_lines(&failed.stderr).pop().unwrap();
    assert_eq!(last["level"], "error");
    assert!(last["message"].as_str().unwrap().contains("already holds a run"), "{last}");
    assert!(log_of(&out, 0).contains("INFO  rank=0"));
}

#[test]
fn a_failed_run_says_so_in_its_last_event() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let failed = run(single(&train(&out, &[&DIVERGES[..], &["--json"]].concat())));
    assert_eq!(failed.status.code(), Some(1), "{}", failed.stderr);
    let metrics = read(&out.join("metrics.jsonl"));
    assert_eq!(failed.stdout, metrics);
    let events = json_lines(&metrics);
    let (last, before) = events.split_last().unwrap();
    let step = before.iter().filter(|event| event["event"] == "step").count() + 1;
    assert_eq!(
        [&last["event"], &last["exit_code"], &last["rank"], &last["step"]],
        [&Value::from("failed"), &1.into(), &0.into(), &step.into()],
        "{last}"
    );
    assert!(last["error"].as_str().unwrap().contains(&format!("at step {step};")), "{last}");
    assert!(last["hint"].as_str().unwrap().starts_with("try a smaller `optimizer.lr`"), "{last}");
    let log = log_of(&out, 0);
    assert_eq!(levels(&log).last(), Some(&"ERROR"), "{log}");
    // Also before a run exists.
    let failed = run(single(&["train", "nowhere.toml", "--json"]));
    let event = json_lines(&failed.stdout).pop().unwrap();
    assert_eq!((&event["event"], &event["exit_code"]), (&"failed".into(), &2.into()), "{event}");
    assert!(event["step"].is_null() && event["error"].as_str().unwrap().contains("nowhere.toml"), "{event}");
    assert!(run(single(&["train", "nowhere.toml"])).stdout.is_empty());
}

#[test]
fn one_rank_writes_the_event_of_a_failure() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let failed = run(ranks(2, &train(&out, &DIVERGES)));
    assert_eq!(failed.status.code(), Some(1), "{}", failed.stderr);
    let events = json_lines(&read(&out.join("metrics.jsonl")));
    assert_eq!(events.iter().filter(|event| event["event"] == "failed").count(), 1);
    assert_eq!(events.last().unwrap()["event"], "failed");
    // Only rank 1 fails: it has the error, and reports it.
    let bad = folder.path().join("bad");
    let good = train(&bad, &["--json"]);
    let alone = [&good[..], &["--init-from", "nowhere.safetensors"]].concat();
    let failed = run(mpirun(&[(1, &good), (1, &alone)]));
    let events = json_lines(&failed.stdout);
    assert_eq!(events.len(), 1, "{events:?}");
    assert_eq!((&events[0]["event"], &events[0]["rank"]), (&"failed".into(), &1.into()));
    assert!(events[0]["error"].as_str().unwrap().contains("nowhere.safetensors"), "{events:?}");
}

/// Runs the program on a terminal with `columns` columns and captures its output; `None` if util-linux's `script` is missing.
fn on_terminal(columns: usize, args: &[&str], no_color: bool) -> Option<Command> {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: needs script (util-linux)");
        return None;
    }
    let quoted: Vec<_> = args.iter().map(|arg| format!("'{arg}'")).collect();
    let line = format!("stty rows 24 cols {columns}; exec '{}' {}", ddp_train(), quoted.join(" "));
    let mut command = Command::new("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm-256color").stdin(Stdio::null());
    command.env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
    if no_color {
        command.env("NO_COLOR", "1");
    }
    Some(command)
}

#[test]
fn the_bar_fits_40_columns() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let args = train(&out, &["--set", "train.epochs=12", "--set", "log.every_steps=10"]);
    let Some(command) = on_terminal(40, &args, true) else { return };
    let shown = run_ok(command).stdout;
    let bars: Vec<_> = shown.split("\r\x1b[2K").filter_map(|frame| frame.rsplit('\n').next()).collect();
    let bars: Vec<_> = bars.iter().filter(|bar| bar.contains('%')).collect();
    assert!(bars[0].ends_with("%  starting"), "{bars:?}");
    assert!(bars.iter().any(|bar| bar.contains("epoch 12/12, loss ")), "{bars:?}");
    for bar in bars {
        assert!(bar.trim_end().chars().count() <= 40 && bar.contains(['█', '░']), "{bar:?}");
    }
    // The first and the last evaluation, below one header.
    for part in ["    epoch     step  train_loss  eval_loss", "\n     1/12       45 ", "    12/12      540 "]
    {
        assert_eq!(shown.replace('\r', "").matches(part).count(), 1, "{part}: {shown}");
    }
}

#[test]
fn errors_have_colors_on_a_terminal_only() {
    let args = ["train", "nowhere.toml"];
    let (Some(colors), Some(plain)) = (on_terminal(80, &args, false), on_terminal(80, &args, true)) else {
        return;
    };
    let shown = run(colors).stdout;
    assert!(
        shown.contains("\x1b[1;31merror:\x1b[0m ") && shown.contains("\x1b[1;32mhint:\x1b[0m "),
        "{shown}"
    );
    for shown in [run(plain).stdout, run(single(&args)).stderr] {
        assert!(shown.contains("error: ") && !shown.contains('\x1b'), "{shown}");
    }
}

#[test]
fn ctrl_c_is_answered_at_once() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    // Enough epochs that the run does not end during the test.
    let args = train(&out, &["--set", "train.epochs=1000000", "--set", "log.every_steps=1"]);
    let Some(command) = on_terminal(80, &args, true) else { return };
    let job = start(command);
    let started = Instant::now();
    while !fs::read_to_string(out.join("metrics.jsonl")).is_ok_and(|text| text.lines().count() > 3) {
        assert!(started.elapsed() < Duration::from_secs(60), "no step within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
    for pid in children(job.pid()) {
        let status = Command::new("sh").args(["-c", &format!("kill -INT {pid}")]).status().unwrap();
        assert!(status.success());
    }
    let outcome = job.wait();
    assert_eq!(outcome.status.code(), Some(85), "{}", outcome.stdout);
    let (_, after) = outcome.stdout.split_once("stopping after this step; again to quit now").unwrap();
    assert!(after.contains("stopped by SIGINT") && !after.contains('%'), "{after}");
}
