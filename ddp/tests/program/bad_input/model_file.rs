//! Model files that can't be used, neither for training nor for evaluation.

use std::collections::HashMap;
use std::fs;

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use super::harness::{GOOD_CSV, Place};

const TRAIN: [&str; 11] = [
    "train",
    "--set",
    "data.train=rows.csv",
    "--set",
    "train.epochs=1",
    "--set",
    "model.hidden=[3]",
    "--threads",
    "1",
    "-q",
    "--out",
];

/// A place with rows and, in `run`, a 2-3-2 model that was trained on them.
fn trained() -> Place {
    let place = Place::with(&[("rows.csv", GOOD_CSV)]);
    place.run(&[&TRAIN[..], &["run"]].concat()).is_good();
    place
}

/// Zero tensors with these names and shapes.
fn safetensors(tensors: &[(&str, &[usize])], dtype: Dtype) -> Vec<u8> {
    let zeros = [0u8; 1024];
    let views = tensors.iter().map(|(name, dims)| {
        let n_bytes = dims.iter().product::<usize>() * dtype.bitsize() / 8;
        (name.to_string(), TensorView::new(dtype, dims.to_vec(), &zeros[..n_bytes]).unwrap())
    });
    safetensors::serialize(views, None::<HashMap<String, String>>).unwrap()
}

#[test]
fn weights_to_start_from() {
    let place = trained();
    let whole = fs::read(place.file("run/model.safetensors")).unwrap();
    let header_len = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let start = |name, content: &[u8], parts: &[&str]| {
        place.write(name, content);
        place.refuses(&[&TRAIN[..], &["out", "--init-from", name]].concat(), parts);
    };
    let hint = "hint: expected the model.safetensors of a run";
    let cut = "it is shorter or longer than its header says: cut off?";
    start(
        "cut.safetensors",
        &whole[..whole.len() - 1],
        &["model file `cut.safetensors` can't be used", cut, hint],
    );
    start("no-data.safetensors", &whole[..header_len], &["`no-data.safetensors`", cut, hint]);
    start(
        "half-header.safetensors",
        &whole[..header_len / 2],
        &["its header is cut off or no header at all", hint],
    );
    start("empty.safetensors", b"", &["its header is cut off or no header at all"]);
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:07\nsize 12345\n";
    start("pointer.safetensors", pointer, &["it is a Git LFS pointer, not the data: `git lfs pull`", hint]);
    start("text.safetensors", GOOD_CSV.as_bytes(), &["model file `text.safetensors` can't be used", hint]);
    start(
        "huge.safetensors",
        &[&(1u64 << 63).to_le_bytes()[..], &whole[8..]].concat(),
        &["its header is cut off or no header at all"],
    );

    let right: [(&str, &[usize]); 4] = [
        ("layers.0.weight", &[3, 2]),
        ("layers.0.bias", &[3]),
        ("layers.1.weight", &[2, 3]),
        ("layers.1.bias", &[2]),
    ];
    let mut wrong = right;
    wrong[2] = ("layers.1.weight", &[2, 4]);
    start(
        "shape.safetensors",
        &safetensors(&wrong, Dtype::F32),
        &[
            "model file `shape.safetensors` belongs to a different model",
            "layers.1.weight is [2, 4] in the file, [2, 3] in the model",
            "hint: compare",
        ],
    );
    wrong[2] = ("head.weight", &[2, 3]);
    start(
        "names.safetensors",
        &safetensors(&wrong, Dtype::F32),
        &["layers.1.weight [2, 3] is not in the file", "head.weight is not in the model"],
    );
    start(
        "half.safetensors",
        &safetensors(&right, Dtype::F16),
        &["layers.0.weight is F16 in the file, F32 in the model"],
    );
    start("no-folder/../x.safetensors", &whole[..9], &["can't be used"]);
    place.refuses(
        &[&TRAIN[..], &["out", "--init-from", "no.safetensors"]].concat(),
        &["model file `no.safetensors` does not exist"],
    );

    // The valid file is accepted, so the ones above were refused for their faults.
    place.write("right.safetensors", &safetensors(&right, Dtype::F32));
    place.run(&[&TRAIN[..], &["out", "--init-from", "right.safetensors"]].concat()).is_good();
}

#[test]
fn models_to_evaluate() {
    let place = trained();
    let eval = |checkpoint, more: &[&'static str], parts: &[&str]| {
        place.refuses(&[&["eval", "--checkpoint", checkpoint], more].concat(), parts);
    };
    place.write("other.csv", b"x,z,label\n0,1,0\n");
    place.write("label.csv", b"x,y,label\n0,1,2\n");
    place.write("bare.csv", b"x,y\n0,1\n");
    let data = |source| ["--data", source];
    eval("run", &data("other.csv"), &["other.csv", "the model", "\"y\" is missing, \"z\" is extra"]);
    eval(
        "run",
        &data("label.csv"),
        &["label.csv`: line 2, column \"label\": label 2 is out of range, expected 0 to 1"],
    );
    eval("run", &data("bare.csv"), &["bare.csv`: line 1: no target column \"label\""]);
    eval("run", &data("no.csv"), &["data file `no.csv` does not exist"]);
    eval("run", &[], &["the run had no evaluation data", "hint: name the rows to evaluate with --data"]);
    eval("no", &[], &["model file `no` does not exist"]);

    fs::create_dir(place.file("started")).unwrap();
    fs::copy(place.file("run/config.toml"), place.file("started/config.toml")).unwrap();
    eval("started", &[], &["`started/model.safetensors` does not exist", "hint: "]);

    place.write("foreign.safetensors", &safetensors(&[("fc.weight", &[2, 2])], Dtype::F32));
    eval(
        "foreign.safetensors",
        &data("rows.csv"),
        &["`foreign.safetensors` can't be used: it holds no config of a run", "hint: "],
    );
    let whole = fs::read(place.file("run/model.safetensors")).unwrap();
    place.write("cut.safetensors", &whole[..whole.len() / 2]);
    eval("cut.safetensors", &data("rows.csv"), &["model file `cut.safetensors` can't be used"]);

    place.run(&["eval", "--checkpoint", "run", "--data", "rows.csv"]).is_good();
}
