//! The folder of a run: lost while it trains, leased by another host, left by a killed process, and its permissions.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Job, run_line, run_line_ok, single, start, temp_dir};

/// A run in the folder `out` that only ends when it is stopped.
fn endless(folder: &Path, more: &str) -> Job {
    let line = format!("train --out out --epochs 1000000 --device cpu --threads 1 --quiet {more}");
    let mut command = single(&line.split_whitespace().collect::<Vec<_>>());
    command.current_dir(folder);
    let job = start(command);
    while !folder.join("out/metrics.jsonl").exists() {
        assert!(job.started.elapsed() < Duration::from_secs(60), "the run did not start");
        thread::sleep(Duration::from_millis(2));
    }
    job
}

#[test]
fn a_run_that_loses_its_lock_or_folder_ends_with_the_reason() {
    type Lose = fn(&Path);
    let ways: [(Lose, &str); 4] = [
        (
            |out| fs::remove_file(out.join(".lock")).unwrap(),
            "or its file .lock was deleted, moved or replaced",
        ),
        (
            |out| fs::rename(out, out.with_file_name("moved")).unwrap(),
            "was deleted, moved or replaced during the run",
        ),
        (
            |out| {
                fs::rename(out.join(".lock"), out.join("old")).unwrap();
                symlink("config.toml", out.join(".lock")).unwrap();
            },
            "was deleted, moved or replaced during the run",
        ),
        (
            |out| {
                fs::write(
                    out.join(".lock"),
                    "process 7 on node2\nboot other\nrenewed 20260101-000000 (0000000001)\n",
                )
                .unwrap()
            },
            "process 7 on node2 took the folder over during this run",
        ),
    ];
    let jobs: Vec<_> = ways
        .into_iter()
        .map(|(lose, reason)| {
            let folder = temp_dir();
            let job = endless(folder.path(), "");
            lose(&folder.path().join("out"));
            (folder, job, reason)
        })
        .collect();
    for (folder, job, reason) in jobs {
        let outcome = job.wait();
        assert_eq!(outcome.status.code(), Some(1), "{reason}: {outcome:?}");
        let stderr = &outcome.stderr;
        assert!(stderr.contains("error: output folder `out`: ") && stderr.contains(reason), "{stderr}");
        assert_eq!(stderr.matches("error: ").count(), 1, "{stderr}");
        let config = folder.path().join("out/config.toml");
        assert!(
            fs::read_to_string(config).is_ok_and(|text| !text.starts_with("process"))
                || reason.starts_with("was")
        );
    }
}

/// Another host renews its lease in a folder whose lock this host does not see.
#[test]
fn a_folder_with_a_fresh_lease_of_another_host_is_refused() {
    let folder = temp_dir();
    run_line_ok(folder.path(), "train --epochs 1 --out out --quiet");
    let lock = folder.path().join("out/.lock");
    assert_eq!(fs::read_to_string(&lock).unwrap(), "", "a run that has ended leaves no lease");
    let lease = |n: u64| format!("process 7 on node2\nboot other\nrenewed 20260101-000000 ({n:010})\n");
    fs::write(&lock, lease(0)).unwrap();
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let renewer = thread::spawn({
        let lock = lock.clone();
        move || {
            for n in 1.. {
                if stopped.recv_timeout(Duration::from_millis(200))
                    != Err(std::sync::mpsc::RecvTimeoutError::Timeout)
                {
                    return;
                }
                // In place: an empty lock file is one that was released.
                fs::File::options()
                    .write(true)
                    .open(&lock)
                    .unwrap()
                    .write_all_at(lease(n).as_bytes(), 0)
                    .unwrap();
            }
        }
    });
    let outcome = run_line(folder.path(), "train --epochs 2 --out out --resume auto --quiet");
    drop(stop);
    renewer.join().unwrap();
    assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
    assert!(outcome.stderr.contains("`out` is in use by process 7 on node2"), "{}", outcome.stderr);
    // Once it is no longer renewed, the folder is taken over after some seconds.
    let since = Instant::now();
    let outcome = run_line_ok(folder.path(), "train --epochs 2 --out out --resume auto");
    assert!(since.elapsed() > Duration::from_secs(5));
    let warning = "took over the output folder `out` from process 7 on node2";
    assert!(outcome.stderr.contains(warning), "{}", outcome.stderr);
}

#[test]
fn what_a_killed_process_left_is_removed() {
    let folder = temp_dir();
    run_line_ok(folder.path(), "train --epochs 1 --out out --quiet");
    let out = folder.path().join("out");
    let left = [".model.safetensors.4294967295.tmp", ".config.toml.4294967295.tmp", "logs/.seen-1-2"];
    let kept = [".notes.4294967295.tmp", ".model.safetensors.1.tmp", "model.safetensors.4294967295.tmp"];
    left.iter().chain(&kept).for_each(|name| fs::write(out.join(name), "x").unwrap());
    let outcome = run_line_ok(folder.path(), "train --epochs 2 --out out --resume auto");
    assert!(left.iter().all(|name| !out.join(name).exists()), "{left:?}");
    assert!(kept.iter().all(|name| out.join(name).exists()), "{kept:?}");
    assert!(outcome.stderr.contains(".model.safetensors.4294967295.tmp"), "{}", outcome.stderr);
}

#[test]
fn files_of_a_run_get_the_mode_that_is_set() {
    let folder = temp_dir();
    for (mode, files, folders) in [("600", 0o600, 0o700), ("664", 0o664, 0o775)] {
        let line = format!(
            "train --epochs 2 --out {mode} --quiet --set run.file_mode={mode} --set checkpoint.every_epochs=1"
        );
        run_line_ok(folder.path(), &line);
        let mut pending = vec![folder.path().join(mode)];
        let mut n_files = 0;
        while let Some(path) = pending.pop() {
            let metadata = fs::metadata(&path).unwrap();
            let expected = if metadata.is_dir() { folders } else { files };
            assert_eq!(metadata.permissions().mode() & 0o777, expected, "{}", path.display());
            n_files += usize::from(metadata.is_file());
            if metadata.is_dir() {
                pending.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
        assert!(n_files > 6, "{n_files}");
    }
    for bad in ["755", "400", "rw"] {
        let outcome = run_line(folder.path(), &format!("train --epochs 1 --set run.file_mode={bad}"));
        assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
        assert!(outcome.stderr.contains("`run.file_mode` must be three octal digits"), "{}", outcome.stderr);
    }
}
