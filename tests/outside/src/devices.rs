//! Mistakes with devices, on two GPUs. Each is refused; none computes a wrong number.

use std::sync::Arc;

use ddp::data::{BatchPlan, DataLoader, LoaderOptions, Placement, TensorDataset};
use ddp::nn::{LossHead, Sequential, Sizes};
use ddp::optim::{OptimizerConfig, OptimizerKind};
use ddp::prelude::*;
use ddp::train::{Trainer, TrainerOptions};
use ddp::with_hint;

/// Trains on two batches; `rows` is the device that the loader is made for.
fn train(world: &World, model: Device, rows: Device, placement: Placement) -> ddp::Result<f64> {
    let x = Tensor::randn(&[16, 3], DType::F32, Device::Cpu, 1)?;
    let dataset = Arc::new(TensorDataset::new(&x, &x.sum(1)?)?);
    let (sgd, options) = (OptimizerConfig::new(OptimizerKind::Sgd, 0.1), TrainerOptions::default());
    let layers = Sequential::new(3).linear(1);
    let mut trainer =
        Trainer::for_layers(world, layers, Sizes::new(8, model), LossHead::mse(), &sgd, options)?;
    let plan = BatchPlan { n_epochs: Some(1), ..BatchPlan::new(8) };
    let options = LoaderOptions { placement, ..LoaderOptions::new(rows) };
    let mut loader = DataLoader::new(world, dataset, &plan, options)?;
    let mut loss = f64::NAN;
    while let Some(mut batch) = loader.next_step()? {
        loss = trainer.step_and_wait(&mut batch, false)?.sums.mean();
    }
    Ok(loss)
}

/// The message and hint of the error, which must contain each of `parts`.
fn says<T>(result: ddp::Result<T>, parts: &[&str]) {
    let said = with_hint(&result.err().expect("an error"));
    assert!(parts.iter().all(|part| said.contains(part)), "`{said}` does not contain all of {parts:?}");
}

fn sum(world: &World, device: Device) -> ddp::Result<()> {
    let mut x = Tensor::ones(&[4], DType::F32, device)?;
    Ok(world.tensor_group().all_reduce(ReduceOp::Sum, x.view_mut())?)
}

pub(crate) fn mistakes() {
    let devices = [Device::Cpu, Device::cuda(0), Device::cuda(1)];
    let mut losses = Vec::new();
    for (model, rows) in devices.iter().flat_map(|&model| devices.map(|rows| (model, rows))) {
        for placement in [Placement::Host, Placement::Device, Placement::Auto] {
            let result = train(&World::single(), model, rows, placement);
            if model == rows {
                losses.extend(result);
            } else {
                let model = format!("the model is on {model}");
                says(result, &[&model, "LoaderOptions::new(trainer.model().device())"]);
            }
        }
    }
    assert!(losses.len() == 9 && losses.iter().all(|loss| (loss - losses[0]).abs() < 1e-4), "{losses:?}");

    let own = |world: &World| Device::cuda(world.local_rank().0);
    says(ddp::launch(2, |world| train(world, own(world), own(world), Placement::Auto)), &["connect_device"]);
    let twice = |world: &World| Ok(world.connect_device(Device::cuda(0), DeviceOptions::default())?);
    says(ddp::launch(2, twice), &["both use the GPU", "start no more ranks on a host than it has GPUs"]);
    says(ddp::launch(2, |world| sum(world, own(world))), &["connect_device"]);
    let other = |world: &World| {
        world.connect_device(own(world), DeviceOptions::default())?;
        sum(world, Device::Cpu)
    };
    says(ddp::launch(2, other), &["[4] f32 on cpu", "`World::group` those in host memory"]);
}
