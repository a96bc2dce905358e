//! `ddp-train launch`: lost ranks are restarted and end with the same weights, a run that fails by itself is not restarted, and
//! no process is left.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{
    Job, Outcome, children, kill_9, ranks, read_weights, run, run_line, run_ok, same_bits, signal, single,
    start, temp_dir, write,
};

/// About two seconds of training, with a checkpoint every 10 of 230 steps.
const RUN: &str = "[data]\ntrain = \"builtin:digits\"\n[model]\nhidden = [128, 64]\ndropout = 0.1\n\
    [checkpoint]\nevery_steps = 10\nevery_minutes = 0\nevery_epochs = 0\n\
    [train]\nepochs = 10\nglobal_batch_size = 64\n[log]\nevery_steps = 1\n[watchdog]\ntimeout_s = 1\n";

/// A run that does not end during a test.
const ENDLESS: &[&str] = &["--set", "train.epochs=1000000", "--set", "checkpoint.keep=2"];

/// A run in its own folder, under the supervisor.
struct Launched {
    folder: TempDir,
    config: PathBuf,
}

impl Launched {
    fn new() -> Self {
        let folder = temp_dir();
        let config = write(folder.path(), "run.toml", RUN);
        Launched { folder, config }
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// `launch FLAGS -- run.toml --out OUT TRAIN`
    fn command(&self, flags: &[&str], train: &[&str]) -> Command {
        let out = self.out();
        let own = [self.config.to_str().unwrap(), "--out", out.to_str().unwrap(), "--threads", "1"];
        single(&[&["launch"], flags, &["--"], &own[..], train].concat())
    }

    /// Step of the newest checkpoint.
    fn newest_step(&self) -> u64 {
        let name = std::fs::read_to_string(self.out().join("checkpoints/latest")).unwrap_or_default();
        name.trim().strip_prefix("step-").map_or(0, |step| step.parse().unwrap())
    }

    /// Waits for a checkpoint after `step`.
    #[track_caller]
    fn wait_for_step(&self, job: &Job, step: u64) -> u64 {
        until(job, "checkpoint", || Some(self.newest_step()).filter(|newest| *newest > step))
    }

    fn done(&self) -> Value {
        serde_json::from_str(&std::fs::read_to_string(self.out().join("done.json")).unwrap()).unwrap()
    }
}

/// Polls until there is an answer.
#[track_caller]
fn until<T>(job: &Job, what: &str, ask: impl Fn() -> Option<T>) -> T {
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(job.started.elapsed() < Duration::from_secs(60), "no {what} within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Process ids of the launcher and its ranks.
#[track_caller]
fn processes(job: &Job, n_ranks: usize) -> (u32, Vec<u32>) {
    until(job, "ranks", || {
        let launcher = *children(job.pid()).first()?;
        let mut ranks = children(launcher);
        ranks.sort_unstable();
        (ranks.len() == n_ranks).then_some((launcher, ranks))
    })
}

#[track_caller]
fn assert_gone(pids: &[u32]) {
    let is_there = |pid: &&u32| Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok();
    let left: Vec<_> = pids.iter().filter(is_there).collect();
    assert!(left.is_empty(), "{left:?} still run");
}

#[track_caller]
fn assert_has(outcome: &Outcome, status: i32, parts: &[&str]) {
    assert_eq!(outcome.status.code(), Some(status), "{}", outcome.stderr);
    for part in parts {
        assert!(outcome.stderr.contains(part), "no {part:?} in:\n{}", outcome.stderr);
    }
}

/// Addresses, other than loopback, on which the processes listen for TCP connections.
fn open_listeners(pids: &[u32]) -> Vec<String> {
    let mut sockets = BTreeSet::new();
    for pid in pids {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let links = files.filter_map(|file| file.path().read_link().ok());
        sockets.extend(
            links.filter_map(|link| {
                Some(link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
            }),
        );
    }
    let tables =
        ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| std::fs::read_to_string(table).unwrap_or_default());
    let lines = tables.iter().flat_map(|table| table.lines().skip(1));
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let is_open = |words: &Vec<&str>| {
        let is_loopback =
            ["0100007F", "00000000000000000000000001000000"].contains(&words[1].split(':').next().unwrap());
        words[3] == "0A" && !is_loopback && sockets.contains(words[9])
    };
    words.filter(is_open).map(|words| words[1].to_owned()).collect()
}

#[test]
fn lost_ranks_and_a_lost_launcher_start_again_and_end_with_the_same_bits() {
    let whole = Launched::new();
    let out = whole.out();
    let config = whole.config.to_str().unwrap();
    // Long enough that the run is not complete before the ranks notice the loss of mpirun.
    let longer = ["--quiet", "--set", "train.epochs=40", "--set", "checkpoint.keep=2"];
    let own = ["train", config, "--out", out.to_str().unwrap(), "--threads", "1"];
    let train = ranks(2, &[&own[..], &longer].concat());
    run_ok(train);

    let launched = Launched::new();
    let job = start(launched.command(&["-n", "2"], &longer));
    let step = launched.wait_for_step(&job, 0);
    let (_, first) = processes(&job, 2);
    assert_eq!(open_listeners(&first), [""; 0], "ranks of one host need no network");
    kill_9(first[1]);
    launched.wait_for_step(&job, step);
    let second = until(&job, "restart", || {
        let ranks = children(*children(job.pid()).first()?);
        (ranks.len() == 2 && !ranks.contains(&first[0])).then_some(ranks)
    });
    let step = launched.newest_step();
    launched.wait_for_step(&job, step);
    kill_9(children(job.pid())[0]);
    let outcome = job.wait();
    let of_rank = "(a rank was lost)";
    assert_has(
        &outcome,
        0,
        &[
            of_rank,
            "restart 1 of 3 from step ",
            " on 2 ranks of this host at once",
            // A rank may report the loss of the other one before it ends.
            "mpirun was ended by SIGKILL; ",
            "; restart 2 of 3 from step ",
        ],
    );
    assert_gone(&[first, second].concat());
    let weights = |run: &Launched| read_weights(&run.out().join("model.safetensors"));
    assert!(same_bits(&weights(&launched), &weights(&whole)), "{}", outcome.stderr);
    assert_eq!(launched.done()["step"], whole.done()["step"]);
    assert!(launched.done()["job_id"].is_string() && whole.done()["job_id"].is_null());
}

#[test]
fn a_launcher_that_hangs_is_ended() {
    let launched = Launched::new();
    let job = start(launched.command(&["-n", "2"], &["--quiet"]));
    launched.wait_for_step(&job, 0);
    let (launcher, ranks) = processes(&job, 2);
    signal("STOP", launcher);
    ranks.iter().for_each(|rank| kill_9(*rank));
    let outcome = job.wait();
    assert_has(
        &outcome,
        0,
        &["mpirun did not end after its ranks and was killed", "; restart 1 of 3 from step "],
    );
    assert_gone(&[&ranks[..], &[launcher]].concat());
    assert_eq!(launched.done()["step"], 230);
}

#[test]
fn a_job_without_progress_is_given_up() {
    let launched = Launched::new();
    let no_checkpoints = ["--set", "checkpoint.every_steps=0", "--set", "watchdog.save_s=0", "--quiet"];
    let no_checkpoints = [ENDLESS, &no_checkpoints].concat();
    let job = start(launched.command(&["-n", "2"], &no_checkpoints));
    let metrics = launched.out().join("metrics.jsonl");
    let mut seen = Vec::new();
    for _ in 0..2 {
        let ranks = until(&job, "step", || {
            let ranks = children(*children(job.pid()).first()?);
            let is_new = ranks.len() == 2 && ranks.iter().all(|rank| !seen.contains(rank));
            (is_new && std::fs::metadata(&metrics).is_ok_and(|data| data.len() > 0)).then_some(ranks)
        });
        // The second attempt has deleted the metrics of the first one.
        kill_9(ranks[0]);
        seen.extend(ranks);
        until(&job, "end", || {
            seen.iter().all(|pid| !Path::new(&format!("/proc/{pid}/fd/0")).exists()).then_some(())
        });
    }
    let outcome = job.wait();
    assert_has(
        &outcome,
        1,
        &[
            "restart 1 of 3 from the beginning on 2 ranks",
            "gave up after restart 1",
            "there is no checkpoint\nhint: ",
        ],
    );
    assert_gone(&seen);
}

#[test]
fn a_run_that_fails_by_itself_is_not_repeated() {
    let launched = Launched::new();
    let outcome = run(launched.command(&["-n", "1"], &["--set", "optimizer.lr=1e30", "--quiet"]));
    assert_has(&outcome, 1, &["error: loss is "]);
    assert!(!outcome.stderr.contains("restart"), "{}", outcome.stderr);
    assert!(!launched.out().join("done.json").exists());
    let again = run(launched.command(&["-n", "1"], &[]));
    assert_has(&again, 2, &["already holds a run"]);

    let folder = temp_dir();
    for (line, status, part) in [
        ("launch -- missing.toml", 2, "`missing.toml` does not exist"),
        ("launch -- --resume auto", 2, "--out DIR"),
        ("launch -- eval --checkpoint x", 2, "got `eval` after --"),
        ("launch -n 5 --hosts a:2,b:2 --", 2, "the hosts have 4 slots"),
        ("launch -n 2 --hosts a:1,b:1 --min-hosts 3 --", 2, "--hosts names only 2"),
        ("train --expect-world 2", 78, "--expect-world 2: this world has 1 rank"),
    ] {
        assert_has(&run_line(folder.path(), line), status, &[part, "hint: "]);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
}

/// A folder with an `mpirun` that kills itself the first `n_kills` times it is started.
fn dying_mpirun(folder: &Path, n_kills: usize) -> PathBuf {
    let bin = folder.join("bin");
    std::fs::create_dir(&bin).unwrap();
    let real = std::env::split_paths(&std::env::var_os("PATH").unwrap())
        .map(|folder| folder.join("mpirun"))
        .find(|path| path.is_file());
    let (real, count) = (real.unwrap(), folder.join("count"));
    let script = format!(
        "#!/bin/sh\necho >>'{count}'\nif [ $(wc -l <'{count}') -le {n_kills} ]; then kill -KILL $$; fi\nexec '{real}' \"$@\"\n",
        count = count.display(),
        real = real.display()
    );
    let program = write(&bin, "mpirun", &script);
    std::fs::set_permissions(program, std::fs::Permissions::from_mode(0o755)).unwrap();
    bin
}

#[test]
fn an_mpirun_that_is_killed_before_it_names_itself_is_asked_again() {
    for (n_kills, status, part) in [
        (2, 0, ""),
        (9999, 75, "error: `mpirun --version` was started 3 times and always ended by SIGKILL\nhint: "),
    ] {
        let launched = Launched::new();
        let bin = dying_mpirun(launched.folder.path(), n_kills);
        let path = std::env::join_paths(
            [bin].into_iter().chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
        );
        let mut command = launched.command(&["-n", "2"], &["--set", "train.epochs=1"]);
        command.env("PATH", path.unwrap());
        let outcome = run(command);
        assert_has(&outcome, status, &[part]);
    }
}

/// Without `--out` the supervisor chooses the folder, so that a restart finds it.
#[test]
fn a_rank_alone_needs_no_launcher() {
    let launched = Launched::new();
    let config = launched.config.to_str().unwrap();
    let mut command = single(&["launch", "--", "train", config, "--device", "cpu", "--quiet"]);
    command.current_dir(launched.folder.path());
    let job = start(command);
    let out = until(&job, "run", || {
        let mut runs = std::fs::read_dir(launched.folder.path().join("runs")).ok()?;
        runs.next().map(|run| run.unwrap().path())
    });
    until(&job, "checkpoint", || out.join("checkpoints/latest").exists().then_some(()));
    kill_9(children(job.pid())[0]);
    let outcome = job.wait();
    assert_has(&outcome, 0, &["the rank was ended by SIGKILL; restart 1 of 3 from step "]);
    assert!(out.join("done.json").exists(), "{}", outcome.stderr);
    assert_eq!(out.parent().unwrap().read_dir().unwrap().count(), 1, "one folder for both attempts");
}

/// A single rank has no watchdog, and neither have ranks that are still starting.
#[test]
fn a_frozen_rank_is_ended() {
    let launched = Launched::new();
    let job = start(launched.command(&["-n", "1"], &["--device", "cpu", "--quiet"]));
    launched.wait_for_step(&job, 0);
    let frozen = children(job.pid())[0];
    signal("STOP", frozen);
    let outcome = job.wait();
    assert_has(
        &outcome,
        0,
        &["the rank was killed, since a process of the job was frozen (SIGSTOP); restart 1 of 3 from step "],
    );
    assert_gone(&[frozen]);
    assert_eq!(launched.done()["step"], 230);
}

#[test]
fn a_signal_stops_the_ranks_and_a_later_launch_continues() {
    let launched = Launched::new();
    let job = start(launched.command(&["-n", "2"], ENDLESS));
    launched.wait_for_step(&job, 0);
    let (launcher, ranks) = processes(&job, 2);
    signal("TERM", job.pid());
    let outcome = job.wait();
    assert_has(&outcome, 85, &["received SIGTERM; the ranks save a checkpoint and stop"]);
    for word in ["restart ", "Forwarding"] {
        assert!(!outcome.stderr.contains(word), "{}", outcome.stderr);
    }
    let hint = format!("hint: ddp-train launch -n 2 -- --resume {}", launched.out().display());
    assert!(outcome.stderr.contains(&hint), "{}", outcome.stderr);
    assert_gone(&[&ranks[..], &[launcher]].concat());
    let step = launched.newest_step();
    let longer = format!("train.steps={}", step + 5);
    let continued = launched.command(&["-n", "2"], &["--resume", "auto", "--set", &longer]);
    assert_has(&run(continued), 0, &[&format!("resuming after step {step} from")]);
    assert_eq!(launched.done()["step"], step + 5);
}

#[test]
fn each_signal_to_the_supervisor_saves_the_run() {
    for name in ["USR2", "XCPU", "PWR"] {
        let launched = Launched::new();
        let job = start(launched.command(&["-n", "2"], ENDLESS));
        launched.wait_for_step(&job, 0);
        let (launcher, ranks) = processes(&job, 2);
        signal(name, job.pid());
        assert_has(&job.wait(), 85, &[&format!("received SIG{name}; the ranks save a checkpoint and stop")]);
        assert_gone(&[&ranks[..], &[launcher]].concat());
    }
}

#[test]
fn sigquit_ends_all_at_once() {
    let launched = Launched::new();
    let job = start(launched.command(&["-n", "2"], ENDLESS));
    launched.wait_for_step(&job, 0);
    let (launcher, ranks) = processes(&job, 2);
    signal("QUIT", job.pid());
    assert_has(&job.wait(), 130, &["received SIGQUIT: ending the ranks at once, without saving"]);
    assert_gone(&[&ranks[..], &[launcher]].concat());
}

#[test]
fn a_second_interrupt_ends_all_at_once() {
    let launched = Launched::new();
    let job =
        start(launched.command(&["-n", "2"], &[ENDLESS, &["--set", "model.hidden=[2000,2000]"]].concat()));
    let (launcher, ranks) = processes(&job, 2);
    until(&job, "start", || launched.out().join("metrics.jsonl").exists().then_some(()));
    signal("INT", job.pid());
    std::thread::sleep(Duration::from_millis(50));
    signal("INT", job.pid());
    let asked = Instant::now();
    let outcome = job.wait();
    assert!(matches!(outcome.status.code(), Some(130 | 85)), "{}", outcome.stderr);
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    assert_gone(&[&ranks[..], &[launcher]].concat());
}

/// Two hosts that are both this machine, behind an agent that fails to reach the second one while the file `lost` is there. Each has its
/// own folder for temporary files, because Open MPI's daemons disturb each other if they create theirs in the same folder.
fn on_two_hosts(launched: &Launched, flags: &[&str], train: &[&str]) -> Command {
    let agent = "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1; shift\n\
        if [ \"$host\" = hostb ] && [ -e \"$(dirname \"$0\")/lost\" ]; then exit 255; fi\n\
        export TMPDIR=\"$(dirname \"$0\")/$host\"; mkdir -p \"$TMPDIR\"; exec sh -c \"$*\"\n";
    let agent = write(launched.folder.path(), "agent.sh", agent);
    std::fs::set_permissions(&agent, std::fs::Permissions::from_mode(0o755)).unwrap();
    let hosts = ["-n", "auto", "--hosts", "hosta:1,hostb:1"];
    let mut command = launched.command(&[&hosts[..], flags].concat(), train);
    for (name, value) in [("OMPI_MCA_plm_rsh_agent", agent.to_str().unwrap()), ("OMPI_MCA_plm", "rsh")] {
        command.env(name, value);
    }
    command
}

/// Takes the second host from a job: its daemon, and with it all ranks there.
fn lose_second_host(launched: &Launched, job: &Job) {
    write(launched.folder.path(), "lost", "");
    let below = |pids: Vec<u32>| pids.into_iter().flat_map(children).collect::<Vec<_>>();
    let mut level = children(job.pid());
    let is_of_b = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        // The number of a daemon: mpirun itself is 0, and the first host is 1.
        String::from_utf8_lossy(&line).replace('\0', " ").contains("ess_base_vpid 2 ")
    };
    let mut of_b = Vec::new();
    while !level.is_empty() {
        of_b.extend(level.iter().copied().filter(is_of_b));
        level = below(level);
    }
    assert!(!of_b.is_empty(), "no daemon of the second host");
    of_b.into_iter().for_each(kill_9);
}

#[test]
fn the_hosts_that_are_left_continue() {
    let launched = Launched::new();
    // Long enough that the run is not complete before the daemon is found.
    let train = ["-v", "--set", "train.epochs=100"];
    let job = start(on_two_hosts(&launched, &["--min-hosts", "1"], &train));
    launched.wait_for_step(&job, 0);
    lose_second_host(&launched, &job);
    let outcome = job.wait();
    assert_has(
        &outcome,
        0,
        &["no answer from hostb", "restart 1 of 3 from step ", " on 1 rank of hosta at once"],
    );
    assert_has(&outcome, 0, &["2 ranks before, 1 now, still 64 rows per step", "2 micro-batches per rank"]);
    assert_eq!(launched.done()["step"], 2300);
}

/// A pod that comes back is there some time after the loss of the one before.
#[test]
fn hosts_are_waited_for() {
    let launched = Launched::new();
    write(launched.folder.path(), "lost", "");
    let waits = "1 of 2 hosts answer, 2 are needed; waiting up to ";
    let outcome = run(on_two_hosts(&launched, &["--host-wait", "1"], &[]));
    assert_has(&outcome, 75, &[waits, "1s\n", "no answer from hostb\nhint: "]);
    let job = start(on_two_hosts(&launched, &["--host-wait", "60"], ENDLESS));
    std::thread::sleep(Duration::from_secs(3));
    std::fs::remove_file(launched.folder.path().join("lost")).unwrap();
    launched.wait_for_step(&job, 0);
    lose_second_host(&launched, &job);
    std::thread::sleep(Duration::from_secs(3));
    signal("TERM", job.pid());
    let outcome = job.wait();
    // A restart is announced when there are hosts for it.
    assert_has(&outcome, 85, &[waits, "stopped by SIGTERM; the newest checkpoint is of step "]);
    assert_eq!(outcome.stderr.matches(waits).count(), 2, "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("restart "), "{}", outcome.stderr);
}

/// The loss of a host is over once the job runs on the others.
#[test]
fn a_run_that_is_stopped_on_the_hosts_that_are_left_ends() {
    let launched = Launched::new();
    write(launched.folder.path(), "lost", "");
    let job = start(on_two_hosts(&launched, &["--min-hosts", "1"], ENDLESS));
    launched.wait_for_step(&job, 0);
    let is_mpirun = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "mpirun")
    };
    signal("USR1", children(job.pid()).into_iter().find(is_mpirun).expect("an mpirun"));
    let outcome = job.wait();
    assert_has(&outcome, 85, &["no answer from hostb"]);
    assert!(!outcome.stderr.contains("restart "), "{}", outcome.stderr);
}
