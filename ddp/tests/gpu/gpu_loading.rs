//! Rows on their way to a GPU, in their stored format, from pinned memory or gathered on the GPU, and normalized on the way: they
//! train as on the CPU.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::sync::{Arc, Mutex, PoisonError};

use ddp::config::precision::Precision;
use ddp::config::{Activation, LayerConfig, ModelConfig, Placement};
use ddp::data::batch::BatchMut;
use ddp::data::loader::device_feed::DeviceFeed;
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions, PartitionKind, Shuffle};
use ddp::data::order::epoch_order::BlockLayout;
use ddp::data::order::epoch_proof::RowsHash;
use ddp::data::{Changes, Dataset, DatasetWrapper, Normalizer, RowLayout, TensorDataset};
use ddp::model::{ModelSpec, Network};
use ddp::train::trainer::StepRows as _;
use ddp_comm::threads;
use ddp_kernels::{DType, Device, KernelError, Tensor, TensorMut};
use half::{bf16, f16};

use crate::made_up::gpus::gpus;
use crate::made_up::{N_CLASSES, Setup, Trained, assert_close, row_weights};

/// The same rows, stored in a shorter format.
#[derive(Debug)]
struct Stored {
    of: Arc<TensorDataset>,
    layout: RowLayout,
}

impl Stored {
    fn rows(of: Arc<TensorDataset>, dtype: DType) -> Arc<dyn Dataset> {
        let layout = RowLayout { dtype, ..of.layout.clone() };
        Arc::new(Stored { of, layout })
    }
}

impl DatasetWrapper for Stored {
    const CHANGES: Changes = Changes::Features;

    fn inner(&self) -> &dyn Dataset {
        &*self.of
    }

    fn layout(&self) -> &RowLayout {
        &self.layout
    }

    fn gather(&self, rows: &[usize], out: BatchMut<'_>) -> Result<(), ddp::data::DataError> {
        let n_features = self.layout.n_features();
        let mut floats = vec![0.0f32; rows.len() * n_features];
        let x = TensorMut::from_slice(&mut floats, &[rows.len(), n_features])?;
        self.of.gather(rows, BatchMut { x, targets: out.targets, weights: out.weights })?;
        let floats = floats.into_iter();
        match out.x.dtype() {
            DType::U8 => {
                // Integers with about the same spread.
                let x = out.x.into_slice::<u8>("test", "x")?;
                x.iter_mut().zip(floats).for_each(|(x, v)| *x = (v * 40.0 + 128.0).clamp(0.0, 255.0) as u8);
            }
            DType::F16 => {
                let x = out.x.into_slice::<f16>("test", "x")?;
                x.iter_mut().zip(floats).for_each(|(x, v)| *x = f16::from_f32(v));
            }
            DType::BF16 => {
                let x = out.x.into_slice::<bf16>("test", "x")?;
                x.iter_mut().zip(floats).for_each(|(x, v)| *x = bf16::from_f32(v));
            }
            _ => out.x.into_slice::<f32>("test", "x")?.iter_mut().zip(floats).for_each(|(x, v)| *x = v),
        }
        Ok(())
    }
}

fn train(setup: &Setup, rows: &Arc<dyn Dataset>, world_size: usize) -> Trained {
    threads::run(world_size, |world| setup.train_rows(&world, rows)).remove(0)
}

#[test]
fn stored_rows_train_on_a_gpu_as_on_the_cpu_wherever_they_wait() {
    let Some(_alone) = gpus(1) else { return };
    for dtype in [DType::F32, DType::U8, DType::F16, DType::BF16] {
        for normalize in [false, true] {
            // Only a few steps, because rounding errors grow from step to step.
            let usual = Setup { row_weights: Some(row_weights(29)), n_epochs: 2, ..Setup::usual() };
            let n_features = usual.spec.n_features();
            let normalizer = || match dtype {
                DType::U8 => Normalizer::new(vec![128.0; n_features], vec![0.02; n_features]),
                _ => Normalizer::new(vec![0.25; n_features], vec![0.5; n_features]),
            };
            // Without normalization, raw bytes would drive the weights far away.
            let normalizer = (normalize || dtype == DType::U8).then(normalizer);
            let cpu = Setup { normalizer, ..usual };
            let rows = Stored::rows(cpu.rows(), dtype);
            let want = train(&cpu, &rows, 1);
            for placement in [Placement::Host, Placement::Device, Placement::Auto] {
                let gpu = Setup { on_gpus: true, placement, ..cpu.clone() };
                let got = train(&gpu, &rows, 1);
                assert_close(&format!("{dtype}, normalized {normalize}, {placement}"), &got, &want);
            }
        }
    }
}

#[test]
fn rows_on_each_of_two_gpus_train_as_one() {
    let Some(_alone) = gpus(2) else { return };
    let cpu = Setup::usual();
    let rows = Stored::rows(cpu.rows(), DType::F16);
    let want = train(&cpu, &rows, 1);
    for placement in [Placement::Host, Placement::Device] {
        let gpu = Setup { on_gpus: true, placement, ..cpu.clone() };
        assert_close(&placement.to_string(), &train(&gpu, &rows, 2), &want);
    }
}

/// Rows gathered in the format of activations, and rows that the host rounds to it, have the same bits as rows that the first layer converts. If the first layer
/// overwrites its input, it still converts them.
#[test]
fn rows_gathered_in_the_format_of_activations_train_as_converted_ones() {
    let Some(_alone) = gpus(2) else { return };
    let overwritten = {
        let usual = Setup::usual();
        let layers = [LayerConfig::Dropout { p: 0.25 }, LayerConfig::Activation(Activation::Tanh)];
        let layers = layers.map(LayerConfig::once).into();
        let spec =
            ModelSpec::new(&ModelConfig::from_layers(layers, true), usual.spec.n_features(), N_CLASSES);
        Setup { spec, ..usual }
    };
    for (setup, is_short) in
        [(Setup::usual(), true), (Setup::listed(), true), (Setup::embedded(), false), (overwritten, false)]
    {
        for (precision, format) in [(Precision::Bf16, DType::BF16), (Precision::F16, DType::F16)] {
            let model = Network::new(setup.spec.clone(), 4, Device::Cpu, precision).unwrap();
            assert_eq!(model.input_format(), if is_short { format } else { DType::F32 });
            let rows = Stored::rows(setup.rows(), DType::F32);
            let trained = |placement, rounds_on_host| {
                // Elsewhere a matmul may take another algorithm for rows at another address.
                let of = Setup { on_gpus: true, deterministic: true, precision, ..setup.clone() };
                train(&Setup { placement, rounds_on_host, ..of }, &rows, 2)
            };
            let converted = trained(Placement::Host, false);
            let (rounded, gathered) = (trained(Placement::Host, true), trained(Placement::Device, true));
            assert!(gathered == converted, "{precision:?}, {}", setup.spec.n_features());
            assert!(rounded == converted, "{precision:?}, {}, on the host", setup.spec.n_features());
        }
    }
}

#[test]
fn input_of_another_format_is_refused() {
    let mut model = Network::new(Setup::usual().spec, 4, Device::Cpu, Precision::Bf16).unwrap();
    let x = |dtype| Tensor::zeros(&[4, 6], dtype, Device::Cpu).unwrap();
    model.forward(x(DType::BF16)).unwrap();
    assert!(matches!(model.forward(x(DType::F16)), Err(KernelError::DTypeUnsupported { .. })));
}

/// The rows of each step, and at intervals the hash of the rows used.
fn loaded(loader: &mut DataLoader, device: Device) -> Vec<(Vec<f32>, Vec<i64>, Option<RowsHash>)> {
    let mut feed = DeviceFeed::new(device).unwrap();
    let mut steps = Vec::new();
    while let Some(mut rows) = loader.next_step().unwrap() {
        let n_rows = rows.n_own_rows();
        let batch = feed.next(&mut rows).unwrap();
        assert_eq!(batch.n_rows(), n_rows);
        let (x, targets) = (batch.x.to_vec().unwrap(), batch.targets.to_vec().unwrap());
        feed.consumed().unwrap();
        let is_asked = steps.len() % 3 == 2;
        steps.push((x, targets, is_asked.then(|| loader.take_rows_hash().unwrap())));
    }
    steps.push((Vec::new(), Vec::new(), Some(loader.take_rows_hash().unwrap())));
    steps
}

#[test]
fn rows_on_a_gpu_come_in_the_order_of_the_host_and_are_counted_alike() {
    let Some(_alone) = gpus(1) else { return };
    let rows = Setup::usual().rows();
    let n_rows = rows.len();
    let blocks = || Shuffle::Blocks(Arc::new(BlockLayout::new(n_rows, 300_000, None, 8 * 300_000)));
    for shuffle in [Shuffle::Off, Shuffle::Full, blocks()] {
        for world_size in [1, 3] {
            // Full batches, followed by one in which a rank may have no rows.
            let plan = BatchPlan {
                partition: PartitionKind::Ranks { n_micro: 2 },
                shuffle: shuffle.clone(),
                seed: 42,
                n_epochs: Some(3),
                ..BatchPlan::new(n_rows / 2 - 1)
            };
            let one_at_a_time = Mutex::new(());
            threads::run(world_size, |world| {
                let _alone = one_at_a_time.lock().unwrap_or_else(PoisonError::into_inner);
                let [want, got] = [Device::Cpu, Device::Cuda(0)].map(|device| {
                    let options =
                        LoaderOptions { placement: Placement::Device, ..LoaderOptions::new(device) };
                    let mut loader = DataLoader::new(&world, rows.clone(), &plan, options).unwrap();
                    assert_eq!(loader.is_on_gpu(), device != Device::Cpu);
                    loaded(&mut loader, device)
                });
                assert_eq!(got, want, "{shuffle:?}, {world_size} ranks");
                let all = want
                    .iter()
                    .filter_map(|(_, _, hash)| *hash)
                    .fold(RowsHash::default(), |a, b| a.merged(&b));
                if world_size == 1 {
                    let epoch = RowsHash::for_all_rows(n_rows as u64);
                    assert_eq!(all, epoch.merged(&epoch).merged(&epoch), "each row once per epoch");
                }
            });
        }
    }
}
