//! Gradients that matmuls write in bf16 and ranks exchange in bf16, on three and four GPUs.

use ddp::config::precision::Precision;
use ddp::config::{CommDtype, ZeroStage};
use ddp::model::ModelSpec;
use ddp::train::trainer::{GraphMode, TrainerOptions};
use ddp_kernels::ops::Activation;

use crate::made_up::gpus::{gpus, on_gpus};
use crate::made_up::{N_CLASSES, Setup, cross_entropy};

/// 32 steps without dropout, in bf16, with gradients exchanged in `comm_dtype`.
fn setup(comm_dtype: CommDtype, zero: ZeroStage) -> Setup {
    let spec = ModelSpec { layer_norm: true, ..ModelSpec::plain(&[8, 32, 32, N_CLASSES], Activation::Relu) };
    let options = TrainerOptions {
        clip_grad_norm: 1.0,
        bucket_bytes: 1500,
        comm_dtype,
        has_one_micro_batch: true,
        zero,
        gathers_short_weights: zero != ZeroStage::Off,
        ..TrainerOptions::default()
    };
    Setup {
        spec,
        options,
        precision: Precision::Bf16,
        // Makes graphs and single kernels sum in the same order on four GPUs.
        deterministic: true,
        n_rows: 240,
        global_rows: 60,
        n_micro: 1,
        n_epochs: 8,
        loss: cross_entropy(None),
        lr: Some(0.02),
        ..Setup::usual()
    }
}

#[test]
fn they_train_as_f32_gradients_do_on_three_and_four_gpus() {
    for n_ranks in [3, 4] {
        let Some(_gpus) = gpus(n_ranks) else { return };
        for zero in [ZeroStage::Off, ZeroStage::Optimizer] {
            let of = |comm_dtype, graph| on_gpus(&setup(comm_dtype, zero), graph).train_on(n_ranks);
            let single = of(CommDtype::F32, GraphMode::Auto);
            let short = of(CommDtype::Bf16, GraphMode::On);
            let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
            for (epoch, (got, want)) in short.losses.chunks(4).zip(single.losses.chunks(4)).enumerate() {
                let (got, want) = (mean(got), mean(want));
                // Each rank rounds its gradient by a relative 2^-9, with errors of either sign.
                assert!(
                    (got - want).abs() <= 0.02 * want,
                    "{n_ranks} GPUs, epoch {epoch}: {got} against {want}"
                );
            }
            assert!(short.losses != single.losses, "they travel in bf16");
            assert_eq!(short.n_graphs, 2);
            let mut eager = of(CommDtype::Bf16, GraphMode::Off);
            eager.n_graphs = short.n_graphs;
            assert!(short == eager, "{n_ranks} GPUs, {zero:?}: a graph gives another result");
        }
    }
}

/// A new trainer that continues from the state after some steps ends with the same bits.
#[test]
fn a_resumed_run_has_the_bits_of_one_that_was_not_interrupted() {
    for (n_ranks, zero) in [(3, ZeroStage::Off), (4, ZeroStage::Optimizer)] {
        let Some(_gpus) = gpus(n_ranks) else { return };
        for graph in [GraphMode::Off, GraphMode::Auto] {
            let whole = on_gpus(&setup(CommDtype::Bf16, zero), graph);
            let mut resumed = Setup { restart_after: Some(13), ..whole.clone() }.train_on(n_ranks);
            let whole = whole.train_on(n_ranks);
            resumed.n_graphs = whole.n_graphs;
            assert!(resumed == whole, "{n_ranks} GPUs, {zero:?}, graphs {graph:?}: other bits");
        }
    }
}
