//! `ddp-train launch` with an mpirun that fails before it starts a rank, hangs, or has no version; and with readers that die.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Outcome, run, single, temp_dir, write};

/// Time within which `launch` says something.
const LIMIT: Duration = Duration::from_secs(45);

/// `launch -n 2` of a short run in `folder`.
fn launch(folder: &Path) -> Command {
    launch_by("auto", folder)
}

fn launch_by(launcher: &str, folder: &Path) -> Command {
    let out = folder.join("out").display().to_string();
    let sets = ["--set", "train.epochs=2", "--set", "model.hidden=[8]", "--set", "log.every_steps=1"];
    let own = [
        "launch",
        "-n",
        "2",
        "--launcher",
        launcher,
        "--",
        "--out",
        &out,
        "--threads",
        "1",
        "--device",
        "cpu",
    ];
    single(&[&own[..], &sets].concat())
}

/// The same with an `mpirun` that answers `--version` by `version`, and anything else by `start`, both shell commands.
fn with_mpirun(folder: &Path, version: &str, start: &str) -> Outcome {
    run_with_mpirun(launch(folder), folder, version, start)
}

fn run_with_mpirun(mut command: Command, folder: &Path, version: &str, start: &str) -> Outcome {
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).unwrap();
    let script = format!("#!/bin/sh\nif [ \"$1\" = --version ]; then {version}; exit; fi\n{start}\n");
    let program = write(&bin, "mpirun", &script);
    std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    let path = std::env::join_paths([bin].into_iter().chain(std::env::split_paths(&path))).unwrap();
    command.env("PATH", path);
    run(command)
}

#[track_caller]
fn assert_says(outcome: &Outcome, status: i32, parts: &[&str]) {
    assert_eq!(outcome.status.code(), Some(status), "{}", outcome.stderr);
    for part in parts {
        assert!(outcome.stderr.contains(part), "no {part:?} in:\n{}", outcome.stderr);
    }
    assert!(outcome.elapsed < LIMIT, "{:?}", outcome.elapsed);
}

#[test]
fn a_setting_that_is_refused_is_shown() {
    // The first is refused by mpirun, the second one by its ranks, whose words Open MPI 4 may lose.
    for (name, words) in [("OMPI_MCA_rmaps", "; its last lines:"), ("OMPI_MCA_pml", "")] {
        let folder = temp_dir();
        let mut command = launch(folder.path());
        command.env(name, "nonsense");
        let outcome = run(command);
        let start = format!("error: mpirun ended with status 1; its ranks had not joined{words}");
        let component = if words.is_empty() { "" } else { "Component: nonsense" };
        let parts = [&start, component, "hint: check its settings in the environment (", name];
        assert_says(&outcome, 78, &parts);
    }
}

const OPEN_MPI: &str = "echo \"mpirun (Open MPI) 4.1.4\"";

#[test]
fn an_mpirun_that_crashes_is_shown() {
    let folder = temp_dir();
    let rows = "-".repeat(74);
    let start = format!("echo {rows} >&2; echo no daemon on this host >&2; echo {rows} >&2; kill -SEGV $$");
    let outcome = with_mpirun(folder.path(), OPEN_MPI, &start);
    let parts =
        ["mpirun was ended by SIGSEGV; its ranks had not joined", "  | no daemon on this host", "hint: "];
    assert_says(&outcome, 1, &parts);
}

/// Such as where `/dev/shm` is full or `/tmp` read-only.
#[test]
fn an_mpirun_without_room_for_its_files_is_done_without() {
    let rows = "-".repeat(74);
    let start =
        format!("echo {rows} >&2; echo '  Error: Read-only file system' >&2; echo {rows} >&2; exit 1");
    let folder = temp_dir();
    let outcome = with_mpirun(folder.path(), OPEN_MPI, &start);
    let said = "warning: mpirun ended with status 1 (Error: Read-only file system); this program starts the ranks without \
                mpirun, as with --launcher env\n";
    assert_says(&outcome, 0, &[said, "on 2 ranks"]);
    // One that was asked for is not replaced.
    let folder = temp_dir();
    let outcome = run_with_mpirun(launch_by("mpi", folder.path()), folder.path(), OPEN_MPI, &start);
    assert_says(&outcome, 78, &[" |   Error: Read-only file system", "--launcher env does without it"]);
}

#[test]
fn an_mpirun_that_starts_nothing_is_reported_and_ended() {
    let folder = temp_dir();
    let outcome = with_mpirun(folder.path(), OPEN_MPI, "sleep 1000");
    let parts = [
        "warning: mpirun has started no rank on this host for 20 s\nhint: ",
        "error: mpirun started no rank and was killed; its ranks had not joined\nhint: ",
    ];
    assert_says(&outcome, 78, &parts);
}

#[test]
fn an_mpirun_without_a_version_is_refused() {
    for (version, part) in [
        ("true", "`mpirun --version` names neither Open MPI nor MPICH: it printed nothing\nhint: "),
        ("sleep 1000", "`mpirun --version` did not end within 10s and was killed\nhint: "),
        ("while :; do echo word; done", "`mpirun --version` did not end within 10s and was killed\nhint: "),
    ] {
        let folder = temp_dir();
        assert_says(&with_mpirun(folder.path(), version, "exit 1"), 78, &[part]);
    }
}

/// The readers of both outputs die early, as `tee` does when it is killed.
#[test]
fn readers_that_die_end_nothing() {
    let folder = temp_dir();
    let mut command = launch(folder.path());
    command.args(["--json", "--set", "train.epochs=40"]);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let (stdout, stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let mut line = String::new();
    BufReader::new(stderr).read_line(&mut line).unwrap();
    BufReader::new(stdout).read_line(&mut line).unwrap();
    let started = Instant::now();
    while child.try_wait().unwrap().is_none() && started.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = child.try_wait().unwrap();
    let _ = child.kill();
    assert_eq!(status.and_then(|status| status.code()), Some(0), "after {line}");
    let events = std::fs::read_to_string(folder.path().join("out/metrics.jsonl")).unwrap();
    assert!(events.lines().last().unwrap().contains("\"end\""), "{events}");
    assert!(!events.contains("\"resume\""), "it was restarted: {events}");
    assert!(folder.path().join("out/done.json").exists());
}
