//! The update of one GPU beside backward: the bits of an update after it, whatever is chosen, eager and as graphs.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use ddp::config::OptimizerKind;
use ddp::config::precision::Precision;
use ddp::data::{BatchPlan, DataLoader, LoaderOptions, TensorDataset};
use ddp::nn::{Activation, LossHead, Sequential, Sizes};
use ddp::optim::OptimizerConfig;
use ddp::train::step_info::StepRequest;
use ddp::train::trainer::{GraphMode, Trainer, TrainerOptions};
use ddp_comm::World;
use ddp_kernels::cuda::Gpu;
use ddp_kernels::{DType, Device, Tensor};

use crate::made_up::gpus::gpus;

/// Steps, of which the last but one has a norm, and so an update after backward; each input slot has a graph of its own.
const N_STEPS: usize = 9;

/// Bits of the weights and statistics after some steps; those after the first one with the update in `place`, unless that is left to the times.
fn trained(options: TrainerOptions, place: Option<Option<u32>>, precision: Precision) -> Vec<u32> {
    let (world, device) = (World::single(), Device::Cuda(0));
    let [x, y] = [(6, 1), (3, 2)].map(|(width, seed)| {
        let rows = Tensor::randn(&[16 * N_STEPS, width], DType::F32, Device::Cpu, seed);
        rows.unwrap()
    });
    let rows = Arc::new(TensorDataset::new(&x, &y).unwrap());
    let plan = BatchPlan::new(16);
    let mut loader = DataLoader::new(&world, rows, &plan, LoaderOptions::new(device)).unwrap();
    let layers = Sequential::new(6).linear(16).activation(Activation::Relu).batch_norm();
    let layers = layers.residual(|body| body.linear(16).activation(Activation::Silu)).dropout(0.1).linear(3);
    let sizes = Sizes { max_rows: 16, device, precision };
    let mut adamw = OptimizerConfig::new(OptimizerKind::AdamW, 0.01);
    adamw.ema_decay = 0.9;
    let mut trainer = Trainer::for_layers(&world, layers, sizes, LossHead::mse(), &adamw, options).unwrap();
    for step in 0..N_STEPS {
        let mut batch = loader.next_step().unwrap().unwrap();
        let want_grad_norm = step + 2 == N_STEPS;
        trainer.step(&mut batch, StepRequest { want_grad_norm, ..StepRequest::default() }).unwrap();
        if let (0, Some(place)) = (step, place) {
            trainer.place_update(place);
        }
    }
    while trainer.outcome(true).unwrap().is_some() {}
    let statistics = trainer.model().named_buffers().into_iter().map(|(_, values)| values);
    let values: Vec<f32> = std::iter::once(trainer.model().weights())
        .chain(statistics)
        .flat_map(|values| values.to_vec::<f32>().unwrap())
        .collect();
    values.into_iter().map(f32::to_bits).collect()
}

#[test]
fn an_update_beside_backward_has_the_bits_of_one_after_it() {
    let Some(_gpus) = gpus(1) else { return };
    for graph in [GraphMode::Off, GraphMode::On] {
        for precision in [Precision::F32, Precision::Bf16] {
            let options = TrainerOptions { graph, bucket_bytes: 100, ..TrainerOptions::default() };
            // Without buckets nothing is chosen.
            let after = trained(TrainerOptions { overlap: false, ..options }, None, precision);
            // A real cuBLASLt may sum in another order on fewer multiprocessors.
            let is_virtual = Gpu::get(0).unwrap().info().is_virtual();
            for place in [None, Some(0), Some(16)].iter().take(if is_virtual { 3 } else { 2 }) {
                let placed = trained(options, Some(*place), precision);
                assert!(placed == after, "{place:?}, {graph:?}, {precision:?}");
            }
            // The measurements, and a choice that is recalled, leave nothing behind.
            for again in [false, true] {
                let chosen = trained(options, None, precision);
                assert!(!is_virtual || chosen == after, "as chosen, {again}, {graph:?}, {precision:?}");
            }
        }
    }
}

#[test]
fn an_update_that_needs_all_gradients_follows_backward() {
    let Some(_gpus) = gpus(1) else { return };
    let options = TrainerOptions { clip_grad_norm: 0.1, bucket_bytes: 100, ..TrainerOptions::default() };
    let clipped = trained(options, None, Precision::F32);
    assert!(trained(options, Some(Some(0)), Precision::F32) == clipped);
}
