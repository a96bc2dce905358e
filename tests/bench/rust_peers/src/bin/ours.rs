//! The models with this project's library: the trainer and the loader, as in a program of a user.

use std::sync::Arc;

use ddp::data::{BatchPlan, DataLoader, LoaderOptions, Shuffle, TensorDataset};
use ddp::model::layers::Linear;
use ddp::model::linear_spec::LinearSpec;
use ddp::nn::{Activation, LossHead, Sequential, Sizes};
use ddp::optim::{OptimizerConfig, OptimizerKind};
use ddp::prelude::*;
use ddp::train::{Trainer, TrainerOptions};
use rust_peers::*;

/// The expressions of `examples/src/bin/char_gpt`.
#[path = "../../../../../examples/src/bin/char_gpt/layers.rs"]
mod layers;

fn train(args: &Args, layers: Sequential, optimizer: &OptimizerConfig, rows: TensorDataset, global_rows: usize) -> ddp::Result<()> {
    let (world, device) = (World::single(), Device::Cpu);
    let sizes = Sizes::new(global_rows, device);
    let options = TrainerOptions::default();
    let mut trainer = Trainer::for_layers(&world, layers, sizes, LossHead::cross_entropy(), optimizer, options)?;
    let plan = BatchPlan { shuffle: Shuffle::Off, ..BatchPlan::new(global_rows) };
    let mut loader = DataLoader::new(&world, Arc::new(rows), &plan, LoaderOptions::new(device))?;
    args.run("ours", |_, _| {
        let mut batch = loader.next_step().unwrap().expect("the plan has no end");
        Some(trainer.step_and_wait(&mut batch, false).unwrap().sums.mean())
    });
    Ok(())
}

fn main() -> ddp::Result<()> {
    let args = Args::read();
    if args.case == "mlp" {
        let (x, y): (Vec<_>, Vec<_>) = mlp_batches().into_iter().unzip();
        let (x, y) = (x.concat(), y.concat());
        let n = y.len();
        let x = Tensor::from_vec(x, &[n, DIMS[0]], "cpu")?;
        let rows = TensorDataset::new(&x, &Tensor::from_vec(y, &[n], "cpu")?)?;
        let kind = if args.optimizer == "sgd" { OptimizerKind::Sgd } else { OptimizerKind::AdamW };
        let optimizer = OptimizerConfig { momentum: 0.0, ..OptimizerConfig::new(kind, args.lr()) };
        let layers = Sequential::new(DIMS[0]).linear(DIMS[1]).activation(Activation::Relu).linear(DIMS[2]);
        return train(&args, layers, &optimizer, rows, BATCH);
    }
    let (x, y): (Vec<_>, Vec<_>) = char_batches().into_iter().unzip();
    let (x, y) = (x.concat(), y.concat());
    let n = y.len();
    let x = Tensor::from_vec(x.into_iter().map(|code| code as f32).collect(), &[n, 1], "cpu")?;
    let rows = TensorDataset::new(&x, &Tensor::from_vec(y, &[n], "cpu")?)?;
    let mut list = Sequential::new(1).layer(layers::character_embedding(CONTEXT, VOCAB, WIDTH));
    for index in 0..BLOCKS {
        let attention = layers::causal_attention(&format!("attention.{index}"), CONTEXT, HEADS, WIDTH)?;
        list = list.residual(|body| body.layer_norm().linear(3 * WIDTH).layer(attention).linear(WIDTH));
        list = list
            .residual(|body| body.layer_norm().linear(4 * WIDTH).activation(Activation::Gelu).linear(WIDTH));
    }
    let head = Linear::new(LinearSpec::from_params(layers::character_table(VOCAB, WIDTH), None));
    let adamw = OptimizerConfig { weight_decay: 0.0, ..OptimizerConfig::new(OptimizerKind::AdamW, CHAR_GPT_LR) };
    train(&args, list.layer_norm().layer(head), &adamw, rows, SEQUENCES * CONTEXT)
}
