//! `ddp-train plan`: memory equals what a run reports, and impossible or unknown things are named.

#![allow(clippy::unwrap_used)]

use serde_json::Value;

use crate::common::{refused, run_line, run_line_ok, temp_dir, write};
use crate::virtual_gpu::under_virtual_gpus;

const ABSENT: &str =
    "--rows 60000 --features 784 --set data.classes=10 --set data.train=away.npy --hidden 1024,1024";

/// The objects of `plan ... --json`.
fn plan(line: &str) -> Vec<Value> {
    let stdout = run_line_ok(temp_dir().path(), &format!("plan --json {line}")).stdout;
    stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[track_caller]
fn number(plan: &Value, key: &str) -> f64 {
    plan[key].as_f64().unwrap_or_else(|| panic!("no {key} in {plan}"))
}

#[test]
fn a_run_on_gpus_and_data_that_are_not_here_is_planned() {
    let plans =
        plan(&format!("{ABSENT} --gpu H100 --world 1,8,64 --set train.precision=bf16 --batch-size 512"));
    assert_eq!(plans.iter().map(|plan| number(plan, "world_size")).collect::<Vec<_>>(), [1.0, 8.0, 64.0]);
    for plan in &plans {
        let parts = ["input_ms", "forward_ms", "backward_ms", "exposed_exchange_ms", "update_ms"];
        let sum: f64 = parts.iter().map(|part| number(plan, part)).sum();
        assert!((sum / number(plan, "step_ms") - 1.0).abs() < 1e-9, "{plan}");
        assert!(number(plan, "exposed_exchange_ms") <= number(plan, "exchange_ms"), "{plan}");
        assert_eq!((&plan["fits"], &plan["is_estimate"]), (&true.into(), &true.into()));
    }
    let efficiency: Vec<_> = plans.iter().map(|plan| number(plan, "scaling_efficiency")).collect();
    assert!(efficiency[0] == 1.0 && efficiency[1] < 1.0 && efficiency[2] < efficiency[1], "{efficiency:?}");
    assert_eq!((number(&plans[0], "exchange_ms"), number(&plans[0], "steps_per_epoch")), (0.0, 118.0));
    let slow = plan(&format!(
        "{ABSENT} --gpu h100 --world 64 --network-gbit 10 --set train.precision=bf16 --batch-size 512"
    ));
    assert!(number(&slow[0], "step_ms") > 3.0 * number(&plans[2], "step_ms"), "{}", slow[0]);

    let line = format!("plan {ABSENT} --gpu h100 --world 1,8");
    let text = run_line_ok(temp_dir().path(), &line).stdout;
    for part in [
        "an estimate; constants from data sheets and from runs on one H100",
        "\nparameters",
        "fits into 81559.000",
        "8 ranks: all-reduce",
    ] {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

/// Of 8 shards a rank keeps its own and another one's, of two states, each with the weights and two moments.
#[test]
fn copies_of_shards_on_gpus_take_memory_of_the_host() {
    let memory = |more: &str| {
        let line = format!("{ABSENT} --gpu h100 --world 8 --set comm.zero=1 {more}");
        plan(&line).swap_remove(0)["memory_bytes"].clone()
    };
    let (without, with) = (memory(""), memory("--set comm.zero_copies=1"));
    let more = |name: &str| number(&with, name) - number(&without, name);
    let shard = number(&without, "optimizer") / 2.0;
    assert_eq!(more("snapshot"), 2.0 * 2.0 * 3.0 * shard, "{with}");
    assert_eq!(more("optimizer copy"), shard, "one message: {with}");
    for same in ["parameters", "gradients", "optimizer", "activations", "workspace"] {
        assert_eq!(more(same), 0.0, "{same}");
    }
}

#[test]
fn a_model_that_does_not_fit_gets_settings_with_which_it_does() {
    let line = format!("{ABSENT} --gpu h100 --memory-gib 1.9 --world 8 --hidden 4096,4096 --batch-size 8192");
    let plan = &plan(&line.replace("--hidden 1024,1024 ", ""))[0];
    assert_eq!(plan["fits"], false, "{plan}");
    let remedies = plan["remedies"].as_array().unwrap();
    assert!(!remedies.is_empty(), "{plan}");
    for remedy in remedies {
        assert_eq!(remedy["fits"], true, "{remedy}");
        // The run with these settings is planned to take as much.
        let sets =
            remedy["set"].as_array().unwrap().iter().map(|set| format!("--set {}", set.as_str().unwrap()));
        let sets: String = sets.collect::<Vec<_>>().join(" ");
        let line = format!("{ABSENT} --gpu h100 --memory-gib 1.9 --world 8 {sets}")
            .replace("--hidden 1024,1024", "--hidden 4096,4096");
        let line = if sets.contains("train.batch_size") { line } else { format!("{line} --batch-size 8192") };
        let with = &self::plan(&line)[0];
        assert_eq!((&with["device_bytes"], &with["fits"]), (&remedy["device_bytes"], &true.into()), "{sets}");
    }
}

#[test]
fn uneven_batches_are_noted_and_impossible_runs_are_part_of_the_plan() {
    let plans = plan("--gpu cpu --world 3,64,2000 --set train.global_batch_size=50");
    let note = |plan: &Value| plan["notes"][0].as_str().unwrap().to_owned();
    assert!(
        note(&plans[0]).contains("50 rows does not divide by 3 ranks: 2 of them have 17 rows"),
        "{}",
        plans[0]
    );
    assert!(note(&plans[1]).contains("14 of 64 ranks have no rows"), "{}", plans[1]);
    assert!(plans[2]["impossible"].as_str().unwrap().contains("fewer than the 2000 ranks"), "{}", plans[2]);
    let old = plan("--gpu v100 --world 1 --set train.precision=bf16");
    assert!(old[0]["impossible"].as_str().unwrap().contains("v100 has no matmuls in bf16"), "{}", old[0]);
    // With more rows it is possible.
    assert!(plan("--gpu cpu --world 2000 --rows 100000")[0]["impossible"].is_null());
}

#[test]
fn unknown_gpus_absent_data_and_files_of_something_else_are_refused() {
    let folder = temp_dir();
    let line = run_line(folder.path(), "plan --gpu h9000");
    assert!(
        line.status.code() == Some(2) && line.stderr.contains("h200") && line.stderr.contains("l40s"),
        "{line:?}"
    );
    refused(
        folder.path(),
        "plan --set data.train=away.csv",
        &["`away.csv` is not here", "--rows N --features N"],
    );
    let absent = "plan --set data.train=away.csv --rows 10 --features 3";
    refused(folder.path(), absent, &["number of classes is not known", "--set data.classes=N"]);
    refused(folder.path(), "plan --features 3", &["--rows"]);
    write(folder.path(), "bad.json", "{\"device\":\"cpu\",\"threads\":1,\"world_size\":1}\nspeed: 3\n");
    refused(
        folder.path(),
        "plan --gpu cpu --calibrate bad.json",
        &["`bad.json`, line 2", "bench addmm --json"],
    );
    write(folder.path(), "none.json", "{\"device\":\"cpu\",\"threads\":1,\"world_size\":1}\n");
    refused(folder.path(), "plan --gpu cpu --calibrate none.json", &["no measurement", "on the CPU"]);
}

/// Measured matmuls and steps replace what the table says: a step that took ten times as long is planned to take ten times as long.
#[test]
fn measured_steps_correct_the_plan() {
    let folder = temp_dir();
    let bench = "--dims 64,128,10 --batch 32 --device cpu --threads 1 --json";
    let step = run_line_ok(folder.path(), &format!("bench step {bench} --steps 20")).stdout;
    let addmm = format!("bench addmm {bench} --square 64 --repeats 1 --repeat-ms 0");
    let addmm = run_line_ok(folder.path(), &addmm).stdout;
    let mut measured: Value = serde_json::from_str(&step).unwrap();
    measured["step_ms_median"] = (10.0 * number(&measured, "step_ms_median")).into();
    write(folder.path(), "m.json", &format!("{addmm}{step}"));
    write(folder.path(), "slow.json", &format!("{addmm}{measured}\n"));
    let of = |file: &str, hidden: &str| {
        let line = format!(
            "plan --json --gpu cpu --world 1 --rows 10000 --features 64 --set data.classes=10 --batch-size 32 \
             --set data.train=away.npy --calibrate {file} --hidden {hidden}"
        );
        number(&serde_json::from_str(&run_line_ok(folder.path(), &line).stdout).unwrap(), "step_ms")
    };
    let slower = of("slow.json", "128") / of("m.json", "128");
    assert!((slower - 10.0).abs() < 1e-6, "{slower} times as long");
    assert!(of("m.json", "1024") > 2.0 * of("m.json", "128"));
}

/// Memory by use as a run on virtual GPUs reports it.
#[test]
fn memory_is_that_of_a_run() {
    let folder = temp_dir();
    let run = "--set model.hidden=[300,200] --set data.placement=device --set data.eval=none \
               --set comm.register_buffers=off --set checkpoint.every_epochs=0";
    for (n_ranks, zero, precision) in [(1, 0, "bf16"), (2, 1, "bf16"), (1, 0, "f32x3")] {
        let out = folder.path().join(format!("{n_ranks}-{zero}-{precision}"));
        let run = format!("{run} --set train.precision={precision}");
        let line = format!(
            "train -v --device cuda --set train.steps=3 --out {} {run} --set comm.zero={zero}",
            out.display()
        );
        let args: Vec<&str> = line.split_whitespace().collect();
        let outcome = match n_ranks {
            1 => under_virtual_gpus(1, &args, &[]),
            _ => crate::virtual_gpu::command_under_virtual_gpus(
                n_ranks,
                &crate::common::mpirun(&[(n_ranks, &args)]),
            ),
        };
        let Some(outcome) = outcome else { return };
        outcome.ok();
        let line = outcome
            .stderr
            .lines()
            .find_map(|line| line.split_once("bytes of GPU memory by use: "))
            .unwrap()
            .1;
        let used = |name: &str| -> f64 {
            let of_use = line.split(", ").find_map(|of_use| of_use.strip_prefix(&format!("{name} ")));
            of_use.unwrap_or_else(|| panic!("no {name} in {line}")).parse().unwrap()
        };
        let planned = &plan(&format!("--gpu h100 --world {n_ranks} {run} --set comm.zero={zero}"))[0];
        let bytes = |name: &str| number(&planned["memory_bytes"], name);
        let kinds = [
            ("parameters", bytes("parameters") + bytes("compute weights")),
            ("gradients", bytes("gradients")),
            ("optimizer", bytes("optimizer")),
            ("activations", bytes("activations")),
            ("workspace", bytes("workspace")),
            ("data", bytes("rows")),
        ];
        // Taken beside the plan where it is free and the step is faster with it: `optional_bytes` of `describe`.
        const BESIDE_BYTES: f64 = (32 << 20) as f64;
        for (name, want) in kinds {
            let mut got = used(name);
            if name == "workspace" && n_ranks == 1 && got > want + 0.9 * BESIDE_BYTES {
                got -= BESIDE_BYTES;
            }
            assert!(
                (got - want).abs() <= 0.02 * want,
                "{n_ranks} ranks, zero {zero}, {name}: {got} bytes, planned {want}"
            );
        }
    }
}
