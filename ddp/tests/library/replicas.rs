//! Replicas that differ are detected, named and repaired: one bit of one rank is flipped, on the CPU and on GPUs.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use ddp::config::{Config, OptimizerKind, ZeroStage};
use ddp::data::Dataset;
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions, PartitionKind};
use ddp::exchange::replica_check::ReplicaDifferences;
use ddp::train::TrainError;
use ddp::train::replica_guard::ReplicaGuard;
use ddp::train::trainer::{GraphMode, StepRequest, Trainer, TrainerOptions};
use ddp_comm::{DeviceOptions, World, threads};
use ddp_kernels::{Device, Tensor, TensorRef, ops};

use crate::made_up::gpus::{gpus, on_gpus};
use crate::made_up::{Setup, by_parameter};

const STAGES: [ZeroStage; 3] = [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients];
/// Tensor and parameter whose bit is flipped, and the rank.
type Flip = (&'static str, &'static str, usize);

fn setup(zero: ZeroStage) -> Setup {
    let usual = Setup::usual();
    let options = TrainerOptions { zero, clip_grad_norm: 0.0, ..usual.options };
    Setup { optimizer: OptimizerKind::AdamW, ema_decay: 0.9, options, ..usual }
}

fn bits(trainer: &Trainer<'_>) -> Vec<u32> {
    let layout = trainer.model().layout();
    let state = trainer.state().into_iter().map(|(_, tensor)| tensor);
    let whole = |tensor: &&Tensor| tensor.numel() == layout.flat_len();
    let tensors: Vec<&Tensor> =
        std::iter::once(trainer.model().weights()).chain(state).filter(whole).collect();
    tensors.into_iter().flat_map(|tensor| by_parameter(layout, &tensor.to_vec::<f32>().unwrap())).collect()
}

/// Flips the lowest bit of the last element of a parameter in a tensor of this rank.
fn flip(trainer: &mut Trainer<'_>, tensor: &str, parameter: &str) {
    let last = trainer.model().layout().find(parameter).unwrap().range().end - 1;
    let flipped = |tensor: &Tensor| {
        let mut values = tensor.to_vec::<f32>().unwrap();
        values[last] = f32::from_bits(values[last].to_bits() ^ 1);
        Tensor::from_slice(&values, &[values.len()], tensor.device()).unwrap()
    };
    if tensor == "weights" {
        let weights = flipped(trainer.model().weights());
        trainer.set_weights(weights.view()).unwrap();
    } else {
        let (_, state) = trainer.state_mut().into_iter().find(|(name, _)| *name == tensor).unwrap();
        let values = flipped(state);
        // Copied in place, because a captured step holds the address.
        ops::copy(values.view(), state.view_mut()).unwrap();
    }
}

/// Trains for some steps, calls `inspect`, and continues training; returns the result of `inspect` and the final bits.
fn train<R>(setup: &Setup, world: &World, inspect: impl FnOnce(&mut Trainer<'_>) -> R) -> (R, Vec<u32>) {
    let device = if setup.on_gpus { Device::Cuda(world.rank().0 as u32) } else { Device::Cpu };
    world.connect_device(device, DeviceOptions { deterministic: true, ..DeviceOptions::default() }).unwrap();
    let mut trainer = setup.trainer(world, device);
    let rows: Arc<dyn Dataset> = setup.rows();
    let plan = BatchPlan {
        partition: PartitionKind::Ranks { n_micro: setup.n_micro },
        seed: 3,
        ..BatchPlan::new(setup.global_rows)
    };
    let mut loader =
        DataLoader::new(world, rows, &BatchPlan { n_epochs: Some(2), ..plan }, LoaderOptions::new(device))
            .unwrap();
    let mut inspect = Some(inspect);
    let mut result = None;
    while let Some(mut step) = loader.next_step().unwrap() {
        trainer.step(&mut step, StepRequest::default()).unwrap();
        if trainer.n_steps() == 3 {
            result = inspect.take().map(|inspect| inspect(&mut trainer));
        }
        while trainer.outcome(false).unwrap().is_some() {}
    }
    while trainer.outcome(true).unwrap().is_some() {}
    assert!(trainer.n_steps() > 4);
    let end = bits(&trainer);
    (result.unwrap(), end)
}

fn differences(setup: &Setup, world_size: usize, flips: &[Flip]) -> Vec<Option<ReplicaDifferences>> {
    threads::run(world_size, |world| {
        let inspect = |trainer: &mut Trainer<'_>| {
            assert_eq!(trainer.compare_replicas().unwrap(), None, "before the flip");
            for (tensor, parameter, rank) in flips {
                if *rank == world.rank().0 {
                    flip(trainer, tensor, parameter);
                }
            }
            trainer.compare_replicas().unwrap()
        };
        train(setup, &world, inspect).0
    })
}

/// Every rank reports the same parameters, tensors and ranks, in the order of the flat buffer.
fn finds_flipped_bits(setup_of: impl Fn(ZeroStage) -> Setup, max_world_size: usize) {
    for zero in STAGES {
        for world_size in 2..=max_world_size {
            let setup = setup_of(zero);
            let last = world_size - 1;
            let mut flips: Vec<Flip> =
                vec![("weights", "layers.2.bias", last), ("weights", "norms.0.weight", 0)];
            if zero == ZeroStage::Off {
                flips.extend([
                    ("m", "layers.3.weight", 1),
                    ("v", "layers.0.bias", last),
                    ("ema", "layers.0.weight", 0),
                ]);
            }
            let of_ranks = differences(&setup, world_size, &flips);
            let what = format!("{zero:?}, {world_size} ranks");
            assert!(of_ranks.iter().all(|of_rank| of_rank == &of_ranks[0]), "{what}: {of_ranks:?}");
            let found = of_ranks[0].as_ref().unwrap();
            let named: Vec<_> =
                found.all().iter().map(|d| (d.tensor, d.parameter.as_str(), d.groups.clone())).collect();
            let want: Vec<_> = flips
                .iter()
                .map(|&(tensor, parameter, rank)| {
                    let others: Vec<usize> = (0..world_size).filter(|other| *other != rank).collect();
                    // With two ranks it is unknown whose bit was flipped.
                    let groups =
                        if world_size == 2 { vec![vec![0], vec![1]] } else { vec![others, vec![rank]] };
                    (tensor, parameter, groups)
                })
                .collect();
            assert_eq!(named, want, "{what}");
            assert_eq!(found.have_majority(), world_size > 2);
        }
    }
}

#[test]
fn a_flipped_bit_is_named_by_tensor_parameter_and_rank() {
    finds_flipped_bits(setup, 4);
}

#[test]
fn a_flipped_bit_on_a_gpu_is_named_too() {
    let Some(_gpus) = gpus(3) else { return };
    finds_flipped_bits(|zero| on_gpus(&setup(zero), GraphMode::Auto), 3);
}

/// Other ranks hold no copy of state that only one rank updates: there is nothing to compare, and no false alarm.
#[test]
fn state_of_a_divided_update_is_not_compared() {
    let mut setup = setup(ZeroStage::Off);
    setup.options.divide_update_from = 1;
    for world_size in [2, 3] {
        let flips: &[Flip] = &[("weights", "layers.0.weight", 1)];
        let found = differences(&setup, world_size, flips).swap_remove(0).unwrap();
        assert_eq!(found.all().len(), 1, "{found}");
    }
}

fn with_copies(zero: ZeroStage) -> Setup {
    let setup = setup(zero);
    let options = TrainerOptions { zero_copies: true, bucket_bytes: 1500, ..setup.options };
    Setup { options, ..setup }
}

/// Copies of shards are updated to the bits of their owners, and change no bit of the run.
#[test]
fn copies_of_shards_are_equal_to_them() {
    for zero in [ZeroStage::Optimizer, ZeroStage::Gradients] {
        for clip_grad_norm in [0.0, 0.5] {
            for world_size in 2..=4 {
                let mut setup = with_copies(zero);
                setup.options.clip_grad_norm = clip_grad_norm;
                let run = |setup: &Setup| {
                    threads::run(world_size, |world| {
                        let compare = |trainer: &mut Trainer<'_>| trainer.compare_replicas().unwrap();
                        train(setup, &world, compare)
                    })
                };
                let copied = run(&setup);
                assert!(copied.iter().all(|(differences, _)| differences.is_none()));
                setup.options.zero_copies = false;
                for ((_, copied), (_, plain)) in copied.iter().zip(run(&setup)) {
                    // The state of two ranks with copies is as long as the weights, which come first.
                    let what = format!("{zero:?}, {world_size} ranks, clipped to {clip_grad_norm}");
                    assert!(copied[..plain.len()] == plain, "{what}");
                }
            }
        }
    }
}

/// A difference is between the two ranks that hold a shard.
#[test]
fn a_flipped_bit_of_a_copy_is_named() {
    for zero in [ZeroStage::Optimizer, ZeroStage::Gradients] {
        for world_size in 2..=4 {
            let found = threads::run(world_size, |world| {
                let inspect = |trainer: &mut Trainer<'_>| {
                    if world.rank().0 == 1 {
                        let (_, state) =
                            trainer.state_mut().into_iter().find(|(name, _)| *name == "v").unwrap();
                        let mut values = state.to_vec::<f32>().unwrap();
                        let first_of_copy = values.len() / 2;
                        values[first_of_copy] = f32::from_bits(values[first_of_copy].to_bits() ^ 1);
                        let flipped = TensorRef::from_slice(&values, &[values.len()]).unwrap();
                        ops::copy(flipped, state.view_mut()).unwrap();
                    }
                    trainer.compare_replicas().unwrap()
                };
                train(&with_copies(zero), &world, inspect).0
            });
            for found in found {
                let found = found.unwrap();
                assert!(found.to_string().starts_with("v of "), "{found}");
                assert_eq!((found.all().len(), found.have_majority()), (1, false), "{found}");
                assert_eq!(found.all()[0].groups, [[0], [1]], "{found}");
            }
        }
    }
}

/// After a repair the run ends with the same bits as an undisturbed one.
fn repairs(setup: &Setup) {
    let config = |on_difference: &str| {
        let sets = ["data.train=\"builtin:digits\"", "train.replica_check_steps=3", on_difference];
        Config::load(None, &sets.map(str::to_owned)).unwrap().train
    };
    let world_size = 3;
    let undisturbed = threads::run(world_size, |world| train(setup, &world, |_| ()).1);
    let flips = |trainer: &mut Trainer<'_>, rank: usize| {
        if rank == 2 {
            flip(trainer, "weights", "layers.1.weight");
        }
        if rank == 0 && setup.options.zero == ZeroStage::Off {
            flip(trainer, "v", "layers.0.weight");
            flip(trainer, "ema", "layers.0.weight");
        }
    };
    let repaired = threads::run(world_size, |world| {
        let guard = ReplicaGuard::new(&world, &config("train.on_replica_difference=\"repair\""));
        let inspect = |trainer: &mut Trainer<'_>| {
            assert!(guard.is_due(trainer.n_steps()) && !guard.is_due(4) && !guard.is_due(0));
            while trainer.outcome(true).unwrap().is_some() {}
            flips(trainer, world.rank().0);
            guard.check(&world, trainer).unwrap();
            assert_eq!(trainer.compare_replicas().unwrap(), None);
        };
        train(setup, &world, inspect).1
    });
    assert!(repaired == undisturbed, "{:?}", setup.options.zero);

    let stopped = threads::run(world_size, |world| {
        let guard = ReplicaGuard::new(&world, &config("train.on_replica_difference=\"stop\""));
        let inspect = |trainer: &mut Trainer<'_>| {
            flips(trainer, world.rank().0);
            guard.check(&world, trainer).unwrap_err()
        };
        train(setup, &world, inspect).0
    });
    for error in stopped {
        let text = ddp_kernels::hint::with_hint(&error);
        assert!(matches!(error, TrainError::ReplicasDiffer { step: 3, last_check: 0, .. }), "{error:?}");
        assert!(text.contains("\n  weights of layers.1.weight on rank 2 (not as on ranks 0, 1)\n"), "{text}");
        assert!(error.is_same_on_all_ranks());
        assert_eq!(ddp::Error::from(error).exit_code(), 1);
    }
}

#[test]
fn a_majority_repairs_and_by_default_the_run_stops() {
    for zero in STAGES {
        repairs(&setup(zero));
    }
}

#[test]
fn a_majority_of_gpus_repairs_as_well() {
    let Some(_gpus) = gpus(3) else { return };
    for zero in STAGES {
        repairs(&on_gpus(&Setup { deterministic: true, ..setup(zero) }, GraphMode::Auto));
    }
}

/// With two ranks or a tie, the run ends with the status on which a supervisor restarts it.
#[test]
fn without_a_majority_the_run_is_restarted() {
    let sets = [
        "data.train=\"builtin:digits\"",
        "train.replica_check_steps=3",
        "train.on_replica_difference=\"repair\"",
    ];
    let config = Config::load(None, &sets.map(str::to_owned)).unwrap().train;
    for world_size in [2, 4] {
        let setup = setup(ZeroStage::Off);
        let errors = threads::run(world_size, |world| {
            let inspect = |trainer: &mut Trainer<'_>| {
                if world.rank().0 < world_size / 2 {
                    flip(trainer, "m", "norms.1.bias");
                }
                ReplicaGuard::new(&world, &config).check(&world, trainer).unwrap_err()
            };
            train(&setup, &world, inspect).0
        });
        for error in errors {
            let text = ddp_kernels::hint::with_hint(&error);
            assert!(
                text.contains("m of norms.1.bias between ranks 0, 1") && text.contains("--resume auto"),
                "{text}"
            );
            assert!(error.is_same_on_all_ranks());
            assert_eq!(ddp::Error::from(error).exit_code(), 75);
        }
    }
}

#[test]
fn one_rank_has_nothing_to_compare() {
    let config = Config::load(None, &["data.train=\"builtin:digits\"".to_owned()]).unwrap().train;
    let is_due =
        |world: &World| (1..3000).filter(|step| ReplicaGuard::new(world, &config).is_due(*step)).count();
    assert_eq!(is_due(&World::single()), 0);
    assert_eq!(threads::run(2, |world| is_due(&world)), [2, 2]);
    let off = ddp::config::TrainConfig { replica_check_steps: 0, ..config };
    assert_eq!(threads::run(2, |world| ReplicaGuard::new(&world, &off).is_due(1000)), [false, false]);
}
