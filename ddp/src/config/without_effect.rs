//! Settings without effect next to the others: a run warns of them. Those that contradict each other are refused
//! ([`conflicts`](super::conflicts)).
//!
//! A row is the check and its reason. To add one, add a row; a test sets the key of each.

use super::bad_steps::Spike;
use super::data_values::{Encode, ShuffleMode, Task, UnknownLabel};
use super::document::entries;
use super::precision::Precision;
use super::schedule::{ScheduleShape, Span};
use super::train::Determinism;
use super::{Config, EvalSource, OptimizerKind, model};

/// A key whose value makes no difference where `is_idle`.
struct Idle {
    key: &'static str,
    is_idle: fn(&Config) -> bool,
    reason: &'static str,
    /// Settings that leave it without effect.
    #[cfg(test)]
    example: &'static [&'static str],
}

macro_rules! idle {
    ($($key:literal, $is_idle:expr, $reason:expr, $example:expr;)+) => {
        &[$(Idle { key: $key, is_idle: $is_idle, reason: $reason, #[cfg(test)] example: $example }),+]
    };
}

const NO_MOMENTUM: &str = "only sgd and muon have a momentum";
const NOT_MUON: &str = "only muon leaves parameters to adamw";
const NO_AVERAGE: &str = "train.ema_decay is 0";
const NO_SPIKES: &str = "train.on_spike is \"off\"";
const UNWATCHED: &str = "watchdog.enabled is false";
const LINEAR: &str = "the model has no hidden layers";

#[rustfmt::skip]
static IDLE: &[Idle] = idle! {
    "data.unknown_label", |c| c.data.unknown_label == UnknownLabel::Skip && has_no_classes(c), "there are no classes",
        &["data.unknown_label=skip", "data.task=regression"];
    "data.stratify", |c| !matches!(c.data.eval, EvalSource::Fraction(_) | EvalSource::Fold(_)),
        "no data.eval_fraction or data.fold draws rows", &["data.stratify=false", "data.eval=none"];
    "data.embedding_dim", |c| c.data.encode != Encode::Embedding, "data.encode is not \"embedding\"",
        &["data.embedding_dim=8", "data.encode=one_hot"];
    "data.normalize_target", |c| matches!(c.data.task, Task::Classification | Task::Multilabel) && !c.data.auto_task,
        "only quantities are normalized", &["data.normalize_target=none", "data.task=classification"];
    "data.shuffle_window_mib", |c| !c.data.shuffle || c.data.shuffle_mode == ShuffleMode::Full,
        "only data.shuffle_mode \"blocks\" has a window", &["data.shuffle_window_mib=7"];
    "model.activation", is_linear, LINEAR, &["model.activation=gelu", "model.hidden=[]"];
    "model.dropout", is_linear, LINEAR, &["model.dropout=0.1", "model.hidden=[]"];
    "model.norm", is_linear, LINEAR, &["model.norm=layer", "model.hidden=[]"];
    "model.residual", is_linear, LINEAR, &["model.residual=true", "model.hidden=[]"];
    "optimizer.betas", |c| c.optimizer.kind == OptimizerKind::Sgd, "sgd has no moments",
        &["optimizer.betas=[0.8,0.9]", "optimizer.kind=sgd"];
    "optimizer.eps", |c| matches!(c.optimizer.kind, OptimizerKind::Sgd | OptimizerKind::Lion),
        "sgd and lion divide by no second moment", &["optimizer.eps=1e-6", "optimizer.kind=lion"];
    "optimizer.momentum", has_no_momentum, NO_MOMENTUM, &["optimizer.momentum=0.5"];
    "optimizer.nesterov", has_no_momentum, NO_MOMENTUM, &["optimizer.nesterov=true"];
    "optimizer.adamw_lr", |c| c.optimizer.kind != OptimizerKind::Muon, NOT_MUON, &["optimizer.adamw_lr=0.1"];
    "optimizer.adamw_weight_decay", |c| c.optimizer.kind != OptimizerKind::Muon, NOT_MUON,
        &["optimizer.adamw_weight_decay=0.1"];
    "schedule.warmup_start", |c| c.schedule.warmup.length == Span::Steps(0), "there is no warm-up",
        &["schedule.warmup_start=0.1"];
    "train.loss_scale_init", |c| c.train.precision != Precision::F16, "only train.precision \"f16\" scales the loss",
        &["train.loss_scale_init=1024"];
    "train.ema_warmup", has_no_average, NO_AVERAGE, &["train.ema_warmup=false"];
    "train.ema_eval", has_no_average, NO_AVERAGE, &["train.ema_eval=averaged"];
    "train.ema_statistics", has_no_average, NO_AVERAGE, &["train.ema_statistics=false"];
    "train.micro_shards", |c| c.train.deterministic != Determinism::World, "train.deterministic is not \"world\"",
        &["train.micro_shards=4"];
    "train.early_stop_min_delta",
        |c| c.train.early_stop_patience == 0 && !matches!(c.schedule.shape, ScheduleShape::Plateau { .. }),
        "train.early_stop_patience is 0", &["train.early_stop_min_delta=0.5"];
    "train.on_replica_difference", |c| c.train.replica_check_steps == 0, "train.replica_check_steps is 0",
        &["train.on_replica_difference=repair", "train.replica_check_steps=0"];
    "train.spike_window", has_no_spikes, NO_SPIKES, &["train.spike_window=50"];
    "train.spike_threshold", has_no_spikes, NO_SPIKES, &["train.spike_threshold=5"];
    "watchdog.interval_s", |c| !c.watchdog.enabled, UNWATCHED, &["watchdog.interval_s=1", "watchdog.enabled=false"];
    "watchdog.timeout_s", |c| !c.watchdog.enabled, UNWATCHED, &["watchdog.timeout_s=1", "watchdog.enabled=false"];
    "watchdog.save_s", |c| !c.watchdog.enabled, UNWATCHED, &["watchdog.save_s=1", "watchdog.enabled=false"];
};

fn has_no_classes(config: &Config) -> bool {
    matches!(config.data.task, Task::Regression | Task::Multilabel) && !config.data.auto_task
}

fn is_linear(config: &Config) -> bool {
    config.model.hidden.is_empty() && config.model.layers.is_empty()
}

fn has_no_momentum(config: &Config) -> bool {
    !matches!(config.optimizer.kind, OptimizerKind::Sgd | OptimizerKind::Muon)
}

fn has_no_average(config: &Config) -> bool {
    config.optimizer.ema_decay == 0.0
}

fn has_no_spikes(config: &Config) -> bool {
    config.train.bad_steps.on_spike == Spike::Off
}

impl Config {
    /// Warnings of given settings that make no difference: others leave them without effect, or the command line replaces them. A value
    /// that the key has anyway is none of them.
    pub fn without_effect(&self) -> Vec<String> {
        let given = &self.given.raw;
        let kept = model::without_replaced(given);
        let value = |config: &Config, key: &str| {
            entries(config).into_iter().find(|entry| entry.key.name == key).map(|entry| entry.value)
        };
        let is_set = |row: &&Idle| {
            let without = || Config::resolve(&kept.without(row.key), None);
            kept.is_given(row.key)
                && (row.is_idle)(self)
                && without().is_ok_and(|other| value(&other, row.key) != value(self, row.key))
        };
        let replaced = given.given_keys().filter(|key| !kept.is_given(key)).map(|key| {
            let at = given.given(key).map_or_else(String::new, |setting| setting.origin.to_string());
            format!("{at}: `{key}` is left out, since settings of the command line replace it")
        });
        let idle = IDLE.iter().filter(is_set);
        replaced.chain(idle.map(|row| format!("`{}` has no effect: {}", row.key, row.reason))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_warns_of_its_example_alone() {
        for row in IDLE {
            let sets: Vec<String> = row.example.iter().map(|set| (*set).to_owned()).collect();
            let warnings = Config::load(None, &sets).unwrap().without_effect();
            let expected = format!("`{}` has no effect: {}", row.key, row.reason);
            assert_eq!(warnings, [expected], "{}", row.example.join(" "));
        }
        assert_eq!(Config::load(None, &[]).unwrap().without_effect(), Vec::<String>::new());
        // A resolved config has a value of each key.
        let toml = Config::load(None, &["data.shuffle_mode=blocks".to_owned()]).unwrap().to_toml();
        let again = Config::from_saved(&toml, std::path::Path::new("saved.toml")).unwrap();
        assert_eq!(again.without_effect(), Vec::<String>::new());
    }

    #[test]
    fn keys_of_a_file_that_the_command_line_replaces_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        let text = "[data]\ntrain = \"builtin:digits\"\n[model]\nnorm = \"layer\"\ndropout = 0.1\n";
        std::fs::write(&path, text).unwrap();
        let warnings = |set: &str| Config::load(Some(&path), &[set.to_owned()]).unwrap().without_effect();
        let of_kind = warnings("model.kind=resmlp");
        assert_eq!(of_kind.len(), 1, "{of_kind:?}");
        assert!(
            of_kind[0].contains("run.toml: line 4") && of_kind[0].contains("`model.norm` is left out"),
            "{of_kind:?}"
        );
        assert_eq!(warnings("model.layers=[{kind=\"linear\",out_features=4}]").len(), 2);
        assert_eq!(warnings("model.hidden=[8]"), Vec::<String>::new());
    }
}
