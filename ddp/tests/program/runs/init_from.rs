//! `train --init-from`: a model file, or the model that `eval` finds in a folder.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use crate::common::{Weights, read_weights, refused, run_line, run_line_ok, same_bits, temp_dir, write};

const ROWS: &str = "x,y,label\n1,2,0\n3,4,1\n5,6,0\n7,8,1\n2,9,0\n4,1,1\n";
/// Steps this small change no weights.
const AS_IT_IS: &str = "train rows.csv --hidden 4 --epochs 1 --lr 1e-30 --quiet";

fn weights(folder: &Path, run: &str) -> Weights {
    read_weights(&folder.join(run).join("model.safetensors"))
}

#[test]
fn a_run_folder_stands_for_its_model() {
    let folder = temp_dir();
    let path = folder.path();
    write(path, "rows.csv", ROWS);
    run_line_ok(path, "train rows.csv --hidden 4 --epochs 2 --lr 0.1 --quiet --out first");
    let outcome =
        run_line_ok(path, &format!("{AS_IT_IS} --init-from first --out second").replace(" --quiet", ""));
    assert!(outcome.stderr.contains("initial weights: first/model.safetensors"), "{}", outcome.stderr);
    assert!(same_bits(&weights(path, "second"), &weights(path, "first")));
}

#[test]
fn a_checkpoint_stands_for_the_average_of_its_weights() {
    let folder = temp_dir();
    let path = folder.path();
    write(path, "rows.csv", ROWS);
    let stopped = "train rows.csv --hidden 4 --epochs 9 --lr 0.1 --quiet --set train.ema_decay=0.5 \
                   --set train.stop_after_steps=3 --set train.batch_size=2 --out stopped";
    assert_eq!(run_line(path, stopped).status.code(), Some(85));
    assert!(!path.join("stopped/model.safetensors").exists());
    let loss = |model: &str| {
        let line = format!("eval --checkpoint {model} --data rows.csv --json");
        let report: serde_json::Value = serde_json::from_str(&run_line_ok(path, &line).stdout).unwrap();
        report["eval_loss"].as_f64().unwrap()
    };
    run_line_ok(path, &format!("{AS_IT_IS} --init-from stopped --out from_run"));
    run_line_ok(path, &format!("{AS_IT_IS} --init-from stopped/checkpoints/step-3 --out from_checkpoint"));
    run_line_ok(
        path,
        &format!("{AS_IT_IS} --init-from stopped/checkpoints/step-3/model.safetensors --out from_file"),
    );
    assert_eq!(loss("from_run").to_bits(), loss("stopped").to_bits());
    assert!(same_bits(&weights(path, "from_run"), &weights(path, "from_checkpoint")));
    assert!(
        !same_bits(&weights(path, "from_run"), &weights(path, "from_file")),
        "the weights, not their average"
    );
}

#[test]
fn another_number_of_classes_names_the_flag() {
    let folder = temp_dir();
    let path = folder.path();
    write(path, "rows.csv", ROWS);
    write(path, "three.csv", &format!("{ROWS}8,8,2\n"));
    run_line_ok(path, "train rows.csv --hidden 4 --epochs 1 --quiet --out first");
    let other = "train three.csv --hidden 4 --epochs 1 --init-from first --refit-preprocessing --out second";
    let parts = ["layers.1.weight is [2, 4] in the file, [3, 4] in the model", "--new-head"];
    refused(path, other, &parts);
    let wider = run_line(path, &other.replace("--hidden 4", "--hidden 5"));
    assert!(wider.stderr.contains("hint: compare `model`"), "{}", wider.stderr);
    refused(path, "train rows.csv --init-from absent --out third", &["model file `absent` does not exist"]);
    std::fs::create_dir(path.join("empty")).unwrap();
    refused(
        path,
        "train rows.csv --init-from empty --out third",
        &["`empty/model.safetensors` does not exist"],
    );
}

/// The weights of the last layer belong to the targets of the model in their order.
#[test]
fn outputs_for_other_targets_are_refused() {
    let folder = temp_dir();
    let path = folder.path();
    write(path, "two.csv", "x,y1,y2,kind\n1,2,30,a\n3,4,10,b\n5,6,20,a\n7,8,50,b\n2,9,40,a\n4,1,60,b\n");
    let run = "train two.csv --hidden 4 --epochs 1 --quiet --device cpu --threads 1";
    let targets =
        |names: &str, out: &str| format!("{run} --set data.target=[{names}] --drop kind --out {out}");
    run_line_ok(path, &targets("\"y1\",\"y2\"", "first"));
    let swapped = format!("{} --init-from first", targets("\"y2\",\"y1\"", "second"));
    refused(path, &swapped, &["\"y1\" has another place in it: y1, y2", "--new-head"]);
    run_line_ok(path, &format!("{swapped} --new-head"));
    let classes = format!("{run} --target kind --drop y1,y2 --init-from first --out third");
    refused(path, &classes, &["it is a model for regression, and this run is for classification"]);
    let heads = |names: [&str; 2], out: &str| {
        let head = |name: &str| {
            let task = if name == "kind" { "classification" } else { "regression" };
            format!("{{name=\"{name}\",task=\"{task}\"}}")
        };
        format!(
            "{run} {} --set heads=[{},{}] --out {out}",
            if names.contains(&"kind") { "" } else { "--drop kind" },
            head(names[0]),
            head(names[1])
        )
    };
    run_line_ok(path, &heads(["kind", "y1"], "heads"));
    let swapped = format!("{} --init-from heads", heads(["y1", "kind"], "fourth"));
    refused(path, &swapped, &["its target 1 is for classification, and this run's for regression"]);
    let swapped = heads(["y1", "y2"], "regressions");
    run_line_ok(path, &swapped);
    let swapped = format!("{} --init-from regressions --refit-preprocessing", heads(["y2", "y1"], "fifth"));
    refused(path, &swapped, &["\"y1\" has another place in it: y1, y2"]);
}

/// With labels of its own the model knows them; otherwise the rows decide, and their order must be the model's.
#[test]
fn classes_in_another_place_are_refused() {
    let folder = temp_dir();
    let path = folder.path();
    write(path, "pets.csv", "x,kind\n1,bird\n2,cat\n3,bird\n4,cat\n");
    write(path, "more.csv", "x,kind\n1,cat\n2,dog\n3,cat\n4,dog\n");
    let run = |rows: &str, out: &str| {
        format!("train {rows} --hidden 4 --epochs 1 --quiet --target kind --out {out}")
    };
    run_line_ok(path, &run("pets.csv", "first"));
    let other = format!("{} --init-from first --refit-preprocessing", run("more.csv", "second"));
    refused(path, &other, &["\"cat\" has another place in it: bird, cat", "--new-head"]);
    run_line_ok(path, &format!("{} --init-from first --refit-preprocessing", run("pets.csv", "third")));
    // Heads of one column each are the same outputs.
    write(path, "two.csv", "x,y1,y2\n1,2,30\n3,4,10\n5,6,20\n7,8,50\n");
    let train = "train two.csv --hidden 4 --epochs 1 --quiet";
    run_line_ok(path, &format!("{train} --set data.target=[\"y1\",\"y2\"] --out both"));
    let heads = "heads=[{name=\"y1\",task=\"regression\"},{name=\"y2\",task=\"regression\"}]";
    run_line_ok(path, &format!("{train} --set {heads} --init-from both --refit-preprocessing --out heads"));
}

/// Settings of the model for its rows join those of the new run, whose decisions stay.
#[test]
fn rows_to_evaluate_on_and_the_name_are_those_of_the_new_run() {
    let folder = temp_dir();
    run_line_ok(folder.path(), "builtin:digits --epochs 1 --device cpu --out first");
    let second = "builtin:digits --init-from first --epochs 1 --set train.early_stop_patience=1 --device cpu --out second";
    let outcome = run_line_ok(folder.path(), second);
    assert!(!outcome.stderr.contains("no rows are held out"), "{}", outcome.stderr);
    let config = std::fs::read_to_string(folder.path().join("second/config.toml")).unwrap();
    assert!(config.contains("name = \"second\"") && !config.contains("eval = \"none\""), "{config}");
    run_line_ok(folder.path(), "predict second builtin:digits --device cpu --out digits.csv");
}
