//! Exported models give the same outputs in onnxruntime, and pass the checker of the package `onnx`.

use std::path::Path;
use std::process::Command;

use ddp::config::{Config, Task};
use ddp::data::batch::BatchMut;
use ddp::data::{DeviceNormalizer, KnownFeatures, open_eval};
use ddp::model::file::ModelFile;
use ddp::model::{Mlp, ModelSpec};
use ddp_kernels::{DType, Device, Tensor, ops};
use serde_json::{Value, json};

use super::cases::{Case, cases};
use crate::common::{run_ok, single, write};

/// Outputs of a model: probabilities, or quantities.
fn ours(case: &Case) -> Vec<Vec<f64>> {
    let file = ModelFile::read(&case.run.join("model.safetensors")).unwrap();
    let info = file.info().unwrap();
    let config = Config::from_saved(&info.config, &case.run).unwrap();
    let plan = &info.preprocessor.plan;
    let n_outputs = file.n_outputs(&config.model).unwrap();
    let classes = (config.data.task == Task::Classification).then_some(n_outputs);
    let known = KnownFeatures { names: &plan.columns, vocabularies: &plan.vocabularies, of: "the model" };
    let source = case.rows.to_str().unwrap();
    let rows = info.preprocessor.apply(open_eval(&config.data, source, None, classes, known).unwrap());

    let (n_rows, n_features) = (rows.len(), plan.n_features());
    let mut raw = Tensor::zeros(&[n_rows, n_features], rows.layout().dtype, Device::Cpu).unwrap();
    let targets = &rows.layout().targets;
    let mut targets = Tensor::zeros(&targets.dims(n_rows), targets.dtype(), Device::Cpu).unwrap();
    let all: Vec<usize> = (0..n_rows).collect();
    rows.gather(&all, BatchMut { x: raw.view_mut(), targets: targets.view_mut(), weights: None }).unwrap();
    let mut x = Tensor::zeros(&[n_rows, n_features], DType::F32, Device::Cpu).unwrap();
    let normalizer = info.preprocessor.normalizer.as_ref();
    let normalizer = normalizer.map(|normalizer| DeviceNormalizer::new(normalizer, Device::Cpu).unwrap());
    let view = normalizer.as_ref().map(DeviceNormalizer::view);
    ops::load_rows(raw.view(), None, view, x.view_mut()).unwrap();

    let spec = ModelSpec::new(&config.model, n_features, n_outputs);
    let spec = spec.with_embeddings(file.embeddings().unwrap());
    let mut model = Mlp::new(spec, n_rows, Device::Cpu, config.train.precision).unwrap();
    model.set_weights(file.weights(model.layout()).unwrap().view()).unwrap();
    model.forward(x.view(), None).unwrap();
    let outputs = model.outputs(n_rows).unwrap().to_vec::<f32>().unwrap();
    let outputs = outputs.chunks(n_outputs).map(|row| row.iter().map(|&v| f64::from(v)).collect());
    outputs.map(|row: Vec<f64>| head(config.data.task, &row)).collect()
}

fn head(task: Task, outputs: &[f64]) -> Vec<f64> {
    match task {
        Task::Regression => outputs.to_vec(),
        Task::Multilabel => outputs.iter().map(|v| 1.0 / (1.0 + (-v).exp())).collect(),
        Task::Classification => {
            let max = outputs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let exp: Vec<f64> = outputs.iter().map(|v| (v - max).exp()).collect();
            let sum: f64 = exp.iter().sum();
            exp.iter().map(|v| v / sum).collect()
        }
    }
}

fn entry(name: &str, onnx: &Path, case: &Case) -> Value {
    json!({ "name": name, "model": onnx, "rows": case.rows, "expected": ours(case) })
}

#[test]
fn outputs_are_the_same() {
    const IMPORTS: &str = "import numpy, onnx, onnxruntime";
    let has_packages = Command::new("python3").args(["-c", IMPORTS]).output();
    if !has_packages.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: needs the Python packages onnx, onnxruntime and numpy");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut entries: Vec<Value> = cases().iter().map(|case| entry(case.name, &case.onnx, case)).collect();
    // The same model with its weights in a second file.
    let case = super::cases::case("csv");
    let second = dir.path().join("second.onnx");
    let (run, out) = (case.run.to_str().unwrap(), second.to_str().unwrap());
    run_ok(single(&["checkpoint", "export", run, "--out", out, "--external-data"]));
    entries.push(entry("second file", &second, case));
    let manifest = write(dir.path(), "cases.json", &json!(entries).to_string());

    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut python = Command::new("python3");
    python.arg(folder.join("tests/program/export/compare.py"));
    python.args([&manifest, &folder.parent().unwrap().join("examples")]);
    python.env("PYTHONDONTWRITEBYTECODE", "1");
    let printed = run_ok(python).stdout;
    assert_eq!(printed.lines().count(), entries.len(), "{printed}");
    println!("{printed}");
}
