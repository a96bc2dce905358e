//! Runs that are resumed with another length: their learning rates, and the line and event that report them.

#![allow(clippy::unwrap_used)]

use crate::common::{Outcome, run, single, temp_dir, write};
use serde_json::Value;
use tempfile::TempDir;

/// A finished run of 4 epochs of 8 steps on a cosine.
struct Run(TempDir);

const RATE: f64 = 0.002;

impl Run {
    fn new(schedule: &str) -> Self {
        let folder = temp_dir();
        let config = format!(
            "[data]\ntrain = \"builtin:digits\"\n[model]\nhidden = [8]\n[optimizer]\nlr = {RATE}\n[schedule]\n{schedule}\n\
             [train]\nepochs = 4\nglobal_batch_size = 200\n[log]\nevery_steps = 1\n"
        );
        write(folder.path(), "run.toml", &config);
        let run = Run(folder);
        run.leg(&["run.toml"]);
        run
    }

    fn leg(&self, args: &[&str]) -> Outcome {
        let mut all = vec!["train", "--progress", "none", "--threads", "1", "--out", "out"];
        all.extend(args);
        let mut command = single(&all);
        command.current_dir(self.0.path());
        let outcome = run(command);
        assert!(outcome.status.success(), "{}", outcome.stderr);
        outcome
    }

    fn events(&self, kind: &str) -> Vec<Value> {
        let text = std::fs::read_to_string(self.0.path().join("out/metrics.jsonl")).unwrap();
        let events = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.filter(|event| event["event"] == kind).collect()
    }

    fn rates(&self) -> Vec<f64> {
        self.events("step").iter().map(|event| event["lr"].as_f64().unwrap()).collect()
    }
}

/// Half a cosine over `total` steps.
fn cosine(step: usize, total: usize) -> f64 {
    RATE / 2.0 * (1.0 + (std::f64::consts::PI * step as f64 / total as f64).cos())
}

#[track_caller]
fn assert_close(got: f64, want: f64) {
    assert!((got - want).abs() <= 1e-9 * RATE, "{got}, expected {want}");
}

#[test]
fn a_stretched_schedule_is_reported() {
    let run = Run::new("kind = \"cosine\"");
    let outcome = run.leg(&["--resume", "out", "--epochs", "8"]);
    let [before, now] = [cosine(31, 32), cosine(32, 64)];
    let line = format!("learning rate {before:.1e} -> {now:.1e}: the schedule now spans 8 epochs");
    assert!(outcome.stderr.contains(&line), "no {line:?} in {}", outcome.stderr);
    let [event] = &run.events("schedule")[..] else { panic!("one event: {:?}", run.events("schedule")) };
    assert_eq!((&event["step"], &event["schedule_steps"]), (&32.into(), &64.into()));
    assert_close(event["lr_before"].as_f64().unwrap(), before);
    assert_close(event["lr"].as_f64().unwrap(), run.rates()[32]);
}

#[test]
fn a_kept_schedule_stays_at_its_last_rate() {
    let run = Run::new("kind = \"linear\"\nfinal_fraction = 0.25");
    let outcome = run.leg(&["--resume", "out", "--epochs", "6", "--keep-schedule"]);
    let rates = run.rates();
    assert_eq!(rates.len(), 48);
    assert!(rates[31..].iter().all(|rate| *rate == rates[31]), "{rates:?}");
    let line = format!("learning rate stays at {:.1e}: the schedule of 32 steps has ended", rates[31]);
    assert!(
        outcome.stderr.contains(&line) && !outcome.stderr.contains("hardly change"),
        "{}",
        outcome.stderr
    );
    assert_eq!(run.events("schedule").len(), 1);
    // The choice is part of the run from then on.
    run.leg(&["--resume", "out", "--epochs", "8"]);
    assert!(run.rates()[31..].iter().all(|rate| *rate == rates[31]), "{:?}", run.rates());
    let outcome = run.leg(&["--resume", "out", "--epochs", "9", "--set", "train.schedule_steps=72"]);
    assert!(outcome.stderr.contains("the schedule now spans 72 steps"), "{}", outcome.stderr);
}

#[test]
fn a_schedule_that_ended_at_nothing_is_a_warning() {
    let run = Run::new("kind = \"cosine\"");
    let outcome = run.leg(&["--resume", "out", "--epochs", "6", "--keep-schedule"]);
    assert!(outcome.stderr.contains("the weights hardly change"), "{}", outcome.stderr);
}

#[test]
fn rates_that_depend_on_no_length_are_not_reported() {
    for schedule in ["kind = \"constant\"", "kind = \"step\"\nstep_every_steps = 8"] {
        let run = Run::new(schedule);
        let outcome = run.leg(&["--resume", "out", "--epochs", "6"]);
        assert!(!outcome.stderr.contains("learning rate"), "{}", outcome.stderr);
        assert_eq!(run.events("schedule").len(), 0);
    }
}
