//! Trains a network on handwritten digits in this process, with tensors, model and loop written by hand, without config and
//! files.
//!
//!     cargo run --release -p ddp-examples --bin single_process

// The output of an example is its purpose.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use ddp::Device;
use ddp::data::{BatchPlan, DataLoader, Dataset, EvalPartition, LoaderOptions};
use ddp::distributed::World;
use ddp::nn::{Activation, LossHead, ModelSpec, Network, Precision};
use ddp::optim::{Optimizer, OptimizerConfig, OptimizerKind};
use ddp::train::{EvalMetric, MetricRequest, Task, Trainer, TrainerOptions, evaluate};

const EPOCHS: u64 = 10;
const BATCH: usize = 32;
const SEED: u64 = 0;

fn main() -> ddp::Result<()> {
    let (world, device) = (World::single(), Device::Cpu);

    // Anything that implements `Dataset` can be used; here it is rows in memory.
    let (train, test) = ddp::data::digits();
    let (train, test): (Arc<dyn Dataset>, Arc<dyn Dataset>) = (Arc::new(train), Arc::new(test));

    // The model, with buffers for passes over up to BATCH rows and weights initialized as in PyTorch.
    let spec = ModelSpec::plain(&[64, 128, 64, 10], Activation::Relu);
    let mut model = Network::new(spec, BATCH, device, Precision::F32)?;
    model.initialize(SEED)?;

    let adamw = OptimizerConfig::new(OptimizerKind::AdamW, 1e-3);
    let optimizer = Optimizer::for_model(&adamw, &model)?;
    let loss = LossHead::cross_entropy();
    let options = TrainerOptions::default();
    let mut trainer = Trainer::new(&world, model, loss, optimizer, options)?;

    // The order of an epoch is a function of (rows, seed, epoch); no rows are moved in memory.
    let plan = BatchPlan { seed: SEED, n_epochs: Some(EPOCHS), ..BatchPlan::new(BATCH) };
    let loading = LoaderOptions::new(device);
    let mut loader = DataLoader::new(&world, train.clone(), &plan, loading.clone())?;
    let mut sum = 0.0;
    while let Some(mut batch) = loader.next_step()? {
        sum += trainer.step_and_wait(&mut batch, false)?.sums.loss;
        if batch.ends_epoch() {
            println!("epoch {}: loss {:.4}", batch.epoch(), sum / train.len() as f64);
            sum = 0.0;
        }
    }

    let (model, loss) = trainer.model_and_loss();
    let cut = EvalPartition::for_ranks(1);
    let request = MetricRequest::defaults(Task::Classification);
    let metrics = evaluate(&world, model, loss, &request, &test, cut, &loading)?;
    println!("test accuracy {:.4}", metrics.get(EvalMetric::Accuracy).unwrap_or(f64::NAN));
    Ok(())
}
