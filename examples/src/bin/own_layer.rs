//! Two custom layers in a model that ranks train together: one with a trained parameter, one with buffers that belong to the
//! model but are not trained. Gradients are checked first; parameters are exchanged, updated and saved like those of all other
//! layers.
//!
//!     cargo run --release -p ddp-examples --bin own_layer
//!     mpirun -n 2 target/release/own_layer

// The output of an example is its purpose.
#![allow(clippy::print_stdout)]

use std::sync::Arc;

use ddp::data::{BatchPlan, DataLoader, Dataset, LoaderOptions, TensorDataset};
use ddp::nn::{
    Activation, BackwardPass, BufferSpec, ForwardPass, GradcheckOptions, Init, Layer, LossHead, ParamKind,
    ParamSpec, Precision, RegisteredBuffer, Sequential, Sizes, gradcheck,
};
use ddp::ops;
use ddp::ops::{MapOp, ReduceOp};
use ddp::optim::{OptimizerConfig, OptimizerKind};
use ddp::prelude::*;
use ddp::train::{Trainer, TrainerOptions};

type Result<T> = std::result::Result<T, KernelError>;

const N_ROWS: usize = 4096;
const N_FEATURES: usize = 8;
const HIDDEN: usize = 32;
const GLOBAL_BATCH: usize = 64;

/// `y = x · sigmoid(b · x)` with a trained `b`, `[features]`: Swish (arXiv:1710.05941). It uses tensor operations, so it runs on
/// any device.
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

    /// The sigmoid, which backward needs, and two buffers for intermediate results.
    fn buffers(&self, sizes: Sizes) -> Vec<BufferSpec> {
        vec![BufferSpec::activations(&[sizes.max_rows, self.out_features()], DType::F32); 3]
    }

    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()> {
        let n = x.shape().dims()[0];
        let [sigmoid, scaled, _] = pass.buffers else { unreachable!("as declared") };
        let (mut sigmoid, mut scaled) = (sigmoid.view_mut().rows(0, n)?, scaled.view_mut().rows(0, n)?);
        ops::map(MapOp::Mul, x.into(), pass.params.master(0)?.into(), scaled.reborrow())?;
        ops::activation_forward(Activation::Sigmoid, scaled.as_ref(), sigmoid.reborrow())?;
        ops::map(MapOp::Mul, x.into(), sigmoid.as_ref().into(), y)
    }

    /// Turns `d`, the gradient of the output, into the gradient of the input, and accumulates the gradient of `b`.
    fn backward(&mut self, mut d: TensorMut<'_>, mut pass: BackwardPass<'_>) -> Result<()> {
        let (x, b) = (pass.x, pass.params.master(0)?);
        let n = x.shape().dims()[0];
        let [sigmoid, direct, other] = pass.buffers else { unreachable!("as declared") };
        let sigmoid = sigmoid.view_mut().rows(0, n)?;
        let (mut direct, mut other) = (direct.view_mut().rows(0, n)?, other.view_mut().rows(0, n)?);
        ops::map(MapOp::Mul, d.as_ref().into(), sigmoid.as_ref().into(), direct.reborrow())?;
        // Gradient through the sigmoid: d · x · s · (1 - s).
        ops::map(MapOp::Mul, direct.as_ref().into(), x.into(), other.reborrow())?;
        ops::map(MapOp::Sub, 1.0.into(), sigmoid.as_ref().into(), d.reborrow())?;
        let mut through = sigmoid;
        ops::map(MapOp::Mul, other.as_ref().into(), d.as_ref().into(), through.reborrow())?;
        // Gradient of b: the sum over the rows of that gradient times x.
        ops::map(MapOp::Mul, through.as_ref().into(), x.into(), other.reborrow())?;
        let mut d_b = Tensor::zeros(b.shape().dims(), DType::F32, b.device())?;
        ops::reduce(ReduceOp::Sum, other.as_ref(), Some(0), d_b.view_mut())?;
        let grad = pass.grads.take()?;
        if grad.accumulate { ops::add_assign(grad.d, d_b.view()) } else { ops::copy(d_b.view(), grad.d) }?;
        ops::map(MapOp::Mul, through.as_ref().into(), b.into(), other.reborrow())?;
        ops::map(MapOp::Add, direct.as_ref().into(), other.as_ref().into(), d)
    }
}

/// `y = (x - mean) / deviation` for each column, with constants from the training rows, which are saved with the weights and
/// moved with the model. It uses tensor operations, so it runs on any device.
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
        ops::map(MapOp::Sub, Input::Tensor(x), Input::Tensor(mean.view()), centered.reborrow())?;
        let deviation = Input::Tensor(deviation.view());
        ops::map(MapOp::Div, Input::Tensor(centered.as_ref()), deviation, y)
    }

    /// The layer is before all parameters, so nothing needs the gradient of its input.
    fn backward(&mut self, _d: TensorMut<'_>, _pass: BackwardPass<'_>) -> Result<()> {
        Ok(())
    }
}

fn layers(x: &Tensor) -> Result<Sequential> {
    let mean = x.mean(0)?;
    let deviation = (x - &mean).pow(2.0)?.mean(0)?.sqrt()?;
    let standardize = Standardize { mean: mean.to_vec()?, deviation: deviation.to_vec()? };
    let layers = Sequential::new(N_FEATURES).layer(standardize).linear(HIDDEN);
    let layers = layers.layer(Swish::new("swish.0", HIDDEN)).linear(HIDDEN);
    Ok(layers.activation(Activation::Tanh).linear(1))
}

fn sizes(max_rows: usize, device: Device) -> Sizes {
    Sizes { max_rows, device, precision: Precision::F32 }
}

/// Rows whose columns have a mean of 3 and a deviation of 2.
fn inputs(n_rows: usize, seed: u64) -> Result<Tensor> {
    Ok(Tensor::randn(&[n_rows, N_FEATURES], DType::F32, Device::Cpu, seed)? * 2.0 + 3.0)
}

/// Trains on this rank's shard of each batch; returns the first and the last loss and all weights.
fn train(world: &World) -> ddp::Result<(f64, f64, Vec<f32>)> {
    // A quantity that no linear model can predict: half the squared distance from the mean.
    let x = inputs(N_ROWS, 1)?;
    let centered = (&x - 3.0) / 2.0;
    let y = (&centered * &centered).sum(1)? * 0.5;
    let rows: Arc<dyn Dataset> = Arc::new(TensorDataset::new(&x, &y)?);

    let adamw = OptimizerConfig::new(OptimizerKind::AdamW, 3e-3);
    let device = world.connect()?;
    let sizes = sizes(GLOBAL_BATCH.div_ceil(world.world_size()), device);
    let options = TrainerOptions::default();
    let mut trainer = Trainer::for_layers(world, layers(&x)?, sizes, LossHead::mse(), &adamw, options)?;
    let plan = BatchPlan { n_epochs: Some(20), ..BatchPlan::new(GLOBAL_BATCH) };
    let mut loader = DataLoader::new(world, rows, &plan, LoaderOptions::new(device))?;
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
    let device = Device::cuda(0).available_or_cpu();
    let mut model = layers(&x)?.build(sizes(16, device), 0)?;
    gradcheck(&mut model, x.to(device)?.view(), &GradcheckOptions::default())?;
    println!("gradients are right on {device}");

    let ranks = ddp::launch(2, train)?;
    let (first, last, weights) = &ranks[0];
    let same = ranks.iter().filter(|(_, _, other)| other == weights).count();
    println!(
        "loss {first:.3} -> {last:.4}\n{same} of {} ranks of this process hold the same weights",
        ranks.len()
    );
    Ok(())
}
