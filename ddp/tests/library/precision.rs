//! Training in short number formats reaches the results of single precision, on the CPU and on GPUs.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::made_up::{N_CLASSES, Setup, Trained, rows_of};
use ddp::config::precision::Precision;
use ddp::config::{ElementLoss, EvalMetric, Loss, OptimizerKind};
use ddp::data::{Dataset, Targets};
use ddp::model::ModelSpec;
use ddp_comm::threads;
use ddp_kernels::Philox;
use ddp_kernels::ops::Activation;

/// `|got - want| <= share·|want|`.
#[track_caller]
fn assert_within(what: &str, got: f64, want: f64, share: f64) {
    assert!((got - want).abs() <= share * want.abs(), "{what}: {got} against {want}");
}

/// 500 steps on synthetic values that are a smooth function of eight features plus noise with standard deviation 0.3, which
/// remains.
fn regression(precision: Precision) -> Trained {
    const N_FEATURES: usize = 8;
    let spec = ModelSpec {
        dims: vec![N_FEATURES, 64, 64, N_CLASSES],
        activation: Activation::Gelu,
        layer_norm: true,
        dropout: 0.0,
        residual: true,
        bias: true,
        embeddings: Vec::new(),
        layers: Vec::new(),
    };
    let usual = Setup::usual();
    let setup = Setup {
        spec,
        loss: Loss::Element(ElementLoss::Mse),
        optimizer: OptimizerKind::AdamW,
        precision,
        n_rows: 1600,
        global_rows: 64,
        n_micro: 1,
        n_epochs: 20,
        ..usual
    };
    let philox = Philox::new(7);
    let normal = |i: usize| {
        let uniform = |j: usize| f64::from(philox.uniform_f32((12 * i + j) as u64));
        (0..12).map(uniform).sum::<f64>() - 6.0
    };
    let features: Vec<f32> = (0..setup.n_rows * N_FEATURES).map(|i| normal(i) as f32).collect();
    let first_noise = features.len();
    let targets = features.chunks_exact(N_FEATURES).enumerate().flat_map(|(row, x)| {
        let noise = move |t: usize| 0.3 * normal(first_noise + row * N_CLASSES + t) as f32;
        [(x[0] * x[1]).tanh() + noise(0), (x[2] + 0.5 * x[3]).sin() + noise(1), x[4].abs() - x[5] + noise(2)]
    });
    let targets = Targets::Values(targets.collect());
    let rows: Arc<dyn Dataset> = rows_of(features.clone(), N_FEATURES, targets, None);
    threads::run(1, |world| setup.train_rows(&world, &rows)).remove(0)
}

#[test]
fn a_regression_in_bf16_ends_within_2_percent_of_f32() {
    let (want, got) = (regression(Precision::F32), regression(Precision::Bf16));
    assert_eq!(want.losses.len(), 500);
    let loss = |trained: &Trained| trained.eval.get(EvalMetric::Loss).unwrap();
    assert!(loss(&want) < 0.2 * want.losses[0], "it is learned");
    assert_within("loss", loss(&got), loss(&want), 0.02);
}

/// Embeddings, norms, residuals, dropout, weights of classes and rows, all losses, on one and on several ranks.
#[test]
fn everything_a_model_can_have_trains_in_bf16() {
    let usual = Setup::usual();
    let weighted = Setup { row_weights: Some(crate::made_up::row_weights(29)), ..usual.clone() };
    let plain = ModelSpec { layer_norm: false, dropout: 0.0, residual: false, ..usual.spec.clone() };
    let mut setups = vec![Setup::embedded(), weighted, Setup { spec: plain, ..usual.clone() }];
    setups.extend(crate::made_up::losses().map(|loss| Setup { loss, ..usual.clone() }));
    for setup in setups {
        let want = setup.train_on(1);
        let setup = Setup { precision: Precision::Bf16, ..setup };
        for world_size in [1, 2, 3] {
            let got = setup.train_on(world_size);
            assert_ne!(got.weights, want.weights, "bf16 rounds");
            assert_eq!(got.losses.len(), want.losses.len());
            for (got, want) in got.losses.iter().zip(&want.losses) {
                // Activations are rounded by a relative 2^-9 about ten times per pass, over a dozen steps.
                assert_within(&format!("{:?} on {world_size} ranks", setup.loss), *got, *want, 0.01);
            }
        }
    }
}

/// Weights that other ranks have updated are also rounded to the dtype of matmuls.
#[test]
fn dividing_the_update_changes_no_bit_in_bf16() {
    let setup = Setup { precision: Precision::Bf16, ..Setup::embedded() };
    for world_size in [2, 3] {
        let train = |divide_update_from: usize| {
            let options = ddp::train::trainer::TrainerOptions {
                divide_update_from,
                clip_grad_norm: 0.0,
                ..setup.options
            };
            Setup { options, ..setup.clone() }.train_on(world_size)
        };
        let (divided, whole) = (train(1), train(usize::MAX));
        assert!(divided.weights == whole.weights, "{world_size} ranks: other weights");
        assert_eq!(divided.losses, whole.losses);
    }
}
