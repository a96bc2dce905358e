//! Mistakes that a PyTorch programmer makes, and what the library says. None of them may pass in silence.

mod common;

use std::sync::Arc;

use ddp::data::{BatchPlan, DataLoader, Dataset, LoaderOptions, PartitionKind, TensorDataset};
use ddp::nn::{
    BackwardPass, ForwardPass, GradcheckOptions, Init, Layer, LocalGradients, LossHead, Network, ParamKind,
    ParamSpec, Sequential, Sizes, gradcheck,
};
use ddp::ops;
use ddp::ops::{MapOp, ReduceOp as Reduce};
use ddp::optim::{Optimizer, OptimizerConfig, OptimizerKind, UpdateScale};
use ddp::prelude::*;
use ddp::train::{Trainer, TrainerOptions};

use common::says;

const F32: DType = DType::F32;

/// The message of the panic, which must contain each of `parts`.
fn panics<T>(f: impl FnOnce() -> T, parts: &[&str]) {
    let payload = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).err().expect("a panic");
    let said = payload.downcast_ref::<String>().cloned();
    let said = said.or_else(|| payload.downcast_ref::<&str>().map(|said| (*said).to_owned())).unwrap();
    for part in parts {
        assert!(said.contains(part), "`{said}` does not contain `{part}`");
    }
}

fn x() -> Tensor {
    Tensor::randn(&[8, 3], F32, Device::Cpu, 1).unwrap()
}

fn network() -> Network {
    Sequential::new(3).linear(2).build(Sizes::new(4, Device::Cpu), 0).unwrap()
}

fn gradients(network: &Network) -> Tensor {
    Tensor::zeros(&[network.layout().flat_len()], F32, Device::Cpu).unwrap()
}

/// One step on these rows.
fn step(rows: TensorDataset, layers: Sequential, max_rows: usize, loss: LossHead) -> ddp::Result<f64> {
    let world = World::single();
    let sgd = OptimizerConfig::new(OptimizerKind::Sgd, 0.1);
    let sizes = Sizes::new(max_rows, Device::Cpu);
    let mut trainer = Trainer::for_layers(&world, layers, sizes, loss, &sgd, TrainerOptions::default())?;
    let mut loader =
        DataLoader::new(&world, Arc::new(rows), &BatchPlan::new(8), LoaderOptions::new(Device::Cpu))?;
    let mut batch = loader.next_step()?.expect("the plan has no last epoch");
    Ok(trainer.step_and_wait(&mut batch, false)?.sums.mean())
}

/// `y = x * s` with a trained row `s`, and mistakes in its backward pass.
#[derive(Debug, Clone)]
struct Scale {
    params: [ParamSpec; 1],
    takes: bool,
    accumulates: bool,
    factor: f64,
    out_features: usize,
}

impl Scale {
    fn right() -> Self {
        let s = ParamSpec::new("s", ParamKind::NormWeight, &[3], Init::Constant(1.0));
        Scale { params: [s], takes: true, accumulates: true, factor: 1.0, out_features: 3 }
    }
}

impl Layer for Scale {
    fn describe(&self) -> String {
        "scale".to_owned()
    }

    fn out_features(&self) -> usize {
        self.out_features
    }

    fn parameters(&self) -> &[ParamSpec] {
        &self.params
    }

    fn forward(
        &mut self,
        x: TensorRef<'_>,
        y: TensorMut<'_>,
        pass: ForwardPass<'_>,
    ) -> Result<(), KernelError> {
        ops::map(MapOp::Mul, x.into(), pass.params.master(0)?.into(), y)
    }

    fn backward(&mut self, d: TensorMut<'_>, mut pass: BackwardPass<'_>) -> Result<(), KernelError> {
        let (s, d_y) = (pass.params.master(0)?.to_tensor()?, d.as_ref().to_tensor()?);
        if self.takes {
            let to = pass.grads.take()?;
            let mut d_s = s.zeros_like()?;
            ops::reduce(Reduce::Sum, d_y.mul(&pass.x.to_tensor()?)?.view(), Some(0), d_s.view_mut())?;
            if to.accumulate && self.accumulates {
                ops::add_assign(to.d, d_s.view())?;
            } else {
                ops::copy(d_s.view(), to.d)?;
            }
        }
        ops::copy(d_y.mul(&s)?.mul(self.factor)?.view(), d)
    }
}

#[test]
fn mistakes_in_passes() {
    let mut model = network();
    assert_eq!(model.outputs().unwrap().shape().dims(), [0, 2], "no pass, no rows");
    model.forward(Tensor::ones(&[1, 3], F32, Device::Cpu).unwrap()).unwrap();
    assert_eq!(model.outputs().unwrap().shape().dims(), [1, 2], "those of the last pass");

    let (mut model, two) = (network(), Tensor::ones(&[2, 3], F32, Device::Cpu).unwrap());
    let mut grads = gradients(&model);
    let backward = model.backward(two.view(), None, false, &mut LocalGradients(grads.view_mut()));
    says(backward, &["backward over 2 rows, but the last forward pass had 0", "call `forward`"]);

    model.forward(&two).unwrap();
    let mut short = Tensor::zeros(&[3], F32, Device::Cpu).unwrap();
    let backward = model.backward(two.view(), None, false, &mut LocalGradients(short.view_mut()));
    says(backward, &["gradients of all parameters: the range 0..", "exceeds the length 3"]);

    says(model.forward(x()), &["a pass over 8 rows", "at most 4", "max_rows"]);
    let wide = Tensor::ones(&[2, 7], F32, Device::Cpu).unwrap();
    says(model.forward(&wide), &["forward: x [2, 7] f32 on cpu should be [2, 3]"]);
    let double = Tensor::ones(&[2, 3], DType::F64, Device::Cpu).unwrap();
    says(model.forward(&double), &["forward", "[2, 3] f64"]);
}

#[test]
fn mistakes_in_updates() {
    let mut model = network();
    let grads = gradients(&model);
    let adamw = OptimizerConfig::new(OptimizerKind::AdamW, 1e-3);
    let mut optimizer = Optimizer::for_model(&adamw, &model).unwrap();
    let n = grads.numel();
    let step_on = || optimizer.step_on(model.weights_mut(), grads.view(), UpdateScale::Host(1.0), 0..n, 0);
    panics(step_on, &["begin_step"]);
}

#[test]
fn mistakes_in_layers_of_ones_own() {
    let check = |layer: Scale| {
        let layers = Sequential::new(3).linear(3).layer(layer).linear(2);
        let mut model = layers.build(Sizes::new(8, Device::Cpu), 0).unwrap();
        gradcheck(&mut model, x().view(), &GradcheckOptions::default())
    };
    check(Scale::right()).unwrap();
    says(check(Scale { factor: 3.0, ..Scale::right() }), &["gradient check: layers.0.bias, element 0"]);
    let accumulated = check(Scale { accumulates: false, ..Scale::right() });
    says(accumulated, &["gradient of `s`, element 0", "after a second one that accumulates"]);
    let not_taken = ["the backward pass of the layer `scale` took 0 of 1 gradients", "pass.grads.take()"];
    let forgetful = Scale { takes: false, ..Scale::right() };
    says(check(forgetful.clone()), &not_taken);
    let rows = TensorDataset::new(&x(), &x().sum(1).unwrap()).unwrap();
    says(step(rows, Sequential::new(3).layer(forgetful).linear(1), 8, LossHead::mse()), &not_taken);

    let narrow = Scale { out_features: 5, ..Scale::right() };
    let mut model = Sequential::new(3).layer(narrow).linear(2).build(Sizes::new(8, Device::Cpu), 0).unwrap();
    says(model.forward(x()), &["[8, 3] f32 on cpu"]);
    let twice = Sequential::new(3).layer(Scale::right()).layer(Scale::right());
    panics(|| twice.build(Sizes::new(8, Device::Cpu), 0), &["two layers have a parameter `s`", ".shared()"]);
    panics(|| Sequential::new(3).residual(|body| body.linear(4)), &["keeps the width"]);
}

#[test]
fn mistakes_in_rows() {
    let targets = |values: &[i64]| Tensor::from_slice(values, &[values.len()], Device::Cpu).unwrap();
    let hint = ["should be [8] i64, or [8] or [8, columns] f32", "`reshape` and `to_dtype`"];
    says(TensorDataset::new(&x(), &targets(&[0; 7])), &hint);
    for dtype in [DType::F64, DType::I32] {
        says(TensorDataset::new(&x(), &Tensor::zeros(&[8], dtype, Device::Cpu).unwrap()), &hint);
    }
    let cube = x().into_shape(&[8, 3, 1]).unwrap();
    says(
        TensorDataset::new(&cube, &targets(&[0; 8])),
        &["features [8, 3, 1] f32 should be [rows, columns] f32"],
    );
    let integers = x().to_dtype(DType::I64).unwrap();
    says(TensorDataset::new(&integers, &targets(&[0; 8])), &["features [8, 3] i64 should be"]);
    let negative = targets(&[0, 1, 2, -1, 0, 1, 2, 1]);
    says(TensorDataset::new(&x(), &negative), &["the class of row 3 is -1", "count from 0"]);
    let nan = Tensor::full(&[8, 3], f64::NAN, F32, Device::Cpu).unwrap();
    says(TensorDataset::new(&nan, &targets(&[0; 8])), &["row 0 holds NaN"]);

    let beyond = TensorDataset::new(&x(), &targets(&[0, 1, 2, 3, 0, 1, 2, 5])).unwrap();
    let outputs = Sequential::new(3).linear(3);
    says(step(beyond, outputs, 8, LossHead::cross_entropy()), &["outside 0..3"]);
    let classes = TensorDataset::new(&x(), &targets(&[0; 8])).unwrap();
    says(step(classes, Sequential::new(3).linear(3), 8, LossHead::mse()), &["mse", "[8] i64"]);
    let rows = || TensorDataset::new(&x(), &x().sum(1).unwrap()).unwrap();
    says(
        step(rows(), Sequential::new(4).linear(1), 8, LossHead::mse()),
        &["[8, 3] f32 on cpu should be [8, 4]"],
    );
    says(
        step(rows(), Sequential::new(3).linear(1), 4, LossHead::mse()),
        &["a pass over 8 rows", "at most 4"],
    );
}

#[test]
fn mistakes_in_loops() {
    let rows: Arc<dyn Dataset> = Arc::new(TensorDataset::new(&x(), &x().sum(1).unwrap()).unwrap());
    let options = LoaderOptions::new(Device::Cpu);
    let plan = BatchPlan { n_epochs: Some(1), ..BatchPlan::new(2) };
    let mut loader = DataLoader::new(&World::single(), rows.clone(), &plan, options.clone()).unwrap();
    assert_eq!(loader.iter().unwrap().filter(Result::is_ok).count(), 4);
    for _ in 0..2 {
        let after = loader.iter().unwrap().collect::<Result<Vec<_>, _>>();
        says(after, &["no batches left: the plan's epochs are over", "n_epochs"]);
    }
    // No end: each iteration is an epoch.
    let mut loader =
        DataLoader::new(&World::single(), rows.clone(), &BatchPlan::new(2), options.clone()).unwrap();
    assert_eq!((0..3).map(|_| loader.iter().unwrap().count()).sum::<usize>(), 12);
    // The loader takes the number of rows from the data, whatever the micro-batches.
    let micro = BatchPlan { partition: PartitionKind::Ranks { n_micro: 3 }, ..plan };
    let mut loader = DataLoader::new(&World::single(), rows, &micro, options).unwrap();
    assert_eq!(loader.iter().unwrap().map(|batch| batch.unwrap().0.dims()[0]).sum::<usize>(), 8);
}

#[test]
fn mistakes_in_ranks() {
    let alone = ddp::launch(2, |world| -> ddp::Result<()> {
        let mut x = Tensor::ones(&[2 + world.rank().0], F32, Device::Cpu)?;
        if world.rank().0 == 1 {
            x.add(&Tensor::zeros(&[7], F32, Device::Cpu)?)?;
        }
        Ok(world.tensor_group().all_reduce(ReduceOp::Sum, x.view_mut())?)
    });
    says(alone, &["add: a [3] f32 on cpu and b [7] f32 on cpu"]);
    let missing = ddp::launch(2, |world| -> ddp::Result<()> {
        let mut x = Tensor::ones(&[2], F32, Device::Cpu)?;
        match world.rank().0 {
            0 => Ok(world.tensor_group().all_reduce(ReduceOp::Sum, x.view_mut())?),
            _ => Ok(()),
        }
    });
    says(missing, &["all_reduce(sum) of 2 f32: rank 1 had left the group"]);
    let differ = ddp::launch(2, |world| -> ddp::Result<()> {
        let mut x = Tensor::ones(&[2 + world.rank().0], F32, Device::Cpu)?;
        Ok(world.tensor_group().all_reduce(ReduceOp::Sum, x.view_mut())?)
    });
    says(differ, &["entered all_reduce(sum) of 3 f32", "entered all_reduce(sum) of 2 f32"]);
    panics(
        || {
            ddp::launch(2, |world| -> ddp::Result<()> {
                assert!(world.rank().0 == 0, "a fault of rank 1");
                Ok(())
            })
        },
        &["a fault of rank 1"],
    );
}
