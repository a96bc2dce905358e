//! Settings -> checked values. All checks of the config are here, and nowhere after.

use std::path::Path;

use super::setting::{Named, Setting};
use super::{
    Activation, Config, DataConfig, DataFormat, Encode, EvalSource, LogConfig, Loss, Missing, ModelConfig,
    Norm, Normalize, Placement, ShuffleMode, Task, resolve_training,
};
use crate::error::Result;

/// Widths, batches and counts beyond these are slips of the finger; below them nothing overflows.
const MAX_WIDTH: u64 = 1 << 24;
const MAX_LAYERS: usize = 1024;
pub(super) const MAX_STEPS: u64 = 1_000_000_000_000;

/// The checked config of these settings, of which each key occurs once; `file` gives its name.
pub(super) fn config(settings: Vec<Setting>, file: Option<&Path>) -> Result<Config> {
    let given = Given(settings);
    let data = data(&given)?;
    let loss = loss(&given, &data)?;
    Ok(Config {
        name: name(&given, file, &data)?,
        model: model(&given)?,
        optimizer: resolve_training::optimizer(&given)?,
        schedule: resolve_training::schedule(&given)?,
        train: resolve_training::train(&given, &data)?,
        comm: resolve_training::comm(&given)?,
        checkpoint: resolve_training::checkpoint(&given, &data)?,
        log: LogConfig { every_steps: given.count("log.every_steps", 50, 1, MAX_STEPS, "1 logs each step")? },
        data,
        loss,
    })
}

/// The given settings, read with their defaults.
pub(super) struct Given(Vec<Setting>);

impl Given {
    pub(super) fn get(&self, key: &str) -> Option<&Setting> {
        debug_assert!(super::keys::known(key).is_some(), "{key} is missing from KEYS");
        self.0.iter().rev().find(|setting| setting.key == key)
    }

    pub(super) fn bool(&self, key: &str, default: bool) -> Result<bool> {
        self.get(key).map_or(Ok(default), Setting::bool)
    }

    pub(super) fn count(&self, key: &str, default: usize, min: u64, max: u64, hint: &str) -> Result<usize> {
        self.get(key).map_or(Ok(default), |setting| Ok(setting.count(min, max, hint)? as usize))
    }

    pub(super) fn number(
        &self,
        key: &str,
        default: f64,
        fits: impl Fn(f64) -> bool,
        expected: &str,
        hint: &str,
    ) -> Result<f64> {
        self.get(key).map_or(Ok(default), |setting| setting.number(fits, expected, hint))
    }

    pub(super) fn one_of<T: Named>(&self, key: &str, default: T) -> Result<T> {
        self.get(key).map_or(Ok(default), Setting::one_of)
    }
}

fn name(given: &Given, file: Option<&Path>, data: &DataConfig) -> Result<String> {
    if let Some(setting) = given.get("name") {
        let name = setting.text()?;
        let fits = name.chars().all(|c| c.is_alphanumeric() || "._-".contains(c)) && !name.starts_with('.');
        return if fits && name.len() <= 100 {
            Ok(name)
        } else {
            Err(setting.bad(
                "letters, digits, `.`, `_` and `-`, at most 100 bytes, no `.` in front",
                "the name becomes part of the run's folder",
            ))
        };
    }
    let source = data.train.strip_prefix("builtin:").unwrap_or(&data.train);
    let stem = file.unwrap_or(Path::new(source)).file_stem().unwrap_or_default();
    let clean: String = stem
        .to_string_lossy()
        .chars()
        .map(|c| if c.is_alphanumeric() || "_-".contains(c) { c } else { '-' })
        .take(25)
        .collect();
    Ok(if clean.is_empty() { "run".to_owned() } else { clean })
}

fn data(given: &Given) -> Result<DataConfig> {
    let optional = |key: &str| given.get(key).map(Setting::text).transpose();
    let train = optional("data.train")?.unwrap_or_else(|| "builtin:digits".to_owned());
    let fraction = given.get("data.eval_fraction").map(|setting| {
        setting.number(
            |part| part > 0.0 && part < 1.0,
            "a fraction between 0 and 1, both excluded",
            "0.2 evaluates on a fifth of the rows",
        )
    });
    let eval = match (optional("data.eval")?, fraction.transpose()?) {
        (_, Some(fraction)) => EvalSource::Fraction(fraction),
        (Some(source), _) if source == "none" => EvalSource::None,
        (Some(source), _) => EvalSource::Source(source),
        // A built-in set brings its own test rows.
        (None, None) if train.starts_with("builtin:") => EvalSource::Source(train.clone()),
        (None, None) => EvalSource::None,
    };
    let task = given.one_of("data.task", Task::Classification)?;
    let target = match given.get("data.target") {
        None => vec!["label".to_owned()],
        Some(setting) => {
            let target = setting.texts()?;
            for (i, name) in target.iter().enumerate() {
                if target[..i].contains(name) {
                    return Err(setting.bad("each column once", format!("remove one `{name}`")));
                }
            }
            if task == Task::Classification && target.len() > 1 {
                return Err(setting.bad(
                    "one column for task \"classification\"",
                    "set `data.task` to \"regression\" or \"multilabel\" for several targets",
                ));
            }
            target
        }
    };
    let classes = match given.get("data.classes") {
        None => None,
        Some(setting) if task != Task::Classification => {
            return Err(setting
                .bad(format!("absent for task \"{task}\""), "only task \"classification\" has classes"));
        }
        Some(setting) => Some(setting.count(2, MAX_WIDTH, "leave it out to take it from the data")? as usize),
    };
    let names = |key: &str| match given.get(key) {
        None => Ok(Vec::new()),
        // What a resolved config says where there are none.
        Some(setting) if setting.value.as_array().is_some_and(Vec::is_empty) => Ok(Vec::new()),
        Some(setting) => setting.texts(),
    };
    let (drop, categorical) = (names("data.drop")?, names("data.categorical")?);
    let weight = optional("data.weight")?;
    let eval_weight = optional("data.eval_weight")?;
    if let Some(setting) = given.get("data.eval_weight")
        && !matches!(&eval, EvalSource::Source(source) if !source.starts_with("builtin:"))
    {
        return Err(setting.bad(
            "absent without files in `data.eval`",
            "rows that are taken out of the training rows have the weights of `data.weight`",
        ));
    }
    if let Some(setting) = given.get("data.weight")
        && weight.as_ref().is_some_and(|weight| target.contains(weight))
    {
        return Err(setting
            .bad("a column that is no target", "a column is a feature, a target, the weight, or left out"));
    }
    for (key, columns) in [("data.drop", &drop), ("data.categorical", &categorical)] {
        let taken = target.iter().chain(&weight).chain(if key == "data.drop" { &categorical } else { &drop });
        if let Some(name) = taken.into_iter().find(|name| columns.contains(name))
            && let Some(setting) = given.get(key)
        {
            return Err(setting.bad(
                format!("columns without another use, and \"{name}\" has one"),
                "a column is a feature, a target, the weight, or left out",
            ));
        }
    }
    let loader_memory_mib =
        given.count("data.loader_memory_mib", 1024, 1, 1 << 30, "1024 is 1 GiB a rank")?;
    let window = given.count("data.shuffle_window_mib", 64, 1, 1 << 20, "64 is a good start")?;
    let max_window = (loader_memory_mib / 2).max(1);
    if let Some(setting) = given.get("data.shuffle_window_mib")
        && window > max_window
    {
        let expected = format!("at most half of `data.loader_memory_mib`, {max_window} MiB");
        return Err(setting.bad(expected, "one window is read while another one is used"));
    }
    Ok(DataConfig {
        train,
        labels: optional("data.labels")?,
        eval,
        eval_labels: optional("data.eval_labels")?,
        eval_weight,
        format: given.one_of("data.format", DataFormat::Auto)?,
        features_key: optional("data.features_key")?.unwrap_or_else(|| "features".to_owned()),
        labels_key: optional("data.labels_key")?.unwrap_or_else(|| "labels".to_owned()),
        target,
        task,
        classes,
        weight,
        drop,
        categorical,
        encode: given.one_of("data.encode", Encode::OneHot)?,
        embedding_dim: match given.count("data.embedding_dim", 0, 0, 1 << 12, "0 chooses one")? {
            0 => None,
            dim => Some(dim),
        },
        missing: given.one_of("data.missing", Missing::Error)?,
        normalize: given.one_of("data.normalize", Normalize::None)?,
        shuffle: given.bool("data.shuffle", true)?,
        shuffle_mode: given.one_of("data.shuffle_mode", ShuffleMode::Full)?,
        shuffle_window_mib: window.min(max_window),
        placement: given.one_of("data.placement", Placement::Auto)?,
        prefetch: given.count("data.prefetch", 4, 1, 1024, "4 is a good start")?,
        loader_threads: given.count("data.loader_threads", 0, 0, 256, "0 takes as many as fit")?,
        loader_memory_mib,
    })
}

fn model(given: &Given) -> Result<ModelConfig> {
    let hidden = match given.get("model.hidden") {
        None => vec![128, 64],
        Some(setting) => {
            let widths = setting.counts(1, MAX_WIDTH, "each number is the width of one hidden layer")?;
            if widths.len() > MAX_LAYERS {
                return Err(setting.bad(format!("at most {MAX_LAYERS} layers"), "use fewer, wider layers"));
            }
            widths.into_iter().map(|width| width as usize).collect()
        }
    };
    Ok(ModelConfig {
        hidden,
        activation: given.one_of("model.activation", Activation::Relu)?,
        dropout: given.number(
            "model.dropout",
            0.0,
            |p| (0.0..1.0).contains(&p),
            "a probability from 0 to below 1",
            "0 switches dropout off",
        )?,
        norm: given.one_of("model.norm", Norm::None)?,
        residual: given.bool("model.residual", false)?,
        bias: given.bool("model.bias", true)?,
    })
}

/// The losses by the names of `loss.kind`.
#[derive(Clone, Copy, PartialEq)]
enum LossKind {
    Auto,
    CrossEntropy,
    Bce,
    Mse,
    Huber,
}

impl Named for LossKind {
    const VALUES: &'static [(&'static str, Self)] = &[
        ("auto", Self::Auto),
        ("cross_entropy", Self::CrossEntropy),
        ("bce", Self::Bce),
        ("mse", Self::Mse),
        ("huber", Self::Huber),
    ];
}

fn loss(given: &Given, data: &DataConfig) -> Result<Loss> {
    let fitting: &[LossKind] = match data.task {
        Task::Classification => &[LossKind::CrossEntropy],
        Task::Multilabel => &[LossKind::Bce],
        Task::Regression => &[LossKind::Mse, LossKind::Huber],
    };
    let mut kind = given.one_of("loss.kind", LossKind::Auto)?;
    if kind == LossKind::Auto {
        kind = fitting[0];
    } else if !fitting.contains(&kind)
        && let Some(setting) = given.get("loss.kind")
    {
        let names: Vec<_> = LossKind::VALUES
            .iter()
            .filter(|(_, kind)| fitting.contains(kind))
            .map(|(name, _)| *name)
            .collect();
        return Err(setting.bad(
            format!("\"{}\" for task \"{}\"", names.join("\" or \""), data.task),
            "set `data.task` to the task you mean, or leave `loss.kind` out",
        ));
    }
    for (key, owner, owner_name) in [
        ("loss.label_smoothing", LossKind::CrossEntropy, "cross_entropy"),
        ("loss.class_weights", LossKind::CrossEntropy, "cross_entropy"),
        ("loss.delta", LossKind::Huber, "huber"),
    ] {
        if kind != owner
            && let Some(setting) = given.get(key)
        {
            let expected = format!("absent unless the loss is \"{owner_name}\"");
            return Err(setting.bad(expected, format!("remove it, or set `loss.kind` to \"{owner_name}\"")));
        }
    }
    Ok(match kind {
        LossKind::Auto | LossKind::CrossEntropy => Loss::CrossEntropy {
            label_smoothing: given.number(
                "loss.label_smoothing",
                0.0,
                |part| (0.0..1.0).contains(&part),
                "a fraction from 0 to below 1",
                "0 switches smoothing off, 0.1 is usual",
            )?,
            class_weights: class_weights(given, data)?,
        },
        LossKind::Bce => Loss::Bce,
        LossKind::Mse => Loss::Mse,
        LossKind::Huber => Loss::Huber {
            delta: given.number(
                "loss.delta",
                1.0,
                |delta| delta > 0.0,
                "a number above 0",
                "1.0 is usual",
            )?,
        },
    })
}

fn class_weights(given: &Given, data: &DataConfig) -> Result<Option<Vec<f32>>> {
    let Some(setting) = given.get("loss.class_weights") else {
        return Ok(None);
    };
    let fits = |weight: f64| weight as f32 > 0.0 && (weight as f32).is_finite();
    let weights = setting.numbers(fits, "finite numbers above 0", "1.0 leaves a class as it is")?;
    if weights.is_empty() || data.classes.is_some_and(|classes| classes != weights.len()) {
        let expected = match data.classes {
            Some(classes) => format!("{classes} numbers, as many as `data.classes`"),
            None => "one number a class".to_owned(),
        };
        return Err(setting.bad(expected, "give one weight for each class, or leave the key out"));
    }
    Ok(Some(weights.into_iter().map(|weight| weight as f32).collect()))
}
