//! The trainer on GPUs, real or virtual: runs reach the same results as on the CPU, on one and on several GPUs, kernel by kernel
//! and as graphs.
//!
//! If there are too few GPUs, a test prints `skipped: needs 2 GPUs, found 0` and passes; with `REQUIRE_GPUS=N` it fails if there
//! are fewer than N.

#![allow(clippy::unwrap_used)]

use crate::made_up::gpus::{gpus, on_gpus, world_sizes};
use crate::made_up::{
    N_CLASSES, Setup, Trained, assert_close, cross_entropy, embeddings, losses, row_weights,
};
use ddp::config::precision::Precision;
use ddp::config::{CommDtype, OptimizerKind};
use ddp::model::ModelSpec;
use ddp::train::trainer::{GraphMode, TrainerOptions};
use ddp_kernels::ops::Activation;

/// Only linear layers and activations: on a GPU the derivatives are part of the matmuls.
fn plain(activation: Activation) -> Setup {
    let spec = ModelSpec::plain(&[6, 16, 24, 9, N_CLASSES], activation);
    Setup { spec, loss: cross_entropy(None), ..Setup::usual() }
}

fn setups() -> Vec<(String, Setup)> {
    let mut setups = Vec::new();
    for optimizer in [OptimizerKind::Sgd, OptimizerKind::AdamW] {
        let name = format!("gelu, norm, dropout, residual, class weights, clipping; {optimizer}");
        setups.push((name, Setup { optimizer, ..Setup::usual() }));
        setups.push((
            format!("the same with embeddings; {optimizer}"),
            Setup { optimizer, ..Setup::embedded() },
        ));
    }
    setups.push(("a list of layers".to_owned(), Setup::listed()));
    let embedded = plain(Activation::Relu);
    let spec = embedded.spec.clone().with_embeddings(embeddings([1, 9]));
    setups.push(("plain relu with embeddings".to_owned(), Setup { spec, ..embedded }));
    for activation in [Activation::Relu, Activation::GeluTanh, Activation::Silu] {
        let unclipped = TrainerOptions { clip_grad_norm: 0.0, ..Setup::usual().options };
        let setup = Setup { options: unclipped, n_micro: 1, ..plain(activation) };
        setups.push((format!("plain {activation}"), setup));
    }
    for loss in losses() {
        let setup = Setup { row_weights: Some(row_weights(29)), loss, ..Setup::usual() };
        setups.push((format!("weights of rows, {:?}", setup.loss), setup));
    }
    setups
}

#[test]
fn a_gpu_trains_as_the_cpu_does() {
    let Some(_gpus) = gpus(1) else { return };
    for (name, setup) in setups() {
        let cpu = setup.train_on(1);
        assert_close(&name, &on_gpus(&setup, GraphMode::Off).train_on(1), &cpu);
    }
}

#[test]
fn a_replayed_graph_gives_the_same_bits_as_kernel_by_kernel() {
    let Some(_gpus) = gpus(1) else { return };
    for (name, setup) in setups() {
        let eager = on_gpus(&setup, GraphMode::Off).train_on(1);
        let mut graph = on_gpus(&setup, GraphMode::On).train_on(1);
        // One graph for each of the two inputs in turn; the smaller last batch of an epoch is not captured.
        assert_eq!((eager.n_graphs, std::mem::take(&mut graph.n_graphs)), (0, 2), "{name}");
        assert!(graph == eager, "{name}: a graph gives another result");
    }
}

#[test]
fn several_gpus_train_as_one_cpu_rank_does() {
    let Some(_gpus) = gpus(2) else { return };
    for (index, (name, setup)) in setups().into_iter().enumerate() {
        let cpu = setup.train_on(1);
        for world_size in world_sizes(index, 2) {
            let eager = on_gpus(&setup, GraphMode::Off).train_on(world_size);
            assert_close(&format!("{name}, {world_size} GPUs"), &eager, &cpu);
            let mut graph = on_gpus(&setup, GraphMode::On).train_on(world_size);
            graph.n_graphs = 0;
            // With four or more GPUs, NCCL may sum in a different order in a graph than without one.
            match world_size {
                2 | 3 => {
                    assert!(graph == eager, "{name}, {world_size} GPUs: a graph gives another result")
                }
                _ => assert_close(&format!("{name}, {world_size} GPUs, graph"), &graph, &cpu),
            }
        }
    }
}

/// With four or more GPUs, a graph has the bits of single kernels only in deterministic mode, which restricts NCCL in the whole
/// process.
#[test]
fn deterministic_mode_gives_graphs_the_same_bits_on_four_gpus() {
    let Some(_gpus) = gpus(4) else { return };
    let setup = Setup { deterministic: true, ..Setup::usual() };
    let eager = on_gpus(&setup, GraphMode::Off).train_on(4);
    let mut graph = on_gpus(&setup, GraphMode::On).train_on(4);
    graph.n_graphs = 0;
    assert!(graph == eager, "a graph gives another result");
}

/// If all weights are 0, the gradient is 0 and the step does no harm, even if it is replayed as a graph.
#[test]
fn a_step_without_weight_does_the_same_on_a_gpu() {
    let Some(_gpus) = gpus(1) else { return };
    for clip_grad_norm in [0.0, 0.7] {
        for no_weight in [vec![0.0; 29], (0..29).map(|row| f32::from(row == 3)).collect()] {
            let options = TrainerOptions { clip_grad_norm, ..Setup::usual().options };
            let setup = Setup { row_weights: Some(no_weight), options, ..Setup::usual() };
            let cpu = setup.train_on(1);
            assert!(cpu.losses.contains(&0.0) && cpu.grad_norms.contains(&0.0), "{cpu:?}");
            for graph in [GraphMode::Off, GraphMode::On] {
                assert_close("no weight", &on_gpus(&setup, graph).train_on(1), &cpu);
            }
        }
    }
}

/// A longer run without dropout, whose losses are compared step by step.
fn long(precision: Precision) -> Setup {
    let spec = ModelSpec { layer_norm: true, ..ModelSpec::plain(&[8, 32, 32, N_CLASSES], Activation::Relu) };
    let options = TrainerOptions { clip_grad_norm: 0.0, ..TrainerOptions::default() };
    Setup {
        spec,
        options,
        precision,
        n_rows: 256,
        global_rows: 64,
        n_micro: 1,
        n_epochs: 25,
        loss: cross_entropy(None),
        // Small steps, because large ones would amplify every rounding error.
        lr: Some(0.02),
        ..Setup::usual()
    }
}

/// The mean loss of each epoch of four steps.
fn epoch_losses(trained: &Trained) -> Vec<f64> {
    trained.losses.chunks(4).map(|losses| losses.iter().sum::<f64>() / losses.len() as f64).collect()
}

#[test]
fn short_formats_follow_f32() {
    let Some(_gpus) = gpus(1) else { return };
    let embedded = |setup: Setup| {
        let spec = setup.spec.clone().with_embeddings(embeddings([4, 3]));
        Setup { spec, ..setup }
    };
    follows_f32(long);
    follows_f32(|precision| embedded(long(precision)));
}

fn follows_f32(setup: impl Fn(Precision) -> Setup) {
    let f32 = epoch_losses(&setup(Precision::F32).train_on(1));
    for precision in [Precision::F32x3, Precision::Tf32, Precision::Bf16] {
        let short = epoch_losses(&on_gpus(&setup(precision), GraphMode::Auto).train_on(1));
        for (epoch, (got, want)) in short.iter().zip(&f32).enumerate() {
            // Factors are rounded by a relative 2^-11 in tf32 and 2^-9 in bf16, over 100 steps.
            assert!((got - want).abs() <= 0.02 * want, "{precision:?}, epoch {epoch}: {got} against {want}");
        }
    }
}

#[test]
fn gradients_that_travel_in_bf16_train_alike() {
    let Some(_gpus) = gpus(2) else { return };
    let mut setup = on_gpus(&long(Precision::F32), GraphMode::Auto);
    let f32 = epoch_losses(&setup.train_on(2));
    setup.options.comm_dtype = CommDtype::Bf16;
    let trained = setup.train_on(2);
    assert_eq!(trained.n_graphs, 2);
    for (epoch, (got, want)) in epoch_losses(&trained).iter().zip(&f32).enumerate() {
        // Gradients are rounded by a relative 2^-9, with errors of either sign.
        assert!((got - want).abs() <= 0.02 * want, "epoch {epoch}: {got} against {want}");
    }
}

#[test]
fn a_loss_that_is_not_finite_is_told_a_step_late() {
    let Some(_gpus) = gpus(1) else { return };
    // A step so large that the next loss is not finite.
    let setup = Setup { lr: Some(1e38), ..plain(Activation::Relu) };
    let result = std::panic::catch_unwind(|| on_gpus(&setup, GraphMode::Off).train_on(1));
    let panic = result.expect_err("the run ends in an error");
    let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
    assert!(text.contains("LossNotFinite") || text.contains("GradientNotFinite"), "{text}");
}
