//! Runs in a control group with a limit on memory, as in a container: the defaults fit it, what cannot fit is refused before it is
//! allocated, and a rank that is killed is reported as that.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Outcome, ddp_train, run, temp_dir, write};

/// A control group of this test, deleted when dropped.
struct Group {
    folder: PathBuf,
}

impl Group {
    /// A group with this limit; `None` where tests may not make one.
    fn new(limit_mib: u64) -> Option<Self> {
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let name =
            format!("ddp-train-test-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let versions = [("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")];
        for (top, limit) in versions {
            if !Path::new(top).join("cgroup.procs").exists() {
                continue;
            }
            // Version 2 has the file only where the group above passes memory on.
            let _ = fs::write(Path::new(top).join("cgroup.subtree_control"), "+memory");
            let group = Group { folder: Path::new(top).join(&name) };
            let is_made = fs::create_dir(&group.folder).is_ok();
            if is_made && fs::write(group.folder.join(limit), (limit_mib << 20).to_string()).is_ok() {
                // So that a process is killed instead of being swapped out.
                let _ = fs::write(group.folder.join("memory.swap.max"), "0");
                return Some(group);
            }
        }
        eprintln!("skipped: needs the right to make a control group with a limit on memory");
        None
    }

    /// Runs the program in the group.
    fn run(&self, args: &[&str]) -> Outcome {
        let mut command = Command::new("sh");
        let enter = r#"echo $$ > "$0" || exit 99; exec "$@""#;
        command.args(["-c", enter]).arg(self.folder.join("cgroup.procs")).arg(ddp_train()).args(args);
        let outcome = run(command);
        assert_ne!(outcome.status.code(), Some(99), "can't enter the group: {}", outcome.stderr);
        outcome
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The last process of the group may not be reaped yet.
        for _ in 0..100 {
            if fs::remove_dir(&self.folder).is_ok() || !self.folder.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[track_caller]
fn assert_says(outcome: &Outcome, status: i32, parts: &[&str]) {
    assert_eq!(outcome.status.code(), Some(status), "{}", outcome.stderr);
    for part in parts {
        let is_there = outcome.stderr.contains(part) || outcome.stdout.contains(part);
        assert!(is_there, "no {part:?} in:\n{}{}", outcome.stderr, outcome.stdout);
    }
}

const CPU: [&str; 4] = ["--device", "cpu", "--threads", "1"];

#[test]
fn memory_for_rows_that_exceeds_the_container_is_not_used() {
    let Some(group) = Group::new(200) else { return };
    let dry_run = [&["train", "--dry-run"], &CPU[..]].concat();
    let more = [&dry_run[..], &["--set", "data.loader_memory_mib=4096"]].concat();
    let warning = "`data.loader_memory_mib` is 4096, but this container allows each rank 200 MiB: rows take at most 150 MiB";
    assert_says(&group.run(&more), 0, &[warning]);
}

#[test]
fn rows_and_models_that_do_not_fit_are_refused_before_they_are_allocated() {
    let Some(group) = Group::new(48) else { return };
    let folder = temp_dir();
    let out = folder.path().join("out").display().to_string();
    let train = [&["train", "--out", &out], &CPU[..]].concat();
    let outcome = group.run(&[&train[..], &["--set", "model.hidden=[4096,4096]"]].concat());
    let parts = [" per rank, this container allows 48 MiB: ", "hint: ", "raise the limit of the container"];
    assert_says(&outcome, 78, &parts);

    let columns: Vec<String> = (0..100).map(|column| format!("c{column}")).collect();
    let row = vec!["1"; 100].join(",");
    let rows = format!("{},y\n{}", columns.join(","), format!("{row},a\n{row},b\n").repeat(40_000));
    let csv = write(folder.path(), "rows.csv", &rows).display().to_string();
    let outcome = group.run(&[&train[..], &["--plain", "--data", &csv, "--target", "y"]].concat());
    let parts = [
        "rows.csv` needs ",
        "this container allows each rank 48 MiB, of which rows may take 24 MiB",
        "hint: ",
    ];
    assert_says(&outcome, 2, &parts);
    assert!(!Path::new(&out).exists(), "nothing was written");
}

#[test]
fn the_largest_batch_fits_the_container() {
    let folder = temp_dir();
    let row = vec!["1"; 20].join(",");
    let names: Vec<String> = (0..20).map(|column| format!("c{column}")).collect();
    let rows = format!("{},y\n{}", names.join(","), format!("{row},a\n{row},b\n").repeat(20_000));
    let csv = write(folder.path(), "rows.csv", &rows).display().to_string();
    let find = ["find-batch-size", &csv, "--target", "y", "--hidden", "64,64", "--json"];
    let args = [&find[..], &CPU[..]].concat();
    let Some(group) = Group::new(60) else { return };
    let outcome = group.run(&args);
    assert!(outcome.status.success(), "{outcome:?}");
    let report: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let largest = report["batches"].as_array().unwrap().last().unwrap();
    assert_eq!(largest["batch_size"], report["largest_batch_size"]);
    assert!((500..40_000).contains(&largest["batch_size"].as_u64().unwrap()), "{report}");
    assert!(largest["memory_bytes"].as_u64().unwrap() <= 54 << 20, "{report}");
    let args = [&["find-batch-size", "--set", "model.hidden=[4096,4096]"], &CPU[..]].concat();
    let parts = ["no batch fits: one of 1 rows per rank needs ", ", and ", "hint: "];
    assert_says(&group.run(&args), 78, &parts);
}

/// The model fits the container, but not next to the program itself.
#[test]
fn a_rank_that_is_killed_for_memory_is_not_started_again() {
    let Some(group) = Group::new(20) else { return };
    let folder = temp_dir();
    let out = folder.path().join("out").display().to_string();
    let own = ["--out", &out, "--set", "model.hidden=[600,600]", "--set", "train.epochs=100"];
    let outcome = group.run(&[&["launch", "-n", "1", "--"], &own[..], &CPU[..]].concat());
    assert_says(
        &outcome,
        1,
        &["the rank was ended by SIGKILL; a rank was killed for memory (limit 20 MiB); ", "hint: lower "],
    );
    assert!(!outcome.stderr.contains("restart "), "{}", outcome.stderr);
}

#[test]
fn a_rank_that_is_killed_for_memory_under_mpirun_is_reported_as_that() {
    let Some(group) = Group::new(28) else { return };
    let folder = temp_dir();
    let out = folder.path().join("out").display().to_string();
    let own = ["--out", &out, "--set", "model.hidden=[400,400]", "--set", "train.epochs=100"];
    let outcome = group.run(&[&["launch", "-n", "2", "--"], &own[..], &CPU[..]].concat());
    assert_says(&outcome, 1, &["killed for memory (limit 28 MiB)", "hint: lower "]);
    assert!(!outcome.stderr.contains("restart "), "{}", outcome.stderr);
}

/// A limit on processes or on address space that lets some threads start, but not all: each is one error that names it.
#[test]
fn a_limit_on_threads_is_named() {
    // Limits of another user, since root has none on processes.
    let folder = temp_dir();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let user = "setpriv --reuid 34567 --clear-groups";
    let may =
        Command::new("sh").args(["-c", &format!("{user} '{}' --version", ddp_train())]).output().unwrap();
    let of_user = (1..9).map(|n| (format!("ulimit -u {n}; exec {user}"), "RLIMIT_NPROC is "));
    let of_user: Vec<_> = if may.status.success() {
        of_user.collect()
    } else {
        println!("skipped: needs the right to become another user (setpriv)");
        Vec::new()
    };
    let of_memory = (6..20).map(|n| (format!("ulimit -v {}; exec", n * 10_000), "RLIMIT_AS is "));
    let mut n_named = 0;
    for (case, (before, limit)) in of_user.into_iter().chain(of_memory).enumerate() {
        let mut command = Command::new("bash");
        let script = format!("{before} \"$0\" train -q --threads 2 --epochs 1 --out out-{case}");
        command.args(["-c", &script, ddp_train()]).current_dir(folder.path()).env("HOME", folder.path());
        let outcome = run(command);
        // The kernel ends a process whose stack can't grow.
        let has_no_stack =
            limit == "RLIMIT_AS is " && outcome.status.signal() == Some(11) && outcome.stderr.is_empty();
        let is_early = outcome.status.success()
            || has_no_stack
            || outcome.stderr.contains("error while loading shared libraries");
        assert!(!outcome.stderr.contains("panicked"), "{before}: {}", outcome.stderr);
        let is_named = outcome.stderr.contains("no further thread can be started: ");
        assert!(!is_named || outcome.stderr.contains(limit), "{before}: {}", outcome.stderr);
        assert!(is_named || is_early || outcome.stderr.contains("memory"), "{before}: {outcome:?}");
        n_named += usize::from(is_named);
    }
    assert!(n_named > 0);
}
