//! The check of GPUs against the CPU: by `devices --check`, and at the first start of a run.

#![allow(clippy::unwrap_used)]

use serde_json::Value;

use super::program::{on_gpus, train_args};
use crate::common::{Outcome, read_weights, run, single, temp_dir};
use crate::virtual_gpu::under_virtual_gpus;

/// Every example agrees on a sound GPU. A broken one is named with the check that found it.
#[test]
fn devices_are_checked_against_the_cpu() {
    let Some(outcome) = under_virtual_gpus(1, &["devices", "--check", "--json"], &[]) else { return };
    let report: Value = serde_json::from_str(outcome.ok()).unwrap();
    assert_eq!(report["agrees"], true, "{report}");
    let checks = report["gpus"][0]["checks"].as_array().unwrap();
    assert!(checks.len() >= 14, "{report}");
    for check in checks {
        assert!(check["agrees"] == true && check["results"].as_array().unwrap().len() > 40, "{check}");
    }
    let results = checks.iter().flat_map(|check| check["results"].as_array().unwrap());
    let names: Vec<_> = results.map(|result| result["result"].as_str().unwrap()).collect();
    for part in [
        "features of the rows",
        "output of norms.0",
        "gradient of numeric.0.frequencies",
        "update of embeddings",
        "running_var",
    ] {
        assert!(
            names.iter().any(|name| name.starts_with(part) || name.ends_with(part)),
            "no {part} in {names:?}"
        );
    }

    let broken = [("VGPU_FAIL", "illegal:30")];
    let outcome = under_virtual_gpus(2, &["devices", "--check", "--gpu", "1"], &broken).unwrap();
    assert_eq!(outcome.status.code(), Some(1), "{outcome:#?}");
    assert!(outcome.stdout.contains("cuda:1 (Virtual GPU): 0 of 1 checks agree"), "{outcome:#?}");
    for part in ["all layers, ", "illegal memory access", "(cuda:1, ", "hint: "] {
        assert!(outcome.stderr.contains(part), "no {part} in {}", outcome.stderr);
    }
}

#[test]
fn a_gpu_that_is_not_there_cannot_be_checked() {
    let outcome = run(single(&["devices", "--check"]));
    if outcome.stdout.is_empty() {
        assert_eq!(outcome.status.code(), Some(78), "{outcome:#?}");
        assert!(outcome.stderr.contains("hint: "), "{outcome:#?}");
        assert!(!outcome.stderr.contains("--device"), "`devices` has no such flag: {outcome:#?}");
    }
    let Some(outcome) = under_virtual_gpus(1, &["devices", "--check", "--gpu", "3"], &[]) else { return };
    assert_eq!(outcome.status.code(), Some(78), "{outcome:#?}");
    assert!(outcome.stderr.contains("this host has 1 GPU"), "{outcome:#?}");
}

/// One rank checks for all at the first start of such a model; later starts, and those on the CPU, check nothing.
#[test]
fn the_first_start_checks_the_model_and_the_next_does_not() {
    let folder = temp_dir();
    let cache = folder.path().join("cache").to_str().unwrap().to_owned();
    let n_gpus = 2;
    let start = |name: &str, more: &[&str]| -> Option<usize> {
        let out = folder.path().join(name).to_str().unwrap().to_owned();
        let args =
            [&["train", "--out", &out, "--set", "train.steps=2", "--set", "data.eval=none"], more].concat();
        let outcome =
            on_gpus(n_gpus, n_gpus, &args, &[("DDP_TRAIN_CACHE", &cache), ("DDP_TRAIN_CHECK", "auto")])?;
        outcome.ok();
        Some(outcome.stderr.matches("results agree with the CPU").count())
    };
    let Some(n_checks) = start("first", &["--device", "cuda"]) else { return };
    assert_eq!(n_checks, 1, "one rank checks for all");
    assert_eq!(start("second", &["--device", "cuda"]), Some(0));
    assert_eq!(start("wider", &["--device", "cuda", "--set", "model.hidden=[9]"]), Some(0), "other sizes");
    assert_eq!(
        start("other", &["--device", "cuda", "--set", "optimizer.kind=sgd"]),
        Some(1),
        "other operations"
    );
    assert_eq!(start("always", &["--device", "cuda", "--check", "always"]), Some(1));
    assert_eq!(start("cpu", &["--device", "cpu", "--check", "always"]), Some(0));
}

/// The check is a process of its own, which such a GPU refuses while the run has it.
#[test]
fn a_gpu_for_one_process_alone_is_not_checked_at_the_start() {
    let folder = temp_dir();
    let [cache, out] = ["cache", "out"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    let args =
        ["train", "--out", &out, "--device", "cuda", "--set", "train.steps=2", "--set", "data.eval=none"];
    let env = [("DDP_TRAIN_CACHE", &*cache), ("DDP_TRAIN_CHECK", "auto"), ("VGPU_EXCLUSIVE", "1")];
    let Some(outcome) = on_gpus(2, 2, &args, &env) else { return };
    outcome.ok();
    assert!(!outcome.stderr.contains("results agree with the CPU"), "{outcome:#?}");
    assert!(outcome.stderr.contains("hint: `ddp-train devices --check`"), "{outcome:#?}");
}

/// A GPU that computes something wrong, hangs or fails in the process of the check leaves the run able to say so. Nothing is trained.
#[test]
fn a_gpu_that_fails_the_check_does_not_train() {
    let folder = temp_dir();
    let n_gpus = 2;
    let start = |name: &str, fault: &str, more: &[&str]| -> Option<Outcome> {
        let out = folder.path().join(name).to_str().unwrap().to_owned();
        let args = train_args(&out, &[&["--device", "cuda"], more].concat());
        on_gpus(n_gpus, n_gpus, &args, &[("VGPU_FAIL", fault), ("DDP_TRAIN_CHECK", "auto")])
    };
    for (fault, parts) in [
        ("wrong:matmul", ["output of layers.0 (linear ", "differs by "]),
        // The kernel also writes the outcome of the step.
        ("wrong:adam_f32", ["loss differs by ", " more of "]),
        ("wrong:layer_norm_fwd_whole_f32", ["output of norms.0 (layer norm) ", "differs by "]),
        ("hang:60", ["no result within 3 s", "Virtual GPU, driver "]),
        ("illegal:30", ["illegal memory access", "Virtual GPU, driver "]),
    ] {
        let Some(outcome) = start("failed", fault, &["--check-timeout", "3", "--set", "model.norm=layer"])
        else {
            return;
        };
        assert_eq!(outcome.status.code(), Some(1), "{fault}: {outcome:#?}");
        for part in ["the check of a GPU against the CPU failed: ", "`--check off`"].into_iter().chain(parts)
        {
            assert_eq!(outcome.stderr.matches(part).count(), 1, "{fault}: {part} in {}", outcome.stderr);
        }
        assert!(!folder.path().join("failed").exists(), "{fault}");
    }
    start("unchecked", "wrong:adam_f32", &["--check", "off"]).unwrap().ok();
    let outcome = start("impossible", "context", &[]).unwrap();
    assert!(!outcome.status.success(), "{outcome:#?}");
    let outcome = run({
        let mut command = single(&["train", "--dry-run"]);
        command.env("DDP_TRAIN_CHECK", "sometimes");
        command
    });
    assert_eq!(outcome.status.code(), Some(2), "{outcome:#?}");
    assert!(outcome.stderr.contains("DDP_TRAIN_CHECK=sometimes: expected auto"), "{outcome:#?}");
}

/// The feature is found that hangs, or that computes something wrong in ways that no other shows: the run has the weights of one without
/// it, in as many steps.
#[test]
fn the_feature_to_do_without_is_found_by_trying() {
    let folder = temp_dir();
    let start = |name: &str, fault: &str, more: &[&str]| -> Option<Outcome> {
        let out = folder.path().join(name).to_str().unwrap().to_owned();
        let args = [
            &[
                "train",
                "--device",
                "cuda",
                "--set",
                "train.steps=6",
                "--set",
                "data.eval=none",
                "--out",
                &out,
            ],
            more,
        ];
        let env = [("DDP_TRAIN_CHECK", "auto"), ("VGPU_FAIL", fault)];
        on_gpus(1, 1, &args.concat(), &env)
    };
    for (fault, feature, off) in [
        ("wrong:graph", "cuda-graph", ["--cuda-graph", "off"]),
        ("hangs:epilogue", "fused-epilogues", ["--set", "train.gpu_without=[\"fused-epilogues\"]"]),
    ] {
        let Some(outcome) = start(feature, fault, &["--check-timeout", "4"]) else { return };
        outcome.ok();
        let warning = format!("it agrees without {feature}, and the run does without");
        assert_eq!(outcome.stderr.matches(&warning).count(), 1, "{fault}: {}", outcome.stderr);
        let line = format!("GPU features that are off (docs/gpus.md): {feature}\n");
        assert!(outcome.stderr.contains(&line), "{fault}: {}", outcome.stderr);
        let sound = format!("{feature}-off");
        start(&sound, "", &[&["--check", "off"], &off[..]].concat()).unwrap().ok();
        let weights = |name: &str| read_weights(&folder.path().join(name).join("model.safetensors"));
        assert!(weights(feature) == weights(&sound), "{fault}");
    }
}

/// Where one feature computes something wrong, the check finds it, and the run, and the next one too, gives the result without it. So does
/// `predict`, by the record of the run, or on another machine by a check of its own.
#[test]
fn a_feature_that_fails_the_check_is_left_out() {
    let folder = temp_dir();
    let cache = folder.path().join("cache").to_str().unwrap().to_owned();
    let n_gpus = 2;
    let start = |name: &str, fault: &str, more: &[&str]| -> Option<Outcome> {
        let out = folder.path().join(name).to_str().unwrap().to_owned();
        let args = train_args(&out, &[&["--device", "cuda", "--progress", "plain"], more].concat());
        let args: Vec<_> = args.into_iter().filter(|arg| *arg != "-q").collect();
        let mut env = vec![("DDP_TRAIN_CHECK", "auto"), ("DDP_TRAIN_CACHE", &*cache)];
        env.extend((!fault.is_empty()).then_some(("VGPU_FAIL", fault)));
        on_gpus(n_gpus, n_gpus, &args, &env)
    };
    let Some(first) = start("first", "wrong:epilogue", &[]) else { return };
    first.ok();
    let warning = "it agrees without fused-epilogues, and the run does without";
    assert_eq!(first.stderr.matches(warning).count(), 1, "{}", first.stderr);
    let second = start("second", "wrong:epilogue", &[]).unwrap();
    second.ok();
    assert!(!second.stderr.contains(warning), "{}", second.stderr);
    for outcome in [&first, &second] {
        assert!(
            outcome.stderr.contains("GPU features that are off (docs/gpus.md): fused-epilogues"),
            "{}",
            outcome.stderr
        );
    }
    let without = ["--check", "off", "--set", "train.gpu_without=[\"fused-epilogues\"]"];
    start("sound", "", &without).unwrap().ok();
    let weights = |name: &str| read_weights(&folder.path().join(name).join("model.safetensors"));
    let want = weights("sound");
    assert!(weights("first") == want && weights("second") == want);

    let other = folder.path().join("other").to_str().unwrap().to_owned();
    let predict = |cache: &str, fault: &str, more: &[&str]| {
        let (model, out) = (folder.path().join("first"), folder.path().join("rows.csv"));
        let (model, out) = (model.to_str().unwrap(), out.to_str().unwrap());
        let args =
            ["predict", "--device", "cuda", "--checkpoint", model, "--data", "builtin:digits", "--out", out];
        let args = [&args[..], &["--overwrite"], more].concat();
        let mut env = vec![("DDP_TRAIN_CHECK", "auto"), ("DDP_TRAIN_CACHE", cache)];
        env.extend((!fault.is_empty()).then_some(("VGPU_FAIL", fault)));
        let outcome = on_gpus(n_gpus, n_gpus, &args, &env).unwrap();
        outcome.ok();
        (std::fs::read_to_string(out).unwrap(), outcome.stderr.matches(warning).count())
    };
    let (rows, n_warnings) = predict(&other, "", &[]);
    assert_eq!(n_warnings, 0);
    std::fs::remove_dir_all(&other).unwrap();
    for (cache, n_warnings) in [(&cache, 0), (&other, 1), (&other, 0)] {
        assert_eq!(predict(cache, "wrong:epilogue", &[]), (rows.clone(), n_warnings));
    }
    assert_ne!(predict(&other, "wrong:epilogue", &["--check", "off"]).0, rows);
}
