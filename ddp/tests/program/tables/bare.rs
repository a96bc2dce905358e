//! A table without a config trains by what its rows suggest.

use std::fmt::Write as _;
use std::path::Path;

use crate::common::{Outcome, mpirun, refused, run_line, run_line_ok, run_ok, temp_dir, write};

const QUICK: &str = "--target bought --epochs 2 --hidden 4 --batch-size 16 --device cpu";

/// A table as people have them: an identifier, text, dates and gaps.
fn table(folder: &Path) {
    let mut rows = "id,city,age,since,bought\n".to_owned();
    for n in 0..200 {
        let age = if n % 9 == 0 { String::new() } else { (20 + n * 7 % 50).to_string() };
        let (city, day) = (["Rome", "Oslo", "Bern"][n % 3], 1 + n % 28);
        let month = 1 + n % 12;
        let label = if n * 7 % 50 > 25 { "yes" } else { "no" };
        writeln!(rows, "{n},{city},{age},2024-{month:02}-{day:02},{label}").unwrap();
    }
    write(folder, "train.csv", &rows);
}

fn first_line(outcome: &Outcome) -> &str {
    outcome.stderr.lines().next().unwrap_or_default()
}

fn config(folder: &Path, run: &str) -> toml::Table {
    std::fs::read_to_string(folder.join(run).join("config.toml")).unwrap().parse().unwrap()
}

#[test]
fn a_table_with_text_and_gaps_trains_by_one_command() {
    let folder = temp_dir();
    table(folder.path());
    let trained = run_line_ok(folder.path(), &format!("train.csv {QUICK} --out run"));
    assert_eq!(
        first_line(&trained),
        "chosen for these rows: categories city; missing values filled by the mean; dates in parts; left out id; \
         20% of the rows held out; early stopping (--plain: none of it)"
    );
    // The run holds what `data inspect` writes.
    let inspected = "data inspect train.csv --target bought --write-config c.toml";
    run_line_ok(folder.path(), inspected);
    run_line_ok(folder.path(), &format!("c.toml {QUICK} --set train.early_stop_patience=10 --out same"));
    let (run, same) = (config(folder.path(), "run"), config(folder.path(), "same"));
    for section in ["data", "train", "model"] {
        assert_eq!(run[section], same[section], "{section}");
    }
    let model = |run: &str| std::fs::read(folder.path().join(run).join("last.safetensors")).ok();
    assert_eq!(model("run").map(|bytes| bytes.len()), model("same").map(|bytes| bytes.len()));
    // It resumes by its own config.
    run_line_ok(folder.path(), "train --resume run --epochs 3");
    run_line_ok(folder.path(), "eval --checkpoint run --data train.csv");

    let plain = run_line(folder.path(), &format!("train.csv {QUICK} --plain --out plain"));
    assert!(
        plain.stderr.contains("line 2, column \"city\": expected a number, got \"Rome\""),
        "{}",
        plain.stderr
    );
}

#[test]
fn names_and_rows_of_the_command_line_join_those_of_the_table() {
    let folder = temp_dir();
    table(folder.path());
    let line = format!("train.csv {QUICK} --drop city --categorical id --eval train.csv --out run");
    let trained = run_line_ok(folder.path(), &line);
    assert!(
        first_line(&trained).starts_with("chosen for these rows: categories id; missing values filled by the mean; dates in parts; left out city; early stopping ("),
        "{}",
        trained.stderr
    );
    // The column of a split is no category, and the split holds out rows.
    let line = format!(
        "--data train.csv {QUICK} --set data.split={{group=\"city\"}} --set data.eval_fraction=0.3 --out split"
    );
    let split = run_line_ok(folder.path(), &line);
    let rest = "chosen for these rows: missing values filled by the mean; dates in parts; left out id; early stopping";
    assert!(first_line(&split).starts_with(rest), "{}", split.stderr);
    // A config names its rows in full, and an initial model how they are read.
    write(folder.path(), "run.toml", "[data]\ntrain = \"train.csv\"\ntarget = \"bought\"\n");
    assert!(!run_line(folder.path(), "run.toml --out config").stderr.contains("chosen"));
    let tuned = run_line(folder.path(), &format!("train.csv {QUICK} --init-from run --out tuned"));
    assert!(!tuned.stderr.contains("chosen"), "{}", tuned.stderr);
}

/// The model's classes, digits and ways to read gaps are the run's, however it is resumed.
#[test]
fn a_run_that_began_with_another_model_resumes() {
    let folder = temp_dir();
    for (name, every) in [("first", 7), ("second", 1000)] {
        let mut rows = "x,z,c,y\n".to_owned();
        for n in 1..120 {
            let x = if n % every == 0 { String::new() } else { format!("{:.4}", (n as f64).sin()) };
            let label = if n * 7 % 50 > 25 { "yes" } else { "no" };
            writeln!(rows, "{x},{:.4},{},{label}", (n as f64).cos(), ["p", "q"][n % 2]).unwrap();
        }
        write(folder.path(), &format!("{name}.csv"), &rows);
    }
    let first = "first.csv --target y --plain --epochs 1 --hidden 4 --set data.missing=mean --categorical c";
    run_line_ok(folder.path(), &format!("{first} --out first"));
    let config = "model.hidden = [4]\ntrain.epochs = 2\n[data]\ntrain = \"second.csv\"\ntarget = \"y\"\ncategorical = [\"c\"]\n";
    write(folder.path(), "run.toml", config);
    let model = |run: &str| std::fs::read(folder.path().join(run).join("model.safetensors")).unwrap();
    run_line_ok(folder.path(), "run.toml --init-from first --out whole");
    for (out, resume) in [
        ("alone", "train --resume alone"),
        ("by-config", "run.toml --resume auto --out by-config"),
        ("by-line", "run.toml --init-from first --resume auto --out by-line"),
    ] {
        let line = format!("run.toml --init-from first --set train.stop_after_epochs=1 --out {out}");
        assert_eq!(run_line(folder.path(), &line).status.code(), Some(85), "{out}");
        run_line_ok(folder.path(), resume);
        assert!(model(out) == model("whole"), "{out}");
    }
}

#[test]
fn a_table_with_names_of_the_command_line_is_resumed_by_the_same_line() {
    let folder = temp_dir();
    table(folder.path());
    let stopped = |line: &str| {
        let outcome = run_line(folder.path(), &format!("{line} --set train.stop_after_epochs=1"));
        assert_eq!(outcome.status.code(), Some(85), "{line}: {outcome:?}");
    };
    for (out, names) in [
        ("drop", "--drop city"),
        ("categories", "--categorical age"),
        ("sets", "--set data.drop=[\"since\"] --set data.categorical=[\"age\"]"),
        ("plain", "--plain --drop id,city,since"),
    ] {
        let line = format!("train train.csv {QUICK} {names} --set data.missing=mean --out {out}");
        stopped(&line);
        let began = config(folder.path(), out)["data"].clone();
        run_line_ok(folder.path(), &format!("{line} --resume auto"));
        assert_eq!(config(folder.path(), out)["data"], began, "{names}");
    }
    // Other names make another run.
    let line = format!("train train.csv {QUICK} --drop city --out other");
    stopped(&line);
    let parts = [
        "data.drop is [\"age\"], but [\"city\", \"id\"] in the checkpoint",
        "without these settings or a RUN.toml",
    ];
    let other = format!("{} --resume auto", line.replace("city", "age"));
    refused(folder.path(), &other, &parts);
    // A supervisor and a sweep give the same line again.
    run_line_ok(
        folder.path(),
        &format!("launch -n 1 -- {} --resume auto", line.replace("train train.csv", "train.csv")),
    );
    let sweep = "sweep train.csv --target bought --drop city --epochs 4 --hidden 4 --batch-size 16 --grid optimizer.lr=1e-3,1e-2 --prune \
                 --out s -- --device cpu --threads 1";
    assert!(run_line_ok(folder.path(), sweep).stdout.contains("pruned: 1 after epoch 2"));
}

/// Without the settings for their rows they would refuse the text.
#[test]
fn rows_are_named_by_place_or_flag_in_sweeps_and_next_commands() {
    let folder = temp_dir();
    table(folder.path());
    std::fs::copy(folder.path().join("train.csv"), folder.path().join("more.csv")).unwrap();
    let rest = QUICK.replace("--device cpu", "");
    for (out, run) in [("flag", "--data train.csv"), ("files", "train.csv more.csv")] {
        run_line_ok(
            folder.path(),
            &format!("sweep {run} {rest} --seeds 1 --out {out} -- --device cpu --threads 1"),
        );
        let data = config(folder.path(), &format!("{out}/seed=0"))["data"].clone();
        assert_eq!(data["categorical"].as_array().unwrap(), &["city".into()], "{run}: {data:?}");
    }
    let outcome = run_line_ok(folder.path(), &format!("find-batch-size --data train.csv {QUICK} --max 2"));
    let next = outcome.stdout.lines().last().unwrap();
    assert!(next.starts_with("next: ddp-train train --data train.csv --set "), "{next}");
}

#[test]
fn ranks_agree_on_what_a_table_suggests() {
    let folder = temp_dir();
    table(folder.path());
    let line = |out: &str| format!("train train.csv {QUICK} --out {out}");
    let two = line("two");
    let words: Vec<&str> = two.split_whitespace().collect();
    let mut command = mpirun(&[(2, &words)]);
    command.current_dir(folder.path());
    let trained = run_ok(command);
    assert_eq!(trained.stderr.matches("chosen for these rows").count(), 1, "{}", trained.stderr);
    run_line_ok(folder.path(), &line("one"));
    assert_eq!(config(folder.path(), "one")["data"], config(folder.path(), "two")["data"]);
}

/// Only the first rows of a large table are looked at, so that it starts as fast as with a config. What they lack may follow.
#[test]
fn the_first_rows_of_a_large_table_decide_nothing_that_later_rows_could_contradict() {
    let folder = temp_dir();
    let mut rows = "id,a,b,c,year,city,gap,label\n".to_owned();
    for n in 0..60_000 {
        let is_late = n > 55_000;
        let (year, gap) = (if is_late { 2025 } else { 2024 }, if is_late { "" } else { "3" });
        let label = if is_late { "new" } else { "old" };
        writeln!(
            rows,
            "u{n},{},{},{}.5,{year},{},{gap},{label}",
            n % 7,
            n * 31 % 11,
            n % 5,
            ["x", "y"][n % 2]
        )
        .unwrap();
    }
    write(folder.path(), "large.csv", &rows);
    let line = "large.csv --target label --epochs 1 --hidden 4 --batch-size 1024 --device cpu --out run";
    let trained = run_line_ok(folder.path(), line);
    assert_eq!(
        first_line(&trained),
        "chosen for these rows: categories city; missing values filled by the mean; left out id; 20% of the rows held out; \
         early stopping (--plain: none of it)"
    );
    assert!(trained.stderr.contains("classification of 2 classes"), "{}", trained.stderr);
}
