//! Trains a network on handwritten digits in this process: tensors, model and loop by hand, no config and no files.
//!
//!     cargo run --release -p ddp-examples --bin single_process

// An example's output is what it is for.
#![allow(clippy::print_stdout)]

use ddp::batches::Table;
use ddp::config::{Activation, OptimizerConfig, OptimizerKind, Task};
use ddp::epoch::StepBatches;
use ddp::evaluate::evaluate;
use ddp::model::{LossHead, Mlp, ModelSpec, Optimizer, Precision};
use ddp::sampler::KeyedPermutation;
use ddp::shard::GlobalBatches;
use ddp::trainer::{Trainer, TrainerOptions};
use ddp_comm::World;
use ddp_kernels::Device;

const EPOCHS: u64 = 10;
const BATCH: usize = 32;
const SEED: u64 = 0;

fn main() -> ddp::Result<()> {
    let (world, device) = (World::single(), Device::Cpu);

    // The rows, moved to the device once.
    let (train, test) = ddp::data::digits()?;
    let (train, test) = (Table::new(&train, None, device)?, Table::new(&test, None, device)?);

    // The model, with buffers for passes over up to BATCH rows, its weights drawn as in PyTorch.
    let spec = ModelSpec::plain(&[64, 128, 64, 10], Activation::Relu);
    let mut model = Mlp::new(spec, BATCH, device, Precision::F32)?;
    model.initialize(SEED)?;

    let adamw = OptimizerConfig::new(OptimizerKind::AdamW, 1e-3);
    let optimizer = Optimizer::new(&adamw, model.weights())?;
    let loss = LossHead::cross_entropy();
    let options = TrainerOptions::default();
    let mut trainer = Trainer::new(&world, model, loss, optimizer, options)?;

    let mut buffers = train.buffers(BATCH)?;
    for epoch in 0..EPOCHS {
        // The order of an epoch is a function of (rows, seed, epoch); nothing is shuffled in memory.
        let order = KeyedPermutation::new(train.n_rows(), SEED, epoch);
        let mut sum = 0.0;
        for global in GlobalBatches::new(train.n_rows(), BATCH) {
            let mut batches = StepBatches::new(&world, &train, &order, &mut buffers, &global, 1);
            sum += trainer.step_and_wait(&mut batches, false)?.sums.loss;
        }
        println!("epoch {}: loss {:.4}", epoch + 1, sum / train.n_rows() as f64);
    }

    let (model, loss) = trainer.model_and_loss();
    let metrics = evaluate(&world, model, loss, Task::Classification, &test)?;
    println!("test accuracy {:.4}", metrics.accuracy.unwrap_or(f64::NAN));
    Ok(())
}
