//! An exported checkpoint gives the same outputs in PyTorch.

use std::path::Path;
use std::process::Command;

use ddp::checkpoint::{CheckpointStore, Contents, EMA_STATE, RunState, SaveOptions, Saver, ShardRange};
use ddp::config::Config;
use ddp::config::precision::Precision;
use ddp::model::file::ModelFile;
use ddp::model::{ModelSpec, Network};
use ddp_kernels::{Device, Tensor};

use super::fixture::{layout, options};
use crate::common::{run_ok, single};

/// Absolute and relative tolerance of the outputs, which are sums of a few hundred products in f32.
const TOLERANCE: f32 = 1e-5;

#[test]
fn logits_are_the_same() {
    let has_torch = Command::new("python3").args(["-c", "import torch, safetensors, tomllib"]).output();
    if !has_torch.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: needs torch and safetensors");
        return;
    }
    check("example", &[]);
    check(
        "residual",
        &["model.hidden=[16,16]", "model.norm=layer", "model.residual=true", "model.bias=false"],
    );
    check(
        "resmlp",
        &["model.kind=resmlp", "model.hidden=[16,16,8]", "model.activation=gelu", "model.dropout=0.1"],
    );
    check("swiglu", &["model.kind=swiglu", "model.hidden=[16,16]"]);
    check("periodic_mlp", &["model.kind=periodic_mlp", "model.hidden=[16]", "model.activation=silu"]);
    let block = "{kind=\"residual\",repeat=2,layers=[{kind=\"rms_norm\"},{kind=\"glu\",out_features=12,gate=\"geglu\",bias=false}]}";
    let layers = format!(
        "model.layers=[{{kind=\"linear\",out_features=12,activation=\"tanh\"}},{block},{{kind=\"layer_norm\"}}]"
    );
    check("list", &[&layers, "model.bias=false"]);
    let normed = "model.layers=[{kind=\"linear\",out_features=12},{kind=\"batch_norm\",eps=0.01,momentum=0.3},\
                  {kind=\"activation\",activation=\"relu\"}]";
    check("batch norm", &[normed]);
}

/// Trains the example with these settings, and compares the outputs of its model and of its moving average.
fn check(name: &str, sets: &[&str]) {
    let root = crate::common::ddp_folder().parent().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (out, rows) = (dir.path().join("run"), root.join("examples/data/digits_test.csv"));
    let out_text = out.to_str().unwrap();
    let mut args =
        vec!["train", "examples/csv.toml", "--set", "train.epochs=2", "--quiet", "--out", out_text];
    // The example sets the widths of its layers, which a list replaces.
    sets.iter().for_each(|set| args.extend(["--set", set]));
    let mut train = single(&args);
    train.current_dir(root);
    run_ok(train);

    // A checkpoint of that model after those of the run, with a moving average of different weights.
    let file = ModelFile::read(&out.join("model.safetensors")).unwrap();
    let info = file.info().unwrap();
    let config = Config::from_saved(&info.config, &out).unwrap();
    let n_features = info.preprocessor.plan.feature_names().len();
    let spec = ModelSpec::new(&config.model, n_features, 10);
    let mut model = Network::new(spec, 400, Device::Cpu, Precision::F32).unwrap();
    let weights = file.weights(model.layout()).unwrap().to_vec::<f32>().unwrap();
    let statistics = file.statistics(model.layout()).unwrap();
    model.set_saved_buffers(&statistics).unwrap();
    let ema: Vec<f32> = weights.iter().enumerate().map(|(i, w)| w * 0.75 + 0.02 * (i as f32).sin()).collect();
    let flat_len = weights.len();
    let options = SaveOptions {
        info: info.clone(),
        layout: model.layout().clone(),
        state_names: vec![EMA_STATE.to_owned()],
        shard_ranges: ShardRange::of_ranges(model.layout(), std::slice::from_ref(&(0..flat_len))),
        ..options(&layout(&[3, 5, 2]), 0, 1)
    };
    let store = CheckpointStore::of_run(&out);
    store.prepare().unwrap();
    Saver::new(store, options)
        .save_all(
            &RunState { step: 1_000_000, n_rows: 1, global_rows: 1, ..RunState::default() },
            Contents {
                weights: Some(&weights),
                registered: &statistics,
                state: &[&ema],
                ..Contents::default()
            },
        )
        .unwrap();

    let x = features(&rows, &info.preprocessor.plan.feature_names(), info.preprocessor.normalizer.as_ref());
    for (choice, weights) in [("model", &weights), ("auto", &ema)] {
        let exported = dir.path().join(format!("{choice}.safetensors"));
        let exported_text = exported.to_str().unwrap();
        let checkpoints = out.join("checkpoints");
        let from = checkpoints.to_str().unwrap();
        run_ok(single(&["checkpoint", "export", from, "--weights", choice, "--out", exported_text]));
        let logits = dir.path().join("logits.json");
        let mut python = Command::new("python3");
        python.arg(root.join("examples/load_in_pytorch.py")).args([&exported, &rows, &logits]);
        run_ok(python);
        let theirs: Vec<Vec<f32>> = serde_json::from_slice(&std::fs::read(logits).unwrap()).unwrap();

        model.set_weights(Tensor::from_slice(weights, &[flat_len], Device::Cpu).unwrap().view()).unwrap();
        let n_rows = x.len() / n_features;
        let rows = Tensor::from_slice(&x, &[n_rows, n_features], Device::Cpu).unwrap();
        model.forward(rows.view(), None).unwrap();
        let ours = model.outputs(n_rows).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(theirs.len(), n_rows);
        let mut largest = 0.0f32;
        for (ours, theirs) in ours.iter().zip(theirs.iter().flatten()) {
            let gap = (ours - theirs).abs() / (1.0 + theirs.abs());
            assert!(gap <= TOLERANCE, "{name}, {choice}: {ours} and {theirs}");
            largest = largest.max(gap);
        }
        println!("{name}, {choice}: largest gap of {} logits {largest:e}", ours.len());
    }
}

/// The features of a CSV file, in this order, normalized like the model's rows.
fn features(path: &Path, names: &[String], normalizer: Option<&ddp::data::Normalizer>) -> Vec<f32> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    let header = reader.headers().unwrap().clone();
    let columns: Vec<usize> =
        names.iter().map(|name| header.iter().position(|column| column == name).unwrap()).collect();
    let mut x = Vec::new();
    for record in reader.records() {
        let record = record.unwrap();
        for (i, &column) in columns.iter().enumerate() {
            let value: f32 = record[column].parse().unwrap();
            x.push(normalizer.map_or(value, |n| ((f64::from(value) - n.shift[i]) * n.scale[i]) as f32));
        }
    }
    x
}
