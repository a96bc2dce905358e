//! A run on a disk that fails at one call after another: it completes, or ends with a disk error status and names the file; no
//! checkpoint is ever incomplete, and the next start reaches the same weights.
//!
//! A library made from `failing_calls.c` is loaded before the system's. Each test makes some of a run's calls fail;
//! `DISK_FAULTS=all` takes all of them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::io::Errno;

use crate::common::{
    Outcome, Weights, made_up_csv, ranks, read_weights, run, run_ok, same_bits, single, temp_dir, write,
};

/// Number of calls that fail per run and error, unless all do; a third for runs under mpirun, which start slowly.
const N_TRIED: usize = 12;
const ERRORS: [Errno; 2] = [Errno::IO, Errno::NOSPC];

/// Compiles the library once; `None` without a compiler.
fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        let source = crate::common::ddp_folder().join("tests/program/faults/failing_calls.c");
        let library =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("failing_calls.{}.so", std::process::id()));
        let mut compiler = Command::new("cc");
        compiler
            .args(["-Wall", "-Werror", "-O1", "-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(source)
            .arg("-ldl");
        let output = match compiler.output() {
            Err(_) => return None,
            Ok(output) => output,
        };
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(library)
    });
    if library.is_none() {
        println!("skipped: needs a C compiler (cc)");
    }
    library.as_deref()
}

/// Synchronous and asynchronous saves, evaluations, a best model, and checkpoints that are deleted.
fn config(folder: &Path, is_async: bool) -> PathBuf {
    let csv = write(folder, "rows.csv", &made_up_csv(48, 4, "classification", 0));
    let text = format!(
        "[data]\ntrain = {csv:?}\neval_fraction = 0.25\n[model]\nhidden = [6]\n\
         [train]\nsteps = 8\nglobal_batch_size = 6\nema_decay = 0.5\n\
         [checkpoint]\nevery_steps = 2\nevery_minutes = 0\nkeep = 2\nkeep_best = \"eval_loss\"\nasync = {is_async}\n\
         [comm]\nzero = 1\n[log]\nevery_steps = 1\n"
    );
    write(folder, "run.toml", &text)
}

/// Runs `train` into `out` with additional arguments.
fn train(n_ranks: usize, config: &Path, out: &Path, more: &[&str]) -> Command {
    let own =
        ["train", config.to_str().unwrap(), "--out", out.to_str().unwrap(), "--quiet", "--threads", "1"];
    ranks(n_ranks, &[&own[..], &["--device", "cpu"], more].concat())
}

/// One fault of a disk.
#[derive(Debug, Clone, Copy)]
struct DiskFault {
    /// Number of the call, from 1; 0 for no fault.
    at: usize,
    errno: Errno,
    /// Whether all further calls fail too.
    stays: bool,
    /// Rank whose disk fails.
    rank: usize,
}

impl DiskFault {
    const NONE: DiskFault = DiskFault { at: 0, errno: Errno::IO, stays: false, rank: 0 };

    fn apply(self, mut command: Command, library: &Path, out: &Path, log: &Path) -> Command {
        // mpirun passes its environment to ranks on its own host.
        command.env("LD_PRELOAD", library).env("FAIL_FOLDER", out).env("FAIL_LOG", log);
        command.env("FAIL_AT", self.at.to_string()).env("FAIL_WITH", self.errno.raw_os_error().to_string());
        command.env("FAIL_STAYS", if self.stays { "1" } else { "0" }).env("FAIL_RANK", self.rank.to_string());
        command
    }
}

/// Checks a run for each call that fails.
fn check(n_ranks: usize, rank: usize, is_async: bool, stays: bool) {
    let Some(library) = library() else { return };
    let folder = temp_dir();
    let config = config(folder.path(), is_async);
    let (out, log) = (folder.path().join("whole"), folder.path().join("calls"));
    let none = DiskFault { rank, ..DiskFault::NONE };
    run_ok(none.apply(train(n_ranks, &config, &out, &[]), library, &out, &log));
    let want = read_weights(&out.join("model.safetensors"));
    let n_calls = std::fs::read_to_string(&log).unwrap().lines().count();
    assert!(n_calls > if rank == 0 { 60 } else { 10 }, "{n_calls} calls");
    let is_all = std::env::var_os("DISK_FAULTS").is_some_and(|value| value == "all");
    let every = if is_all { 1 } else { n_calls.div_ceil(if n_ranks == 1 { N_TRIED } else { N_TRIED / 3 }) };
    for errno in ERRORS {
        // The other error is tried at other calls.
        let first = if errno == Errno::IO { 1 } else { 1 + every / 2 };
        for at in (first..=n_calls).step_by(every) {
            let fault = DiskFault { at, errno, stays, rank };
            let folder = temp_dir();
            let (out, log) = (folder.path().join("out"), folder.path().join("calls"));
            let outcome = run(fault.apply(train(n_ranks, &config, &out, &[]), library, &out, &log));
            let calls = std::fs::read_to_string(&log).unwrap_or_default();
            let failed = calls.lines().find(|call| call.ends_with(" !")).unwrap_or("none");
            let again = train(n_ranks, &config, &out, &["--resume", "auto"]);
            check_one(again, &out, &outcome, &format!("{fault:?}, {failed}"), &want);
        }
    }
}

/// Checks the files that a faulty disk has left, and that the next start on a healthy disk completes the run.
#[track_caller]
fn check_one(again: Command, out: &Path, outcome: &Outcome, case: &str, want: &Weights) {
    let stderr = &outcome.stderr;
    assert!(!stderr.contains("panicked"), "{case}: {stderr}");
    let is_done = out.join("done.json").exists();
    match outcome.status.code() {
        Some(0) => {
            assert!(is_done, "{case}: {stderr}");
            assert!(same_bits(&read_weights(&out.join("model.safetensors")), want), "{case}");
        }
        Some(74) => {
            let names_file = stderr.contains(out.to_str().unwrap());
            assert!(
                names_file && stderr.contains("error: ") && stderr.contains("hint: "),
                "{case}: {stderr}"
            );
        }
        status => panic!("{case}: status {status:?}: {stderr}"),
    }
    let steps = std::fs::read_dir(out.join("checkpoints")).into_iter().flatten().flatten();
    for step in steps.filter(|entry| entry.file_name().to_string_lossy().starts_with("step-")) {
        let verified = run(single(&["checkpoint", "verify", step.path().to_str().unwrap()]));
        assert_eq!(
            verified.status.code(),
            Some(0),
            "{case}: {stderr}\n{}{}",
            verified.stdout,
            verified.stderr
        );
    }
    let resumed = run(again);
    assert_eq!(resumed.status.code(), Some(0), "{case}: {stderr}\nresumed: {}", resumed.stderr);
    assert!(same_bits(&read_weights(&out.join("model.safetensors")), want), "{case}: {stderr}");
    assert!(out.join("done.json").exists(), "{case}");
    let left = std::fs::read_dir(out).unwrap().chain(std::fs::read_dir(out.join("checkpoints")).unwrap());
    let left: Vec<_> = left.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let is_known = |name: &&String| !name.starts_with('.') || [".lock", ".run-id"].contains(&name.as_str());
    assert!(left.iter().all(|name| is_known(&name)), "{case}: {left:?}");
}

#[test]
fn one_call_fails() {
    check(1, 0, false, false);
}

#[test]
fn one_call_fails_beside_training() {
    check(1, 0, true, false);
}

#[test]
fn a_disk_fails_for_good() {
    check(1, 0, true, true);
}

#[test]
fn one_call_of_another_rank_fails() {
    check(2, 1, false, false);
}

/// The rank whose write fails lets the other one save, and then ends the run with its error.
#[test]
fn an_error_of_one_rank_costs_no_step_of_the_others() {
    let Some(library) = library() else { return };
    let folder = temp_dir();
    let (config, log) = (config(folder.path(), true), folder.path().join("calls"));
    let sets = ["comm.zero=0", "train.steps=40", "checkpoint.every_steps=0", "checkpoint.keep_best=none"];
    let sets = sets.map(|set| ["--set", set]).concat();
    let start = |name: &str, fault: DiskFault| {
        let out = folder.path().join(name);
        fault.apply(
            train(2, &config, &out, &[&sets[..], &["--resume", "auto"]].concat()),
            library,
            &out,
            &log,
        )
    };
    run_ok(start("whole", DiskFault::NONE));
    let weights = |name: &str| read_weights(&folder.path().join(name).join("model.safetensors"));
    let calls = std::fs::read_to_string(&log).unwrap();
    let is_event = |call: &str| call.starts_with("write") && call.contains("metrics.jsonl");
    let events: Vec<usize> =
        (1..).zip(calls.lines()).filter(|(_, call)| is_event(call)).map(|(at, _)| at).collect();
    assert!(events.len() > 40, "{calls}");
    for part in 1..4 {
        let name = format!("failed-{part}");
        std::fs::remove_file(&log).unwrap();
        let failed = run(start(&name, DiskFault { at: events[events.len() * part / 4], ..DiskFault::NONE }));
        assert_eq!(failed.status.code(), Some(74), "{}", failed.stderr);
        for part in ["[rank 0 ", "Input/output error", "] rank 1 has saved the state after step "] {
            assert!(failed.stderr.contains(part), "no {part:?} in {}", failed.stderr);
        }
        run_ok(start(&name, DiskFault::NONE));
        assert!(same_bits(&weights(&name), &weights("whole")), "{}", failed.stderr);
    }
}

/// Mounts of object stores lack calls. A run works elsewhere then, and is mirrored there.
#[test]
fn a_file_system_without_the_calls_of_a_run_holds_mirrored_runs() {
    let Some(library) = library() else { return };
    for (call, errno) in [("rename", Errno::NOSYS), ("rename folder", Errno::PERM), ("fsync", Errno::INVAL)] {
        let (folder, rows, homes) = (temp_dir(), temp_dir(), [temp_dir(), temp_dir()]);
        let config = config(rows.path(), true);
        let (out, log) = (folder.path().join("out"), rows.path().join("calls"));
        let start = |home: usize, more: &[&str]| {
            let fault = DiskFault { errno, ..DiskFault::NONE };
            let words =
                ["train", config.to_str().unwrap(), "--out", out.to_str().unwrap(), "--device", "cpu"];
            let mut command = fault.apply(single(&[&words[..], more].concat()), library, folder.path(), &log);
            command.env("FAIL_CALL", call).env("TMPDIR", homes[home].path());
            run(command)
        };
        let stopped = start(0, &["--set", "train.stop_after_steps=2"]);
        assert_eq!(stopped.status.code(), Some(85), "{call}: {} {}", stopped.status, stopped.stderr);
        assert!(stopped.stderr.contains("until they are there they are in"), "{call}: {}", stopped.stderr);
        let again = start(0, &[]);
        assert_eq!(again.status.code(), Some(2), "{call}: {}", again.stderr);
        assert!(
            again.stderr.contains("holds a run\nhint: --resume auto continues it"),
            "{call}: {}",
            again.stderr
        );
        // From a host that has nothing of it.
        let resumed = start(1, &["--resume", "auto"]);
        assert_eq!(resumed.status.code(), Some(0), "{call}: {}", resumed.stderr);
        assert!(resumed.stderr.contains("resuming after step 2"), "{call}: {}", resumed.stderr);
        let undisturbed = rows.path().join("undisturbed");
        run_ok(train(1, &config, &undisturbed, &[]));
        let weights = |run: &Path| read_weights(&run.join("model.safetensors"));
        assert!(same_bits(&weights(&out), &weights(&undisturbed)), "{call}");
        for name in ["done.json", "metrics.jsonl", "config.toml", "report.html"] {
            assert!(out.join(name).exists(), "{call}: {name}");
        }
        run_ok(single(&["checkpoint", "verify", out.to_str().unwrap()]));
    }
}

/// Nothing is trained, and nothing is left.
#[test]
fn a_file_system_that_makes_no_files_is_refused_at_the_start() {
    let Some(library) = library() else { return };
    let (folder, rows) = (temp_dir(), temp_dir());
    let config = config(rows.path(), true);
    let (out, log) = (folder.path().join("out"), rows.path().join("calls"));
    let fault = DiskFault { errno: Errno::OPNOTSUPP, ..DiskFault::NONE };
    let mut command = fault.apply(train(1, &config, &out, &[]), library, folder.path(), &log);
    command.env("FAIL_CALL", "mkdir");
    let outcome = run(command);
    assert_eq!(outcome.status.code(), Some(74), "{}", outcome.stderr);
    let start = format!("error: output folder `{}`: its file system can't make a folder: ", out.display());
    assert!(outcome.stderr.starts_with(&start), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("\nhint: name a folder on a local disk"), "{}", outcome.stderr);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "something is left");
}

/// The lease replaces the lock.
#[test]
fn a_file_system_without_locks_holds_runs() {
    let Some(library) = library() else { return };
    for errno in [Errno::NOSYS, Errno::PERM] {
        let (folder, rows) = (temp_dir(), temp_dir());
        let config = config(rows.path(), true);
        let (out, log) = (folder.path().join("out"), rows.path().join("calls"));
        let fault = DiskFault { errno, ..DiskFault::NONE };
        let mut command = fault.apply(train(1, &config, &out, &[]), library, folder.path(), &log);
        command.env("FAIL_CALL", "flock");
        run_ok(command);
        assert!(std::fs::read_to_string(&log).unwrap().contains("flock"), "no lock was tried");
    }
}
