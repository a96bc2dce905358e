//! Compares the metrics of an evaluation with scikit-learn's, on 1, 2 and 3 ranks.
//!
//! The cases come from `tests/golden/metrics.json` (layout in the README next to it). The model is the identity, so the features
//! are its outputs.

use std::path::Path;
use std::sync::Arc;

use ddp::config::precision::Precision;
use ddp::config::{ElementLoss, EvalMetric, HeadLoss, JudgeMetric, Loss, MetricSet, Task};
use ddp::data::loader::LoaderOptions;
use ddp::data::order::partition::EvalPartition;
use ddp::data::{
    Dataset, HeadTargets, LabelVocabulary, RowLayout, TargetLayout, Targets, TensorDataset, numbered_columns,
};
use ddp::model::{LossHead, ModelSpec, Network};
use ddp::report::{EvalMetrics, NamedFigures};
use ddp::train::TrainError;
use ddp::train::evaluate::evaluate;
use ddp::train::metrics::request::MetricRequest;
use ddp_comm::{World, threads};
use ddp_kernels::ops::Activation;
use ddp_kernels::{Device, TensorRef};
use serde_json::Value;

use crate::made_up::gpus::gpus;

/// scikit-learn computes in f64; the loss sums of a batch are f32.
const TOLERANCE: f64 = 1e-6;

struct Case {
    name: String,
    task: Task,
    n_outputs: usize,
    rows: Arc<dyn Dataset>,
    expected: Value,
}

fn floats(value: &Value) -> Vec<f32> {
    match value {
        Value::Array(values) => values.iter().flat_map(floats).collect(),
        other => vec![other.as_f64().unwrap() as f32],
    }
}

fn cases() -> Vec<Case> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden/metrics.json");
    let golden: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    golden["cases"].as_array().unwrap().iter().map(case).collect()
}

fn case(golden: &Value) -> Case {
    let n_outputs = golden["outputs"][0].as_array().unwrap().len();
    let task = match golden["task"].as_str().unwrap() {
        "classification" => Task::Classification,
        "multilabel" => Task::Multilabel,
        _ => Task::Regression,
    };
    let targets = floats(&golden["targets"]);
    let targets = match task {
        Task::Classification => Targets::Labels(targets.iter().map(|&label| label as i64).collect()),
        _ => Targets::Values(targets),
    };
    let weights = (!golden["weights"].is_null()).then(|| floats(&golden["weights"]));
    Case {
        name: golden["name"].as_str().unwrap().to_owned(),
        task,
        n_outputs,
        rows: rows(floats(&golden["outputs"]), n_outputs, targets, weights),
        expected: golden.clone(),
    }
}

fn rows(
    outputs: Vec<f32>,
    n_outputs: usize,
    targets: Targets,
    weights: Option<Vec<f32>>,
) -> Arc<dyn Dataset> {
    let names = (0..n_outputs).map(|i| format!("t{i}")).collect();
    let target_layout = match &targets {
        Targets::Labels(_) => TargetLayout::Classes { n_classes: n_outputs },
        Targets::Values(_) => TargetLayout::Values { names },
    };
    let mut layout = RowLayout::new(numbered_columns(n_outputs), target_layout);
    layout.has_weights = weights.is_some();
    Arc::new(TensorDataset { features: outputs, targets, weights, layout, source: "made-up rows".to_owned() })
}

/// A linear layer that returns its input.
fn identity(n_outputs: usize, max_rows: usize, device: Device) -> Network {
    let spec = ModelSpec::plain(&[n_outputs, n_outputs], Activation::Relu);
    let mut model = Network::new(spec, max_rows, device, Precision::F32).unwrap();
    let mut weights = vec![0.0f32; model.layout().flat_len()];
    for entry in model.layout().entries().iter().filter(|entry| entry.name.ends_with("weight")) {
        let matrix = &mut weights[entry.range()];
        (0..n_outputs).for_each(|i| matrix[i * n_outputs + i] = 1.0);
    }
    model.set_weights(TensorRef::from_slice(&weights, &[weights.len()]).unwrap()).unwrap();
    model
}

fn loss(task: Task) -> Loss {
    match task {
        Task::Classification => {
            Loss::CrossEntropy { label_smoothing: 0.0, class_weights: None, focal_gamma: 0.0 }
        }
        Task::Multilabel => Loss::Element(ElementLoss::Bce),
        Task::Regression => Loss::Element(ElementLoss::Mse),
        Task::Heads => unreachable!("cases have one head"),
    }
}

fn measure(
    world: &World,
    case: &Case,
    metrics: MetricSet,
    device: Device,
) -> Result<EvalMetrics, TrainError> {
    let head = LossHead::new(&loss(case.task), device).unwrap();
    let request = MetricRequest::new(case.task, metrics);
    let partition = EvalPartition::for_ranks(world.world_size());
    // Several batches per rank.
    let mut model = identity(case.n_outputs, 8, device);
    evaluate(world, &mut model, &head, &request, &case.rows, partition, &LoaderOptions::new(device))
}

#[track_caller]
fn assert_close(what: &str, got: Option<f64>, want: Option<f64>) {
    let gap = got.unwrap_or(0.0) - want.unwrap_or(0.0);
    assert!(got.is_some() == want.is_some() && gap.abs() <= TOLERANCE, "{what}: {got:?}, expected {want:?}");
}

#[track_caller]
fn assert_figures(what: &str, got: &[NamedFigures], want: &Value) {
    let want = want.as_object().unwrap();
    assert_eq!(got.len(), want.len(), "{what}");
    for NamedFigures { name, figures } in got {
        assert_eq!(figures.len(), want[name].as_object().unwrap().len(), "{what}: {name}");
        for (figure, value) in figures {
            assert_close(&format!("{what}: {name}: {figure}"), Some(*value), want[name][figure].as_f64());
        }
    }
}

#[track_caller]
fn assert_golden(what: &str, case: &Case, got: &EvalMetrics) {
    let want = case.expected["metrics"].as_object().unwrap();
    for metric in EvalMetric::ALL {
        let what = format!("{what}: {metric}");
        assert_eq!(metric.fits(case.task), want.contains_key(metric.name()), "{what}");
        assert_close(&what, got.get(*metric), want.get(metric.name()).and_then(Value::as_f64));
    }
    let tables = got.tables().unwrap();
    let figures = if case.task == Task::Regression { &tables.per_target } else { &tables.per_class };
    assert_figures(what, figures, &case.expected["table"]);
    let matrix = tables.confusion_matrix.as_ref();
    assert_eq!(matrix.is_some(), case.task == Task::Classification, "{what}");
    let want = &case.expected["confusion_matrix"];
    for (i, row) in matrix.iter().flat_map(|matrix| &matrix.counts).enumerate() {
        for (j, count) in row.iter().enumerate() {
            assert_close(&format!("{what}: [{i}, {j}]"), Some(*count), want[i][j].as_f64());
        }
    }
    assert!(!tables.is_approximate);
}

#[test]
fn all_metrics_are_scikit_learns_on_1_2_and_3_ranks() {
    for case in cases() {
        for n_ranks in [1, 2, 3] {
            let all = MetricSet::all(case.task);
            let got = threads::run(n_ranks, |world| measure(&world, &case, all, Device::Cpu).unwrap());
            assert!(got.iter().all(|metrics| *metrics == got[0]), "{}: the ranks differ", case.name);
            assert_golden(&format!("{} on {n_ranks} ranks", case.name), &case, &got[0]);
        }
    }
}

/// Uses the cases without weights as heads of one model. A case with fewer rows than another is a head whose last rows lack
/// targets.
#[test]
fn heads_have_scikit_learns_metrics_on_1_2_and_3_ranks() {
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.expected["weights"].is_null()).collect();
    let n_columns = |case: &Case| if case.task == Task::Classification { 1 } else { case.n_outputs };
    let head = |case: &Case| HeadTargets {
        name: case.name.clone(),
        task: case.task,
        columns: (0..n_columns(case)).map(|column| column.to_string()).collect(),
        labels: (case.task == Task::Classification)
            .then(|| Arc::new(LabelVocabulary::numbers(case.n_outputs))),
    };
    let heads: Vec<HeadTargets> = cases.iter().map(head).collect();
    let losses =
        cases.iter().map(|case| HeadLoss { name: case.name.clone(), weight: 1.0, loss: loss(case.task) });
    let loss = Loss::Heads(losses.collect());
    let n_outputs: usize = cases.iter().map(|case| case.n_outputs).sum();
    let n_rows = cases.iter().map(|case| case.rows.len()).max().unwrap();
    let (mut features, mut targets) = (Vec::new(), Vec::new());
    for row in 0..n_rows {
        for case in &cases {
            let extend = |to: &mut Vec<f32>, key: &str, width: usize, missing: f32| {
                let values = floats(&case.expected[key]);
                let of_row = values.chunks_exact(width).nth(row);
                to.extend(of_row.map_or(vec![missing; width], <[f32]>::to_vec));
            };
            extend(&mut features, "outputs", case.n_outputs, 0.0);
            extend(&mut targets, "targets", n_columns(case), f32::NAN);
        }
    }
    let target_layout = TargetLayout::Heads { heads: heads.clone().into() };
    let layout = RowLayout::new(numbered_columns(n_outputs), target_layout);
    let (targets, source) = (Targets::Values(targets), "made-up rows".to_owned());
    let rows: Arc<dyn Dataset> = Arc::new(TensorDataset { features, targets, weights: None, layout, source });
    for n_ranks in [1, 2, 3] {
        let got = threads::run(n_ranks, |world| {
            let mut model = identity(n_outputs, 8, Device::Cpu);
            let of_model = LossHead::for_model(&loss, &heads, &model).unwrap();
            let all = MetricRequest::new(Task::Heads, MetricSet::all(Task::Heads));
            let request = all.in_units_of(&loss, rows.layout());
            let (partition, options) =
                (EvalPartition::for_ranks(world.world_size()), LoaderOptions::new(Device::Cpu));
            evaluate(&world, &mut model, &of_model, &request, &rows, partition, &options).unwrap()
        });
        assert!(got.iter().all(|metrics| *metrics == got[0]), "the ranks differ");
        assert_eq!(got[0].heads().len(), 5);
        for (case, (name, metrics)) in cases.iter().zip(got[0].heads()) {
            assert_golden(&format!("head {name} on {n_ranks} ranks"), case, metrics);
            let judge = |metric| JudgeMetric { head: Some(name.clone()), metric };
            let areas = metrics.get(EvalMetric::RocAuc);
            assert_eq!(got[0].judged_by(&judge(EvalMetric::RocAuc)), areas);
            assert_eq!(areas.is_some(), case.task != Task::Regression);
        }
    }
}

#[test]
fn gpus_measure_the_same() {
    let Some(_lock) = gpus(1) else { return };
    let device = Device::Cuda(0);
    for case in cases() {
        let got = measure(&World::single(), &case, MetricSet::all(case.task), device).unwrap();
        assert_golden(&format!("{} on {device}", case.name), &case, &got);
        let defaults = measure(&World::single(), &case, MetricSet::defaults(case.task), device).unwrap();
        for (metric, value) in defaults.iter() {
            assert_close(&format!("{} on {device}: {metric}", case.name), Some(value), got.get(metric));
        }
    }
}

#[test]
fn a_set_of_metrics_is_what_is_measured() {
    for case in cases() {
        let defaults = MetricSet::defaults(case.task);
        let got = measure(&World::single(), &case, defaults, Device::Cpu).unwrap();
        let names: Vec<_> = got.iter().map(|(metric, _)| metric).collect();
        let want: Vec<_> = EvalMetric::ALL.iter().copied().filter(|metric| defaults.has(*metric)).collect();
        assert_eq!((names, got.tables()), (want, None), "{}", case.name);
        for (metric, value) in got.iter() {
            assert_close(&case.name, Some(value), case.expected["metrics"][metric.name()].as_f64());
        }
    }
}

#[test]
fn weights_that_are_all_0_are_an_error_on_every_rank() {
    for task in [Task::Classification, Task::Regression] {
        let targets = match task {
            Task::Classification => Targets::Labels(vec![0, 1, 0, 1]),
            _ => Targets::Values(vec![0.5; 8]),
        };
        let case = Case {
            name: String::new(),
            task,
            n_outputs: 2,
            rows: rows(vec![0.25; 8], 2, targets, Some(vec![0.0; 4])),
            expected: Value::Null,
        };
        for result in threads::run(2, |world| measure(&world, &case, MetricSet::defaults(task), Device::Cpu))
        {
            let error = result.unwrap_err();
            assert!(matches!(error, TrainError::NoEvalWeight { n_rows: 4, .. }), "{error}");
            assert!(error.is_same_on_all_ranks());
        }
    }
}

#[test]
fn outputs_that_are_nan_make_metrics_nan_or_absent() {
    let outputs = vec![f32::NAN, 0.5, 1.0, 0.0];
    let case = Case {
        name: String::new(),
        task: Task::Classification,
        n_outputs: 2,
        rows: rows(outputs, 2, Targets::Labels(vec![0, 0]), None),
        expected: Value::Null,
    };
    let got = measure(&World::single(), &case, MetricSet::all(Task::Classification), Device::Cpu).unwrap();
    for metric in [EvalMetric::Loss, EvalMetric::LogLoss, EvalMetric::Ece] {
        assert!(got.get(metric).unwrap().is_nan(), "{metric}");
    }
    assert_eq!(got.get(EvalMetric::Accuracy), Some(0.5));
    assert_eq!(got.get(EvalMetric::RocAuc), None);
    assert!(got.not_finite().is_some());
}

/// So many classes that the ranks reduce their counts, rather than gather those of each.
#[test]
fn counts_of_many_classes_are_those_of_one_rank() {
    const N_CLASSES: usize = 150;
    let n_rows = 400;
    let outputs = (0..n_rows * N_CLASSES).map(|i| ((i * 7919) % 1009) as f32 / 1009.0).collect();
    let labels = Targets::Labels((0..n_rows).map(|row| (row * 31 % N_CLASSES) as i64).collect());
    let weights = (0..n_rows).map(|row| [1.0, 0.5, 0.0, 2.0][row % 4]).collect();
    let case = Case {
        name: String::new(),
        task: Task::Classification,
        n_outputs: N_CLASSES,
        rows: rows(outputs, N_CLASSES, labels, Some(weights)),
        expected: Value::Null,
    };
    let all = MetricSet::all(Task::Classification);
    let want = measure(&World::single(), &case, all, Device::Cpu).unwrap();
    assert!(want.tables().is_some_and(|tables| tables.confusion_matrix.is_some()));
    for n_ranks in [2, 3, 8] {
        let got = threads::run(n_ranks, |world| measure(&world, &case, all, Device::Cpu).unwrap());
        assert!(got.iter().all(|metrics| *metrics == got[0]), "{n_ranks} ranks: they differ");
        assert_eq!(got[0].tables(), want.tables(), "{n_ranks} ranks");
        for (metric, value) in want.iter() {
            assert_close(&format!("{metric} on {n_ranks} ranks"), got[0].get(metric), Some(value));
        }
    }
}
