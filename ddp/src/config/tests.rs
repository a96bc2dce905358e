//! Every bad key says where it stands and what would be right; every good config survives writing.

use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;

use super::*;
use crate::error::Error;

fn from_text(text: &str) -> Result<Config> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    fs::write(&path, text).unwrap();
    Config::load(Some(&path), &[])
}

fn from_sets(sets: &[&str]) -> Result<Config> {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    Config::load(None, &sets)
}

/// The message holds each part, ends in a hint, and stands for exit status 2.
#[track_caller]
fn assert_refused(result: Result<Config>, parts: &[&str]) {
    let error = result.expect_err("refused");
    let message = error.to_string();
    assert_eq!(error.exit_code(), 2, "{message}");
    for part in parts {
        assert!(message.contains(part), "no {part:?} in: {message}");
    }
    let last = message.lines().last().unwrap_or_default();
    assert!(last.starts_with("hint: ") && last.len() > "hint: ".len(), "{message}");
}

#[test]
fn errors_stay_small() {
    // clippy::result_large_err starts at 128 bytes.
    assert!(size_of::<Error>() <= 120, "{}", size_of::<Error>());
}

#[test]
fn defaults_train_on_digits() {
    let config = Config::load(None, &[]).unwrap();
    assert_eq!(config.name, "digits");
    assert_eq!(config.data.train, "builtin:digits");
    assert_eq!(config.data.eval, EvalSource::Source("builtin:digits".to_owned()));
    assert_eq!(config.data.target, ["label"]);
    assert_eq!(config.model.hidden, [128, 64]);
    assert_eq!(config.model.activation, Activation::Relu);
    assert_eq!(config.loss, Loss::CrossEntropy { label_smoothing: 0.0, class_weights: None });
    assert_eq!(config.optimizer.kind, OptimizerKind::AdamW);
    assert_eq!((config.optimizer.lr, config.optimizer.weight_decay), (1e-3, 0.01));
    assert_eq!(config.train.length, Length::Epochs(30));
    assert_eq!(config.train.batch, Batch::PerRank(32));
    assert_eq!(config.comm.bucket_bytes(), 32 << 20);
    assert!(config.data.shuffle && config.comm.overlap && config.model.bias);
    assert_eq!(from_text("").unwrap().name, "run", "the stem of the file");
}

#[test]
fn weight_decay_defaults_as_in_pytorch() {
    let decay = |sets: &[&str]| from_sets(sets).unwrap().optimizer.weight_decay;
    assert_eq!(
        ["adamw", "adam", "sgd"].map(|kind| decay(&[&format!("optimizer.kind={kind}")])),
        [0.01, 0.0, 0.0]
    );
    assert_eq!(decay(&["optimizer.kind=sgd", "optimizer.weight_decay=0.1"]), 0.1);
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
    assert_eq!(config.loss, Loss::Huber { delta: 2.0 });
    assert_eq!((config.optimizer.lr, config.optimizer.betas), (1.0, [0.0, 0.5]));
    assert_eq!(config.train.length, Length::Steps(1000));
    assert_eq!(config.train.batch, Batch::Global(64));
    assert_eq!((config.train.global_rows(3), config.train.seed), (Some(64), 7));
    assert_eq!(config.comm.bucket_bytes(), 1 << 19);
}

#[test]
fn loss_follows_the_task() {
    let loss =
        |task: &str| from_sets(&["data.train=a.csv", &format!("data.task={task}")]).unwrap().loss.name();
    assert_eq!(
        [loss("classification"), loss("regression"), loss("multilabel")],
        ["cross_entropy", "mse", "bce"]
    );
}

#[test]
fn rows_of_a_step() {
    let train = from_sets(&["train.batch_size=8", "train.grad_accum_steps=3"]).unwrap().train;
    assert_eq!(train.global_rows(4), Some(96));
    assert_eq!(train.global_rows(usize::MAX), None);
}

#[test]
fn set_lays_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("my run.toml");
    fs::write(&path, "[train]\nepochs = 3\nbatch_size = 4\n[optimizer]\nlr = 0.5\n").unwrap();
    let sets = [
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
    assert_eq!(from_sets(&["data.train=/tmp/a b.csv", "data.eval=1.5"]).unwrap().data.train, "/tmp/a b.csv");
}

#[test]
fn unknown_keys_get_the_nearest_known_one() {
    assert_refused(
        from_text("[optimizer]\nkind = \"sgd\"\n  learning = 1\nlrr = 0.1\n"),
        &[
            "run.toml: line 3, column 3: unknown key `optimizer.learning`",
            "the keys of [optimizer] are kind, lr",
        ],
    );
    assert_refused(
        from_text("[train]\nepoch = 3"),
        &["line 2, column 1", "`train.epoch`", "did you mean `train.epochs`?"],
    );
    assert_refused(from_text("[train]\nlr = 3"), &["did you mean `optimizer.lr`?"]);
    assert_refused(from_text("lr = 3"), &["unknown key `lr`", "did you mean `optimizer.lr`?"]);
    assert_refused(
        from_text("[optimiser]\nlr = 3"),
        &["line 1, column 2", "unknown key `optimiser`", "[optimizer]"],
    );
    assert_refused(from_text("[zzzzzzz]"), &["unknown key `zzzzzzz`", "the sections are data, model, loss"]);
    assert_refused(from_text("[model.hidden.x]\ny = 1"), &["`model.hidden` must be", "list"]);
    assert_refused(from_text("train.stepz = 1"), &["line 1, column 7", "did you mean `train.steps`?"]);
    assert_refused(
        from_sets(&["model.hiden=[1]"]),
        &["`--set model.hiden=[1]`: unknown key", "did you mean `model.hidden`?"],
    );
}

#[test]
fn wrong_types_tell_the_right_one() {
    assert_refused(
        from_text("[optimizer]\nlr = \"big\""),
        &[
            "run.toml: line 2, column 1: `optimizer.lr` must be a number, got the text \"big\"",
            "write `lr = 0.001`",
        ],
    );
    assert_refused(
        from_text("[train]\nepochs = 1.5"),
        &["`train.epochs` must be a whole number, got the number 1.5"],
    );
    assert_refused(from_text("[data]\nshuffle = \"yes\""), &["`data.shuffle` must be true or false"]);
    assert_refused(
        from_text("[model]\nhidden = 64"),
        &["must be a list of whole numbers", "hidden = [128, 64]"],
    );
    assert_refused(from_text("[model]\nhidden = [64, \"x\"]"), &["must be a list of whole numbers"]);
    assert_refused(from_text("[data]\ntarget = [1]"), &["must be a text or a list of texts"]);
    assert_refused(from_text("[data]\ntrain = 5"), &["`data.train` must be a text, got the number 5"]);
    assert_refused(from_text("data = 5"), &["line 1, column 1", "`data` must be a section", "[data]"]);
    assert_refused(from_text("[[data]]\ntrain = \"x\""), &["`data` must be a section"]);
    assert_refused(from_text("[optimizer]\nbetas = 0.9"), &["must be a list of numbers", "[0.9, 0.999]"]);
    assert_refused(
        from_sets(&["model.hidden=[64,"]),
        &["`--set model.hidden=[64,`", "got the text", "--set model.hidden=[128,64]"],
    );
}

#[test]
fn values_out_of_range_are_refused() {
    for (key, values) in [
        ("optimizer.lr", &["0", "-1", "nan", "inf", "1e-60", "1e60"][..]),
        ("optimizer.betas", &["[0.9]", "[0.9, 1.0]", "[-0.1, 0.9]", "[nan, 0.9]", "[0.1, 0.2, 0.3]"]),
        ("optimizer.eps", &["0", "-1e-8", "inf"]),
        ("optimizer.weight_decay", &["-0.1", "nan"]),
        ("optimizer.momentum", &["1.0", "-0.1"]),
        ("train.epochs", &["0", "-1", "9000000000000"]),
        ("train.steps", &["0", "-5"]),
        ("train.batch_size", &["0", "-1", "9223372036854775807"]),
        ("train.global_batch_size", &["0"]),
        ("train.grad_accum_steps", &["0"]),
        ("train.clip_grad_norm", &["-1", "nan"]),
        ("train.seed", &["-1"]),
        ("train.precision", &["\"f16\"", "\"F32\""]),
        ("model.dropout", &["1", "-0.5", "nan"]),
        ("model.hidden", &["[0]", "[64, -1]", "[99999999999]"]),
        ("model.activation", &["\"none\"", "\"rellu\"", "\"\""]),
        ("model.norm", &["\"batch\""]),
        ("data.eval_fraction", &["0", "1", "1.5", "-0.1", "nan"]),
        ("data.classes", &["0", "1", "-3"]),
        ("data.task", &["\"clustering\""]),
        ("data.normalize", &["\"std\""]),
        ("data.train", &["\"\"", "\" \""]),
        ("data.target", &["\"\"", "[]", "[\"a\", \"b\"]", "[\"a\", \"a\"]"]),
        ("loss.kind", &["\"l1\"", "\"mse\"", "\"bce\"", "\"huber\""]),
        ("loss.label_smoothing", &["1", "-0.1"]),
        ("loss.class_weights", &["[]", "[1, 0]", "[1, -1]", "[1, nan]", "[1, 1e-60]"]),
        ("loss.delta", &["1"]),
        ("comm.bucket_mib", &["0", "-1", "inf"]),
        ("log.every_steps", &["0"]),
        ("name", &["\"\"", "\"a/b\"", "\"..\"", "\"a\\nb\""]),
    ] {
        let (section, name) = key.split_once('.').unwrap_or(("", key));
        for value in values {
            let head = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
            let line = head.lines().count() + 1;
            assert_refused(
                from_text(&format!("{head}{name} = {value}\n")),
                &[&format!("run.toml: line {line}, column 1: `{key}` must be "), ", got "],
            );
            assert_refused(
                from_sets(&[&format!("{key}={value}")]),
                &[&format!("`--set {key}={value}`: `{key}` must be ")],
            );
        }
    }
}

#[test]
fn names_get_the_nearest_known_one() {
    assert_refused(
        from_text("[model]\nactivation = \"rellu\""),
        &["one of relu, gelu, gelu_tanh, silu, tanh, sigmoid", "did you mean \"relu\"?"],
    );
    assert_refused(
        from_sets(&["train.precision=bf61"]),
        &["one of f32, tf32, bf16", "did you mean \"bf16\"?"],
    );
    assert_refused(from_sets(&["loss.kind=mse"]), &["must be \"cross_entropy\" for task \"classification\""]);
    assert_refused(
        from_sets(&["data.task=regression", "loss.kind=bce"]),
        &["must be \"mse\" or \"huber\" for task \"regression\""],
    );
}

#[test]
fn keys_that_do_not_fit_together() {
    assert_refused(
        from_text("[train]\nepochs = 3\nsteps = 5"),
        &["line 3, column 1", "`train.epochs` and `train.steps` are both given"],
    );
    assert_refused(
        from_text("[train]\nglobal_batch_size = 3\nbatch_size = 5"),
        &["line 3", "`train.batch_size`"],
    );
    assert_refused(from_text("[data]\neval = \"x.csv\"\neval_fraction = 0.2"), &["line 3", "`data.eval`"]);
    for eval in ["eval = \"none\"", "eval_fraction = 0.2", "eval = \"builtin:digits\""] {
        assert_refused(
            from_text(&format!("[data]\neval_weight = \"w.npy\"\n{eval}")),
            &["line 2", "absent without files in `data.eval`"],
        );
    }
    assert_refused(
        from_sets(&["train.steps=3", "train.epochs=3"]),
        &["`--set train.epochs=3`: ", "both given"],
    );
    assert_refused(
        from_sets(&["train.global_batch_size=3", "train.grad_accum_steps=4"]),
        &["`train.global_batch_size` must be at least `train.grad_accum_steps`, 4"],
    );
    let regression = "data.task=regression";
    assert_refused(
        from_sets(&[regression, "data.classes=3"]),
        &["`data.classes` must be absent for task \"regression\""],
    );
    assert_refused(
        from_sets(&[regression, "loss.class_weights=[1,2]"]),
        &["absent unless the loss is \"cross_entropy\""],
    );
    assert_refused(
        from_sets(&[regression, "loss.label_smoothing=0.1"]),
        &["absent unless the loss is \"cross_entropy\""],
    );
    assert_refused(
        from_sets(&["data.classes=3", "loss.class_weights=[1,2]"]),
        &["`loss.class_weights` must be 3 numbers, as many as `data.classes`"],
    );
    assert_refused(
        from_sets(&["optimizer.kind=sgd", "optimizer.momentum=0", "optimizer.nesterov=true"]),
        &["`optimizer.nesterov` must be false where `optimizer.momentum` is 0"],
    );
}

#[test]
fn what_is_no_toml_tells_its_place() {
    assert_refused(from_text("[train]\nepochs = = 3"), &["run.toml: line 2, column ", "not valid TOML"]);
    assert_refused(from_text("[train]\nepochs = 3\nepochs = 4"), &["line 3, column 1", "duplicate key"]);
    assert_refused(from_text("[train]\nepochs = three"), &["line 2", "not valid TOML"]);
    assert_refused(
        from_text("# ä\n[train]\nseed = 99999999999999999999"),
        &["line 3, column 8", "`train.seed`"],
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
    assert_refused(load(PathBuf::from("/dev/zero")), &["/dev/zero", "expected at most 1048576"]);
}

#[test]
fn entries_cover_the_keys_in_order() {
    let config = Config::load(None, &[]).unwrap();
    let entries = config.agreement_entries();
    let places: Vec<_> =
        entries.iter().map(|(key, _)| keys::KEYS.iter().position(|known| known == key).unwrap()).collect();
    assert!(places.is_sorted());
    assert!(entries.contains(&("optimizer.betas".to_owned(), "[0.9, 0.999]".to_owned())));
    assert!(config.to_toml().starts_with("name = \"digits\"\n\n[data]\ntrain = \"builtin:digits\"\n"));
}

fn pick<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    proptest::sample::select(all)
}

fn any_data() -> impl Strategy<Value = DataConfig> {
    let eval = prop_oneof![
        Just(EvalSource::None),
        "\\PC{0,5}[a-z]/".prop_map(EvalSource::Source),
        (1e-9..0.999f64).prop_map(EvalSource::Fraction),
    ];
    let target = proptest::collection::hash_set("[^\\pC]{0,8}z", 1..4);
    let classes = proptest::option::of(2usize..100);
    let names = (pick(Task::ALL), pick(Normalize::ALL));
    let optional = || proptest::option::of("[^\\pC]{0,8}o");
    let files = (optional(), optional(), pick(DataFormat::ALL), "[a-z]{1,9}k", "[a-z]{1,9}l");
    let columns = (
        optional(),
        proptest::collection::vec("[^\\pC]{0,8}d", 0..3),
        proptest::collection::vec("[^\\pC]{0,8}c", 0..3),
        (pick(Encode::ALL), proptest::option::of(1usize..99), pick(Missing::ALL)),
    );
    let loading = (
        pick(ShuffleMode::ALL),
        pick(Placement::ALL),
        (1usize..100, 0usize..100, 1usize..1000, 2000usize..10_000),
    );
    let given = ("[^\\pC]{0,12}x", eval, any::<bool>(), target, classes, names);
    (given, files, columns, loading).prop_map(
        |(given, files, (weight, drop, categorical, codes), (shuffle_mode, placement, sizes))| {
            let (train, eval, shuffle, target, classes, (task, normalize)) = given;
            let (labels, eval_labels, format, features_key, labels_key) = files;
            let (prefetch, loader_threads, shuffle_window_mib, loader_memory_mib) = sizes;
            let (encode, embedding_dim, missing) = codes;
            let is_classes = task == Task::Classification;
            let is_files = matches!(&eval, EvalSource::Source(source) if !source.starts_with("builtin:"));
            let n_targets = if is_classes { 1 } else { target.len() };
            DataConfig {
                train,
                labels,
                eval,
                eval_weight: eval_labels.clone().filter(|_| is_files),
                eval_labels,
                format,
                features_key,
                labels_key,
                target: target.into_iter().take(n_targets).collect(),
                task,
                classes: classes.filter(|_| is_classes),
                weight,
                drop,
                categorical,
                encode,
                embedding_dim,
                missing,
                normalize,
                shuffle,
                shuffle_mode,
                shuffle_window_mib,
                placement,
                prefetch,
                loader_threads,
                loader_memory_mib,
            }
        },
    )
}

fn any_loss(data: &DataConfig) -> BoxedStrategy<Loss> {
    let n_classes = data.classes.unwrap_or(5);
    match data.task {
        Task::Classification => {
            let weights = proptest::collection::vec(1e-30f32..1e30, n_classes);
            (0.0..0.999f64, proptest::option::of(weights))
                .prop_map(|(label_smoothing, class_weights)| Loss::CrossEntropy {
                    label_smoothing,
                    class_weights,
                })
                .boxed()
        }
        Task::Multilabel => Just(Loss::Bce).boxed(),
        Task::Regression => {
            let huber = (1e-300..1e300f64).prop_map(|delta| Loss::Huber { delta });
            prop_oneof![Just(Loss::Mse), huber].boxed()
        }
    }
}

prop_compose! {
    fn any_model()(
        hidden in proptest::collection::vec(1usize..1 << 24, 0..5),
        activation in pick(&Activation::ALL),
        dropout in 0.0..0.999f64,
        norm in pick(Norm::ALL),
        residual: bool,
        bias: bool,
    ) -> ModelConfig {
        ModelConfig { hidden, activation, dropout, norm, residual, bias }
    }
}

prop_compose! {
    fn any_optimizer()(
        kind in pick(OptimizerKind::ALL),
        lr in 1e-30..1e30f64,
        betas in [0.0..0.999f64, 0.0..0.9999f64],
        eps in 1e-30..1.0f64,
        weight_decay in 0.0..1e300f64,
        momentum in 0.1..0.999f64,
        nesterov: bool,
    ) -> OptimizerConfig {
        OptimizerConfig { kind, lr, betas, eps, weight_decay, momentum, nesterov }
    }
}

prop_compose! {
    fn any_train()(
        length in prop_oneof![
            (1usize..1_000_000).prop_map(Length::Epochs),
            (1usize..1_000_000_000).prop_map(Length::Steps),
        ],
        batch in prop_oneof![
            (1usize..1 << 31).prop_map(Batch::PerRank),
            (1000usize..1 << 31).prop_map(Batch::Global),
        ],
        grad_accum_steps in 1usize..1000,
        clip_grad_norm in 0.0..1e300f64,
        seed in 0..=i64::MAX as u64,
        precision in pick(&Precision::ALL),
    ) -> TrainConfig {
        TrainConfig { length, batch, grad_accum_steps, clip_grad_norm, seed, precision }
    }
}

fn any_config() -> impl Strategy<Value = Config> {
    let data_and_loss = any_data().prop_flat_map(|data| (any_loss(&data), Just(data)));
    let comm = (1e-6..1e6f64, any::<bool>(), pick(CommDtype::ALL))
        .prop_map(|(bucket_mib, overlap, dtype)| CommConfig { bucket_mib, overlap, dtype });
    let log = (1usize..1_000_000).prop_map(|every_steps| LogConfig { every_steps });
    let name = "[a-zA-Z0-9_-]{1,40}";
    (name, data_and_loss, any_model(), any_optimizer(), any_train(), comm, log).prop_map(
        |(name, (loss, data), model, optimizer, train, comm, log)| Config {
            name,
            data,
            model,
            loss,
            optimizer,
            train,
            comm,
            log,
        },
    )
}

proptest! {
    #[test]
    fn written_configs_read_back(config in any_config()) {
        let fail = |error: Error| TestCaseError::fail(format!("{error}\n{}", config.to_toml()));
        prop_assert_eq!(&from_text(&config.to_toml()).map_err(fail)?, &config);

        // The ranks' comparison says the same as the file, but for the name: as `--set` arguments it gives the config.
        let name = ("name".to_owned(), toml::Value::from(config.name.as_str()).to_string());
        let entries = config.agreement_entries().into_iter().chain([name]);
        let sets: Vec<_> = entries.map(|(key, value)| format!("{key}={value}")).collect();
        prop_assert_eq!(&Config::load(None, &sets).map_err(fail)?, &config);
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,40}", key in pick(keys::KEYS), value in "\\PC{0,12}") {
        let _ = from_text(&text);
        let _ = from_sets(&[&text, &format!("{key}={value}")]);
    }
}
