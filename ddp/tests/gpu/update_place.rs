//! The update of one GPU beside backward, and gradients of weights beside those of inputs: the bits of one after the other, whatever is
//! chosen, eager and as graphs.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use ddp::config::OptimizerKind;
use ddp::config::precision::Precision;
use ddp::data::{BatchPlan, DataLoader, LoaderOptions, TensorDataset};
use ddp::nn::{Activation, LossHead, Sequential, Sizes};
use ddp::optim::{LossScalerConfig, OptimizerConfig};
use ddp::train::step_info::StepRequest;
use ddp::train::trainer::{GraphMode, Trainer, TrainerOptions};
use ddp_comm::{DeviceOptions, World, threads};
use ddp_kernels::cuda::Gpu;
use ddp_kernels::{DType, Device, Tensor};

use crate::made_up::gpus::gpus;

/// Steps, of which the last but one has a norm, and so an update after backward; each input slot has a graph of its own.
const N_STEPS: usize = 9;

/// Place of the update, and whether gradients of weights are computed beside those of inputs.
type Place = (Option<u32>, bool);

/// Bits of the weights and statistics after some steps; those after the first one in `place`, unless that is left to the times.
fn trained(options: TrainerOptions, place: Option<Place>, precision: Precision) -> Vec<u32> {
    trained_by(OptimizerKind::AdamW, options, place, precision)
}

/// The same with another optimizer.
fn trained_by(
    kind: OptimizerKind,
    options: TrainerOptions,
    place: Option<Place>,
    precision: Precision,
) -> Vec<u32> {
    trained_in(&World::single(), kind, options, place, precision)
}

/// The same on a rank of `world`.
fn trained_in(
    world: &World,
    kind: OptimizerKind,
    options: TrainerOptions,
    place: Option<Place>,
    precision: Precision,
) -> Vec<u32> {
    let device = Device::Cuda(world.rank().0 as u32);
    let n_rows = 16 * N_STEPS * world.world_size();
    let [x, y] = [(6, 1), (3, 2)].map(|(width, seed)| {
        let rows = Tensor::randn(&[n_rows, width], DType::F32, Device::Cpu, seed);
        rows.unwrap()
    });
    let rows = Arc::new(TensorDataset::new(&x, &y).unwrap());
    let plan = BatchPlan::new(16);
    let mut loader = DataLoader::new(world, rows, &plan, LoaderOptions::new(device)).unwrap();
    let layers = Sequential::new(6).linear(16).activation(Activation::Relu).batch_norm();
    let layers = layers.residual(|body| body.linear(16).activation(Activation::Silu)).dropout(0.1).linear(3);
    let sizes = Sizes { max_rows: 16, device, precision };
    let mut optimizer = OptimizerConfig::new(kind, 0.01);
    optimizer.ema_decay = 0.9;
    let mut trainer =
        Trainer::for_layers(world, layers, sizes, LossHead::mse(), &optimizer, options).unwrap();
    for step in 0..N_STEPS {
        let mut batch = loader.next_step().unwrap().unwrap();
        let want_grad_norm = step + 2 == N_STEPS;
        trainer.step(&mut batch, StepRequest { want_grad_norm, ..StepRequest::default() }).unwrap();
        if let (0, Some((n_free, is_beside))) = (step, place) {
            trainer.place_update(n_free, is_beside).unwrap();
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
            let places = [(None, false), (Some(0), false), (None, true), (Some(0), true), (Some(16), false)];
            for place in places.iter().take(if is_virtual { 5 } else { 4 }) {
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

/// Several ranks reduce a bucket as soon as it is finished, so that none of its gradients may be under way beside others then.
#[test]
fn gradients_that_are_reduced_are_not_computed_beside_others() {
    let Some(_gpus) = gpus(2) else { return };
    for graph in [GraphMode::Off, GraphMode::On] {
        let options = TrainerOptions { graph, bucket_bytes: 100, ..TrainerOptions::default() };
        let of_ranks = |is_beside| {
            threads::run(2, |world| {
                let device = Device::Cuda(world.rank().0 as u32);
                world.connect_device(device, DeviceOptions::default()).unwrap();
                let place = Some((None, is_beside));
                trained_in(&world, OptimizerKind::AdamW, options, place, Precision::F32)
            })
        };
        assert!(of_ranks(true) == of_ranks(false), "{graph:?}");
    }
}

#[test]
fn an_update_that_needs_all_gradients_follows_backward() {
    let Some(_gpus) = gpus(1) else { return };
    let is_virtual = Gpu::get(0).unwrap().info().is_virtual();
    let clips = TrainerOptions { clip_grad_norm: 0.1, bucket_bytes: 100, ..TrainerOptions::default() };
    let scales = TrainerOptions { loss_scaling: Some(LossScalerConfig::default()), ..clips };
    for (kind, options, precision) in [
        (OptimizerKind::AdamW, clips, Precision::F32),
        (OptimizerKind::AdamW, scales, Precision::F16),
        (OptimizerKind::Lamb, clips, Precision::F32),
        (OptimizerKind::Muon, clips, Precision::Bf16),
    ] {
        // Nothing is chosen.
        let after = trained_by(kind, TrainerOptions { overlap: false, ..options }, None, precision);
        for place in [Some((Some(0), false)), Some((None, true)), None] {
            let placed = trained_by(kind, options, place, precision);
            assert!(!is_virtual || placed == after, "{kind}, {precision:?}, {place:?}");
        }
    }
}
