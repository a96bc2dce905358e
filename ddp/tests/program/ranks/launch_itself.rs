//! `ddp-train launch` that starts the ranks itself, without mpirun: it supervises them in the same way.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ddp_comm::rank_variables;
use tempfile::TempDir;

use crate::common::{
    Job, Outcome, children, kill_9, read_weights, run, same_bits, signal, single, start, temp_dir, write,
};

/// About a second of training, with a checkpoint every 10 of 230 steps.
const RUN: &str = "[data]\ntrain = \"builtin:digits\"\n[model]\nhidden = [128, 64]\ndropout = 0.1\n\
    [checkpoint]\nevery_steps = 10\nevery_minutes = 0\nevery_epochs = 0\n\
    [train]\nepochs = 10\nglobal_batch_size = 64\n[log]\nevery_steps = 1\n[watchdog]\ntimeout_s = 1\n";

/// A run that does not end during a test.
const ENDLESS: &[&str] = &["--set", "train.epochs=1000000", "--set", "checkpoint.keep=2"];

/// Longest time from a start of the ranks to the next one, on a busy machine.
const LONGEST_LOSS: Duration = Duration::from_secs(300);

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
        single(&[&["launch"], flags, &["--"], &own[..], &["--device", "cpu"], train].concat())
    }

    /// Waits for a checkpoint after `step`, and returns the ranks' process ids.
    #[track_caller]
    fn wait_for_step(&self, job: &Job, step: u64) -> Vec<u32> {
        loop {
            let name = std::fs::read_to_string(self.out().join("checkpoints/latest")).unwrap_or_default();
            let newest = name.trim().strip_prefix("step-").map_or(0, |step| step.parse().unwrap());
            let ranks = children(job.pid());
            if newest > step && ranks.len() == 2 {
                return ranks;
            }
            assert!(job.started.elapsed() < Duration::from_secs(60), "no checkpoint within a minute");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
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

/// Without an mpirun on the PATH, and with its own ranks by name: the same bits.
#[test]
fn a_killed_rank_starts_again_and_the_run_ends_with_the_same_bits() {
    let longer = ["--quiet", "--set", "train.epochs=20", "--set", "checkpoint.keep=2"];
    let whole = Launched::new();
    let mut command = whole.command(&["-n", "2", "-v"], &longer);
    command.env("PATH", whole.folder.path());
    let why = if cfg!(feature = "mpi") { "--launcher auto found no mpirun" } else { "they need no MPI" };
    assert_has(&run(command), 0, &[&format!("the ranks are started by this program: {why}")]);

    let launched = Launched::new();
    let job = start(launched.command(&["-n", "2", "--launcher", "env"], &longer));
    let ranks = launched.wait_for_step(&job, 0);
    kill_9(ranks[1]);
    let outcome = job.wait();
    assert_has(
        &outcome,
        0,
        &["the job ended with status ", "; restart 1 of 3 from step ", " on 2 ranks of this host at once"],
    );
    assert_eq!(outcome.stderr.matches("restart ").count(), 1, "{}", outcome.stderr);
    assert_gone(&ranks);
    let weights = |run: &Launched| read_weights(&run.out().join("model.safetensors"));
    assert!(same_bits(&weights(&launched), &weights(&whole)), "{}", outcome.stderr);
}

#[test]
fn a_notice_lets_the_run_save_and_end() {
    let launched = Launched::new();
    let notice = launched.folder.path().join("notice");
    let flags = ["-n", "2", "--launcher", "env", "--notice-file", notice.to_str().unwrap()];
    // The second start finds the notice of the first one.
    for old in [None, Some("/notice` is of an earlier notice and does not count until it is written again")] {
        let job = start(launched.command(&flags, &[ENDLESS, &["--overwrite"]].concat()));
        launched.wait_for_step(&job, 0);
        std::fs::write(&notice, "").unwrap();
        let outcome = job.wait();
        assert_has(
            &outcome,
            85,
            &["received a notice (--notice-file); the ranks save a checkpoint and stop"],
        );
        assert_has(&outcome, 85, old.as_slice());
    }
}

/// In a script or container that starts something else first and then becomes `launch`.
#[test]
fn processes_that_were_there_before_the_job_are_left_alone() {
    let launched = Launched::new();
    let (of_job, pid) = (launched.command(&["-n", "1"], &[]), launched.folder.path().join("pid"));
    let mut command = Command::new("sh");
    command
        .args(["-c", "sleep 300 >/dev/null 2>&1 & echo $! >\"$PID\"; exec \"$0\" \"$@\""])
        .env("PID", &pid);
    command.arg(of_job.get_program()).args(of_job.get_args());
    command.envs(of_job.get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert_has(&run(command), 0, &[]);
    let pid: u32 = std::fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    kill_9(pid);
    assert_eq!(name, "sleep\n");
}

/// Variables of a pod of a TrainJob with one node.
#[test]
fn a_host_alone_starts_the_ranks_that_its_variables_state() {
    let launched = Launched::new();
    let mut command = launched.command(&["--launcher", "env"], &["--quiet", "--expect-world", "2"]);
    command.envs([("PET_NNODES", "1"), ("PET_NPROC_PER_NODE", "2")]);
    assert_has(&run(command), 0, &[]);
}

/// Rank 0, and then rank 1, of a run that saves no checkpoint by itself.
#[test]
fn survivors_save_what_a_lost_rank_cannot_take_with_it() {
    let (outcome, shown) = loses_no_step("2", &[], [0, 1]);
    let saved = ["rank 1 has saved the state after step ", "rank 0 has saved the state after step "];
    assert_has(&outcome, 0, &saved);
    assert!(shown.contains("lost ranks") && shown.contains("rank 1 was lost: 0 steps to repeat"), "{shown}");
}

/// With ZeRO each rank has its shard, and a copy of the one of the rank before it.
#[test]
fn survivors_save_the_shard_of_a_lost_rank_from_its_copy() {
    let sets = |more: &'static str| {
        ["comm.zero_copies=1", "comm.bucket_mib=0.01", "train.ema_decay=0.9", "train.clip_grad_norm=1", more]
    };
    for (n_ranks, more, lost) in [("2", "comm.zero=1", [0, 1]), ("3", "comm.zero=2", [2, 0])] {
        let (outcome, _) = loses_no_step(n_ranks, &sets(more), lost);
        assert_has(&outcome, 0, &["has saved the state after step "]);
    }
}

/// A rank that waits for a save under way, which waits for the lost rank, leaves both.
#[test]
fn survivors_do_not_wait_for_a_save_with_the_lost_rank() {
    let sets = ["comm.zero=1", "comm.zero_copies=1", "checkpoint.every_steps=3", "checkpoint.keep=2"];
    let (outcome, _) = loses_no_step("2", &sets, [1, 1]);
    assert_has(&outcome, 0, &["rank 0 has saved the state after step "]);
}

/// Its best evaluation is that of the run it continues, in whose folder the weights are.
#[test]
fn rank_1_has_the_best_weights_of_a_run_that_it_continues_elsewhere() {
    let before = Launched::new();
    // The loss comes long before the first evaluation.
    let long_epochs = ["--set", "train.global_batch_size=4", "--set", "train.epochs=1"];
    assert_has(&run(before.command(&["-n", "2", "--launcher", "env"], &long_epochs)), 0, &[]);
    let launched = Launched::new();
    let newest = std::fs::read_to_string(before.out().join("checkpoints/latest")).unwrap();
    let from = before.out().join("checkpoints").join(newest.trim());
    let sets = "train.global_batch_size=4 train.epochs=4 checkpoint.every_steps=0";
    let sets = sets.split(' ').flat_map(|set| ["--set", set]);
    let train: Vec<&str> = sets.chain(["--resume", from.to_str().unwrap()]).collect();
    let job = start(launched.command(&["-n", "2", "--launcher", "env"], &train));
    let metrics = || std::fs::read_to_string(launched.out().join("metrics.jsonl")).unwrap_or_default();
    while metrics().matches(r#""event":"step""#).count() < 10 || children(job.pid()).len() < 2 {
        assert!(job.started.elapsed() < LONGEST_LOSS, "no step");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut ranks = children(job.pid());
    ranks.sort_unstable();
    kill_9(ranks[0]);
    let outcome = job.wait();
    assert_has(&outcome, 0, &["rank 1 has saved the state after step "]);
    assert!(!outcome.stderr.contains("the weights of the best evaluation were lost"), "{}", outcome.stderr);
}

/// The rank that completes the checkpoint is frozen meanwhile, for longer than a rank waits for a report. The model is as large as one that
/// takes a moment to write.
#[test]
fn a_rank_that_has_saved_its_share_waits_for_the_others() {
    const FROZEN: Duration = Duration::from_secs(18);
    let is_frozen_in_time = (0..8).any(|_| {
        let launched = Launched::new();
        let sets =
            "model.hidden=[1600,1600] comm.zero=1 comm.zero_copies=1 train.epochs=6 checkpoint.every_steps=0";
        let sets: Vec<&str> = sets.split(' ').flat_map(|set| ["--set", set]).collect();
        let job = start(launched.command(&["-n", "3", "--launcher", "env"], &sets));
        let metrics = || std::fs::read_to_string(launched.out().join("metrics.jsonl")).unwrap_or_default();
        while !metrics().contains(r#""event":"step","step":10,"#) || children(job.pid()).len() < 3 {
            assert!(job.started.elapsed() < LONGEST_LOSS, "no step");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut ranks = children(job.pid());
        ranks.sort_unstable();
        kill_9(ranks[2]);
        let is_saving =
            |entry: std::fs::DirEntry| entry.file_name().to_string_lossy().ends_with("-4294967296.tmp");
        let saves = || {
            std::fs::read_dir(launched.out().join("checkpoints"))
                .is_ok_and(|mut all| all.any(|entry| entry.is_ok_and(is_saving)))
        };
        let killed = Instant::now();
        while !saves() && killed.elapsed() < Duration::from_secs(10) {
            std::thread::yield_now();
        }
        signal("STOP", ranks[0]);
        let is_frozen_in_time = saves();
        if is_frozen_in_time {
            std::thread::sleep(FROZEN);
        }
        signal("CONT", ranks[0]);
        let outcome = job.wait();
        if is_frozen_in_time {
            assert_has(&outcome, 0, &["rank 0 has saved the state after step ", "restart 1 of "]);
        }
        is_frozen_in_time
    });
    assert!(is_frozen_in_time, "the save has always ended before");
}

/// Takes two ranks, one after the other, from a run that saves no checkpoint by itself unless `sets` say so. It repeats no step, and ends with the bits of a
/// run that nobody disturbs. Returns its outcome, and `runs show` of it.
fn loses_no_step(n_ranks: &str, sets: &[&str], losses: [usize; 2]) -> (Outcome, String) {
    let sets = ["train.epochs=60", "checkpoint.every_steps=0"].iter().chain(sets);
    let rarely: Vec<&str> = std::iter::once("--quiet").chain(sets.flat_map(|set| ["--set", set])).collect();
    let whole = Launched::new();
    assert_has(&run(whole.command(&["-n", n_ranks, "--launcher", "env"], &rarely)), 0, &[]);

    let launched = Launched::new();
    let event_of = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap();
    let metrics = || std::fs::read_to_string(launched.out().join("metrics.jsonl")).unwrap_or_default();
    let last_step = || {
        let steps = |line: &str| line.starts_with(r#"{"event":"step""#) && line.ends_with('}');
        metrics().lines().rfind(|line| steps(line)).map_or(0, |line| event_of(line)["step"].as_u64().unwrap())
    };
    let job = start(launched.command(&["-n", n_ranks, "--launcher", "env"], &rarely));
    let mut begin = 0;
    for lost in losses {
        let before = children(job.pid());
        let first = Instant::now();
        while last_step() <= begin + 30 || children(job.pid()).len().to_string() != n_ranks {
            assert!(first.elapsed() < LONGEST_LOSS, "no step: {before:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut ranks = children(job.pid());
        // The oldest process is rank 0.
        ranks.sort_unstable();
        kill_9(ranks[lost]);
        let resumed = format!(r#""lost":{{"rank":{lost},"steps":0,"#);
        while !metrics().contains(&resumed) {
            assert!(first.elapsed() < LONGEST_LOSS, "the others save: {}", metrics());
            std::thread::sleep(Duration::from_millis(1));
        }
        begin = last_step();
    }
    let outcome = job.wait();
    assert_has(&outcome, 0, &[]);
    let weights = |run: &Launched| read_weights(&run.out().join("model.safetensors"));
    assert!(same_bits(&weights(&launched), &weights(&whole)), "{}", outcome.stderr);
    let shown = run(single(&["runs", "show", launched.out().to_str().unwrap()])).stdout;
    (outcome, shown)
}

/// Two ranks keep the best weights, since one may be lost. The others hold the rest of the state. On a busy machine `launch` may end the
/// rank that is left before it has heard of the losses.
#[test]
fn ranks_0_and_1_take_the_best_weights_with_them_and_no_step() {
    let told = (0..4).any(|_| {
        let launched = Launched::new();
        let sets = ["--set", "train.epochs=60", "--set", "checkpoint.every_steps=0"];
        let job = start(launched.command(&["-n", "3", "--launcher", "env"], &sets));
        let events = || std::fs::read_to_string(launched.out().join("metrics.jsonl")).unwrap_or_default();
        while events().matches(r#""event":"epoch""#).count() < 2 || children(job.pid()).len() < 3 {
            assert!(job.started.elapsed() < Duration::from_secs(60), "no epoch");
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut ranks = children(job.pid());
        ranks.sort_unstable();
        ranks[..2].iter().for_each(|rank| kill_9(*rank));
        let ended = job.wait();
        assert_has(&ended, 0, &[]);
        let has_saved = ended.stderr.contains("rank 2 has saved the state after step ");
        let is_told = ended.stderr.contains("the weights of the best evaluation were lost with");
        let shown = run(single(&["runs", "show", launched.out().to_str().unwrap()])).stdout;
        assert!(!has_saved || shown.contains("was lost: 0 steps to repeat"), "{shown}");
        // At the best step itself there is nothing to miss.
        has_saved && is_told
    });
    assert!(told, "rank 2 never saved and told it");
}

/// The pods of a Kubeflow TrainJob each start their own ranks, and none is a launcher of the others.
#[test]
fn each_host_starts_its_ranks() {
    let whole = Launched::new();
    assert_has(&run(whole.command(&["-n", "2", "--launcher", "env"], &["--quiet"])), 0, &[]);

    let launched = Launched::new();
    let free =
        rank_variables(1).unwrap()[0].iter().find(|variable| variable.0 == "MASTER_PORT").unwrap().1.clone();
    let host = |rank: &str, train: &[&str]| {
        let mut command = launched.command(&[], &[&["--quiet"], train].concat());
        command.envs([("PET_NNODES", "2"), ("PET_NPROC_PER_NODE", "1"), ("PET_MASTER_ADDR", "127.0.0.1")]);
        command.envs([("PET_NODE_RANK", rank), ("PET_MASTER_PORT", &free)]);
        command
    };
    assert_has(&run(host("1", &[])), 2, &["PET_NNODES=2: 2 hosts train one run", "hint: add both"]);
    assert_has(&run(host("2", &["--resume", "auto"])), 78, &["PET_NODE_RANK=2: expected "]);
    let mut alone = single(&["train", "--out", launched.out().to_str().unwrap()]);
    alone.envs(host("0", &[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
    assert_has(&run(alone), 78, &["PET_NNODES=2: expected RANK", "hint: start `ddp-train launch -- ...`"]);
    assert!(!launched.out().exists());

    let jobs = ["0", "1"].map(|rank| start(host(rank, &["--resume", "auto"])));
    jobs.into_iter().for_each(|job| assert_has(&job.wait(), 0, &[]));
    let weights = |run: &Launched| read_weights(&run.out().join("model.safetensors"));
    assert!(same_bits(&weights(&launched), &weights(&whole)));

    // The same job once more, with more to do: its earlier end says nothing.
    let longer = ["--resume", "auto", "--set", "train.epochs=20", "--set", "data.train=missing.csv"];
    let [first, second] = ["0", "1"].map(|rank| start(host(rank, &longer)));
    assert_has(&first.wait(), 2, &["missing.csv"]);
    assert!(!second.wait().status.success());
}

#[test]
fn signals_to_the_supervisor_save_the_run_or_end_it() {
    for (name, status, part) in [
        ("TERM", 85, "received SIGTERM; the ranks save a checkpoint and stop"),
        ("QUIT", 130, "received SIGQUIT: ending the ranks at once, without saving"),
    ] {
        let launched = Launched::new();
        let job = start(launched.command(&["-n", "2", "--launcher", "env"], ENDLESS));
        let ranks = launched.wait_for_step(&job, 0);
        signal(name, job.pid());
        let outcome = job.wait();
        assert_has(&outcome, status, &[part]);
        assert!(!outcome.stderr.contains("restart "), "{}", outcome.stderr);
        if status == 85 {
            let hint = format!(
                "hint: ddp-train launch -n 2 --launcher env -- --resume {}",
                launched.out().display()
            );
            assert_has(&outcome, status, &[&hint]);
        }
        assert_gone(&ranks);
    }
}

/// Ranks whose supervisor is killed save and end.
#[test]
fn ranks_do_not_outlive_their_supervisor() {
    let launched = Launched::new();
    let job = start(launched.command(&["-n", "2", "--launcher", "env"], ENDLESS));
    let ranks = launched.wait_for_step(&job, 0);
    kill_9(job.pid());
    let killed = Instant::now();
    let is_there = |pid: &u32| Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok();
    while ranks.iter().any(is_there) {
        assert!(killed.elapsed() < Duration::from_secs(10), "the ranks still run");
        std::thread::sleep(Duration::from_millis(5));
    }
    let events = std::fs::read_to_string(launched.out().join("metrics.jsonl")).unwrap();
    assert!(events.lines().last().unwrap().contains("\"stop"), "{events}");
}

#[test]
fn a_run_that_fails_by_itself_is_not_repeated() {
    let launched = Launched::new();
    let flags = ["-n", "2", "--launcher", "env"];
    let outcome = run(launched.command(&flags, &["--set", "optimizer.lr=1e30", "--quiet"]));
    assert_has(&outcome, 1, &["error: loss is "]);
    assert_eq!(outcome.stderr.matches("error: ").count(), 1, "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("restart"), "{}", outcome.stderr);
    let hosts = ["-n", "2", "--launcher", "env", "--hosts", "a:1,b:1"];
    let outcome = run(Launched::new().command(&hosts, &[]));
    assert_has(&outcome, 2, &["--launcher env starts ranks on this host only", "hint: "]);
}
