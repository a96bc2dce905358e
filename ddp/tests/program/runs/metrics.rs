//! Metrics and the best evaluation from a user's point of view.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{
    Outcome, Run, assert_all_close, made_up_csv, ranks, run, run_line_ok, run_ok, single, start, temp_dir,
    train, write,
};

/// Few rows and a large learning rate: the evaluation loss first falls, and then rises for the rest of the run.
const OVERFITS: &str = "[data]\ntrain = \"builtin:digits\"\n[model]\nhidden = [32]\n[optimizer]\nlr = 0.03\n\
                        [train]\nepochs = 9\nglobal_batch_size = 24\n";

fn eval(args: &[&str]) -> Value {
    let all = [&["eval", "--device", "cpu", "--json"], args].concat();
    serde_json::from_str(&run_ok(single(&all)).stdout).unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn file(run: &Run, name: &str) -> Vec<u8> {
    std::fs::read(run.out().join(name)).unwrap()
}

#[track_caller]
fn assert_close(got: &Value, want: &Value) {
    assert_all_close("value", &[got.as_f64().unwrap()], &[want.as_f64().unwrap()], 1e-5);
}

#[test]
fn the_model_is_the_best_evaluation_and_the_last_weights_lie_next_to_it() {
    for ema in ["0.0", "0.5"] {
        let run = train(
            1,
            OVERFITS,
            &["--set", &format!("train.ema_decay={ema}"), "--set", "train.eval_every_steps=10"],
        );
        let end = run.events("end").remove(0);
        let best = &end["best"];
        let mut evals: Vec<Value> = [run.events("epoch"), run.events("eval")].concat();
        evals.sort_by(|a, b| a["eval_loss"].as_f64().unwrap().total_cmp(&b["eval_loss"].as_f64().unwrap()));
        assert_eq!(best["metric"], "eval_loss");
        for (key, of) in [("value", "eval_loss"), ("step", "step"), ("epoch", "epoch")] {
            assert_eq!(best[key], evals[0][of], "ema {ema}: {key}");
        }
        let out = run.out();
        assert_close(&eval(&["--checkpoint", text(&out)])["eval_loss"], &best["value"]);
        if best["step"] == end["steps"] {
            panic!("ema {ema}: the run does not overfit: {end}");
        }
        let last = eval(&["--checkpoint", text(&out.join("last.safetensors"))]);
        assert_close(&last["eval_loss"], &end["last_loss"]);
        assert_close(&end["eval_loss"], &best["value"]);
        assert_ne!(file(&run, "model.safetensors"), file(&run, "last.safetensors"));
    }
}

#[test]
fn evaluations_within_an_epoch_are_events() {
    let run = train(1, OVERFITS, &["--set", "train.eval_every_steps=10", "--set", "train.epochs=1"]);
    let steps: Vec<u64> = run.events("eval").iter().map(|event| event["step"].as_u64().unwrap()).collect();
    assert_eq!(steps, [10, 20, 30, 40, 50]);
    // Step 60 ends the epoch, and its event is the epoch's.
    assert_eq!(run.numbers("epoch", "step"), [60.0]);
    assert!(run.numbers("eval", "eval_f1_macro").iter().all(|f1| *f1 > 0.0));
}

#[test]
fn a_resumed_run_ends_with_the_same_model_and_last_weights() {
    for ema in ["0.0", "0.5"] {
        let ema = format!("train.ema_decay={ema}");
        let whole = train(1, OVERFITS, &["--set", &ema, "--set", "checkpoint.async=false"]);
        let best = whole.events("end").remove(0)["best"]["step"].as_u64().unwrap();
        // Stopped long after the best evaluation, within an epoch.
        let stop = format!("train.stop_after_steps={}", best + 30);
        let folder = temp_dir();
        let config = write(folder.path(), "run.toml", OVERFITS);
        let out = folder.path().join("out");
        let args = ["train", text(&config), "--out", text(&out), "--quiet", "--set", &ema];
        let stopped =
            run(single(&[&args[..], &["--set", &stop, "--set", "checkpoint.async=false"]].concat()));
        assert_eq!(stopped.status.code(), Some(85), "{}", stopped.stderr);
        // A run that has not ended is evaluated with its newest checkpoint.
        let newest = eval(&["--checkpoint", text(&out)]);
        let model = newest["model"].as_str().unwrap();
        assert!(model.contains(&format!("step-{}", best + 30)), "{model}");
        run_ok(single(&["checkpoint", "verify", text(&out)]));
        run_ok(single(&["train", "--out", text(&out), "--quiet", "--resume", "auto"]));
        for name in ["model.safetensors", "last.safetensors"] {
            // Compare whole files, that is, the weights and the config next to them.
            assert!(std::fs::read(out.join(name)).unwrap() == file(&whole, name), "{ema}: {name} differs");
        }
    }
}

#[test]
fn a_run_in_progress_is_evaluated_by_its_newest_checkpoint() {
    let folder = temp_dir();
    let config = write(folder.path(), "run.toml", OVERFITS);
    let out = folder.path().join("out");
    let sets = ["train.epochs=1000000", "checkpoint.every_steps=200", "checkpoint.keep=1000"];
    let mut args = vec!["train", text(&config), "--out", text(&out), "--quiet", "--device", "cpu"];
    sets.iter().for_each(|set| args.extend(["--set", set]));
    let _job = start(single(&args));
    let started = Instant::now();
    while !out.join("checkpoints/latest").exists() {
        assert!(started.elapsed() < Duration::from_secs(100), "no checkpoint");
        std::thread::sleep(Duration::from_millis(20));
    }
    // As after a resumed run, where the model file of an earlier end does not belong to the run.
    std::fs::write(out.join("model.safetensors"), "an earlier end").unwrap();
    let report = eval(&["--checkpoint", text(&out)]);
    let model = report["model"].as_str().unwrap();
    assert!(model.contains("checkpoints") && model.contains("step-"), "{model}");
    let told = run_ok(single(&["eval", "--device", "cpu", "--checkpoint", text(&out)])).stdout;
    assert!(told.lines().next().unwrap().contains("step-"), "{told}");
}

#[test]
fn without_a_metric_to_judge_by_the_model_is_the_last() {
    let run = train(1, OVERFITS, &["--set", "checkpoint.keep_best=none", "--set", "train.epochs=2"]);
    let end = run.events("end").remove(0);
    assert!(end.get("best").is_none() && !run.out().join("last.safetensors").exists());
    assert_close(&eval(&["--checkpoint", text(&run.out())])["eval_loss"], &end["eval_loss"]);
}

#[test]
fn early_stopping_keeps_the_best_by_its_own_metric() {
    let stopping = ["--set", "train.early_stop_patience=2", "--set", "train.early_stop_metric=eval_f1_macro"];
    let stopped = train(1, OVERFITS, &stopping);
    assert_eq!(stopped.events("end")[0]["best"]["metric"], "eval_f1_macro");
    let other = [&["train", "--set", "checkpoint.keep_best=eval_accuracy"], &stopping[..]].concat();
    let refused = run(single(&other));
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        refused.stderr.contains("must be \"eval_f1_macro\", the metric of early stopping"),
        "{}",
        refused.stderr
    );
}

#[test]
fn metrics_that_are_asked_for_are_in_the_events() {
    let sets = [
        "--set",
        "train.eval_metrics=[\"all\", \"roc_auc\"]",
        "--set",
        "train.train_metrics=true",
        "--set",
        "train.epochs=2",
    ];
    let run = train(1, OVERFITS, &sets);
    let epochs = run.events("epoch");
    for epoch in &epochs {
        assert!(
            epoch["eval_roc_auc"].as_f64().unwrap() > 0.9
                && epoch["train_balanced_accuracy"].as_f64().unwrap() > 0.5
        );
        assert_eq!(epoch["eval_per_class"].as_object().unwrap().len(), 10);
    }
    // Costly metrics that are not named are measured in the last evaluation.
    assert!(
        epochs[0].get("eval_average_precision").is_none() && epochs[0].get("eval_confusion_matrix").is_none()
    );
    let end = run.events("end").remove(0);
    assert!(end["eval_average_precision"].as_f64().unwrap() > 0.9);
    let counts = end["eval_confusion_matrix"]["counts"].as_array().unwrap();
    let sum: i64 = counts.iter().flat_map(|row| row.as_array().unwrap()).map(|n| n.as_i64().unwrap()).sum();
    assert_eq!((counts.len(), sum), (10, 359));
}

#[test]
fn all_metrics_are_the_same_on_1_2_and_3_ranks() {
    let run = train(1, OVERFITS, &["--set", "train.epochs=1"]);
    let out = run.out();
    let measure = |n_ranks: usize| -> Value {
        let args = ["eval", "--checkpoint", text(&out), "--metrics", "all", "--json", "--device", "cpu"];
        serde_json::from_str(&run_ok(ranks(n_ranks, &args)).stdout).unwrap()
    };
    let want = measure(1);
    assert!(want["eval_per_class"]["9"]["roc_auc"].as_f64().unwrap() > 0.5);
    for n_ranks in [2, 3] {
        let got = measure(n_ranks);
        assert_eq!(got["eval_confusion_matrix"], want["eval_confusion_matrix"]);
        for (key, want) in want.as_object().unwrap() {
            match want.as_f64() {
                Some(_) => assert_close(&got[key], want),
                None => assert!(got.get(key).is_some(), "{key}"),
            }
        }
    }
}

#[test]
fn eval_prints_the_file_and_a_table() {
    let run = train(1, OVERFITS, &["--set", "train.epochs=1"]);
    let out = run.out();
    let Outcome { stdout, .. } =
        run_ok(single(&["eval", "--checkpoint", text(&out), "--metrics", "f1_micro,confusion_matrix"]));
    let model = out.join("model.safetensors");
    assert!(stdout.starts_with("359 rows of builtin:digits"), "{stdout}");
    for part in [text(&model), "F1 (micro)", "true \\ predicted"] {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    assert!(!stdout.contains("balanced"), "{stdout}");
}

#[test]
fn unknown_metrics_are_refused_with_the_likeliest_name() {
    let run_of = |args: &[&str]| {
        let outcome = run(single(args));
        assert_eq!(outcome.status.code(), Some(2), "{}", outcome.stderr);
        outcome.stderr
    };
    let refused = run_of(&["train", "--set", "train.early_stop_metric=eval_f1"]);
    assert!(refused.contains("did you mean \"eval_f1_macro\"?"), "{refused}");
    let refused = run_of(&["train", "--set", "train.eval_metrics=[\"auc\"]"]);
    assert!(refused.contains("did you mean roc_auc?"), "{refused}");
    let trained = train(1, OVERFITS, &["--set", "train.epochs=1"]);
    let refused = run_of(&["eval", "--checkpoint", text(&trained.out()), "--metrics", "mae"]);
    assert!(refused.contains("task \"classification\" does not give it"), "{refused}");
}

#[test]
fn rows_that_cannot_be_judged_are_an_error_or_a_warning() {
    let folder = temp_dir();
    let csv = made_up_csv(40, 3, "classification", 0);
    let rows = write(folder.path(), "rows.csv", &csv);
    let out = folder.path().join("out");
    let train = |sets: &[&str]| {
        let mut args = vec![
            "train",
            "--out",
            text(&out),
            "--overwrite",
            "--set",
            "train.epochs=1",
            "--set",
            "data.target=label",
        ];
        sets.iter().for_each(|set| args.extend(["--set", set]));
        run(single(&args))
    };
    let rows = text(&rows);
    let outcome = train(&[&format!("data.train={rows}"), &format!("data.eval={rows}")]);
    assert!(outcome.status.success(), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("warning: data.eval is data.train"), "{}", outcome.stderr);

    // Features so large that the outputs overflow.
    let huge: String = csv
        .lines()
        .take(1)
        .chain(["3e38,-3e38,3e38,0", "-3e38,3e38,3e38,1"])
        .fold(String::new(), |text, line| text + line + "\n");
    let huge = write(folder.path(), "huge.csv", &huge);
    let outcome = run_ok(single(&["eval", "--checkpoint", text(&out), "--data", text(&huge), "--json"]));
    assert!(outcome.stderr.contains("warning: eval_loss is "), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("\"eval_loss\":null"), "{}", outcome.stdout);

    let weighted = |weight: &str| {
        csv.lines().enumerate().fold(String::new(), |text, (i, line)| {
            text + line + "," + if i == 0 { "w" } else { weight } + "\n"
        })
    };
    let (ones, zeros) =
        (write(folder.path(), "ones.csv", &weighted("1")), write(folder.path(), "zeros.csv", &weighted("0")));
    let outcome = train(&[
        &format!("data.train={}", text(&ones)),
        &format!("data.eval={}", text(&zeros)),
        "data.weight=w",
    ]);
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("the weights of all 40 evaluation rows"), "{}", outcome.stderr);
    let outcome = train(&[&format!("data.train={}", text(&zeros)), "data.weight=w"]);
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("the weights of all 40 training rows"), "{}", outcome.stderr);
}

/// Without an evaluation that could be the best, the last weights would be the model and patience would end the run.
#[test]
fn a_metric_that_the_rows_do_not_define_judges_nothing() {
    let folder = temp_dir();
    let table = |name: &str, label: fn(usize) -> String| {
        let row = |n: usize| format!("{}.5,{},{}\n", n * 7 % 11, n % 5, label(n));
        text(&write(folder.path(), name, &format!("a,b,y\n{}", (0..40).map(row).collect::<String>())))
            .to_owned()
    };
    let (both, one) = (table("both.csv", |n| (n % 2).to_string()), table("one.csv", |_| "1".to_owned()));
    let (some, constant) =
        (table("some.csv", |n| format!("{}.25", n % 9)), table("constant.csv", |_| "2.5".to_owned()));
    let out = folder.path().join("out");
    for (train, eval, task, sets, refused) in [
        (&both, &one, "classification", &["checkpoint.keep_best=eval_roc_auc"][..], true),
        (
            &both,
            &one,
            "classification",
            &["train.early_stop_metric=eval_roc_auc", "train.early_stop_patience=3"],
            true,
        ),
        (&some, &constant, "regression", &["checkpoint.keep_best=eval_r2"], true),
        (
            &some,
            &constant,
            "regression",
            &["train.early_stop_metric=eval_r2", "train.early_stop_patience=3"],
            true,
        ),
        // It decides nothing.
        (&some, &constant, "regression", &["train.early_stop_metric=eval_r2"], false),
        (&both, &both, "classification", &["checkpoint.keep_best=eval_roc_auc"], false),
    ] {
        for n_ranks in [1, 2] {
            let rows =
                [format!("data.train={train}"), format!("data.eval={eval}"), format!("data.task={task}")];
            let mut args =
                vec!["train", "--out", text(&out), "--overwrite", "--epochs", "2", "--target", "y"];
            rows.iter()
                .map(String::as_str)
                .chain(sets.iter().copied())
                .for_each(|set| args.extend(["--set", set]));
            let outcome = run(ranks(n_ranks, &args));
            let key = sets[0].split('=').next().unwrap();
            let metric = format!("is not defined for the evaluation rows of {eval}, so it cannot be `{key}`");
            let hint = format!("hint: set `{key} = \"eval_loss\"`");
            assert_eq!(
                outcome.status.code(),
                Some(if refused { 2 } else { 0 }),
                "{sets:?}: {}",
                outcome.stderr
            );
            assert_eq!(outcome.stderr.matches(&metric).count(), usize::from(refused), "{}", outcome.stderr);
            assert_eq!(outcome.stderr.contains(&hint), refused, "{}", outcome.stderr);
        }
    }
}

/// With "all" the last evaluation measures more than those before it, so the best weights are evaluated once more.
#[test]
fn the_model_is_judged_by_all_metrics_of_the_last_evaluation() {
    for n_ranks in [1, 2] {
        let run = train(n_ranks, OVERFITS, &["--set", "train.eval_metrics=all"]);
        let end = run.events("end").remove(0);
        assert_ne!(end["best"]["step"], end["steps"], "the run does not overfit: {end}");
        let model = eval(&["--checkpoint", text(&run.out()), "--metrics", "all"]);
        let last = eval(&["--checkpoint", text(&run.out().join("last.safetensors")), "--metrics", "all"]);
        for metric in ["loss", "roc_auc", "average_precision", "log_loss"] {
            assert_close(&end[format!("eval_{metric}")], &model[format!("eval_{metric}")]);
            assert_close(&end[format!("last_{metric}")], &last[format!("eval_{metric}")]);
        }
        assert_eq!(end["eval_confusion_matrix"], model["eval_confusion_matrix"]);
    }
}

#[test]
fn a_run_says_that_it_leaves_out_the_confusion_matrix() {
    let folder = temp_dir();
    let rows: String = (0..2200).map(|row| format!("{},{}\n", row % 13, row % 1100)).collect();
    write(folder.path(), "rows.csv", &format!("x,y\n{rows}"));
    let line = "train --data rows.csv --target y --task classification --epochs 1 --eval-fraction 0.5 --hidden 2 --out out --device cpu \
                --set train.eval_metrics=[\"confusion_matrix\"]";
    let outcome = run_line_ok(folder.path(), line);
    let warning = "the confusion matrix is left out: 1100 classes, expected at most 1024";
    assert_eq!(outcome.stderr.matches(warning).count(), 1, "{}", outcome.stderr);
}
