//! A hand-written training loop on ranks that share each batch: loss and gradients, their sums over the ranks, update. There is no
//! trainer; every part of a step is written out here.
//!
//!     cargo run --release -p ddp-examples --bin own_training_loop
//!     mpirun -n 2 target/release/own_training_loop

// The output of an example is its purpose.
#![allow(clippy::print_stdout)]

use ddp::data::TensorDataset;
use ddp::distributed::World;
use ddp::nn::{Activation, GradientSums, LossHead, Precision, Sequential, Sizes};
use ddp::optim::{Optimizer, OptimizerConfig, OptimizerKind};
use ddp::prelude::*;

const N_ROWS: usize = 2048;
const GLOBAL_BATCH: usize = 64;
const N_EPOCHS: usize = 8;

/// Trains on this rank; returns the mean loss of each epoch.
fn train(world: &World) -> ddp::Result<Vec<f64>> {
    let device = world.connect()?;
    let x = Tensor::randn(&[N_ROWS, 4], DType::F32, Device::cpu(), 1)?;
    let y = (&x * &x).sum(1)?.sqrt()?;
    let rows = TensorDataset::new(&x, &y)?;

    let max_rows = GLOBAL_BATCH.div_ceil(world.world_size());
    let layers = Sequential::new(4).linear(32).activation(Activation::Tanh).linear(1);
    // The same seed on all ranks gives the same weights.
    let mut model = layers.build(Sizes { max_rows, device, precision: Precision::F32 }, 0)?;
    let adamw = OptimizerConfig::new(OptimizerKind::AdamW, 1e-2);
    let mut optimizer = Optimizer::for_model(&adamw, &model)?;
    let (loss, mut grads) = (LossHead::mse(), GradientSums::for_model(&model)?);

    let mut loader = rows.batches(GLOBAL_BATCH).epochs(N_EPOCHS).across(world).on(device)?;
    let mut losses = Vec::new();
    for _ in 0..N_EPOCHS {
        let mut sum = 0.0;
        for batch in loader.batches()? {
            let batch = batch?;
            model.loss_and_gradients(&batch, &loss, &mut grads)?;
            grads.all_reduce(world)?;
            sum += grads.mean_loss()? * batch.global_rows as f64;
            optimizer.step(&mut model, &mut grads)?;
        }
        losses.push(sum / N_ROWS as f64);
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
