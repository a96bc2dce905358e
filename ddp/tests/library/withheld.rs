//! A step whose update is withheld leaves the weights and the optimizer state unchanged, bit for bit, but is counted: the run
//! continues as if it had not taken the step, on all ranks and devices.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::made_up::gpus::{gpus, on_gpus};
use crate::made_up::{Setup, rows_of};
use ddp::config::{CommDtype, OptimizerKind, ZeroStage};
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions, PartitionKind, Shuffle};
use ddp::data::{Dataset, Targets};
use ddp::train::trainer::{GraphMode, NonFinite, StepRequest, Trainer, TrainerOptions, Withheld};
use ddp_comm::{DeviceOptions, World, threads};
use ddp_kernels::Device;

const N_ROWS: usize = 72;
const GLOBAL_ROWS: usize = 12;
/// The step that goes wrong, from 1.
const BAD_STEP: u64 = 3;

/// Fault in the step.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fault {
    /// A value overflows in the first layer.
    Overflow,
    /// The limit is below every loss.
    Limit,
    /// The caller skips the update.
    LeftOut,
    /// No fault; the step is not taken at all.
    Absent,
}

fn rows(fault: Fault) -> Arc<dyn Dataset> {
    let n_features = Setup::usual().spec.n_features();
    let mut features: Vec<f32> =
        (0..N_ROWS * n_features).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let labels = features.chunks_exact(n_features).map(|row| i64::from(row[0] > 0.0)).collect();
    if fault == Fault::Overflow {
        let row = (BAD_STEP as usize - 1) * GLOBAL_ROWS + 7;
        features[row * n_features..][..2].fill(3e38);
    }
    rows_of(features, n_features, Targets::Labels(labels), None)
}

/// Bits of the weights and of the state of the optimizer on this rank.
fn bits(trainer: &Trainer<'_>) -> Vec<u32> {
    let state = trainer.state().into_iter().map(|(_, tensor)| tensor);
    let tensors = std::iter::once(trainer.model().weights()).chain(state);
    tensors.flat_map(|tensor| tensor.to_vec::<f32>().unwrap()).map(f32::to_bits).collect()
}

/// Trains over all rows with this fault; returns the bits at the end.
fn train(setup: &Setup, world: &World, fault: Fault) -> Vec<u32> {
    let device = if setup.on_gpus { Device::Cuda(world.rank().0 as u32) } else { Device::Cpu };
    world.connect_device(device, DeviceOptions::default()).unwrap();
    let mut trainer = setup.trainer(world, device);
    let plan = BatchPlan {
        partition: PartitionKind::Ranks { n_micro: setup.n_micro },
        shuffle: Shuffle::Off,
        seed: setup.options.seed,
        ..BatchPlan::new(GLOBAL_ROWS)
    };
    let mut loader = DataLoader::new(
        world,
        rows(fault),
        &BatchPlan { n_epochs: Some(1), ..plan },
        LoaderOptions::new(device),
    )
    .unwrap();
    let mut before = Vec::new();
    while let Some(mut rows) = loader.next_step().unwrap() {
        let step = trainer.n_steps() + 1;
        if step == BAD_STEP && fault == Fault::Absent {
            trainer.set_n_steps(step);
            continue;
        }
        if step == BAD_STEP {
            before = bits(&trainer);
        }
        let loss_limit = match fault {
            Fault::Limit if step == BAD_STEP => 0.0,
            Fault::LeftOut if step == BAD_STEP => f64::NEG_INFINITY,
            _ => f64::INFINITY,
        };
        let vote = world.rank().0 as u32;
        trainer.step(&mut rows, StepRequest { loss_limit, vote, ..StepRequest::default() }).unwrap();
        while let Some((info, outcome)) = trainer.outcome(true).unwrap() {
            let want = match fault {
                _ if info.step != BAD_STEP => None,
                Fault::Overflow => Some(Withheld::Loss),
                Fault::Limit => Some(Withheld::AboveLimit),
                Fault::LeftOut => Some(Withheld::LeftOut),
                Fault::Absent => None,
            };
            assert_eq!(outcome.withheld, want, "step {}", info.step);
            let n = world.world_size() as u64;
            assert_eq!(outcome.votes, n * (n - 1) / 2, "votes arrive with a step that is withheld, too");
        }
        if step == BAD_STEP {
            assert!(bits(&trainer) == before, "{fault:?}: the step wrote something");
        }
    }
    assert_eq!(trainer.n_steps(), (N_ROWS / GLOBAL_ROWS) as u64, "a withheld step counts");
    bits(&trainer)
}

fn setup(optimizer: OptimizerKind, options: TrainerOptions) -> Setup {
    let options = TrainerOptions { nonfinite: NonFinite::Withhold, ..options };
    Setup { optimizer, options, ema_decay: 0.9, n_rows: N_ROWS, ..Setup::usual() }
}

fn check(setup: &Setup, world_size: usize) {
    let of = |fault| threads::run(world_size, |world| train(setup, &world, fault));
    let want = of(Fault::Absent);
    for fault in [Fault::Overflow, Fault::Limit, Fault::LeftOut] {
        assert!(of(fault) == want, "{fault:?}, {world_size} ranks, {:?}", setup.options);
    }
}

/// Ways to exchange gradients and to divide the update between ranks.
fn exchanges() -> [TrainerOptions; 5] {
    let usual = Setup::usual().options;
    [
        usual,
        TrainerOptions { clip_grad_norm: 0.0, ..usual },
        TrainerOptions { zero: ZeroStage::Optimizer, ..usual },
        TrainerOptions { zero: ZeroStage::Gradients, clip_grad_norm: 0.0, ..usual },
        // Ranks with shared memory divide the update.
        TrainerOptions { divide_update_from: 64, ..usual },
    ]
}

#[test]
fn a_withheld_step_is_as_if_it_was_never_taken() {
    for optimizer in [OptimizerKind::Sgd, OptimizerKind::AdamW] {
        for options in exchanges() {
            for world_size in [1, 2, 4] {
                check(&setup(optimizer, options), world_size);
            }
        }
    }
}

#[test]
fn a_withheld_step_is_as_if_it_was_never_taken_on_gpus() {
    let Some(_gpus) = gpus(2) else { return };
    for options in exchanges() {
        for graph in [GraphMode::Auto, GraphMode::Off] {
            let setup = on_gpus(&setup(OptimizerKind::AdamW, options), graph);
            check(&setup, 1);
            check(&setup, 2);
        }
    }
    let rounded = TrainerOptions { comm_dtype: CommDtype::Bf16, ..Setup::usual().options };
    check(&on_gpus(&setup(OptimizerKind::AdamW, rounded), GraphMode::Auto), 2);
}

#[test]
fn an_average_starts_at_the_first_weights_though_the_first_step_is_withheld() {
    let setup = setup(OptimizerKind::AdamW, Setup::usual().options);
    threads::run(1, |world| {
        world.connect_device(Device::Cpu, DeviceOptions::default()).unwrap();
        let mut trainer = setup.trainer(&world, Device::Cpu);
        let plan = BatchPlan {
            partition: PartitionKind::Ranks { n_micro: setup.n_micro },
            shuffle: Shuffle::Off,
            ..BatchPlan::new(GLOBAL_ROWS)
        };
        let mut loader =
            DataLoader::new(&world, rows(Fault::Absent), &plan, LoaderOptions::new(Device::Cpu)).unwrap();
        let mut rows = loader.next_step().unwrap().unwrap();
        let request = StepRequest { loss_limit: f64::NEG_INFINITY, ..StepRequest::default() };
        trainer.step(&mut rows, request).unwrap();
        let weights = trainer.model().weights().to_vec::<f32>().unwrap();
        let (name, average) = trainer.state().pop().unwrap();
        assert_eq!((name, average.to_vec::<f32>().unwrap()), ("ema", weights));
    });
}
