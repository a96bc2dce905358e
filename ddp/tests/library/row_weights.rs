//! Row weights on ranks that are threads: their effect on a step and on an evaluation.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use ddp::config::precision::Precision;
use ddp::config::{ClassWeights, ElementLoss, EvalMetric, Loss, OptimizerKind, Task};
use ddp::data::datasets::dataset::usual_weight;
use ddp::data::loader::LoaderOptions;
use ddp::data::order::partition::EvalPartition;
use ddp::data::{Dataset, Targets, TensorDataset};
use ddp::model::{LossHead, ModelSpec, Network};
use ddp::report::EvalMetrics;
use ddp::train::evaluate::evaluate;
use ddp::train::metrics::request::MetricRequest;
use ddp::train::trainer::TrainerOptions;
use ddp_comm::threads;
use ddp_kernels::Device;
use ddp_kernels::ops::Activation;

use crate::made_up::{
    N_CLASSES, Setup, Trained, assert_close, by_parameter, cross_entropy, losses, row_weights, rows_of,
};

/// One step on all rows, without dropout, because its masks depend on a row's position.
fn one_step(loss: Loss, n_rows: usize) -> Setup {
    let spec = ModelSpec { layer_norm: true, ..ModelSpec::plain(&[6, 16, 9, N_CLASSES], Activation::Gelu) };
    Setup { spec, loss, n_rows, global_rows: n_rows, n_epochs: 1, ..Setup::usual() }
}

/// The rows at `indices` of `rows`.
fn select(rows: &TensorDataset, indices: &[usize], weights: Option<&[f32]>) -> Arc<TensorDataset> {
    let n_features = rows.layout.n_features();
    let of = |values: &[f32], width: usize| -> Vec<f32> {
        indices.iter().flat_map(|&row| values[row * width..][..width].to_vec()).collect()
    };
    let targets = match &rows.targets {
        Targets::Labels(labels) => Targets::Labels(indices.iter().map(|&row| labels[row]).collect()),
        Targets::Values(values) => Targets::Values(of(values, N_CLASSES)),
    };
    rows_of(of(&rows.features, n_features), n_features, targets, weights.map(<[f32]>::to_vec))
}

/// The trainer knows the unit, in which gradients would overflow.
#[test]
fn steps_in_f16_do_not_depend_on_the_unit_of_the_weights() {
    let setup = Setup { precision: Precision::F16, ..Setup::usual() };
    let plain = row_weights(setup.n_rows);
    let of = |unit: f32| {
        let weights = plain.iter().map(|weight| weight * unit).collect();
        Setup { row_weights: Some(weights), ..setup.clone() }
    };
    let train = |unit: f32, mean_weight: f64| {
        let options = TrainerOptions { mean_weight, ..setup.options };
        let trained = Setup { options, ..of(unit) }.train_on(1);
        (trained.weights, trained.losses, trained.n_skipped)
    };
    let (unit, usual) = (2.0f32.powi(30), train(1.0, 1.0));
    assert!(train(unit, f64::from(unit)) == usual);
    assert!(train(unit, 1.0).2 > usual.2, "an overflow that goes unnoticed");
    let mean = |weights: &[f32]| weights.iter().map(|of| f64::from(*of)).sum::<f64>() / weights.len() as f64;
    let first = &plain[..plain.len().min(256)];
    assert_eq!(usual_weight(&*of(1.0).rows()).unwrap(), Some(mean(first)));
    assert_eq!(usual_weight(&*of(0.0).rows()).unwrap(), None);
    assert_eq!(usual_weight(&*setup.rows()).unwrap(), Some(1.0));
}

#[test]
fn a_row_of_weight_2_is_the_row_twice_and_one_of_weight_0_is_none() {
    let (once, counts): (Vec<usize>, _) = ((0..12).collect(), [2, 1, 0, 1, 3, 1, 1, 0, 1, 2, 1, 1]);
    let often: Vec<usize> = once.iter().flat_map(|&row| vec![row; counts[row]]).collect();
    for loss in losses() {
        // With and without clipping: the norm is that of the true mean.
        for clip_grad_norm in [0.0, 0.1] {
            let weighted = one_step(loss.clone(), once.len());
            let options = TrainerOptions { clip_grad_norm, ..weighted.options };
            let weighted = Setup { options, ..weighted };
            let repeated = Setup { n_rows: often.len(), global_rows: often.len(), ..weighted.clone() };
            let rows = weighted.rows();
            let weights = counts.map(|n| n as f32);
            let with_weights = select(&rows, &once, Some(&weights));
            let train = |setup: &Setup, rows: &Arc<TensorDataset>, world_size| {
                threads::run(world_size, |world| {
                    let rows: Arc<dyn Dataset> = rows.clone();
                    setup.train_rows(&world, &rows)
                })
                .remove(0)
            };
            let want: Trained = train(&repeated, &select(&rows, &often, None), 1);
            for world_size in [1, 2] {
                let got = train(&weighted, &with_weights, world_size);
                assert_close(&format!("{loss:?}, clipped at {clip_grad_norm}"), &got, &want);
            }
        }
    }
}

#[test]
fn weights_of_one_change_no_bit() {
    for loss in losses() {
        let setup = Setup { loss, ..Setup::usual() };
        let ones = Setup { row_weights: Some(vec![1.0; setup.n_rows]), ..setup.clone() };
        assert!(ones.train_on(2) == setup.train_on(2), "{:?}", setup.loss);
    }
}

#[test]
fn a_step_without_weight_leaves_the_weights_alone() {
    let no_class = cross_entropy(Some([0.0; N_CLASSES]));
    let no_rows = losses().map(|loss| (loss, Some(vec![0.0; 29])));
    for (loss, row_weights) in no_rows.into_iter().chain([(no_class, None)]) {
        for (clip_grad_norm, world_size) in [(0.0, 1), (0.7, 1), (0.7, 3)] {
            let what = format!("{loss:?}, clipped at {clip_grad_norm}, {world_size} ranks");
            let options = TrainerOptions { clip_grad_norm, ..Setup::usual().options };
            let setup =
                Setup { loss: loss.clone(), row_weights: row_weights.clone(), options, ..Setup::usual() };
            let setup = Setup { weight_decay: 0.0, optimizer: OptimizerKind::Sgd, ..setup };
            let trained = setup.train_on(world_size);
            assert!(
                trained.losses.iter().chain(&trained.grad_norms).all(|&v| v == 0.0),
                "{what}: {trained:?}"
            );
            let mut model = Network::new(setup.spec.clone(), 1, Device::Cpu, Precision::F32).unwrap();
            model.initialize(setup.options.seed).unwrap();
            let before = model.weights().to_vec::<f32>().unwrap();
            assert!(
                trained.weights == by_parameter(model.layout(), &before),
                "{what}: the weights have moved"
            );
            let [loss, accuracy, r2] = [EvalMetric::Loss, EvalMetric::Accuracy, EvalMetric::R2]
                .map(|metric| trained.eval.get(metric));
            assert_eq!((loss, r2), (None, None), "{what}: a mean over nothing");
            assert!(accuracy.is_none() || row_weights.is_none(), "{what}: a mean over nothing");
        }
    }
}

/// Expected metrics of an evaluation, computed by their formulas from the outputs of all rows.
fn plain(setup: &Setup, outputs: &[f32], rows: &TensorDataset) -> EvalMetrics {
    let weights: Vec<f64> = rows.weights.iter().flatten().copied().map(f64::from).collect();
    let outputs: Vec<f64> = outputs.iter().map(|&v| f64::from(v)).collect();
    let total: f64 = weights.iter().sum();
    let k = N_CLASSES;
    let mut metrics = EvalMetrics::default();
    let (mut loss, mut divisor, mut right) = (0.0, 0.0, 0.0);
    if let Loss::CrossEntropy { label_smoothing, class_weights, focal_gamma } = &setup.loss {
        let Targets::Labels(labels) = &rows.targets else { panic!() };
        let class = |c: usize| match class_weights {
            Some(ClassWeights::PerClass(weights)) => f64::from(weights[c]),
            Some(ClassWeights::Balanced) => panic!("the weights are numbers"),
            None => 1.0,
        };
        for ((z, &label), &w) in outputs.chunks_exact(k).zip(labels).zip(&weights) {
            let (label, log_sum) = (label as usize, z.iter().map(|v| v.exp()).sum::<f64>().ln());
            let smooth: f64 = (0..k).map(|c| log_sum - z[c]).sum();
            let hit = (1.0 - label_smoothing) * (log_sum - z[label]);
            let factor = (1.0 - (z[label] - log_sum).exp()).powf(*focal_gamma);
            loss += w * class(label) * factor * (hit + label_smoothing / k as f64 * smooth);
            divisor += w * class(label);
            right += if z.iter().all(|&v| v <= z[label]) { w } else { 0.0 };
        }
        metrics = metrics.with(EvalMetric::Accuracy, right / total);
    } else if setup.loss == Loss::Ordinal {
        let Targets::Labels(labels) = &rows.targets else { panic!() };
        for ((z, &label), &w) in outputs.chunks_exact(k).zip(labels).zip(&weights) {
            // Logit i predicts whether the class is above i.
            let sign = |i: usize| if label > i as i64 { -1.0 } else { 1.0 };
            loss += w * z.iter().enumerate().map(|(i, z)| (1.0 + (sign(i) * z).exp()).ln()).sum::<f64>();
            divisor += w * k as f64;
            let class = z.iter().filter(|z| **z > 0.0).count();
            right += if class as i64 == label { w } else { 0.0 };
        }
        metrics = metrics.with(EvalMetric::Accuracy, right / total);
    } else {
        let Targets::Values(y) = &rows.targets else { panic!() };
        let y: Vec<f64> = y.iter().map(|&y| f64::from(y)).collect();
        for (i, (&z, &y)) in outputs.iter().zip(&y).enumerate() {
            let (w, e) = (weights[i / k], z - y);
            divisor += w;
            right += if (z > 0.0) == (y > 0.5) { w } else { 0.0 };
            loss += w * match setup.loss {
                Loss::Element(ElementLoss::Bce) => (1.0 + z.exp()).ln() - z * y,
                Loss::Element(ElementLoss::Focal { gamma }) => {
                    let toward = if y > 0.5 { z } else { -z };
                    (1.0 / (1.0 + toward.exp())).powf(gamma) * (1.0 + (-toward).exp()).ln()
                }
                Loss::Element(ElementLoss::Poisson) => z.exp() - y * z,
                Loss::Element(ElementLoss::Mse) => e * e,
                Loss::Element(ElementLoss::Huber { delta }) if e.abs() > delta => {
                    delta * (e.abs() - delta / 2.0)
                }
                Loss::Element(ElementLoss::LogCosh) => e.cosh().ln(),
                Loss::Element(ElementLoss::Quantile { quantile }) => {
                    (-quantile * e).max((1.0 - quantile) * e)
                }
                _ => e * e / 2.0,
            };
        }
        if setup.task() == Task::Multilabel {
            metrics = metrics.with(EvalMetric::Accuracy, right / divisor);
        } else {
            let column = |c: usize, v: &[f64]| -> Vec<f64> { v.iter().skip(c).step_by(k).copied().collect() };
            let r2 = (0..k).map(|c| {
                let (y, mut z) = (column(c, &y), column(c, &outputs));
                if setup.loss == Loss::Element(ElementLoss::Poisson) {
                    z.iter_mut().for_each(|z| *z = z.exp());
                }
                let mean = y.iter().zip(&weights).map(|(y, w)| w * y).sum::<f64>() / total;
                let errors: f64 = y.iter().zip(&z).zip(&weights).map(|((y, z), w)| w * (y - z).powi(2)).sum();
                let spread: f64 = y.iter().zip(&weights).map(|(y, w)| w * (y - mean).powi(2)).sum();
                1.0 - errors / spread
            });
            metrics = metrics.with(EvalMetric::R2, r2.sum::<f64>() / k as f64);
        }
    }
    metrics.with(EvalMetric::Loss, loss / divisor)
}

#[test]
fn an_evaluation_counts_each_row_by_its_weight() {
    // Weights whose sums are rounded.
    let weights: Vec<f32> =
        row_weights(29).iter().enumerate().map(|(i, w)| w * (0.1 * i as f32).cos().abs()).collect();
    for loss in losses() {
        let setup = Setup { loss, row_weights: Some(weights.clone()), ..Setup::usual() };
        let rows = setup.rows();
        let model = |max_rows| {
            let mut model = Network::new(setup.spec.clone(), max_rows, Device::Cpu, Precision::F32).unwrap();
            model.initialize(5).unwrap();
            model
        };
        let mut whole = model(29);
        whole.forward(rows.in_place(0..29).unwrap().unwrap().x).unwrap();
        let want = plain(&setup, &whole.outputs().unwrap().to_vec::<f32>().unwrap(), &rows);
        let rows: Arc<dyn Dataset> = rows;
        for world_size in [1, 3] {
            // Evaluated in several batches per rank.
            let got = threads::run(world_size, |world| {
                let head = LossHead::new(&setup.loss, Device::Cpu).unwrap();
                let loading = LoaderOptions::new(Device::Cpu);
                evaluate(
                    &world,
                    &mut model(4),
                    &head,
                    &MetricRequest::defaults(setup.task()).in_units_of(&setup.loss, rows.layout()),
                    &rows,
                    EvalPartition::for_ranks(world_size),
                    &loading,
                )
                .unwrap()
            });
            for (what, got, want) in [
                ("loss", got[0].get(EvalMetric::Loss), want.get(EvalMetric::Loss)),
                ("accuracy", got[0].get(EvalMetric::Accuracy), want.get(EvalMetric::Accuracy)),
                ("R2", got[0].get(EvalMetric::R2), want.get(EvalMetric::R2)),
            ] {
                let gap = got.unwrap_or(0.0) - want.unwrap_or(0.0);
                assert!(got.is_some() == want.is_some() && gap.abs() <= 2e-6, "{what}: {got:?}, {want:?}");
            }
        }
    }
}

#[test]
fn r2_of_a_constant_target_is_absent_however_its_mean_is_rounded() {
    let setup = one_step(Loss::Element(ElementLoss::Mse), 3);
    let targets = Targets::Values([0.1f32, 0.2, 0.3].repeat(3));
    let rows: Arc<dyn Dataset> = rows_of(vec![0.0; 18], 6, targets, Some(vec![0.1, 0.7, 1.3]));
    let mut model = Network::new(setup.spec.clone(), 3, Device::Cpu, Precision::F32).unwrap();
    model.initialize(5).unwrap();
    let head = LossHead::new(&setup.loss, Device::Cpu).unwrap();
    let world = ddp_comm::World::single();
    let loading = LoaderOptions::new(Device::Cpu);
    let request = MetricRequest::defaults(Task::Regression);
    let metrics =
        evaluate(&world, &mut model, &head, &request, &rows, EvalPartition::for_ranks(1), &loading).unwrap();
    assert_eq!(metrics.get(EvalMetric::R2), None);
}
