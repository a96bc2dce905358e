//! Optimizers that update whole parameters, of which ranks may hold only shards: LAMB by norms, Muon by orthogonal directions.

#![allow(clippy::unwrap_used)]

use crate::made_up::gpus::{gpus, on_gpus, world_sizes};
use crate::made_up::{Setup, Trained, assert_close};
use crate::zero::one_step;
use ddp::config::{OptimizerKind, ZeroStage};
use ddp::train::trainer::{GraphMode, TrainerOptions};
use ddp_kernels::Device;

const KINDS: [OptimizerKind; 2] = [OptimizerKind::Lamb, OptimizerKind::Muon];
const STAGES: [ZeroStage; 3] = [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients];

/// Embeddings, norms, biases and matrices of both shapes; each layer is its own bucket.
fn setup(optimizer: OptimizerKind) -> Setup {
    Setup { optimizer, ema_decay: 0.9, ..Setup::embedded() }
}

fn with_options(setup: &Setup, change: impl FnOnce(&mut TrainerOptions)) -> Setup {
    let mut setup = setup.clone();
    change(&mut setup.options);
    setup
}

/// Weights and their average.
fn numbers(trained: &Trained) -> (&[u32], Option<&[u32]>) {
    (&trained.weights, trained.averaged.as_deref())
}

#[test]
fn any_number_of_ranks_trains_as_one_in_every_stage() {
    for optimizer in KINDS {
        let setup = setup(optimizer);
        let alone = setup.train_on(1);
        assert!(alone.losses[11] < alone.losses[0], "{optimizer}: {:?}", alone.losses);
        for zero in STAGES {
            for world_size in 1..=4 {
                let trained = with_options(&setup, |options| options.zero = zero).train_on(world_size);
                assert_close(&format!("{optimizer}, {zero:?}, {world_size} ranks"), &trained, &alone);
            }
        }
    }
}

/// Muon's matrices are gathered before they are orthogonalized, so the boundaries of shards and buckets change no bit. LAMB's
/// norms are sums over shards.
#[test]
fn shards_of_matrices_change_no_bit() {
    let setup = with_options(&setup(OptimizerKind::Muon), |options| options.clip_grad_norm = 0.0);
    for world_size in [2, 3] {
        let plain = setup.train_on(world_size);
        for bucket_bytes in [1, 25 << 20] {
            let sharded = with_options(&setup, |options| {
                (options.zero, options.bucket_bytes) = (ZeroStage::Optimizer, bucket_bytes);
            });
            assert!(
                numbers(&sharded.train_on(world_size)) == numbers(&plain),
                "{world_size} ranks, {bucket_bytes} bytes"
            );
        }
    }
}

#[test]
fn a_resumed_run_is_the_same_run() {
    for optimizer in KINDS {
        for zero in STAGES {
            let setup = with_options(&setup(optimizer), |options| options.zero = zero);
            for world_size in [1, 3] {
                let whole = setup.train_on(world_size);
                let restarted = Setup { restart_after: Some(5), ..setup.clone() }.train_on(world_size);
                assert!(restarted == whole, "{optimizer}, {zero:?}, {world_size} ranks");
            }
        }
    }
}

/// For other optimizers, ranks that share memory divide the update into blocks.
#[test]
fn the_update_is_not_divided() {
    for optimizer in KINDS {
        let plain = setup(optimizer).train_on(2);
        let divided = with_options(&setup(optimizer), |options| options.divide_update_from = 1).train_on(2);
        assert!(divided == plain, "{optimizer}");
    }
}

#[test]
fn micro_shards_give_the_same_bits_on_any_number_of_ranks() {
    for (optimizer, stages) in [(OptimizerKind::Lamb, &STAGES[..1]), (OptimizerKind::Muon, &STAGES[..2])] {
        let setup = with_options(&setup(optimizer), |options| options.micro_shards = Some(4));
        let setup = Setup { n_micro: 1, ..setup };
        let alone = setup.train_on(1);
        for &zero in stages {
            for world_size in [2, 3, 4] {
                let trained = with_options(&setup, |options| options.zero = zero).train_on(world_size);
                assert!(numbers(&trained) == numbers(&alone), "{optimizer}, {zero:?}, {world_size} ranks");
            }
        }
    }
    let refused =
        TrainerOptions { micro_shards: Some(4), zero: ZeroStage::Optimizer, ..TrainerOptions::default() };
    let error = ddp_kernels::hint::with_hint(&refused.check(Device::Cpu, OptimizerKind::Lamb).unwrap_err());
    assert!(
        error.contains("\"lamb\"")
            && error.ends_with("hint: use ZeroStage::Off, or leave out `micro_shards`"),
        "{error}"
    );
    refused.check(Device::Cpu, OptimizerKind::Muon).unwrap();
}

/// The trainer also counts the bytes that a step sends for norms or directions, in every stage ([`one_step`] compares the two).
#[test]
fn ranks_hold_shards_of_the_state_and_the_bytes_sent_are_counted() {
    for optimizer in KINDS {
        for zero in STAGES {
            let setup = with_options(&setup(optimizer), |options| {
                (options.zero, options.clip_grad_norm) = (zero, 0.0);
            });
            let n_shards = if zero == ZeroStage::Off { 1 } else { 3 };
            for (state_len, flat_len, _) in one_step(&setup, 3) {
                assert_eq!(state_len * n_shards, flat_len, "{optimizer}, {zero:?}");
            }
        }
    }
}

#[test]
fn gpus_train_as_one_cpu_rank_does() {
    let Some(_gpus) = gpus(2) else { return };
    for (index, optimizer) in KINDS.into_iter().enumerate() {
        let setup = setup(optimizer);
        let cpu = setup.train_on(1);
        for (stage, zero) in STAGES.into_iter().enumerate() {
            // Across all cases, each stage is tested with each number of GPUs.
            for world_size in world_sizes(index + stage, 1) {
                let setup = with_options(&setup, |options| options.zero = zero);
                let what = format!("{optimizer}, {zero:?}, {world_size} GPUs");
                let eager = on_gpus(&setup, GraphMode::Off).train_on(world_size);
                assert_close(&what, &eager, &cpu);
                let mut graph = on_gpus(&setup, GraphMode::On).train_on(world_size);
                assert_eq!(std::mem::take(&mut graph.n_graphs), 2, "{what}");
                assert!(graph == eager, "{what}: a graph gives another result");
            }
        }
    }
}
