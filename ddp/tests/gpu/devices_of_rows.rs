//! A trainer and a loader on each pair of devices: on equal devices they train as on the CPU; on different devices they fail with
//! an error that names the call to change.

use std::sync::Arc;

use ddp::config::precision::Precision;
use ddp::config::{OptimizerConfig, OptimizerKind, Placement, Task};
use ddp::data::loader::device_feed::DeviceFeed;
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions};
use ddp::data::order::partition::EvalPartition;
use ddp::data::{Dataset, TensorDataset};
use ddp::model::layer::Sizes;
use ddp::model::{LossHead, Sequential};
use ddp::train::evaluate::evaluate;
use ddp::train::metrics::request::MetricRequest;
use ddp::train::trainer::{StepRequest, Trainer, TrainerOptions};
use ddp_comm::World;
use ddp_kernels::{DType, Device, Tensor};

use crate::made_up::gpus::gpus;

fn rows() -> Arc<dyn Dataset> {
    let x = Tensor::randn(&[29, 3], DType::F32, Device::Cpu, 1).unwrap();
    Arc::new(TensorDataset::new(&x, &x.sum(1).unwrap()).unwrap())
}

fn trainer(world: &World, device: Device) -> Trainer<'_> {
    let sizes = Sizes { max_rows: 8, device, precision: Precision::F32 };
    let (layers, sgd) = (Sequential::new(3).linear(1), OptimizerConfig::new(OptimizerKind::Sgd, 0.1));
    Trainer::for_layers(world, layers, sizes, LossHead::mse(), &sgd, TrainerOptions::default()).unwrap()
}

fn loader(world: &World, options: &LoaderOptions) -> DataLoader {
    let plan = BatchPlan { n_epochs: Some(2), ..BatchPlan::new(8) };
    DataLoader::new(world, rows(), &plan, options.clone()).unwrap()
}

/// Losses of two epochs, or the error of the first step, which must not have changed anything.
fn train(device: Device, options: &LoaderOptions) -> Result<Vec<f64>, String> {
    let world = World::single();
    let (mut trainer, mut loader) = (trainer(&world, device), loader(&world, options));
    let initial = trainer.model().weights().to_vec::<f32>().unwrap();
    let mut losses = Vec::new();
    while let Some(mut step) = loader.next_step().unwrap() {
        match trainer.step_and_wait(&mut step, false) {
            Ok(outcome) => losses.push(outcome.sums.mean()),
            Err(error) => {
                assert_eq!((losses.len(), trainer.n_steps()), (0, 0));
                assert_eq!(trainer.model().weights().to_vec::<f32>().unwrap(), initial);
                return Err(ddp_kernels::hint::with_hint(&error));
            }
        }
    }
    Ok(losses)
}

#[test]
fn each_pair_of_devices_trains_or_says_which_call_to_change() {
    let Some(_gpus) = gpus(2) else { return };
    let devices = [Device::Cpu, Device::Cuda(0), Device::Cuda(1)];
    let want = train(Device::Cpu, &LoaderOptions::new(Device::Cpu)).unwrap();
    assert_eq!(want.len(), 8);
    for model in devices {
        for of_rows in devices {
            for placement in [Placement::Host, Placement::Device, Placement::Auto] {
                let what = format!("trainer on {model}, loader for {of_rows}, {placement}");
                let options = LoaderOptions { placement, ..LoaderOptions::new(of_rows) };
                match train(model, &options) {
                    Ok(losses) => {
                        assert_eq!(model, of_rows, "{what}: trained");
                        // A few f32 rounding errors per step.
                        let is_close = |(got, want): (&f64, &f64)| (got - want).abs() <= 1e-5 * want.abs();
                        assert!(losses.iter().zip(&want).all(is_close), "{what}: {losses:?}, {want:?}");
                        assert_eq!(losses.len(), want.len(), "{what}");
                    }
                    Err(error) => {
                        assert_ne!(model, of_rows, "{what}: {error}");
                        let fact = format!(
                            "the model is on {model}, and the rows of this step were loaded for {of_rows}"
                        );
                        assert!(error.starts_with(&fact), "{what}: {error}");
                        assert!(error.contains("LoaderOptions::new(trainer.model().device())"), "{error}");
                    }
                }
            }
        }
    }
}

/// Two outcomes fit on a device: the third step takes the place of the first one's.
#[test]
fn outcomes_that_are_read_at_the_end_are_those_of_their_steps() {
    let Some(_gpus) = gpus(1) else { return };
    let device = Device::Cuda(0);
    let options = LoaderOptions::new(device);
    let want = train(device, &options).unwrap();
    let world = World::single();
    let (mut trainer, mut loader) = (trainer(&world, device), loader(&world, &options));
    while let Some(mut step) = loader.next_step().unwrap() {
        trainer.step(&mut step, StepRequest::default()).unwrap();
    }
    let mut got = Vec::new();
    while let Some((info, outcome)) = trainer.outcome(true).unwrap() {
        assert_eq!(info.step, got.len() as u64 + 1);
        got.push(outcome.sums.mean());
    }
    assert_eq!(got, want);
}

/// Passes without training: an evaluation loads rows for the model's device, and a feed refuses rows on other devices.
#[test]
fn passes_over_rows_of_another_device_are_right_or_refused() {
    let Some(_gpus) = gpus(2) else { return };
    let devices = [Device::Cpu, Device::Cuda(0), Device::Cuda(1)];
    let world = World::single();
    let mut losses = Vec::new();
    for model in devices {
        for of_rows in devices {
            let (mut trainer, options) = (trainer(&world, model), LoaderOptions::new(of_rows));
            let (network, loss) = trainer.model_and_loss();
            let (request, partition) =
                (MetricRequest::defaults(Task::Regression), EvalPartition::for_ranks(1));
            let metrics = evaluate(&world, network, loss, &request, &rows(), partition, &options).unwrap();
            losses.push(metrics.get(ddp::config::EvalMetric::Loss).unwrap());

            let (mut loader, mut feed) = (loader(&world, &options), DeviceFeed::new(model).unwrap());
            let mut step = loader.next_step().unwrap().unwrap();
            assert_eq!(feed.next(&mut step).is_ok(), model == of_rows, "{model}, {of_rows}");
        }
    }
    // As above.
    assert!(losses.iter().all(|loss| (loss - losses[0]).abs() <= 1e-5 * losses[0]), "{losses:?}");
}
