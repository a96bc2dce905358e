//! Algorithms and forms of matmuls on a GPU are chosen by time; a setting of the virtual GPU makes some of them slow.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use serde_json::Value;

use super::program::{count_of_rank, counts, on_gpus};
use crate::common::temp_dir;
use crate::virtual_gpu::under_virtual_gpus;

/// Runs a step of (64, 128, 10) and 32 rows in which these options of cuBLASLt are slow, with the results of earlier runs in
/// `cache`; returns the choices that it prints.
fn bench(slow: &str, cache: &Path, more: &[&str]) -> Option<Vec<Value>> {
    bench_in("17179869184", slow, cache, more)
}

/// The same on a GPU of so many bytes.
fn bench_in(memory: &str, slow: &str, cache: &Path, more: &[&str]) -> Option<Vec<Value>> {
    let args = ["bench", "step", "--dims", "64,128,10", "--batch", "32", "--steps", "2", "--warmup", "1"];
    let args = [&args[..], &["--device", "cuda", "--json"], more].concat();
    let env = [
        ("VGPU_MEMORY", memory),
        ("VGPU_LT_SLOW", slow),
        ("DDP_TRAIN_CACHE", cache.to_str().unwrap()),
        ("DDP_TRAIN_BENCH_VIRTUAL", "1"),
    ];
    let outcome = under_virtual_gpus(1, &args, &env)?;
    let report: Value = serde_json::from_str(outcome.ok()).unwrap();
    Some(report["matmul_choices"].as_array().unwrap().clone())
}

/// The choices between algorithms, or those between forms.
fn choices_with_algorithms(choices: &[Value], is_wanted: bool) -> Vec<&Value> {
    let is_algorithm = |choice: &&Value| choice["chosen"].as_str().unwrap().starts_with("algorithm ");
    choices.iter().filter(|choice| is_algorithm(choice) == is_wanted).collect()
}

#[test]
fn a_layer_without_a_bias_is_timed_without_its_gradient() {
    let out = temp_dir();
    let sets = ["train.steps=1", "model.bias=false", "model.hidden=[64]"];
    let mut args = vec!["train", "--quiet", "--device", "cuda", "--out", out.path().to_str().unwrap()];
    args.extend(sets.iter().flat_map(|set| ["--set", set]));
    // A call with the gradient of a bias but no place for it is a finding, with which it fails.
    if let Some(outcome) = under_virtual_gpus(1, &args, &[]) {
        outcome.ok();
    }
}

#[test]
fn the_fastest_algorithm_is_taken_and_kept_on_disk() {
    let [fresh, kept] = [temp_dir(), temp_dir()];
    let Some(usual) = bench("", fresh.path(), &[]) else { return };
    assert!(choices_with_algorithms(&usual, true).len() >= 5, "{usual:#?}");
    for choice in &usual {
        // The gradient of a bias is fused with the matmul of its weight.
        let first = ["algorithm 1 of 2", "fused", "DRelu and the other parts"];
        // Two products beside each other take as long as one here.
        if choice["matmul"].as_str().unwrap().starts_with("update ") {
            assert_eq!(choice["chosen"], "place 2 of 2", "{choice}");
            continue;
        }
        assert!(first.contains(&choice["chosen"].as_str().unwrap()), "{choice}");
    }
    let slow = bench("0=500", kept.path(), &[]).unwrap();
    assert_eq!(choices_with_algorithms(&slow, true).len(), choices_with_algorithms(&usual, true).len());
    for choice in choices_with_algorithms(&slow, true) {
        assert_eq!(choice["chosen"], "algorithm 2 of 2", "{choice}");
        let us = |name: &str| choice[name].as_f64().unwrap();
        assert!((us("first_us") - us("us") - 500.0).abs() < 1.0, "{choice}");
    }
    // No option is slow any more, but nothing is timed again.
    let again = bench("", kept.path(), &[]).unwrap();
    let key = |choice: &Value| {
        let first_us = choice["first_us"].as_f64().unwrap().round();
        (choice["matmul"].to_string(), choice["chosen"].to_string(), first_us)
    };
    // What was timed only to choose between forms is not asked for.
    let timed: Vec<_> = slow.iter().map(key).collect();
    assert!(
        again.len() > slow.len() / 2 && again.iter().all(|choice| timed.contains(&key(choice))),
        "{again:#?}"
    );
    let deterministic = bench("", kept.path(), &["--deterministic"]).unwrap();
    assert!(deterministic.is_empty(), "{deterministic:#?}");
}

#[test]
fn gradients_beside_others_are_tried_only_where_memory_is_free() {
    let cache = temp_dir();
    let is_place = |choice: &&Value| choice["matmul"].as_str().unwrap().starts_with("update ");
    // Scratch memory of matmuls, and 256 MiB for eight times as much as they would need.
    for (mib, n) in [(240, 0), (512, 1), (240, 0)] {
        let memory = (mib << 20).to_string();
        let Some(choices) = bench_in(&memory, "", cache.path(), &[]) else { return };
        assert_eq!(choices.iter().filter(is_place).count(), n, "{mib} MiB: {choices:#?}");
    }
}

#[test]
fn a_form_in_parts_is_taken_where_it_is_faster_than_a_fused_one() {
    let cases = [
        ("RELU_AUX_BIAS=900", "ReluAuxBias ", "ReluBias and the other parts"),
        ("RELU_AUX_BIAS=900,RELU_BIAS=900", "ReluAuxBias ", "Bias and the other parts"),
        ("RELU_AUX_BIAS=900,RELU_BIAS=900,BIAS=900", "ReluAuxBias ", "its parts"),
        ("DRELU=900,DRELU_BGRAD=900", "DReluBiasGradient ", "its parts"),
        ("DRELU=900", "DReluBiasGradient ", "fused"),
        ("BGRADB=900", "BiasGradient ", "its parts"),
        // Slower than the matmul alone, but faster than two passes.
        ("DRELU=50", "DReluBiasGradient ", "DRelu and the other parts"),
        // The bias of the layer before is then two passes less.
        ("DRELU=50,BGRADB=900", "DReluBiasGradient ", "fused"),
    ];
    for (slow, matmul, want) in cases {
        let cache = temp_dir();
        let Some(choices) = bench(slow, cache.path(), &[]) else { return };
        let forms = choices_with_algorithms(&choices, false);
        let mut forms = forms.iter().filter(|form| form["matmul"].as_str().unwrap().starts_with(matmul));
        let form = forms.next().unwrap_or_else(|| panic!("{slow}: no choice about {matmul}: {choices:#?}"));
        assert_eq!(form["chosen"], want, "{slow}: {form}");
    }
}

/// Two layers forward, two gradients of weights and one of an input.
#[test]
fn factors_are_split_where_that_is_faster() {
    for (slow, want) in [("", "f32"), ("F32=900", "split factors")] {
        let cache = temp_dir();
        let Some(choices) = bench(slow, cache.path(), &["--dtype", "f32x3"]) else { return };
        let is_of_factors =
            |choice: &&Value| ["f32", "split factors"].contains(&choice["chosen"].as_str().unwrap());
        let of_factors: Vec<_> = choices.iter().filter(is_of_factors).collect();
        assert_eq!(of_factors.len(), 5, "{slow}: {choices:#?}");
        for choice in of_factors {
            assert_eq!(choice["chosen"], want, "{slow}: {choice}");
            assert!(choice["matmul"].as_str().unwrap().ends_with(" f32>f32 f32x3"), "{choice}");
        }
        // Split factors have epilogues of their own, but no sum of rows that is the gradient of a bias.
        let is_split = |choice: &Value, epilogue: &str| {
            let text = choice["matmul"].as_str().unwrap();
            text.starts_with(epilogue) && text.ends_with("f32x3")
        };
        let has = |epilogue: &str| choices.iter().any(|choice| is_split(choice, epilogue));
        assert_eq!(
            (has("ReluAuxBias "), has("BiasGradient ")),
            (want == "split factors", false),
            "{choices:#?}"
        );
    }
}

fn train<'a>(out: &'a str, settings: &[&'a str]) -> Vec<&'a str> {
    let args = ["train", "-q", "--device", "cuda", "--out", out, "--set", "data.eval=none"];
    let settings = settings.iter().flat_map(|setting| ["--set", setting]);
    args.into_iter().chain(settings).collect()
}

#[test]
fn the_deterministic_mode_times_nothing() {
    let folder = temp_dir();
    for want in [false, true] {
        let deterministic = format!("train.deterministic={}", !want);
        let out = folder.path().join(want.to_string());
        let counted = out.with_extension("counts");
        std::fs::create_dir(&counted).unwrap();
        let settings = [&deterministic, "train.steps=3"];
        let args = train(out.to_str().unwrap(), &settings);
        let env = [("VGPU_LT_SLOW", "0=500"), ("VGPU_COUNTS", counted.to_str().unwrap())];
        let Some(outcome) = under_virtual_gpus(1, &args, &env) else { return };
        outcome.ok();
        let counts = counts(&counted);
        assert_eq!(counts.contains_key("matmul_algorithm:1"), want, "{deterministic}: {counts:#?}");
        assert!(
            counts.contains_key("matmul_algorithm:0"),
            "{deterministic}: the first one is timed, or taken"
        );
    }
}

/// Each rank alone would choose a different algorithm; all use the choice of rank 0.
#[test]
fn ranks_take_the_choices_of_the_first() {
    let folder = temp_dir();
    for (slow, taken, left) in [("0=500@1", 0, 1), ("0=500@0", 1, 0)] {
        // Within an epoch, because its last batch has a different size, whose matmuls are timed too.
        let of_steps: Option<Vec<_>> = [4, 12]
            .into_iter()
            .map(|steps| {
                let out = folder.path().join(format!("{taken}-{steps}"));
                let counted = out.with_extension("counts");
                std::fs::create_dir(&counted).unwrap();
                let steps = format!("train.steps={steps}");
                let settings = [&steps, "checkpoint.every_epochs=0"];
                let args = train(out.to_str().unwrap(), &settings);
                let env = [("VGPU_LT_SLOW", slow), ("VGPU_COUNTS", counted.to_str().unwrap())];
                on_gpus(2, 2, &args, &env)?.ok();
                let of = |algorithm: usize| {
                    [0, 1].map(|rank| count_of_rank(&counted, rank, &format!("matmul_algorithm:{algorithm}")))
                };
                Some([of(taken), of(left)])
            })
            .collect();
        let Some(of_steps) = of_steps else { return };
        let more = |kind: usize, rank: usize| of_steps[1][kind][rank] - of_steps[0][kind][rank];
        for rank in 0..2 {
            assert!(more(0, rank) >= 8.0, "{slow}: rank {rank} does not use algorithm {taken}: {of_steps:?}");
            assert_eq!(
                more(1, rank),
                0.0,
                "{slow}: rank {rank} uses algorithm {left} in steps: {of_steps:?}"
            );
        }
    }
}

#[test]
fn a_resumed_run_takes_over_the_choices_of_its_checkpoint() {
    let folder = temp_dir();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let settings = ["train.steps=8", "checkpoint.every_steps=4"];
    let choices = |out: &str, step: u64| {
        let manifest = Path::new(out).join(format!("checkpoints/step-{step}/manifest.json"));
        let manifest: Value = serde_json::from_str(&std::fs::read_to_string(manifest).unwrap()).unwrap();
        manifest["run"]["matmul_choices"].clone()
    };
    let first = path("first");
    let slow = [("VGPU_LT_SLOW", "0=500")];
    let Some(outcome) = under_virtual_gpus(1, &train(&first, &settings), &slow) else { return };
    outcome.ok();
    let saved = choices(&first, 4);
    assert!(saved.as_array().unwrap().len() > 5, "{saved:#}");
    // The first algorithm is fast again, and only the checkpoint of the earlier run is left.
    let (second, counted) = (path("second"), path("counts"));
    std::fs::create_dir(&counted).unwrap();
    let checkpoint = Path::new(&first).join("checkpoints/step-4");
    let resume = ["--resume", checkpoint.to_str().unwrap()];
    let args = [&train(&second, &[])[..], &resume].concat();
    under_virtual_gpus(1, &args, &[("VGPU_COUNTS", &counted)]).unwrap().ok();
    assert_eq!(choices(&second, 8), saved);
    let counts = counts(Path::new(&counted));
    assert!(!counts.contains_key("matmul_algorithm:0"), "{counts:#?}");
}
