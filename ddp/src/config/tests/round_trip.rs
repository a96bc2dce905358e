//! Every config survives writing, and its entries match the rows.

// A new key needs no line here: its value is the default, and `rows.rs` tries its example.
#![allow(clippy::needless_update)]

use ddp_comm::RegisterBuffers;
use proptest::prelude::*;

use super::*;
use crate::config::value::ConfigEnum as _;

#[test]
fn entries_cover_the_keys_in_order() {
    let config = Config::load(None, &[]).unwrap();
    let entries = config.agreement_entries();
    let places: Vec<_> =
        entries.iter().map(|(key, _)| keys().position(|known| known.name == *key).unwrap()).collect();
    assert!(places.is_sorted());
    assert!(entries.contains(&("optimizer.betas".to_owned(), "[0.9, 0.999]".to_owned())));
    let head = "name = \"digits\"  # default\n# heads: one group of outputs, as data.target, data.task and [loss] say\n\n\
        [data]\ntrain = \"builtin:digits\"  # default\n";
    assert!(config.to_toml().starts_with(head), "{}", config.to_toml());
}

fn pick<T: Copy + std::fmt::Debug + 'static>(all: &'static [T]) -> impl Strategy<Value = T> {
    proptest::sample::select(all)
}

fn default() -> Config {
    Config::load(None, &[]).unwrap()
}

fn any_key() -> impl Strategy<Value = &'static str> {
    proptest::sample::select(keys().map(|key| key.name).collect::<Vec<_>>())
}

fn any_fold() -> impl Strategy<Value = Fold> {
    (2usize..=1000).prop_flat_map(|of| (1..=of).prop_map(move |number| Fold { number, of }))
}

fn any_split() -> impl Strategy<Value = Split> {
    let column = || "[^\\pC]{0,8}s";
    let values = |pattern: &'static str| proptest::collection::vec(pattern, 0..3);
    prop_oneof![
        (column(), values("[^\\pC]{0,8}e"), values("[^\\pC]{0,8}t"))
            .prop_map(|(column, eval, train)| Split::Column { column, eval, train }),
        (column(), 1e-9..0.999f64).prop_map(|(column, fraction)| Split::Group {
            column,
            fraction,
            fold: None
        }),
        (column(), any_fold()).prop_map(|(column, fold)| Split::Group {
            column,
            fraction: 1.0 / fold.of as f64,
            fold: Some(fold),
        }),
        (column(), 1e-9..0.999f64).prop_map(|(column, fraction)| Split::Time {
            column,
            fraction,
            fold: None
        }),
        (column(), any_fold()).prop_map(|(column, fold)| Split::Time {
            column,
            fraction: 1.0 / (fold.of + 1) as f64,
            fold: Some(fold),
        }),
    ]
}

fn any_data() -> impl Strategy<Value = DataConfig> {
    let eval = prop_oneof![
        Just(EvalSource::None),
        "\\PC{0,5}[a-z]/".prop_map(EvalSource::Source),
        (1e-9..0.999f64).prop_map(EvalSource::Fraction),
        any_split().prop_map(EvalSource::Split),
    ];
    let target = proptest::collection::hash_set("[^\\pC]{0,8}z", 1..4);
    let classes = proptest::option::of(2usize..100);
    let names = (pick(Task::ALL), pick(Normalize::ALL), pick(UnknownLabel::ALL), any::<bool>());
    let optional = || proptest::option::of("[^\\pC]{0,8}o");
    let files = (optional(), optional(), pick(&DataFormat::ALL), "[a-z]{1,9}k", "[a-z]{1,9}l");
    let columns = (
        optional(),
        proptest::collection::vec("[^\\pC]{0,8}d", 0..3),
        proptest::collection::vec("[^\\pC]{0,8}c", 0..3),
        (pick(Encode::ALL), proptest::option::of(1usize..99), pick(Missing::ALL)),
        (
            pick(&Delimiter::ALL),
            pick(&Decimal::ALL),
            pick(Datetime::ALL),
            proptest::collection::vec("[^\\pC]{0,8}m", 0..3),
        ),
    );
    let loading = (
        pick(ShuffleMode::ALL),
        pick(Placement::ALL),
        (1usize..100, 0usize..100, 1usize..1000, 2000usize..10_000),
    );
    let given = ("[^\\pC]{0,12}x", eval, any::<bool>(), target, classes, names);
    (given, files, columns, loading).prop_map(
        |(given, files, (weight, drop, categorical, codes, text), (shuffle_mode, placement, sizes))| {
            let (train, eval, shuffle, target, classes, (task, normalize, unknown_label, stratify)) = given;
            let (labels, eval_labels, format, features_key, labels_key) = files;
            let (prefetch, loader_threads, shuffle_window_mib, loader_memory_mib) = sizes;
            let (encode, embedding_dim, missing) = codes;
            let (delimiter, decimal, datetime, missing_values) = text;
            let is_classes = task == Task::Classification;
            let is_files = matches!(&eval, EvalSource::Source(source) if !source.starts_with("builtin:"));
            let is_split = matches!(&eval, EvalSource::Split(_));
            let n_targets = if is_classes { 1 } else { target.len() };
            let target: Vec<String> = target.into_iter().take(n_targets).collect();
            let of_heads = [Task::Regression, Task::Classification, Task::Multilabel].into_iter().cycle();
            let head = |(name, task): (&String, Task)| HeadConfig {
                name: name.clone(),
                task,
                target: vec![name.clone()],
            };
            DataConfig {
                heads: match task {
                    Task::Heads => target.iter().zip(of_heads).map(head).collect(),
                    _ => Vec::new(),
                },
                train,
                labels,
                eval,
                eval_weight: eval_labels.clone().filter(|_| is_files),
                eval_labels: eval_labels.filter(|_| is_files),
                cache: (prefetch % 2 == 0).then(|| "kept".to_owned()),
                format,
                features_key,
                labels_key,
                target,
                task,
                auto_task: false,
                unknown_label,
                stratify: stratify && !is_split,
                classes: classes.filter(|_| is_classes),
                weight,
                drop,
                categorical,
                encode,
                embedding_dim,
                missing,
                missing_values,
                delimiter,
                decimal,
                datetime,
                normalize,
                shuffle,
                shuffle_mode,
                shuffle_window_mib,
                placement,
                prefetch,
                loader_threads,
                loader_memory_mib,
                ..default().data
            }
        },
    )
}

fn any_loss(data: &DataConfig) -> BoxedStrategy<Loss> {
    if data.task != Task::Heads {
        return loss_of_task(data.task, data.classes.unwrap_or(5));
    }
    let of_head = |head: &HeadConfig| {
        let name = head.name.clone();
        let loss = (1e-300..1e300f64, loss_of_task(head.task, 3));
        loss.prop_map(move |(weight, loss)| HeadLoss { name: name.clone(), weight, loss })
    };
    data.heads.iter().map(of_head).collect::<Vec<_>>().prop_map(Loss::Heads).boxed()
}

fn loss_of_task(task: Task, n_classes: usize) -> BoxedStrategy<Loss> {
    match task {
        Task::Classification => {
            let weights = proptest::collection::vec(1e-30f32..1e30, n_classes);
            let focal_gamma = prop_oneof![Just(0.0), 1e-300..1e300f64];
            let of_classes = (0.0..0.999f64, proptest::option::of(weights), focal_gamma).prop_map(
                |(label_smoothing, class_weights, focal_gamma)| Loss::CrossEntropy {
                    label_smoothing,
                    class_weights: class_weights.map(ClassWeights::PerClass),
                    focal_gamma,
                },
            );
            prop_oneof![3 => of_classes, 1 => Just(Loss::Ordinal)].boxed()
        }
        Task::Multilabel => {
            let focal = (0.0..1e300f64).prop_map(|gamma| Loss::Element(ElementLoss::Focal { gamma }));
            prop_oneof![Just(Loss::Element(ElementLoss::Bce)), focal].boxed()
        }
        Task::Regression => {
            let huber = (1e-300..1e300f64).prop_map(|delta| Loss::Element(ElementLoss::Huber { delta }));
            let quantile =
                (1e-9..0.999f64).prop_map(|quantile| Loss::Element(ElementLoss::Quantile { quantile }));
            prop_oneof![
                Just(Loss::Element(ElementLoss::Mse)),
                huber,
                Just(Loss::Element(ElementLoss::LogCosh)),
                quantile,
                Just(Loss::Element(ElementLoss::Poisson))
            ]
            .boxed()
        }
        Task::Heads => unreachable!("a head has another task"),
    }
}

fn any_model() -> impl Strategy<Value = ModelConfig> {
    prop_oneof![any_perceptron(), any_list()]
}

/// A linear layer, followed by blocks and layers that keep its width.
fn any_list() -> impl Strategy<Value = ModelConfig> {
    let of_width =
        (1usize..1 << 24, pick(&Gate::ALL), proptest::option::of(pick(Activation::ALL)), any::<bool>());
    let end = of_width.prop_flat_map(|(out_features, gate, activation, bias)| {
        let inner = prop_oneof![
            Just(LayerConfig::LayerNorm),
            Just(LayerConfig::RmsNorm),
            (1e-9..1.0f64, 0.001..1.0f64)
                .prop_map(|(eps, momentum)| LayerConfig::BatchNorm { eps, momentum }),
            (0.0..0.999f64).prop_map(|p| LayerConfig::Dropout { p }),
            pick(Activation::ALL).prop_map(LayerConfig::Activation),
            Just(LayerConfig::Scale),
            Just(LayerConfig::Glu { out_features, gate, bias }),
            Just(LayerConfig::Linear { out_features, activation, bias }),
        ];
        let entries = proptest::collection::vec((inner, 1usize..4), 1..6).prop_map(|layers| {
            layers.into_iter().map(|(layer, repeat)| LayerEntry { layer, repeat }).collect::<Vec<_>>()
        });
        let first = LayerConfig::Linear { out_features, activation, bias }.once();
        (Just(first), entries.clone(), entries, 1usize..4)
    });
    (end, any::<bool>()).prop_map(|((first, block, rest, repeat), bias)| {
        let block = LayerEntry { layer: LayerConfig::Residual { layers: block }, repeat };
        ModelConfig::from_layers([vec![first, block], rest].concat(), bias)
    })
}

prop_compose! {
    fn any_perceptron()(
        hidden in proptest::collection::vec(1usize..1 << 24, 0..5),
        activation in pick(Activation::ALL),
        dropout in 0.0..0.999f64,
        norm in pick(Norm::ALL),
        residual: bool,
        bias: bool,
    ) -> ModelConfig {
        ModelConfig { hidden, activation, dropout, norm, residual, bias, ..default().model }
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
        (adamw_lr, adamw_weight_decay) in (1e-30..1e30f64, 0.0..1e300f64),
        decay_bias_norm: bool,
        groups in proptest::collection::vec(any_group(), 0..3),
        (ema_decay, ema_warmup) in (0.0..0.9999f64, any::<bool>()),
    ) -> OptimizerConfig {
        OptimizerConfig {
            kind, lr, betas, eps, weight_decay, momentum, nesterov, adamw_lr, adamw_weight_decay,
            decay_bias_norm, groups, ema_decay, ema_warmup,
            ..default().optimizer
        }
    }
}

prop_compose! {
    fn any_group()(
        pattern in "[^\\pC\\[*]{0,8}[*?]?",
        lr_scale in 0.0..1e9f64,
        weight_decay in proptest::option::of(0.0..1e9f64),
        schedule in proptest::option::of(any_schedule()),
    ) -> ParamGroup {
        ParamGroup { pattern, lr_scale, weight_decay, schedule }
    }
}

fn any_span(min: u64) -> impl Strategy<Value = Span> {
    prop_oneof![
        (min..1_000_000).prop_map(Span::Steps),
        // Two such fractions fit into a run.
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
        (any_span(1), 1e-9..=1.0f64).prop_map(|(every, factor)| ScheduleShape::Exponential { every, factor }),
        (any_span(1), 1u64..9, end()).prop_map(|(every, growth, final_fraction)| {
            ScheduleShape::CosineRestarts { every, growth, final_fraction }
        }),
        (any_span(0), end()).prop_map(|(decay, final_fraction)| ScheduleShape::Wsd { decay, final_fraction }),
    ];
    let warmup = (any_span(0), proptest::option::of(end()));
    let usual = (warmup, shape).prop_map(|((length, start), shape)| (length, start, shape));
    // One-cycle has its own default for the start.
    let one_cycle = (any_span(0), end(), end()).prop_map(|(length, start, final_fraction)| {
        (length, Some(start), ScheduleShape::OneCycle { final_fraction })
    });
    prop_oneof![5 => usual, 1 => one_cycle]
        .prop_map(|(length, start, shape)| ScheduleConfig { warmup: Warmup { length, start }, shape })
}

fn any_metric(has_eval: bool, task: Task, heads: &[HeadConfig]) -> BoxedStrategy<JudgeMetric> {
    let fits = |metric: &EvalMetric| match metric {
        EvalMetric::Loss => true,
        metric => metric.fits(task) && has_eval && task != Task::Heads,
    };
    let mut fitting: Vec<JudgeMetric> =
        EvalMetric::ALL.iter().copied().filter(fits).map(JudgeMetric::from).collect();
    for HeadConfig { name, task, .. } in heads.iter().filter(|_| has_eval) {
        let of_head = EvalMetric::ALL.iter().filter(|metric| metric.fits(*task));
        fitting.extend(of_head.map(|&metric| JudgeMetric { head: Some(name.clone()), metric }));
    }
    proptest::sample::select(fitting).boxed()
}

fn any_checkpoint(metric: BoxedStrategy<JudgeMetric>) -> impl Strategy<Value = CheckpointConfig> {
    let often = (0u64..1_000_000, 0.0..1e6f64, 0u64..1_000_000);
    (often, 0usize..1000, proptest::option::of(metric), any::<bool>()).prop_map(
        |((every_steps, every_minutes, every_epochs), keep, keep_best, is_async)| CheckpointConfig {
            every_steps,
            every_minutes,
            every_epochs,
            keep,
            keep_best,
            is_async,
            ..default().checkpoint
        },
    )
}

prop_compose! {
    fn any_train(has_eval: bool, metric: BoxedStrategy<JudgeMetric>)(
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
        (precision, init, loss_scale_log2) in (pick(&Precision::ALL), pick(WeightInit::VALUES), 0..=30i32),
        (deterministic, micro_shards_log2) in
            (pick(&[Determinism::Off, Determinism::On, Determinism::World]), 0..=12u32),
        (eval_every_steps, train_metrics) in (0u64..1_000_000, any::<bool>()),
        eval_metrics in proptest::sample::subsequence(vec!["default".to_owned(), "all".to_owned()], 1..=2),
        early_stop_metric in metric,
        early_stop_patience in 0u64..100,
        early_stop_min_delta in 0.0..1e300f64,
        stop_after_steps in proptest::option::of(1u64..1_000_000_000),
        stop_after_epochs in proptest::option::of(1u64..1_000_000_000),
    ) -> TrainConfig {
        TrainConfig {
            length,
            batch,
            grad_accum_steps: if deterministic == Determinism::World { 1 } else { grad_accum_steps },
            clip_grad_norm,
            seed,
            init,
            precision,
            loss_scale_init: f64::from(loss_scale_log2).exp2(),
            deterministic,
            micro_shards: 1 << micro_shards_log2,
            eval_every_steps: if has_eval { eval_every_steps } else { 0 },
            eval_metrics,
            train_metrics,
            early_stop_metric,
            early_stop_patience: if has_eval { early_stop_patience } else { 0 },
            early_stop_min_delta,
            stop_after_steps,
            stop_after_epochs,
            ..default().train
        }
    }
}

fn any_config() -> impl Strategy<Value = Config> {
    let by_data = any_data().prop_flat_map(|data| {
        let has_eval = data.eval != EvalSource::None;
        let metric = any_metric(has_eval, data.task, &data.heads);
        (any_loss(&data), any_train(has_eval, metric.clone()), any_checkpoint(metric), Just(data))
    });
    let by_data = by_data.prop_map(|(loss, train, checkpoint, mut data)| {
        if loss == Loss::Element(ElementLoss::Poisson) {
            data.normalize_target = NormalizeTarget::None;
        }
        (loss, train, checkpoint, data)
    });
    let zero = pick(&[ZeroStage::Off, ZeroStage::Optimizer, ZeroStage::Gradients]);
    let register = pick(&[RegisterBuffers::Auto, RegisterBuffers::On, RegisterBuffers::Off]);
    let zero = (zero, 0..2usize, 1..1000u64);
    let comm = (1e-6..1e6f64, any::<bool>(), pick(CommDtype::ALL), zero, register).prop_map(
        |(bucket_mib, overlap, dtype, (zero, zero_copies, zero_copies_every_steps), register_buffers)| {
            CommConfig {
                bucket_mib,
                overlap,
                dtype,
                zero,
                zero_copies,
                zero_copies_every_steps,
                register_buffers,
            }
        },
    );
    let log = (1usize..1_000_000).prop_map(|every_steps| LogConfig { every_steps, ..default().log });
    let times = (0.01..60.0f64, 0.1..86_400.0f64, 0.0..86_400.0f64);
    let watchdog = (any::<bool>(), times).prop_map(|(enabled, (interval_s, timeout_s, save_s))| {
        WatchdogConfig { enabled, interval_s, timeout_s, save_s }
    });
    let name = "[a-zA-Z0-9_-]{1,40}";
    (name, by_data, any_model(), any_optimizer(), any_schedule(), comm, log, watchdog).prop_map(
        |(name, (loss, train, checkpoint, data), model, optimizer, schedule, comm, log, watchdog)| {
            // Early stopping keeps the best checkpoint by its own metric.
            let stops_by = (train.early_stop_patience > 0).then_some(&train.early_stop_metric);
            let keep_best = checkpoint.keep_best.map(|metric| stops_by.cloned().unwrap_or(metric));
            let checkpoint = CheckpointConfig { keep_best, ..checkpoint };
            // Copies are for the save after a loss.
            let zero_copies = comm.zero_copies.min(usize::from(watchdog.save_limit().is_some()));
            let zero_copies_every_steps = if zero_copies > 0 {
                comm.zero_copies_every_steps
            } else {
                default().comm.zero_copies_every_steps
            };
            let comm = CommConfig { zero_copies, zero_copies_every_steps, ..comm };
            Config {
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
                watchdog,
                ..default()
            }
        },
    )
}

proptest! {
    #[test]
    fn written_configs_read_back(config in any_config()) {
        let fail = |error: ConfigError| TestCaseError::fail(format!("{error}\n{}", config.to_toml()));
        prop_assert_eq!(&from_text(&config.to_toml()).map_err(fail)?, &config);

        // The list that ranks compare equals the file, except for the name: used as `--set` arguments it gives the config.
        let name = ("name".to_owned(), toml::Value::from(config.name.as_str()).to_string());
        let entries = config.agreement_entries().into_iter().chain([name]);
        let sets: Vec<_> = entries.map(|(key, value)| format!("{key}={value}")).collect();
        prop_assert_eq!(&Config::load(None, &sets).map_err(fail)?, &config);
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,40}", key in any_key(), value in "\\PC{0,12}") {
        let _ = from_text(&text);
        let _ = from_sets(&[&text, &format!("{key}={value}")]);
    }
}
