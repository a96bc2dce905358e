//! Ranks without MPI, which join by the variables that torchrun sets: they train, end and report as under mpirun.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use ddp_comm::rank_variables;

use crate::common::{
    Job, Outcome, ddp_train, kill_9, largest_gap, read_weights, run, run_ok, single, start, temp_dir,
};
use crate::virtual_gpu::command_under_virtual_gpus;

/// Starts the program as `n` ranks of this host.
fn environment(n: usize, args: &[&str]) -> Vec<Job> {
    let job = |variables: Vec<(&'static str, String)>| {
        let mut command = single(args);
        command.envs(variables);
        start(command)
    };
    rank_variables(n).unwrap().into_iter().map(job).collect()
}

fn wait(jobs: Vec<Job>) -> Vec<Outcome> {
    jobs.into_iter().map(Job::wait).collect()
}

fn codes(outcomes: &[Outcome]) -> Vec<Option<i32>> {
    outcomes.iter().map(|outcome| outcome.status.code()).collect()
}

fn stderr(outcomes: &[Outcome]) -> String {
    outcomes.iter().map(|outcome| &*outcome.stderr).collect()
}

/// Arguments of a run that does not end during a test, which is past its first step when this returns.
fn endless(out: &Path, n: usize) -> Vec<Job> {
    let mut args = vec!["train", "--out", out.to_str().unwrap(), "--quiet", "--threads", "1"];
    let sets =
        ["train.epochs=1000000", "model.hidden=[16]", "log.every_steps=1", "checkpoint.every_epochs=0"];
    sets.iter().for_each(|set| args.extend(["--set", set]));
    let jobs = environment(n, &args);
    let metrics = out.join("metrics.jsonl");
    while std::fs::metadata(&metrics).map_or(0, |file| file.len()) == 0 {
        assert!(jobs[0].started.elapsed() < Duration::from_secs(60), "no step within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
    jobs
}

#[test]
fn ranks_train_the_same_model_as_under_mpirun() {
    let folder = temp_dir();
    for n in [2, 4] {
        let path = |name: &str| folder.path().join(format!("{name}-{n}"));
        let args = |out: &Path| {
            let out = out.to_str().unwrap();
            ["train", "--out", out, "-q", "--device", "cpu", "--threads", "1", "--set", "train.epochs=2"]
                .map(str::to_owned)
        };
        let (by_mpirun, alone) = (args(&path("mpirun")), args(&path("environment")));
        run_ok(crate::common::ranks(n, &by_mpirun.each_ref().map(|arg| &**arg)));
        let outcomes = wait(environment(n, &alone.each_ref().map(|arg| &**arg)));
        assert_eq!(codes(&outcomes), vec![Some(0); n], "{}", stderr(&outcomes));
        let model = |name: &str| std::fs::read(path(name).join("model.safetensors")).unwrap();
        assert!(model("environment") == model("mpirun"), "{n} ranks");
    }
}

/// Such as all ranks on one host, where Open MPI 5 does not read an operator's list of hosts. On several hosts: tests/start_matrix.
#[test]
fn another_number_of_hosts_is_refused_before_data_is_read() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    for (expected, refused) in [("2", true), ("1", false)] {
        let args = ["train", "missing.csv", "--expect-world", "2", "--expect-hosts", expected, "--out"];
        let outcomes = wait(environment(2, &[&args[..], &[out.to_str().unwrap()]].concat()));
        let text = stderr(&outcomes);
        assert_eq!(codes(&outcomes), vec![Some(if refused { 78 } else { 2 }); 2], "{text}");
        assert_eq!(
            text.matches("error: --expect-hosts 2: 2 ranks run on 1 host (").count(),
            usize::from(refused),
            "{text}"
        );
        assert_eq!(text.contains("Open MPI 4"), refused, "{text}");
    }
    assert!(!out.exists());
}

/// Ranks of a config that each reads for itself; also in a build without MPI.
#[test]
fn ranks_that_disagree_are_reported_once() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let variables = rank_variables(3).unwrap();
    let job = |(rank, variables): (usize, Vec<(&'static str, String)>)| {
        let epochs = format!("train.epochs={}", 3 + rank / 2);
        let mut command = single(&["train", "--out", out.to_str().unwrap(), "--set", &epochs]);
        command.envs(variables);
        start(command)
    };
    let outcomes = wait(variables.into_iter().enumerate().map(job).collect());
    assert_eq!(codes(&outcomes), [Some(78); 3], "{}", stderr(&outcomes));
    let text = stderr(&outcomes);
    assert!(text.contains("error: rank 2 (") && text.contains("'train.epochs': '4' there, '3'"), "{text}");
    assert_eq!(text.matches("error: ").count(), 1, "{text}");
}

#[test]
fn a_rank_that_is_killed_ends_the_others() {
    for victim in [1, 0] {
        let folder = temp_dir();
        let out = folder.path().join("out");
        let jobs = endless(&out, 3);
        let pid = jobs[victim].pid();
        kill_9(pid);
        let lost = Instant::now();
        let outcomes = wait(jobs);
        assert!(lost.elapsed() < Duration::from_secs(5), "{:?}", lost.elapsed());
        let survivors: Vec<_> = (0..3).filter(|rank| *rank != victim).collect();
        let text = stderr(&outcomes);
        for rank in survivors {
            assert_eq!(outcomes[rank].status.code(), Some(75), "rank {rank}: {text}");
        }
        let reporter = usize::from(victim == 0);
        assert!(outcomes[reporter].stderr.contains(&format!("[rank {reporter} ")), "{text}");
        let parts = [
            format!("error: rank {victim} (host "),
            format!(", pid {pid}"),
            "died: its connection closed without a goodbye".to_owned(),
        ];
        parts.iter().for_each(|part| assert!(text.contains(part), "no {part:?} in {text}"));
        assert_eq!(text.matches("error: ").count(), 1, "one rank speaks for all:\n{text}");
        let events = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
        assert!(events.lines().last().unwrap().contains("\"exit_code\":75"), "{events}");
    }
}

#[test]
fn a_signal_to_one_rank_saves_the_run() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let jobs = endless(&out, 2);
    let kill = format!("kill -TERM {}", jobs[1].pid());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let outcomes = wait(jobs);
    assert_eq!(codes(&outcomes), [Some(85); 2], "{}", stderr(&outcomes));
    assert!(out.join("checkpoints/latest").exists());
}

#[test]
fn an_environment_that_does_not_fit_is_refused() {
    const ALL: [(&str, &str); 5] = [
        ("RANK", "1"),
        ("WORLD_SIZE", "2"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "1"),
    ];
    let folder = temp_dir();
    let with = |line: &str, changed: &[(&str, &str)]| {
        let mut command = single(&line.split(' ').collect::<Vec<_>>());
        command.current_dir(folder.path()).envs(ALL).envs(changed.iter().copied());
        run(command)
    };
    for (changed, message) in [
        (&[("RANK", "2")][..], "RANK=2: expected a number below WORLD_SIZE=2"),
        (&[("WORLD_SIZE", "")], "WORLD_SIZE is not set: expected the number of ranks, since RANK=1"),
        (&[("RANK", "")], "RANK is not set: expected this rank's number, since WORLD_SIZE=2"),
        (&[("LOCAL_RANK", "x")], "LOCAL_RANK=x: expected the number of this rank on its host, from 0"),
        (&[("MASTER_ADDR", "")], "MASTER_ADDR is not set: expected the host of rank 0"),
        (&[("MASTER_PORT", "http")], "MASTER_PORT=http: expected a port of that host, from 1 to 65535"),
        (
            &[("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_RANK", "0")],
            "RANK=1: expected the same as OMPI_COMM_WORLD_RANK=0, which MPI's launcher has set",
        ),
    ] {
        let outcome = with("train --out out", changed);
        assert_eq!(outcome.status.code(), Some(78), "{outcome:?}");
        assert!(outcome.stderr.starts_with(&format!("error: {message}\nhint: ")), "{}", outcome.stderr);
    }
    assert_eq!(with("eval --checkpoint x", &[("RANK", "2")]).status.code(), Some(78));
    let launched = with("launch -n 2 -- --out out", &[]);
    assert_eq!(launched.status.code(), Some(78), "{launched:?}");
    assert!(
        launched.stderr.contains("but a launcher that sets RANK and WORLD_SIZE has started it"),
        "{launched:?}"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was written");
    // One rank is alone, and commands that need no other rank wait for none.
    for (line, changed) in [
        ("train --dry-run", &[("RANK", "0"), ("WORLD_SIZE", "1")][..]),
        ("describe builtin:digits", &[]),
        ("config keys", &[("MASTER_PORT", "")]),
        ("--version", &[("RANK", "")]),
    ] {
        let outcome = with(line, changed);
        assert!(outcome.status.success(), "{line}: {outcome:?}");
    }
    assert_eq!(with("train --no-such-flag", &[]).status.code(), Some(2));
}

#[test]
fn a_process_that_accelerate_starts_alone_is_told() {
    let folder = temp_dir();
    let started = |changed: &[(&str, &str)]| {
        let mut command = single(&["train", "--dry-run", "-q"]);
        command.current_dir(folder.path()).envs([("ACCELERATE_MIXED_PRECISION", "no")]);
        run_ok(command_with(command, changed)).stderr
    };
    let several = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];
    let text =
        "warning: accelerate was asked for several processes and has started one, which runs alone\nhint: ";
    assert!(started(&several).starts_with(text));
    assert!(!started(&[]).contains("accelerate"));
}

fn command_with(mut command: Command, variables: &[(&str, &str)]) -> Command {
    command.envs(variables.iter().copied());
    command
}

/// A shell command that gives the rest of a script another hostname, so that ranks appear to be on several hosts; `None` if this process
/// may not do that.
fn other_host() -> Option<&'static str> {
    let may = Command::new("unshare").args(["--uts", "hostname", "other"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        println!("skipped: needs the right to change the hostname (unshare --uts)");
        return None;
    }
    Some("unshare --uts sh -c 'hostname other && exec \"$0\" \"$@\"'")
}

/// A script that runs the program, its `$0`, as two ranks, the second one behind `before`.
fn two_ranks(before: &str, args: &str) -> Command {
    let variables = rank_variables(2).unwrap();
    let of_rank = |rank: usize, before: &str| {
        let set: Vec<_> = variables[rank].iter().map(|(name, value)| format!("{name}={value}")).collect();
        format!("{} {before} \"$0\" train {args}", set.join(" "))
    };
    let script = format!("{} & {}; status=$?; wait $! && exit $status", of_rank(1, before), of_rank(0, ""));
    let mut command = Command::new("sh");
    command.args(["-c", &script, ddp_train()]);
    command
}

#[test]
fn cpus_of_several_hosts_need_mpi() {
    let Some(other_host) = other_host() else { return };
    let folder = temp_dir();
    let out = folder.path().join("out");
    let outcome = run(two_ranks(other_host, &format!("--device cpu --out '{}'", out.display())));
    assert_eq!(outcome.status.code(), Some(78), "{outcome:?}");
    let text = "error: the 2 ranks compute on CPUs of several hosts, and exchange gradients only by MPI there\nhint: \
                start them by mpirun ";
    assert!(outcome.stderr.starts_with(text), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.matches("error: ").count(), 1, "{}", outcome.stderr);
}

/// The same on two virtual GPUs, which NCCL joins, of one host and of two.
#[test]
fn gpus_are_joined_without_mpi() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name);
    let rows = "--set train.epochs=2 --set train.global_batch_size=64 --set model.hidden=[16] -q";
    let cpu = format!("train --out {} --device cpu --threads 1 {rows}", path("cpu").display());
    run_ok(single(&cpu.split(' ').collect::<Vec<_>>()));
    let weights = |name: &str| read_weights(&path(name).join("model.safetensors"));
    for (name, before) in [("one", Some("")), ("two", other_host())] {
        let Some(before) = before else { return };
        let args = format!("--out '{}' --device cuda {rows}", path(name).display());
        let Some(outcome) = command_under_virtual_gpus(2, &two_ranks(before, &args)) else { return };
        outcome.ok();
        let log = std::fs::read_to_string(path(name).join("logs/rank-0.log")).unwrap();
        // On two hosts a rank does not know the other one's GPUs.
        let gpus = if before.is_empty() { ", one GPU each: cuda:0 and 1" } else { ", one GPU each" };
        assert!(log.contains(&format!(", 2 ranks{gpus} (Virtual GPU)")), "{log}");
        let (gap, place) = largest_gap(&weights(name), &weights("cpu"));
        assert!(gap <= 2e-5, "{name}: {place}: {gap:e} apart");
    }
}

/// One process of a Slurm job, or on a machine of several GPUs, says what it leaves idle.
#[test]
fn one_process_names_the_tasks_and_gpus_that_it_leaves_idle() {
    let folder = temp_dir();
    let train = |out: &str, device: &str| {
        let mut command =
            single(&["train", "--epochs", "1", "--device", device, "--threads", "1", "--out", out]);
        command.current_dir(folder.path()).env_remove("SLURM_NTASKS");
        command
    };
    let mut of_slurm = train("slurm", "cpu");
    of_slurm.envs([("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "4")]);
    let said = run_ok(of_slurm).stderr;
    assert!(said.contains("one process in a Slurm job of 4 tasks: `ddp-train launch -- "), "{said}");
    let Some(idle) = command_under_virtual_gpus(2, &train("idle", "cuda")) else { return };
    assert!(idle.stderr.contains("uses 1 of 2 GPUs; all of them: `ddp-train launch -- "), "{}", idle.stderr);
    let chosen = command_under_virtual_gpus(2, &train("chosen", "cuda:1")).unwrap();
    assert!(chosen.stderr.contains("1 rank on cuda:1 (Virtual GPU)"), "{}", chosen.stderr);
    assert!(!chosen.stderr.contains("uses 1 of"), "{}", chosen.stderr);
}
