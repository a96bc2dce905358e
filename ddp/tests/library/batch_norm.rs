//! Batch norm: any number of ranks has the statistics of one rank, with ZeRO, on GPUs and after a resume; some models can't have
//! it.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::Arc;

use crate::made_up::gpus::{cpu_and_gpu, gpus};
use ddp::config::precision::Precision;
use ddp::config::{Activation, OptimizerConfig, OptimizerKind, ZeroStage};
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions, PartitionKind};
use ddp::data::{Dataset, TensorDataset};
use ddp::model::layer::Sizes;
use ddp::model::layers::BatchNorm1d;
use ddp::model::{GradcheckOptions, LossHead, Sequential, gradcheck};
use ddp::train::checkpoints::Checkpoints;
use ddp::train::trainer::{NonFinite, Trainer, TrainerOptions};
use ddp_comm::{DeviceOptions, World, threads};
use ddp_kernels::{DType, Device, Tensor};

const N_FEATURES: usize = 5;

/// A run, and the folder where it is saved.
#[derive(Clone, Copy)]
struct Run<'a> {
    n_rows: usize,
    global_rows: usize,
    n_micro: usize,
    zero: ZeroStage,
    precision: Precision,
    overlap: bool,
    on_gpus: bool,
    n_epochs: u64,
    folder: Option<&'a Path>,
}

#[derive(Debug, Clone, PartialEq)]
struct Trained {
    losses: Vec<f64>,
    weights: Vec<f32>,
    /// Running means and variances.
    statistics: Vec<f32>,
    n_graphs: usize,
}

impl Run<'_> {
    /// 53 rows in steps of 17; the last step has 2 rows.
    fn usual() -> Self {
        Run {
            n_rows: 53,
            global_rows: 17,
            n_micro: 1,
            zero: ZeroStage::Off,
            precision: Precision::F32,
            overlap: true,
            on_gpus: false,
            n_epochs: 3,
            folder: None,
        }
    }

    fn layers(&self) -> Sequential {
        let layers = Sequential::new(N_FEATURES).batch_norm().linear(8).batch_norm();
        layers.activation(Activation::Tanh).linear(6).layer(BatchNorm1d::with(2, 6, 1e-3, 0.3)).linear(1)
    }

    fn trainer<'w>(&self, world: &'w World) -> ddp::Result<Trainer<'w>> {
        let device = if self.on_gpus { Device::Cuda(world.rank().0 as u32) } else { Device::Cpu };
        world.connect_device(device, DeviceOptions::default()).unwrap();
        // AdamW would scale rounding errors in the gradients of shifts before a norm up to full steps.
        let adamw = OptimizerConfig::new(OptimizerKind::AdamW, 0.02);
        let options = TrainerOptions {
            zero: self.zero,
            seed: 5,
            bucket_bytes: 100,
            clip_grad_norm: 1.0,
            overlap: self.overlap,
            nonfinite: NonFinite::Withhold,
            ..TrainerOptions::default()
        };
        let sizes = Sizes { max_rows: self.global_rows, device, precision: self.precision };
        Ok(Trainer::for_layers(world, self.layers(), sizes, LossHead::mse(), &adamw, options)?)
    }

    /// Columns of different scales, one of them 1000 standard deviations from zero.
    fn rows(&self) -> Arc<dyn Dataset> {
        let x = Tensor::randn(&[self.n_rows, N_FEATURES], DType::F32, Device::Cpu, 1).unwrap();
        let y = (&x * &x).sum(1).unwrap();
        let scale = Tensor::from_slice(&[1.0f32, 3.0, 0.1, 1.0, 10.0], &[N_FEATURES], Device::Cpu).unwrap();
        let shift = Tensor::from_slice(&[0.0f32, 1.0, 100.0, 0.0, -5.0], &[N_FEATURES], Device::Cpu).unwrap();
        Arc::new(TensorDataset::new(&(&(&x * &scale) + &shift), &y).unwrap())
    }

    /// Trains on this rank, from the newest checkpoint if there is one; saves at the end if there is a folder.
    fn train(&self, world: &World) -> ddp::Result<Trained> {
        let mut trainer = self.trainer(world)?;
        let mut checkpoints =
            self.folder.map(|folder| Checkpoints::new(world, &trainer, folder)).transpose()?;
        let cursor = match &checkpoints {
            Some(checkpoints) => checkpoints.resume(&mut trainer)?.unwrap_or(0),
            None => 0,
        };
        let plan = BatchPlan { seed: 3, ..BatchPlan::new(self.global_rows) };
        let plan = BatchPlan {
            partition: PartitionKind::SharedMicroBatches { n_micro: self.n_micro },
            n_epochs: Some(self.n_epochs),
            cursor,
            ..plan
        };
        let mut loader =
            DataLoader::new(world, self.rows(), &plan, LoaderOptions::new(trainer.model().device()))?;
        let mut losses = Vec::new();
        while let Some(mut batch) = loader.next_step()? {
            losses.push(trainer.step_and_wait(&mut batch, false)?.sums.mean());
        }
        if let Some(checkpoints) = &mut checkpoints {
            checkpoints.save(&trainer, self.n_epochs * self.n_rows as u64)?;
        }
        let values = |tensors: Vec<(&str, &Tensor)>| {
            tensors.into_iter().flat_map(|(_, t)| t.to_vec::<f32>().unwrap()).collect::<Vec<_>>()
        };
        let state = trainer.model().state_dict(Device::Cpu)?;
        let weights =
            state.iter().filter(|(name, _)| !name.contains("running")).map(|(name, t)| (&name[..], t));
        Ok(Trained {
            weights: values(weights.collect()),
            statistics: values(trainer.model().saved_buffers()),
            losses,
            n_graphs: trainer.n_graphs(),
        })
    }

    fn on(&self, n_ranks: usize) -> Vec<Trained> {
        threads::run(n_ranks, |world| self.train(&world).unwrap())
    }
}

#[track_caller]
fn assert_near(what: &str, got: &Trained, want: &Trained, tolerance: f64) {
    let close = |name: &str, got: Vec<f64>, want: Vec<f64>, tolerance: f64| {
        assert_eq!(got.len(), want.len(), "{what}: {name}");
        for (got, want) in got.iter().zip(&want) {
            assert!(
                (got - want).abs() <= tolerance * (1.0 + want.abs()),
                "{what}: {name}: {got} against {want}"
            );
        }
    };
    let f64s = |values: &[f32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<_>>();
    close("losses", got.losses.clone(), want.losses.clone(), tolerance);
    close("statistics", f64s(&got.statistics), f64s(&want.statistics), tolerance);
    close("weights", f64s(&got.weights), f64s(&want.weights), tolerance);
}

#[test]
fn any_number_of_ranks_trains_with_the_statistics_of_one() {
    // Steps of 17 and 2 rows on up to 4 ranks, so some ranks have no rows.
    for n_micro in [1, 3] {
        let alone = Run { n_micro, ..Run::usual() }.on(1).remove(0);
        let epoch = |epoch: usize| alone.losses[4 * epoch..4 * epoch + 4].iter().sum::<f64>();
        assert!(epoch(2) < epoch(0), "{:?}", alone.losses);
        for n_ranks in 2..=4 {
            for zero in [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients] {
                let trained = Run { n_micro, zero, overlap: n_ranks != 3, ..Run::usual() }.on(n_ranks);
                for of_rank in &trained {
                    assert_near(&format!("{zero:?}, {n_micro}, {n_ranks} ranks"), of_rank, &alone, 2e-6);
                    assert_eq!(of_rank.statistics, trained[0].statistics, "the same bits on all ranks");
                }
            }
        }
    }
    let other = Run { n_micro: 3, ..Run::usual() }.on(1).remove(0);
    assert!(
        other.statistics != Run::usual().on(1)[0].statistics,
        "micro-batches have statistics of their own"
    );
}

#[test]
fn statistics_are_those_of_all_rows() {
    // With momentum 1 the running averages are those of the last batch, which contains all rows.
    for n_ranks in [1, 3] {
        let trained = threads::run(n_ranks, |world| {
            let layers =
                Sequential::new(N_FEATURES).layer(BatchNorm1d::with(0, N_FEATURES, 1e-5, 1.0)).linear(1);
            let sizes = Sizes { max_rows: 20, device: Device::Cpu, precision: Precision::F32 };
            let sgd = OptimizerConfig::new(OptimizerKind::Sgd, 0.1);
            let options = TrainerOptions::default();
            let mut trainer =
                Trainer::for_layers(&world, layers, sizes, LossHead::mse(), &sgd, options).unwrap();
            let rows = Run { n_rows: 20, ..Run::usual() }.rows();
            let plan = BatchPlan {
                partition: PartitionKind::SharedMicroBatches { n_micro: 1 },
                seed: 3,
                n_epochs: Some(1),
                ..BatchPlan::new(20)
            };
            let mut loader = DataLoader::new(&world, rows, &plan, LoaderOptions::new(Device::Cpu)).unwrap();
            let mut batch = loader.next_step().unwrap().unwrap();
            trainer.step_and_wait(&mut batch, false).unwrap();
            trainer
                .model()
                .saved_buffers()
                .iter()
                .map(|(_, t)| t.to_vec::<f32>().unwrap())
                .collect::<Vec<_>>()
        });
        let rows = Run { n_rows: 20, ..Run::usual() }.rows();
        let x = rows.in_place(0..20).unwrap().unwrap().x.to_vec::<f32>().unwrap();
        for column in 0..N_FEATURES {
            let values: Vec<f64> = x.iter().skip(column).step_by(N_FEATURES).map(|v| f64::from(*v)).collect();
            let mean = values.iter().sum::<f64>() / 20.0;
            let var = values.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / 19.0;
            for of_rank in &trained {
                let (got_mean, got_var) = (f64::from(of_rank[0][column]), f64::from(of_rank[1][column]));
                assert!((got_mean - mean).abs() <= 1e-6 * (1.0 + mean.abs()), "{got_mean} against {mean}");
                assert!((got_var - var).abs() <= 1e-6 * (1.0 + var), "{got_var} against {var}");
            }
        }
    }
}

#[test]
fn a_run_resumes_to_the_bit_with_its_statistics() {
    for (n_ranks, zero) in [(1, ZeroStage::Off), (3, ZeroStage::Off), (2, ZeroStage::Gradients)] {
        let folder = tempfile::tempdir().unwrap();
        let run = Run { zero, n_micro: 2, ..Run::usual() };
        let whole = run.on(n_ranks);
        Run { n_epochs: 1, folder: Some(folder.path()), ..run }.on(n_ranks);
        let resumed = Run { folder: Some(folder.path()), ..run }.on(n_ranks);
        for (resumed, whole) in resumed.iter().zip(&whole) {
            assert_eq!(resumed.losses, whole.losses[4..], "{zero:?}, {n_ranks} ranks");
            assert_eq!((&resumed.weights, &resumed.statistics), (&whole.weights, &whole.statistics));
        }
    }
}

#[test]
fn gpus_train_as_the_cpu_does() {
    let Some(_lock) = gpus(2) else { return };
    for (n_ranks, n_micro, zero) in
        [(1, 2, ZeroStage::Off), (2, 1, ZeroStage::Off), (2, 2, ZeroStage::Gradients)]
    {
        let run = Run { n_micro, zero, ..Run::usual() };
        let want = run.on(1).remove(0);
        for of_rank in (Run { on_gpus: true, ..run }).on(n_ranks) {
            assert_near(&format!("{zero:?}, {n_ranks} GPUs"), &of_rank, &want, 1e-5);
            assert!(of_rank.n_graphs > 0, "steps are captured, with the exchange between the ranks");
        }
        let short = Run { precision: Precision::Bf16, ..run };
        let want = short.on(1).remove(0);
        for of_rank in (Run { on_gpus: true, ..short }).on(n_ranks) {
            assert_near("bf16", &of_rank, &want, 0.05);
        }
    }
}

#[test]
fn gradients_with_running_statistics_are_right_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        let sizes = Sizes { max_rows: 8, device, precision: Precision::F32 };
        let mut model = Run::usual().layers().build(sizes, 2).unwrap();
        let before: Vec<_> = model.named_buffers().iter().map(|(_, t)| t.to_vec::<f32>().unwrap()).collect();
        let x = Tensor::randn(&[8, N_FEATURES], DType::F32, device, 4).unwrap();
        gradcheck(&mut model, x.view(), &GradcheckOptions::default()).unwrap();
        let after: Vec<_> = model.named_buffers().iter().map(|(_, t)| t.to_vec::<f32>().unwrap()).collect();
        assert_eq!(before, after, "only training moves them");
    }
}

/// A single row left over at the end of an epoch has no statistics: the running averages replace them, on any number of ranks.
#[test]
fn a_single_row_left_over_takes_the_running_averages() {
    // 18 rows in steps of 17.
    let run = Run { n_rows: 18, n_epochs: 2, ..Run::usual() };
    let want = run.on(1).remove(0);
    for of_rank in run.on(2) {
        assert_near("2 ranks", &of_rank, &want, 1e-5);
    }
}

#[test]
fn a_fixed_tree_of_micro_shards_is_refused() {
    let world = World::single();
    let sizes = Sizes { max_rows: 4, device: Device::Cpu, precision: Precision::F32 };
    let options = TrainerOptions { micro_shards: Some(4), ..TrainerOptions::default() };
    let sgd = OptimizerConfig::new(OptimizerKind::Sgd, 0.1);
    let layers = Run::usual().layers();
    let error = Trainer::for_layers(&world, layers, sizes, LossHead::mse(), &sgd, options).unwrap_err();
    assert!(error.to_string().contains("batch norm takes its statistics of a whole micro-batch"), "{error}");
}
