//! A run that cannot continue ends quickly on all ranks, with one message that states the reason: real faults in the real
//! program.

// A test that cannot continue panics, and a test that is skipped prints that it is.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::path::Path;
use std::process::Command;

use crate::common::{Outcome, run, single, temp_dir};

/// Asserts how a job ended: its exit status, and that stderr ends with this error, printed once, with a hint.
///
/// - `speaker`: the start of the error's line
#[track_caller]
fn assert_ended(outcome: &Outcome, code: i32, speaker: &str, error: &[&str]) {
    let stderr = &outcome.stderr;
    assert_eq!(outcome.status.code(), Some(code), "{stderr}");
    assert_eq!(stderr.matches("error: ").count(), 1, "one rank speaks for all:\n{stderr}");
    let start = stderr[..stderr.find("error: ").unwrap()].rfind('\n').map_or(0, |end| end + 1);
    let message = stderr[start..].trim_end();
    assert!(message.starts_with(speaker), "not from {speaker:?}:\n{stderr}");
    for part in error {
        assert!(message.contains(part), "no {part:?} in:\n{stderr}");
    }
    let last = message.lines().last().unwrap();
    assert!(last.starts_with("hint: "), "the hint is not the last line:\n{stderr}");
}

/// Start of the line for an error that all ranks share, or that the only rank has.
const ALL: &str = "error: ";

/// Arguments for gradient descent with far too large steps.
fn too_large_steps(out: &str) -> Vec<&str> {
    let sets = ["--set", "optimizer.kind=\"sgd\"", "--set", "optimizer.lr=1e30"];
    [&["train", "--quiet", "--out", out], &sets[..]].concat()
}

const LOSS_NOT_FINITE: [&str; 3] = ["loss is ", " at step ", "`optimizer.lr`"];

#[test]
fn a_loss_that_is_not_finite_ends_the_run() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let outcome = run(single(&too_large_steps(out.to_str().unwrap())));
    assert_ended(&outcome, 1, ALL, &LOSS_NOT_FINITE);
    assert!(!out.join("model.safetensors").exists(), "a model that is not trained");
}

/// A file system of 24 KiB, unmounted when the test ends.
struct TinyDisk<'a>(&'a Path);

impl<'a> TinyDisk<'a> {
    /// Mounts the file system; prints why the test is skipped if the system does not allow it.
    fn mount(folder: &'a Path) -> Option<Self> {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=24k", "tmpfs"]).arg(folder);
        match mount.output() {
            Ok(output) if output.status.success() => Some(TinyDisk(folder)),
            Ok(output) => {
                let reason = String::from_utf8_lossy(&output.stderr).trim().to_owned();
                eprintln!("skipped: needs root, to mount a small disk ({reason})");
                None
            }
            Err(error) => {
                eprintln!("skipped: needs root, to mount a small disk (mount: {error})");
                None
            }
        }
    }
}

impl Drop for TinyDisk<'_> {
    fn drop(&mut self) {
        // Unmounted lazily, because a rank that is about to end may still have a file open.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}

/// Arguments of a run that fills the disk with its metrics and would otherwise never end.
fn endless(out: &str) -> Vec<&str> {
    let sets = ["--set", "train.epochs=1000000", "--set", "log.every_steps=1"];
    [&["train", "--quiet", "--out", out], &sets[..]].concat()
}

#[test]
fn a_full_disk_ends_the_run() {
    let folder = temp_dir();
    let Some(_disk) = TinyDisk::mount(folder.path()) else {
        return;
    };
    let out = folder.path().join("run");
    let outcome = run(single(&endless(out.to_str().unwrap())));
    assert_ended(&outcome, 74, ALL, &["metrics.jsonl`", "No space left", "the disk is full"]);
    assert!(!out.join("model.safetensors").exists());
}

mod mpi {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::common::{children, kill_9, mpirun, ranks, run_ok, start, write};

    /// Time limit for the job to end after one rank has failed.
    const SOON: Duration = Duration::from_secs(2);

    /// Time limit for a whole job without a failure, on a possibly busy machine.
    fn usual_time() -> Duration {
        run_ok(ranks(2, &["train", "--dry-run", "--quiet"])).elapsed
    }

    /// Runs a job in which ranks 0 and 1 have different configs with the same name, and one output folder.
    fn two_configs(folder: &Path, configs: [&str; 2]) -> Outcome {
        let path = |rank: usize| {
            let own = folder.join(rank.to_string());
            std::fs::create_dir(&own).unwrap();
            write(&own, "run.toml", configs[rank])
        };
        let (a, b, out) = (path(0), path(1), folder.join("out"));
        let out_text = out.to_str().unwrap();
        let args = |config: &'_ Path| -> Vec<String> {
            ["train", config.to_str().unwrap(), "--quiet", "--out", out_text].map(str::to_owned).into()
        };
        let (a, b) = (args(&a), args(&b));
        let a: Vec<_> = a.iter().map(String::as_str).collect();
        let b: Vec<_> = b.iter().map(String::as_str).collect();
        let outcome = run(mpirun(&[(1, &a), (1, &b)]));
        assert!(!out.exists(), "nothing is written before all ranks agree");
        outcome
    }

    const ROWS: &str = "x,y,label\n1,2,0\n3,4,1\n5,6,0\n7,8,1\n";

    #[test]
    fn a_data_file_that_one_rank_lacks_ends_the_job() {
        let folder = temp_dir();
        let usual = usual_time();
        // The path is the same on each rank, as on hosts with local disks, but one of them lacks the file.
        let hosts = [0, 1].map(|rank| folder.path().join(format!("host{rank}")));
        for own in &hosts {
            std::fs::create_dir(own).unwrap();
            write(own, "run.toml", "[data]\ntrain = \"rows.csv\"\n");
        }
        write(&hosts[0], "rows.csv", ROWS);
        let outcome = run(mpirun_in_folders(&hosts, &["train", "run.toml", "--quiet", "--dry-run"]));
        assert_ended(&outcome, 2, "[rank 1 ", &["data file `rows.csv` does not exist"]);
        assert!(outcome.elapsed < usual + SOON, "{:?}, usually {usual:?}", outcome.elapsed);
    }

    #[test]
    fn data_that_differ_between_ranks_end_the_job() {
        let folder = temp_dir();
        let usual = usual_time();
        // The path is the same on each rank, as on hosts with local disks, but the rows differ.
        let config = "[data]\ntrain = \"rows.csv\"\n";
        let outcome = {
            let job = |rank: usize, rows: &str| {
                let own = folder.path().join(format!("host{rank}"));
                std::fs::create_dir(&own).unwrap();
                write(&own, "rows.csv", rows);
                write(&own, "run.toml", config);
                own
            };
            let hosts = [job(0, ROWS), job(1, &ROWS.replace('7', "9"))];
            run(mpirun_in_folders(&hosts, &["train", "run.toml", "--quiet", "--dry-run"]))
        };
        assert_ended(&outcome, 78, ALL, &["rank 1", "on rank 0", "the data"]);
        assert!(outcome.elapsed < usual + SOON, "{:?}, usually {usual:?}", outcome.elapsed);
    }

    /// Starts one rank in each folder.
    fn mpirun_in_folders(folders: &[std::path::PathBuf], args: &[&str]) -> Command {
        let mut command = mpirun(&[]);
        for (index, folder) in folders.iter().enumerate() {
            if index > 0 {
                command.arg(":");
            }
            command.args(["-n", "1", "-wdir"]).arg(folder).arg(crate::common::ddp_train()).args(args);
        }
        command
    }

    /// A copy of the program that claims to be built with a differently named feature.
    fn other_build(folder: &Path) -> std::path::PathBuf {
        let (name, other) = (b"features: mpi", b"features: MPI");
        let mut program = std::fs::read(crate::common::ddp_train()).unwrap();
        let places: Vec<_> = memchr::memmem::find_iter(&program, name).collect();
        assert!(!places.is_empty(), "the program names its features");
        for place in places {
            program[place..place + name.len()].copy_from_slice(other);
        }
        let path = folder.join("ddp-train");
        std::fs::write(&path, program).unwrap();
        let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, executable).unwrap();
        path
    }

    #[test]
    fn ranks_of_another_build_are_named_before_anything_is_read() {
        let folder = temp_dir();
        let usual = usual_time();
        let out = folder.path().join("out");
        // The config does not exist, so the ranks fail before they read it.
        let args = ["train", "absent.toml", "--out", out.to_str().unwrap()];
        let mut command = mpirun(&[(2, &args)]);
        command.args([":", "-n", "1"]).arg(other_build(folder.path())).args(args);
        let outcome = run(command);
        assert_ended(&outcome, 78, ALL, &["different builds", "\n  ranks 0 to 1 (", "\n  rank 2 ("]);
        for part in ["; features: mpi", "; features: MPI"] {
            assert!(outcome.stderr.contains(part), "{}", outcome.stderr);
        }
        assert!(outcome.elapsed < usual + SOON, "{:?}, usually {usual:?}", outcome.elapsed);
        assert!(!out.exists());
    }

    #[test]
    fn configs_that_differ_between_ranks_end_the_job() {
        let folder = temp_dir();
        let usual = usual_time();
        let config =
            |seed: u64| format!("[data]\ntrain = \"builtin:digits\"\n[train]\nepochs = 2\nseed = {seed}\n");
        let outcome = two_configs(folder.path(), [&config(3), &config(7)]);
        assert_ended(&outcome, 78, ALL, &["rank 1", "'train.seed': '7' there, '3' on rank 0"]);
        assert!(outcome.elapsed < usual + SOON, "{:?}, usually {usual:?}", outcome.elapsed);
    }

    #[test]
    fn a_loss_that_is_not_finite_ends_the_job() {
        let folder = temp_dir();
        let usual = usual_time();
        let out = folder.path().join("out");
        let outcome = run(ranks(2, &too_large_steps(out.to_str().unwrap())));
        assert_ended(&outcome, 1, ALL, &LOSS_NOT_FINITE);
        assert!(outcome.elapsed < usual + SOON, "{:?}, usually {usual:?}", outcome.elapsed);
        assert!(!out.join("model.safetensors").exists(), "a model that is not trained");
    }

    /// Time that mpirun may take to end after all ranks of its job have died, counted from the first death.
    const MPIRUN_ENDS: Duration = Duration::from_millis(3500);

    #[test]
    fn a_rank_that_is_killed_takes_the_job_with_it() {
        for victim in [0, 2] {
            let folder = temp_dir();
            let out = folder.path().join("out");
            let job = start(ranks(3, &endless(out.to_str().unwrap())));
            let metrics = out.join("metrics.jsonl");
            while std::fs::metadata(&metrics).map_or(0, |file| file.len()) == 0 {
                assert!(job.started.elapsed() < Duration::from_secs(30), "the job does not begin");
                std::thread::sleep(Duration::from_millis(5));
            }
            let mut pids = children(job.pid());
            pids.sort_unstable();
            assert_eq!(pids.len(), 3, "the ranks are mpirun's children");
            let killed = Instant::now();
            kill_9(pids[victim]);
            let is_there = |pid: &u32| Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok();
            while pids.iter().any(is_there) {
                assert!(
                    killed.elapsed() < SOON,
                    "ranks still run {:?} after one was killed",
                    killed.elapsed()
                );
                std::thread::sleep(Duration::from_millis(5));
            }
            // mpirun may take another second to end after all ranks: 2.01 s was observed when they had ended after 1.01 s.
            let outcome = job.wait();
            let took = outcome.ended - killed;
            assert!(took < MPIRUN_ENDS, "mpirun took {took:?} to end");
            assert!(!outcome.status.success(), "{:?}", outcome.status);
        }
    }

    #[test]
    fn a_full_disk_ends_the_job() {
        let folder = temp_dir();
        let Some(_disk) = TinyDisk::mount(folder.path()) else {
            return;
        };
        let usual = usual_time();
        let out = folder.path().join("run");
        // About 150 steps fit on the disk, which take a fraction of a second.
        let outcome = run(ranks(2, &endless(out.to_str().unwrap())));
        assert_ended(&outcome, 74, "[rank 0 ", &["metrics.jsonl`", "No space left", "the disk is full"]);
        assert!(outcome.elapsed < usual + SOON, "{:?}, usually {usual:?}", outcome.elapsed);
        assert!(!out.join("model.safetensors").exists());
    }
}
