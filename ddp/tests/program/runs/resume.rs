//! Runs that stop and resume, after any step, by signals, on a different number of ranks: they end like an uninterrupted run.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use crate::common::{Outcome, Weights, ranks, read_weights, run, same_bits, single, temp_dir, write};
use crate::common::{assert_all_close, quoted};
use ddp::run_folder::folder::{Existing, RunDir};
use serde_json::Value;
use tempfile::TempDir;

/// Exit status of a run that has saved and stopped.
const SAVED: i32 = 85;

/// 2 epochs of 8 steps, the last of them smaller, with everything that keeps state between steps, or depends on the index of the
/// step or the row.
const RUN: &str = "[data]\ntrain = \"builtin:digits\"\n\
    [checkpoint]\nevery_minutes = 0\nevery_epochs = 1\n\
    [model]\nhidden = [24, 24]\ndropout = 0.1\nnorm = \"layer\"\n\
    [optimizer]\nlr = 0.003\ndecay_bias_norm = false\n\
    [schedule]\nkind = \"cosine\"\nwarmup_steps = 3\n\
    [train]\nepochs = 2\nglobal_batch_size = 200\nclip_grad_norm = 0.5\nema_decay = 0.9\n\
    [log]\nevery_steps = 1\n";
const N_STEPS: usize = 16;

/// A run that may have several legs.
struct Run {
    folder: TempDir,
    config: PathBuf,
}

impl Run {
    fn new(config: &str) -> Self {
        let folder = temp_dir();
        let config = write(folder.path(), "run.toml", config);
        Run { folder, config }
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("out")
    }

    /// Resumes the run on this many ranks from its current state.
    fn leg(&self, n_ranks: usize, sets: &[&str]) -> Outcome {
        let out = self.out();
        let mut args = vec!["train", self.config.to_str().unwrap(), "--out", out.to_str().unwrap()];
        // On GPUs, some tests have fewer GPUs than ranks.
        args.extend(["--resume", "auto", "--progress", "none", "--threads", "1", "--share-gpu"]);
        sets.iter().for_each(|set| args.extend(["--set", set]));
        run(ranks(n_ranks, &args))
    }

    /// Runs a leg that ends after global step `step`.
    #[track_caller]
    fn until(&self, n_ranks: usize, step: usize, sets: &[&str]) {
        let stop = format!("train.stop_after_steps={step}");
        let outcome = self.leg(n_ranks, &[sets, &[&stop]].concat());
        assert_eq!(outcome.status.code(), Some(SAVED), "{}", outcome.stderr);
    }

    /// Runs the last leg.
    #[track_caller]
    fn to_the_end(&self, n_ranks: usize, sets: &[&str]) -> Ended {
        let outcome = self.leg(n_ranks, sets);
        assert!(outcome.status.success(), "{}", outcome.stderr);
        let events = events(&self.out());
        let of = |kind: &str| events.iter().filter(|event| event["event"] == kind).collect::<Vec<_>>();
        let numbers = |kind: &str, key: &str| -> Vec<f64> {
            of(kind).iter().map(|event| event[key].as_f64().unwrap()).collect()
        };
        let steps = numbers("step", "step");
        assert_eq!(
            steps,
            (1..=steps.len()).map(|step| step as f64).collect::<Vec<_>>(),
            "each step is reported once"
        );
        Ended {
            weights: read_weights(&self.out().join("model.safetensors")),
            losses: numbers("step", "loss"),
            rates: numbers("step", "lr"),
            norms: numbers("step", "grad_norm"),
            epochs: [numbers("epoch", "train_loss"), numbers("epoch", "eval_loss")].concat(),
        }
    }
}

fn events(out: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Result of a run.
struct Ended {
    weights: Weights,
    losses: Vec<f64>,
    rates: Vec<f64>,
    norms: Vec<f64>,
    epochs: Vec<f64>,
}

#[track_caller]
fn assert_same_bits(what: &str, got: &Ended, want: &Ended) {
    assert_eq!(got.losses, want.losses, "{what}: losses");
    assert_eq!(got.rates, want.rates, "{what}: learning rates");
    assert_eq!(got.norms, want.norms, "{what}: norms");
    assert_eq!(got.epochs, want.epochs, "{what}: epochs");
    assert!(same_bits(&got.weights, &want.weights), "{what}: weights");
}

/// Asserts that `ddp-train checkpoint verify` proves that each epoch used each row once.
#[track_caller]
fn assert_every_row_once(out: &Path) {
    let outcome = run(single(&["checkpoint", "verify", out.to_str().unwrap()]));
    assert!(outcome.status.success(), "{outcome:?}");
    assert!(outcome.stdout.contains("1438 rows"), "{}", outcome.stdout);
}

#[test]
fn stopped_after_any_step_it_ends_with_the_same_bits() {
    let config = RUN.replace("[train]\n", "[train]\ngrad_accum_steps = 2\n");
    let whole = Run::new(&config).to_the_end(1, &[]);
    assert_eq!(whole.losses.len(), N_STEPS);
    for step in 1..N_STEPS {
        let run = Run::new(&config);
        run.until(1, step, &[]);
        assert_same_bits(&format!("stopped after step {step}"), &run.to_the_end(1, &[]), &whole);
        assert_every_row_once(&run.out());
    }
}

#[test]
fn stopped_after_every_step_it_ends_with_the_same_bits() {
    // In f16 with a scale that causes skipped steps at the start, which a resumed run does not repeat.
    let f16 = "train.precision=\"f16\"";
    for (order, more) in [
        ("data.shuffle=false", ["train.precision=\"bf16\"", "optimizer.kind=\"sgd\"", "train.epochs=2"]),
        ("data.shuffle_mode=\"blocks\"", [f16, "train.loss_scale_init=16777216.0", "train.steps=16"]),
    ] {
        let sets = [order, more[0], more[1], more[2]];
        let whole = Run::new(RUN).to_the_end(1, &sets);
        assert_eq!(whole.losses.len(), N_STEPS);
        let run = Run::new(RUN);
        for step in 1..N_STEPS {
            run.until(1, step, &sets);
        }
        assert_same_bits(order, &run.to_the_end(1, &sets), &whole);
        assert_every_row_once(&run.out());
    }
}

/// The saved config of a run lists the layers of a preset, and describes the same run.
#[test]
fn a_list_of_layers_goes_on_with_the_same_bits() {
    let model = "[model]\nkind = \"swiglu\"\nhidden = [24, 24]\ndropout = 0.1\n";
    let usual = "[model]\nhidden = [24, 24]\ndropout = 0.1\nnorm = \"layer\"\n";
    let config = RUN.replace(usual, model);
    assert_ne!(config, RUN);
    let whole = Run::new(&config).to_the_end(1, &[]);
    let run = Run::new(&config);
    for step in [3, 8, 9] {
        run.until(1, step, &[]);
    }
    assert_same_bits("a preset", &run.to_the_end(1, &[]), &whole);
    assert!(whole.weights.iter().any(|(name, _)| name == "norms.2.weight"));
    let saved = std::fs::read_to_string(run.out().join("config.toml")).unwrap();
    assert!(saved.contains("\nlayers = [{ kind = \"linear\", out_features = 24, bias = true }, "), "{saved}");

    // A run with the saved config is the same run; different layers make it a different run.
    let run = Run::new(&config);
    run.until(1, 5, &[]);
    let saved = std::fs::read_to_string(run.out().join("config.toml")).unwrap();
    std::fs::write(&run.config, saved).unwrap();
    assert_same_bits("the saved config", &run.to_the_end(1, &["train.stop_after_steps=16"]), &whole);
    let run = Run::new(&config);
    run.until(1, 5, &[]);
    std::fs::write(&run.config, config.replace("[24, 24]", "[24]")).unwrap();
    assert_refused(&run.leg(1, &[]), &["model.layers"]);
}

#[test]
fn two_ranks_go_on_with_the_same_bits() {
    for zero in ["comm.zero=0", "comm.zero=1", "comm.zero=2"] {
        let sets = [zero, "train.grad_accum_steps=2"];
        let whole = Run::new(RUN).to_the_end(2, &sets);
        let run = Run::new(RUN);
        // Within an epoch, at its end, and again.
        for step in [3, 8, 9] {
            run.until(2, step, &sets);
        }
        assert_same_bits(zero, &run.to_the_end(2, &sets), &whole);
        assert_every_row_once(&run.out());
    }
}

/// Each process orders its hash maps differently, so ranks must not compare them as they are printed.
#[test]
fn two_ranks_resume_a_table_with_categories_with_the_same_bits() {
    for encode in ["one_hot", "embedding"] {
        let folder = temp_dir();
        let rows = (0..60).map(|row| {
            format!(
                "{},{},{}.5,{}\n",
                ["oslo", "bern", "rome"][row % 3],
                ["u", "v"][row % 2],
                row % 7,
                row % 4 / 2
            )
        });
        let table =
            write(folder.path(), "rows.csv", &format!("city,kind,x,label\n{}", rows.collect::<String>()));
        let run = Run::new(&format!(
            "[data]\ntrain = {}\neval_fraction = 0.25\ncategorical = [\"city\", \"kind\"]\nencode = \"{encode}\"\n\
             [train]\nsteps = 6\nglobal_batch_size = 20\n[log]\nevery_steps = 1\n",
            quoted(&table)
        ));
        let want = run.to_the_end(2, &[]);
        let stopped = Run { folder: temp_dir(), config: run.config.clone() };
        stopped.until(2, 3, &[]);
        assert_same_bits(encode, &stopped.to_the_end(2, &[]), &want);
    }
}

/// Optimizers that update whole parameters, and a group with its own schedule: on two ranks bit for bit, and on other numbers of
/// ranks up to rounding.
#[test]
fn whole_parameters_and_schedules_of_groups_go_on() {
    let groups =
        "optimizer.groups=[{match=\"layers.1.*\",lr_scale=0.5,schedule={kind=\"linear\",warmup_steps=5}}]";
    for (kind, zero, other_zero) in [("lamb", 1, 2), ("muon", 2, 0)] {
        let kind = format!("optimizer.kind={kind}");
        let [zero, other_zero] = [zero, other_zero].map(|stage| format!("comm.zero={stage}"));
        let sets = [&kind, groups, &zero];
        let whole = Run::new(RUN).to_the_end(2, &sets);
        let run = Run::new(RUN);
        run.until(2, 5, &sets);
        assert_same_bits(&kind, &run.to_the_end(2, &sets), &whole);

        let run = Run::new(RUN);
        run.until(3, 4, &[&kind, groups, &other_zero]);
        run.until(1, 9, &[&kind, groups]);
        let ended = run.to_the_end(2, &sets);
        // Same as above; Muon amplifies rounding errors of small singular values.
        assert_all_close(&kind, &ended.losses, &whole.losses, 1e-4);
        assert_eq!(ended.rates, whole.rates);
        // The schedule of the group has an effect.
        let without = Run::new(RUN).to_the_end(2, &[&kind, &zero]);
        assert!(!same_bits(&without.weights, &whole.weights), "{kind}");
    }
}

/// On 2, then 3 ranks, then 1, with and without ZeRO.
#[test]
fn any_number_of_ranks_goes_on_where_another_stopped() {
    let whole = Run::new(RUN).to_the_end(1, &[]);
    for (first, second) in [("comm.zero=0", "comm.zero=1"), ("comm.zero=2", "comm.zero=0")] {
        let run = Run::new(RUN);
        run.until(2, 5, &[first]);
        run.until(3, 11, &[second]);
        let ended = run.to_the_end(1, &[first]);
        let what = format!("{first}, then {second}");
        // Sums over ranks are taken in a different order: units of 6e-8, which Adam's first steps amplify. Rows that are lost or
        // visited twice, or a wrong moment, would cause differences of 1e-3 and more.
        assert_all_close(&what, &ended.losses, &whole.losses, 1e-5);
        assert_all_close(&what, &ended.epochs, &whole.epochs, 1e-5);
        assert_eq!(ended.rates, whole.rates);
        assert_every_row_once(&run.out());
    }
}

#[test]
fn in_world_mode_the_number_of_ranks_changes_no_bit_even_on_the_way() {
    let world = "train.deterministic=\"world\"";
    let whole = Run::new(RUN).to_the_end(1, &[world]);
    for (first, second) in [("comm.zero=0", "comm.zero=1"), ("comm.zero=1", "comm.zero=0")] {
        let run = Run::new(RUN);
        run.until(2, 5, &[world, first]);
        run.until(3, 11, &[world, second]);
        assert_same_bits(&format!("{first}, then {second}"), &run.to_the_end(1, &[world, first]), &whole);
        assert_every_row_once(&run.out());
    }
    for n_ranks in [2, 4, 8] {
        let ended = Run::new(RUN).to_the_end(n_ranks, &[world]);
        assert_same_bits(&format!("{n_ranks} ranks"), &ended, &whole);
    }
}

/// If the batch size is given per rank, the global batch stays the same on a different number of ranks.
#[test]
fn the_global_batch_stays_when_ranks_come_or_go() {
    let config = RUN.replace("global_batch_size = 200", "batch_size = 100");
    let whole = Run::new(&config).to_the_end(2, &[]);
    let run = Run::new(&config);
    run.until(2, 3, &[]);
    let outcome = run.leg(1, &["train.stop_after_steps=6"]);
    assert_eq!(outcome.status.code(), Some(SAVED), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("2 ranks before, 1 now, still 200 rows per step"), "{}", outcome.stderr);
    assert_all_close("losses", &run.to_the_end(2, &[]).losses, &whole.losses, 1e-5);
}

#[test]
fn a_run_that_is_complete_is_left_as_it_is_and_a_longer_one_goes_on() {
    let run = Run::new(RUN);
    let once = run.to_the_end(1, &[]);
    let again = run.to_the_end(1, &[]);
    assert_same_bits("again", &again, &once);
    let longer = run.to_the_end(1, &["train.epochs=3"]);
    assert_eq!(longer.losses.len(), 3 * N_STEPS / 2);
    assert_eq!(longer.losses[..N_STEPS], once.losses);
}

#[test]
fn without_a_config_the_runs_own_counts() {
    let run = Run::new(RUN);
    run.until(1, 5, &[]);
    let out = run.out();
    let args = ["train", "--resume", out.to_str().unwrap(), "--progress", "none"];
    let outcome = crate::common::run(single(&args));
    assert!(outcome.status.success(), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("resuming after step 5 from"), "{}", outcome.stderr);
    // stop_after_steps belonged to the first leg, not to the run.
    let whole = Run::new(RUN).to_the_end(1, &[]);
    assert_same_bits("without a config", &run.to_the_end(1, &[]), &whole);
}

/// Asserts that a problem is reported with exit status 2, and that nothing is changed.
#[track_caller]
fn assert_refused(outcome: &Outcome, parts: &[&str]) {
    assert_eq!(outcome.status.code(), Some(2), "{outcome:?}");
    for part in parts {
        assert!(outcome.stderr.contains(part), "no {part:?} in {}", outcome.stderr);
    }
    assert!(outcome.stderr.contains("hint: "), "{}", outcome.stderr);
}

#[test]
fn another_run_is_no_continuation() {
    let run = Run::new(RUN);
    run.until(1, 5, &[]);
    let before = read_weights(&run.out().join("checkpoints/step-5/model.safetensors"));
    assert_refused(
        &run.leg(1, &["optimizer.lr=0.5", "model.hidden=[8]"]),
        &["optimizer.lr is 0.5, but 0.003 in the checkpoint", "model.hidden is [8], but [24, 24]"],
    );
    assert_refused(
        &run.leg(1, &["train.global_batch_size=100"]),
        &["takes 100 rows", "200 in the checkpoint"],
    );
    assert_refused(
        &run.leg(1, &["data.train=\"builtin:digits\"", "train.seed=3"]),
        &["train.seed is 3, but 0"],
    );
    let out = run.out();
    let out = out.to_str().unwrap();
    let command =
        |args: &[&str]| crate::common::run(single(&[&["train", "--progress", "none"], args].concat()));
    assert_refused(&command(&["--resume", "auto"]), &["--resume auto", "--out DIR"]);
    assert_refused(&command(&["--resume", "nowhere"]), &["no checkpoint at `nowhere`"]);
    assert_refused(&command(&["--out", out]), &["already holds a run", "--resume auto"]);
    assert!(same_bits(&before, &read_weights(&run.out().join("checkpoints/step-5/model.safetensors"))));
}

#[test]
fn other_rows_are_no_continuation() {
    let folder = temp_dir();
    let rows =
        |n: usize| write(folder.path(), "rows.csv", &crate::common::made_up_csv(n, 5, "classification", 0));
    let path = rows(300);
    let data = format!("data.train={}", quoted(&path));
    let sets = [data.as_str(), "data.eval_fraction=0.2"];
    let run = Run::new(RUN);
    run.until(1, 2, &sets);
    rows(310);
    assert_refused(
        &run.leg(1, &sets),
        &["other data", "248 training rows, but 240", "the fingerprint of the data is"],
    );
}

#[test]
fn a_damaged_checkpoint_is_passed_over_and_named() {
    let whole = Run::new(RUN).to_the_end(1, &[]);
    let run = Run::new(RUN);
    run.until(1, 5, &[]);
    run.until(1, 9, &[]);
    let state = run.out().join("checkpoints/step-9/optimizer-00000-of-00001.safetensors");
    let mut bytes = std::fs::read(&state).unwrap();
    let last = bytes.len() - 3;
    bytes[last] ^= 1;
    std::fs::write(&state, bytes).unwrap();
    let outcome = run.leg(1, &["train.stop_after_steps=6"]);
    assert_eq!(outcome.status.code(), Some(SAVED), "{}", outcome.stderr);
    for part in ["step-9", "optimizer-00000-of-00001.safetensors", "resuming after step 8"] {
        assert!(outcome.stderr.contains(part), "no {part:?} in {}", outcome.stderr);
    }
    assert_same_bits("after a damaged one", &run.to_the_end(1, &[]), &whole);
}

/// Each file of state is checked by only one rank, and all ranks fall back together, over several checkpoints if necessary.
#[test]
fn what_one_rank_finds_damaged_no_rank_uses() {
    for (flip_in_9, finds) in
        [("optimizer-00001-of-00002", "rank 1 found: "), ("optimizer-00000-of-00002", "")]
    {
        let sets = ["comm.zero=1"];
        let whole = Run::new(RUN).to_the_end(2, &sets);
        let run = Run::new(RUN);
        for step in [6, 9] {
            run.until(2, step, &sets);
        }
        for (step, file) in [(8, "model"), (9, flip_in_9)] {
            let path = run.out().join(format!("checkpoints/step-{step}/{file}.safetensors"));
            let mut bytes = std::fs::read(&path).unwrap();
            let last = bytes.len() - 3;
            bytes[last] ^= 1;
            std::fs::write(&path, bytes).unwrap();
        }
        let outcome = run.leg(2, &["comm.zero=1", "train.stop_after_steps=7"]);
        assert_eq!(outcome.status.code(), Some(SAVED), "{}", outcome.stderr);
        let told = format!("skipped checkpoint step-9: {finds}{flip_in_9}.safetensors was changed");
        let parts = [told.as_str(), "step-8: model.safetensors was changed", "resuming after step 6"];
        for part in parts {
            assert!(outcome.stderr.contains(part), "no {part:?} in {}", outcome.stderr);
        }
        assert_same_bits("after damaged ones", &run.to_the_end(2, &sets), &whole);
    }
}

#[test]
fn where_none_can_be_used_nothing_starts_afresh() {
    let run = Run::new(RUN);
    run.until(1, 5, &[]);
    let manifest = run.out().join("checkpoints/step-5/manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    std::fs::write(&manifest, &text[..text.len() / 2]).unwrap();
    assert_refused(&run.leg(1, &[]), &["none of the checkpoints", "step-5", "manifest"]);

    // Also if the damage shows only when the bytes are read.
    std::fs::write(&manifest, text).unwrap();
    let model = run.out().join("checkpoints/step-5/model.safetensors");
    let mut bytes = std::fs::read(&model).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&model, bytes).unwrap();
    assert_refused(&run.leg(1, &[]), &["none of the checkpoints", "step-5: model.safetensors was changed"]);
    let one = run.out().join("checkpoints/step-5");
    let config = run.config.to_str().unwrap();
    let named = crate::common::run(single(&[
        "train",
        config,
        "--resume",
        one.to_str().unwrap(),
        "--progress",
        "none",
    ]));
    assert_refused(&named, &["step-5` can't be used: model.safetensors was changed"]);
}

#[test]
fn what_was_changed_is_not_evaluated() {
    let run = Run::new(RUN);
    run.until(1, 5, &[]);
    let checkpoint = run.out().join("checkpoints/step-5");
    let eval = || crate::common::run(single(&["eval", "--checkpoint", checkpoint.to_str().unwrap()]));
    assert!(eval().status.success());
    let model = checkpoint.join("model.safetensors");
    let mut bytes = std::fs::read(&model).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&model, bytes).unwrap();
    assert_refused(&eval(), &["model.safetensors", "step-5"]);
}

#[test]
fn a_run_without_checkpoints_is_not_gone_on_with() {
    let run = Run::new(RUN);
    run.to_the_end(1, &["checkpoint.every_epochs=0"]);
    assert_refused(&run.leg(1, &[]), &["no checkpoint to resume from", "--overwrite instead of --resume"]);
    // A run that was killed before its first checkpoint starts over.
    std::fs::remove_file(run.out().join("model.safetensors")).unwrap();
    run.to_the_end(1, &[]);
}

/// A link to a disk that is not mounted, and files that belong to someone else.
#[test]
fn the_folder_of_checkpoints_is_touched_with_care() {
    let run = Run::new(RUN);
    let (out, elsewhere) = (run.out(), run.folder.path().join("elsewhere"));
    std::fs::create_dir(&out).unwrap();
    std::os::unix::fs::symlink(&elsewhere, out.join("checkpoints")).unwrap();
    let outcome = run.leg(1, &[]);
    assert_eq!(outcome.status.code(), Some(74), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("can't follow the link") && out.join("checkpoints").is_symlink());
    std::fs::create_dir(&elsewhere).unwrap();
    run.to_the_end(1, &[]);
    let notes = write(&elsewhere, "notes.txt", "mine");
    let args = ["train", run.config.to_str().unwrap(), "--out", out.to_str().unwrap(), "--overwrite"];
    let sets = ["--progress", "none", "--set", "checkpoint.every_epochs=0"];
    let outcome = crate::common::run(single(&[&args[..], &sets].concat()));
    assert!(outcome.status.success(), "{}", outcome.stderr);
    assert!(out.join("checkpoints").is_symlink() && notes.exists());
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 1, "the old run's are gone");
}

/// An earlier checkpoint resumes in a different folder, so that later checkpoints are not overwritten.
#[test]
fn an_earlier_checkpoint_begins_a_branch() {
    let run = Run::new(RUN);
    run.until(1, 5, &[]);
    run.until(1, 7, &["checkpoint.keep=10"]);
    let earlier = run.out().join("checkpoints/step-5");
    let args = ["train", "--progress", "none", "--threads", "1", "--resume", earlier.to_str().unwrap()];
    assert_refused(&crate::common::run(single(&args)), &["up to step 7", "from step 5", "--out"]);
    // If another process resumes in that folder, that is the reason why it is ahead.
    let held = RunDir::open(Some(&run.out()), "held", Existing::Continue).unwrap();
    assert_refused(&crate::common::run(single(&args)), &["in use by process", "wait for that run to end"]);
    drop(held);
    let branch = run.folder.path().join("branch");
    let outcome = crate::common::run(single(&[&args[..], &["--out", branch.to_str().unwrap()]].concat()));
    assert!(outcome.status.success(), "{}", outcome.stderr);
    let whole = Run::new(RUN).to_the_end(1, &[]);
    assert!(same_bits(&read_weights(&branch.join("model.safetensors")), &whole.weights));
    // A run that stops before its first step can be resumed too.
    let still = run.folder.path().join("still");
    let more = ["--out", still.to_str().unwrap(), "--set", "train.stop_after_steps=3"];
    let outcome = crate::common::run(single(&[&args[..], &more].concat()));
    assert_eq!(outcome.status.code(), Some(SAVED), "{}", outcome.stderr);
    assert!(still.join("checkpoints/step-5/manifest.json").exists());
}

#[test]
fn the_newest_and_the_best_are_kept() {
    let run = Run::new(&RUN.replace("epochs = 2", "epochs = 6"));
    run.to_the_end(1, &["checkpoint.keep=2", "checkpoint.keep_best=\"eval_loss\"", "optimizer.lr=0.02"]);
    let folder = run.out().join("checkpoints");
    let mut steps: Vec<u64> = std::fs::read_dir(&folder)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().to_str().unwrap().strip_prefix("step-")?.parse().ok())
        .collect();
    steps.sort_unstable();
    let losses: Vec<(f64, u64)> = events(&run.out())
        .iter()
        .filter(|event| event["event"] == "epoch")
        .map(|event| (event["eval_loss"].as_f64().unwrap(), event["step"].as_u64().unwrap()))
        .collect();
    let best = losses.iter().min_by(|a, b| a.0.total_cmp(&b.0)).unwrap().1;
    let mut want = vec![40, 48, best];
    want.sort_unstable();
    want.dedup();
    assert_eq!(steps, want, "{losses:?}");
    assert_eq!(std::fs::read_to_string(folder.join("latest")).unwrap().trim(), "step-48");
    assert_eq!(std::fs::read_to_string(folder.join("best")).unwrap().trim(), format!("step-{best}"));
    let saved = events(&run.out()).iter().filter(|event| event["event"] == "checkpoint").count();
    assert_eq!(saved, 6, "each is reported");
}

/// A model with batch norm: resuming with different micro-batches makes it a different run, which must be allowed explicitly.
#[test]
fn batch_norm_resumes_with_the_same_micro_batches_only() {
    let layers = "[[model.layers]]\nkind = \"linear\"\nout_features = 12\n[[model.layers]]\nkind = \"batch_norm\"\n\
        [[model.layers]]\nkind = \"activation\"\nactivation = \"relu\"\n";
    let text = format!(
        "[data]\ntrain = \"builtin:digits\"\n{layers}[train]\nepochs = 2\nglobal_batch_size = 300\ngrad_accum_steps = 2\n\
         [checkpoint]\nevery_minutes = 0\n"
    );
    let (whole, run) = (Run::new(&text), Run::new(&text));
    assert_eq!(whole.leg(2, &[]).status.code(), Some(0));
    run.until(2, 3, &[]);
    let refused = run.leg(2, &["train.grad_accum_steps=1"]);
    assert_eq!(refused.status.code(), Some(2), "{}", refused.stderr);
    for part in ["of 2 micro-batches per step, and this one would take them of 1", "--allow-batchnorm-change"]
    {
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
    }
    assert_eq!(run.leg(2, &[]).status.code(), Some(0));
    let model = |run: &Run| std::fs::read(run.out().join("model.safetensors")).unwrap();
    assert!(model(&run) == model(&whole), "weights and statistics to the bit");
    let names = read_weights(&run.out().join("model.safetensors"));
    assert!(names.keys().any(|name| name == "norms.0.running_var"), "{:?}", names.keys().collect::<Vec<_>>());

    let other = Run::new(&text);
    other.until(2, 3, &[]);
    let out = other.out();
    let args = ["train", "--resume", out.to_str().unwrap(), "--allow-batchnorm-change", "--progress", "none"];
    let args = [&args[..], &["--threads", "1", "--share-gpu", "--set", "train.grad_accum_steps=1"]].concat();
    let outcome = crate::common::run(ranks(2, &args));
    assert_eq!(outcome.status.code(), Some(0), "{}", outcome.stderr);
}
