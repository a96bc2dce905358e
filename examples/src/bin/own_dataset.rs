//! Rows that are not in any file: a custom `Dataset`, from which the loader's threads request the rows of each batch.
//!
//! Any source that can return row 17 can be trained on: a database, a custom file format, a simulation. Here a row is a noisy
//! sine wave and its class is the wave's frequency; a billion rows take no memory.
//!
//!     cargo run --release -p ddp-examples --bin own_dataset

// The output of an example is its purpose.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use ddp::Device;
use ddp::data::{
    BatchMut, BatchPlan, DataError, DataLoader, Dataset, EvalPartition, LoaderOptions, RowLayout,
    TargetLayout, numbered_columns,
};
use ddp::distributed::World;
use ddp::nn::{Activation, LossHead, ModelSpec, Network, Precision};
use ddp::optim::{Optimizer, OptimizerConfig, OptimizerKind};
use ddp::train::{EvalMetric, MetricRequest, Task, Trainer, TrainerOptions, evaluate};

const N_FEATURES: usize = 32;
const N_CLASSES: usize = 4;
const BATCH: usize = 64;

/// Waves, numbered from `first`.
#[derive(Debug)]
struct Waves {
    first: usize,
    n_rows: usize,
    layout: RowLayout,
}

impl Waves {
    fn new(first: usize, n_rows: usize) -> Self {
        let targets = TargetLayout::Classes { n_classes: N_CLASSES };
        Waves { first, n_rows, layout: RowLayout::new(numbered_columns(N_FEATURES), targets) }
    }
}

impl Dataset for Waves {
    fn len(&self) -> usize {
        self.n_rows
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<(), DataError> {
        let x = out.x.into_slice::<f32>("waves", "x")?;
        let labels = out.targets.into_slice::<i64>("waves", "labels")?;
        for ((row, wave), label) in rows.iter().zip(x.chunks_exact_mut(N_FEATURES)).zip(labels) {
            // The same index always gives the same wave.
            let mut random = noise((self.first + row) as u64);
            let (class, phase) = (random() % N_CLASSES as u64, random() % 1000);
            *label = class as i64;
            for (t, value) in wave.iter_mut().enumerate() {
                let angle = (class + 1) as f32 * t as f32 * 0.2 + phase as f32 * 0.006;
                *value = angle.sin() + (random() % 1000) as f32 * 1e-3 - 0.5;
            }
        }
        Ok(())
    }

    fn fingerprint(&self) -> Result<u64, DataError> {
        Ok((self.first as u64) << 32 | self.n_rows as u64)
    }

    fn source(&self) -> &str {
        "waves"
    }
}

/// SplitMix64.
fn noise(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ z >> 31) >> 16
    }
}

fn main() -> ddp::Result<()> {
    let (world, device) = (World::single(), Device::Cpu);
    let train: Arc<dyn Dataset> = Arc::new(Waves::new(0, 1_000_000_000));
    let test: Arc<dyn Dataset> = Arc::new(Waves::new(2_000_000_000, 2000));

    let spec = ModelSpec::plain(&[N_FEATURES, 64, N_CLASSES], Activation::Relu);
    let mut model = Network::new(spec, BATCH, device, Precision::F32)?;
    model.initialize(0)?;
    let optimizer = Optimizer::for_model(&OptimizerConfig::new(OptimizerKind::AdamW, 1e-3), &model)?;
    let (loss, options) = (LossHead::cross_entropy(), TrainerOptions::default());
    let mut trainer = Trainer::new(&world, model, loss, optimizer, options)?;

    // Two threads generate rows while the model computes.
    let loading = LoaderOptions { threads: Some(2), ..LoaderOptions::new(device) };
    let plan = BatchPlan::new(BATCH);
    let mut loader = DataLoader::new(&world, train, &plan, loading.clone())?;
    for step in 1..=1000 {
        let Some(mut batch) = loader.next_step()? else { break };
        let outcome = trainer.step_and_wait(&mut batch, false)?;
        if step % 250 == 0 {
            println!("step {step}: loss {:.4}", outcome.sums.mean());
        }
    }

    let (model, loss) = trainer.model_and_loss();
    let cut = EvalPartition::for_ranks(1);
    let request = MetricRequest::defaults(Task::Classification);
    let metrics = evaluate(&world, model, loss, &request, &test, cut, &loading)?;
    println!("test accuracy {:.4}", metrics.get(EvalMetric::Accuracy).unwrap_or(f64::NAN));
    Ok(())
}
