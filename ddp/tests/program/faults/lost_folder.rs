//! The run folder: lost during training, leased by another host, left behind by a killed process, and its permissions.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::common::{Job, run_line, run_line_ok, single, start, temp_dir};
use crate::common::{children, ranks, write};

/// A run in the folder `out` that ends only when it is stopped.
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
                // Written in place; an empty lock file counts as released.
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
    // Once the lease is no longer renewed, another run takes over the folder after a few seconds.
    let since = Instant::now();
    let outcome = run_line_ok(folder.path(), "train --epochs 2 --out out --resume auto");
    assert!(since.elapsed() > Duration::from_secs(5));
    let warning = "took over the output folder `out` from process 7 on node2";
    assert!(outcome.stderr.contains(warning), "{}", outcome.stderr);
}

/// Adds the seconds in the file `CLOCK_OFFSET` to the system's time.
const SET_CLOCK: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static long offset(void) {
    char text[32] = {0};
    const char *path = getenv("CLOCK_OFFSET");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    long n = read(file, text, sizeof text - 1);
    close(file);
    return n > 0 ? atol(text) : 0;
}
int clock_gettime(clockid_t clock, struct timespec *time) {
    int status = syscall(SYS_clock_gettime, clock, time);
    if (status == 0 && clock == CLOCK_REALTIME) time->tv_sec += offset();
    return status;
}
int gettimeofday(struct timeval *time, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"#;

/// A host's clock is set forward by more than a year while ranks train, watch each other and hold their folder.
#[test]
fn a_clock_that_is_set_ends_nothing() {
    let folder = temp_dir();
    let source = write(folder.path(), "clock.c", SET_CLOCK);
    let (library, offset) = (folder.path().join("clock.so"), folder.path().join("offset"));
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    if !compiled.is_ok_and(|status| status.success()) {
        println!("skipped: needs a C compiler, `cc`");
        return;
    }
    let line = "train --out out --epochs 1000000 --device cpu --threads 1 --quiet --set log.every_steps=1 \
                --set watchdog.timeout_s=1 --set watchdog.interval_s=0.1 --set model.hidden=[16]";
    let mut command = ranks(2, &line.split_whitespace().collect::<Vec<_>>());
    command.current_dir(folder.path()).env("LD_PRELOAD", &library).env("CLOCK_OFFSET", &offset);
    let job = start(command);
    let (metrics, lock) = (folder.path().join("out/metrics.jsonl"), folder.path().join("out/.lock"));
    let n_bytes = || fs::metadata(&metrics).map_or(0, |data| data.len());
    let year = |lease: &str| lease.split_once("renewed ").map(|(_, time)| time[..4].to_owned());
    let mut years = Vec::new();
    for days in [0, 800, -800] {
        // Replaced atomically, so that a reader sees either the old or the new number.
        fs::write(folder.path().join("next"), (days * 86_400).to_string()).unwrap();
        fs::rename(folder.path().join("next"), &offset).unwrap();
        let before = n_bytes();
        // Longer than the watchdog's timeout, and until a renewed lease contains the new year.
        let since = Instant::now();
        let own = loop {
            let own = year(&fs::read_to_string(&lock).unwrap_or_default());
            let is_new = own.as_ref().is_some_and(|own| !years.contains(own));
            if is_new && n_bytes() > before && since.elapsed() > Duration::from_millis(1500) {
                break own.unwrap();
            }
            assert!(since.elapsed() < Duration::from_secs(60), "no step and no lease for a minute: {own:?}");
            thread::sleep(Duration::from_millis(5));
        };
        years.push(own);
    }
    let other = run_line(folder.path(), "train --out out --epochs 1 --overwrite --quiet");
    assert!(other.stderr.contains("`out` is in use by process "), "{}", other.stderr);
    let rank = children(job.pid())[0];
    assert!(Command::new("sh").args(["-c", &format!("kill -USR1 {rank}")]).status().unwrap().success());
    let outcome = job.wait();
    assert_eq!(outcome.status.code(), Some(85), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("error: "), "{}", outcome.stderr);
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
