//! The data-parallel law on the library's trainer, with ranks that are threads: all ranks hold the same bits, any number
//! of them trains as one does, and every row is used once an epoch.

#![allow(clippy::unwrap_used)]

use ddp::batches::Table;
use ddp::config::{Loss, OptimizerConfig, OptimizerKind, Task};
use ddp::epoch::StepBatches;
use ddp::evaluate::evaluate;
use ddp::metrics::EvalMetrics;
use ddp::model::{LossHead, Mlp, ModelSpec, Optimizer, init};
use ddp::sampler::KeyedPermutation;
use ddp::shard::GlobalBatches;
use ddp::trainer::{MicroBatches, Trainer, TrainerOptions};
use ddp_comm::{World, threads};
use ddp_kernels::ops::Activation;
use ddp_kernels::{DType, Device, Tensor};
use proptest::prelude::*;

const N_CLASSES: usize = 3;

/// A training run of made-up rows.
#[derive(Debug, Clone)]
struct Setup {
    spec: ModelSpec,
    optimizer: OptimizerKind,
    n_rows: usize,
    global_rows: usize,
    n_micro: usize,
    n_epochs: u64,
    options: TrainerOptions,
}

/// What one rank holds at the end.
#[derive(Debug, PartialEq)]
struct Trained {
    /// As bits: zeros of both signs differ.
    weights: Vec<u32>,
    losses: Vec<f64>,
    grad_norms: Vec<f64>,
    eval: EvalMetrics,
}

impl Setup {
    /// 29 rows in steps of 12: the last step has 5 rows, cut into two micro-batches on each rank.
    fn usual() -> Self {
        Setup {
            spec: ModelSpec {
                dims: vec![6, 16, 16, 9, N_CLASSES],
                activation: Activation::Gelu,
                layer_norm: true,
                dropout: 0.25,
                residual: true,
                bias: true,
            },
            optimizer: OptimizerKind::Sgd,
            n_rows: 29,
            global_rows: 12,
            n_micro: 2,
            n_epochs: 4,
            options: TrainerOptions {
                seed: 3,
                clip_grad_norm: 0.7,
                bucket_bytes: 1500,
                ..TrainerOptions::default()
            },
        }
    }

    fn table(&self) -> Table {
        let dims = [self.n_rows, self.spec.dims[0]];
        let x = Tensor::randn(&dims, DType::F32, Device::Cpu, 11).unwrap();
        let values = x.to_vec::<f32>().unwrap();
        let label = |row: &[f32]| i64::from(row[0] > 0.0) + i64::from(row[row.len() - 1] > 0.3);
        let labels: Vec<i64> = values.chunks_exact(dims[1]).map(label).collect();
        Table::from_tensors(x, Tensor::from_slice(&labels, &dims[..1], Device::Cpu).unwrap())
    }

    /// Trains as this rank of the world.
    fn train(&self, world: &World) -> Trained {
        let own_rows = self.global_rows.min(self.n_rows).div_ceil(world.world_size());
        let mut model = Mlp::new(self.spec.clone(), own_rows.div_ceil(self.n_micro), Device::Cpu).unwrap();
        let layout = model.layout().clone();
        init::initialize(&layout, model.weights_mut(), self.options.seed).unwrap();
        let config = OptimizerConfig {
            kind: self.optimizer,
            lr: if self.optimizer == OptimizerKind::Sgd { 0.1 } else { 0.003 },
            betas: [0.9, 0.999],
            eps: 1e-8,
            weight_decay: 0.01,
            momentum: 0.9,
            nesterov: true,
        };
        let optimizer = Optimizer::new(&config, model.weights()).unwrap();
        let class_weights = Some(vec![0.5, 1.0, 2.0]);
        let loss = Loss::CrossEntropy { label_smoothing: 0.05, class_weights };
        let loss = LossHead::new(&loss, Device::Cpu).unwrap();
        let mut trainer = Trainer::new(world, model, loss, optimizer, self.options).unwrap();

        let table = self.table();
        let mut buffers = table.buffers(trainer.model().max_rows()).unwrap();
        let (mut losses, mut grad_norms) = (Vec::new(), Vec::new());
        for epoch in 0..self.n_epochs {
            let order = KeyedPermutation::new(self.n_rows, self.options.seed, epoch);
            for global in GlobalBatches::new(self.n_rows, self.global_rows) {
                let mut batches =
                    StepBatches::new(world, &table, &order, &mut buffers, &global, self.n_micro);
                let outcome = trainer.step(&mut batches, true).unwrap();
                losses.push(outcome.sums.mean());
                grad_norms.push(outcome.grad_norm.unwrap());
            }
        }
        let (model, loss) = trainer.model_and_loss();
        let eval = evaluate(world, model, loss, Task::Classification, &table).unwrap();
        let weights = trainer.model().weights().to_vec::<f32>().unwrap();
        let weights = weights.into_iter().map(f32::to_bits).collect();
        Trained { weights, losses, grad_norms, eval }
    }

    /// Trains on this many ranks, which must all come to the same, bit for bit.
    fn train_on(&self, world_size: usize) -> Trained {
        let mut ranks = threads::run(world_size, |world| self.train(&world)).into_iter();
        let first = ranks.next().unwrap();
        for (rank, other) in ranks.enumerate() {
            assert!(other == first, "rank {} of {world_size} differs from rank 0", rank + 1);
        }
        first
    }
}

/// Asserts that two runs differ by rounding alone.
///
/// Rows are cut into other matrices, whose products add up in another order: outputs and gradients are off by a few
/// EPS = 2^-24 = 6e-8 of their size. A dozen steps round each weight, below 2, as often: 1e-6 is 16 EPS, about five
/// times what is seen. A mean over other rows, or another dropout mask, is off by 1e-3 and more.
#[track_caller]
fn assert_close(what: &str, got: &Trained, want: &Trained) {
    let close = |name: &str, got: &[f64], want: &[f64], atol: f64, rtol: f64| {
        assert_eq!(got.len(), want.len(), "{what}: {name}");
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            let within = (g - w).abs() <= atol + rtol * w.abs();
            assert!(within, "{what}: {name}[{i}]: {g} against {w}");
        }
    };
    let weights =
        |t: &Trained| -> Vec<f64> { t.weights.iter().map(|&bits| f64::from(f32::from_bits(bits))).collect() };
    close("weights", &weights(got), &weights(want), 1e-6, 0.0);
    close("losses", &got.losses, &want.losses, 0.0, 1e-6);
    // All of its parts may be off in the same direction.
    close("grad_norms", &got.grad_norms, &want.grad_norms, 0.0, 2e-6);
    close("eval_loss", &[got.eval.loss.unwrap()], &[want.eval.loss.unwrap()], 0.0, 1e-6);
    assert_eq!(got.eval.accuracy, want.eval.accuracy, "{what}");
}

#[test]
fn any_number_of_ranks_trains_as_one_and_all_hold_the_same_bits() {
    for optimizer in [OptimizerKind::Sgd, OptimizerKind::AdamW] {
        let setup = Setup { optimizer, ..Setup::usual() };
        let alone = setup.train_on(1);
        assert!(alone.losses.len() == 12 && alone.losses[11] < alone.losses[0], "{alone:?}");
        for world_size in 2..=5 {
            let trained = setup.train_on(world_size);
            assert_close(&format!("{optimizer}, {world_size} ranks"), &trained, &alone);
        }
    }
}

#[test]
fn any_number_of_micro_batches_trains_as_one() {
    let alone = Setup { n_micro: 1, ..Setup::usual() }.train_on(1);
    for (world_size, n_micro) in [(1, 2), (1, 12), (2, 3), (3, 5)] {
        let trained = Setup { n_micro, ..Setup::usual() }.train_on(world_size);
        assert_close(&format!("{world_size} ranks, {n_micro} micro-batches"), &trained, &alone);
    }
}

/// Sums are taken in rank order element by element, so where buckets end and when they start changes no bit.
#[test]
fn buckets_and_overlap_change_no_bit() {
    for world_size in [2, 3, 5] {
        let usual = Setup::usual().train_on(world_size);
        for bucket_bytes in [1, 1500, 4000, 25 << 20] {
            for overlap in [true, false] {
                let mut setup = Setup::usual();
                setup.options = TrainerOptions { bucket_bytes, overlap, ..setup.options };
                let trained = setup.train_on(world_size);
                assert!(
                    trained == usual,
                    "{world_size} ranks, {bucket_bytes} bytes a bucket, overlap {overlap}: other results"
                );
            }
        }
    }
}

/// Sums are taken in rank order and an element's update is the same whoever computes it, so dividing them over the ranks
/// changes no bit; but clipping follows the norm, whose sum is then taken in parts.
#[test]
fn dividing_the_update_changes_no_bit() {
    for world_size in [2, 3, 5] {
        let train = |divide_update_from, clip_grad_norm| {
            let mut setup = Setup::usual();
            setup.options = TrainerOptions { divide_update_from, clip_grad_norm, ..setup.options };
            setup.train_on(world_size)
        };
        let (divided, whole) = (train(1, 0.0), train(usize::MAX, 0.0));
        assert!(divided.weights == whole.weights, "{world_size} ranks: other weights");
        assert_close(&format!("{world_size} ranks, clipped"), &train(1, 0.7), &train(usize::MAX, 0.7));
    }
}

/// Rows whose one feature and whose label are their own number.
fn numbered(n_rows: usize) -> Table {
    let x = Tensor::arange(n_rows, DType::F32, Device::Cpu).unwrap();
    let x = Tensor::from_slice(&x.to_vec::<f32>().unwrap(), &[n_rows, 1], Device::Cpu).unwrap();
    Table::from_tensors(x, Tensor::arange(n_rows, DType::I64, Device::Cpu).unwrap())
}

/// One row as a rank was given it: the row's number, and its place in the epoch.
type Given = (usize, usize);

/// The rows that this rank is given in one epoch, and into how many micro-batches each step is cut.
fn rows_of_rank(
    world: &World,
    table: &Table,
    order: &KeyedPermutation,
    global_rows: usize,
    n_micro: usize,
) -> (Vec<Given>, Vec<usize>) {
    let n_rows = table.n_rows();
    let max_rows = global_rows.min(n_rows).div_ceil(world.world_size()).div_ceil(n_micro);
    let mut buffers = table.buffers(max_rows).unwrap();
    let (mut given, mut n_passes) = (Vec::new(), Vec::new());
    for global in GlobalBatches::new(n_rows, global_rows) {
        let mut batches = StepBatches::new(world, table, order, &mut buffers, &global, n_micro);
        assert_eq!(batches.global_rows(), global.n_rows());
        n_passes.push(batches.n_micro_batches());
        for index in 0..batches.n_micro_batches() {
            let micro = batches.micro_batch(index).unwrap();
            let x = micro.rows.x.as_slice::<f32>("test", "x").unwrap();
            let labels = micro.rows.targets.as_slice::<i64>("test", "labels").unwrap();
            assert_eq!(x.len(), labels.len());
            for (i, (&x, &label)) in x.iter().zip(labels).enumerate() {
                assert_eq!(x, label as f32, "features and label of one row");
                given.push((label as usize, global.positions.start + micro.first_row + i));
            }
        }
    }
    (given, n_passes)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(128) })]

    /// All ranks' micro-batches together hold every row once an epoch, each at the place that the order gives it:
    /// what dropout is keyed by.
    #[test]
    fn every_row_is_used_once_an_epoch(
        n_rows in 1usize..160,
        global_rows in 1usize..80,
        n_micro in 1usize..=4,
        world_size in 1usize..=5,
        seed: u64,
        shuffle: bool,
    ) {
        let table = numbered(n_rows);
        let order = match shuffle {
            true => KeyedPermutation::new(n_rows, seed, 7),
            false => KeyedPermutation::identity(n_rows),
        };
        let ranks = threads::run(world_size, |world| {
            rows_of_rank(&world, &table, &order, global_rows, n_micro)
        });
        let mut places = vec![None; n_rows];
        for (given, n_passes) in &ranks {
            // A step's last pass ends in collectives, to which all ranks must come: none has fewer passes, or no pass.
            prop_assert_eq!(n_passes, &ranks[0].1);
            prop_assert!(n_passes.iter().all(|n| (1..=n_micro).contains(n)), "{:?}", n_passes);
            for &(row, place) in given {
                prop_assert_eq!(order.index(place), row);
                prop_assert_eq!(places[row].replace(place), None, "row {} twice", row);
            }
        }
        prop_assert!(places.iter().all(Option::is_some), "{:?}", places);
    }
}
