//! Arguments of the command, and the files that it leaves if it fails.

use std::fs;
use std::path::Path;

use super::cases::case;
use super::proto::Model;
use crate::common::{read_weights, run, run_ok, same_bits, single, temp_dir};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn the_format_is_that_of_the_name_unless_it_is_given() {
    let dir = temp_dir();
    let case = case("csv");
    let export = |out: &str, args: &[&str]| {
        let out = dir.path().join(out);
        let all = [&["checkpoint", "export", text(&case.run), "--out", text(&out)], args].concat();
        let printed = run_ok(single(&all)).stdout;
        (out, printed)
    };
    let (out, printed) = export("a.ONNX", &[]);
    assert_eq!(Model::read(&out).graph().input.len(), 1);
    assert!(
        printed.ends_with("a.ONNX\nx [N, 64] float32 -> probabilities [N, 10] float32, label [N] int64\n"),
        "{printed}"
    );
    let (out, _) = export("b", &["--format", "onnx"]);
    assert_eq!(fs::read(&out).unwrap(), fs::read(&case.onnx).unwrap());
    let (out, printed) = export("c.safetensors", &[]);
    assert_eq!(printed.lines().count(), 1);
    let model = case.run.join("model.safetensors");
    assert!(same_bits(&read_weights(&out), &read_weights(&model)));
    // A model file, and a checkpoint of the same weights.
    for (name, from) in [("d.onnx", model), ("e.onnx", case.run.join("checkpoints"))] {
        let out = dir.path().join(name);
        run_ok(single(&["checkpoint", "export", text(&from), "--out", text(&out)]));
        assert_eq!(Model::read(&out).graph, Model::read(&case.onnx).graph, "{name}");
    }
}

#[test]
fn weights_lie_in_a_second_file_on_request() {
    let dir = temp_dir();
    let (out, data) = (dir.path().join("m.onnx"), dir.path().join("m.onnx.data"));
    let run_folder = text(&case("csv").run);
    let args = ["checkpoint", "export", run_folder, "--out", text(&out), "--external-data"];
    let printed = run_ok(single(&args)).stdout;
    assert!(printed.contains("m.onnx and ") && printed.contains("m.onnx.data\n"), "{printed}");
    let model = Model::read(&out);
    let weight = model.graph().constant("layers.0.weight");
    assert!(weight.raw_data.is_empty() && weight.external_data[0].value == "m.onnx.data");
    assert!(fs::metadata(&data).unwrap().len() > 64 * 128 * 4);
    let failed = run(single(&args));
    assert!(failed.stderr.contains("m.onnx` already exists"), "{}", failed.stderr);
    fs::remove_file(&out).unwrap();
    let failed = run(single(&args));
    assert_eq!(failed.status.code(), Some(2));
    assert!(failed.stderr.contains("m.onnx.data` already exists"), "{}", failed.stderr);
    run_ok(single(&[&args[..], &["--overwrite"]].concat()));
    assert_eq!(Model::read(&out), model);

    let out = dir.path().join("m.safetensors");
    let failed = run(single(&["checkpoint", "export", run_folder, "--out", text(&out), "--external-data"]));
    assert_eq!(failed.status.code(), Some(2));
    assert!(failed.stderr.contains("hint: add --format onnx"), "{}", failed.stderr);
    assert!(!out.exists());
}

#[test]
fn a_file_that_is_no_model_leaves_nothing_behind() {
    let dir = temp_dir();
    let out = dir.path().join("m.onnx");
    let export = |from: &Path, weights: &str| {
        let args = ["checkpoint", "export", text(from), "--out", text(&out), "--weights", weights];
        let failed = run(single(&args));
        assert_eq!(failed.status.code(), Some(2), "{}", failed.stderr);
        failed.stderr
    };
    let other = dir.path().join("other.safetensors");
    fs::write(&other, "x").unwrap();
    assert!(export(&other, "auto").contains("can't be used"));
    let model = case("csv").run.join("model.safetensors");
    assert!(export(&model, "ema").contains("model.safetensors` holds no EMA"));
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["other.safetensors"]);
}
