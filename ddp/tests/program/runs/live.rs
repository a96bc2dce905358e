//! Questions to a running job: traces, and where its ranks stand, also while they hang.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::time::Duration;

use ddp::run_folder::{Existing, RunDir};
use serde_json::Value;

use super::traces::Trace;
use crate::common::{
    Job, Outcome, children, made_up_csv, ranks, run, run_ok, signal, single, start, temp_dir, write,
};

/// Starts a run that does not end during a test, and waits for its first step.
fn endless(out: &Path, n_ranks: usize) -> Job {
    let mut args =
        vec!["train", "--out", out.to_str().unwrap(), "--quiet", "--threads", "1", "--device", "cpu"];
    // In one phase only: without evaluations and comparisons of replicas.
    let rows = write(out.parent().unwrap(), "rows.csv", &made_up_csv(600, 4, "classification", 0));
    args.extend(["--plain", "--data", rows.to_str().unwrap(), "--target", "label"]);
    let sets = [
        "train.epochs=1000000",
        "train.replica_check_steps=0",
        "model.hidden=[16]",
        "log.every_steps=1",
        "checkpoint.every_epochs=0",
    ];
    sets.iter().for_each(|set| args.extend(["--set", set]));
    let job = start(ranks(n_ranks, &args));
    let metrics = out.join("metrics.jsonl");
    while std::fs::metadata(&metrics).map_or(0, |file| file.len()) == 0 {
        assert!(job.started.elapsed() < Duration::from_secs(60), "no step within a minute");
        std::thread::sleep(Duration::from_millis(5));
    }
    job
}

fn places(out: &Path) -> Vec<Value> {
    let asked = run_ok(single(&["stacks", out.to_str().unwrap(), "--json"]));
    let answer: Value = serde_json::from_str(&asked.stdout).unwrap();
    answer["ranks"].as_array().unwrap().clone()
}

fn ask(command: &str, out: &Path, more: &[&str]) -> Outcome {
    let args: Vec<_> = [command, out.to_str().unwrap()].into_iter().chain(more.iter().copied()).collect();
    run(single(&args))
}

#[test]
fn a_running_job_is_traced_and_says_where_its_ranks_stand() {
    let folder = temp_dir();
    let (out, file) = (folder.path().join("out"), folder.path().join("trace.json"));
    let job = endless(&out, 2);
    let asked = ask("trace", &out, &["--steps", "7", "--out", file.to_str().unwrap()]);
    assert!(asked.status.success(), "{asked:?}");
    assert_eq!(asked.stdout.trim(), file.to_str().unwrap());
    let trace = Trace::read(&file);
    let tracks = [0, 1].map(|rank| trace.tracks(rank));
    let steps = tracks.each_ref().map(|tracks| Trace::steps(&tracks["training thread"]));
    assert_eq!(steps[0], steps[1], "all ranks trace the same steps");
    assert_eq!(steps[0].len(), 7);
    for (rank, place) in places(&out).iter().enumerate() {
        assert_eq!((&place["rank"], &place["phase"]), (&rank.into(), &"training".into()), "{place}");
        assert!(
            place["step"].as_u64().unwrap() > steps[0][6] && place["n_collectives"].as_u64().unwrap() > 0,
            "{place}"
        );
    }
    // Without --out the file stays in the run's folder.
    let asked = ask("trace", &out, &["--steps", "2"]);
    assert!(Path::new(asked.stdout.trim()).starts_with(out.join("traces")), "{asked:?}");
    assert!(!out.join(".requests").exists(), "nothing of a question is left");

    // A rank that hangs keeps the others from answering nothing.
    let mut pids = children(job.pid());
    pids.sort_unstable();
    signal("STOP", pids[1]);
    std::thread::sleep(Duration::from_millis(1500));
    let table = ask("stacks", &out, &[]);
    let hung = places(&out);
    signal("CONT", pids[1]);
    assert!(hung[0]["is_inside"] == true && hung[0]["still_s"].as_f64().unwrap() > 1.0, "{hung:?}");
    assert!(hung[1]["silent_s"].as_f64().unwrap() > 1.0, "{hung:?}");
    assert!(table.stdout.contains("inside ") && table.stdout.contains("training"), "{}", table.stdout);
    drop(job);
    let asked = ask("stacks", &out, &[]);
    assert_eq!(asked.status.code(), Some(2), "{asked:?}");
    assert!(
        asked.stderr.contains("no run is active in") && asked.stderr.contains("hint: "),
        "{}",
        asked.stderr
    );
}

#[test]
fn a_rank_alone_says_where_it_stands() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let _job = endless(&out, 1);
    let places = places(&out);
    assert_eq!(places.len(), 1, "{places:?}");
    assert!(places[0]["phase"] == "training" && places[0]["step"].as_u64().unwrap() > 0, "{places:?}");
}

#[test]
fn a_folder_without_an_active_run_and_one_that_is_silent_are_named() {
    let folder = temp_dir();
    let out = folder.path().join("out");
    let refused = ask("trace", &out, &[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(refused.stderr.contains("holds no run: it has no config.toml"), "{}", refused.stderr);

    let owned = RunDir::open(Some(&out), "x", Existing::Refuse).unwrap();
    std::fs::write(owned.file("config.toml"), "").unwrap();
    let silent = ask("trace", &out, &["--timeout", "0.3"]);
    assert_eq!(silent.status.code(), Some(1));
    assert!(
        silent.stderr.contains("did not answer within 0.3 s\nhint: `ddp-train stacks`"),
        "{}",
        silent.stderr
    );
    assert!(!out.join(".requests").exists(), "the request is withdrawn");

    drop(owned);
    std::fs::write(out.join("done.json"), "{\"run_id\":null,\"job_id\":null,\"step\":7}\n").unwrap();
    let ended = ask("trace", &out, &[]);
    assert!(ended.stderr.contains("it is complete after 7 steps\nhint: "), "{}", ended.stderr);
}
