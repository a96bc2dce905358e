//! The command line: version, man pages, flags that do not apply, and the resume command after a stop.

use std::path::Path;
use std::process::Command;

use crate::common::{
    Outcome, ddp_train, mpirun, refused, run, run_line, run_line_ok, run_ok, single, start, temp_dir, write,
};

/// The resume command in the last line of stderr that contains one.
#[track_caller]
fn hinted_command(outcome: &Outcome) -> String {
    assert_eq!(outcome.status.code(), Some(85), "{outcome:?}");
    let hint = outcome.stderr.lines().rev().find_map(|line| line.strip_prefix("hint: "));
    let command = hint.and_then(|hint| hint.strip_suffix(" continues the run"));
    command.unwrap_or_else(|| panic!("no command in {}", outcome.stderr)).to_owned()
}

/// The hint is a command that works in a shell and completes the run, for every way of starting it.
#[test]
fn the_hint_after_a_stop_resumes_the_run() {
    let folder = temp_dir();
    let bin = Path::new(ddp_train()).parent().unwrap();
    let path = std::env::join_paths(
        std::iter::once(bin.to_owned()).chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    )
    .unwrap();
    let stop = "--set train.stop_after_steps=3 --epochs 1 --device cpu --threads 1";
    std::fs::create_dir(folder.path().join("old")).unwrap();
    let in_new = format!("train --out 'a\tb' {stop}").replace("'a\tb'", "a%20b");
    for line in [format!("train {stop}"), format!("train --out old --overwrite {stop}"), in_new] {
        let stopped = run_line(folder.path(), &line);
        let command = hinted_command(&stopped);
        assert!(command.ends_with("--device cpu --threads 1"), "{command}");
        let mut shell = Command::new("sh");
        shell.args(["-c", &command]).env("PATH", &path).current_dir(folder.path());
        let resumed = run_ok(shell);
        assert!(resumed.stderr.contains("45 steps"), "{}", resumed.stderr);
    }
    let mut command =
        single(&["train", "--out", "it's here", "--set", "train.stop_after_steps=3", "--epochs", "1"]);
    command.current_dir(folder.path());
    let mut shell = Command::new("sh");
    shell.args(["-c", &hinted_command(&run(command))]).env("PATH", &path).current_dir(folder.path());
    run_ok(shell);
    let mut job =
        mpirun(&[(2, &["train", "--out", "two", "--set", "train.stop_after_steps=3", "--epochs", "1"])]);
    job.current_dir(folder.path());
    assert!(run(job).stderr.contains("hint: mpirun -n 2 ddp-train train --resume two continues the run"));
}

#[test]
fn far_too_many_threads_are_refused() {
    let folder = temp_dir();
    let outcome = run_line(folder.path(), "train --threads 100000 --epochs 1");
    assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("--threads 100000: expected at most "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("4 per core of this host\nhint: remove --threads"), "{}", outcome.stderr);
    assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none(), "nothing is written");
    let bench = run_line(folder.path(), "bench step --threads 100000");
    assert_eq!(bench.status.code(), Some(2), "{bench:?}");
}

#[test]
fn flags_for_gpus_are_not_ignored_on_the_cpu() {
    let folder = temp_dir();
    for line in ["train --device cpu --cuda-graph on", "bench step --device cpu --cuda-graph on"] {
        let outcome = run_line(folder.path(), line);
        assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
        let error = "--cuda-graph on: this rank computes on the CPU, which has no CUDA graphs\nhint: add --device cuda";
        assert!(outcome.stderr.contains(error), "{}", outcome.stderr);
    }
    let warning =
        "warning: comm.dtype = \"bf16\" applies to gradients between GPUs; on the CPU they travel as f32";
    for more in ["--comm-dtype bf16", "--set comm.dtype=bf16", ""] {
        let line = format!("train --device cpu --epochs 1 --out o --overwrite {more}");
        assert_eq!(run_line_ok(folder.path(), &line).stderr.contains(warning), !more.is_empty(), "{more}");
    }
}

#[test]
fn numbers_beyond_64_bits_are_numbers_out_of_range() {
    let folder = temp_dir();
    write(
        folder.path(),
        "run.toml",
        "[data]\ntrain = \"builtin:digits\"\n[train]\nseed = 18446744073709551615\n",
    );
    for line in [
        "run.toml",
        "train --set train.seed=18446744073709551615",
        "train --set train.seed=-99999999999999999999",
    ] {
        let outcome = run_line(folder.path(), line);
        assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
        let range = "`train.seed` must be a whole number from 0 to 9223372036854775807, got ";
        assert!(outcome.stderr.contains(range), "{line}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("whole numbers in TOML end there"), "{line}: {}", outcome.stderr);
    }
}

#[test]
fn a_metric_is_not_proposed_for_another() {
    let folder = temp_dir();
    let outcome = run_line(folder.path(), "train --set train.early_stop_metric=eval_qq");
    assert_eq!(outcome.status.code(), Some(2));
    assert!(!outcome.stderr.contains("did you mean"), "{}", outcome.stderr);
    let outcome = run_line(folder.path(), "train --set train.early_stop_metric=eval_acuracy");
    assert!(outcome.stderr.contains("did you mean \"eval_accuracy\"?"), "{}", outcome.stderr);
}

#[test]
fn memory_of_the_loader_may_change_on_resume() {
    let folder = temp_dir();
    run_line_ok(folder.path(), "train --epochs 1 --out r");
    write(
        folder.path(),
        "small.toml",
        "[data]\ntrain = \"builtin:digits\"\nloader_memory_mib = 50\n[train]\nepochs = 3\n",
    );
    run_line_ok(folder.path(), "train --resume r --epochs 2 --set data.loader_memory_mib=50");
    run_line_ok(folder.path(), "small.toml --resume r");
    // If the window is used, the error refers to the key that was typed.
    run_line_ok(folder.path(), "train --epochs 1 --out b --set data.shuffle_mode=blocks");
    let outcome = run_line(folder.path(), "train --resume b --epochs 2 --set data.loader_memory_mib=50");
    assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
    let blamed = "`--set data.loader_memory_mib=50`: `data.loader_memory_mib` must be at least twice `data.shuffle_window_mib`, 128 MiB";
    assert!(outcome.stderr.contains(blamed), "{}", outcome.stderr);
}

#[test]
fn a_folder_that_is_deleted_under_a_run_is_an_error() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let args = "train --out out --epochs 30 --device cpu --quiet --set checkpoint.every_epochs=100";
    let args: Vec<&str> = args.split(' ').collect();
    let mut command = single(&args);
    command.current_dir(folder.path());
    let job = start(command);
    while !out.join("metrics.jsonl").exists() {
        assert!(job.started.elapsed().as_secs() < 60, "the run did not start");
        std::thread::yield_now();
    }
    // A checkpoint may be written at the same time.
    while out.join(".lock").exists() {
        let _ = std::fs::remove_dir_all(&out);
    }
    let outcome = job.wait();
    assert_eq!(outcome.status.code(), Some(1), "{outcome:?}");
    assert!(!outcome.stderr.contains("files in"), "{}", outcome.stderr);
    // The loss is noticed within a second, or at the end.
    if outcome.stderr.contains("error: output folder `out`: the folder or its file .lock was deleted") {
        assert!(!out.join("model.safetensors").exists());
        return;
    }
    let error = "error: output folder `out` was deleted or moved during the run";
    assert!(outcome.stderr.contains(error), "{}", outcome.stderr);
    assert!(out.join("model.safetensors").is_file(), "the model is saved all the same");
}

#[test]
fn a_folder_of_an_impossible_step_is_no_checkpoint() {
    let folder = temp_dir();
    run_line_ok(folder.path(), "train --epochs 1 --out r");
    let real = folder.path().join("r/checkpoints/step-45");
    let copy = folder.path().join("r/checkpoints/step-18446744073709551615");
    std::fs::create_dir(&copy).unwrap();
    for entry in std::fs::read_dir(real).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, copy.join(path.file_name().unwrap())).unwrap();
    }
    assert!(!run_line_ok(folder.path(), "checkpoint ls r").stdout.contains("18446744073709551615"));
    run_line_ok(folder.path(), "checkpoint verify r");
    assert!(run_line_ok(folder.path(), "train --resume auto --out r --epochs 2").stderr.contains("90 steps"));
    run_line_ok(folder.path(), "checkpoint prune r --keep 1");
    assert!(copy.is_dir(), "nothing but checkpoints is deleted");
}

#[test]
fn the_version_names_commit_features_and_target() {
    let folder = temp_dir();
    let version = run_line_ok(folder.path(), "--version").stdout;
    let parts = [
        concat!("ddp-train ", env!("CARGO_PKG_VERSION"), " (commit "),
        "features: ",
        std::env::consts::ARCH,
        std::env::consts::OS,
    ];
    assert!(parts.iter().all(|part| version.contains(part)) && version.lines().count() == 1, "{version}");
    assert_eq!(version.contains("mpi"), cfg!(feature = "mpi"), "{version}");
    assert_eq!(version.contains("parquet"), cfg!(feature = "parquet"), "{version}");
}

#[test]
fn man_pages_are_those_of_the_commands() {
    let folder = temp_dir();
    run_line_ok(folder.path(), "man pages/man1");
    let page = |name: &str| std::fs::read_to_string(folder.path().join("pages/man1").join(name)).unwrap();
    assert!(page("ddp-train.1").contains("ddp\\-train\\-train(1)"), "{}", page("ddp-train.1"));
    assert!(page("ddp-train-train.1").contains("\\-\\-epochs"), "{}", page("ddp-train-train.1"));
    assert!(page("ddp-train-checkpoint-verify.1").contains(".TH"));
    write(folder.path(), "file", "");
    let outcome = run_line(folder.path(), "man file/man1");
    assert_eq!(outcome.status.code(), Some(74), "{outcome:?}");
    assert!(outcome.stderr.contains("can't write the man page"), "{}", outcome.stderr);
}

#[test]
fn names_of_columns_may_hold_commas() {
    let folder = temp_dir();
    let rows: String = (0..40).map(|i| format!("{i},{},{},{}\n", i % 3, i % 5, i % 2)).collect();
    std::fs::write(folder.path().join("t.csv"), format!("\"width,mm\",kind,x,label\n{rows}")).unwrap();
    let train = "train t.csv --target label --epochs 1 --device cpu --out r --drop";
    refused(
        folder.path(),
        &format!("{train} width,mm"),
        &["\"width\"", "the name \"width,mm\" holds a comma: quote it in a flag, as in '\"width,mm\"'"],
    );
    run_line_ok(folder.path(), &format!("{train} \"width,mm\",kind"));
    run_line_ok(folder.path(), "predict r t.csv --out p.csv --keep \"width,mm\",kind");
    let predicted = std::fs::read_to_string(folder.path().join("p.csv")).unwrap();
    assert!(predicted.starts_with("\"width,mm\",kind,"), "{predicted}");
    let inspected = run_line_ok(folder.path(), "data inspect t.csv --drop \"width,mm\"").stdout;
    assert!(
        inspected.lines().any(|line| line.starts_with("width,mm  ") && line.contains("dropped")),
        "{inspected}"
    );
}
