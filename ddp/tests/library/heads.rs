//! Several heads: any number of ranks reaches the results of one rank, with ZeRO, accumulation and micro-shards; a single head
//! equals the loss of its kind.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use crate::listed_layers::tabular;
use crate::made_up::{N_CLASSES, Setup, assert_close, cross_entropy, row_weights};
use ddp::config::precision::Precision;
use ddp::config::{ElementLoss, EvalMetric, HeadLoss, Loss, ModelConfig, OptimizerKind, Task, ZeroStage};
use ddp::data::{Dataset, HeadTargets, LabelVocabulary};
use ddp::model::{LossHead, ModelSpec, Network};
use ddp::train::trainer::TrainerOptions;
use ddp_kernels::ops::{LossSums, STEP_SUMS_LEN, SumsOutput};
use ddp_kernels::{DType, Device, Tensor};

fn setups() -> Vec<(&'static str, Setup)> {
    let setup = Setup::several_heads();
    let n_rows = setup.n_rows;
    let zero = |zero| TrainerOptions { zero, ..setup.options };
    vec![
        ("weights of rows", Setup { row_weights: Some(row_weights(n_rows)), ..setup.clone() }),
        ("ZeRO 1", Setup { options: zero(ZeroStage::Optimizer), ..setup.clone() }),
        ("ZeRO 2", Setup { options: zero(ZeroStage::Gradients), n_micro: 1, ..setup.clone() }),
        ("plain", setup),
    ]
}

#[test]
fn any_number_of_ranks_trains_the_same_model() {
    for (what, setup) in setups() {
        let one = setup.train_on(1);
        let of_epoch = |steps: &[f64]| steps.iter().sum::<f64>();
        let (first, last) = (of_epoch(&one.losses[..3]), of_epoch(&one.losses[9..]));
        assert!(last < 0.8 * first, "{what}: {:?}", one.losses);
        assert_eq!(one.eval.heads().len(), 3, "{what}");
        for n in [2, 3, 4] {
            let several = setup.train_on(n);
            assert_close(&format!("{what}, {n} ranks"), &several, &one);
            for ((name, got), (_, want)) in several.eval.heads().iter().zip(one.eval.heads()) {
                for (metric, want) in want.iter() {
                    let got = got.get(metric).unwrap();
                    let gap = (got - want).abs();
                    assert!(
                        gap <= 4e-6 * (1.0 + want.abs()),
                        "{what}, {n} ranks: {name}.{metric} {got}, {want}"
                    );
                }
            }
        }
    }
}

/// Optimizers that update whole parameters, on perceptrons and on the layers of `periodic_mlp`; resumed bit for bit.
#[test]
fn updates_of_whole_parameters_and_layers_for_tables_train_heads() {
    let usual = Setup::several_heads();
    let [n_features, n_outputs] = [usual.spec.n_features(), usual.spec.n_outputs()];
    let for_tables = ModelSpec::new(&ModelConfig::from_layers(tabular(), true), n_features, n_outputs);
    for spec in [usual.spec.clone(), for_tables] {
        for optimizer in [OptimizerKind::Muon, OptimizerKind::Lamb] {
            let setup = Setup { spec: spec.clone(), optimizer, n_epochs: 8, ..usual.clone() };
            let long = setup.train_on(1);
            let (first, last) = (long.losses[0], *long.losses.last().unwrap());
            assert!(last < 0.9 * first, "{optimizer}: {:?}", long.losses);
            // The tolerances for rounding hold for a dozen steps.
            let setup = Setup { n_epochs: 4, ..setup };
            let alone = setup.train_on(1);
            for (n_ranks, zero) in [(2, ZeroStage::Off), (3, ZeroStage::Optimizer), (3, ZeroStage::Gradients)]
            {
                let options = TrainerOptions { zero, ..setup.options };
                let several = Setup { options, ..setup.clone() };
                let trained = several.train_on(n_ranks);
                assert_close(&format!("{optimizer}, {n_ranks} ranks, {zero:?}"), &trained, &alone);
                let resumed = Setup { restart_after: Some(5), ..several }.train_on(n_ranks);
                assert!(resumed == trained, "{optimizer}, {n_ranks} ranks, {zero:?}");
            }
        }
    }
}

#[test]
fn micro_shards_give_the_same_bits() {
    let setup = Setup::several_heads();
    let options = TrainerOptions { micro_shards: Some(4), ..setup.options };
    let setup = Setup { options, ..setup };
    let one = setup.train_on(1);
    for n in [2, 4] {
        assert!(setup.train_on(n) == one, "{n} ranks");
    }
}

/// A single head of classes has weight 1 regardless of its configured weight.
#[test]
fn a_single_head_is_the_loss_of_its_kind() {
    let plain = Setup { loss: cross_entropy(Some([0.5, 1.0, 2.0])), ..Setup::usual() };
    let head = HeadLoss { name: "class".to_owned(), weight: 7.0, loss: plain.loss.clone() };
    let single = Setup { loss: Loss::Heads(vec![head]), ..plain.clone() };
    // Rows without a label are ignored in the plain run too.
    let rows: Vec<f32> = (0..plain.n_rows).map(|row| f32::from(u8::from(row % 4 != 1))).collect();
    let plain = Setup { row_weights: Some(rows), ..plain };
    for n in [1, 3] {
        let (got, want) = (single.train_on(n), plain.train_on(n));
        for (got, want) in got.losses.iter().zip(&want.losses) {
            assert!((got - want).abs() <= 1e-6 * want.abs(), "{n} ranks: {got}, {want}");
        }
        let (heads, metric) = (got.eval.heads(), EvalMetric::Accuracy);
        assert_eq!(heads[0].1.get(metric), want.eval.get(metric));
        let [head, of_all] =
            [heads[0].1.get(EvalMetric::Loss), got.eval.get(EvalMetric::Loss)].map(Option::unwrap);
        assert!((head - of_all).abs() <= 1e-6 * of_all.abs(), "{head}, {of_all}");
    }
}

#[test]
fn only_ratios_of_class_weights_matter() {
    let setup = Setup::several_heads();
    let mut scaled = setup.clone();
    if let Loss::Heads(losses) = &mut scaled.loss {
        // A power of two: the same digits.
        losses[0].loss = cross_entropy(Some([64.0, 128.0, 256.0]));
    }
    assert!(scaled.train_on(1) == setup.train_on(1));
}

/// By definition, the loss of a row is the weighted mean over the heads whose targets it has; over rows, the sums are averaged.
#[test]
fn loss_and_gradient_follow_the_definition() {
    const NAN: f32 = f32::NAN;
    let labels = Arc::new(LabelVocabulary::numbers(N_CLASSES));
    let head = |name: &str, task, n: usize, labels| HeadTargets {
        name: name.to_owned(),
        task,
        columns: (0..n).map(|i| format!("{name}{i}")).collect(),
        labels,
    };
    let heads = [
        head("class", Task::Classification, 1, Some(labels.clone())),
        head("values", Task::Regression, 2, None),
        head("grade", Task::Classification, 1, Some(labels)),
    ];
    let weights = [2.0, 3.0, 1.0];
    let losses = [cross_entropy(None), Loss::Element(ElementLoss::Mse), Loss::Ordinal]
        .into_iter()
        .zip(weights)
        .zip(["class", "values", "grade"]);
    let losses = losses.map(|((loss, weight), name)| HeadLoss { name: name.to_owned(), weight, loss });
    let loss = Loss::Heads(losses.collect());
    // 3 logits, 2 values, 2 cumulative logits.
    assert_eq!((loss.n_outputs(8), loss.n_targets(7)), (7, 8));
    let spec = ModelSpec::new(&ModelConfig::from_layers(Vec::new(), true), 4, 7);
    let model = Network::new(spec, 4, Device::Cpu, Precision::F32).unwrap();
    let all = LossHead::for_model(&loss, &heads, &model).unwrap();
    let targets = [1.0, 0.5, -1.0, 2.0, NAN, 0.25, 1.5, 0.0, 2.0, NAN, 1.0, 1.0, 0.0, 1.0, 2.0, NAN];
    let targets = Tensor::from_slice(&targets, &[4, 4], Device::Cpu).unwrap();
    let outputs = Tensor::randn(&[4, 7], DType::F32, Device::Cpu, 3).unwrap();
    let apply = |outputs: &Tensor| {
        let mut tail = Tensor::zeros(&[STEP_SUMS_LEN], DType::F32, Device::Cpu).unwrap();
        let mut gradient = outputs.zeros_like().unwrap();
        let sums = SumsOutput { tail: tail.view_mut(), accumulate: false, extra: None };
        all.apply(outputs.view(), targets.view(), None, 1.0, Some(gradient.view_mut()), sums).unwrap();
        (LossSums::load(&tail.to_vec::<f32>().unwrap()), gradient.to_vec::<f32>().unwrap())
    };
    let (sums, gradient) = apply(&outputs);
    // Row 1 lacks the class, row 2 the values, row 3 the grade.
    let want_weight = (6.0 + 4.0 + 3.0 + 5.0) / 6.0;
    assert!((sums.weight - want_weight).abs() < 1e-6, "{}", sums.weight);
    // Losses of the heads, computed one at a time.
    let mut want = 0.0;
    let x = outputs.to_vec::<f32>().unwrap();
    let y = targets.to_vec::<f32>().unwrap();
    for row in 0..4 {
        let (x, y) = (&x[row * 7..][..7], &y[row * 4..][..4]);
        if !y[0].is_nan() {
            let log_sum = x[..3].iter().map(|v| f64::from(*v).exp()).sum::<f64>().ln();
            let of = |class: usize| log_sum - f64::from(x[class]);
            // Label smoothing as in `cross_entropy`.
            want += 2.0 * (0.95 * of(y[0] as usize) + 0.05 / 3.0 * (of(0) + of(1) + of(2)));
        }
        if !y[2].is_nan() && !y[1].is_nan() {
            let square = |k: usize| (f64::from(x[3 + k]) - f64::from(y[1 + k])).powi(2);
            want += 3.0 * (square(0) + square(1)) / 2.0;
        }
        if !y[3].is_nan() {
            let of = |k: usize| {
                let (x, above) = (f64::from(x[5 + k]), f64::from(u8::from(y[3] > k as f32)));
                x.max(0.0) - x * above + (-x.abs()).exp().ln_1p()
            };
            want += (of(0) + of(1)) / 2.0;
        }
    }
    assert!((sums.loss - want / 6.0).abs() < 1e-5, "{} against {}", sums.loss, want / 6.0);
    for at in 0..x.len() {
        let moved = |by: f32| {
            let mut x = x.clone();
            x[at] += by;
            apply(&Tensor::from_slice(&x, &[4, 7], Device::Cpu).unwrap()).0.loss
        };
        let difference = (moved(1e-2) - moved(-1e-2)) / 2e-2;
        assert!(
            (difference - f64::from(gradient[at])).abs() < 2e-4,
            "{at}: {difference} against {}",
            gradient[at]
        );
    }
}

#[test]
fn rows_tell_of_their_heads() {
    let rows = Setup::several_heads().rows();
    let layout = rows.layout();
    assert_eq!((layout.targets.n_outputs(), layout.targets.n_values()), (6, 4));
    assert_eq!(layout.targets.column_names(), ["class", "width", "height", "label"]);
    assert_eq!(ddp::data::Summary(&*rows).to_string().split(", ").last(), Some("4 targets of 3 heads"));
}
