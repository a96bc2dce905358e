//! `ddp-train describe`: its memory of a rank equals the GPU's accounting of a run, by kind.

#![allow(clippy::unwrap_used)]

use std::sync::Barrier;

use crate::common::{made_up_csv, run_ok, single, temp_dir, write};
use ddp::config::{CommDtype, Config, Determinism, ZeroStage};
use ddp::cost::memory_plan::{MemoryKind, MemoryPlan, RankPlan, keeps_rows_on_device};
use ddp::data::Loaded;
use ddp::model::ModelSpec;
use ddp::train::setup;
use ddp::train::setup::BatchPartition;
use ddp::train::trainer::GraphMode;
use ddp_comm::{DeviceOptions, World, threads};
use ddp_kernels::cpu::threads as cpu_threads;
use ddp_kernels::cuda::Gpu;
use ddp_kernels::{Device, MemoryUse};
use serde_json::Value;

/// Bytes of each use after two steps according to the GPU's accounting, and according to the plan; and whether the optional memory of the
/// plan was taken, which is among them then.
fn account_and_plan(world: &World, config: &Config) -> ([Vec<usize>; 2], bool) {
    let index = world.rank().0 as u32;
    let (gpu, device) = (Gpu::get(index).unwrap(), Device::Cuda(index));
    let register_buffers = config.comm.register_buffers;
    world.connect_device(device, DeviceOptions { register_buffers, ..DeviceOptions::default() }).unwrap();
    let before = gpu.memory_in_use().unwrap().bytes;
    let data: Loaded = ddp_tables::load(config, world).unwrap();
    let layout = data.train.layout();
    let spec = ModelSpec::new(&config.model, layout.n_features(), layout.targets.n_outputs())
        .with_embeddings(data.preprocessor.embeddings.clone());
    let partition = BatchPartition::new(config, world, &data, None).unwrap();
    let plan = RankPlan {
        config,
        data: &data,
        spec: &spec,
        partition,
        zero: config.comm.zero,
        device,
        keeps_rows_on_device: keeps_rows_on_device(config, &data, device).unwrap(),
        n_threads: cpu_threads::current(),
    };
    let planned = MemoryPlan::new(&plan);

    let mut trainer = setup::trainer(world, GraphMode::Auto, config, &data, &partition, device).unwrap();
    let (mut loader, _) = setup::loader(config, &data, &partition, world, device, None).unwrap();
    for _ in 0..2 {
        let mut step = loader.next_step().unwrap().unwrap();
        trainer.step_and_wait(&mut step, true).unwrap();
    }
    // The model that is written at the end is that of the average, if one is kept.
    trainer.with_averaged(|_, _| Ok(())).unwrap();
    let after = gpu.memory_in_use().unwrap().bytes;
    // Scratch memory is kept by the GPU between runs.
    let begun = |of: MemoryUse| if of == MemoryUse::Workspace { 0 } else { before[of as usize] };
    let takes_optional = trainer.model().is_beside();
    assert!(planned.optional > 0 || !takes_optional);
    let account = MemoryUse::ALL.into_iter().map(|of| after[of as usize] - begun(of)).collect();
    let of_use = |of: MemoryUse| {
        let kinds = MemoryKind::ALL.into_iter().filter(|kind| kind.memory_use() == Some(of));
        let optional = if of == MemoryUse::Workspace && takes_optional { planned.optional } else { 0 };
        kinds.map(|kind| planned.of(kind)).sum::<usize>() + optional
    };
    ([account, MemoryUse::ALL.into_iter().map(of_use).collect()], takes_optional)
}

/// Compares both on as many GPUs as ranks, without other work on them.
/// Returns whether the optional memory was taken.
#[track_caller]
fn check(what: &str, config: &Config, world_size: usize) -> bool {
    static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let end = Barrier::new(world_size);
    let compared = threads::run(world_size, |world| {
        let both = account_and_plan(&world, config);
        end.wait();
        both
    });
    let takes_optional = compared.iter().any(|(_, takes_optional)| *takes_optional);
    for (rank, ([account, plan], _)) in compared.into_iter().enumerate() {
        for ((of, account), plan) in MemoryUse::ALL.into_iter().zip(account).zip(plan) {
            let of = of.name();
            // Means and deviations for normalization, 8 bytes per feature, and the addresses of the embedding tables.
            let slack = if of == "other" { 1024 } else { 0 };
            assert!(
                account.abs_diff(plan) <= plan / 50 + slack,
                "{what}, rank {rank} of {world_size}: {of}: {account} bytes, planned {plan}"
            );
        }
    }
    takes_optional
}

/// Runs with different kinds of buffers; the last one has embeddings.
fn configs(csv: &str) -> Vec<(String, Config)> {
    let wide = "model.hidden=[300,200,200]";
    let batch_norm = concat!(
        "model.layers=[{kind=\"linear\",out_features=300,activation=\"relu\"},{kind=\"batch_norm\"},",
        "{kind=\"linear\",out_features=700},{kind=\"batch_norm\"}]"
    );
    let heads = "heads=[{name='a',task='regression',target='t0'},{name='b',task='regression',target='t1'}]";
    let cases: [&[&str]; 17] = [
        &["model.hidden=[256,256]", "optimizer.kind=sgd"],
        // 4 MiB of gradients, not quite a multiple of 2 MiB.
        &["model.hidden=[1000,1000]", "optimizer.kind=sgd", "comm.register_buffers=on"],
        &[wide, "train.precision=bf16", "comm.dtype=bf16", "comm.register_buffers=auto"],
        &[wide, "train.deterministic=world", "train.micro_shards=8", "comm.register_buffers=on"],
        &[wide, "optimizer.kind=lamb", "optimizer.groups=[{match=\"*.bias\",schedule={kind=\"cosine\"}}]"],
        &[wide, "optimizer.kind=muon", "model.norm=layer"],
        &[wide, "model.kind=periodic_mlp", "model.dropout=0.1"],
        &[batch_norm, "train.batch_size=31", "train.grad_accum_steps=2"],
        &[batch_norm, "train.precision=bf16"],
        &[wide, heads, "optimizer.kind=lamb"],
        &[wide, "model.activation=gelu", "model.norm=layer", "model.dropout=0.1", "train.ema_decay=0.9"],
        &[
            wide,
            "model.activation=gelu_tanh",
            "model.residual=true",
            "train.grad_accum_steps=3",
            "train.batch_size=7",
        ],
        &[wide, "train.precision=bf16", "comm.dtype=bf16", "data.normalize=standard", "optimizer.momentum=0"],
        &[wide, "train.precision=f16", "train.clip_grad_norm=1"],
        &[wide, "model.kind=swiglu", "model.dropout=0.1", "train.precision=bf16"],
        &[wide, "train.deterministic=world", "train.micro_shards=8", "data.placement=host"],
        &[
            "data.categorical=[\"f0\"]",
            "data.encode=embedding",
            "data.task=regression",
            "data.target=[\"t0\",\"t1\"]",
        ],
    ];
    let config = |sets: &&[&str]| {
        let is_table = sets.iter().any(|set| set.contains("categorical") || set.contains("heads"));
        let train = if is_table { csv } else { "builtin:digits" };
        let mut all = vec![format!("data.train={train}"), "data.eval=none".to_owned()];
        all.extend(sets.iter().map(|set| (*set).to_owned()));
        (sets.join(" "), Config::load(None, &all).unwrap_or_else(|error| panic!("{error}")))
    };
    cases.iter().map(config).collect()
}

#[test]
#[allow(clippy::print_stdout)]
fn memory_is_as_described() {
    let folder = temp_dir();
    let csv = write(folder.path(), "rows.csv", &made_up_csv(400, 20, "regression", 0));
    let found = Gpu::count();
    let required = std::env::var("REQUIRE_GPUS").ok().map_or(0, |n| n.parse().unwrap());
    for world_size in [1, 2] {
        assert!(found >= world_size.min(required), "needs {world_size} GPUs, found {found}");
        if found < world_size {
            println!("skipped: needs {world_size} GPUs, found {found}");
            continue;
        }
        for (index, (what, config)) in configs(csv.to_str().unwrap()).into_iter().enumerate() {
            // Gradients that are sharded are sent unchanged, and not along a tree.
            let is_plain =
                config.comm.dtype == CommDtype::F32 && config.train.deterministic == Determinism::Off;
            let mut stages = ZeroStage::ALL.to_vec();
            stages.retain(|zero| is_plain || *zero != ZeroStage::Gradients);
            if world_size == 1 {
                // A single rank shards nothing.
                stages.truncate(1);
            } else if index > 0 && std::env::var_os("ALL_COMBINATIONS").is_none() {
                stages = vec![stages[index % stages.len()]];
            }
            for zero in stages {
                let mut config = config.clone();
                config.comm.zero = zero;
                check(&format!("{what}, zero {}", zero.number()), &config, world_size);
            }
        }
    }
}

#[test]
#[allow(clippy::print_stdout)]
fn optional_memory_is_taken_only_where_it_is_used() {
    if Gpu::count() == 0 {
        println!("skipped: needs a GPU");
        return;
    }
    for (sets, may_take) in [
        (&["train.precision=bf16"][..], true),
        (&["train.deterministic=world", "train.micro_shards=8"], false),
        (&["comm.overlap=false"], false),
    ] {
        let all = ["data.eval=none", "model.hidden=[64,64]"].iter().chain(sets).map(|set| (*set).to_owned());
        let config = Config::load(None, &all.collect::<Vec<_>>()).unwrap();
        let what = sets.join(" ");
        let takes = check(&what, &config, 1);
        // Two products beside each other take as long as one on the virtual GPU; on others times decide.
        let is_virtual = Gpu::get(0).unwrap().info().is_virtual();
        assert!(takes == may_take || may_take && !is_virtual, "{what}: {takes}");
    }
}

/// Whatever the steps in which NCCL takes memory: with 2.21 and a switch, half a GiB for each buffer, and then on request alone.
#[test]
#[allow(clippy::print_stdout)]
fn registered_memory_is_as_described() {
    if Gpu::count() < 2 {
        println!("skipped: needs 2 GPUs, found {}", Gpu::count());
        return;
    }
    for register in ["on", "auto"] {
        for zero in [0, 1] {
            let sets = ["data.eval=none".to_owned(), format!("comm.register_buffers={register}")];
            let sets =
                sets.into_iter().chain([format!("comm.zero={zero}"), "model.hidden=[300,300]".to_owned()]);
            let config = Config::load(None, &sets.collect::<Vec<_>>()).unwrap();
            check(&format!("register_buffers {register}, zero {zero}"), &config, 2);
        }
    }
}

#[test]
fn a_run_on_gpus_that_are_not_there_is_described() {
    let args = ["describe", "--json", "--device", "cuda", "--world-size", "8", "--zero", "1"];
    let outcome = run_ok(single(&args));
    let report: Value = serde_json::from_str(&outcome.stdout).unwrap();
    assert_eq!((&report["device"], &report["world_size"]), (&"cuda".into(), &8.into()));
    assert_eq!((&report["zero"], &report["global_rows"]), (&1.into(), &256.into()));
    assert_eq!(report["parameters"][0]["shape"], serde_json::json!([128, 64]));
    assert_eq!(report["n_parameters"], 17_226);
    let stages = report["memory"].as_array().unwrap();
    let optimizer = |stage: &Value| {
        let kinds = stage["bytes"].as_array().unwrap();
        kinds.iter().find(|kind| kind["what"] == "optimizer").unwrap()["bytes"].as_u64().unwrap()
    };
    assert_eq!(stages.len(), 3);
    assert!(optimizer(&stages[0]) > 7 * optimizer(&stages[1]), "{report}");
    let total = stages[0]["bytes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|kind| kind["bytes"].as_u64().unwrap())
        .sum::<u64>();
    assert_eq!(stages[0]["total_bytes"], total);
    assert_eq!(stages[0]["optional_bytes"], 0, "for one rank");
    let text = run_ok(single(&["describe", "--device", "cuda"])).stdout;
    assert!(text.contains("\noptional: 32.000 MiB of scratch on the device"), "{text}");

    let text = run_ok(single(&["describe"])).stdout;
    assert!(text.contains("layers.0.weight  128 x 64") && text.contains("MiB on rank 0 of 1"), "{text}");
}

#[test]
fn every_kind_of_layer_is_named_with_its_sizes() {
    let layers = "{ kind = \"linear\", out_features = 16, activation = \"tanh\" }, { kind = \"glu\", out_features = 12 }, \
        { kind = \"glu\", out_features = 12, gate = \"geglu\" }, { kind = \"glu\", out_features = 12, gate = \"reglu\" }, \
        { kind = \"layer_norm\" }, { kind = \"rms_norm\" }, { kind = \"batch_norm\" }, { kind = \"dropout\", p = 0.25 }, \
        { kind = \"activation\", activation = \"gelu\" }, { kind = \"scale\" }, \
        { kind = \"residual\", layers = [{ kind = \"rms_norm\" }, { kind = \"linear\", out_features = 12 }] }, \
        { kind = \"numeric_embedding\", dim = 4 }";
    let text = run_ok(single(&["describe", "--set", &format!("model.layers=[{layers}]")])).stdout;
    let line = "layers: linear 64 -> 16; tanh; linear 16 -> 24; swiglu; linear 12 -> 24; geglu; linear 12 -> 24; reglu; layer norm; \
        rms norm; batch norm; dropout 0.25; gelu; scale; skip begins; rms norm; linear 12 -> 12; plus the value where the skip \
        began; embedding of 12 numbers by 16 cosines, 4 wide; linear 48 -> 10\n";
    assert!(text.contains(line), "{text}");
    // 3,798 is the sum of the sizes in the table.
    assert!(text.lines().any(|line| line.starts_with("total ") && line.ends_with(" 3,798")), "{text}");
}
