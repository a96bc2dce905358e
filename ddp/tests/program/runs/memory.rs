//! The peak of a run's memory is what `describe` names, from its start to the last file that it writes: a container is refused by that
//! figure, and a process that takes more is killed.

use std::path::Path;

use serde_json::Value;

use crate::common::{
    made_up_csv, ranks, read_weights, run_line_ok, run_ok, run_with_peak, same_bits, single, temp_dir, write,
};

/// Memory of a run with a large model that nothing names, in KiB, less than a copy of the weights: each large buffer takes whole pages of
/// 2 MiB, and a large file is written in two chunks of 8 MiB.
const MARGIN_KIB: f64 = 24.0 * 1024.0;

/// Peak memory of `train`, and the bytes that `describe` names for the same run, both in KiB.
fn peak_and_plan(folder: &Path, words: &str) -> [f64; 2] {
    let line = format!(
        "--set data.train=rows.csv --set data.target=['t0','t1'] --set data.normalize=none --device cpu {words}"
    );
    let described = run_line_ok(folder, &format!("describe --json {line}")).stdout;
    let described: Value = serde_json::from_str(&described).unwrap();
    let train = format!("train --quiet --threads 1 --out run --overwrite {line}");
    let mut command = single(&train.split_whitespace().collect::<Vec<_>>());
    let peak = run_with_peak({
        command.current_dir(folder);
        command
    });
    [peak.1 as f64, described["memory"][0]["total_bytes"].as_f64().unwrap() / 1024.0]
}

#[test]
fn a_run_takes_the_memory_that_describe_names() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "rows.csv", &made_up_csv(64, 8, "regression", 0));
    // 35.4 MiB of weights, which take few pages that they do not fill.
    let (large, small) = ("--set model.hidden=[3040,3040]", "--set model.hidden=[4]");
    let evaluated = "--set data.eval_fraction=0.25 --set train.eval_every_steps=1";
    for run in [
        "--set optimizer.kind=sgd --set optimizer.momentum=0 --set checkpoint.async=false".to_owned(),
        "--set optimizer.kind=adamw --set checkpoint.every_minutes=0 --set checkpoint.keep_best=none"
            .to_owned(),
        format!("--set optimizer.kind=adamw --set checkpoint.every_steps=1 {evaluated}"),
        format!(
            "--set optimizer.kind=adamw --set checkpoint.every_steps=2 --set train.ema_decay=0.9 {evaluated}"
        ),
    ] {
        let of = |model: &str| {
            // Several saves: what one leaves to the allocator, the next ones would add to.
            let steps = if run.contains("every_steps=1 ") { 9 } else { 3 };
            let keys =
                format!("--set data.task=regression --set train.steps={steps} --set train.batch_size=16");
            peak_and_plan(folder, &format!("{keys} {model} {run}"))
        };
        let ([base, base_plan], [peak, plan]) = (of(small), of(large));
        let (grown, planned) = (peak - base, plan - base_plan);
        assert!(
            grown <= planned + MARGIN_KIB,
            "{run}: {grown} KiB more with the large model, described {planned}"
        );
        // A plan that names too much refuses containers that are large enough.
        assert!(grown >= planned * 0.8, "{run}: {grown} KiB more with the large model, described {planned}");
    }
}

/// Weights, gradients, two moments and the best weights. A snapshot would be three times the weights more.
#[test]
fn a_run_that_is_saved_at_its_end_takes_no_memory_for_a_snapshot() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "rows.csv", &made_up_csv(64, 8, "regression", 0));
    let run = "--set data.task=regression --set train.steps=3 --set train.batch_size=16 --set optimizer.kind=adamw \
               --set data.eval_fraction=0.25 --set train.eval_every_steps=1";
    let [base, _] = peak_and_plan(folder, &format!("{run} --set model.hidden=[4]"));
    let [peak, _] = peak_and_plan(folder, &format!("{run} --set model.hidden=[3040,3040]"));
    let weights_kib = folder.join("run/model.safetensors").metadata().unwrap().len() as f64 / 1024.0;
    let grown = (peak - base) / weights_kib;
    assert!((4.0..6.5).contains(&grown), "{grown:.2} times the weights");
}

#[test]
fn what_is_saved_in_place_has_the_bytes_of_a_snapshot() {
    let folder = temp_dir();
    let folder = folder.path();
    write(folder, "rows.csv", &made_up_csv(64, 8, "regression", 0));
    // With more than 32 MiB of weights, each of the two ranks updates and saves many ranges of the state.
    let [in_place, from_snapshot] = ["false", "true"].map(|is_async| {
        let line = format!(
            "train --quiet --threads 1 --device cpu --out {is_async} --set data.train=rows.csv --set data.target=['t0','t1'] \
             --set data.task=regression --set train.steps=2 --set train.batch_size=8 --set model.hidden=[3040,3040] \
             --set checkpoint.async={is_async} --set checkpoint.every_steps=1 --set optimizer.kind=adamw"
        );
        let mut command = ranks(2, &line.split_whitespace().collect::<Vec<_>>());
        command.current_dir(folder);
        run_ok(command);
        folder.join(is_async).join("checkpoints/step-2")
    });
    for rank in 0..2 {
        let name = format!("optimizer-0000{rank}-of-00002.safetensors");
        let [a, b] = [&in_place, &from_snapshot].map(|step| std::fs::read(step.join(&name)).unwrap());
        assert!(a == b && a.len() > 30 << 20, "{name}: {} and {} bytes", a.len(), b.len());
    }
    let [a, b] = [&in_place, &from_snapshot].map(|step| read_weights(&step.join("model.safetensors")));
    assert!(same_bits(&a, &b));
}
