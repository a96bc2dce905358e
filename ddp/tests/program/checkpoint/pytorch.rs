//! An exported checkpoint gives the same outputs in PyTorch.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use ddp::checkpoint::{CheckpointStore, Contents, EMA_STATE, RunState, SaveOptions, Saver, ShardRange};
use ddp::config::Config;
use ddp::config::precision::Precision;
use ddp::model::file::ModelFile;
use ddp::model::{ModelSpec, Network};
use ddp_kernels::{Device, Tensor};

use super::fixture::{layout, options};
use crate::common::{run_line_ok, run_ok, single, temp_dir, write};

/// Absolute and relative tolerance of the outputs, which are sums of a few hundred products in f32.
const TOLERANCE: f32 = 1e-5;

/// Whether PyTorch is installed; the test is skipped without it.
fn has_torch() -> bool {
    let output = Command::new("python3").args(["-c", "import torch, safetensors, tomllib"]).output();
    let has_torch = output.is_ok_and(|output| output.status.success());
    if !has_torch {
        eprintln!("skipped: needs torch and safetensors");
    }
    has_torch
}

#[test]
fn logits_are_the_same() {
    if !has_torch() {
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
    let n_features = info.preprocessor.features.len();
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
        shard_ranges: ShardRange::from_ranges(model.layout(), std::slice::from_ref(&(0..flat_len))),
        ..options(&layout(&[3, 5, 2]), 0, 1)
    };
    let store = CheckpointStore::for_run(&out);
    store.prepare().unwrap();
    Saver::new(store, options)
        .save_all(
            &RunState { step: 1_000_000, n_rows: 1, global_rows: 1, ..RunState::default() },
            Contents {
                weights: Some(&weights),
                registered: &statistics,
                state: &[vec![&ema[..]]],
                ..Contents::default()
            },
        )
        .unwrap();

    let x = features(&rows, &info.preprocessor.features, info.preprocessor.normalizer.as_ref());
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
        model.forward(&rows).unwrap();
        let ours = model.outputs().unwrap().to_vec::<f32>().unwrap();
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

/// Rows with all that the preprocessing handles: a byte order mark, points and slashes in names, missing numbers, categories and
/// dates. Rows from `known` on also have values of categories that are in no row before.
fn mixed_rows(rows: std::ops::Range<usize>, known: usize) -> String {
    let mut csv = "\u{feff}a/b,m.x,city.name,type,when.at,label\n".to_owned();
    for row in rows {
        let (a, m) = ((row as f64 * 0.7).sin(), (row as f64 * 1.3).cos());
        let m_text = match row % 9 {
            0 => String::new(),
            1 => "NA".to_owned(),
            2 => "-999.0".to_owned(),
            _ => format!("{m:.4}"),
        };
        let city = match row % 7 {
            0 if row >= known => {
                ["paris", "2.5", "2.500", "25e-1", "1e16", "10000000000000000.0", "PT"][row / 7 % 7]
            }
            0 | 1 => "oslo",
            2 => "\"a,b\"",
            3 => "1",
            4 => "1.0",
            5 => "",
            _ => ["Ω", "2.50", "Ω", "1e+16"][row % 4],
        };
        let kind = ["x", "y", "z"][row / 2 % 3];
        let (month, day) = (row % 12 + 1, row % 28 + 1);
        let when = match row % 5 {
            0 => String::new(),
            1 => format!("{day:02}.{month:02}.2024 12:30 UTC"),
            2 => format!("2024-{month:02}-{day:02}T23:30:15.5-02:00"),
            _ => format!("2023-{month:02}-{day:02}"),
        };
        let of_kind = if kind == "x" { 0.5 } else { 0.0 };
        let label = if a + m + of_kind > 0.2 { "high" } else { "low" };
        writeln!(csv, "{a:.5},{m_text},{city},{kind},{when},{label}").unwrap();
    }
    csv
}

#[test]
fn columns_of_every_kind_give_the_same_probabilities() {
    if !has_torch() {
        return;
    }
    let root = crate::common::ddp_folder().parent().unwrap();
    for (name, sets) in [
        ("one-hot, mean", "--set data.missing=mean"),
        ("one-hot, parts", "--set data.missing=zero --set data.datetime=parts --set data.normalize=none"),
        ("embedding, parts", "--set data.missing=mean --set data.datetime=parts --set data.encode=embedding"),
    ] {
        let dir = temp_dir();
        let folder = dir.path();
        write(folder, "train.csv", &mixed_rows(0..400, 400));
        write(folder, "test.csv", &mixed_rows(400..600, 400));
        let data = "--set data.train=train.csv --set data.target=label --set data.categorical=[\"city.name\",\"type\"] \
                    --set data.missing_values=[\"-999\",\"n.v.\"] --set model.hidden=[16]";
        run_line_ok(folder, &format!("train --quiet --out run --set train.epochs=5 {data} {sets}"));
        run_line_ok(folder, "predict --checkpoint run --data test.csv --proba --out out.csv");
        let mut python = Command::new("python3");
        python.arg(root.join("examples/load_in_pytorch.py")).current_dir(folder);
        python.args(["run/model.safetensors", "test.csv", "logits.json"]);
        let printed = run_ok(python).stdout;
        let eval = run_line_ok(folder, "eval --checkpoint run --data test.csv --json").stdout;
        let eval: serde_json::Value = serde_json::from_str(&eval).unwrap();
        let accuracy: f64 = printed.split(' ').nth(1).unwrap().parse().unwrap();
        assert!((accuracy - eval["eval_accuracy"].as_f64().unwrap()).abs() < 1e-5, "{name}: {printed}{eval}");

        let logits = std::fs::read(folder.join("logits.json")).unwrap();
        let logits: Vec<[f32; 2]> = serde_json::from_slice(&logits).unwrap();
        let text = std::fs::read_to_string(folder.join("out.csv")).unwrap();
        assert_eq!((logits.len(), text.lines().count()), (200, 201), "{name}");
        for ([high, low], line) in logits.iter().zip(text.lines().skip(1)) {
            let ours: Vec<f32> = line.split(',').skip(1).map(|cell| cell.parse().unwrap()).collect();
            for (ours, logit) in ours.iter().zip([low - high, high - low]) {
                let theirs = 1.0 / (1.0 + logit.exp());
                // Years near 2000 that nothing normalizes make logits whose last bits differ by 2e-5 from those of f64.
                assert!(
                    (ours - theirs).abs() <= 2.0 * TOLERANCE * ours.max(0.1),
                    "{name}: {ours} and {theirs}"
                );
            }
        }
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
