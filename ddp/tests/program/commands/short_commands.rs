//! Short forms of commands: a table or a config in place of a subcommand, and flags for the usual keys.

use crate::common::{made_up_csv, mpirun, refused, run_line, run_line_ok, run_ok, temp_dir, write};

/// A folder with a table, a config of it, and rows to evaluate on.
fn folder() -> tempfile::TempDir {
    let folder = temp_dir();
    write(folder.path(), "rows.csv", &made_up_csv(40, 3, "classification", 0));
    write(folder.path(), "test.csv", &made_up_csv(20, 3, "classification", 40));
    let config =
        "[data]\ntrain = \"rows.csv\"\neval = \"test.csv\"\n[train]\nepochs = 30\n[model]\nhidden = [4]\n";
    write(folder.path(), "run.toml", config);
    folder
}

#[track_caller]
fn has_lines(toml: &str, lines: &[&str]) {
    for line in lines {
        assert!(toml.lines().any(|other| other == *line), "no {line:?} in\n{toml}");
    }
}

#[test]
fn a_table_and_flags_make_a_run() {
    let folder = folder();
    let line = "rows.csv --plain --target label --eval-fraction 0.25 --epochs 2 --lr 1e-2 --batch-size 4 --hidden 8,4 \
                --task classification --out first";
    let outcome = run_line_ok(folder.path(), line);
    assert!(
        outcome.stderr.starts_with("first: 30 rows and 10 for evaluation, 3-8-4-4 layers"),
        "{}",
        outcome.stderr
    );
    let toml = std::fs::read_to_string(folder.path().join("first/config.toml")).unwrap();
    has_lines(
        &toml,
        &["eval_fraction = 0.25", "epochs = 2", "lr = 0.01", "batch_size = 4", "hidden = [8, 4]"],
    );
    let line =
        "train --data rows.csv --eval test.csv --global-batch-size 10 --epochs 1 --hidden 5 --out second";
    run_line_ok(folder.path(), line);
    let toml = std::fs::read_to_string(folder.path().join("second/config.toml")).unwrap();
    assert!(
        toml.lines().any(|line| line.starts_with("eval = \"/") && line.ends_with("/test.csv\"")),
        "{toml}"
    );
    has_lines(&toml, &["global_batch_size = 10", "hidden = [5]"]);
    // The model of a folder of tables, described.
    std::fs::create_dir(folder.path().join("shards")).unwrap();
    std::fs::copy(folder.path().join("rows.csv"), folder.path().join("shards/1.csv")).unwrap();
    let described = run_line_ok(folder.path(), "describe shards --hidden 7 --batch-size 8").stdout;
    assert!(described.contains("3 -> 7"), "{described}");
}

#[test]
fn several_targets_are_several_flags() {
    let folder = folder();
    write(folder.path(), "two.csv", &made_up_csv(20, 3, "regression", 0));
    let toml =
        run_line_ok(folder.path(), "two.csv --target t0 --target t1 --task regression --dry-run").stdout;
    has_lines(&toml, &["target = [\"t0\", \"t1\"]"]);
}

#[test]
fn a_config_alone_is_trained_and_flags_win_over_it() {
    let folder = folder();
    let toml = run_line_ok(folder.path(), "run.toml --dry-run").stdout;
    has_lines(&toml, &["epochs = 30  # default", "hidden = [4]", "eval = \"test.csv\""]);
    let line = "run.toml --epochs 3 --hidden 6,6 --eval-fraction 0.5 --data test.csv --dry-run";
    let toml = run_line_ok(folder.path(), line).stdout;
    has_lines(&toml, &["epochs = 3", "hidden = [6, 6]", "eval_fraction = 0.5", "train = \"test.csv\""]);
    assert!(!toml.contains("\neval = "), "{toml}");
    // The name of a missing file is not mistaken for a mistyped subcommand.
    refused(folder.path(), "missing.toml", &["config file `missing.toml`", "hint: "]);
    refused(folder.path(), "missing.csv", &["missing.csv", "hint: "]);
    refused(folder.path(), "trian", &["unrecognized subcommand 'trian'"]);
}

#[test]
fn a_key_is_given_once() {
    let folder = folder();
    for (line, both) in [
        (
            "run.toml --epochs 5 --set train.epochs=3",
            ["`--set train.epochs=3` and `--epochs 5` both give `train.epochs`"; 1],
        ),
        ("rows.csv --data test.csv", ["`rows.csv` and `--data test.csv` both give `data.train`"]),
        ("rows.csv --set data.train=test.csv", ["`--set data.train=test.csv` and `rows.csv` both give"]),
        ("run.toml --epochs 5 --set train.steps=3", ["`train.epochs` and `train.steps` are both given"]),
        (
            "run.toml --batch-size 5 --global-batch-size 3",
            ["`train.batch_size` and `train.global_batch_size` are both"],
        ),
        (
            "run.toml --eval test.csv --eval-fraction 0.5",
            ["`data.eval` and `data.eval_fraction` are both given"],
        ),
    ] {
        refused(folder.path(), line, &both);
    }
}

#[test]
fn values_of_flags_are_checked_as_those_of_keys() {
    let folder = folder();
    for (line, parts) in [
        (
            "run.toml --epochs five",
            [
                "`--epochs five`: `train.epochs` must be a whole number, got the text",
                "hint: write `--epochs 30`",
            ],
        ),
        ("run.toml --epochs 0", ["`--epochs 0`: `train.epochs` must be", "from 1 to"]),
        ("run.toml --epochs -1", ["`--epochs -1`", "from 1 to"]),
        ("run.toml --lr fast", ["`--lr fast`: `optimizer.lr` must be a number", "hint: write `--lr 0.001`"]),
        (
            "run.toml --hidden 8,x",
            [
                "`--hidden 8,x`: `model.hidden` must be a list of whole numbers",
                "hint: write `--hidden 128,64`",
            ],
        ),
        ("run.toml --hidden 0", ["`--hidden 0`", "hint: each number is the width of one hidden layer"]),
        ("run.toml --eval-fraction 1.5", ["`--eval-fraction 1.5`", "a fraction between 0 and 1"]),
        ("run.toml --task clasification", ["`--task clasification`", "did you mean \"classification\"?"]),
    ] {
        refused(folder.path(), line, &parts);
    }
}

#[test]
fn workbooks_and_missing_files_are_named_for_what_they_are() {
    let folder = temp_dir();
    let fixture = crate::common::ddp_folder().join("tests/fixtures/tables/foreign");
    let entries = std::fs::read_dir(fixture).unwrap().map(|entry| entry.unwrap().path());
    let workbook = entries.into_iter().find(|path| path.extension().is_some_and(|e| e == "xlsx")).unwrap();
    std::fs::copy(workbook, folder.path().join("table.xlsx")).unwrap();
    refused(folder.path(), "table.xlsx --target y", &["an Excel workbook", "save the table as CSV"]);
    refused(folder.path(), "missing.xlsx --target y", &["`missing.xlsx` does not exist"]);
    for (name, content, what) in [
        ("rows.json", "{\n  \"x\": 1,\n  \"y\": 2\n}\n", "JSON that is not one row per line"),
        ("rows.svm", "1 1:0.5 2:3\n0 2:1\n", "LIBSVM"),
        ("rows.arff", "% A comment.\n@relation rows\n", "ARFF"),
        ("rows.html", "<table border=\"1\">\n<tr><td>1</td></tr>\n</table>\n", "a page of HTML"),
    ] {
        write(folder.path(), name, content);
        refused(folder.path(), &format!("{name} --target y"), &[name, what]);
    }
}

#[test]
fn targets_with_commas_are_several_flags() {
    let folder = temp_dir();
    write(folder.path(), "two.csv", "x,a,b\n1,0,1\n2,1,0\n");
    refused(folder.path(), "two.csv --target a,b", &["[\"a\", \"b\"]", "repeat --target"]);
}

#[test]
fn no_argument_is_help_alone_and_the_digits_under_a_launcher() {
    let folder = temp_dir();
    let help = run_line(folder.path(), "");
    assert_eq!(help.status.code(), Some(2));
    assert!(help.stderr.contains("Usage: ddp-train [OPTIONS] <COMMAND>"), "{help:?}");
    assert!(help.stderr.contains("`ddp-train table.csv --target label`"), "{help:?}");
    let mut job = mpirun(&[(2, &[])]);
    job.current_dir(folder.path());
    let outcome = run_ok(job);
    assert!(outcome.stderr.starts_with("digits: 1,438 rows"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("2 ranks on cpu"), "{}", outcome.stderr);
    let config = folder.path().join("run.toml");
    std::fs::write(&config, "[data]\ntrain = \"builtin:digits\"\n").unwrap();
    let mut job = mpirun(&[(2, &["run.toml", "--epochs", "1", "--out", "implied"])]);
    job.current_dir(folder.path());
    assert!(run_ok(job).stderr.contains("epoch 1/1"));
}

#[test]
fn a_config_without_data_is_refused() {
    let folder = folder();
    write(folder.path(), "empty.toml", "[train]\nepochs = 1\n");
    refused(
        folder.path(),
        "empty.toml",
        &[
            "error: config file empty.toml: `data.train` is missing",
            "hint: write `train = \"FILE\"` under [data], or add --data FILE",
        ],
    );
    run_line_ok(folder.path(), "empty.toml --data rows.csv --dry-run");
    run_line_ok(folder.path(), "train --epochs 1 --dry-run");
}

#[test]
fn held_out_rows_are_proposed_in_one_line() {
    let folder = folder();
    let proposal = "--eval-fraction 0.2 evaluates on a fifth of them";
    let shown = |line: &str| run_line_ok(folder.path(), line).stderr.matches(proposal).count();
    assert_eq!(shown("rows.csv --plain --epochs 1 --out a"), 1);
    assert_eq!(shown("train --resume a --epochs 2"), 0);
    assert_eq!(shown("rows.csv --plain --epochs 1 --out b --eval-fraction 0.2"), 0);
    assert_eq!(shown("rows.csv --plain --epochs 1 --out c --quiet"), 0);
}

/// A table without a config says what is chosen, and asks for what only its owner knows.
#[test]
fn a_bare_table_guesses_nothing_in_silence() {
    let folder = temp_dir();
    let rows = |cell: &dyn Fn(usize) -> String| {
        (0..60).map(|i| format!("{};{}\n", cell(i), i % 2)).collect::<String>()
    };
    let thousands = rows(&|i| format!("{},{:03}", 1 + i % 9, 100 + 13 * i % 900));
    write(folder.path(), "de.csv", &format!("preis;ziel\n{thousands}"));
    refused(folder.path(), "de.csv --target ziel --epochs 1", &["data.decimal"]);
    run_line_ok(folder.path(), "de.csv --target ziel --epochs 1 --set data.decimal=,");

    let stray = rows(&|i| if i == 7 { "#DIV/0!".to_owned() } else { format!("{}.5", i % 11) });
    write(folder.path(), "stray.csv", &format!("a;label\n{stray}"));
    let chosen = run_line_ok(folder.path(), "stray.csv --target label --epochs 1 --out first").stderr;
    assert!(chosen.contains("missing_values = [\"#DIV/0!\"]"), "{chosen}");
    // The model decides how rows are read, so nothing has to be named again.
    run_line_ok(folder.path(), "stray.csv --target label --init-from first --epochs 1 --out second");
    let digits = "predict first builtin:digits --out digits.csv";
    refused(folder.path(), digits, &["its 64 feature columns differ from the 1 of the model"]);
    let swept =
        run_line_ok(folder.path(), "sweep stray.csv --target label --epochs 1 --seeds 1 --out s").stderr;
    assert!(swept.contains("each run chooses settings for these rows"), "{swept}");
}
