//! Four ranks, which are threads of this process, train one model together: each computes a quarter of every batch, gradients
//! are summed over the ranks, and all of them end with the same weights, bit for bit.
//!
//!     cargo run --release -p ddp-examples --bin threads

// The output of an example is its purpose.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use ddp::Device;
use ddp::data::{BatchPlan, DataLoader, Dataset, EvalPartition, LoaderOptions};
use ddp::distributed::{World, threads};
use ddp::nn::{Activation, LossHead, ModelSpec, Network, Precision};
use ddp::optim::{Optimizer, OptimizerConfig, OptimizerKind};
use ddp::train::{EvalMetric, MetricRequest, Task, Trainer, TrainerOptions, evaluate};

const RANKS: usize = 4;
const GLOBAL_BATCH: usize = 32;

/// Result of a rank: its weights, and the accuracy over all test rows, each rank having evaluated its shard.
type Ended = (Vec<f32>, f64);

/// The same code for every rank and every kind of world: threads, MPI processes, or a single process.
fn train(world: &World, train: &Arc<dyn Dataset>, test: &Arc<dyn Dataset>) -> ddp::Result<Ended> {
    let device = Device::Cpu;
    let rows_a_rank = GLOBAL_BATCH.div_ceil(world.world_size());
    let spec = ModelSpec::plain(&[64, 128, 64, 10], Activation::Relu);
    let mut model = Network::new(spec, rows_a_rank, device, Precision::F32)?;
    model.initialize(0)?;
    let sgd = OptimizerConfig::new(OptimizerKind::Sgd, 0.05);
    let optimizer = Optimizer::for_model(&sgd, &model)?;
    let (loss, options) = (LossHead::cross_entropy(), TrainerOptions::default());
    let mut trainer = Trainer::new(world, model, loss, optimizer, options)?;

    // Gives this rank its shard of each global batch.
    let plan = BatchPlan { n_epochs: Some(5), ..BatchPlan::new(GLOBAL_BATCH) };
    let loading = LoaderOptions::new(device);
    let mut loader = DataLoader::new(world, train.clone(), &plan, loading.clone())?;
    while let Some(mut batch) = loader.next_step()? {
        trainer.step_and_wait(&mut batch, false)?;
    }
    let (model, loss) = trainer.model_and_loss();
    let cut = EvalPartition::for_ranks(world.world_size());
    let request = MetricRequest::defaults(Task::Classification);
    let metrics = evaluate(world, model, loss, &request, test, cut, &loading)?;
    let accuracy = metrics.get(EvalMetric::Accuracy).unwrap_or(f64::NAN);
    Ok((trainer.model().weights().to_vec()?, accuracy))
}

fn main() -> ddp::Result<()> {
    let (rows, test_rows) = ddp::data::digits();
    let (rows, test_rows): (Arc<dyn Dataset>, Arc<dyn Dataset>) = (Arc::new(rows), Arc::new(test_rows));
    let ended = threads::run(RANKS, |world| train(&world, &rows, &test_rows));
    let ended = ended.into_iter().collect::<ddp::Result<Vec<_>>>()?;
    let same = ended.iter().filter(|(weights, _)| *weights == ended[0].0).count();
    println!("test accuracy {:.4}", ended[0].1);
    println!("{same} of {RANKS} ranks hold the same {} weights", ended[0].0.len());

    // The data-parallel law: one rank with the whole batch reaches the same weights, up to rounding.
    let (alone, _) = train(&World::single(), &rows, &test_rows)?;
    let differences = alone.iter().zip(&ended[0].0).map(|(a, b)| (a - b).abs());
    println!("one rank alone: largest difference {:.1e}", differences.fold(0.0, f32::max));
    Ok(())
}
