//! Whole files and `--set` arguments.

use std::path::PathBuf;

use super::*;

#[test]
fn defaults_train_on_digits() {
    let config = Config::load(None, &[]).unwrap();
    assert_eq!(config.name, "digits");
    assert_eq!(config.data.train, "builtin:digits");
    assert_eq!(config.data.eval, EvalSource::Source("builtin:digits".to_owned()));
    assert_eq!(config.data.target, ["label"]);
    assert_eq!(config.model.hidden, [128, 64]);
    assert_eq!(config.model.activation, Activation::Relu);
    assert_eq!(
        config.loss,
        Loss::CrossEntropy { label_smoothing: 0.0, class_weights: None, focal_gamma: 0.0 }
    );
    assert_eq!(config.optimizer.kind, OptimizerKind::AdamW);
    assert_eq!((config.optimizer.lr, config.optimizer.weight_decay), (1e-3, 0.01));
    assert_eq!(config.train.length, Length::Epochs(30));
    assert_eq!(config.train.batch, Batch::PerRank(32));
    assert_eq!(config.comm.bucket_bytes(), 32 << 20);
    assert!(config.data.shuffle && config.comm.overlap && config.model.bias);
    assert_eq!(from_text("").unwrap().name, "run", "the stem of the file");
}

#[test]
fn whole_file_is_read() {
    let config = from_text(
        r#"
        name = "night-1"
        [data]
        train = "a.csv"
        eval_fraction = 0.25
        shuffle = false
        target = ["t0", "t1"]
        task = "regression"
        normalize = "minmax"
        [model]
        hidden = []
        activation = "gelu_tanh"
        dropout = 0.5
        norm = "layer"
        residual = true
        bias = false
        [loss]
        kind = "huber"
        delta = 2
        [optimizer]
        kind = "sgd"
        lr = 1
        betas = [0, 0.5]
        eps = 1e-6
        weight_decay = 0
        momentum = 0.5
        nesterov = true
        [train]
        steps = 1_000
        global_batch_size = 0x40
        grad_accum_steps = 2
        clip_grad_norm = 1.5
        seed = 7
        precision = "f32"
        [comm]
        bucket_mib = 0.5
        overlap = false
        [log]
        every_steps = 1
        "#,
    )
    .unwrap();
    assert_eq!(config.name, "night-1");
    assert_eq!(config.data.eval, EvalSource::Fraction(0.25));
    assert_eq!(config.data.target, ["t0", "t1"]);
    assert_eq!(config.data.normalize, Normalize::MinMax);
    assert!(config.model.hidden.is_empty());
    assert_eq!((config.model.activation, config.model.norm), (Activation::GeluTanh, Norm::Layer));
    assert_eq!(config.loss, Loss::Element(ElementLoss::Huber { delta: 2.0 }));
    assert_eq!((config.optimizer.lr, config.optimizer.betas), (1.0, [0.0, 0.5]));
    assert_eq!(config.train.length, Length::Steps(1000));
    assert_eq!(config.train.batch, Batch::Global(64));
    assert_eq!((config.train.global_rows(3), config.train.seed), (Some(64), 7));
    assert_eq!(config.comm.bucket_bytes(), 1 << 19);
}

#[test]
fn set_lays_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my run.toml");
    fs::write(&path, "[train]\nepochs = 3\nbatch_size = 4\n[optimizer]\nlr = 0.5\n").unwrap();
    assert_refused(
        Config::load(Some(&path), &[]),
        &["my run.toml: `data.train` is missing", "add --data FILE"],
    );
    let sets = [
        "data.train=builtin:digits",
        "train.steps=7",
        "train.global_batch_size = 12",
        "optimizer.lr=1e-2",
        "optimizer.lr=2e-2",
        "model.hidden=[64,32]",
        "model.activation=gelu",
        "data.eval=none",
        "model.bias=false",
        "data.target=\"label\"",
    ];
    let config = Config::load(Some(&path), &sets.map(str::to_owned)).unwrap();
    assert_eq!(config.name, "my-run");
    assert_eq!((config.train.length, config.train.batch), (Length::Steps(7), Batch::Global(12)));
    assert_eq!(config.optimizer.lr, 0.02, "the last one wins");
    assert_eq!((config.model.hidden, config.model.activation), (vec![64, 32], Activation::Gelu));
    assert_eq!((config.data.eval, config.model.bias), (EvalSource::None, false));
    assert_eq!(from_sets(&["name=2024"]).unwrap().name, "2024", "a number can be a text");
    assert_eq!(from_sets(&["data.train=cold/*.csv"]).unwrap().name, "cold", "the folder of a pattern");
    assert_eq!(from_sets(&["data.train=*.csv"]).unwrap().name, "run");
    assert_eq!(from_sets(&["data.train=/tmp/a b.csv", "data.eval=1.5"]).unwrap().data.train, "/tmp/a b.csv");
}

#[test]
fn what_is_no_toml_tells_its_place() {
    assert_refused(from_text("[train]\nepochs = = 3"), &["run.toml: line 2, column ", "not valid TOML"]);
    assert_refused(from_text("[train]\nepochs = 3\nepochs = 4"), &["line 3, column 1", "duplicate key"]);
    assert_refused(from_text("[train]\nepochs = three"), &["line 2", "not valid TOML"]);
    assert_refused(
        from_text("# ä\n[train]\nseed = 99999999999999999999"),
        &["line 3, column 1", "`train.seed` must be a whole number from 0 to", "got 99999999999999999999"],
    );
    for arg in ["train.steps", "", "=3", "train=3"] {
        assert_refused(from_sets(&[arg]), &[&format!("`--set {arg}`: expected SECTION.KEY=VALUE")]);
    }
}

#[test]
fn files_that_are_no_config() {
    let folder = tempfile::tempdir().unwrap();
    let load = |path: PathBuf| Config::load(Some(&path), &[]);
    assert_refused(load(folder.path().join("gone.toml")), &["config file", "gone.toml", "does not exist"]);
    assert_refused(load(folder.path().to_owned()), &["config file", "is a folder"]);

    let path = folder.path().join("latin.toml");
    fs::write(&path, b"# one\nname = \"caf\xe9\"").unwrap();
    assert_refused(load(path), &["latin.toml: line 2, column 12: not UTF-8"]);

    let path = folder.path().join("huge.toml");
    fs::File::create(&path).unwrap().set_len(100 << 20).unwrap();
    assert_refused(load(path), &["huge.toml", "104857600 bytes, expected at most 1048576"]);
    assert_refused(
        load(PathBuf::from("/dev/zero")),
        &["config file `/dev/zero` is a device", "regular file"],
    );
}
