//! Micro-shards that are summed along a fixed tree: any number of ranks trains to the same bits, on CPUs and on GPUs.

#![allow(clippy::unwrap_used)]

use crate::made_up::gpus::{gpus, world_sizes};
use crate::made_up::{Setup, Trained, assert_close, losses, row_weights};
use ddp::config::{OptimizerKind, ZeroStage};
use ddp::train::trainer::{GraphMode, TrainerOptions};

const N_SHARDS: usize = 8;

fn sharded(setup: &Setup) -> Setup {
    let options = TrainerOptions { micro_shards: Some(N_SHARDS), ..setup.options };
    Setup { options, ..setup.clone() }
}

/// Steps with more rows than shards, with fewer rows in the last batch, with fewer throughout, and with indivisible numbers;
/// dropout, clipping, weights of classes and rows, embeddings, averages.
fn setups() -> Vec<(String, Setup)> {
    let mut setups = Vec::new();
    for optimizer in [OptimizerKind::Sgd, OptimizerKind::AdamW] {
        for (n_rows, global_rows) in [(29, 12), (31, 17), (16, 5), (64, 32)] {
            let setup = Setup { optimizer, n_rows, global_rows, ema_decay: 0.9, ..Setup::usual() };
            setups.push((format!("{optimizer}, {n_rows} rows in steps of {global_rows}"), setup));
        }
    }
    setups.push(("embeddings".to_owned(), Setup::embedded()));
    for loss in losses() {
        let setup = Setup { row_weights: Some(row_weights(29)), loss, ..Setup::usual() };
        setups.push((format!("weights of rows, {:?}", setup.loss), setup));
    }
    setups
}

/// Compares all results of training and evaluation; the number of graphs may differ between devices.
fn same(got: &Trained, want: &Trained) -> bool {
    let numbers = |t: &Trained| {
        (t.weights.clone(), t.averaged.clone(), t.losses.clone(), t.grad_norms.clone(), t.eval.clone())
    };
    numbers(got) == numbers(want)
}

#[test]
fn any_number_of_ranks_trains_to_the_same_bits() {
    for (name, setup) in setups() {
        let alone = sharded(&setup).train_on(1);
        // The training is the same as without the tree, up to rounding.
        assert_close(&name, &alone, &setup.train_on(1));
        for world_size in [2, 3, 4, 5, 8] {
            for zero in [ZeroStage::Off, ZeroStage::Optimizer] {
                let mut setup = sharded(&setup);
                setup.options =
                    TrainerOptions { zero, bucket_bytes: 3000, divide_update_from: 1, ..setup.options };
                assert!(same(&setup.train_on(world_size), &alone), "{name}, {world_size} ranks, {zero:?}");
            }
        }
    }
}

/// Runs without the tree do differ between numbers of ranks, so the test above can detect a difference.
#[test]
fn without_the_tree_the_number_of_ranks_shows() {
    let setup = Setup::usual();
    assert!(!same(&setup.train_on(2), &setup.train_on(3)));
}

#[test]
fn any_number_of_gpus_trains_to_the_same_bits() {
    let Some(_gpus) = gpus(2) else { return };
    for (index, (name, setup)) in setups().into_iter().enumerate() {
        let on = |graph, zero, world_size| {
            // Elsewhere the place of a micro-shard in memory may choose another algorithm of its matmuls.
            let mut setup = Setup { on_gpus: true, deterministic: true, ..sharded(&setup) };
            setup.options = TrainerOptions { graph, zero, bucket_bytes: 3000, ..setup.options };
            setup.train_on(world_size)
        };
        let alone = on(GraphMode::Off, ZeroStage::Off, 1);
        assert_close(&name, &alone, &sharded(&setup).train_on(1));
        for world_size in world_sizes(index, 2) {
            for (graph, zero) in [(GraphMode::Off, ZeroStage::Off), (GraphMode::On, ZeroStage::Optimizer)] {
                let trained = on(graph, zero, world_size);
                assert!(same(&trained, &alone), "{name}, {world_size} GPUs, {zero:?}, graph {graph:?}");
            }
        }
    }
}
