//! A training run on synthetic rows by the library's trainer, on ranks that are threads.

#![allow(clippy::unwrap_used, unreachable_pub, dead_code)]

pub mod gpus;

use std::sync::Arc;

use ddp::config::precision::Precision;
use ddp::config::{
    ClassWeights, ElementLoss, EvalMetric, Gate, HeadLoss, LayerConfig, LayerEntry, Loss, ModelConfig,
    OptimizerConfig, OptimizerKind, Placement, Task,
};
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions};
use ddp::data::order::partition::{EvalPartition, PartitionKind, RankPartition};
use ddp::data::{
    Dataset, HeadTargets, LabelVocabulary, Normalizer, RowLayout, TargetLayout, Targets, TensorDataset,
    numbered_columns,
};
use ddp::model::{EmbeddingSpec, LossHead, ModelSpec, Network, ParamLayout};
use ddp::optim::loss_scaler::LossScalerConfig;
use ddp::optim::optimizer::Optimizer;
use ddp::optim::param_groups::ParamGroups;
use ddp::report::EvalMetrics;
use ddp::train::TrainError;
use ddp::train::evaluate::evaluate;
use ddp::train::metrics::request::MetricRequest;
use ddp::train::trainer::{StateShard, StepOutcome, StepRequest, Trainer, TrainerOptions};
use ddp_comm::{DeviceOptions, ReduceOp, RegisterBuffers, World, threads};
use ddp_kernels::cuda::Gpu;
use ddp_kernels::ops::Activation;
use ddp_kernels::{DType, Device, Tensor, TensorMut};

pub const N_CLASSES: usize = 3;

/// A training run on synthetic rows.
#[derive(Debug, Clone)]
pub struct Setup {
    pub spec: ModelSpec,
    pub optimizer: OptimizerKind,
    pub lr: Option<f64>,
    pub eps: f64,
    pub weight_decay: f64,
    pub loss: Loss,
    /// Weight of each row, from [`row_weights`] or another function.
    pub row_weights: Option<Vec<f32>>,
    pub n_rows: usize,
    pub global_rows: usize,
    pub n_micro: usize,
    /// Whether all ranks share each micro-batch.
    pub shares_micro_batches: bool,
    pub n_epochs: u64,
    pub options: TrainerOptions,
    pub precision: Precision,
    /// Whether rank r computes on `cuda:r`.
    pub on_gpus: bool,
    /// Whether GPUs and NCCL always sum in the same order.
    pub deterministic: bool,
    /// Whether NCCL reads and writes gradients and gathered weights in place.
    pub register_buffers: RegisterBuffers,
    /// Location of rows until their step.
    pub placement: Placement,
    /// Whether the host rounds rows that it sends to a GPU to the format of the model's input.
    pub rounds_on_host: bool,
    /// Transformation of features on the way to the model.
    pub normalizer: Option<Normalizer>,
    /// Fraction of the weights' average that a step keeps; 0 for no average.
    pub ema_decay: f64,
    /// Step after which the optimizer state is stored from the shards of all ranks and restored into a new trainer.
    pub restart_after: Option<u64>,
}

/// Bits of the parameters, concatenated without the gaps of the layout.
pub fn by_parameter(layout: &ParamLayout, flat: &[f32]) -> Vec<u32> {
    layout.entries().iter().flat_map(|entry| &flat[entry.range()]).map(|v| v.to_bits()).collect()
}

pub fn cross_entropy(class_weights: Option<[f32; N_CLASSES]>) -> Loss {
    Loss::CrossEntropy {
        label_smoothing: 0.05,
        class_weights: class_weights.map(|weights| ClassWeights::PerClass(weights.into())),
        focal_gamma: 0.0,
    }
}

/// All losses.
pub fn losses() -> [Loss; 11] {
    let weighted = cross_entropy(Some([0.5, 1.0, 2.0]));
    let [huber, quantile] = [
        Loss::Element(ElementLoss::Huber { delta: 0.7 }),
        Loss::Element(ElementLoss::Quantile { quantile: 0.8 }),
    ];
    let focal = Loss::Element(ElementLoss::Focal { gamma: 1.5 });
    let focal_of_classes = Loss::CrossEntropy {
        label_smoothing: 0.05,
        class_weights: Some(ClassWeights::PerClass(vec![0.5, 1.0, 2.0])),
        focal_gamma: 1.5,
    };
    [
        cross_entropy(None),
        weighted,
        focal_of_classes,
        Loss::Element(ElementLoss::Bce),
        focal,
        Loss::Element(ElementLoss::Mse),
        huber,
        Loss::Element(ElementLoss::LogCosh),
        quantile,
        Loss::Element(ElementLoss::Poisson),
        Loss::Ordinal,
    ]
}

/// Row weights of very different sizes; one in five is 0. Their sums are exact.
pub fn row_weights(n_rows: usize) -> Vec<f32> {
    (0..n_rows).map(|row| [0.25, 3.0, 0.0, 1.5, 8.0][row % 5]).collect()
}

/// Final state of one rank.
#[derive(Debug, PartialEq)]
pub struct Trained {
    /// Weights parameter by parameter, as bits: zeros of different sign differ.
    pub weights: Vec<u32>,
    pub losses: Vec<f64>,
    pub grad_norms: Vec<f64>,
    /// Bits of the averaged weights, if there is an average.
    pub averaged: Option<Vec<u32>>,
    /// Number of skipped steps, in which gradients of the scaled loss overflowed.
    pub n_skipped: u64,
    pub eval: EvalMetrics,
    /// Number of captured steps.
    pub n_graphs: usize,
}

impl Setup {
    /// 29 rows in steps of 12: the last step has 5 rows, divided into two micro-batches on each rank.
    pub fn usual() -> Self {
        Setup {
            spec: ModelSpec {
                dims: vec![6, 16, 16, 9, N_CLASSES],
                activation: Activation::Gelu,
                layer_norm: true,
                dropout: 0.25,
                residual: true,
                bias: true,
                embeddings: Vec::new(),
                layers: Vec::new(),
            },
            optimizer: OptimizerKind::Sgd,
            lr: None,
            eps: 1e-8,
            weight_decay: 0.01,
            loss: cross_entropy(Some([0.5, 1.0, 2.0])),
            row_weights: None,
            precision: Precision::F32,
            on_gpus: false,
            deterministic: false,
            register_buffers: RegisterBuffers::Off,
            placement: Placement::Host,
            rounds_on_host: true,
            normalizer: None,
            ema_decay: 0.0,
            restart_after: None,
            n_rows: 29,
            global_rows: 12,
            n_micro: 2,
            shares_micro_batches: false,
            n_epochs: 4,
            options: TrainerOptions {
                seed: 3,
                clip_grad_norm: 0.7,
                bucket_bytes: 1500,
                ..TrainerOptions::default()
            },
        }
    }

    /// The usual run with two of its six columns as codes, with tables wide enough that the first layer also has a residual.
    pub fn embedded() -> Self {
        let usual = Self::usual();
        Setup { spec: usual.spec.clone().with_embeddings(embeddings([7, 5])), ..usual }
    }

    /// The usual run with every kind of layer: a block with a gated unit and dropout twice, norms, activations, a narrower end.
    pub fn listed() -> Self {
        let linear = |out_features, activation| LayerConfig::Linear { out_features, activation, bias: true };
        let block = [
            LayerConfig::RmsNorm,
            LayerConfig::Glu { out_features: 12, gate: Gate::SwiGlu, bias: true },
            LayerConfig::Dropout { p: 0.25 },
            linear(16, None),
        ];
        let block = LayerConfig::Residual { layers: block.map(LayerConfig::once).into() };
        let layers = vec![
            linear(16, Some(Activation::Tanh)).once(),
            LayerEntry { layer: block, repeat: 2 },
            LayerConfig::LayerNorm.once(),
            LayerConfig::Activation(Activation::Gelu).once(),
            LayerConfig::Glu { out_features: 9, gate: Gate::GeGlu, bias: false }.once(),
            LayerConfig::Residual { layers: vec![LayerConfig::RmsNorm.once()] }.once(),
        ];
        let usual = Self::usual();
        let spec =
            ModelSpec::new(&ModelConfig::from_layers(layers, true), usual.spec.n_features(), N_CLASSES);
        Setup { spec, ..usual }
    }

    /// The usual run with three heads: classes, two quantities and a label; some rows lack some of them.
    pub fn several_heads() -> Self {
        let head = |name: &str, weight, loss| HeadLoss { name: name.to_owned(), weight, loss };
        let losses = vec![
            head("class", 1.0, cross_entropy(Some([0.5, 1.0, 2.0]))),
            head("values", 3.0, Loss::Element(ElementLoss::Huber { delta: 0.7 })),
            head("label", 0.5, Loss::Element(ElementLoss::Bce)),
        ];
        let mut usual = Self::usual();
        *usual.spec.dims.last_mut().unwrap() = N_CLASSES + 3;
        Setup { loss: Loss::Heads(losses), ..usual }
    }

    /// Targets of the heads; empty for any other loss.
    pub fn heads(&self) -> Vec<HeadTargets> {
        let Loss::Heads(losses) = &self.loss else { return Vec::new() };
        let head = |HeadLoss { name, loss, .. }: &HeadLoss| {
            let of = |task, columns: &[&str]| HeadTargets {
                name: name.clone(),
                task,
                columns: columns.iter().map(|column| (*column).to_owned()).collect(),
                labels: (task == Task::Classification).then(|| Arc::new(LabelVocabulary::numbers(N_CLASSES))),
            };
            match loss {
                Loss::CrossEntropy { .. } | Loss::Ordinal => of(Task::Classification, &["class"]),
                Loss::Element(ElementLoss::Bce) => of(Task::Multilabel, &["label"]),
                _ => of(Task::Regression, &["width", "height"]),
            }
        };
        losses.iter().map(head).collect()
    }

    /// Task of the loss.
    pub fn task(&self) -> Task {
        match self.loss {
            Loss::CrossEntropy { .. } | Loss::Ordinal => Task::Classification,
            Loss::Element(ElementLoss::Bce | ElementLoss::Focal { .. }) => Task::Multilabel,
            Loss::Element(_) => Task::Regression,
            Loss::Heads(_) => Task::Heads,
        }
    }

    /// The rows, with one label each, or with as many values as there are classes.
    pub fn rows(&self) -> Arc<TensorDataset> {
        let dims = [self.n_rows, self.spec.n_features()];
        let x = Tensor::randn(&dims, DType::F32, Device::Cpu, 11).unwrap();
        let mut features = x.to_vec::<f32>().unwrap();
        let n_numbers = dims[1] - self.spec.embeddings.len();
        for row in features.chunks_exact_mut(dims[1]) {
            for (code, embedding) in row[n_numbers..].iter_mut().zip(&self.spec.embeddings) {
                let n_codes = embedding.n_codes as f32;
                *code = (code.abs() / 3.0 * n_codes).floor().min(n_codes - 1.0);
            }
        }
        let label = |row: &[f32]| i64::from(row[0] > 0.0) + i64::from(row[row.len() - 1] > 0.3);
        let values = |value: fn(f32) -> f32| {
            let of_row = |row: &[f32]| [0, 1, 2].map(|k| value(row[k] + 0.5 * row[k + 1]));
            Targets::Values(features.chunks_exact(dims[1]).flat_map(of_row).collect())
        };
        let targets = match self.task() {
            Task::Classification => Targets::Labels(features.chunks_exact(dims[1]).map(label).collect()),
            Task::Multilabel => values(|v| f32::from(v > 0.2)),
            // Values below 1, so that no loss is negative: losses that cancel have larger relative errors.
            Task::Regression if self.loss == Loss::Element(ElementLoss::Poisson) => {
                values(|v| v * v / (1.0 + v * v))
            }
            Task::Regression => values(|v| v * v),
            Task::Heads => {
                let mut targets = Vec::new();
                for (n, row) in features.chunks_exact(dims[1]).enumerate() {
                    let lacks = |every: usize, value: f32| if n % every == 1 { f32::NAN } else { value };
                    for head in self.heads() {
                        match head.task {
                            Task::Classification => targets.push(lacks(4, label(row) as f32)),
                            Task::Multilabel => targets.push(lacks(7, f32::from(row[0] > 0.2))),
                            _ => targets.extend([row[1] * row[1], lacks(5, row[2] - row[0])]),
                        }
                    }
                }
                let targets = Targets::Values(targets);
                let layout = TargetLayout::Heads { heads: self.heads().into() };
                return rows_with_layout(features, dims[1], targets, self.row_weights.clone(), layout);
            }
        };
        rows_of(features, dims[1], targets, self.row_weights.clone())
    }

    /// Trains on this rank of the world.
    pub fn train(&self, world: &World) -> Trained {
        let rows: Arc<dyn Dataset> = self.rows();
        self.train_rows(world, &rows)
    }

    /// Division of batches into micro-batches.
    pub fn partition(&self, world: &World) -> RankPartition {
        RankPartition { kind: self.partition_kind(), rank: world.rank().0, world_size: world.world_size() }
    }

    fn partition_kind(&self) -> PartitionKind {
        match self.options.micro_shards {
            Some(n_shards) => PartitionKind::MicroShards { n_shards },
            None if self.shares_micro_batches => PartitionKind::SharedMicroBatches { n_micro: self.n_micro },
            None => PartitionKind::Ranks { n_micro: self.n_micro },
        }
    }

    /// The batches of all epochs.
    pub fn plan(&self) -> BatchPlan {
        BatchPlan {
            partition: self.partition_kind(),
            seed: self.options.seed,
            n_epochs: Some(self.n_epochs),
            ..BatchPlan::new(self.global_rows)
        }
    }

    /// A trainer before its first step, on this rank's device.
    pub fn trainer<'w>(&self, world: &'w World, device: Device) -> Trainer<'w> {
        self.try_trainer(world, device).unwrap()
    }

    /// Same as [`Setup::trainer`], or the error if the combination is refused.
    pub fn try_trainer<'w>(&self, world: &'w World, device: Device) -> Result<Trainer<'w>, TrainError> {
        let (mut options, layout) = (self.options, self.options.layout(&self.spec, world.world_size()));
        if self.precision == Precision::F16 {
            // No step overflows at this scale. The norm of a skipped step would be NaN.
            let small = LossScalerConfig { init_scale: 128.0, ..LossScalerConfig::default() };
            options.loss_scaling.get_or_insert(small);
        }
        let max_rows = self.partition(world).max_micro_batch_rows(self.global_rows.min(self.n_rows));
        let state_len = options.state_len(world, &layout);
        let mut model =
            Network::with_layout(self.spec.clone(), layout, max_rows, device, self.precision).unwrap();
        model.initialize(options.seed).unwrap();
        let config = OptimizerConfig {
            betas: [0.9, 0.999],
            eps: self.eps,
            weight_decay: self.weight_decay,
            momentum: 0.9,
            nesterov: true,
            ema_decay: self.ema_decay,
            ..OptimizerConfig::new(
                self.optimizer,
                self.lr.unwrap_or(if self.optimizer == OptimizerKind::Sgd { 0.1 } else { 0.003 }),
            )
        };
        let groups = ParamGroups::new(&config, model.layout()).unwrap();
        let optimizer = Optimizer::new(&config, groups, state_len, device).unwrap();
        let loss = LossHead::for_model(&self.loss, &self.heads(), &model).unwrap();
        Trainer::new(world, model, loss, optimizer, options)
    }

    /// A new trainer that continues from the state of `old`, restored from the shards that the ranks store.
    pub fn restart<'w>(&self, world: &'w World, old: &Trainer<'w>) -> Trainer<'w> {
        let mut new = self.trainer(world, old.model().device());
        new.set_weights(old.model().weights().view()).unwrap();
        let flat_len = old.model().layout().flat_len();
        for ((name, from), (to_name, to)) in old.state().into_iter().zip(new.state_mut()) {
            assert_eq!(name, to_name);
            // Each element belongs to one rank, so the sum of the bits gives its bits.
            let (from, mut bits) = (from.to_vec::<f32>().unwrap(), vec![0i64; flat_len]);
            let mut n_owners = vec![0i64; flat_len];
            for StateShard { flat, offset } in old.state_shards() {
                for (i, element) in flat.enumerate() {
                    bits[element] = i64::from(from[offset + i].to_bits());
                    n_owners[element] += 1;
                }
            }
            for sums in [&mut bits, &mut n_owners] {
                let view = TensorMut::from_slice(sums, &[flat_len]).unwrap();
                world.group().all_reduce(ReduceOp::Sum, view).unwrap();
            }
            assert!(n_owners.iter().all(|&n| n == 1), "each element of {name} is stored once");
            let mut values = to.to_vec::<f32>().unwrap();
            for StateShard { flat, offset } in old.state_shards_to_restore() {
                for (i, element) in flat.enumerate() {
                    values[offset + i] = f32::from_bits(bits[element] as u32);
                }
            }
            *to = Tensor::from_slice(&values, &[values.len()], to.device()).unwrap();
        }
        new.set_n_steps(old.n_steps());
        new
    }

    /// Trains on these rows.
    pub fn train_rows(&self, world: &World, rows: &Arc<dyn Dataset>) -> Trained {
        let device = if self.on_gpus { Device::Cuda(world.rank().0 as u32) } else { Device::Cpu };
        let Setup { deterministic, register_buffers, .. } = *self;
        let options = DeviceOptions { deterministic, register_buffers, ..DeviceOptions::default() };
        world.connect_device(device, options).unwrap();
        if let Device::Cuda(index) = device {
            Gpu::get(index).unwrap().set_deterministic(self.deterministic);
        }
        let mut trainer = self.trainer(world, device);

        let normalizer = self.normalizer.clone();
        let mut loading =
            LoaderOptions { placement: self.placement, normalizer, ..LoaderOptions::new(device) };
        if self.rounds_on_host {
            loading.sent_in = trainer.model().input_format();
        }
        let mut loader = DataLoader::new(world, rows.clone(), &self.plan(), loading.clone()).unwrap();
        let (mut losses, mut grad_norms, mut n_skipped) = (Vec::new(), Vec::new(), 0);
        let votes: u64 = (0..world.world_size() as u64).map(|rank| rank + 3).sum();
        let ask =
            StepRequest { want_grad_norm: true, vote: world.rank().0 as u32 + 3, ..StepRequest::default() };
        let mut tell = |outcome: StepOutcome| {
            losses.push(outcome.sums.mean());
            grad_norms.push(outcome.grad_norm.unwrap());
            n_skipped += u64::from(outcome.skipped);
            assert_eq!(outcome.votes, votes);
        };
        while let Some(mut step) = loader.next_step().unwrap() {
            trainer.step(&mut step, ask).unwrap();
            while let Some((_, outcome)) = trainer.outcome(false).unwrap() {
                tell(outcome);
            }
            if self.restart_after == Some(trainer.n_steps()) {
                while let Some((_, outcome)) = trainer.outcome(true).unwrap() {
                    tell(outcome);
                }
                trainer.gather_weights().unwrap();
                trainer = self.restart(world, &trainer);
            }
        }
        while let Some((_, outcome)) = trainer.outcome(true).unwrap() {
            tell(outcome);
        }
        assert_eq!(trainer.n_steps() + n_skipped, losses.len() as u64, "a skipped step does not count");
        let (model, loss) = trainer.model_and_loss();
        let eval_partition = match self.options.micro_shards {
            Some(n_parts) => EvalPartition { n_parts, max_rows: 2 },
            None => EvalPartition::for_ranks(world.world_size()),
        };
        let request = MetricRequest::defaults(self.task()).in_units_of(&self.loss, rows.layout());
        let eval = match evaluate(world, model, loss, &request, rows, eval_partition, &loading) {
            Err(TrainError::NoEvalWeight { .. }) => EvalMetrics::default(),
            eval => eval.unwrap(),
        };
        let layout = trainer.model().layout().clone();
        trainer.gather_weights().unwrap();
        let weights = trainer.model().weights().to_vec::<f32>().unwrap();
        assert!(layout.gaps().flatten().all(|i| weights[i].to_bits() == 0), "padding stays 0");
        let averaged = trainer.averaged_weights().unwrap();
        let averaged = averaged.map(|averaged| by_parameter(&layout, &averaged.to_vec::<f32>().unwrap()));
        let weights = by_parameter(&layout, &weights);
        let n_graphs = trainer.n_graphs();
        Trained { weights, averaged, losses, grad_norms, eval, n_skipped, n_graphs }
    }

    /// Number of bytes that a rank sends per step.
    pub fn bytes_sent(&self, world_size: usize) -> u64 {
        let of_rank = |world: World| {
            let device = if self.on_gpus { Device::Cuda(world.rank().0 as u32) } else { Device::Cpu };
            world.connect_device(device, DeviceOptions::default()).unwrap();
            self.trainer(&world, device).exchange_bytes(self.n_micro).sent
        };
        threads::run(world_size, of_rank)[0]
    }

    /// Trains on this many ranks; the results of all ranks must be equal, bit for bit.
    pub fn train_on(&self, world_size: usize) -> Trained {
        let mut ranks = threads::run(world_size, |world| self.train(&world)).into_iter();
        let first = ranks.next().unwrap();
        for (rank, other) in ranks.enumerate() {
            assert!(other == first, "rank {} of {world_size} differs from rank 0", rank + 1);
        }
        first
    }
}

/// Rows with these columns.
pub fn rows_of(
    features: Vec<f32>,
    n_features: usize,
    targets: Targets,
    weights: Option<Vec<f32>>,
) -> Arc<TensorDataset> {
    let names = (0..N_CLASSES).map(|i| format!("t{i}")).collect();
    let target_layout = match &targets {
        Targets::Labels(_) => TargetLayout::Classes { n_classes: N_CLASSES },
        Targets::Values(_) => TargetLayout::Values { names },
    };
    rows_with_layout(features, n_features, targets, weights, target_layout)
}

fn rows_with_layout(
    features: Vec<f32>,
    n_features: usize,
    targets: Targets,
    weights: Option<Vec<f32>>,
    target_layout: TargetLayout,
) -> Arc<TensorDataset> {
    let mut layout = RowLayout::new(numbered_columns(n_features), target_layout);
    layout.has_weights = weights.is_some();
    Arc::new(TensorDataset { features, targets, weights, layout, source: "made-up rows".to_owned() })
}

/// Tables with 40 and 3 codes and these widths.
pub fn embeddings([a, b]: [usize; 2]) -> Vec<EmbeddingSpec> {
    let embedding = |name: &str, n_codes, dim| EmbeddingSpec { name: name.to_owned(), n_codes, dim };
    vec![embedding("zip.code", 40, a), embedding("type", 3, b)]
}

/// Asserts that two runs differ only by rounding.
///
/// Rows are divided into different matrices, whose matmuls sum in a different order: outputs and gradients differ by a few
/// EPS = 2^-24 = 6e-8 of their size. A dozen steps round each weight, below 2, just as often: 1e-6 is 16 EPS, about five
/// times the observed difference. A mean over different rows, or a different dropout mask, would differ by 1e-3 and more.
#[track_caller]
pub fn assert_close(what: &str, got: &Trained, want: &Trained) {
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
    // A loss that has become small keeps the rounding of its outputs; the observed difference is 1e-6 where matmuls sum in two halves.
    close("losses", &got.losses, &want.losses, 0.0, 2e-6);
    // All parts of the norm may err in the same direction. Near an optimum they cancel, and their rounding errors remain.
    let largest = want.grad_norms.iter().copied().fold(0.0, f64::max);
    close("grad_norms", &got.grad_norms, &want.grad_norms, 2e-6 * largest, 0.0);
    assert_eq!(got.eval.get(EvalMetric::Accuracy), want.eval.get(EvalMetric::Accuracy), "{what}");
    // An error of the outputs is larger relative to the targets' spread than relative to the targets.
    let means = [
        ("eval_loss", got.eval.get(EvalMetric::Loss), want.eval.get(EvalMetric::Loss), (0.0, 1e-6)),
        ("eval_r2", got.eval.get(EvalMetric::R2), want.eval.get(EvalMetric::R2), (2e-6, 2e-6)),
    ];
    for (name, got, want, (atol, rtol)) in means {
        assert_eq!(got.is_some(), want.is_some(), "{what}: {name}");
        close(name, &Vec::from_iter(got), &Vec::from_iter(want), atol, rtol);
    }
}
