//! Two layers that the library does not have, in a model that ranks train together: one with a trained parameter, one with buffers
//! that belong to the model but are not trained. Gradients are checked first; parameters are exchanged, updated and saved as those
//! of all other layers.
//!
//!     cargo run --release -p ddp-examples --bin own_layer
//!     mpirun -n 2 target/release/own_layer

// The output of an example is its purpose.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use ddp::config::precision::Precision;
use ddp::config::{Activation, OptimizerConfig, OptimizerKind};
use ddp::data::loader::{BatchPlan, Loader, LoaderOptions, Shuffle};
use ddp::data::{Dataset, TensorDataset};
use ddp::model::layer::{BufferSpec, Layer, RegisteredBuffer, Result, Sizes};
use ddp::model::param::{Init, ParamKind, ParamSpec};
use ddp::model::pass::{BackwardPass, ForwardPass};
use ddp::model::{GradcheckOptions, LossHead, Sequential, gradcheck};
use ddp::ops::MapOp;
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

/// `y = (x - mean) / deviation` of each column, both constants of the training rows: saved with the weights, and moved with the model.
/// By operations, so on any device.
#[derive(Debug)]
struct Standardize {
    mean: Vec<f32>,
    deviation: Vec<f32>,
}

impl Layer for Standardize {
    fn describe(&self) -> String {
        "standardize".to_owned()
    }

    fn out_features(&self) -> usize {
        self.mean.len()
    }

    fn registered_buffers(&self) -> Result<Vec<RegisteredBuffer>> {
        let of = |values: &Vec<f32>| Tensor::from_slice(values, &[values.len()], Device::Cpu);
        Ok(vec![
            RegisteredBuffer::new("input.mean", of(&self.mean)?),
            RegisteredBuffer::new("input.deviation", of(&self.deviation)?),
        ])
    }

    fn buffers(&self, sizes: Sizes) -> Vec<BufferSpec> {
        vec![BufferSpec::activations(&[sizes.max_rows, self.mean.len()], DType::F32)]
    }

    fn is_capturable(&self) -> bool {
        true
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        let n = x.shape().dims()[0];
        if n == 0 {
            return Ok(());
        }
        let [mean, deviation] = pass.registered else { unreachable!("as declared") };
        let mut centered = pass.buffers[0].view_mut().rows(0, n)?;
        ddp::ops::map(MapOp::Sub, Input::Tensor(x), Input::Tensor(mean.view()), centered.reborrow())?;
        let deviation = Input::Tensor(deviation.view());
        ddp::ops::map(MapOp::Div, Input::Tensor(centered.as_ref()), deviation, y)
    }

    /// In front of all parameters, so that nothing needs the gradient of its input.
    fn backward(&mut self, _d: TensorMut<'_>, _pass: BackwardPass<'_>) -> Result<()> {
        Ok(())
    }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

fn layers(x: &Tensor) -> Result<Sequential> {
    let mean = x.mean(0)?;
    let deviation = (x - &mean).pow(2.0)?.mean(0)?.sqrt()?;
    let standardize = Standardize { mean: mean.to_vec()?, deviation: deviation.to_vec()? };
    let layers = Sequential::new(N_FEATURES).layer(standardize).linear(HIDDEN);
    let layers = layers.layer(Swish::new("swish.0", HIDDEN)).linear(HIDDEN);
    Ok(layers.activation(Activation::Tanh).linear(1))
}

fn sizes(max_rows: usize) -> Sizes {
    Sizes { max_rows, device: Device::Cpu, precision: Precision::F32 }
}

/// Rows whose columns have a mean of 3 and a deviation of 2.
fn inputs(n_rows: usize, seed: u64) -> Result<Tensor> {
    Ok(Tensor::randn(&[n_rows, N_FEATURES], DType::F32, Device::Cpu, seed)? * 2.0 + 3.0)
}

/// Trains on this rank's share of each batch; returns the first and the last loss and all weights.
fn train(world: &World) -> ddp::Result<(f64, f64, Vec<f32>)> {
    // A quantity that no linear model predicts: half the squared distance from the middle.
    let x = inputs(N_ROWS, 1)?;
    let centered = (&x - 3.0) / 2.0;
    let y = (&centered * &centered).sum(1)? * 0.5;
    let rows: Arc<dyn Dataset> = Arc::new(TensorDataset::new(&x, &y)?);

    let adamw = OptimizerConfig::new(OptimizerKind::AdamW, 3e-3);
    let (sizes, options) = (sizes(GLOBAL_BATCH.div_ceil(world.world_size())), TrainerOptions::default());
    let mut trainer = Trainer::for_layers(world, layers(&x)?, sizes, LossHead::Mse, &adamw, options)?;
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
        for (name, values) in trainer.model().saved_buffers() {
            println!("buffer {name}: {values}");
        }
    }
    Ok((first, last, trainer.model().weights().to_vec()?))
}

fn main() -> ddp::Result<()> {
    let x = inputs(16, 2)?;
    let mut model = layers(&x)?.build(sizes(16))?;
    model.initialize(0)?;
    gradcheck(&mut model, x.view(), &GradcheckOptions::default())?;

    let ranks = ddp::launch(2, train)?;
    let (first, last, weights) = &ranks[0];
    let same = ranks.iter().filter(|(_, _, other)| other == weights).count();
    println!(
        "loss {first:.3} -> {last:.4}\n{same} of {} ranks of this process hold the same weights",
        ranks.len()
    );
    Ok(())
}
