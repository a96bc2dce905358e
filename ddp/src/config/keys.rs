//! The keys that exist, and the nearest one to a key that doesn't.

/// Every key of the config, in the order in which it is written.
pub(super) const KEYS: &[&str] = &[
    "name",
    "data.train",
    "data.labels",
    "data.eval",
    "data.eval_labels",
    "data.eval_weight",
    "data.eval_fraction",
    "data.format",
    "data.features_key",
    "data.labels_key",
    "data.target",
    "data.task",
    "data.classes",
    "data.weight",
    "data.drop",
    "data.categorical",
    "data.encode",
    "data.embedding_dim",
    "data.missing",
    "data.normalize",
    "data.shuffle",
    "data.shuffle_mode",
    "data.shuffle_window_mib",
    "data.placement",
    "data.prefetch",
    "data.loader_threads",
    "data.loader_memory_mib",
    "model.hidden",
    "model.activation",
    "model.dropout",
    "model.norm",
    "model.residual",
    "model.bias",
    "loss.kind",
    "loss.label_smoothing",
    "loss.class_weights",
    "loss.delta",
    "optimizer.kind",
    "optimizer.lr",
    "optimizer.betas",
    "optimizer.eps",
    "optimizer.weight_decay",
    "optimizer.momentum",
    "optimizer.nesterov",
    "optimizer.decay_bias_norm",
    "optimizer.groups",
    "schedule.kind",
    "schedule.warmup_steps",
    "schedule.warmup_fraction",
    "schedule.warmup_start",
    "schedule.final_fraction",
    "schedule.decay_steps",
    "schedule.decay_fraction",
    "schedule.step_every_steps",
    "schedule.step_every_fraction",
    "schedule.step_factor",
    "train.epochs",
    "train.steps",
    "train.batch_size",
    "train.global_batch_size",
    "train.grad_accum_steps",
    "train.clip_grad_norm",
    "train.seed",
    "train.precision",
    "train.loss_scale_init",
    "train.ema_decay",
    "train.deterministic",
    "train.micro_shards",
    "train.early_stop_metric",
    "train.early_stop_patience",
    "train.early_stop_min_delta",
    "train.stop_after_steps",
    "comm.bucket_mib",
    "comm.overlap",
    "comm.dtype",
    "comm.zero",
    "checkpoint.every_steps",
    "checkpoint.every_minutes",
    "checkpoint.every_epochs",
    "checkpoint.keep",
    "checkpoint.keep_best",
    "checkpoint.async",
    "log.every_steps",
];

/// A value of each key that is right for it, as it is written in TOML.
const EXAMPLES: &[(&str, &str)] = &[
    ("name", r#""digits""#),
    ("data.train", r#""builtin:digits""#),
    ("data.labels", r#""y.npy""#),
    ("data.eval", r#""builtin:digits""#),
    ("data.eval_labels", r#""y_test.npy""#),
    ("data.eval_weight", r#""w_test.npy""#),
    ("data.eval_fraction", "0.2"),
    ("data.format", r#""auto""#),
    ("data.features_key", r#""features""#),
    ("data.labels_key", r#""labels""#),
    ("data.target", r#""label""#),
    ("data.task", r#""classification""#),
    ("data.classes", "10"),
    ("data.weight", r#""weight""#),
    ("data.drop", r#"["id"]"#),
    ("data.categorical", r#"["city"]"#),
    ("data.encode", r#""one_hot""#),
    ("data.embedding_dim", "8"),
    ("data.missing", r#""mean""#),
    ("data.normalize", r#""standard""#),
    ("data.shuffle", "true"),
    ("data.shuffle_mode", r#""full""#),
    ("data.shuffle_window_mib", "64"),
    ("data.placement", r#""auto""#),
    ("data.prefetch", "4"),
    ("data.loader_threads", "2"),
    ("data.loader_memory_mib", "1024"),
    ("model.hidden", "[128, 64]"),
    ("model.activation", r#""relu""#),
    ("model.dropout", "0.1"),
    ("model.norm", r#""layer""#),
    ("model.residual", "true"),
    ("model.bias", "true"),
    ("loss.kind", r#""auto""#),
    ("loss.label_smoothing", "0.1"),
    ("loss.class_weights", "[1.0, 2.0]"),
    ("loss.delta", "1.0"),
    ("optimizer.kind", r#""adamw""#),
    ("optimizer.lr", "0.001"),
    ("optimizer.betas", "[0.9, 0.999]"),
    ("optimizer.eps", "1e-8"),
    ("optimizer.weight_decay", "0.01"),
    ("optimizer.momentum", "0.9"),
    ("optimizer.nesterov", "true"),
    ("optimizer.decay_bias_norm", "true"),
    ("optimizer.groups", r#"[{ match = "layers.0.*", lr_scale = 0.1, weight_decay = 0.0 }]"#),
    ("schedule.kind", r#""cosine""#),
    ("schedule.warmup_steps", "100"),
    ("schedule.warmup_fraction", "0.1"),
    ("schedule.warmup_start", "0.1"),
    ("schedule.final_fraction", "0.1"),
    ("schedule.decay_steps", "100"),
    ("schedule.decay_fraction", "0.2"),
    ("schedule.step_every_steps", "1000"),
    ("schedule.step_every_fraction", "0.3"),
    ("schedule.step_factor", "0.1"),
    ("train.epochs", "30"),
    ("train.steps", "1000"),
    ("train.batch_size", "32"),
    ("train.global_batch_size", "256"),
    ("train.grad_accum_steps", "4"),
    ("train.clip_grad_norm", "1.0"),
    ("train.seed", "7"),
    ("train.precision", r#""f32""#),
    ("train.loss_scale_init", "65536.0"),
    ("train.ema_decay", "0.999"),
    ("train.deterministic", "true"),
    ("train.micro_shards", "8"),
    ("train.early_stop_metric", r#""eval_loss""#),
    ("train.early_stop_patience", "5"),
    ("train.early_stop_min_delta", "0.001"),
    ("train.stop_after_steps", "1000"),
    ("comm.bucket_mib", "32.0"),
    ("comm.overlap", "true"),
    ("comm.dtype", r#""f32""#),
    ("comm.zero", "1"),
    ("checkpoint.every_steps", "1000"),
    ("checkpoint.every_minutes", "30.0"),
    ("checkpoint.every_epochs", "1"),
    ("checkpoint.keep", "3"),
    ("checkpoint.keep_best", r#""eval_loss""#),
    ("checkpoint.async", "true"),
    ("log.every_steps", "50"),
];

/// A right value for this key.
pub(super) fn example(key: &str) -> &'static str {
    EXAMPLES.iter().find(|(of, _)| *of == key).map_or("...", |(_, example)| example)
}

/// Pairs of which only one may be given.
pub(super) const ALTERNATIVES: &[(&str, &str, &str)] = &[
    (
        "data.eval",
        "data.eval_fraction",
        "`eval` names rows to evaluate on, `eval_fraction` takes them out of the training rows",
    ),
    ("train.epochs", "train.steps", "`epochs` counts passes over the data, `steps` counts optimiser steps"),
    (
        "train.batch_size",
        "train.global_batch_size",
        "`batch_size` is rows a rank and micro-batch, `global_batch_size` is rows of all together",
    ),
    ("schedule.warmup_steps", "schedule.warmup_fraction", STEPS_OR_FRACTION),
    ("schedule.decay_steps", "schedule.decay_fraction", STEPS_OR_FRACTION),
    ("schedule.step_every_steps", "schedule.step_every_fraction", STEPS_OR_FRACTION),
];

const STEPS_OR_FRACTION: &str = "one counts optimiser steps, the other is a part of the run's steps";

/// Names that other programs give these keys.
const SYNONYMS: &[(&str, &str)] = &[
    ("learning_rate", "optimizer.lr"),
    ("wd", "optimizer.weight_decay"),
    ("beta1", "optimizer.betas"),
    ("beta2", "optimizer.betas"),
    ("optim", "optimizer.kind"),
    ("optimizer", "optimizer.kind"),
    ("num_epochs", "train.epochs"),
    ("n_epochs", "train.epochs"),
    ("max_epochs", "train.epochs"),
    ("num_steps", "train.steps"),
    ("n_steps", "train.steps"),
    ("max_steps", "train.steps"),
    ("batch", "train.batch_size"),
    ("micro_batch_size", "train.batch_size"),
    ("global_batch", "train.global_batch_size"),
    ("gradient_accumulation_steps", "train.grad_accum_steps"),
    ("accumulate_grad_batches", "train.grad_accum_steps"),
    ("grad_clip", "train.clip_grad_norm"),
    ("clip_norm", "train.clip_grad_norm"),
    ("max_grad_norm", "train.clip_grad_norm"),
    ("gradient_clip_val", "train.clip_grad_norm"),
    ("dtype", "train.precision"),
    ("layers", "model.hidden"),
    ("hidden_sizes", "model.hidden"),
    ("hidden_dims", "model.hidden"),
    ("num_classes", "data.classes"),
    ("n_classes", "data.classes"),
    ("test", "data.eval"),
    ("valid", "data.eval"),
    ("validation", "data.eval"),
    ("val_fraction", "data.eval_fraction"),
    ("test_fraction", "data.eval_fraction"),
    ("label", "data.target"),
    ("sample_weight", "data.weight"),
    ("weights", "data.weight"),
    ("drop_columns", "data.drop"),
    ("exclude", "data.drop"),
    ("categories", "data.categorical"),
    ("cat_features", "data.categorical"),
    ("na", "data.missing"),
    ("num_workers", "data.loader_threads"),
    ("workers", "data.loader_threads"),
    ("prefetch_factor", "data.prefetch"),
    ("targets", "data.target"),
    ("bucket_cap_mb", "comm.bucket_mib"),
    ("log_every", "log.every_steps"),
    ("lr_scheduler", "schedule.kind"),
    ("lr_scheduler_type", "schedule.kind"),
    ("scheduler", "schedule.kind"),
    ("lr_schedule", "schedule.kind"),
    ("warmup", "schedule.warmup_steps"),
    ("num_warmup_steps", "schedule.warmup_steps"),
    ("warmup_ratio", "schedule.warmup_fraction"),
    ("pct_start", "schedule.warmup_fraction"),
    ("start_factor", "schedule.warmup_start"),
    ("div_factor", "schedule.warmup_start"),
    ("min_lr", "schedule.final_fraction"),
    ("eta_min", "schedule.final_fraction"),
    ("min_lr_ratio", "schedule.final_fraction"),
    ("end_factor", "schedule.final_fraction"),
    ("final_div_factor", "schedule.final_fraction"),
    ("step_size", "schedule.step_every_steps"),
    ("gamma", "schedule.step_factor"),
    ("param_groups", "optimizer.groups"),
    ("no_decay", "optimizer.decay_bias_norm"),
    ("ema", "train.ema_decay"),
    ("loss_scale", "train.loss_scale_init"),
    ("init_scale", "train.loss_scale_init"),
    ("patience", "train.early_stop_patience"),
    ("early_stopping", "train.early_stop_patience"),
    ("early_stopping_patience", "train.early_stop_patience"),
    ("min_delta", "train.early_stop_min_delta"),
    ("monitor", "train.early_stop_metric"),
    ("stop_after", "train.stop_after_steps"),
    ("determinism", "train.deterministic"),
    ("zero_stage", "comm.zero"),
    ("zero1", "comm.zero"),
    ("save_every", "checkpoint.every_steps"),
    ("save_steps", "checkpoint.every_steps"),
    ("save_every_steps", "checkpoint.every_steps"),
    ("checkpoint_every", "checkpoint.every_steps"),
    ("save_total_limit", "checkpoint.keep"),
    ("save_top_k", "checkpoint.keep"),
    ("keep_last", "checkpoint.keep"),
    ("metric_for_best_model", "checkpoint.keep_best"),
];

/// What is a flag of the command line and no key.
const FLAGS: &[&str] = &[
    "device",
    "share_gpu",
    "cuda_graph",
    "threads",
    "out",
    "init_from",
    "resume",
    "progress",
    "json",
    "overwrite",
];

/// The known key of this name, if there is one.
pub(super) fn known(name: &str) -> Option<&'static str> {
    KEYS.iter().copied().find(|key| *key == name)
}

/// Whether `name` is a section.
pub(super) fn is_section(name: &str) -> bool {
    KEYS.iter().any(|key| key.split_once('.').is_some_and(|(section, _)| section == name))
}

/// The way out for the unknown key `name`: the nearest known one, or the list it isn't in.
pub(super) fn hint(name: &str) -> String {
    let last = name.rsplit('.').next().unwrap_or(name);
    let (section, _) = name.split_once('.').unwrap_or((name, ""));
    // The right name in the wrong section is nearer than a similar name in the right one.
    let elsewhere = KEYS.iter().find(|key| key.rsplit('.').next() == Some(last));
    if let Some(key) = elsewhere {
        return format!("did you mean `{key}`?");
    }
    if let Some((_, key)) = SYNONYMS.iter().find(|(synonym, _)| *synonym == last) {
        return format!("did you mean `{key}`?");
    }
    if FLAGS.contains(&last) {
        return format!("it is a flag of the command line: --{}", last.replace('_', "-"));
    }
    let own_section = |key: &&&str| key.split('.').next() == Some(section);
    if let Some(key) = nearest(name, KEYS.iter().filter(own_section).copied())
        .or_else(|| nearest(name, KEYS.iter().copied()))
    {
        return format!("did you mean `{key}`?");
    }
    if is_section(section) {
        let names: Vec<_> = KEYS.iter().filter(own_section).filter_map(|key| key.split('.').nth(1)).collect();
        return format!("the keys of [{section}] are {}", names.join(", "));
    }
    let mut sections: Vec<_> = KEYS.iter().filter_map(|key| Some(key.split_once('.')?.0)).collect();
    sections.dedup();
    if let Some(section) = nearest(section, sections.iter().copied()) {
        return format!("did you mean the section [{section}]?");
    }
    format!("the sections are {}", sections.join(", "))
}

/// The candidate within a third of the word's length in edits, the nearest first.
pub(crate) fn nearest<'a>(word: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(&lower, &candidate.to_lowercase()), candidate))
        .min_by_key(|(distance, _)| *distance)
        .filter(|(distance, _)| *distance <= (word.chars().count() / 3).clamp(1, 4))
        .map(|(_, candidate)| candidate)
}
