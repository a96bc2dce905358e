//! Defaults and checks of the sections.

use super::*;

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
    assert_eq!(
        schedule(&["schedule.kind=exponential", "schedule.step_factor=0.5"]).shape,
        ScheduleShape::Exponential { every: Span::Fraction(1.0 / 3.0), factor: 0.5 }
    );
    assert_eq!(
        schedule(&[
            "schedule.kind=cosine_restarts",
            "schedule.step_every_steps=5",
            "schedule.restart_growth=2"
        ])
        .shape,
        ScheduleShape::CosineRestarts { every: Span::Steps(5), growth: 2, final_fraction: 0.0 }
    );
    assert_eq!(
        schedule(&["schedule.kind=plateau", "schedule.plateau_patience=3"]).shape,
        ScheduleShape::Plateau { patience: 3, factor: 0.1, final_fraction: 0.0 }
    );
    assert_refused(
        from_sets(&["schedule.kind=plateau", "data.eval=none"]),
        &[
            "`schedule.kind` must be other than \"plateau\" where `data.eval` is \"none\"",
            "hint: there are no rows to evaluate on: give rows in `data.eval`, or take a fraction",
        ],
    );
    assert_refused(
        from_text("[[optimizer.groups]]\nmatch = \"*\"\nschedule = { kind = \"plateau\" }"),
        &["another one than \"plateau\" in a group", "lr_scale"],
    );
    assert_refused(
        from_text("[schedule]\nkind = \"linear\"\nstep_factor = 0.1"),
        &[
            "line 3",
            "`schedule.step_factor` must be absent where `schedule.kind` is \"linear\"",
            "or set `schedule.kind` to \"step\", \"exponential\" or \"plateau\"",
        ],
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
        ParamGroup {
            pattern: "layers.0.*".to_owned(),
            lr_scale: 0.1,
            weight_decay: Some(0.0),
            schedule: None,
        },
        ParamGroup { pattern: "norms.?.bias".to_owned(), lr_scale: 1.0, weight_decay: None, schedule: None },
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
        &["groups with the keys `match`, ", "got the key `lr_scal` in group 1", "did you mean `lr_scale`?"],
    );
    assert_refused(from_sets(&["optimizer.groups=[{match=\"a[\"}]"]), &["\"a[\" is none: "]);
}

#[test]
fn what_stops_a_run_and_what_is_kept() {
    let config = from_sets(&[]).unwrap();
    assert_eq!((config.train.early_stop_patience, config.train.stop_after_steps), (0, None));
    assert_eq!(config.train.deterministic, Determinism::Off);
    let CheckpointConfig { every_steps, every_minutes, every_epochs, keep, keep_best, is_async, .. } =
        config.checkpoint;
    assert_eq!((every_steps, every_minutes, every_epochs, keep), (0, 5.0, 0, 3));
    assert_eq!((keep_best, is_async), (Some(EvalMetric::Loss.into()), true));

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
        &["must be 0 where `data.eval` is \"none\""],
    );
    for key in ["train.early_stop_metric", "checkpoint.keep_best"] {
        let regression = ["data.task=regression", "data.train=x.csv", &format!("{key}=eval_r2")];
        // The training source may bring rows to evaluate on.
        from_sets(&regression).unwrap();
        assert_refused(
            from_sets(&[&regression[..], &["data.eval=none"]].concat()),
            &[
                &format!("`{key}` must be \"eval_loss\""),
                "where `data.eval` is \"none\"",
                "`data.eval_fraction`, such as 0.1",
            ],
        );
        from_sets(&[&regression[..], &["data.eval_fraction=0.1"]].concat()).unwrap();
        // The default, which a resolved config holds.
        from_sets(&["data.train=x.csv", &format!("{key}=eval_loss")]).unwrap();
    }
    assert_refused(
        from_sets(&["train.early_stop_metric=eval_r2"]),
        &["must be a metric of task \"classification\": eval_loss, eval_accuracy, eval_balanced_accuracy,"],
    );
    assert_refused(
        from_sets(&["data.task=regression", "checkpoint.keep_best=eval_accuracy"]),
        &["must be a metric of task \"regression\": eval_loss, eval_mae, eval_rmse, eval_r2, "],
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
        for key in ["eval_labels", "eval_weight"] {
            assert_refused(
                from_text(&format!("[data]\n{key} = \"w.npy\"\n{eval}")),
                &["line 2", "absent without files in `data.eval`"],
            );
        }
        // Models of earlier versions stay readable.
        let saved = format!("[data]\ntrain = \"x.npy\"\neval_labels = \"y.npy\"\n{eval}");
        assert!(Config::from_saved(&saved, Path::new("model.safetensors")).is_ok());
    }
    assert_refused(
        from_sets(&["data.train=x.npy", "data.eval_labels=y.npy"]),
        &["`data.eval_labels` must be absent without files in `data.eval`", "`data.eval`"],
    );
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
        &["`data.classes` must be absent where `data.task` is \"regression\""],
    );
    assert_refused(
        from_sets(&[regression, "loss.class_weights=[1,2]"]),
        &["`loss.class_weights` must be absent where `data.task` is \"regression\""],
    );
    assert_refused(
        from_sets(&["data.train=a.csv", "loss.kind=huber", "loss.label_smoothing=0.1"]),
        &["where `loss.kind` is \"huber\"", "or set `loss.kind` to \"cross_entropy\" or \"focal\""],
    );
    assert_refused(
        from_sets(&[regression, "loss.gamma=1"]),
        &["`loss.gamma` must be absent where `loss.kind` is \"mse\" by default"],
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
fn a_split_names_one_column_and_what_it_needs() {
    let refused = |sets: &[&str], parts: &[&str]| {
        let all = [&["data.train=a.csv"], sets].concat();
        assert_refused(from_sets(&all), parts);
    };
    let example = "in a config, --set 'data.split={group=\"patient\"}' on the command line";
    refused(&["data.split=patient"], &["a table with one of `column`, `group` and `time`", example]);
    refused(&["data.split={eval=\"x\"}"], &["one of `column`, `group` and `time`"]);
    refused(&["data.split={group=\"a\",time=\"b\"}"], &["one of `column`, `group` and `time`"]);
    refused(
        &["data.split.group=a"],
        &["unknown key `data.split.group`", "did you mean `data.split`? for example data.split = { column"],
    );
    refused(&["data.split={groups=\"a\"}"], &["did you mean `group`?"]);
    refused(&["data.split={group=3}"], &["whose `group` is the name of a column"]);
    refused(&["data.split={column=\"a\",eval=1}"], &["`eval` is a text", "eval = \"1\""]);
    refused(&["data.split={column=\"a\",eval=\"x\",train=[\"x\"]}"], &["\"x\" is in both"]);
    let fraction = "data.eval_fraction=0.2";
    refused(&["data.split={group=\"a\"}"], &["must be given with `data.eval_fraction`", "0.2"]);
    refused(&["data.split={time=\"a\",eval=\"b\"}", fraction], &["without `eval` and `train`"]);
    refused(&["data.split={column=\"a\"}", fraction], &["`data.eval_fraction`", "absent where `data.split`"]);
    let by_group = "data.split={group=\"a\"}";
    refused(&[by_group, "data.eval=b.csv"], &["`data.eval` and `data.split` are both given"]);
    refused(&[by_group, fraction, "data.stratify=true"], &["`data.stratify`", "next to `data.split`"]);
    for (key, other) in [("target", "a"), ("weight", "a"), ("categorical", "[\"a\"]")] {
        let set = format!("data.{key}={other}");
        refused(&[by_group, fraction, &set], &["a column without another use", &format!("`data.{key}`")]);
    }
    let config = from_sets(&["data.train=a.csv", by_group, fraction, "data.drop=[\"a\"]"]).unwrap();
    assert_eq!(config.data.split().unwrap().column(), "a");
    // A later `data.eval` replaces the split of a file.
    let text = "[data]\ntrain = \"a.csv\"\neval_fraction = 0.2\nsplit = { group = \"a\" }\n";
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    fs::write(file.path(), text).unwrap();
    let replaced = Config::load(Some(file.path()), &["data.eval=none".to_owned()]).unwrap();
    assert_eq!(replaced.data.eval, EvalSource::None);
}

#[test]
fn a_number_or_a_word_for_off_is_no_file_of_evaluation_rows() {
    for (value, hint) in [
        ("0.2", "`data.eval_fraction = 0.2`"),
        ("20%", "`data.eval_fraction = 0.2`"),
        ("0", "`data.eval = \"none\"`"),
        ("False", "`data.eval = \"none\"`"),
        ("off", "`data.eval = \"none\"`"),
    ] {
        let sets = ["data.train=a.csv", &format!("data.eval={value}")];
        assert_refused(from_sets(&sets), &["a file of evaluation rows", hint]);
    }
    for file in ["2024", "./off", "off.csv", "0.2/rows.csv"] {
        let config = from_sets(&["data.train=a.csv", &format!("data.eval={file}")]).unwrap();
        assert_eq!(config.data.eval, EvalSource::Source(file.to_owned()));
    }
}

#[test]
fn targets_may_decide_on_the_task() {
    let csv = "data.train=a.csv";
    let config = from_sets(&[csv]).unwrap();
    assert!(config.data.auto_task && config.to_toml().contains("\ntask = \"auto\"  # default\n"));
    for sets in [&[][..], &["data.classes=10"], &[csv, "data.classes=3"], &[csv, "data.task=classification"]]
    {
        let data = from_sets(sets).unwrap().data;
        assert_eq!((data.task, data.auto_task), (Task::Classification, false), "{sets:?}");
    }
    // Keys that only one task uses are checked once the task is known.
    for set in ["loss.class_weights=balanced", "data.target=[\"a\", \"b\"]"] {
        assert!(from_sets(&[csv, set]).is_ok(), "{set}");
    }
    assert_refused(from_sets(&[csv, "loss.kind=huber", "data.task=classification"]), &["cross_entropy"]);
    // A loss that fits one task determines it.
    for (loss, task) in [("huber", Task::Regression), ("poisson", Task::Regression)] {
        let data = from_sets(&[csv, &format!("loss.kind={loss}")]).unwrap().data;
        assert_eq!((data.task, data.auto_task), (task, false), "{loss}");
    }
    // The focal loss fits two tasks.
    let focal = [csv, "loss.kind=focal"];
    assert!(from_sets(&focal).unwrap().data.auto_task);
    let of_task = |task: &str, more: &[&str]| {
        let task = format!("data.task={task}");
        from_sets(&[&focal[..], &[&task, "data.target=[\"a\", \"b\"]"], more].concat())
    };
    let classes =
        from_sets(&[csv, focal[1], "data.task=classification", "loss.label_smoothing=0.1"]).unwrap();
    let want = Loss::CrossEntropy { label_smoothing: 0.1, class_weights: None, focal_gamma: 2.0 };
    assert_eq!((&classes.loss, classes.loss.name()), (&want, "focal"));
    assert_eq!(of_task("multilabel", &[]).unwrap().loss, Loss::Element(ElementLoss::Focal { gamma: 2.0 }));
    let smoothed = of_task("multilabel", &["loss.label_smoothing=0.1"]);
    assert_refused(smoothed, &["`loss.label_smoothing` must be absent where `data.task` is \"multilabel\""]);
    let poisson = [csv, "loss.kind=poisson"];
    assert_eq!(from_sets(&poisson).unwrap().data.normalize_target, NormalizeTarget::None);
    assert_refused(
        from_sets(&[poisson[0], poisson[1], "data.normalize_target=standard"]),
        &["`data.normalize_target` must be other than \"standard\" where `loss.kind` is \"poisson\""],
    );
    // A saved config without the key has its default.
    let saved = Config::from_saved("[data]\ntrain = \"a.csv\"\n", Path::new("saved")).unwrap();
    assert!(saved.data.auto_task && saved.data.stratify);
}

#[test]
fn a_decided_config_is_the_one_that_names_its_task() {
    let text = "[data]\ntrain = \"a.csv\"\n[loss]\nclass_weights = \"balanced\"\n";
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    fs::write(file.path(), text).unwrap();
    let overrides = ["data.task=auto", "train.eval_every_steps=5"].map(str::to_owned);
    let mut config = Config::load(Some(file.path()), &overrides).unwrap();
    let sets = ["data.task=classification", "train.eval_every_steps=5"].map(str::to_owned);
    let named = Config::load(Some(file.path()), &sets).unwrap();
    assert_eq!(config.clone().decided(Task::Classification).unwrap(), named);
    assert_refused(
        config.clone().decided(Task::Regression),
        &[&file.path().display().to_string(), "line 4", "`loss.class_weights` must be absent"],
    );
    // Rows to evaluate on are looked for where the rows are.
    assert_refused(
        config.check_unset_eval().map(|()| config.clone()),
        &["`--set train.eval_every_steps=5`", "must be 0 where `data.eval` is \"none\" by default"],
    );
    config.data.eval = EvalSource::Source("a.csv".to_owned());
    config.check_unset_eval().unwrap();
    // The file is read once: it may be a pipe.
    drop(file);
    assert_eq!(config.clone().decided(Task::Classification).unwrap().data.eval, config.data.eval);
}

#[test]
fn the_order_of_classes_is_that_of_the_config() {
    let csv = "data.train=a.csv";
    let order = "data.class_order=[\"low\", \"mid\", \"high\"]";
    let config = from_sets(&[csv, order, "loss.kind=ordinal"]).unwrap();
    assert_eq!((config.data.task, config.data.auto_task), (Task::Classification, false));
    assert_eq!(config.data.class_order, ["low", "mid", "high"]);
    assert_eq!((config.loss.n_outputs(3), config.loss.n_targets(2)), (2, 3));
    assert!(config.to_toml().contains("\nclass_order = [\"low\", \"mid\", \"high\"]\n"));
    let ordinal = from_sets(&[csv, "loss.kind=ordinal"]).unwrap();
    assert_eq!((ordinal.data.task, ordinal.data.auto_task), (Task::Classification, false));
    assert!(ordinal.data.class_order.is_empty() && !ordinal.to_toml().contains("\nclass_order"));
    let in_metrics = |config: &Config| config.metrics().map(|set| set.has(EvalMetric::QuadraticKappa));
    assert_eq!((in_metrics(&ordinal), in_metrics(&from_sets(&[csv]).unwrap())), ([true; 2], [false; 2]));
    assert!(from_sets(&[csv, "data.class_order=[]"]).unwrap().data.auto_task);
    // Brackets and quotes may be left out.
    for (typed, want) in
        [("low,mid,high", ["low", "mid", "high"]), ("a [1], \"b, c\",-9", ["a [1]", "b, c", "-9"])]
    {
        let config = from_sets(&[csv, &format!("data.class_order={typed}")]).unwrap();
        assert_eq!(config.data.class_order, want);
    }
    for (typed, want) in [("-9,foo", &["-9", "foo"][..]), ("-9", &["-9"]), ("\"-9,foo\"", &["-9,foo"])] {
        let config = from_sets(&[csv, &format!("data.missing_values={typed}")]).unwrap();
        assert_eq!(config.data.missing_values, want);
    }
    for (more, parts) in [
        ("data.class_order=low,,high", "none of them empty"),
        ("data.class_order=[low,high]", "must be all labels, two or more"),
        ("data.classes=3", "`data.class_order` must be absent next to `data.classes`"),
        ("data.task=regression", "`data.class_order` must be absent where `data.task` is \"regression\""),
        ("data.train=builtin:digits", "`data.class_order` must be absent for a built-in set"),
        ("data.class_order=[\"a\", \"a\"]", "must be each label once"),
        ("data.class_order=a", "must be all labels, two or more"),
    ] {
        assert_refused(from_sets(&[csv, order, more]), &[parts]);
    }
    let smoothed = from_sets(&[csv, "loss.kind=ordinal", "loss.label_smoothing=0.1"]);
    assert_refused(smoothed, &["`loss.label_smoothing` must be absent"]);
}

#[test]
fn balanced_weights_follow_from_the_counts() {
    let config = from_sets(&["loss.class_weights=balanced"]).unwrap();
    assert!(config.loss.is_balanced());
    assert!(config.to_toml().contains("\nclass_weights = \"balanced\"\n"));
    // scikit-learn: compute_class_weight("balanced", classes=[0, 1, 2], y=[0]*6 + [1]*3 + [2]*1).
    let weights = |counts: &[u64]| match config.loss.with_class_counts(counts) {
        Loss::CrossEntropy { class_weights: Some(ClassWeights::PerClass(weights)), .. } => weights,
        other => panic!("{other:?}"),
    };
    assert_eq!(weights(&[6, 3, 1]), [0.555_555_6, 1.111_111_2, 3.333_333_3]);
    assert_eq!(weights(&[6, 0, 3]), [0.75, 1.0, 1.5], "a class without rows does not count");
    // A new run with "balanced" resumes a run that was saved with the values.
    let mut saved = config.clone();
    saved.loss = config.loss.with_class_counts(&[6, 3, 1]);
    assert_eq!(config.differences(&saved), []);
    assert_eq!(saved.differences(&config).len(), 1);
    assert_refused(from_sets(&["loss.class_weights=even"]), &["a list of numbers or \"balanced\""]);
}

#[test]
fn a_fold_of_the_command_line_replaces_the_fraction_of_a_file_and_the_reverse() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.toml");
    let eval = |file: &str, set: &str| {
        fs::write(&path, format!("[data]\ntrain = \"x.csv\"\n{file}\n")).unwrap();
        Config::load(Some(&path), &[set.to_owned()]).map(|config| config.data.eval)
    };
    let fold = eval("eval_fraction = 0.2", "data.fold=1/3").unwrap();
    assert!(matches!(fold, EvalSource::Fold(_)), "{fold:?}");
    assert_eq!(eval("fold = \"1/3\"", "data.eval_fraction=0.2").unwrap(), EvalSource::Fraction(0.2));
    assert!(eval("fold = \"1/3\"\neval_fraction = 0.2", "train.epochs=1").is_err());
}
