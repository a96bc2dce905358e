//! Conflicts between keys: settings that exclude each other, or that leave one of the keys without effect.
//!
//! A row is the check and its description: reading a config refuses what the config alone decides, and `config keys`,
//! docs/config.md and the JSON schema list the same rows. To add a conflict, add a row. Rows with [`Values::Words`] are refused
//! elsewhere before the first step: by the section of the key, or, if they depend on the rows, the layers or the ranks, once these
//! are known. `tests/combinations` finds combinations that are refused but not listed here.
//!
//! ```
//! use ddp::config::conflicts::CONFLICTS;
//!
//! let world = CONFLICTS.iter().find(|of| of.key == "train.deterministic" && of.with == "train.grad_accum_steps");
//! assert_eq!(world.unwrap().when.to_string(), "above 1");
//! ```

use serde_json::json;
use toml::Value;

use self::Values::{Above, Any, Except, OneOf, TableWith, Words};
pub use super::conflict_values::Values;
use super::conflict_values::either;
use super::error::{ConfigError, Result};
use super::raw::RawConfig;
use super::setting::Setting;

/// A setting of `key` that is refused together with a setting of `with`.
#[derive(Debug, Clone, Copy)]
pub struct Conflict {
    /// The key that is refused.
    pub key: &'static str,
    /// The values of `key` that are refused.
    pub value: Values,
    /// The other key.
    pub with: &'static str,
    /// The values of `with` that exclude them.
    pub when: Values,
    /// Why the two settings exclude each other.
    pub reason: &'static str,
    /// Settings that trigger the conflict; empty if it depends on the rows, the layers or the ranks.
    pub example: &'static [&'static str],
    /// Remedy, where it is more than to leave out one of the two; else empty.
    hint: &'static str,
}

const fn conflict(
    (key, value): (&'static str, Values),
    (with, when): (&'static str, Values),
    reason: &'static str,
    example: &'static [&'static str],
) -> Conflict {
    Conflict { key, value, with, when, reason, example, hint: "" }
}

const fn needs_rows(setting: (&'static str, Values), example: &'static [&'static str]) -> Conflict {
    conflict(setting, ("data.eval", OneOf(&["none"])), "there are no rows to evaluate on", example)
        .hint("give rows in `data.eval`, or take a fraction of the training rows with `data.eval_fraction`, such as 0.1")
}

const HEADS: &str = "each head has targets, a task and a loss of its own";
const ONE_HEAD: &str = r#"heads=[{name="a",task="regression"}]"#;
const OF_LAYERS: &str = "the list of layers says it";
const OF_PRESET: &str = "it is part of the preset";
const OF_EVAL_FILES: &str = "they are files beside those of its rows";
const ARRAYS: &str = r#""npy", "npz", "safetensors" or "idx""#;
const NO_TEXT: &str = "other than \"csv\"";
const WORLD: (&str, Values) = ("train.deterministic", OneOf(&["world"]));

/// All conflicts, in the order of the keys.
pub static CONFLICTS: &[Conflict] = &[
    conflict(("data.target", Any), ("heads", Any), HEADS, &[ONE_HEAD, "data.target=y"]),
    conflict(("data.task", Any), ("heads", Any), HEADS, &[ONE_HEAD, "data.task=regression"]),
    conflict(("data.classes", Any), ("heads", Any), HEADS, &[ONE_HEAD, "data.classes=3"]),
    conflict(
        ("data.classes", Any),
        ("data.task", Except(&["classification"])),
        "only classes are counted",
        &["data.classes=3", "data.task=regression"],
    ),
    conflict(("data.class_order", Any), ("heads", Any), HEADS, &[ONE_HEAD, "data.class_order=[\"a\",\"b\"]"]),
    conflict(
        ("data.class_order", Any),
        ("data.task", Except(&["classification"])),
        "only classes have an order",
        &["data.class_order=[\"a\",\"b\"]", "data.task=regression"],
    ),
    conflict(
        ("data.class_order", Any),
        ("data.classes", Any),
        "one counts numbers from 0, the other lists labels",
        &["data.classes=2", "data.class_order=[\"a\",\"b\"]"],
    ),
    conflict(
        ("data.stratify", OneOf(&["true"])),
        ("data.split", Any),
        "the column of the split decides, not the classes",
        &["data.split={column=\"a\"}", "data.stratify=true"],
    ),
    conflict(
        ("data.eval_fraction", Any),
        ("data.split", TableWith("column")),
        "the values of that column say which rows are evaluated",
        &["data.split={column=\"a\"}", "data.eval_fraction=0.2"],
    ),
    conflict(
        ("data.fold", Any),
        ("data.eval_fraction", Any),
        "a fold of K has a K-th of the rows",
        &["data.eval_fraction=0.2", "data.fold=1/5"],
    ),
    conflict(
        ("data.fold", Any),
        ("data.split", TableWith("column")),
        "folds are drawn from single rows, from groups or by time",
        &["data.split={column=\"a\"}", "data.fold=1/5"],
    ),
    conflict(("data.eval_labels", Any), ("data.eval", Words("without files")), OF_EVAL_FILES, &[]),
    conflict(("data.eval_weight", Any), ("data.eval", Words("without files")), OF_EVAL_FILES, &[]),
    conflict(("data.filter", Any), ("data.format", Words(ARRAYS)), "arrays have no columns with names", &[]),
    conflict(
        ("data.missing_target", OneOf(&["skip"])),
        ("data.format", Words(ARRAYS)),
        "rows of arrays all have a target",
        &[],
    ),
    conflict(
        ("data.missing_values", Any),
        ("data.format", Words(ARRAYS)),
        "arrays hold no texts that could mark a missing value",
        &[],
    ),
    conflict(
        ("data.header", OneOf(&["true", "false"])),
        ("data.format", Words(NO_TEXT)),
        "only files of text have lines of cells",
        &[],
    ),
    conflict(
        ("data.delimiter", Except(&["auto"])),
        ("data.format", Words(NO_TEXT)),
        "only files of text have cells with delimiters",
        &[],
    ),
    conflict(
        ("data.decimal", Except(&["auto"])),
        ("data.format", Words(NO_TEXT)),
        "other formats mark their numbers by themselves",
        &[],
    ),
    conflict(("data.datetime", Any), ("data.format", Words(ARRAYS)), "arrays hold no dates", &[]),
    conflict(
        ("data.normalize_target", OneOf(&["standard"])),
        ("loss.kind", OneOf(&["poisson"])),
        "counts are not standardized",
        &["data.task=regression", "loss.kind=poisson", "data.normalize_target=standard"],
    ),
    conflict(
        ("data.balance", OneOf(&["classes"])),
        ("heads", Any),
        HEADS,
        &[ONE_HEAD, "data.balance=classes"],
    ),
    conflict(
        ("data.balance", OneOf(&["classes"])),
        ("data.task", Except(&["classification"])),
        "there are no classes",
        &["data.task=regression", "data.balance=classes"],
    ),
    conflict(
        ("data.balance", OneOf(&["classes"])),
        ("data.shuffle", OneOf(&["false"])),
        "an epoch would be sorted by class",
        &["data.shuffle=false", "data.balance=classes"],
    )
    .hint("remove `data.shuffle`, or set `loss.class_weights` to \"balanced\""),
    conflict(
        ("data.balance", OneOf(&["classes"])),
        ("data.shuffle_mode", OneOf(&["blocks"])),
        "rows that are repeated lie all over the file",
        &["data.shuffle_mode=blocks", "data.balance=classes"],
    )
    .hint("set `data.shuffle_mode` to \"full\", or `loss.class_weights` to \"balanced\""),
    conflict(
        ("data.balance", OneOf(&["classes"])),
        ("loss.class_weights", OneOf(&["balanced"])),
        "both even out the classes",
        &["loss.class_weights=balanced", "data.balance=classes"],
    ),
    conflict(
        ("data.shuffle_window_mib", Any),
        ("data.loader_memory_mib", Words("less than twice as much")),
        "one window is read while another one is used",
        &["data.shuffle_mode=blocks", "data.loader_memory_mib=64", "data.shuffle_window_mib=64"],
    ),
    conflict(
        ("model.hidden", OneOf(&["[]"])),
        ("model.kind", Except(&["mlp"])),
        "it lists the widths of the blocks",
        &["model.kind=resmlp", "model.hidden=[]"],
    )
    .hint("give a width for each block, or leave out `model.kind`"),
    conflict(("model.kind", Any), ("model.layers", Any), OF_LAYERS, &[LINEAR, "model.kind=resmlp"]),
    conflict(("model.activation", Any), ("model.layers", Any), OF_LAYERS, &[LINEAR, "model.activation=gelu"]),
    conflict(
        ("model.activation", Any),
        ("model.kind", OneOf(&["swiglu"])),
        OF_PRESET,
        &["model.kind=swiglu", "model.activation=gelu"],
    ),
    conflict(("model.dropout", Any), ("model.layers", Any), OF_LAYERS, &[LINEAR, "model.dropout=0.1"]),
    conflict(("model.norm", Any), ("model.layers", Any), OF_LAYERS, &[LINEAR, "model.norm=layer"]),
    conflict(
        ("model.norm", Any),
        ("model.kind", Except(&["mlp"])),
        OF_PRESET,
        &["model.kind=resmlp", "model.norm=layer"],
    ),
    conflict(("model.residual", Any), ("model.layers", Any), OF_LAYERS, &[LINEAR, "model.residual=true"]),
    conflict(
        ("model.residual", Any),
        ("model.kind", Except(&["mlp"])),
        OF_PRESET,
        &["model.kind=resmlp", "model.residual=true"],
    ),
    conflict(("loss.kind", Any), ("heads", Any), HEADS, &[ONE_HEAD, "loss.kind=mse"]),
    conflict(
        ("loss.kind", Any),
        ("data.task", Words("of another kind than the loss")),
        "each loss is for targets of one kind",
        &["data.task=regression", "loss.kind=bce"],
    ),
    conflict(("loss.label_smoothing", Any), ("heads", Any), HEADS, &[ONE_HEAD, "loss.label_smoothing=0.1"]),
    conflict(
        ("loss.label_smoothing", Any),
        ("loss.kind", Except(&["cross_entropy", "focal"])),
        "only classes are smoothed",
        &["loss.kind=ordinal", "loss.label_smoothing=0.1"],
    ),
    conflict(
        ("loss.label_smoothing", Any),
        ("data.task", Except(&["classification"])),
        "only classes are smoothed",
        &["data.task=multilabel", "data.target=[\"a\",\"b\"]", "loss.kind=focal", "loss.label_smoothing=0.1"],
    ),
    conflict(("loss.class_weights", Any), ("heads", Any), HEADS, &[ONE_HEAD, "loss.class_weights=balanced"]),
    conflict(
        ("loss.class_weights", Any),
        ("loss.kind", Except(&["cross_entropy", "focal"])),
        "only classes are weighted",
        &["loss.kind=ordinal", "loss.class_weights=balanced"],
    ),
    conflict(
        ("loss.class_weights", Any),
        ("data.task", Except(&["classification"])),
        "only classes are weighted",
        &["data.task=multilabel", "data.target=[\"a\",\"b\"]", "loss.kind=focal", "loss.class_weights=[1,2]"],
    ),
    conflict(("loss.gamma", Any), ("heads", Any), HEADS, &[ONE_HEAD, "loss.gamma=2.0"]),
    conflict(
        ("loss.gamma", Any),
        ("loss.kind", Except(&["focal"])),
        "it is the exponent of focal",
        &["loss.kind=cross_entropy", "loss.gamma=2.0"],
    ),
    conflict(("loss.delta", Any), ("heads", Any), HEADS, &[ONE_HEAD, "loss.delta=2.0"]),
    conflict(
        ("loss.delta", Any),
        ("loss.kind", Except(&["huber"])),
        "it is the bend of huber",
        &["loss.kind=mse", "data.task=regression", "loss.delta=2.0"],
    ),
    conflict(("loss.quantile", Any), ("heads", Any), HEADS, &[ONE_HEAD, "loss.quantile=0.9"]),
    conflict(
        ("loss.quantile", Any),
        ("loss.kind", Except(&["quantile"])),
        "only that loss predicts a quantile",
        &["loss.kind=mse", "data.task=regression", "loss.quantile=0.9"],
    ),
    conflict(
        ("optimizer.nesterov", OneOf(&["true"])),
        ("optimizer.momentum", Words("0, for optimizer.kind \"sgd\"")),
        "Nesterov's is a form of momentum",
        &["optimizer.kind=sgd", "optimizer.momentum=0", "optimizer.nesterov=true"],
    ),
    needs_rows(("schedule.kind", OneOf(&["plateau"])), &["data.eval=none", "schedule.kind=plateau"]),
    conflict(
        ("schedule.final_fraction", Any),
        ("schedule.kind", OneOf(&["constant", "step", "exponential"])),
        "the schedule has no end value",
        &["schedule.kind=step", "schedule.final_fraction=0.1"],
    ),
    conflict(
        ("schedule.decay_steps", Any),
        ("schedule.kind", Except(&["wsd"])),
        "the schedule has no decay of its own",
        &["schedule.kind=cosine", "schedule.decay_steps=5"],
    ),
    conflict(
        ("schedule.decay_fraction", Any),
        ("schedule.kind", Except(&["wsd"])),
        "the schedule has no decay of its own",
        &["schedule.kind=cosine", "schedule.decay_fraction=0.1"],
    ),
    conflict(
        ("schedule.step_every_steps", Any),
        ("schedule.kind", Except(&["step", "exponential", "cosine_restarts"])),
        "the schedule has no intervals",
        &["schedule.kind=cosine", "schedule.step_every_steps=5"],
    ),
    conflict(
        ("schedule.step_every_fraction", Any),
        ("schedule.kind", Except(&["step", "exponential", "cosine_restarts"])),
        "the schedule has no intervals",
        &["schedule.kind=cosine", "schedule.step_every_fraction=0.1"],
    ),
    conflict(
        ("schedule.step_factor", Any),
        ("schedule.kind", Except(&["step", "exponential", "plateau"])),
        "the schedule has no reductions",
        &["schedule.kind=cosine", "schedule.step_factor=0.1"],
    ),
    conflict(
        ("schedule.restart_growth", Any),
        ("schedule.kind", Except(&["cosine_restarts"])),
        "the schedule has no restarts",
        &["schedule.kind=cosine", "schedule.restart_growth=2"],
    ),
    conflict(
        ("schedule.plateau_patience", Any),
        ("schedule.kind", Except(&["plateau"])),
        "the schedule does not follow evaluations",
        &["schedule.kind=cosine", "schedule.plateau_patience=2"],
    ),
    conflict(
        ("train.global_batch_size", Any),
        ("train.grad_accum_steps", Words("more")),
        "each micro-batch needs a row",
        &["train.global_batch_size=2", "train.grad_accum_steps=3"],
    ),
    conflict(
        WORLD,
        ("train.grad_accum_steps", Above(1)),
        "micro-shards cut the batch already",
        &["train.deterministic=world", "train.grad_accum_steps=2"],
    )
    .hint("set `train.grad_accum_steps` to 1 and raise `train.micro_shards`"),
    conflict(WORLD, ("comm.zero", Words("2")), "whole gradients are summed on every rank", &[]),
    conflict(WORLD, ("comm.dtype", Words("\"bf16\"")), "gradients are summed in f32", &[]),
    conflict(
        WORLD,
        ("optimizer.kind", Words("\"lamb\", with comm.zero above 0")),
        "sums over shards depend on the number of ranks",
        &[],
    ),
    conflict(
        WORLD,
        ("model.layers", Words("with batch_norm")),
        "the statistics need a whole micro-batch, which micro-shards divide",
        &[],
    ),
    needs_rows(("train.eval_every_steps", Above(0)), &["data.eval=none", "train.eval_every_steps=5"]),
    needs_rows(("train.early_stop_patience", Above(0)), &["data.eval=none", "train.early_stop_patience=2"]),
    needs_rows(
        ("train.early_stop_metric", Except(&["eval_loss"])),
        &["data.eval=none", "train.early_stop_metric=eval_accuracy"],
    ),
    conflict(
        ("train.early_stop_metric", Any),
        ("data.task", Words("of another kind than the metric")),
        "evaluations give the metrics of their task",
        &["data.task=regression", "data.eval_fraction=0.1", "train.early_stop_metric=eval_accuracy"],
    ),
    conflict(
        ("comm.zero_copies", OneOf(&["1"])),
        ("comm.zero", Words("0")),
        "every rank holds all of the state",
        &[],
    ),
    conflict(
        ("comm.zero_copies", OneOf(&["1"])),
        ("optimizer.kind", Words("\"lamb\" or \"muon\", on the CPU")),
        "the ranks exchange parts of each update",
        &[],
    ),
    conflict(
        ("comm.zero_copies", OneOf(&["1"])),
        ("watchdog.save_s", OneOf(&["0"])),
        "no rank saves after a loss",
        &["comm.zero_copies=1", "watchdog.save_s=0"],
    )
    .hint("set `watchdog.save_s` above 0 and `watchdog.enabled` to true, or leave out `comm.zero_copies`"),
    conflict(
        ("comm.zero_copies", OneOf(&["1"])),
        ("watchdog.enabled", OneOf(&["false"])),
        "no rank saves after a loss",
        &["comm.zero_copies=1", "watchdog.enabled=false"],
    )
    .hint("set `watchdog.save_s` above 0 and `watchdog.enabled` to true, or leave out `comm.zero_copies`"),
    conflict(
        ("comm.dtype", Words("\"bf16\"")),
        ("comm.zero", Words("2")),
        "gradients would be rounded in each micro-batch",
        &[],
    ),
    needs_rows(
        ("checkpoint.keep_best", Except(&["eval_loss", "none"])),
        &["data.eval=none", "checkpoint.keep_best=eval_accuracy"],
    ),
    conflict(
        ("checkpoint.keep_best", Any),
        ("data.task", Words("of another kind than the metric")),
        "evaluations give the metrics of their task",
        &["data.task=regression", "data.eval_fraction=0.1", "checkpoint.keep_best=eval_accuracy"],
    ),
    conflict(
        ("checkpoint.keep_best", Any),
        ("train.early_stop_metric", Words("another one, with train.early_stop_patience above 0")),
        "early stopping keeps the best by its own metric",
        &[
            "data.eval_fraction=0.1",
            "train.early_stop_patience=2",
            "train.early_stop_metric=eval_accuracy",
            "checkpoint.keep_best=eval_log_loss",
        ],
    ),
];

/// A list of layers for the examples.
const LINEAR: &str = r#"model.layers=[{kind="linear",out_features=4}]"#;

/// Refuses the first setting that a row excludes, rather by a key that is given than by the default of a key.
///
/// `resolved` holds values that other keys decide on; they count in place of those in `raw`.
pub(super) fn check(raw: &RawConfig, resolved: &[(&str, Option<&str>)]) -> Result<()> {
    let is_default = |row: &Conflict| raw.has_row(row.with) && !raw.is_given(row.with);
    match excluded(raw, resolved).min_by_key(|(row, ..)| is_default(row)) {
        Some((row, setting, other)) => Err(row.error(setting, &other, is_default(row))),
        None => Ok(()),
    }
}

/// The settings that rows exclude, each with its row and the value of the other key.
pub(super) fn excluded<'a>(
    raw: &'a RawConfig,
    resolved: &[(&str, Option<&str>)],
) -> impl Iterator<Item = (&'static Conflict, &'a Setting, Value)> {
    CONFLICTS.iter().filter(|row| raw.is_given(row.key)).filter_map(|row| {
        let setting = raw.given(row.key).filter(|setting| row.value.contains(&setting.value))?;
        let resolved = resolved.iter().find_map(|(key, text)| text.filter(|_| *key == row.with));
        let other = match resolved {
            Some(text) => Value::from(text),
            None => raw.has_row(row.with).then(|| raw.setting(row.with)).flatten()?.value,
        };
        row.when.contains(&other).then_some((row, setting, other))
    })
}

impl Conflict {
    const fn hint(mut self, hint: &'static str) -> Self {
        self.hint = hint;
        self
    }

    /// The error for `setting` next to this value of the other key, which may be its default.
    fn error(&self, setting: &Setting, other: &Value, is_default: bool) -> ConfigError {
        let Conflict { key, value, with, when, reason, hint, .. } = self;
        let place = match when {
            Any => format!("next to `{with}`"),
            TableWith(name) => format!("where `{with}` names a `{name}`"),
            _ if is_default => format!("where `{with}` is {other} by default"),
            _ => format!("where `{with}` is {other}"),
        };
        let hint = match when {
            _ if !hint.is_empty() => (*hint).to_owned(),
            Any => "leave out one of the two".to_owned(),
            Except(values) => format!("leave out `{key}`, or set `{with}` to {}", either(values)),
            _ => format!("leave out `{key}`, or change `{with}`"),
        };
        setting.bad(format!("{} {place}", value.others()), format!("{reason}: {hint}"))
    }

    /// The conflict in words, for the reference of the key: "not "world" with `comm.zero` 2: whole gradients are summed on every
    /// rank".
    pub fn words(&self) -> String {
        let spaced = |values: Values| match values {
            Any => String::new(),
            _ => format!(" {values}"),
        };
        format!("not{} with `{}`{}: {}", spaced(self.value), self.with, spaced(self.when), self.reason)
    }

    /// The conflict as JSON, for programs.
    pub(super) fn to_json(self) -> serde_json::Value {
        let Conflict { value, with, when, reason, .. } = self;
        json!({ "value": value.to_string(), "with": with, "when": when.to_string(), "reason": reason })
    }
}

/// The conflicts in which this key is the one that is refused.
pub fn conflicts_with(name: &str) -> impl Iterator<Item = &'static Conflict> {
    CONFLICTS.iter().filter(move |conflict| conflict.key == name)
}
