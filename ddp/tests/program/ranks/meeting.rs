//! Ranks that meet without MPI: signals, strangers and other jobs at the place where they meet, and launchers that are killed.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Job, ddp_train, kill_9, signal, single, start, temp_dir};

const SAVED: i32 = 85;

/// A port that is free.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// A rank of a job that has no secret, at `host`.
fn rank(rank: usize, world_size: usize, host: &str, port: u16, args: &[&str]) -> Command {
    let mut command = single(&[&["train", "-q", "--threads", "1"], args].concat());
    command.envs([("RANK", rank.to_string()), ("WORLD_SIZE", world_size.to_string())]);
    command.envs([("MASTER_ADDR", host.to_owned()), ("MASTER_PORT", port.to_string())]);
    command
}

/// Waits until something listens at `port`.
#[track_caller]
fn connect(port: u16) -> TcpStream {
    let began = Instant::now();
    loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => return stream,
            Err(error) => assert!(began.elapsed() < Duration::from_secs(30), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_signal_ends_ranks_that_wait_for_others_at_once() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    for (at, host) in [(0, "127.0.0.1"), (1, "127.0.0.1"), (1, "no-such-host.invalid")] {
        let names = ["TERM", "INT", "USR1", "HUP"];
        let job = |_: &&str| start(rank(at, 2, host, free_port(), &["--out", out.to_str().unwrap()]));
        let jobs: Vec<Job> = names.iter().map(job).collect();
        std::thread::sleep(Duration::from_millis(1500));
        let sent = Instant::now();
        for (job, name) in jobs.into_iter().zip(names) {
            signal(name, job.pid());
            let outcome = job.wait();
            assert_eq!(outcome.status.code(), Some(SAVED), "{name}: {}", outcome.stderr);
            let text = format!("stopped by SIG{name} before the first step; nothing was saved yet\n");
            assert_eq!(outcome.stderr, text, "rank {at} at {host}");
        }
        assert!(sent.elapsed() < Duration::from_secs(5), "{:?}", sent.elapsed());
    }
    assert!(!out.exists());
}

/// A cluster that has only IPv6, whose names appear later than its hosts.
#[test]
fn a_rank_0_that_cannot_resolve_its_own_name_is_found_by_any_address() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    for address in ["::1", "127.0.0.1"] {
        if TcpListener::bind((address, 0)).is_err() {
            println!("skipped: needs {address}");
            continue;
        }
        let port = free_port();
        let args = ["--out", out.to_str().unwrap(), "--overwrite", "--epochs", "1", "--device", "cpu"];
        let ranks = [(0, "late.invalid"), (1, address)].map(|(at, host)| {
            let mut command = rank(at, 2, host, port, &args);
            command.env("LOCAL_WORLD_SIZE", "1");
            start(command)
        });
        for outcome in ranks.map(Job::wait) {
            assert_eq!(outcome.status.code(), Some(0), "{address}: {}", outcome.stderr);
        }
    }
}

#[test]
fn each_rank_that_waits_says_for_which() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let args = ["--out", out.to_str().unwrap()];
    let (port, closed) = (free_port(), free_port());
    let with_rank_0 = [0, 1].map(|at| start(rank(at, 3, "127.0.0.1", port, &args)));
    let without = start(rank(1, 2, "127.0.0.1", closed, &args));
    // The first report to a log is due after 10 s.
    std::thread::sleep(Duration::from_secs(12));
    let pids = [with_rank_0[0].pid(), with_rank_0[1].pid(), without.pid()];
    pids.into_iter().for_each(|pid| signal("TERM", pid));
    let [first, second] = with_rank_0.map(|job| job.wait().stderr);
    let expected = format!("waiting for 1 of 3 ranks (rank 2) at 127.0.0.1:{port}\n");
    assert!(first.starts_with(&expected), "{first}");
    assert!(second.starts_with("[rank 1 ") && second.contains(&expected), "{second}");
    let without = without.wait().stderr;
    let expected = format!(
        "] waiting for 1 of 2 ranks (rank 0) at 127.0.0.1:{closed}: 127.0.0.1:{closed}: Connection refused"
    );
    assert!(without.contains(&expected), "{without}");
}

/// Tasks of `srun --mpi=none`, which `srun --mpi=pmix` would not start where there is no such plugin.
#[test]
fn tasks_of_srun_that_meet_without_mpi_say_how_they_continue() {
    let folder = temp_dir();
    let (out, port) = (folder.path().join("out"), free_port().to_string());
    let args = ["train", "--threads", "1", "--device", "cpu", "--epochs", "1000000", "--out"];
    let tasks = ["0", "1"].map(|rank| {
        let mut command = single(&[&args[..], &[out.to_str().unwrap()]].concat());
        command.envs([("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0"), ("SLURM_STEP_NODELIST", "h1")]);
        command.envs(["SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"].map(|name| (name, "2")));
        command.envs(["SLURM_PROCID", "SLURM_LOCALID"].map(|name| (name, rank)));
        command.envs([("SLURM_STEP_NUM_NODES", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
        start(command)
    });
    while !std::fs::read_to_string(out.join("metrics.jsonl")).is_ok_and(|text| text.contains("step")) {
        assert!(tasks[0].started.elapsed() < Duration::from_secs(60), "no step within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
    signal("TERM", tasks[0].pid());
    let [first, second] = tasks.map(Job::wait);
    assert_eq!([first.status.code(), second.status.code()], [Some(SAVED); 2], "{}", first.stderr);
    let hint = format!("hint: srun --mpi=none -n 2 ddp-train train --resume {}", out.display());
    assert!(first.stderr.contains(&hint), "{}", first.stderr);
}

/// Of the same config and folder, such as those of a second job: only they end, and say why.
#[test]
fn ranks_that_are_too_many_are_turned_away() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let port = free_port();
    let args = ["--out", out.to_str().unwrap(), "--epochs", "1"];
    let job = |at, world_size| start(rank(at, world_size, "127.0.0.1", port, &args));
    let mut jobs = vec![job(0, 3), job(1, 3)];
    std::thread::sleep(Duration::from_secs(1));
    let pid = jobs[1].pid();
    let strangers = [job(1, 3), job(2, 4), job(0, 3)].map(Job::wait);
    let why = [&format!(", pid {pid}; give each"), "turned away: WORLD_SIZE=4, expected 3", "use"];
    for (stranger, why) in strangers.iter().zip(why) {
        assert_eq!(stranger.status.code(), Some(78), "{}", stranger.stderr);
        assert!(stranger.stderr.contains(why), "{}", stranger.stderr);
    }
    jobs.push(job(2, 3));
    for outcome in jobs.into_iter().map(Job::wait) {
        assert!(outcome.status.success(), "{outcome:?}");
    }
}

/// A program that starts the ranks that `ranks` names, as launchers do, and ends with the status of the last.
fn launcher(ranks: &str, folder: &Path, port: u16) -> Command {
    let script = "import os, subprocess, sys\n\
        start = lambda k: subprocess.Popen(sys.argv[2:], env=dict(os.environ, RANK=k))\n\
        ranks = [start(k) for k in sys.argv[1]]\n\
        sys.stdin.read()\n\
        ranks += [start(k) for k in '01'[len(ranks):]]\n\
        sys.exit(max([rank.wait() for rank in ranks]))";
    let mut command = Command::new("python3");
    command.args(["-c", script, ranks, ddp_train(), "train", "-q", "--threads", "1", "--epochs", "1"]);
    command.envs([("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port.to_string())]);
    command.current_dir(folder).stdin(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// With one config and neither a folder nor a secret, what started the ranks tells the jobs apart.
#[test]
fn two_launchers_of_one_config_do_not_mix_their_ranks() {
    if Command::new("python3").args(["-c", ""]).status().is_err() {
        println!("skipped: needs python3");
        return;
    }
    let (folder, port) = (temp_dir(), free_port());
    let mut first = launcher("0", folder.path(), port).spawn().unwrap();
    drop(connect(port));
    // Its rank 0 finds the port taken.
    let second = launcher("01", folder.path(), port).stdin(Stdio::null()).spawn().unwrap();
    let second = second.wait_with_output().unwrap();
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains("turned away: another job: what started it has started a rank 0 too"), "{said}");
    assert_eq!(second.status.code(), Some(78), "{said}");
    drop(first.stdin.take());
    let first = first.wait_with_output().unwrap();
    assert!(first.status.success(), "{}", String::from_utf8(first.stderr).unwrap());
    assert_eq!(std::fs::read_dir(folder.path().join("runs")).unwrap().count(), 1);
}

/// Without a secret, and with other settings: the job that waits goes on waiting.
#[test]
fn a_rank_of_another_job_is_turned_away_and_says_why() {
    let folder = temp_dir();
    let out = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (own, other) = (out("own"), out("other"));
    let port = free_port();
    let first = start(rank(0, 2, "127.0.0.1", port, &["--out", &own, "--epochs", "2"]));
    drop(connect(port));
    let strangers = [2, 4].map(|n| start(rank(1, n, "127.0.0.1", port, &["--out", &other])));
    for (stranger, why) in
        strangers.into_iter().zip(["its secret, run id, run or --out differs", "WORLD_SIZE=4, expected 2"])
    {
        let outcome = stranger.wait();
        assert_eq!(outcome.status.code(), Some(78), "{}", outcome.stderr);
        assert!(
            outcome.stderr.starts_with("error: rank 1 was not joined by rank 0: turned away: "),
            "{}",
            outcome.stderr
        );
        assert!(outcome.stderr.contains(why), "{}", outcome.stderr);
    }
    let second = start(rank(1, 2, "127.0.0.1", port, &["--out", &own, "--epochs", "2"]));
    let outcomes = [first.wait(), second.wait()];
    assert!(outcomes.iter().all(|outcome| outcome.status.success()), "{outcomes:?}");
    let said = &outcomes[0].stderr;
    assert_eq!(said.matches("turned away ").count(), 2, "once for each: {said}");
}

/// Whoever connects from this host is known to the system, so that no secret is needed there.
#[test]
fn a_process_of_another_user_takes_no_place() {
    let own = ["--reuid", "34567", "--clear-groups", ddp_train()];
    let may = Command::new("setpriv").args(own).arg("--version").output();
    if !may.is_ok_and(|output| output.status.success()) {
        println!("skipped: needs the right to become another user (setpriv)");
        return;
    }
    let folder = temp_dir();
    let out = folder.path().join("out");
    let args = ["--out", out.to_str().unwrap(), "--epochs", "1"];
    let port = free_port();
    let ranks = [0, 1].map(|at| rank(at, 2, "127.0.0.1", port, &args));
    let mut stranger = Command::new("setpriv");
    stranger.args(own).args(ranks[1].get_args());
    stranger.envs(ranks[1].get_envs().filter_map(|(name, value)| Some((name, value?))));
    let [first, second] = ranks;
    let first = start(first);
    drop(connect(port));
    let stranger = start(stranger).wait();
    assert_eq!(stranger.status.code(), Some(78), "{stranger:?}");
    assert!(stranger.stderr.contains("turned away: a process of another user"), "{}", stranger.stderr);
    for outcome in [start(second), first].map(Job::wait) {
        assert!(outcome.status.success(), "{outcome:?}");
    }
}

/// Passes connections on to `port`, but resets those whose numbers `is_reset`.
fn proxy(port: u16, is_reset: fn(usize) -> bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for (number, client) in listener.incoming().enumerate() {
            let client = client.unwrap();
            if is_reset(number) {
                // Unread bytes make closing a reset.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            }
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
            let ends = [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
            for (mut from, mut to) in ends {
                std::thread::spawn(move || {
                    let mut bytes = [0; 4096];
                    while let Ok(n @ 1..) = from.read(&mut bytes) {
                        if to.write_all(&bytes[..n]).is_err() {
                            break;
                        }
                    }
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    own
}

#[test]
fn a_connection_that_is_reset_is_made_again() {
    let resets: [fn(usize) -> bool; 3] = [|n| n == 0, |n| n == 1, |n| n < 6 && n != 2];
    for (case, is_reset) in resets.into_iter().enumerate() {
        let folder = temp_dir();
        let out = folder.path().join("out");
        let args = ["--out", out.to_str().unwrap(), "--epochs", "1"];
        let port = free_port();
        let jobs = [
            start(rank(0, 2, "127.0.0.1", port, &args)),
            start(rank(1, 2, "127.0.0.1", proxy(port, is_reset), &args)),
        ];
        for outcome in jobs.map(Job::wait) {
            assert!(outcome.status.success(), "case {case}: {outcome:?}");
            assert!(outcome.elapsed < Duration::from_secs(60), "case {case}: {outcome:?}");
        }
    }
}

#[test]
fn strangers_keep_no_rank_out() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let args = ["--out", out.to_str().unwrap(), "--epochs", "1"];
    let port = free_port();
    let first = start(rank(0, 2, "127.0.0.1", port, &args));
    let mut junk = connect(port);
    junk.write_all(b"GET / HTTP/1.1\r\n").unwrap();
    junk.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let answer = junk.read(&mut [0]);
    assert!(
        !matches!(&answer, Ok(1..)) && !answer.is_err_and(|e| e.kind() == ErrorKind::WouldBlock),
        "not dropped"
    );
    let mut silent: Vec<TcpStream> = (0..200).map(|_| connect(port)).collect();
    silent.iter_mut().take(50).for_each(|stream| stream.write_all(b"ddpr").unwrap());
    let began = Instant::now();
    let second = start(rank(1, 2, "127.0.0.1", port, &args));
    for outcome in [first.wait(), second.wait()] {
        assert!(outcome.status.success(), "{outcome:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(60));
    drop(silent);
}

/// Starts two endless ranks in the background of `program -c script`, where `{}` stands for their command, and returns their process ids once
/// they train.
fn in_background(program: &str, script: &str, out: &Path) -> Option<(Job, Ranks)> {
    if Command::new(program).args(["-c", ""]).status().is_err() {
        println!("skipped: needs {program}");
        return None;
    }
    let mut command = Command::new(program);
    command.args([
        "-c",
        script,
        ddp_train(),
        "train",
        "-q",
        "--threads",
        "1",
        "--out",
        out.to_str().unwrap(),
    ]);
    for set in ["train.epochs=1000000", "model.hidden=[16]", "log.every_steps=1", "checkpoint.every_epochs=0"]
    {
        command.args(["--set", set]);
    }
    let port = free_port().to_string();
    command.envs([("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port)]);
    command.env("PIDS", out.with_extension("pids"));
    let job = start(command);
    let is_training = || std::fs::metadata(out.join("metrics.jsonl")).map_or(0, |file| file.len()) > 0;
    while !is_training() {
        assert!(job.started.elapsed() < Duration::from_secs(60), "no step within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pids = std::fs::read_to_string(out.with_extension("pids")).unwrap();
    Some((job, Ranks(pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect())))
}

/// Process ids of ranks that are no children of this process.
struct Ranks(Vec<u32>);

impl Ranks {
    fn are_there(&self) -> bool {
        self.0.iter().any(|pid| Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok())
    }

    #[track_caller]
    fn assert_end(&self) {
        let began = Instant::now();
        while self.are_there() {
            assert!(began.elapsed() < Duration::from_secs(10), "ranks are left");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        if self.are_there() {
            self.0.iter().for_each(|pid| kill_9(*pid));
        }
    }
}

/// Such as torchrun's agent, whatever its name is.
#[test]
fn ranks_whose_launcher_is_killed_save_and_end() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let script = "import os, subprocess, sys, time\n\
        ranks = [subprocess.Popen(sys.argv[1:], env=dict(os.environ, RANK=str(k)), start_new_session=True) for k in range(2)]\n\
        open(os.environ['PIDS'], 'w').write(' '.join(str(rank.pid) for rank in ranks))\n\
        time.sleep(1000)";
    let Some((job, ranks)) = in_background("python3", script, &out) else { return };
    kill_9(job.pid());
    ranks.assert_end();
    assert!(out.join("checkpoints/latest").exists());
    let events = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    assert!(events.trim_end().lines().last().unwrap().contains("\"event\":\"stop\""), "{events}");
}

#[test]
fn ranks_in_the_background_of_a_shell_outlive_it() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    // With output of their own, as from nohup: the job's pipes close with the shell.
    let script = "RANK=0 \"$0\" \"$@\" >/dev/null 2>&1 & echo $! >\"$PIDS\"\n\
        RANK=1 \"$0\" \"$@\" >/dev/null 2>&1 & echo $! >>\"$PIDS\"\n\
        sleep 1000 & wait $!";
    let Some((job, ranks)) = in_background("sh", script, &out) else { return };
    kill_9(job.pid());
    std::thread::sleep(Duration::from_secs(1));
    let len = || std::fs::metadata(out.join("metrics.jsonl")).unwrap().len();
    let before = len();
    std::thread::sleep(Duration::from_secs(1));
    assert!(len() > before, "they train");
    signal("TERM", ranks.0[1]);
    ranks.assert_end();
}
