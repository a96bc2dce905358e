//! Trainers, schedules and losses that would train something else than they say: each is an error, or right.

mod common;

use std::sync::Arc;

use ddp::data::{
    BatchMut, BatchPlan, DataError, DataLoader, Dataset, EvalPartition, LoaderOptions, PartitionKind,
    RowLayout, TensorDataset,
};
use ddp::nn::{Expression, GradientSums, Init, LossHead, Network, ParamKind, Precision, Sequential, Sizes};
use ddp::optim::{
    LossScalerConfig, Optimizer, OptimizerConfig, OptimizerKind, ParamGroup, Schedule, ScheduleConfig,
    ScheduleShape, Span, Warmup,
};
use ddp::prelude::*;
use ddp::train::{Checkpoints, MetricRequest, Task, Trainer, TrainerOptions, evaluate};

use common::{says, sums, x};

const CPU: Device = Device::Cpu;

fn sgd(lr: f64) -> OptimizerConfig {
    OptimizerConfig::new(OptimizerKind::Sgd, lr)
}

fn layers() -> Sequential {
    Sequential::new(4).linear(8).linear(1)
}

/// A step of 8 of these rows.
fn step(
    trainer: &mut Trainer<'_>,
    world: &World,
    rows: Arc<dyn Dataset>,
    plan: &BatchPlan,
) -> ddp::Result<f64> {
    let mut loader = DataLoader::new(world, rows, plan, LoaderOptions::new(CPU))?;
    let mut batch = loader.next_step()?.expect("the plan has no last epoch");
    Ok(trainer.step_and_wait(&mut batch, false)?.sums.mean())
}

/// Ranks whose gradients have other units: their largest batches, or their loss scales, differ. Their sum is no gradient.
#[test]
fn gradients_of_ranks_have_one_unit() {
    let run = |max_rows: fn(usize) -> usize, scale: fn(usize) -> f64, seed: fn(usize) -> u64| {
        ddp::launch(2, |world| -> ddp::Result<Vec<f32>> {
            let rank = world.rank().0;
            let mut model = layers().build(Sizes::new(max_rows(rank), CPU), seed(rank))?;
            let mut grads = GradientSums::for_model(&model)?.with_loss_scale(scale(rank));
            let mut optimizer = Optimizer::for_model(&sgd(0.1), &model)?;
            // Rows that don't say of how many ranks they are.
            for _ in 0..2 {
                model.loss_and_gradients((&x(8), &sums(8)), &LossHead::mse(), &mut grads)?;
                grads.all_reduce(world)?;
                optimizer.step(&mut model, &mut grads)?;
            }
            Ok(model.weights().to_vec()?)
        })
    };
    let equal = run(|_| 16, |_| 1.0, |_| 0).unwrap();
    assert_eq!(equal[0], equal[1]);
    says(run(|rank| 16 + rank, |_| 1.0, |_| 0), &["rank 1", "unit of gradients", "max_rows"]);
    says(run(|_| 16, |rank| 1.0 + rank as f64, |_| 0), &["rank 1", "unit of gradients", "loss scale"]);
    says(run(|_| 16, |_| 1.0, |rank| rank as u64), &["rank 1", "weights before this step"]);
}

#[test]
fn what_is_frozen_after_the_trainer_was_made_is_refused() {
    let world = World::single();
    let options = TrainerOptions::default();
    let mut trainer =
        Trainer::for_layers(&world, layers(), Sizes::new(8, CPU), LossHead::mse(), &sgd(0.1), options)
            .unwrap();
    let rows: Arc<dyn Dataset> = Arc::new(TensorDataset::new(&x(8), &sums(8)).unwrap());
    let plan = BatchPlan::new(8);
    step(&mut trainer, &world, rows.clone(), &plan).unwrap();
    trainer.model_and_loss().0.freeze("layers.0").unwrap();
    says(step(&mut trainer, &world, rows, &plan), &["other frozen parameters", "for_model"]);
}

/// The tree adds micro-shards; shards of ranks would leave old sums in its places.
#[test]
fn rows_are_cut_as_the_tree_of_the_trainer() {
    let run = |n_ranks: usize, partition: PartitionKind| {
        ddp::launch(n_ranks, |world| -> ddp::Result<Vec<f32>> {
            let options = TrainerOptions { micro_shards: Some(8), ..TrainerOptions::default() };
            let mut trainer = Trainer::for_layers(
                world,
                layers(),
                Sizes::new(8, CPU),
                LossHead::mse(),
                &sgd(0.1),
                options,
            )?;
            let rows: Arc<dyn Dataset> = Arc::new(TensorDataset::new(&x(8), &sums(8))?);
            let plan = BatchPlan { partition, ..BatchPlan::new(8) };
            for _ in 0..3 {
                step(&mut trainer, world, rows.clone(), &plan)?;
            }
            Ok(trainer.model().weights().to_vec()?)
        })
    };
    let shards = |n_shards| PartitionKind::MicroShards { n_shards };
    assert_eq!(run(1, shards(8)).unwrap()[0], run(3, shards(8)).unwrap()[2]);
    let said = ["micro_shards` sums 8", "PartitionKind::MicroShards { n_shards: 8 }"];
    says(run(3, PartitionKind::Ranks { n_micro: 1 }), &said);
    says(run(1, shards(4)), &said);
}

#[test]
fn f16_needs_a_scaled_loss() {
    let world = World::single();
    let trainer = |loss_scaling| {
        let sizes = Sizes { precision: Precision::F16, ..Sizes::new(8, CPU) };
        let options = TrainerOptions { loss_scaling, ..TrainerOptions::default() };
        Trainer::for_layers(&world, layers(), sizes, LossHead::mse(), &sgd(0.1), options).map(|_| ())
    };
    says(trainer(None), &["f16 without loss scaling", "LossScalerConfig"]);
    trainer(Some(LossScalerConfig::default())).unwrap();
}

/// Rows of three classes, of which every second one has no label, as padded sequences.
#[derive(Debug)]
struct Padded(TensorDataset);

impl Padded {
    fn new() -> Self {
        let labels = Tensor::from_slice(&[0_i64, 1, 2, 0, 1, 2, 0, 1], &[8], CPU).unwrap();
        Padded(TensorDataset::new(&x(8), &labels).unwrap())
    }
}

impl Dataset for Padded {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn layout(&self) -> &RowLayout {
        self.0.layout()
    }

    fn gather(&self, rows: &[usize], mut out: BatchMut<'_>) -> Result<(), DataError> {
        self.0.gather(rows, out.reborrow())?;
        let labels = out.targets.into_slice::<i64>("padded", "labels")?;
        rows.iter().zip(labels).filter(|(row, _)| *row % 2 == 1).for_each(|(_, label)| *label = -100);
        Ok(())
    }
}

/// A trainer divides by all rows, and does not say that it has divided by those with a label.
#[test]
fn rows_without_a_label_are_no_rows_of_a_trainer() {
    let world = World::single();
    let (loss, rows) = (LossHead::cross_entropy(), Arc::new(Padded::new()) as Arc<dyn Dataset>);
    let classes = Sequential::new(4).linear(3);
    let options = TrainerOptions::default();
    let mut trainer =
        Trainer::for_layers(&world, classes, Sizes::new(8, CPU), loss, &sgd(0.1), options).unwrap();
    let said = ["-100", "weight 0"];
    says(
        step(&mut trainer, &world, rows.clone(), &BatchPlan::new(8)),
        &[&said[..], &["by 8 rows", "counts 4"]].concat(),
    );
    let (model, loss) = trainer.model_and_loss();
    let request = MetricRequest::defaults(Task::Classification);
    let cut = EvalPartition::for_ranks(1);
    says(evaluate(&world, model, loss, &request, &rows, cut, &LoaderOptions::new(CPU)), &said);
}

#[test]
fn schedules_of_groups_are_set_by_the_program() {
    let linear =
        ScheduleConfig { shape: ScheduleShape::Linear { final_fraction: 0.0 }, ..ScheduleConfig::CONSTANT };
    let group = |pattern: &str| ParamGroup {
        pattern: pattern.to_owned(),
        lr_scale: 1.0,
        weight_decay: None,
        schedule: Some(linear),
    };
    let config = |pattern| OptimizerConfig { groups: vec![group(pattern)], ..sgd(0.1) };
    let mut model = layers().build(Sizes::new(8, CPU), 0).unwrap();
    let mut optimizer = Optimizer::for_model(&config("layers.1.*"), &model).unwrap();
    let mut grads = GradientSums::for_model(&model).unwrap();
    model.loss_and_gradients((&x(8), &sums(8)), &LossHead::mse(), &mut grads).unwrap();
    says(optimizer.step(&mut model, &mut grads), &["schedule of its own", "set_group_lrs"]);
    let values = |model: &Network, name: &str| {
        let all = model.named_parameters().unwrap();
        all.iter().find(|(of, _)| *of == name).unwrap().1.to_vec::<f32>().unwrap()
    };
    let before = values(&model, "layers.1.weight");
    optimizer.set_group_lrs(&[0.0]);
    optimizer.step(&mut model, &mut grads).unwrap();
    assert_eq!(values(&model, "layers.1.weight"), before);
    // A text that is no pattern is a name.
    says(Optimizer::for_model(&config("layers.[0"), &model), &["no parameter matches \"layers.[0\""]);
    let lamb = OptimizerConfig::new(OptimizerKind::Lamb, 0.1);
    let mut lamb = Optimizer::for_model(&lamb, &model).unwrap();
    says(lamb.step(&mut model, &mut grads), &["lamb", "Trainer"]);
    assert_eq!(lamb.n_steps(), 0);
}

#[test]
fn settings_of_schedules_are_in_range() {
    let schedule = |shape, start| {
        let warmup = Warmup { length: Span::Steps(2), start };
        Schedule::new(&ScheduleConfig { warmup, shape }, 0.1, Some(100))
    };
    let restarts =
        |growth| ScheduleShape::CosineRestarts { every: Span::Steps(10), growth, final_fraction: 0.0 };
    assert!(schedule(restarts(1), None).unwrap().lr(50).is_finite());
    says(schedule(restarts(0), None), &["restart_growth", "from 1 to 1000", "got 0"]);
    says(schedule(ScheduleShape::Linear { final_fraction: -1.0 }, None), &["final_fraction"]);
    says(schedule(ScheduleShape::Constant, Some(f64::NAN)), &["warmup_start"]);
    let step = ScheduleShape::Step { every: Span::Fraction(2.0), factor: 0.5 };
    says(schedule(step, None), &["step_every_fraction"]);
    says(schedule(ScheduleShape::Exponential { every: Span::Steps(1), factor: 2.0 }, None), &["step_factor"]);
}

#[test]
fn a_cursor_that_no_checkpoint_holds_is_refused() {
    let folder = std::env::temp_dir().join(format!("ddp_outside_cursor_{}", std::process::id()));
    let world = World::single();
    let options = TrainerOptions::default();
    let trainer =
        Trainer::for_layers(&world, layers(), Sizes::new(8, CPU), LossHead::mse(), &sgd(0.1), options)
            .unwrap();
    let mut checkpoints = Checkpoints::new(&world, &trainer, &folder).unwrap();
    says(checkpoints.save(&trainer, 16 << 48), &["cursor", "below 2^52"]);
    checkpoints.save(&trainer, 1 << 51).unwrap();
    drop(checkpoints);
    std::fs::remove_dir_all(folder).unwrap();
}

/// The power of 0 has derivatives where its formula multiplies 0 by infinity, as after a ReLU.
#[test]
fn powers_of_zero_have_gradients() {
    let gradients = |exponent: f32| {
        let power = Expression::new("power", 4, 4, |x, own| x.relu().pow(&own["p"])).parameter(
            "p",
            ParamKind::NormWeight,
            &[4],
            Init::Constant(exponent),
        );
        let mut model = Sequential::new(4).linear(4).layer(power).build(Sizes::new(8, CPU), 0).unwrap();
        let mut grads = GradientSums::for_model(&model).unwrap().allow_non_finite();
        model.loss_and_gradients((&x(8), &x(8)), &LossHead::mse(), &mut grads).unwrap();
        let named = grads.named().unwrap();
        named
            .into_iter()
            .map(|(name, gradient)| (name.to_owned(), gradient.to_vec::<f32>().unwrap()))
            .collect::<Vec<_>>()
    };
    for exponent in [0.0, 1.0, 2.5] {
        let all = gradients(exponent);
        assert!(
            all.iter().all(|(_, values)| values.iter().all(|value| value.is_finite())),
            "{exponent}: {all:?}"
        );
        let of_weights = all.iter().find(|(name, _)| name == "layers.0.weight").unwrap();
        assert_eq!(of_weights.1.iter().all(|value| *value == 0.0), exponent == 0.0, "{exponent}");
        let of_exponent = all.iter().find(|(name, _)| name.ends_with(".p")).unwrap();
        assert!(of_exponent.1.iter().any(|value| *value != 0.0), "{exponent}");
    }
}
