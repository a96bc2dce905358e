//! Training with expressions: the law of data parallelism, shards, micro-batches, resuming, graphs, and losses of one's own.

use std::path::Path;
use std::sync::Arc;

use ddp::config::precision::Precision;
use ddp::config::{Activation, OptimizerConfig, OptimizerKind, ZeroStage};
use ddp::data::loader::{BatchPlan, DataLoader, LoaderOptions, PartitionKind, Shuffle};
use ddp::data::{GroupSampler, TensorDataset};
use ddp::model::expression::{Expression, Var};
use ddp::model::layer::Sizes;
use ddp::model::param::{Init, ParamKind};
use ddp::model::{GradcheckOptions, GradientSums, LossHead, Sequential, gradcheck};
use ddp::optim::{LossScalerConfig, Optimizer};
use ddp::train::checkpoints::Checkpoints;
use ddp::train::trainer::{GraphMode, Trainer, TrainerOptions};
use ddp_comm::{DeviceOptions, World, threads};
use ddp_kernels::ops::{LossSums, STEP_SUMS_LEN, SumsOutput};
use ddp_kernels::{DType, Device, KernelError, Tensor, keepdim, memory};

use crate::made_up::gpus::{cpu_and_gpu, gpus};
use crate::made_up::row_weights;

const N_ROWS: usize = 120;
/// Two of them and a last batch of half the size in an epoch.
const GLOBAL_ROWS: usize = 48;
const N_FEATURES: usize = 3;
const WIDTH: usize = 4;
/// Rows that belong together.
const GROUP: usize = 2;

/// Attention over the rows of a group, with a trained weight of each column, and an offset that is not trained.
fn mixing() -> Expression {
    let mask = Tensor::from_slice(&[0.0f32, -1.0, 0.0, 0.0], &[GROUP, GROUP], Device::Cpu).unwrap();
    let offset = Tensor::full(&[WIDTH], 0.25, DType::F32, Device::Cpu).unwrap();
    Expression::new("mixing", 3 * WIDTH, WIDTH, |x, own| {
        let (n, width) = (x.dims()[0], WIDTH);
        let parts = x.reshape(&[n / GROUP, GROUP, 3, width]).permute(&[2, 0, 1, 3]);
        let [q, k, v] = [0, 1, 2].map(|part| parts.row(part));
        let weights = (q.bmm(&k.t()) * 0.5 + &own["mask"]).softmax(2);
        weights.bmm(&v).reshape(&[n, width]) * &own["gain"] + &own["offset"]
    })
    .parameter("gain", ParamKind::NormWeight, &[WIDTH], Init::Constant(1.5))
    .constant("mask", mask)
    .buffer("offset", offset)
}

fn layers() -> Sequential {
    let gate = Expression::new("gate", WIDTH, WIDTH, |x, own| {
        let half = Tensor::full(&[WIDTH], 0.5, DType::F32, Device::Cpu).unwrap();
        x * (x.matmul(&own["w"]) + half).sigmoid()
    })
    .parameter("w", ParamKind::Weight, &[WIDTH, WIDTH], Init::Normal(0.5));
    let layers = Sequential::new(N_FEATURES).linear(3 * WIDTH).layer(mixing());
    layers.residual(|body| body.layer(gate)).activation(Activation::Tanh).linear(1)
}

/// The squared error, from each row.
fn squared_error() -> LossHead {
    LossHead::expression(|outputs, targets| {
        let error = outputs - targets;
        (&error * &error).sum(1)
    })
}

/// Softmax does not depend on the bias of the keys: with a small `eps`, AdamW would turn the rounding errors of its gradient into steps.
fn adamw() -> OptimizerConfig {
    OptimizerConfig { eps: 1e-3, ..OptimizerConfig::new(OptimizerKind::AdamW, 3e-2) }
}

#[derive(Clone, Copy)]
struct Run<'a> {
    zero: ZeroStage,
    graph: GraphMode,
    precision: Precision,
    n_micro: usize,
    n_epochs: u64,
    on_gpus: bool,
    has_weights: bool,
    loss: fn() -> LossHead,
    folder: Option<&'a Path>,
}

#[derive(Debug, Clone, PartialEq)]
struct Trained {
    losses: Vec<f64>,
    weights: Vec<f32>,
    n_graphs: usize,
}

impl Run<'_> {
    fn usual() -> Self {
        Run {
            zero: ZeroStage::Off,
            graph: GraphMode::Auto,
            precision: Precision::F32,
            n_micro: 1,
            n_epochs: 4,
            on_gpus: false,
            has_weights: false,
            loss: squared_error,
            folder: None,
        }
    }

    fn train(&self, world: &World) -> ddp::Result<Trained> {
        let device = if self.on_gpus { Device::Cuda(world.rank().0 as u32) } else { Device::Cpu };
        world.connect_device(device, DeviceOptions::default()).unwrap();
        let sizes =
            Sizes { max_rows: GLOBAL_ROWS.div_ceil(world.world_size()), device, precision: self.precision };
        let adamw = adamw();
        let Run { zero, graph, .. } = *self;
        let loss_scaling = (self.precision == Precision::F16).then(LossScalerConfig::default);
        let options = TrainerOptions {
            zero,
            graph,
            seed: 5,
            bucket_bytes: 100,
            loss_scaling,
            ..TrainerOptions::default()
        };
        let mut trainer = Trainer::for_layers(world, layers(), sizes, (self.loss)(), &adamw, options)?;
        let mut checkpoints =
            self.folder.map(|folder| Checkpoints::new(world, &trainer, folder)).transpose()?;
        let cursor = match &checkpoints {
            Some(checkpoints) => checkpoints.resume(&mut trainer)?.unwrap_or(0),
            None => 0,
        };
        let x = Tensor::randn(&[N_ROWS, N_FEATURES], DType::F32, Device::Cpu, 1)?;
        let mut rows = TensorDataset::new(&x, &(&x * &x).sum(1)?)?;
        rows.layout.has_weights = self.has_weights;
        rows.weights = self.has_weights.then(|| row_weights(N_ROWS));
        let rows = Arc::new(rows);
        let order = Shuffle::Sampler(Arc::new(GroupSampler::new(N_ROWS, GROUP, 3)));
        let plan = BatchPlan {
            partition: PartitionKind::Ranks { n_micro: self.n_micro },
            shuffle: order,
            seed: 3,
            n_epochs: Some(self.n_epochs),
            ..BatchPlan::new(GLOBAL_ROWS)
        };
        let mut loader =
            DataLoader::new(world, rows, &BatchPlan { cursor, ..plan }, LoaderOptions::new(device))?;
        let mut losses = Vec::new();
        let (mut n_used, n_rows) = (cursor, N_ROWS as u64);
        while let Some(mut batch) = loader.next_step()? {
            let outcome = trainer.step_and_wait(&mut batch, false)?;
            losses.push(outcome.sums.mean());
            n_used += (n_rows - n_used % n_rows).min(GLOBAL_ROWS as u64);
            // Each size of a batch has had its first step, and its second one, which is captured, in the first three epochs.
            if self.on_gpus && losses.len() == 9 {
                memory::reset_peak(device)?;
            }
        }
        if self.on_gpus && losses.len() > 9 {
            assert_eq!(memory::peak(device)?, memory::allocated(device)?, "later steps allocate nothing");
        }
        if let Some(checkpoints) = &mut checkpoints {
            checkpoints.save(&trainer, n_used)?;
        }
        let weights = trainer.model().state_dict(Device::Cpu)?;
        let weights = weights.values().flat_map(|values| values.to_vec::<f32>().unwrap()).collect();
        Ok(Trained { losses, weights, n_graphs: trainer.n_graphs() })
    }

    fn on(&self, n_ranks: usize) -> Trained {
        let of_ranks = threads::run(n_ranks, |world| self.train(&world).unwrap());
        assert!(of_ranks.iter().all(|of_rank| *of_rank == of_ranks[0]), "the same bits on all ranks");
        of_ranks.into_iter().next().unwrap()
    }
}

#[track_caller]
fn assert_near(what: &str, got: &Trained, want: &Trained, tolerance: f64) {
    let near = |got: f64, want: f64| (got - want).abs() <= tolerance * (1.0 + want.abs());
    assert_eq!(got.losses.len(), want.losses.len(), "{what}");
    for (step, (got, want)) in got.losses.iter().zip(&want.losses).enumerate() {
        assert!(near(*got, *want), "{what}: loss {got} against {want} in step {step}");
    }
    for (got, want) in got.weights.iter().zip(&want.weights) {
        assert!(near(f64::from(*got), f64::from(*want)), "{what}: weight {got} against {want}");
    }
}

/// Of sums in another order, over 12 steps.
const ROUNDING: f64 = 1e-4;

#[test]
fn any_number_of_ranks_shards_and_micro_batches_trains_the_same_model() {
    let alone = Run::usual().on(1);
    let epoch = |epoch: usize| alone.losses[3 * epoch..3 * epoch + 3].iter().sum::<f64>();
    assert!(epoch(3) < 0.9 * epoch(0), "{:?}", alone.losses);
    for n_ranks in 2..=4 {
        for zero in [ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients] {
            let trained = Run { zero, ..Run::usual() }.on(n_ranks);
            assert_near(&format!("{n_ranks} ranks, {zero:?}"), &trained, &alone, ROUNDING);
        }
    }
    for n_ranks in [1, 3] {
        let trained = Run { n_micro: 2, zero: ZeroStage::Gradients, ..Run::usual() }.on(n_ranks);
        assert_near(&format!("{n_ranks} ranks, two micro-batches"), &trained, &alone, ROUNDING);
    }
}

#[test]
fn a_loss_of_ones_own_trains_as_the_library_s() {
    let own = Run::usual().on(2);
    let of_library = Run { loss: LossHead::mse, ..Run::usual() }.on(2);
    assert_near("squared error", &own, &of_library, 1e-6);
    let mean =
        || LossHead::expression(|outputs: &Var, targets: &Var| (outputs - targets).pow(2.0).mean(None));
    let of_means = Run { loss: mean, ..Run::usual() }.on(3);
    assert_near("mean of the rows", &of_means, &of_library, ROUNDING);
}

#[test]
fn rows_with_weights_train_the_same_model_on_any_number_of_ranks() {
    let weighted = Run { has_weights: true, ..Run::usual() };
    let alone = weighted.on(1);
    assert_ne!(alone.losses, Run::usual().on(1).losses);
    for n_ranks in [2, 3] {
        assert_near(&format!("{n_ranks} ranks"), &weighted.on(n_ranks), &alone, ROUNDING);
    }
    let of_library = Run { loss: LossHead::mse, ..weighted }.on(1);
    assert_near("squared error", &alone, &of_library, 1e-6);
}

#[test]
fn a_loss_that_does_not_fit_ends_the_first_step_before_a_weight_changes() {
    let world = World::single();
    let of_widths: fn() -> LossHead =
        || LossHead::expression(|outputs, targets| outputs.matmul(targets).sum(1));
    let of_means: fn() -> LossHead = || LossHead::expression(|outputs, _| outputs.mean(None));
    for (loss, want) in
        [(of_widths, "matmul: a [48, 1] f32 on cpu and b [48, 1]"), (of_means, "loss: the loss []")]
    {
        let sizes = Sizes { max_rows: GLOBAL_ROWS, device: Device::Cpu, precision: Precision::F32 };
        let options = TrainerOptions::default();
        let mut trainer = Trainer::for_layers(&world, layers(), sizes, loss(), &adamw(), options).unwrap();
        let before = trainer.model().weights().to_vec::<f32>().unwrap();
        let x = Tensor::randn(&[N_ROWS, N_FEATURES], DType::F32, Device::Cpu, 1).unwrap();
        let mut rows = TensorDataset::new(&x, &x.sum(1).unwrap()).unwrap();
        rows.layout.has_weights = true;
        rows.weights = Some(row_weights(N_ROWS));
        let plan =
            BatchPlan { shuffle: Shuffle::Off, seed: 3, n_epochs: Some(1), ..BatchPlan::new(GLOBAL_ROWS) };
        let mut loader =
            DataLoader::new(&world, Arc::new(rows), &plan, LoaderOptions::new(Device::Cpu)).unwrap();
        let mut batch = loader.next_step().unwrap().unwrap();
        let error = trainer.step_and_wait(&mut batch, false).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
        assert_eq!(trainer.model().weights().to_vec::<f32>().unwrap(), before);
    }
}

#[test]
fn a_run_with_expressions_resumes_to_the_bit() {
    for (n_ranks, zero) in [(1, ZeroStage::Off), (3, ZeroStage::Optimizer)] {
        let folder = tempfile::tempdir().unwrap();
        let run = Run { zero, ..Run::usual() };
        let whole = run.on(n_ranks);
        Run { n_epochs: 2, folder: Some(folder.path()), ..run }.on(n_ranks);
        let resumed = Run { folder: Some(folder.path()), ..run }.on(n_ranks);
        assert_eq!(
            (&resumed.losses[..], &resumed.weights),
            (&whole.losses[6..], &whole.weights),
            "{n_ranks} ranks"
        );
    }
}

#[test]
fn a_gpu_trains_as_the_cpu_by_kernels_and_by_graphs_and_allocates_nothing() {
    let Some(_gpus) = gpus(2) else { return };
    // bf16 has 8 bits, f16 11: each of some ten operations of a step rounds.
    for (precision, tolerance) in [(Precision::F32, ROUNDING), (Precision::Bf16, 0.2), (Precision::F16, 0.05)]
    {
        let options = Run { precision, ..Run::usual() };
        let on_cpu = Run { precision: Precision::F32, ..options }.on(2);
        for n_ranks in [1, 2] {
            let of = |graph| Run { graph, on_gpus: true, ..options }.on(n_ranks);
            let (eager, captured) = (of(GraphMode::Off), of(GraphMode::On));
            assert!(eager.n_graphs == 0 && captured.n_graphs > 0, "{} graphs", captured.n_graphs);
            assert_eq!(
                (&eager.losses, &eager.weights),
                (&captured.losses, &captured.weights),
                "graphs change no bit"
            );
            let what = format!("{n_ranks} GPUs, {}", precision.name());
            assert_near(&what, &captured, &on_cpu, tolerance);
        }
    }
}

#[test]
fn short_formats_on_the_cpu_train_as_f32() {
    let want = Run::usual().on(1);
    for (precision, tolerance) in [(Precision::Bf16, 0.2), (Precision::F16, 0.05)] {
        assert_near(precision.name(), &Run { precision, ..Run::usual() }.on(1), &want, tolerance);
    }
}

#[test]
fn gradients_are_right_for_every_number_of_rows_of_a_model() {
    let sizes = Sizes { max_rows: 9, device: Device::Cpu, precision: Precision::F64 };
    let mut model = layers().build(sizes, 1).unwrap();
    for n in [8, 2, 6, 4] {
        let x = Tensor::randn(&[n, N_FEATURES], DType::F64, Device::Cpu, n as u64).unwrap();
        gradcheck(&mut model, x.view(), &GradcheckOptions::f64()).unwrap();
    }
    let x = Tensor::randn(&[3, N_FEATURES], DType::F64, Device::Cpu, 1).unwrap();
    let error = model.forward(&x).unwrap_err().to_string();
    assert!(error.contains("reshape: 36 elements cannot fill the shape [1, 2, 3, 4]"), "{error}");
}

/// Loss and weight of four rows, and the gradient of the outputs.
fn applied(
    loss: &LossHead,
    weights: Option<&Tensor>,
    device: Device,
) -> Result<(LossSums, Vec<f32>), KernelError> {
    let outputs = Tensor::from_slice(&[1.0f32, 2.0, -1.0, 0.5], &[4, 1], device)?;
    let targets = Tensor::from_slice(&[0.0f32, 1.0, 1.0, 0.5], &[4, 1], device)?;
    let (mut d, mut tail) = (outputs.zeros_like()?, Tensor::zeros(&[STEP_SUMS_LEN], DType::F32, device)?);
    let sums = SumsOutput { tail: tail.view_mut(), accumulate: false, extra: None };
    let weights = weights.map(Tensor::view);
    loss.apply(outputs.view(), targets.view(), weights, 0.5, Some(d.view_mut()), sums)?;
    Ok((LossSums::load(&tail.to_vec::<f32>()?), d.to_vec()?))
}

#[test]
fn rows_with_weights_need_the_loss_of_each_row_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        let weights = Tensor::from_slice(&[1.0f32, 0.5, 2.0, 0.0], &[4], device).unwrap();
        let (own, mse) = (squared_error(), LossHead::mse());
        for weights in [None, Some(&weights)] {
            assert_eq!(
                applied(&own, weights, device).unwrap(),
                applied(&mse, weights, device).unwrap(),
                "{device}"
            );
        }
        let mean = LossHead::expression(|outputs, targets| (outputs - targets).pow(2.0).mean(None));
        assert_eq!(applied(&mean, None, device).unwrap(), applied(&mse, None, device).unwrap());
        let error = applied(&mean, Some(&weights), device).unwrap_err().to_string();
        assert!(error.starts_with("loss: the loss [] f32") && error.ends_with("should be [4]"), "{error}");
    }
}

#[test]
fn codes_that_are_not_there_are_errors_or_nan_and_labels_are_errors_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        let table = Expression::new("e", 1, 2, |x, own| own["t"].index_select(0, &x.reshape(&x.dims()[..1])))
            .parameter("t", ParamKind::Embedding, &[4, 2], Init::Normal(1.0));
        let mut model = Sequential::new(1).layer(table).build(Sizes::new(5, device), 0).unwrap();
        let codes = |codes: [f32; 5]| Tensor::from_slice(&codes, &[5, 1], device).unwrap();
        let right = model.forward(codes([0.0, 3.0, 1.0, 2.0, 0.0])).unwrap().to_vec::<f32>();
        assert!(right.unwrap().iter().all(|value| value.is_finite()));
        let wrong = codes([0.0, 4.0, 1.5, -1.0, f32::NAN]);
        match model.forward(&wrong) {
            Err(error) => {
                assert_eq!(device, Device::Cpu);
                assert!(error.to_string().contains("the code of row 1 in column 0 is 4"), "{error}");
            }
            Ok(outputs) => {
                let is_nan: Vec<bool> = outputs.to_vec::<f32>().unwrap().iter().map(|v| v.is_nan()).collect();
                assert_eq!(is_nan, [[false; 2], [true; 2], [true; 2], [true; 2], [true; 2]].concat());
            }
        }
        let mut model = Sequential::new(1).linear(3).build(Sizes::new(5, device), 0).unwrap();
        let mut grads = GradientSums::for_model(&model).unwrap();
        let labels = Tensor::from_slice(&[0i64, 2, 1, 3, -1], &[5], device).unwrap();
        let rows = (&codes([0.0; 5]), &labels);
        let error = model.loss_and_gradients(rows, &LossHead::cross_entropy(), &mut grads).unwrap_err();
        assert!(error.to_string().contains("the label of row 3 is 3, outside 0..3"), "{device}: {error}");
    }
}

#[test]
fn a_loss_of_classes_is_the_cross_entropy_on_cpu_and_gpu() {
    let (devices, _lock) = cpu_and_gpu();
    for device in devices {
        let own = LossHead::expression(|outputs, labels| {
            let hot = labels.one_hot(outputs.dims()[1], outputs.dtype());
            -(outputs.log_softmax(1) * hot).sum(1)
        });
        let results = [own, LossHead::cross_entropy()].map(|loss| {
            let outputs = Tensor::randn(&[5, 3], DType::F32, device, 4).unwrap();
            let labels = Tensor::from_slice(&[0i64, 2, 1, 1, 0], &[5], device).unwrap();
            let mut d = outputs.zeros_like().unwrap();
            let mut tail = Tensor::zeros(&[STEP_SUMS_LEN], DType::F32, device).unwrap();
            let sums = SumsOutput { tail: tail.view_mut(), accumulate: false, extra: None };
            loss.apply(outputs.view(), labels.view(), None, 1.0, Some(d.view_mut()), sums).unwrap();
            [vec![LossSums::load(&tail.to_vec::<f32>().unwrap()).mean() as f32], d.to_vec().unwrap()].concat()
        });
        for (got, want) in results[0].iter().zip(&results[1]) {
            assert!((got - want).abs() < 1e-6, "{device}: {results:?}");
        }
    }
}

/// Trains by hand, with the rows of a batch in `n_micro` parts on each of the ranks; returns the losses and the weights.
fn by_hand(world: &World, n_micro: usize) -> ddp::Result<(Vec<f64>, Vec<f32>)> {
    let sizes = Sizes { max_rows: GLOBAL_ROWS, device: Device::Cpu, precision: Precision::F32 };
    let mut model = layers().build(sizes, 5)?;
    let adamw = OptimizerConfig { ema_decay: 0.5, ..adamw() };
    let mut optimizer = Optimizer::for_model(&adamw, &model)?;
    let (loss, mut grads) = (squared_error(), GradientSums::for_model(&model)?);
    let x = Tensor::randn(&[GLOBAL_ROWS, N_FEATURES], DType::F32, Device::Cpu, 1)?;
    let y = (&x * &x).sum(1)?.into_shape(&[GLOBAL_ROWS, 1])?;
    let mut losses = Vec::new();
    for _ in 0..6 {
        let n = GLOBAL_ROWS / world.world_size() / n_micro;
        for part in 0..n_micro {
            let first = world.rank().0 * n * n_micro + part * n;
            let rows = |tensor: &Tensor| tensor.narrow(0, first, n);
            model.loss_and_gradients((&rows(&x)?, &rows(&y)?), &loss, &mut grads)?;
        }
        grads.all_reduce(world)?;
        losses.push(grads.mean_loss()?);
        grads.clip_norm(0.5)?;
        assert!(grads.norm()? < 0.501);
        optimizer.step(&mut model, &mut grads)?;
    }
    let average = optimizer.ema().unwrap().to_vec::<f32>()?;
    Ok((losses, [model.weights().to_vec::<f32>()?, average].concat()))
}

/// One step, by the rows of rank 0 alone; returns the weights before it, after it, and after a second step without rows.
fn one_step_by_hand(world: &World) -> ddp::Result<[Vec<f32>; 3]> {
    let mut model = layers().build(Sizes::new(GLOBAL_ROWS, Device::Cpu), 5)?;
    let mut optimizer = Optimizer::for_model(&adamw(), &model)?;
    // Of an earlier step that a rank takes alone.
    let (loss, mut grads) = (squared_error(), GradientSums::for_model(&model)?.without_other_ranks());
    let x = Tensor::randn(&[GLOBAL_ROWS, N_FEATURES], DType::F32, Device::Cpu, 1)?;
    let y = x.sum(keepdim(1))?;
    if world.rank().0 > 0 {
        // Sums of an earlier step, which must not count again.
        model.loss_and_gradients((&x, &y), &loss, &mut grads)?;
        optimizer.set_lr(0.0);
        optimizer.step(&mut model, &mut grads)?;
        model = layers().build(Sizes::new(GLOBAL_ROWS, Device::Cpu), 5)?;
        optimizer = Optimizer::for_model(&adamw(), &model)?;
    }
    let before = model.weights().to_vec::<f32>()?;
    if world.rank().0 == 0 {
        model.loss_and_gradients((&x, &y), &loss, &mut grads)?;
    }
    grads.all_reduce(world)?;
    optimizer.step(&mut model, &mut grads)?;
    let after = model.weights().to_vec::<f32>()?;
    assert_eq!((grads.mean_loss()?, grads.norm()?), (0.0, 0.0), "no rows since the step");
    optimizer.step(&mut model, &mut grads)?;
    Ok([before, after, model.weights().to_vec()?])
}

#[test]
fn a_loop_by_hand_uses_no_gradient_of_an_earlier_step() {
    let alone = threads::run(1, |world| one_step_by_hand(&world).unwrap()).remove(0);
    assert!(alone[0] != alone[1] && alone[1] == alone[2], "one step");
    for of_rank in threads::run(2, |world| one_step_by_hand(&world).unwrap()) {
        assert_eq!(of_rank, alone, "rank 1 adds no rows");
    }
}

#[test]
fn rows_after_the_exchange_of_a_step_are_refused() {
    threads::run(1, |world| {
        let mut model = layers().build(Sizes::new(4, Device::Cpu), 5).unwrap();
        let mut grads = GradientSums::for_model(&model).unwrap();
        let x = Tensor::ones(&[4, N_FEATURES], DType::F32, Device::Cpu).unwrap();
        let y = x.sum(keepdim(1)).unwrap();
        grads.all_reduce(&world).unwrap();
        let added = model.loss_and_gradients((&x, &y), &squared_error(), &mut grads).unwrap_err();
        assert!(added.to_string().contains("reduced over the ranks since the last step"), "{added}");
        let again = grads.all_reduce(&world).unwrap_err();
        assert!(again.to_string().contains("reduced since the last step"), "{again}");
    });
}

#[test]
fn a_loop_by_hand_takes_the_same_steps_however_its_rows_are_divided() {
    let run = |n_ranks, n_micro| threads::run(n_ranks, |world| by_hand(&world, n_micro).unwrap()).remove(0);
    let (losses, weights) = run(1, 1);
    assert!(losses[5] < losses[0], "{losses:?}");
    for (n_ranks, n_micro) in [(1, 3), (2, 1), (4, 3)] {
        let (own_losses, own_weights) = run(n_ranks, n_micro);
        let trained = |losses: &Vec<f64>, weights: &Vec<f32>| Trained {
            losses: losses.clone(),
            weights: weights.clone(),
            n_graphs: 0,
        };
        let what = format!("{n_ranks} ranks, {n_micro} micro-batches");
        assert_near(&what, &trained(&own_losses, &own_weights), &trained(&losses, &weights), ROUNDING);
    }
}

#[test]
fn tensors_of_a_loss_stay_its_own_after_a_panic_and_after_an_error() {
    let of = |n: f32| Tensor::full(&[1], n, DType::F32, Device::Cpu).unwrap();
    let loss = LossHead::expression(move |outputs, _| match outputs.dims()[0] {
        4 => (outputs * &of(2.0)).sum(1),
        3 => panic!("three rows"),
        2 => outputs * &of(50.0) + outputs.reshape(&[5]),
        _ => (outputs * &of(100.0)).sum(1),
    });
    let mut model = Sequential::new(1).linear(1).build(Sizes::new(4, Device::Cpu), 0).unwrap();
    let mut of_rows = |n: usize| {
        let rows = Tensor::ones(&[n, 1], DType::F32, Device::Cpu).unwrap();
        model.loss((&rows, &rows), &loss)
    };
    let before = of_rows(4).unwrap();
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| of_rows(3))).unwrap_err();
    assert!(of_rows(2).is_err());
    let ratio = of_rows(1).unwrap() / before;
    assert!((ratio - 50.0).abs() < 1e-4, "{ratio}");
    assert_eq!(of_rows(4).unwrap(), before);
}

#[test]
fn lengths_in_f16_neither_overflow_nor_vanish() {
    let unit = Expression::new("unit", 2, 2, |x, _| x.normalize(1));
    let sizes = Sizes { max_rows: 3, device: Device::Cpu, precision: Precision::F16 };
    let mut model = Sequential::new(2).layer(unit).build(sizes, 0).unwrap();
    let x = Tensor::from_slice(&[300.0f32, 0.0, 1e-4, 1e-4, 0.0, 0.0], &[3, 2], Device::Cpu).unwrap();
    let got = model.forward(&x).unwrap().to_tensor().unwrap().to_dtype(DType::F32).unwrap();
    let half = 0.5f32.sqrt();
    for (got, expected) in got.to_vec::<f32>().unwrap().iter().zip([1.0, 0.0, half, half, 0.0, 0.0]) {
        assert!((got - expected).abs() < 1e-3, "{got}, {expected}");
    }
}
