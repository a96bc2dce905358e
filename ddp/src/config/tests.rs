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

/// What must stand beside a key for it to be read.
fn beside(key: &str) -> &'static [&'static str] {
    match key {
        "data.eval_weight" => &["data.eval=x.npy"],
        "loss.delta" => &["data.task=regression", "loss.kind=huber"],
        "optimizer.nesterov" => &["optimizer.kind=sgd", "optimizer.momentum=0.5"],
        "schedule.final_fraction" => &["schedule.kind=linear"],
        "schedule.decay_steps" | "schedule.decay_fraction" => &["schedule.kind=wsd"],
        "schedule.step_every_steps" | "schedule.step_every_fraction" | "schedule.step_factor" => {
            &["schedule.kind=step"]
        }
        _ => &[],
    }
}

#[test]
fn what_a_wrong_type_proposes_is_right_for_its_key() {
    let wrong =
        ["\"wrong\"", "0.5", "3", "true", "[]", "[1, 2]", "[\"a\"]", "1979-05-27", "{ a = 1 }", "[[1]]"];
    let mut n_told = 0;
    for key in keys::KEYS {
        let sets: Vec<String> = beside(key).iter().map(|set| (*set).to_owned()).collect();
        let (section, name) = key.split_once('.').unwrap_or(("", key));
        let load = |line: &str| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("run.toml");
            let head = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
            fs::write(&path, format!("{head}{line}\n")).unwrap();
            Config::load(Some(&path), &sets)
        };
        let example = format!("{name} = {}", keys::example(key));
        load(&example).unwrap_or_else(|error| panic!("{example}: {error}"));
        for value in wrong {
            let Err(error) = load(&format!("{name} = {value}")) else { continue };
            let message = error.to_string();
            let hint = message.lines().last().unwrap();
            if let Error::WrongType { example: proposed, .. } = &error {
                assert_eq!(*proposed, example, "{key} = {value}");
                n_told += 1;
            } else if let Some(proposed) = hint.strip_prefix("hint: for example ") {
                load(&format!("{name} = {proposed}"))
                    .unwrap_or_else(|error| panic!("{key}: {hint}: {error}"));
            }
            let typed = format!("{key}={value}");
            let Err(error) = Config::load(None, &[sets.as_slice(), &[typed]].concat()) else { continue };
            if let Error::WrongType { example: proposed, .. } = error {
                let set = proposed.strip_prefix("--set ").unwrap().to_owned();
                Config::load(None, &[sets.as_slice(), &[set]].concat()).unwrap();
            }
        }
    }
    assert!(n_told > 300, "{n_told}");
    assert_refused(from_text("[train]\nepochs = \"3\""), &["hint: write `epochs = 30`"]);
    assert_refused(from_text("[comm]\nzero = \"1\""), &["hint: write `zero = 1`"]);
    assert_refused(from_text("[checkpoint]\nevery_minutes = \"5\""), &["hint: write `every_minutes = 30.0`"]);
    assert_refused(
        from_text("[checkpoint]\nkeep_best = \"no\""),
        &["must be one of eval_loss, eval_accuracy, eval_r2, none", "hint: "],
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
        ("train.precision", &["\"f8\"", "\"F32\""]),
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
        ("comm.zero", &["3", "-1"]),
        (
            "optimizer.groups",
            &[
                "3",
                "[3]",
                "[{ lr_scale = 1 }]",
                "[{ match = 3 }]",
                "[{ match = \"a[\" }]",
                "[{ match = \"a\", lr_scale = -1 }]",
                "[{ match = \"a\", weight_decay = nan }]",
                "[{ match = \"a\", lr_scale = \"1\" }]",
                "[{ match = \"a\", lr = 1 }]",
            ],
        ),
        ("schedule.kind", &["\"cosin\"", "\"\""]),
        ("schedule.warmup_steps", &["-1"]),
        ("schedule.warmup_fraction", &["-0.1", "1.1", "nan"]),
        ("schedule.warmup_start", &["-0.1", "1.1"]),
        ("schedule.final_fraction", &["0.1"]),
        ("schedule.decay_steps", &["1"]),
        ("schedule.decay_fraction", &["0.1"]),
        ("schedule.step_every_steps", &["1"]),
        ("schedule.step_every_fraction", &["0.1"]),
        ("schedule.step_factor", &["0.1"]),
        ("train.ema_decay", &["1", "-0.1", "nan"]),
        ("train.loss_scale_init", &["0", "0.5", "3", "2147483648", "inf"]),
        ("train.deterministic", &["\"worl\"", "\"yes\"", "1"]),
        ("train.micro_shards", &["0", "3", "8192"]),
        ("train.early_stop_metric", &["\"eval_r2\"", "\"loss\""]),
        ("train.early_stop_patience", &["-1"]),
        ("train.early_stop_min_delta", &["-1", "inf"]),
        ("train.stop_after_steps", &["0"]),
        ("checkpoint.every_steps", &["-1"]),
        ("checkpoint.every_minutes", &["-1", "nan"]),
        ("checkpoint.every_epochs", &["-1"]),
        ("checkpoint.keep", &["-1"]),
        ("checkpoint.keep_best", &["\"eval_r2\"", "\"no\""]),
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
fn schedules_are_read_with_their_defaults() {
    let schedule = |sets: &[&str]| from_sets(sets).unwrap().schedule;
    assert_eq!(schedule(&[]), ScheduleConfig::CONSTANT);
    assert_eq!(
        schedule(&["schedule.kind=cosine", "schedule.warmup_steps=10", "schedule.final_fraction=0.1"]),
        ScheduleConfig {
            warmup: Warmup { length: Span::Steps(10), start: None },
            shape: ScheduleShape::Cosine { final_fraction: 0.1 },
        }
    );
    assert_eq!(
        schedule(&["schedule.kind=one_cycle"]),
        ScheduleConfig {
            warmup: Warmup { length: Span::Fraction(0.3), start: Some(0.04) },
            shape: ScheduleShape::OneCycle { final_fraction: 4e-6 },
        }
    );
    assert_eq!(
        schedule(&["schedule.kind=wsd", "schedule.decay_steps=7"]).shape,
        ScheduleShape::Wsd { decay: Span::Steps(7), final_fraction: 0.0 }
    );
    assert_eq!(
        schedule(&["schedule.kind=step", "schedule.step_every_steps=5"]).shape,
        ScheduleShape::Step { every: Span::Steps(5), factor: 0.1 }
    );
    assert_refused(
        from_text("[schedule]\nkind = \"linear\"\nstep_factor = 0.1"),
        &["line 3", "`schedule.step_factor` must be absent unless `schedule.kind` is \"step\""],
    );
    assert_refused(from_sets(&["schedule.warmup_steps=3", "schedule.warmup_fraction=0.1"]), &["both given"]);
    assert_refused(
        from_sets(&["schedule.kind=wsd", "schedule.warmup_fraction=0.9"]),
        &["0.9 for the warm-up and 0.2 for the decay"],
    );
}

#[test]
fn groups_are_read_from_either_form_of_toml() {
    let want = [
        ParamGroup { pattern: "layers.0.*".to_owned(), lr_scale: 0.1, weight_decay: Some(0.0) },
        ParamGroup { pattern: "norms.?.bias".to_owned(), lr_scale: 1.0, weight_decay: None },
    ];
    let groups =
        "[{ match = \"layers.0.*\", lr_scale = 0.1, weight_decay = 0 }, { match = \"norms.?.bias\" }]";
    assert_eq!(from_text(&format!("[optimizer]\ngroups = {groups}")).unwrap().optimizer.groups, want);
    assert_eq!(from_sets(&[&format!("optimizer.groups={groups}")]).unwrap().optimizer.groups, want);
    let tables = "[[optimizer.groups]]\nmatch = \"layers.0.*\"\nlr_scale = 0.1\nweight_decay = 0.0\n\
                  [[optimizer.groups]]\nmatch = \"norms.?.bias\"";
    assert_eq!(from_text(tables).unwrap().optimizer.groups, want);
    assert_refused(
        from_sets(&["optimizer.groups=[{match=\"a\",lr_scal=1}]"]),
        &["`lr_scal` is none of these", "did you mean `lr_scale`?"],
    );
    assert_refused(from_sets(&["optimizer.groups=[{match=\"a[\"}]"]), &["\"a[\" is none: "]);
}

#[test]
fn what_stops_a_run_and_what_is_kept() {
    let config = from_sets(&[]).unwrap();
    assert_eq!((config.train.early_stop_patience, config.train.stop_after_steps), (0, None));
    assert_eq!(config.train.deterministic, Determinism::Off);
    let CheckpointConfig { every_steps, every_minutes, every_epochs, keep, keep_best, is_async } =
        config.checkpoint;
    assert_eq!((every_steps, every_minutes, every_epochs, keep), (0, 0.0, 1, 3));
    assert_eq!((keep_best, is_async), (Some(EvalMetric::Loss), true));

    let config = from_text(
        "[train]\ndeterministic = \"world\"\nmicro_shards = 16\n[comm]\nzero = 2\n\
         [checkpoint]\nkeep_best = \"none\"\nasync = false",
    )
    .unwrap();
    assert_eq!((config.train.deterministic, config.train.micro_shards), (Determinism::World, 16));
    assert_eq!((config.comm.zero, config.comm.zero.number()), (ZeroStage::Gradients, 2));
    assert_eq!((config.checkpoint.keep_best, config.checkpoint.is_async), (None, false));
    assert_eq!(from_sets(&["train.deterministic=true"]).unwrap().train.deterministic, Determinism::On);

    assert_refused(
        from_sets(&["train.deterministic=world", "train.grad_accum_steps=2"]),
        &["`train.deterministic` must be", "`train.grad_accum_steps` is 2", "`train.micro_shards`"],
    );
    assert_refused(
        from_sets(&["data.eval=none", "train.early_stop_patience=2"]),
        &["must be 0 without rows to evaluate on"],
    );
    for key in ["train.early_stop_metric", "checkpoint.keep_best"] {
        let regression = ["data.task=regression", "data.train=x.csv", &format!("{key}=eval_r2")];
        assert_refused(
            from_sets(&regression),
            &[
                &format!("`{key}` must be absent without rows to evaluate on"),
                "`data.eval_fraction`, such as 0.1",
            ],
        );
        from_sets(&[&regression[..], &["data.eval_fraction=0.1"]].concat()).unwrap();
        // The default, as a resolved config holds it.
        from_sets(&["data.train=x.csv", &format!("{key}=eval_loss")]).unwrap();
    }
    assert_refused(
        from_sets(&["train.early_stop_metric=eval_r2"]),
        &["must be \"eval_loss\" or \"eval_accuracy\" for task \"classification\""],
    );
    assert_refused(
        from_sets(&["data.task=regression", "checkpoint.keep_best=eval_accuracy"]),
        &["must be \"eval_loss\" or \"eval_r2\" for task \"regression\""],
    );
}

#[test]
fn files_of_weights_may_lie_elsewhere() {
    let differences = |theirs: &str, ours: &str, more: &[&str]| {
        let config = |weight: &str| {
            let weight = format!("data.weight={weight}");
            from_sets(&[&["data.train=x.npy", &weight], more].concat()).unwrap()
        };
        config(ours).differences(&config(theirs)).len()
    };
    for (theirs, ours) in
        [("w.npy", "/elsewhere/w.npy"), ("a/w-ubyte.gz", "w.idx"), ("weights/*", "/b/weights/*")]
    {
        assert_eq!(differences(theirs, ours, &[]), 0, "{theirs} {ours}");
    }
    assert_eq!(differences("w", "v", &["data.format=npy"]), 0);
    // A column is another one under another name.
    for (theirs, ours) in [("w", "v"), ("w", "v.npy"), ("w.npy", "w")] {
        assert_eq!(differences(theirs, ours, &["data.train=x.csv"]), 1, "{theirs} {ours}");
    }
}

#[test]
fn differences_leave_out_what_may_change() {
    let saved = from_sets(&["data.eval_fraction=0.2", "optimizer.groups=[{match=\"a\"}]"]).unwrap();
    let may_change = [
        "name=other",
        "data.train=elsewhere.csv",
        "data.eval_fraction=0.2",
        "optimizer.groups=[{match=\"a\"}]",
        "data.prefetch=9",
        "train.steps=4",
        "train.global_batch_size=64",
        "train.stop_after_steps=3",
        "train.early_stop_patience=3",
        "comm.zero=1",
        "comm.overlap=false",
        "checkpoint.keep=9",
        "log.every_steps=1",
    ];
    assert_eq!(from_sets(&may_change).unwrap().differences(&saved), []);

    let ours = from_sets(&["optimizer.lr=0.5", "schedule.kind=cosine", "data.eval=builtin:digits"]).unwrap();
    let keys: Vec<_> = ours
        .differences(&saved)
        .into_iter()
        .map(|Difference { key, ours, theirs }| format!("{key}: {ours} / {theirs}"))
        .collect();
    assert_eq!(
        keys,
        [
            "optimizer.lr: 0.5 / 0.001",
            "optimizer.groups: [] / [{ match = \"a\", lr_scale = 1.0 }]",
            "schedule.kind: \"cosine\" / \"constant\"",
            "schedule.final_fraction: 0.0 / absent",
            "data.eval_fraction: absent / 0.2",
        ]
    );
    for key in RESUMABLE {
        let known =
            |name: &&str| key.strip_suffix('*').map_or(name == key, |section| name.starts_with(section));
        assert!(keys::KEYS.iter().any(known), "{key}");
    }
}

#[test]
fn names_of_other_programs_lead_to_ours() {
    for (theirs, ours) in [
        ("lr_scheduler", "schedule.kind"),
        ("warmup", "schedule.warmup_steps"),
        ("ema", "train.ema_decay"),
        ("patience", "train.early_stop_patience"),
        ("zero_stage", "comm.zero"),
        ("save_every", "checkpoint.every_steps"),
    ] {
        assert_refused(from_sets(&[&format!("train.{theirs}=1")]), &[&format!("did you mean `{ours}`?")]);
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
        decay_bias_norm: bool,
        groups in proptest::collection::vec(any_group(), 0..3),
        ema_decay in 0.0..0.9999f64,
    ) -> OptimizerConfig {
        OptimizerConfig {
            kind, lr, betas, eps, weight_decay, momentum, nesterov, decay_bias_norm, groups, ema_decay,
        }
    }
}

prop_compose! {
    fn any_group()(
        pattern in "[^\\pC\\[*]{0,8}[*?]?",
        lr_scale in 0.0..1e9f64,
        weight_decay in proptest::option::of(0.0..1e9f64),
    ) -> ParamGroup {
        ParamGroup { pattern, lr_scale, weight_decay }
    }
}

fn any_span(min: u64) -> impl Strategy<Value = Span> {
    prop_oneof![
        (min..1_000_000).prop_map(Span::Steps),
        // Two of them fit into a run.
        (1e-9..0.5f64).prop_map(Span::Fraction),
    ]
}

fn any_schedule() -> impl Strategy<Value = ScheduleConfig> {
    let end = || 0.0..=1.0f64;
    let shape = prop_oneof![
        Just(ScheduleShape::Constant),
        end().prop_map(|final_fraction| ScheduleShape::Linear { final_fraction }),
        end().prop_map(|final_fraction| ScheduleShape::Cosine { final_fraction }),
        (any_span(1), 1e-9..=1.0f64).prop_map(|(every, factor)| ScheduleShape::Step { every, factor }),
        (any_span(0), end()).prop_map(|(decay, final_fraction)| ScheduleShape::Wsd { decay, final_fraction }),
    ];
    let warmup = (any_span(0), proptest::option::of(end()));
    let usual = (warmup, shape).prop_map(|((length, start), shape)| (length, start, shape));
    // This one has a default of its own for where it starts.
    let one_cycle = (any_span(0), end(), end()).prop_map(|(length, start, final_fraction)| {
        (length, Some(start), ScheduleShape::OneCycle { final_fraction })
    });
    prop_oneof![5 => usual, 1 => one_cycle]
        .prop_map(|(length, start, shape)| ScheduleConfig { warmup: Warmup { length, start }, shape })
}

fn any_metric(has_eval: bool, task: Task) -> BoxedStrategy<EvalMetric> {
    let fits = |metric: &EvalMetric| metric.fits(task) && (has_eval || *metric == EvalMetric::Loss);
    let fitting: Vec<_> = EvalMetric::ALL.iter().copied().filter(fits).collect();
    proptest::sample::select(fitting).boxed()
}

fn any_checkpoint(has_eval: bool, task: Task) -> impl Strategy<Value = CheckpointConfig> {
    let often = (0u64..1_000_000, 0.0..1e6f64, 0u64..1_000_000);
    (often, 0usize..1000, proptest::option::of(any_metric(has_eval, task)), any::<bool>()).prop_map(
        |((every_steps, every_minutes, every_epochs), keep, keep_best, is_async)| CheckpointConfig {
            every_steps,
            every_minutes,
            every_epochs,
            keep,
            keep_best,
            is_async,
        },
    )
}

prop_compose! {
    fn any_train(has_eval: bool, task: Task)(
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
        (precision, loss_scale_log2) in (pick(&Precision::ALL), 0..=30i32),
        (deterministic, micro_shards_log2) in
            (pick(&[Determinism::Off, Determinism::On, Determinism::World]), 0..=12u32),
        early_stop_metric in any_metric(has_eval, task),
        early_stop_patience in 0u64..100,
        early_stop_min_delta in 0.0..1e300f64,
        stop_after_steps in proptest::option::of(1u64..1_000_000_000),
    ) -> TrainConfig {
        TrainConfig {
            length,
            batch,
            grad_accum_steps: if deterministic == Determinism::World { 1 } else { grad_accum_steps },
            clip_grad_norm,
            seed,
            precision,
            loss_scale_init: f64::from(loss_scale_log2).exp2(),
            deterministic,
            micro_shards: 1 << micro_shards_log2,
            early_stop_metric,
            early_stop_patience: if has_eval { early_stop_patience } else { 0 },
            early_stop_min_delta,
            stop_after_steps,
        }
    }
}

fn any_config() -> impl Strategy<Value = Config> {
    let by_data = any_data().prop_flat_map(|data| {
        let (has_eval, task) = (data.eval != EvalSource::None, data.task);
        (any_loss(&data), any_train(has_eval, task), any_checkpoint(has_eval, task), Just(data))
    });
    let zero = pick(&[ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients]);
    let comm = (1e-6..1e6f64, any::<bool>(), pick(CommDtype::ALL), zero)
        .prop_map(|(bucket_mib, overlap, dtype, zero)| CommConfig { bucket_mib, overlap, dtype, zero });
    let log = (1usize..1_000_000).prop_map(|every_steps| LogConfig { every_steps });
    let name = "[a-zA-Z0-9_-]{1,40}";
    (name, by_data, any_model(), any_optimizer(), any_schedule(), comm, log).prop_map(
        |(name, (loss, train, checkpoint, data), model, optimizer, schedule, comm, log)| Config {
            name,
            data,
            model,
            loss,
            optimizer,
            schedule,
            train,
            comm,
            checkpoint,
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
