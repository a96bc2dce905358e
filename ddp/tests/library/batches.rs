//! Batches as tensors, in the order of a plan, sharded over the ranks.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use ddp::config::precision::Precision;
use ddp::config::{OptimizerConfig, OptimizerKind, Placement};
use ddp::data::device_rows::{DeviceRows, DeviceShape};
use ddp::data::loader::{BatchPlan, DataLoader, LoadedStep, LoaderOptions, Shuffle, TensorBatch};
use ddp::data::order::partition::RankPartition;
use ddp::data::{
    DataError, Dataset, GroupSampler, RowLayout, Sampler, TargetLayout, Targets, TensorDataset,
    numbered_columns,
};
use ddp::model::layer::Sizes;
use ddp::model::{LocalGradients, LossHead, Sequential};
use ddp::train::trainer::{MicroBatch, StepRows, Trainer, TrainerOptions};
use ddp_comm::{World, threads};
use ddp_kernels::ops::ScalarsOutput;
use ddp_kernels::{DType, Device, Tensor};

use crate::made_up::gpus::cpu_and_gpu;

const N_ROWS: usize = 23;
const GLOBAL_ROWS: usize = 6;

/// Rows whose feature is their index and whose target is its negative.
fn numbered() -> Arc<dyn Dataset> {
    let x = Tensor::arange(N_ROWS, DType::F32, Device::Cpu).unwrap().into_shape(&[N_ROWS, 1]).unwrap();
    Arc::new(TensorDataset::new(&x, &-&x).unwrap())
}

/// The row indices of each epoch, from all ranks, batch by batch.
fn visited(n_ranks: usize, shuffle: &Shuffle, options: &LoaderOptions) -> Vec<Vec<usize>> {
    let of_ranks = threads::run(n_ranks, |world| {
        let plan =
            BatchPlan { shuffle: shuffle.clone(), seed: 7, n_epochs: Some(2), ..BatchPlan::new(GLOBAL_ROWS) };
        let mut loader = DataLoader::new(&world, numbered(), &plan, options.clone()).unwrap();
        let mut epochs = Vec::new();
        for _ in 0..2 {
            let mut batches = Vec::new();
            for batch in loader.iter().unwrap() {
                let (x, y) = batch.unwrap();
                assert_eq!((x.device(), y.device()), (options.device, options.device));
                assert_eq!((x.dims()[1], y.dims()[1]), (1, 1));
                let (x, y) = (x.to_vec::<f32>().unwrap(), y.to_vec::<f32>().unwrap());
                assert!(x.iter().zip(&y).all(|(x, y)| *x == -*y), "a row's target is its own");
                batches.push(x.iter().map(|v| *v as usize).collect::<Vec<_>>());
            }
            epochs.push(batches);
        }
        let after = loader.iter().unwrap().next();
        assert!(matches!(after, Some(Err(DataError::PlanEnded))), "two epochs");
        epochs
    });
    let epoch = |epoch: usize| {
        let n_batches = of_ranks[0][epoch].len();
        (0..n_batches)
            .flat_map(|batch| of_ranks.iter().flat_map(move |rank| rank[epoch][batch].clone()))
            .collect()
    };
    vec![epoch(0), epoch(1)]
}

fn sorted(mut rows: Vec<usize>) -> Vec<usize> {
    rows.sort_unstable();
    rows
}

#[test]
fn each_row_comes_once_an_epoch_in_one_order_for_any_number_of_ranks_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        let mut options = vec![
            LoaderOptions::new(device),
            LoaderOptions { threads: Some(2), ..LoaderOptions::new(device) },
        ];
        if device != Device::Cpu {
            options.push(LoaderOptions { placement: Placement::Device, ..LoaderOptions::new(device) });
        }
        let alone = visited(1, &Shuffle::Full, &LoaderOptions::new(Device::Cpu));
        assert_ne!(alone[0], alone[1]);
        for options in &options {
            for n_ranks in [1, 2, 3] {
                let epochs = visited(n_ranks, &Shuffle::Full, options);
                assert_eq!(epochs, alone, "{device}, {n_ranks} ranks");
                for rows in epochs {
                    assert_eq!(sorted(rows), (0..N_ROWS).collect::<Vec<_>>());
                }
            }
        }
        assert_eq!(visited(2, &Shuffle::Off, &options[0])[1], (0..N_ROWS).collect::<Vec<_>>());
    }
}

/// The rows below `n` in order, some of them twice, starting with a different row in each epoch.
#[derive(Debug)]
struct Own {
    n: usize,
}

impl Sampler for Own {
    fn rows(&self, epoch: u64) -> Vec<usize> {
        (0..2 * self.n).map(|i| (i + epoch as usize) % self.n).collect()
    }
}

#[test]
fn a_sampler_decides_which_rows_come_when_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        for placement in [Placement::Host, Placement::Device] {
            let options = LoaderOptions { placement, ..LoaderOptions::new(device) };
            let shuffle = Shuffle::Sampler(Arc::new(Own { n: 5 }));
            for n_ranks in [1, 2] {
                let epochs = visited(n_ranks, &shuffle, &options);
                assert_eq!(
                    epochs,
                    [[0, 1, 2, 3, 4, 0, 1, 2, 3, 4], [1, 2, 3, 4, 0, 1, 2, 3, 4, 0]],
                    "{device}"
                );
            }
        }
    }
    let groups = Shuffle::Sampler(Arc::new(GroupSampler::new(N_ROWS - 3, 4, 1)));
    let epochs = visited(1, &groups, &LoaderOptions::new(Device::Cpu));
    assert!(epochs[0].chunks(4).all(|group| group[0] % 4 == 0 && group[3] == group[0] + 3), "{epochs:?}");
}

#[test]
fn a_row_that_is_not_there_is_an_error() {
    threads::run(1, |world| {
        let plan =
            BatchPlan { shuffle: Shuffle::Sampler(Arc::new(Own { n: N_ROWS + 1 })), ..BatchPlan::new(4) };
        let mut loader = DataLoader::new(&world, numbered(), &plan, LoaderOptions::new(Device::Cpu)).unwrap();
        let error = loader.iter().unwrap().find_map(Result::err).unwrap().to_string();
        assert!(error.contains("the sampler returned row 23 of data with 23 rows"), "{error}");
    });
}

/// Panics in the second epoch, or returns fewer rows there.
#[derive(Debug)]
struct Failing {
    panics: bool,
}

impl Sampler for Failing {
    fn rows(&self, epoch: u64) -> Vec<usize> {
        assert!(epoch == 0 || !self.panics, "no rows of epoch {epoch}");
        (0..N_ROWS - epoch as usize).collect()
    }
}

#[test]
fn a_sampler_that_fails_is_an_error() {
    for panics in [false, true] {
        threads::run(1, |world| {
            let plan = BatchPlan {
                shuffle: Shuffle::Sampler(Arc::new(Failing { panics })),
                n_epochs: Some(3),
                ..BatchPlan::new(4)
            };
            let options = LoaderOptions { threads: Some(2), ..LoaderOptions::new(Device::Cpu) };
            let mut loader = DataLoader::new(&world, numbered(), &plan, options).unwrap();
            // Rows that were read together with the epoch are lost.
            let error = loop {
                match loader.next_step() {
                    Ok(step) => assert!(step.is_some(), "an error before the end"),
                    Err(error) => break error.to_string(),
                }
            };
            assert!(error.contains("panicked") && error.contains("epoch"), "{error}");
        });
    }
}

#[test]
fn batches_know_their_places_and_weights() {
    let values = (0..N_ROWS).map(|i| i as f32).collect::<Vec<_>>();
    let names = vec!["y".to_owned()];
    let mut layout = RowLayout::new(numbered_columns(1), TargetLayout::Values { names });
    layout.has_weights = true;
    let (features, targets) = (values.clone(), Targets::Values(values.clone()));
    let source = "made up".to_owned();
    let rows: Arc<dyn Dataset> =
        Arc::new(TensorDataset { features, targets, weights: Some(values), layout, source });
    threads::run(2, |world| {
        let plan = BatchPlan { shuffle: Shuffle::Off, n_epochs: Some(1), ..BatchPlan::new(GLOBAL_ROWS) };
        let mut loader =
            DataLoader::new(&world, rows.clone(), &plan, LoaderOptions::new(Device::Cpu)).unwrap();
        let error = ddp_kernels::hint::with_hint(&loader.iter().err().unwrap());
        assert!(error.contains("DataLoader::batches"), "{error}");
        let batches = loader.batches().unwrap().map(Result::unwrap).collect::<Vec<TensorBatch>>();
        let places: Vec<_> =
            batches.iter().map(|batch| (batch.global_rows, batch.first_row, batch.epoch)).collect();
        let first = 3 * world.rank().0;
        assert_eq!(places, [(6, first, 1), (6, first, 1), (6, first, 1), (5, first, 1)]);
        for (index, TensorBatch { x, weights, .. }) in batches.iter().enumerate() {
            let x = x.to_vec::<f32>().unwrap();
            assert_eq!(weights.as_ref().unwrap().to_vec::<f32>().unwrap(), x);
            assert_eq!(x[0] as usize, GLOBAL_ROWS * index + first);
        }
    });
}

#[test]
fn an_epoch_that_is_left_early_continues() {
    threads::run(1, |world| {
        let plan = BatchPlan { shuffle: Shuffle::Off, n_epochs: Some(1), ..BatchPlan::new(GLOBAL_ROWS) };
        let mut loader = DataLoader::new(&world, numbered(), &plan, LoaderOptions::new(Device::Cpu)).unwrap();
        assert_eq!(loader.iter().unwrap().take(1).count(), 1);
        let (x, _) = loader.iter().unwrap().next().unwrap().unwrap();
        assert_eq!(x.to_vec::<f32>().unwrap()[0], 6.0);
        assert_eq!(loader.iter().unwrap().count(), 2);
    });
}

/// Rows that claim to be loaded for the first GPU.
struct ForGpu<'a>(LoadedStep<'a>);

impl StepRows for ForGpu<'_> {
    fn partition(&self) -> RankPartition {
        self.0.partition()
    }

    fn global_rows(&self) -> usize {
        self.0.global_rows()
    }

    fn has_weights(&self) -> bool {
        self.0.has_weights()
    }

    fn device(&self) -> Device {
        Device::Cuda(0)
    }

    fn micro_batch(&mut self, _index: usize) -> Result<MicroBatch<'_>, DataError> {
        unreachable!("no row is read")
    }

    fn device_shape(&self) -> DeviceShape {
        self.0.device_shape()
    }

    fn send(&mut self, _to: &mut DeviceRows, _scalars: Option<ScalarsOutput<'_>>) -> Result<(), DataError> {
        unreachable!("no row is sent")
    }
}

/// Also runs on machines without a GPU. `ddp/tests/gpu/devices_of_rows.rs` tests all pairs of devices.
#[test]
fn rows_for_another_device_are_refused_before_a_step() {
    let world = World::single();
    let sizes = Sizes { max_rows: GLOBAL_ROWS, device: Device::Cpu, precision: Precision::F32 };
    let sgd = OptimizerConfig::new(OptimizerKind::Sgd, 0.1);
    let (layers, options) = (Sequential::new(1).linear(1), TrainerOptions::default());
    let mut trainer = Trainer::for_layers(&world, layers, sizes, LossHead::mse(), &sgd, options).unwrap();
    let plan = BatchPlan { shuffle: Shuffle::Off, seed: 7, ..BatchPlan::new(GLOBAL_ROWS) };
    let mut loader = DataLoader::new(&world, numbered(), &plan, LoaderOptions::new(Device::Cpu)).unwrap();
    let mut step = ForGpu(loader.next_step().unwrap().unwrap());
    let error = ddp_kernels::hint::with_hint(&trainer.step_and_wait(&mut step, false).unwrap_err());
    let want = "the model is on cpu, and the rows of this step were loaded for cuda:0\n\
                hint: create the loader for the model's device: `LoaderOptions::new(trainer.model().device())`";
    assert_eq!(error, want);
    assert_eq!(trainer.n_steps(), 0);
    // Rows of a step that the loader itself returns are accepted.
    trainer.step_and_wait(&mut step.0, false).unwrap();
}

#[test]
fn a_pass_returns_its_own_rows_and_backward_takes_no_others() {
    let sizes = Sizes { max_rows: 8, device: Device::Cpu, precision: Precision::F32 };
    let mut model = Sequential::new(3).linear(2).build(sizes, 0).unwrap();
    assert_eq!(model.outputs().unwrap().shape().dims(), [0, 2], "nothing has passed");
    let mut grads = Tensor::zeros(&[model.layout().flat_len()], DType::F32, Device::Cpu).unwrap();
    for n_rows in [8, 2] {
        let x = Tensor::ones(&[n_rows, 3], DType::F32, Device::Cpu).unwrap();
        let got = model.forward(&x).unwrap().to_vec::<f32>().unwrap();
        assert_eq!((got.len(), got), (2 * n_rows, model.outputs().unwrap().to_vec().unwrap()));
        let other = Tensor::ones(&[4, 3], DType::F32, Device::Cpu).unwrap();
        let error =
            model.backward(other.view(), None, false, &mut LocalGradients(grads.view_mut())).unwrap_err();
        assert_eq!(
            ddp_kernels::hint::with_hint(&error),
            format!(
                "backward over 4 rows, but the last forward pass had {n_rows}\n\
                 hint: call `forward` on the same rows before `backward`"
            )
        );
        model.backward(x.view(), None, false, &mut LocalGradients(grads.view_mut())).unwrap();
    }
}
