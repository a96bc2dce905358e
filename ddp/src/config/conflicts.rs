//! Conflicts between keys: settings that exclude each other, or that leave one of the keys without effect.
//!
//! Each conflict is refused before the first step: by the section of the key, or, if it depends on the rows or the layers, once
//! these are known. `config keys`, docs/config.md and the JSON schema list the conflicts; `tests/combinations` finds combinations
//! that are refused but not listed here.
//!
//! ```
//! use ddp::config::conflicts::CONFLICTS;
//!
//! let world = CONFLICTS.iter().find(|of| of.key == "train.deterministic" && of.with == "train.grad_accum_steps");
//! assert_eq!(world.unwrap().when, "above 1");
//! ```

use serde_json::{Value, json};

/// A setting of `key` that is refused together with a setting of `with`.
#[derive(Debug, Clone, Copy)]
pub struct Conflict {
    /// The key that is refused.
    pub key: &'static str,
    /// The values of `key` that are refused, in words; "" for any value.
    pub value: &'static str,
    /// The other key.
    pub with: &'static str,
    /// The values of `with` that exclude them, in words; "" for any value.
    pub when: &'static str,
    /// Why the two settings exclude each other.
    pub reason: &'static str,
    /// Settings that trigger the conflict; empty if it depends on the rows or the layers.
    pub example: &'static [&'static str],
}

const fn conflict(
    [key, value]: [&'static str; 2],
    [with, when]: [&'static str; 2],
    reason: &'static str,
    example: &'static [&'static str],
) -> Conflict {
    Conflict { key, value, with, when, reason, example }
}

const HEADS: &str = "each head has targets, a task and a loss of its own";
const ONE_HEAD: &str = r#"heads=[{name="a",task="regression"}]"#;
const NO_EVAL: &str = "there are no rows to evaluate on";
const OF_LAYERS: &str = "the list of layers says it";
const OF_PRESET: &str = "it is part of the preset";
const ARRAYS: &str = r#""npy", "npz", "safetensors" or "idx""#;
const NO_TEXT: &str = "other than \"csv\"";
const OTHER_LOSS: &str = r#"other than "cross_entropy", and "focal" on classes"#;
const NO_WSD: &str = r#"other than "wsd""#;
const NO_INTERVAL: &str = r#"other than "step", "exponential" or "cosine_restarts""#;
const NO_FACTOR: &str = r#"other than "step", "exponential" or "plateau""#;
const WORLD: [&str; 2] = ["train.deterministic", "\"world\""];

/// All conflicts, in the order of the keys.
pub static CONFLICTS: &[Conflict] = &[
    conflict(["data.target", ""], ["heads", ""], HEADS, &[ONE_HEAD, "data.target=y"]),
    conflict(["data.task", ""], ["heads", ""], HEADS, &[ONE_HEAD, "data.task=regression"]),
    conflict(["data.classes", ""], ["heads", ""], HEADS, &[ONE_HEAD, "data.classes=3"]),
    conflict(
        ["data.classes", ""],
        ["data.task", "other than \"classification\""],
        "only classes are counted",
        &["data.classes=3", "data.task=regression"],
    ),
    conflict(["data.class_order", ""], ["heads", ""], HEADS, &[ONE_HEAD, "data.class_order=[\"a\",\"b\"]"]),
    conflict(
        ["data.class_order", ""],
        ["data.classes", ""],
        "one counts numbers from 0, the other lists labels",
        &["data.classes=2", "data.class_order=[\"a\",\"b\"]"],
    ),
    conflict(
        ["data.stratify", "true"],
        ["data.split", ""],
        "the column of the split decides, not the classes",
        &["data.split={column=\"a\"}", "data.stratify=true"],
    ),
    conflict(
        ["data.fold", ""],
        ["data.eval_fraction", ""],
        "a fold of K has a K-th of the rows",
        &["data.eval_fraction=0.2", "data.fold=1/5"],
    ),
    conflict(
        ["data.fold", ""],
        ["data.split", "with `column`"],
        "folds are drawn from single rows, from groups or by time",
        &["data.split={column=\"a\"}", "data.fold=1/5"],
    ),
    conflict(["data.filter", ""], ["data.format", ARRAYS], "arrays have no columns with names", &[]),
    conflict(
        ["data.missing_target", "\"skip\""],
        ["data.format", ARRAYS],
        "rows of arrays all have a target",
        &[],
    ),
    conflict(
        ["data.missing_values", ""],
        ["data.format", ARRAYS],
        "arrays hold no texts that could mark a missing value",
        &[],
    ),
    conflict(
        ["data.header", "true or false"],
        ["data.format", NO_TEXT],
        "only files of text have lines of cells",
        &[],
    ),
    conflict(
        ["data.delimiter", "other than \"auto\""],
        ["data.format", NO_TEXT],
        "only files of text have cells with delimiters",
        &[],
    ),
    conflict(
        ["data.decimal", "other than \"auto\""],
        ["data.format", NO_TEXT],
        "other formats mark their numbers by themselves",
        &[],
    ),
    conflict(["data.datetime", ""], ["data.format", ARRAYS], "arrays hold no dates", &[]),
    conflict(
        ["data.normalize_target", "\"standard\""],
        ["loss.kind", "\"poisson\""],
        "counts are not standardized",
        &["data.task=regression", "loss.kind=poisson", "data.normalize_target=standard"],
    ),
    conflict(["data.balance", "\"classes\""], ["heads", ""], HEADS, &[ONE_HEAD, "data.balance=classes"]),
    conflict(
        ["data.balance", "\"classes\""],
        ["data.task", "other than \"classification\""],
        "there are no classes",
        &["data.task=regression", "data.balance=classes"],
    ),
    conflict(
        ["data.balance", "\"classes\""],
        ["data.shuffle", "false"],
        "an epoch would be sorted by class",
        &["data.shuffle=false", "data.balance=classes"],
    ),
    conflict(
        ["data.balance", "\"classes\""],
        ["data.shuffle_mode", "\"blocks\""],
        "rows that are repeated lie all over the file",
        &["data.shuffle_mode=blocks", "data.balance=classes"],
    ),
    conflict(
        ["data.balance", "\"classes\""],
        ["loss.class_weights", "\"balanced\""],
        "both even out the classes",
        &["loss.class_weights=balanced", "data.balance=classes"],
    ),
    conflict(
        ["data.shuffle_window_mib", ""],
        ["data.loader_memory_mib", "less than twice as much"],
        "one window is read while another one is used",
        &["data.shuffle_mode=blocks", "data.loader_memory_mib=64", "data.shuffle_window_mib=64"],
    ),
    conflict(
        ["model.hidden", "[]"],
        ["model.kind", "\"resmlp\" or \"swiglu\""],
        "it lists the widths of the blocks",
        &["model.kind=resmlp", "model.hidden=[]"],
    ),
    conflict(["model.hidden", ""], ["model.layers", ""], OF_LAYERS, &[LINEAR, "model.hidden=[8]"]),
    conflict(["model.kind", ""], ["model.layers", ""], OF_LAYERS, &[LINEAR, "model.kind=resmlp"]),
    conflict(["model.activation", ""], ["model.layers", ""], OF_LAYERS, &[LINEAR, "model.activation=gelu"]),
    conflict(
        ["model.activation", ""],
        ["model.kind", "\"swiglu\""],
        OF_PRESET,
        &["model.kind=swiglu", "model.activation=gelu"],
    ),
    conflict(["model.dropout", ""], ["model.layers", ""], OF_LAYERS, &[LINEAR, "model.dropout=0.1"]),
    conflict(["model.norm", ""], ["model.layers", ""], OF_LAYERS, &[LINEAR, "model.norm=layer"]),
    conflict(
        ["model.norm", ""],
        ["model.kind", "other than \"mlp\""],
        OF_PRESET,
        &["model.kind=resmlp", "model.norm=layer"],
    ),
    conflict(["model.residual", ""], ["model.layers", ""], OF_LAYERS, &[LINEAR, "model.residual=true"]),
    conflict(
        ["model.residual", ""],
        ["model.kind", "other than \"mlp\""],
        OF_PRESET,
        &["model.kind=resmlp", "model.residual=true"],
    ),
    conflict(["loss.kind", ""], ["heads", ""], HEADS, &[ONE_HEAD, "loss.kind=mse"]),
    conflict(
        ["loss.kind", ""],
        ["data.task", "of another kind than the loss"],
        "each loss is for targets of one kind",
        &["data.task=regression", "loss.kind=bce"],
    ),
    conflict(["loss.label_smoothing", ""], ["heads", ""], HEADS, &[ONE_HEAD, "loss.label_smoothing=0.1"]),
    conflict(
        ["loss.label_smoothing", ""],
        ["loss.kind", OTHER_LOSS],
        "only classes are smoothed",
        &["loss.kind=ordinal", "loss.label_smoothing=0.1"],
    ),
    conflict(["loss.class_weights", ""], ["heads", ""], HEADS, &[ONE_HEAD, "loss.class_weights=balanced"]),
    conflict(
        ["loss.class_weights", ""],
        ["loss.kind", OTHER_LOSS],
        "only classes are weighted",
        &["loss.kind=ordinal", "loss.class_weights=balanced"],
    ),
    conflict(["loss.gamma", ""], ["heads", ""], HEADS, &[ONE_HEAD, "loss.gamma=2.0"]),
    conflict(
        ["loss.gamma", ""],
        ["loss.kind", "other than \"focal\""],
        "it is the exponent of focal",
        &["loss.kind=cross_entropy", "loss.gamma=2.0"],
    ),
    conflict(["loss.delta", ""], ["heads", ""], HEADS, &[ONE_HEAD, "loss.delta=2.0"]),
    conflict(
        ["loss.delta", ""],
        ["loss.kind", "other than \"huber\""],
        "it is the bend of huber",
        &["loss.kind=mse", "data.task=regression", "loss.delta=2.0"],
    ),
    conflict(["loss.quantile", ""], ["heads", ""], HEADS, &[ONE_HEAD, "loss.quantile=0.9"]),
    conflict(
        ["loss.quantile", ""],
        ["loss.kind", "other than \"quantile\""],
        "only that loss predicts a quantile",
        &["loss.kind=mse", "data.task=regression", "loss.quantile=0.9"],
    ),
    conflict(
        ["optimizer.nesterov", "true"],
        ["optimizer.momentum", "0"],
        "Nesterov's is a form of momentum",
        &["optimizer.kind=sgd", "optimizer.momentum=0", "optimizer.nesterov=true"],
    ),
    conflict(
        ["schedule.kind", "\"plateau\""],
        ["data.eval", "\"none\""],
        NO_EVAL,
        &["data.eval=none", "schedule.kind=plateau"],
    ),
    conflict(
        ["schedule.final_fraction", ""],
        ["schedule.kind", "\"constant\", \"step\" or \"exponential\""],
        "the schedule has no end value",
        &["schedule.kind=step", "schedule.final_fraction=0.1"],
    ),
    conflict(
        ["schedule.decay_steps", ""],
        ["schedule.kind", NO_WSD],
        "the schedule has no decay of its own",
        &["schedule.kind=cosine", "schedule.decay_steps=5"],
    ),
    conflict(
        ["schedule.decay_fraction", ""],
        ["schedule.kind", NO_WSD],
        "the schedule has no decay of its own",
        &["schedule.kind=cosine", "schedule.decay_fraction=0.1"],
    ),
    conflict(
        ["schedule.step_every_steps", ""],
        ["schedule.kind", NO_INTERVAL],
        "the schedule has no intervals",
        &["schedule.kind=cosine", "schedule.step_every_steps=5"],
    ),
    conflict(
        ["schedule.step_every_fraction", ""],
        ["schedule.kind", NO_INTERVAL],
        "the schedule has no intervals",
        &["schedule.kind=cosine", "schedule.step_every_fraction=0.1"],
    ),
    conflict(
        ["schedule.step_factor", ""],
        ["schedule.kind", NO_FACTOR],
        "the schedule has no reductions",
        &["schedule.kind=cosine", "schedule.step_factor=0.1"],
    ),
    conflict(
        ["schedule.restart_growth", ""],
        ["schedule.kind", r#"other than "cosine_restarts""#],
        "the schedule has no restarts",
        &["schedule.kind=cosine", "schedule.restart_growth=2"],
    ),
    conflict(
        ["schedule.plateau_patience", ""],
        ["schedule.kind", r#"other than "plateau""#],
        "the schedule does not follow evaluations",
        &["schedule.kind=cosine", "schedule.plateau_patience=2"],
    ),
    conflict(
        ["train.global_batch_size", ""],
        ["train.grad_accum_steps", "more"],
        "each micro-batch needs a row",
        &["train.global_batch_size=2", "train.grad_accum_steps=3"],
    ),
    conflict(
        WORLD,
        ["train.grad_accum_steps", "above 1"],
        "micro-shards cut the batch already",
        &["train.deterministic=world", "train.grad_accum_steps=2"],
    ),
    conflict(WORLD, ["comm.zero", "2"], "whole gradients are summed on every rank", &[]),
    conflict(WORLD, ["comm.dtype", "\"bf16\""], "gradients are summed in f32", &[]),
    conflict(
        WORLD,
        ["optimizer.kind", "\"lamb\", with comm.zero above 0"],
        "sums over shards depend on the number of ranks",
        &[],
    ),
    conflict(
        WORLD,
        ["model.layers", "with batch_norm"],
        "the statistics need a whole micro-batch, which micro-shards divide",
        &[],
    ),
    conflict(
        ["train.eval_every_steps", "above 0"],
        ["data.eval", "\"none\""],
        NO_EVAL,
        &["data.eval=none", "train.eval_every_steps=5"],
    ),
    conflict(
        ["train.early_stop_patience", "above 0"],
        ["data.eval", "\"none\""],
        NO_EVAL,
        &["data.eval=none", "train.early_stop_patience=2"],
    ),
    conflict(
        ["train.early_stop_metric", "other than \"eval_loss\""],
        ["data.eval", "\"none\""],
        NO_EVAL,
        &["data.eval=none", "train.early_stop_metric=eval_accuracy"],
    ),
    conflict(
        ["train.early_stop_metric", ""],
        ["data.task", "of another kind than the metric"],
        "evaluations give the metrics of their task",
        &["data.task=regression", "data.eval_fraction=0.1", "train.early_stop_metric=eval_accuracy"],
    ),
    conflict(["comm.zero_copies", "1"], ["comm.zero", "0"], "every rank holds all of the state", &[]),
    conflict(
        ["comm.zero_copies", "1"],
        ["optimizer.kind", "\"lamb\" or \"muon\""],
        "the ranks exchange parts of each update",
        &[],
    ),
    conflict(
        ["comm.zero_copies", "1"],
        ["watchdog.save_s", "0"],
        "no rank saves after a loss",
        &["comm.zero_copies=1", "watchdog.save_s=0"],
    ),
    conflict(
        ["comm.zero_copies", "1"],
        ["watchdog.enabled", "false"],
        "no rank saves after a loss",
        &["comm.zero_copies=1", "watchdog.enabled=false"],
    ),
    conflict(
        ["comm.dtype", "\"bf16\""],
        ["comm.zero", "2"],
        "gradients would be rounded in each micro-batch",
        &[],
    ),
    conflict(
        ["checkpoint.keep_best", "other than \"eval_loss\""],
        ["data.eval", "\"none\""],
        NO_EVAL,
        &["data.eval=none", "checkpoint.keep_best=eval_accuracy"],
    ),
    conflict(
        ["checkpoint.keep_best", ""],
        ["data.task", "of another kind than the metric"],
        "evaluations give the metrics of their task",
        &["data.task=regression", "data.eval_fraction=0.1", "checkpoint.keep_best=eval_accuracy"],
    ),
    conflict(
        ["checkpoint.keep_best", ""],
        ["train.early_stop_metric", "another one, with train.early_stop_patience above 0"],
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

impl Conflict {
    /// The conflict in words, for the reference of the key: "not "world" with `comm.zero` 2: whole gradients are summed on every
    /// rank".
    pub fn words(&self) -> String {
        let spaced = |text: &str| if text.is_empty() { String::new() } else { format!(" {text}") };
        format!("not{} with `{}`{}: {}", spaced(self.value), self.with, spaced(self.when), self.reason)
    }

    /// The conflict as JSON, for programs.
    pub(super) fn to_json(self) -> Value {
        json!({ "value": self.value, "with": self.with, "when": self.when, "reason": self.reason })
    }
}

/// The conflicts in which this key is the one that is refused.
pub fn conflicts_with(name: &str) -> impl Iterator<Item = &'static Conflict> {
    CONFLICTS.iter().filter(move |conflict| conflict.key == name)
}
