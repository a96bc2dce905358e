//! Compares everything around a step with PyTorch: schedules, parameter groups, clipping, accumulation, averages of weights. The
//! cases come from `tests/golden/schedules.json` and `long_training.json` (layout in the README next to them).

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use ddp::config::Config;
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions, PartitionKind, Shuffle};
use ddp::model::file::ModelFile;
use ddp::model::{LossHead, ModelSpec, Network, ParamLayout};
use ddp::optim::optimizer::Optimizer;
use ddp::optim::run_schedule::RunSchedule;
use ddp::optim::schedule::Schedule;
use ddp::train::trainer::{Trainer, TrainerOptions};
use ddp_comm::{DeviceOptions, World, threads};
use ddp_kernels::{Device, Tensor};
use serde_json::Value;

use crate::common::{
    Tensor as Values, Weights, assert_all_close, largest_gap, quoted, read_weights, temp_dir, write,
};
use crate::made_up::gpus::gpus;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden").join(name)
}

fn golden_file(name: &str) -> Value {
    let path = golden(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap()
}

fn numbers(list: &Value) -> Vec<f64> {
    list.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// The keys of a section as TOML. Numbers, strings and lists of these have the same form in JSON.
fn section(name: &str, keys: &Value) -> String {
    let mut toml = format!("[{name}]\n");
    for (key, value) in keys.as_object().unwrap() {
        writeln!(toml, "{key} = {}", inline(value)).unwrap();
    }
    toml
}

/// The settings of an optimizer whose weight decay is for all parameters unless they say otherwise, as in PyTorch.
fn with_decay(optimizer: &Value) -> Value {
    let mut optimizer = optimizer.clone();
    optimizer.as_object_mut().unwrap().entry("decay_bias_norm").or_insert(true.into());
    optimizer
}

/// A value as TOML on one line.
fn inline(value: &Value) -> String {
    match value {
        Value::Object(keys) => {
            let keys: Vec<_> = keys.iter().map(|(key, value)| format!("{key} = {}", inline(value))).collect();
            format!("{{ {} }}", keys.join(", "))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(inline).collect::<Vec<_>>().join(", ")),
        value => value.to_string(),
    }
}

fn load(toml: &str) -> Config {
    let folder = temp_dir();
    let path = write(folder.path(), "run.toml", toml);
    let digits = ["data.train=builtin:digits".to_owned()];
    let sets = if toml.contains("[data]") { &[][..] } else { &digits };
    Config::load(Some(&path), sets).unwrap_or_else(|error| panic!("{error}\n{toml}"))
}

#[test]
fn schedules_are_those_of_pytorch() {
    let file = golden_file("schedules.json");
    let mut kinds = Vec::new();
    for case in file["cases"].as_array().unwrap() {
        let (name, base_lr) = (case["name"].as_str().unwrap(), case["base_lr"].as_f64().unwrap());
        let config = load(&section("schedule", &case["schedule"])).schedule;
        let schedule = Schedule::new(&config, base_lr, case["steps"].as_u64()).unwrap();
        kinds.push(config.shape.name());
        for (step, want) in numbers(&case["lr"]).into_iter().enumerate() {
            let got = schedule.lr(step as u64);
            // PyTorch computes most rates from the previous one, which adds a rounding error of the base rate per step.
            let bound = 1e-12 * want + 1e-15 * base_lr;
            assert!((got - want).abs() <= bound, "{name}, step {step}: {got:e} against {want:e}");
        }
    }
    kinds.dedup();
    assert_eq!(
        kinds,
        ["constant", "linear", "cosine", "step", "exponential", "cosine_restarts", "wsd", "one_cycle"]
    );
}

/// State of a rank at the end.
struct Trained {
    losses: Vec<f64>,
    grad_norms: Vec<f64>,
    weights: Weights,
    ema: Option<Weights>,
}

/// The values of a flat buffer by parameter name.
fn named(layout: &ParamLayout, flat: &Tensor) -> Weights {
    let flat = flat.to_vec::<f32>().unwrap();
    let values = |range: std::ops::Range<usize>| flat[range].to_vec();
    let entries = layout.entries().iter();
    entries
        .map(|entry| {
            (entry.name.clone(), Values { shape: entry.dims.clone(), values: values(entry.range()) })
        })
        .collect()
}

/// Trains with `config` on this rank of the world, starting from `init`.
fn train(world: &World, config: &Config, init: &Path, device: Device) -> Trained {
    world.connect_device(device, DeviceOptions::default()).unwrap();
    let data = ddp_tables::load(config, world).unwrap();
    let layout = data.train.layout();
    let spec = ModelSpec::new(&config.model, layout.n_features(), layout.targets.n_outputs());
    let global_rows = config.train.global_rows(world.world_size()).unwrap();
    let mut model = Network::new(spec, global_rows, device, config.train.precision).unwrap();
    model.set_weights(ModelFile::read(init).unwrap().weights(model.layout()).unwrap().view()).unwrap();
    let loss = LossHead::new(&config.loss, device).unwrap();
    let optimizer = Optimizer::for_model(&config.optimizer, &model).unwrap();
    let options = TrainerOptions { clip_grad_norm: config.train.clip_grad_norm, ..TrainerOptions::default() };
    let mut trainer = Trainer::new(world, model, loss, optimizer, options).unwrap();

    let n_micro = config.train.grad_accum_steps;
    let plan = BatchPlan {
        partition: PartitionKind::Ranks { n_micro },
        shuffle: Shuffle::Off,
        ..BatchPlan::new(global_rows)
    };
    let n_steps = (data.train.len() / global_rows) as u64;
    let mut loader = DataLoader::new(
        world,
        data.train.clone(),
        &BatchPlan { n_epochs: Some(1), ..plan },
        LoaderOptions::new(device),
    )
    .unwrap();
    let schedule = RunSchedule::new(&config.schedule, &config.optimizer, Some(n_steps)).unwrap();
    let (mut losses, mut grad_norms) = (Vec::new(), Vec::new());
    while let Some(mut step) = loader.next_step().unwrap() {
        trainer.set_lr(schedule.lr(trainer.n_steps()));
        trainer.set_group_lrs(&schedule.group_lrs(trainer.n_steps()));
        let outcome = trainer.step_and_wait(&mut step, true).unwrap();
        losses.push(outcome.sums.mean());
        grad_norms.push(outcome.grad_norm.unwrap());
    }
    let layout = trainer.model().layout();
    Trained {
        losses,
        grad_norms,
        weights: named(layout, trainer.model().weights()),
        ema: trainer.state().into_iter().find(|(name, _)| *name == "ema").map(|(_, ema)| named(layout, ema)),
    }
}

/// Trains every case on this many ranks and compares all values in the case.
fn check_all(n_ranks: usize, device: impl Fn(usize) -> Device + Sync) {
    let file = golden_file("long_training.json");
    let cases = file["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 7);
    for case in cases {
        let name = case["name"].as_str().unwrap();
        let toml = format!(
            "[data]\ntrain = {}\nshuffle = {}\nnormalize = \"none\"\n[model]\nhidden = {}\nactivation = \"gelu\"\nnorm = \"layer\"\n\
             {}{}{}global_batch_size = {}\n",
            quoted(&golden(case["csv"].as_str().unwrap())),
            file["shuffle"],
            case["hidden"],
            section("optimizer", &with_decay(&case["optimizer"])),
            section("schedule", &case["schedule"]),
            section("train", &case["train"]),
            file["batch_size"],
        );
        let config = load(&toml);
        let init = golden(case["init"].as_str().unwrap());
        for run in threads::run(n_ranks, |world| train(&world, &config, &init, device(world.rank().0))) {
            let what = |of: &str| format!("{name} on {n_ranks} ranks: {of}");
            assert_eq!(run.losses.len(), 10);
            assert_all_close(&what("loss"), &run.losses, &numbers(&case["losses"]), 1e-6);
            // A norm over parameters whose gradients differ by about 1e-6 each, in the worst case all in the same direction.
            assert_all_close(&what("grad_norm"), &run.grad_norms, &numbers(&case["grad_norms"]), 1e-5);
            // Rounding alone changes a weight by up to 4.4e-7 in PyTorch (`float64_weight_gap`), and by about as much here: AdamW
            // with steps of 2e-3 turns a relative error of a small gradient into the same fraction of a step.
            let gap = |of: &str, got: &Weights, file: &Value| {
                let (gap, place) = largest_gap(got, &read_weights(&golden(file.as_str().unwrap())));
                assert!(gap <= 2e-6, "{}: {place}: {gap:e} apart", what(of));
            };
            gap("weights", &run.weights, &case["final"]);
            assert_eq!(run.ema.is_some(), case["ema"].is_string(), "{}", what("average"));
            if let Some(ema) = &run.ema {
                gap("average", ema, &case["ema"]);
            }
        }
    }
}

#[test]
fn groups_clipping_accumulation_and_averages_are_those_of_pytorch() {
    check_all(1, |_| Device::Cpu);
}

/// If there are too few GPUs, it prints that and passes; with `REQUIRE_GPUS=N` it fails if there are fewer than N.
#[test]
fn and_so_they_are_on_gpus() {
    for n_ranks in [1, 2] {
        if let Some(_gpus) = gpus(n_ranks) {
            check_all(n_ranks, |rank| Device::Cuda(rank as u32));
        }
    }
}

#[test]
fn and_so_they_are_on_two_ranks() {
    check_all(2, |_| Device::Cpu);
}
