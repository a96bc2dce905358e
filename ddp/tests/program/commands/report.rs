//! The page of a run, `report.html`: at the end of runs and by command, whatever has become of the run and its files.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{ddp_folder, refused, run_line, run_line_ok, run_ok, temp_dir, write};

/// Names of elements that a page may have.
const ELEMENTS: &str = "html head meta title style body header h1 h2 h3 p code br b dl div dt dd small nav a main section figure figcaption \
    span svg line text path g circle rect table thead tbody tr th td details summary pre ul li footer";

/// Reads a page and checks that it is well-formed and holds nothing that could load or run. Text is escaped, so each `<` begins
/// a tag.
#[track_caller]
fn page(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let body = text.strip_prefix("<!DOCTYPE html><!-- ddp-train report -->").expect("the mark of a page");
    let mut open: Vec<&str> = Vec::new();
    for tag in body.split('<').skip(1) {
        let (tag, _) = tag.split_once('>').unwrap_or_else(|| panic!("no end of <{tag}"));
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "of {open:?}");
            continue;
        }
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        assert!(ELEMENTS.split_whitespace().any(|known| known == name), "unexpected <{tag}>");
        assert!(attributes.matches('"').count() % 2 == 0 && !attributes.contains("NaN"), "<{tag}>");
        let names = attributes.split('"').step_by(2).map(str::trim);
        assert!(names.clone().all(|name| !name.starts_with("on") && !name.starts_with("src")), "<{tag}>");
        if !["meta", "br"].contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    assert!(!text.contains("http:") && !text.contains("https:"), "nothing is loaded");
    text
}

#[track_caller]
fn has(page: &str, parts: &[&str]) {
    for part in parts {
        let (_, body) = page.split_once("<body>").unwrap_or(("", page));
        assert!(body.contains(part), "no {part:?} in {body}");
    }
}

/// A table whose columns and labels are markup, and a command line that trains on it.
fn hostile(folder: &Path) -> &'static str {
    let mut rows = "a,\"<img src=x onerror=alert(1)>\",\"y<b>\"\n".to_owned();
    for row in 0..60 {
        let label = ["<script>alert(1)</script>", "\"'&amp;<!--", "\u{202e}z"][row % 3];
        writeln!(rows, "{},{},\"{}\"", row % 7, row % 3, label.replace('"', "\"\"")).unwrap();
    }
    write(folder, "rows.csv", &rows);
    "train rows.csv --target y<b> --eval-fraction 0.25 --epochs 3 --batch-size 8 --hidden 4 --threads 1 --progress none \
     --set log.every_steps=1 --set train.train_metrics=true --set train.eval_metrics=[\"default\",\"per_class\",\"confusion_matrix\"] \
     --set name=odd"
}

#[test]
fn a_run_makes_its_page_and_names_in_it_are_escaped() {
    let folder = temp_dir();
    let line = hostile(folder.path());
    let outcome = run_line_ok(folder.path(), &format!("{line} --out <i>&"));
    assert!(outcome.stderr.contains("report: <i>&/report.html\n"), "{}", outcome.stderr);
    let path = folder.path().join("<i>&/report.html");
    let text = page(&path);
    has(
        &text,
        &[
            "complete</span>",
            "&lt;script&gt;alert(1)&lt;/script&gt;",
            "\\u{202e}z",
            "<h1>odd</h1>",
            "/&lt;i&gt;&amp;</code>",
        ],
    );
    let charts = [
        "Loss",
        "Accuracy",
        "Balanced accuracy",
        "F1 (macro)",
        "Learning rate",
        "Gradient norm",
        "Rows per second",
    ];
    for title in charts {
        has(&text, &[&format!("<figcaption><b>{title}")]);
    }
    assert_eq!(text.matches("<figure").count(), charts.len());
    has(
        &text,
        &[
            "circle class=\"best\"",
            "<table class=\"matrix\"",
            "Precision</th>",
            "1 rank on cpu",
            "epochs = 3",
        ],
    );
    assert!(
        !text.contains("id=\"time\"") || text.contains("Time by what"),
        "times are shown where they are recorded"
    );
    // The command makes the same page again.
    let outcome = run_line_ok(folder.path(), "report <i>&");
    assert_eq!(outcome.stdout, "<i>&/report.html\n");
    assert!(page(&path) == text, "the page depends on more than the folder");
}

#[test]
fn pages_show_the_state_of_a_run() {
    let folder = temp_dir();
    let line = hostile(folder.path());
    run_line(folder.path(), &format!("{line} --out stopped --set train.stop_after_steps=4"));
    let stopped = page(&folder.path().join("stopped/report.html"));
    has(
        &stopped,
        &["stopped, can be resumed", "Stopped by train.stop_after_steps", "after step 4", "--resume /"],
    );
    let outcome = run_line_ok(
        folder.path(),
        "train --resume stopped --progress none --set train.stop_after_steps=1000",
    );
    let resumed = page(&folder.path().join("stopped/report.html"));
    has(&resumed, &[">complete<", "Restarts: 1, ", "resumed after step 4, ranks: 1"]);
    assert!(outcome.stderr.contains("report: "), "{}", outcome.stderr);

    let outcome =
        run_line(folder.path(), &format!("{line} --out failed --lr 1e30 --set train.clip_grad_norm=0.0"));
    assert_eq!(outcome.status.code(), Some(1), "{}", outcome.stderr);
    let failed = page(&folder.path().join("failed/report.html"));
    has(&failed, &[">failed<", "<b class=\"bad\">Failed: </b>", "<b>Hint: </b>", " at step "]);
}

#[test]
fn several_runs_are_drawn_over_each_other_with_the_settings_that_differ() {
    let folder = temp_dir();
    let line = hostile(folder.path());
    run_line_ok(folder.path(), &format!("{line} --out a<b --lr 0.01"));
    run_line_ok(folder.path(), &format!("{line} --out c --lr 0.02"));
    run_line_ok(folder.path(), "report a<b c");
    let text = page(&folder.path().join("report.html"));
    let (_, settings) = text.split_once("id=\"settings\"").unwrap();
    has(settings, &["optimizer.lr", "<code>0.01</code>", "<code>0.02</code>"]);
    assert!(!settings.contains("train.batch_size"), "{settings}");
    has(
        &text,
        &["2 runs", "Training loss", "Evaluation loss", "a&lt;b", "class=\"s0 d0\"", "class=\"s1 d1\""],
    );
    let charts = text.matches("<figure").count();
    assert_eq!(text.matches("<g class=\"s1 d1\"").count(), charts, "each chart has the second run");
}

#[test]
fn saved_runs_have_pages() {
    let saved = ddp_folder().join("tests/fixtures/saved_runs");
    let folder = temp_dir();
    for entry in fs::read_dir(&saved).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir())
    {
        for state in ["finished", "stopped"] {
            let line = format!("report {} --out page.html", entry.join(state).display());
            run_line_ok(folder.path(), &line);
            let text = page(&folder.path().join("page.html"));
            has(&text, &["<figcaption><b>Loss", if state == "finished" { ">complete<" } else { "stopped" }]);
            assert_eq!(text.contains("id=\"time\""), state == "finished", "{}", entry.display());
        }
    }
}

/// A run of `n_steps` steps, some of whose lines are damaged, with `end` in its last event.
fn made_up_run(folder: &Path, n_steps: usize, end: &str) {
    let mut events = String::new();
    for step in 1..=n_steps {
        let loss = if step == n_steps / 3 { 777.0 } else { 1.0 + (step % 10) as f64 / 10.0 };
        let grad_norm = if step == 7 { "null" } else { "0.5" };
        writeln!(
            events,
            r#"{{"event":"step","step":{step},"epoch":1,"loss":{loss},"lr":0.001,"grad_norm":{grad_norm},"samples_per_s":1e6,"time":{{"forward":2.0,"data":1.0,"total":4.0}}}}"#
        )
        .unwrap();
        if step == 5 {
            events += "{\"event\":\"step\",\"step\":\n\0\0\0\nnull\n";
        }
    }
    events += &format!("{end}\n{{\"event\":\"st");
    write(folder, "metrics.jsonl", &events);
}

#[test]
fn times_and_damaged_lines_are_shown() {
    let folder = temp_dir();
    made_up_run(folder.path(), 20, "");
    let path = folder.path().join("report.html");
    run_line_ok(folder.path(), "report .");
    let text = page(&path);
    // An empty line is damaged too.
    has(
        &text,
        &[
            "5 lines of metrics.jsonl left out",
            "not complete: killed",
            "1 value was NaN or infinite",
            "50.0%",
            "40 ms",
        ],
    );
    let end = r#"{"event":"end","steps":20,"samples":160,"world_size":2,"time":{"forward":3.0,"exchange":1.0,"total":5.0,"bound":"Bound by <x>.\nhint: try y","ranks":[{"rank":0,"host":"h0","late_ms":0.5,"busy_ms":3.0},{"rank":1,"host":"<h1>","late_ms":8.25,"busy_ms":9.0,"cause":"waits for rows"}]}}"#;
    made_up_run(folder.path(), 20, end);
    run_line_ok(folder.path(), "report .");
    let text = page(&path);
    has(
        &text,
        &[
            ">complete<",
            "Bound by &lt;x&gt;.<br><b>Hint: </b>try y",
            "60.0%",
            "20.0%",
            "3.00 s",
            "8.25 ms",
            "waits for rows",
        ],
    );
    let (latest, first) = (text.find("&lt;h1&gt;").unwrap(), text.find(">h0<").unwrap());
    assert!(latest < first, "the latest rank comes first");
}

#[test]
fn many_steps_make_a_small_page_with_their_spikes() {
    let folder = temp_dir();
    made_up_run(folder.path(), 100_000, "");
    run_line_ok(folder.path(), "report .");
    let text = page(&folder.path().join("report.html"));
    assert!(text.len() < 200_000, "{} bytes", text.len());
    has(&text, &["from 1 to 777", "100k"]);
}

#[test]
fn the_first_of_many_metrics_are_drawn() {
    let folder = temp_dir();
    let mut events = String::new();
    for step in [1, 2] {
        let metrics: String = (0..40).map(|i| format!(",\"eval_m{i}\":{step}")).collect();
        writeln!(
            events,
            r#"{{"event":"step","step":{step},"epoch":1,"loss":1,"lr":1,"grad_norm":1,"samples_per_s":1}}"#
        )
        .unwrap();
        writeln!(events, r#"{{"event":"epoch","step":{step},"epoch":{step},"train_loss":1{metrics}}}"#)
            .unwrap();
    }
    write(folder.path(), "metrics.jsonl", &events);
    run_line_ok(folder.path(), "report .");
    let text = page(&folder.path().join("report.html"));
    assert_eq!(text.matches("<figure").count(), 24);
    has(&text, &["and 20 more metrics", "<figcaption><b>Loss", "<b>Rows per second", "<td>2</td>"]);
}

#[test]
fn other_files_are_not_replaced_and_folders_without_a_run_are_refused() {
    let folder = temp_dir();
    refused(folder.path(), "report .", &["holds no run", "hint: name the folder of a run"]);
    made_up_run(folder.path(), 3, "");
    write(folder.path(), "notes.html", "<!DOCTYPE html>mine");
    refused(
        folder.path(),
        "report . --out notes.html",
        &["`notes.html` exists and is not a page", "hint: name another file"],
    );
    assert_eq!(fs::read_to_string(folder.path().join("notes.html")).unwrap(), "<!DOCTYPE html>mine");
    refused(folder.path(), &format!("report{}", " .".repeat(33)), &["at most 32 runs, got 33"]);
}

#[test]
fn a_run_without_its_page_is_complete() {
    let folder = temp_dir();
    let line = hostile(folder.path());
    fs::create_dir_all(folder.path().join("run/report.html")).unwrap();
    let outcome = run_line_ok(folder.path(), &format!("{line} --out run"));
    assert!(outcome.stderr.contains("can't write the report of the run: "), "{}", outcome.stderr);
    assert!(folder.path().join("run/done.json").exists());
}

/// The nightly run names a browser; its console must stay empty.
#[test]
fn a_browser_shows_the_page() {
    let Some(browser) = std::env::var_os("CHROMIUM") else {
        eprintln!("skipped: CHROMIUM names no browser");
        return;
    };
    let folder = temp_dir();
    let line = hostile(folder.path());
    run_line_ok(folder.path(), &format!("{line} --out run"));
    let mut command = Command::new(browser);
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]);
    command.arg(format!("--user-data-dir={}", folder.path().join("profile").display()));
    command.arg(format!("file://{}", folder.path().join("run/report.html").display()));
    let outcome = run_ok(command);
    assert!(!outcome.stderr.contains("CONSOLE"), "{}", outcome.stderr);
    assert_eq!(outcome.stdout.matches("<figure").count(), 7, "{}", outcome.stdout);
    assert!(!outcome.stdout.contains("<script") && !outcome.stdout.contains("<img"), "{}", outcome.stdout);
}
