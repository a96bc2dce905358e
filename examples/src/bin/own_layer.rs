//! A layer that the library does not have, in a model that ranks train together: its gradients are checked first, its parameter is
//! exchanged, updated and saved as those of all other layers.
//!
//!     cargo run --release -p ddp-examples --bin own_layer
//!     mpirun -n 2 target/release/own_layer

// The output of an example is its purpose.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use ddp::config::precision::Precision;
use ddp::config::{Activation, OptimizerConfig, OptimizerKind};
use ddp::data::loader::{BatchPlan, Loader, LoaderOptions, Shuffle};
use ddp::data::{Dataset, ResidentRows};
use ddp::model::layer::{Layer, Result, Sizes};
use ddp::model::layers::{ActivationLayer, Linear};
use ddp::model::linear_spec::LinearSpec;
use ddp::model::param::{Init, ParamKind, ParamSpec};
use ddp::model::pass::{BackwardPass, ForwardPass};
use ddp::model::{GradcheckOptions, LossHead, Network, gradcheck};
use ddp::optim::optimizer::Optimizer;
use ddp::prelude::*;
use ddp::train::trainer::{Trainer, TrainerOptions};
use ddp_comm::World;

const N_ROWS: usize = 4096;
const N_FEATURES: usize = 8;
const HIDDEN: usize = 32;
const GLOBAL_BATCH: usize = 64;

/// `y = x · sigmoid(b · x)` with a trained `b`, `[features]`: Swish (arXiv:1710.05941). On the CPU; a layer for GPUs calls
/// [`ddp::ops`] instead of slices.
#[derive(Debug)]
struct Swish {
    params: [ParamSpec; 1],
}

impl Swish {
    fn new(name: &str, features: usize) -> Self {
        let b = ParamSpec::new(name, ParamKind::NormWeight, &[features], Init::Constant(1.0));
        Swish { params: [b] }
    }
}

impl Layer for Swish {
    fn describe(&self) -> String {
        "swish".to_owned()
    }

    fn out_features(&self) -> usize {
        self.params[0].dims[0]
    }

    fn parameters(&self) -> &[ParamSpec] {
        &self.params
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        let b = pass.params.master(0)?.as_slice::<f32>("swish", "b")?;
        let (x, y) = (x.as_slice::<f32>("swish", "x")?, y.into_slice::<f32>("swish", "y")?);
        for (x, y) in x.chunks_exact(b.len()).zip(y.chunks_exact_mut(b.len())) {
            for ((y, &x), &b) in y.iter_mut().zip(x).zip(b) {
                *y = x * sigmoid(b * x);
            }
        }
        Ok(())
    }

    /// Turns `d`, the gradient of the output, into that of the input, and adds up the gradient of `b`.
    fn backward(&mut self, d: TensorMut<'_>, mut pass: BackwardPass<'_>) -> Result<()> {
        let b = pass.params.master(0)?.as_slice::<f32>("swish", "b")?;
        let (x, d) = (pass.x.as_slice::<f32>("swish", "x")?, d.into_slice::<f32>("swish", "d")?);
        let grad = pass.grads.take()?;
        let d_b = grad.d.into_slice::<f32>("swish", "d_b")?;
        if !grad.accumulate {
            d_b.fill(0.0);
        }
        for (x, d) in x.chunks_exact(b.len()).zip(d.chunks_exact_mut(b.len())) {
            for (((d, &x), &b), d_b) in d.iter_mut().zip(x).zip(b).zip(d_b.iter_mut()) {
                let s = sigmoid(b * x);
                *d_b += *d * x * x * s * (1.0 - s);
                *d *= s + b * x * s * (1.0 - s);
            }
        }
        Ok(())
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn network(max_rows: usize) -> Result<Network> {
    let layers: Vec<Box<dyn Layer>> = vec![
        Box::new(Linear::new(LinearSpec::new(0, N_FEATURES, HIDDEN, true))),
        Box::new(Swish::new("swish.0", HIDDEN)),
        Box::new(Linear::new(LinearSpec::new(1, HIDDEN, HIDDEN, true))),
        Box::new(ActivationLayer::new(Activation::Tanh, HIDDEN)),
        Box::new(Linear::new(LinearSpec::new(2, HIDDEN, 1, true))),
    ];
    let sizes = Sizes { max_rows, device: Device::Cpu, precision: Precision::F32 };
    let mut network = Network::from_layers(layers, N_FEATURES, sizes)?;
    network.initialize(0)?;
    Ok(network)
}

/// Trains on this rank's share of each batch; returns the first and the last loss and all weights.
fn train(world: &World) -> ddp::Result<(f64, f64, Vec<f32>)> {
    // A quantity that no linear model predicts: half the squared distance from the origin.
    let x = Tensor::randn(&[N_ROWS, N_FEATURES], DType::F32, Device::Cpu, 1)?;
    let y = (&x * &x).sum(1)? * 0.5;
    let rows: Arc<dyn Dataset> = Arc::new(ResidentRows::from_tensors(&x, &y)?);

    let model = network(GLOBAL_BATCH.div_ceil(world.world_size()))?;
    let adamw = OptimizerConfig::new(OptimizerKind::AdamW, 3e-3);
    let optimizer = Optimizer::for_model(&adamw, &model)?;
    let mut trainer = Trainer::new(world, model, LossHead::Mse, optimizer, TrainerOptions::default())?;
    let plan = BatchPlan::new(world, rows.len(), GLOBAL_BATCH, 1, 0, Shuffle::Full).epochs(20);
    let mut loader = Loader::new(rows, plan, LoaderOptions::new(Device::Cpu))?;
    let (mut first, mut last) = (f64::NAN, f64::NAN);
    while let Some(mut batch) = loader.next_step()? {
        last = trainer.step_and_wait(&mut batch, false)?.sums.mean();
        first = if first.is_nan() { last } else { first };
    }
    if world.rank().0 == 0 {
        let names: Vec<_> = trainer.model().named_parameters()?.into_iter().map(|(name, _)| name).collect();
        println!("parameters: {}", names.join(", "));
    }
    Ok((first, last, trainer.model().weights().to_vec()?))
}

fn main() -> ddp::Result<()> {
    let x = Tensor::randn(&[16, N_FEATURES], DType::F32, Device::Cpu, 2)?;
    gradcheck(&mut network(16)?, x.view(), &GradcheckOptions::default())?;

    let ranks = ddp::launch(2, train)?;
    let (first, last, weights) = &ranks[0];
    let same = ranks.iter().filter(|(_, _, other)| other == weights).count();
    println!(
        "loss {first:.3} -> {last:.4}\n{same} of {} ranks of this process hold the same weights",
        ranks.len()
    );
    Ok(())
}
