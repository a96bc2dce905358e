//! A hand-written training loop on ranks that share each batch: forward, loss, backward, sum over the ranks, update. There is no
//! trainer; every part of a step is written out here.
//!
//!     cargo run --release -p ddp-examples --bin own_training_loop
//!     mpirun -n 2 target/release/own_training_loop

// The output of an example is its purpose.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use ddp::comm::{DeviceOptions, ReduceOp, World};
use ddp::config::precision::Precision;
use ddp::config::{Activation, OptimizerConfig, OptimizerKind};
use ddp::data::TensorDataset;
use ddp::data::loader::{BatchPlan, Loader, LoaderOptions, TensorBatch};
use ddp::model::layer::Sizes;
use ddp::model::{LocalGradients, Sequential};
use ddp::optim::UpdateScale;
use ddp::optim::optimizer::Optimizer;
use ddp::prelude::*;

const N_ROWS: usize = 2048;
const GLOBAL_BATCH: usize = 64;
const N_EPOCHS: u64 = 8;

/// The device of this rank: its own GPU if there are enough for all ranks.
fn device_of(world: &World) -> Device {
    let has_own = Device::count() >= world.local_size();
    if has_own { Device::cuda(world.local_rank().0 as u32) } else { Device::cpu() }
}

/// Trains on this rank; returns the mean loss of each epoch.
fn train(world: &World) -> ddp::Result<Vec<f64>> {
    let device = device_of(world);
    world.connect_device(device, DeviceOptions::default())?;
    let x = Tensor::randn(&[N_ROWS, 4], DType::F32, Device::cpu(), 1)?;
    let y = (&x * &x).sum(1)?.sqrt()?;
    let rows = Arc::new(TensorDataset::new(&x, &y)?);

    let max_rows = GLOBAL_BATCH.div_ceil(world.world_size());
    let layers = Sequential::new(4).linear(32).activation(Activation::Tanh).linear(1);
    // The same seed on all ranks gives the same weights.
    let mut model = layers.build(Sizes { max_rows, device, precision: Precision::F32 }, 0)?;
    let adamw = OptimizerConfig::new(OptimizerKind::AdamW, 1e-2);
    let mut optimizer = Optimizer::for_model(&adamw, &model)?;
    let flat_len = model.layout().flat_len();
    let mut gradients = Tensor::zeros(&[flat_len], DType::F32, device)?;

    let plan = BatchPlan { n_epochs: Some(N_EPOCHS), ..BatchPlan::new(GLOBAL_BATCH) };
    let mut loader = Loader::new(world, rows, &plan, LoaderOptions::new(device))?;
    let mut losses = Vec::new();
    for _ in 0..N_EPOCHS {
        let mut sum = Tensor::zeros(&[1], DType::F32, device)?;
        for batch in loader.batches()? {
            let TensorBatch { x, y, global_rows, .. } = batch?;
            model.forward(x.view(), None)?;
            // The squared error and its gradient, averaged over the rows of all ranks.
            let (outputs, d_outputs) = model.outputs_and_gradient()?;
            let error = &outputs.to_tensor()? - &y;
            ddp::ops::copy((&error * (2.0 / global_rows as f64)).view(), d_outputs)?;
            sum = &sum + &(&error * &error).sum(None)?;

            model.backward(x.view(), None, false, &mut LocalGradients(gradients.view_mut()))?;
            world.tensor_group().all_reduce(ReduceOp::Sum, gradients.view_mut())?;
            optimizer.begin_step();
            let scale = UpdateScale::Host(1.0);
            optimizer.step_on(model.weights_mut(), gradients.view(), scale, 0..flat_len, 0)?;
        }
        world.tensor_group().all_reduce(ReduceOp::Sum, sum.view_mut())?;
        losses.push(f64::from(sum.item::<f32>()?) / N_ROWS as f64);
    }
    Ok(losses)
}

fn main() -> ddp::Result<()> {
    let ranks = ddp::launch(2, train)?;
    for (epoch, loss) in ranks[0].iter().enumerate() {
        println!("epoch {}: loss {loss:.5}", epoch + 1);
    }
    let same = ranks.iter().filter(|losses| **losses == ranks[0]).count();
    println!("{same} of {} ranks of this process have the same losses", ranks.len());
    Ok(())
}
