//! A folder is either claimed completely or left unchanged.

use std::os::unix::fs::FileExt as _;
use std::time::{Duration, UNIX_EPOCH};

use super::*;

#[track_caller]
fn assert_refused(result: Result<RunDir>, parts: &[&str]) {
    let error = result.expect_err("refused");
    let message = ddp_kernels::hint::with_hint(&error);
    for part in parts {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
    assert!(message.lines().last().unwrap_or_default().starts_with("hint: "), "{message}");
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn missing_folders_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("a/b");
    let run = RunDir::open(Some(&out), "digits", Existing::Refuse).unwrap();
    assert_eq!(run.path(), out);
    assert_eq!(run.file(CONFIG_FILE), out.join("config.toml"));
    assert_eq!(names(&out), [".lock"]);
}

#[test]
fn a_run_is_not_written_over() {
    for file in RUN_FILES {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join(file).parent().unwrap()).unwrap();
        fs::write(folder.path().join(file), "old").unwrap();
        fs::write(folder.path().join("notes.txt"), "mine").unwrap();
        assert_refused(
            RunDir::open(Some(folder.path()), "x", Existing::Refuse),
            &["already holds a run", file, "--overwrite"],
        );
        assert!(
            check(folder.path(), Existing::Refuse).is_err()
                && check(folder.path(), Existing::Overwrite).is_ok()
        );
        assert_eq!(fs::read_to_string(folder.path().join(file)).unwrap(), "old");
        assert_eq!(names(folder.path()).len(), 2, "no lock file was left behind");

        RunDir::open(Some(folder.path()), "x", Existing::Overwrite).unwrap().clear().unwrap();
        assert_eq!(names(folder.path()), [".lock", "notes.txt"], "only the run's own files go");
    }
}

#[test]
fn traces_go_with_their_run() {
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().join(TRACES);
    fs::create_dir(&traces).unwrap();
    for name in [&trace_file(1, 20), "mine.json"] {
        fs::write(traces.join(name), "{}").unwrap();
    }
    RunDir::open(Some(folder.path()), "x", Existing::Overwrite).unwrap().clear().unwrap();
    assert_eq!(names(&traces), ["mine.json"]);
}

#[test]
fn a_live_owner_keeps_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let run = RunDir::open(Some(&out), "x", Existing::Refuse).unwrap();
    fs::write(run.file(METRICS_FILE), "new").unwrap();
    let holder = format!("in use by process {}", std::process::id());
    for existing in [Existing::Refuse, Existing::Overwrite, Existing::Continue] {
        assert_refused(RunDir::open(Some(&out), "x", existing), &[&holder, "out/.lock"]);
        assert!(check(&out, existing).unwrap_err().to_string().contains("in use by"));
    }
    assert_eq!(fs::read_to_string(out.join(METRICS_FILE)).unwrap(), "new");
    drop(run);
    RunDir::open(Some(&out), "x", Existing::Overwrite).unwrap();
}

#[test]
fn a_file_is_no_folder() {
    let file = tempfile::NamedTempFile::new().unwrap();
    assert_refused(
        RunDir::open(Some(file.path()), "x", Existing::Overwrite),
        &["a file of that name exists"],
    );
    assert_refused(
        RunDir::open(Some(&file.path().join("below")), "x", Existing::Refuse),
        &["can't be written"],
    );
    assert!(check(file.path(), Existing::Overwrite).is_err());
}

#[test]
fn what_cannot_be_made_is_told() {
    assert_refused(
        RunDir::open(Some(Path::new("/proc/no/run")), "x", Existing::Refuse),
        &["`/proc/no/run` can't be written"],
    );
    let claimed = make_default(Path::new("/proc/runs"), "x", UNIX_EPOCH);
    assert!(claimed.unwrap_err().to_string().contains("`/proc/runs` can't be written"));
}

#[test]
fn default_folders_never_meet() {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    let made: Vec<_> = (0..3).map(|_| make_default(&runs, "digits", now).unwrap()).collect();
    let expected = ["digits-20231114-221320", "digits-20231114-221320-2", "digits-20231114-221320-3"];
    assert_eq!(made, expected.map(|name| runs.join(name)));
}

#[test]
fn who_deletes_in_a_folder_holds_it() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(hold(folder.path()).unwrap(), Held::NoRun));
    let run = RunDir::open(Some(folder.path()), "a", Existing::Refuse).unwrap();
    assert!(matches!(hold(folder.path()), Err(FolderError::Busy { .. })));
    drop(run);
    // Works over NFS too, where a file opened only for reading can only take a shared lock.
    let read_only = Lock { file: File::open(folder.path().join(LOCK_FILE)).unwrap(), is_writable: false };
    assert!(try_lock(&read_only, folder.path()).unwrap());
    assert!(matches!(hold(folder.path()), Err(FolderError::Busy { .. })));
    drop(read_only);
    let held = hold(folder.path()).unwrap();
    assert!(matches!(held, Held::Yes { .. }));
    let refused = RunDir::open(Some(folder.path()), "a", Existing::Continue).unwrap_err().to_string();
    assert!(refused.contains(&format!("in use by process {}", std::process::id())), "{refused}");
    drop(held);
    RunDir::open(Some(folder.path()), "a", Existing::Continue).unwrap();
}

/// Such as one that the system has killed, and that frees its memory before it closes its files.
#[test]
fn an_owner_that_is_just_ending_is_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    // No process has a number beyond this one.
    let ended = format!("process 4194305 on {host}");
    let held = |until: Duration| {
        fs::write(folder.path().join(LOCK_FILE), &ended).unwrap();
        let lock = Lock { file: File::open(folder.path().join(LOCK_FILE)).unwrap(), is_writable: false };
        assert!(try_lock(&lock, folder.path()).unwrap());
        std::thread::spawn(move || {
            std::thread::sleep(until);
            drop(lock);
        })
    };
    let released = held(Duration::from_millis(300));
    assert!(matches!(hold(folder.path()).unwrap(), Held::Yes { .. }));
    released.join().unwrap();
    let released = held(Duration::from_secs(5));
    let refused = hold(folder.path()).unwrap_err().to_string();
    assert!(refused.contains("in use by process 4194305 on "), "{refused}");
    released.join().unwrap();
}

/// A live owner is reported before the run that it writes.
#[test]
fn a_lease_of_another_host_is_judged_before_the_folder_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let run = RunDir::open(Some(folder.path()), "a", Existing::Refuse).unwrap();
    fs::write(run.file(METRICS_FILE), "old").unwrap();
    assert!(run.check_owned().is_ok());
    drop(run);
    let lock = folder.path().join(LOCK_FILE);
    let lease = |n: u64| format!("process 7 on node2\nboot other\nrenewed 20260101-000000 ({n:010})\n");
    let pace = Pace { interval: Duration::from_millis(20), stale_after: Duration::from_millis(400) };
    let claim = |existing| RunDir::claim(folder.path().to_owned(), existing, pace);
    for existing in [Existing::Refuse, Existing::Continue] {
        fs::write(&lock, lease(1)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                // Written in place, like a renewal; an empty lock file counts as released.
                let file = File::options().write(true).open(&lock).unwrap();
                file.write_all_at(lease(2).as_bytes(), 0).unwrap();
            });
            assert_refused(claim(existing), &["in use by process 7 on node2"]);
        });
        assert_eq!(fs::read_to_string(&lock).unwrap(), lease(2));
    }
    assert_refused(claim(Existing::Refuse), &["already holds a run"]);
    let since = std::time::Instant::now();
    let run = claim(Existing::Continue).unwrap();
    assert!(since.elapsed() >= Duration::from_millis(400));
    assert!(fs::read_to_string(&lock).unwrap().starts_with(&format!("process {}", std::process::id())));
    fs::remove_file(&lock).unwrap();
    let since = std::time::Instant::now();
    while run.check_owned().is_ok() {
        assert!(since.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
    let lost = ddp_kernels::hint::with_hint(&run.check_owned().unwrap_err());
    assert!(
        run.is_gone() && lost.contains("was deleted, moved or replaced") && lost.contains("\nhint: "),
        "{lost}"
    );
}

/// A file server keeps it: for 90 s by NFS 4, and by NFS 3 until the host is back.
#[test]
fn the_lock_of_a_host_that_has_died_keeps_no_run_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(LOCK_FILE);
    let lease = |n: u64| format!("process 7 on node2\nboot other\nrenewed 20260101-000000 ({n:010})\n");
    let pace = Pace { interval: Duration::from_millis(20), stale_after: Duration::from_millis(200) };
    let claim = || RunDir::claim(folder.path().to_owned(), Existing::Continue, pace);
    fs::write(&path, lease(1)).unwrap();
    let others = File::options().read(true).write(true).open(&path).unwrap();
    others.lock().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            others.write_all_at(lease(2).as_bytes(), 0).unwrap();
        });
        assert_refused(claim(), &["in use by process 7 on node2"]);
    });
    let run = claim().unwrap();
    assert!(fs::read_to_string(&path).unwrap().starts_with(&format!("process {}", std::process::id())));
    // Once the server gives the lock up, the run has it.
    others.unlock().unwrap();
    let since = std::time::Instant::now();
    while others.try_lock().is_ok() {
        others.unlock().unwrap();
        assert!(since.elapsed() < Duration::from_secs(20), "the run takes the lock");
        std::thread::sleep(Duration::from_millis(30));
    }
    assert!(run.check_owned().is_ok());
}

#[test]
fn names_with_a_time_are_default_ones() {
    let name = format!("digits-{}", utc(SystemTime::now()));
    assert!(is_default_name(&name) && is_default_name(&format!("{name}-2")));
    for own in ["abc", "lr-0.1", "2024-10-11", "run-123456", "a-20240101"] {
        assert!(!is_default_name(own), "{own}");
    }
}
