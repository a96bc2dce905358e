//! Names, types and ranges of keys.

use super::super::key::Key;
use super::*;

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
fn what_a_wrong_type_proposes_is_right_for_its_key() {
    let wrong =
        ["\"wrong\"", "0.5", "3", "true", "[]", "[1, 2]", "[\"a\"]", "1979-05-27", "{ a = 1 }", "[[1]]"];
    let mut n_told = 0;
    for key in keys() {
        let Key { name: key, example, .. } = *key;
        let mut sets: Vec<String> = beside(key).iter().map(|set| (*set).to_owned()).collect();
        if key != "data.train" && !sets.iter().any(|set| set.starts_with("data.train=")) {
            sets.push("data.train=builtin:digits".to_owned());
        }
        let (section, name) = key.split_once('.').unwrap_or(("", key));
        let load = |line: &str| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("run.toml");
            let head = if section.is_empty() { String::new() } else { format!("[{section}]\n") };
            fs::write(&path, format!("{head}{line}\n")).unwrap();
            Config::load(Some(&path), &sets)
        };
        let example = format!("{name} = {example}");
        load(&example).unwrap_or_else(|error| panic!("{example}: {error}"));
        for value in wrong {
            let Err(error) = load(&format!("{name} = {value}")) else { continue };
            let message = ddp_kernels::hint::with_hint(&error);
            let hint = message.lines().last().unwrap();
            if let ConfigError::WrongType { example: proposed, .. } = &error {
                assert_eq!(*proposed, example, "{key} = {value}");
                n_told += 1;
            } else if let Some(proposed) = hint.strip_prefix("hint: for example ") {
                load(&format!("{name} = {proposed}"))
                    .unwrap_or_else(|error| panic!("{key}: {hint}: {error}"));
            }
            let typed = format!("{key}={value}");
            let Err(error) = Config::load(None, &[sets.as_slice(), &[typed]].concat()) else { continue };
            if let ConfigError::WrongType { example: proposed, .. } = error {
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
        &["must be one of eval_loss, eval_accuracy, eval_subset_accuracy,", "hint: "],
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
        ("loss.gamma", &["2"]),
        ("loss.delta", &["1"]),
        ("loss.quantile", &["0.5"]),
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
        ("train.eval_every_steps", &["-1"]),
        ("train.eval_metrics", &["[]", "\"f1\"", "[\"all\", \"mae\"]"]),
        ("train.early_stop_metric", &["\"eval_r2\"", "\"loss\"", "\"a.eval_loss\"", "\"a.none\""]),
        ("train.early_stop_patience", &["-1"]),
        ("train.early_stop_min_delta", &["-1", "inf"]),
        ("train.stop_after_steps", &["0"]),
        ("train.stop_after_epochs", &["0"]),
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
        &["one of f32, f32x3, tf32, bf16", "did you mean \"bf16\"?"],
    );
    assert_refused(
        from_sets(&["loss.kind=mse"]),
        &["must be \"cross_entropy\" or \"focal\" or \"ordinal\" for task \"classification\""],
    );
    assert_refused(
        from_sets(&["data.task=regression", "loss.kind=bce"]),
        &[
            "must be \"mse\" or \"huber\" or \"log_cosh\" or \"quantile\" or \"poisson\" for task \"regression\"",
        ],
    );
}
