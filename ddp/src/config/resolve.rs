//! Settings -> checked values. All checks of the config are here, and nowhere after.

use std::path::Path;

use super::setting::{Named, Setting};
use super::{
    Activation, Batch, CommConfig, CommDtype, Config, DataConfig, DataFormat, Encode, EvalSource, Length,
    LogConfig, Loss, Missing, ModelConfig, Norm, Normalize, OptimizerConfig, OptimizerKind, Placement,
    Precision, ShuffleMode, Task, TrainConfig,
};
use crate::error::Result;

/// Widths, batches and counts beyond these are slips of the finger; below them nothing overflows.
const MAX_WIDTH: u64 = 1 << 24;
const MAX_LAYERS: usize = 1024;
const MAX_ROWS: u64 = 1 << 31;
const MAX_EPOCHS: u64 = 1_000_000_000;
const MAX_STEPS: u64 = 1_000_000_000_000;

/// The checked config of these settings, of which each key occurs once; `file` gives its name.
pub(super) fn config(settings: Vec<Setting>, file: Option<&Path>) -> Result<Config> {
    let given = Given(settings);
    let data = data(&given)?;
    let loss = loss(&given, &data)?;
    Ok(Config {
        name: name(&given, file, &data)?,
        model: model(&given)?,
        optimizer: optimizer(&given)?,
        train: train(&given)?,
        comm: CommConfig {
            bucket_mib: given.number(
                "comm.bucket_mib",
                32.0,
                |mib| mib > 0.0 && mib <= 1e6,
                "a size in MiB above 0 and at most 1e6",
                "32 is a good start",
            )?,
            overlap: given.bool("comm.overlap", true)?,
            dtype: given.get("comm.dtype").map_or(Ok(CommDtype::F32), Setting::one_of)?,
        },
        log: LogConfig { every_steps: given.count("log.every_steps", 50, 1, MAX_STEPS, "1 logs each step")? },
        data,
        loss,
    })
}

/// The given settings, read with their defaults.
struct Given(Vec<Setting>);

impl Given {
    fn get(&self, key: &str) -> Option<&Setting> {
        debug_assert!(super::keys::known(key).is_some(), "{key} is missing from KEYS");
        self.0.iter().rev().find(|setting| setting.key == key)
    }

    fn bool(&self, key: &str, default: bool) -> Result<bool> {
        self.get(key).map_or(Ok(default), Setting::bool)
    }

    fn count(&self, key: &str, default: usize, min: u64, max: u64, hint: &str) -> Result<usize> {
        self.get(key).map_or(Ok(default), |setting| Ok(setting.count(min, max, hint)? as usize))
    }

    fn number(
        &self,
        key: &str,
        default: f64,
        fits: impl Fn(f64) -> bool,
        expected: &str,
        hint: &str,
    ) -> Result<f64> {
        self.get(key).map_or(Ok(default), |setting| setting.number(fits, expected, hint))
    }

    fn one_of<T: Named>(&self, key: &str, default: T) -> Result<T> {
        self.get(key).map_or(Ok(default), Setting::one_of)
    }
}

fn name(given: &Given, file: Option<&Path>, data: &DataConfig) -> Result<String> {
    if let Some(setting) = given.get("name") {
        let name = setting.text("\"digits\"")?;
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
    let source = |key: &str| given.get(key).map(|setting| setting.text("\"builtin:digits\"")).transpose();
    let train = source("data.train")?.unwrap_or_else(|| "builtin:digits".to_owned());
    let fraction = given.get("data.eval_fraction").map(|setting| {
        setting.number(
            |part| part > 0.0 && part < 1.0,
            "a fraction between 0 and 1, both excluded",
            "0.2 evaluates on a fifth of the rows",
        )
    });
    let eval = match (source("data.eval")?, fraction.transpose()?) {
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
            let target = setting.texts("\"label\"")?;
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
    let optional = |key: &str, example| given.get(key).map(|setting| setting.text(example)).transpose();
    let names = |key: &str| match given.get(key) {
        None => Ok(Vec::new()),
        // What a resolved config says where there are none.
        Some(setting) if setting.value.as_array().is_some_and(Vec::is_empty) => Ok(Vec::new()),
        Some(setting) => setting.texts("[\"id\"]"),
    };
    let (drop, categorical) = (names("data.drop")?, names("data.categorical")?);
    let weight = optional("data.weight", "\"weight\"")?;
    let eval_weight = optional("data.eval_weight", "\"w_test.npy\"")?;
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
        labels: optional("data.labels", "\"y.npy\"")?,
        eval,
        eval_labels: optional("data.eval_labels", "\"y_test.npy\"")?,
        eval_weight,
        format: given.one_of("data.format", DataFormat::Auto)?,
        features_key: optional("data.features_key", "\"features\"")?.unwrap_or_else(|| "features".to_owned()),
        labels_key: optional("data.labels_key", "\"labels\"")?.unwrap_or_else(|| "labels".to_owned()),
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

fn optimizer(given: &Given) -> Result<OptimizerConfig> {
    let not_negative = |x: f64| x >= 0.0;
    let below_one = |x: f64| (0.0..1.0).contains(&x);
    let kind = given.one_of("optimizer.kind", OptimizerKind::AdamW)?;
    let default = OptimizerConfig::new(kind, 1e-3);
    let betas = match given.get("optimizer.betas") {
        None => default.betas,
        Some(setting) => {
            let expected = "two numbers from 0 to below 1";
            let betas = setting.numbers(below_one, expected, "[0.9, 0.999] is usual")?;
            <[f64; 2]>::try_from(betas).map_err(|_| setting.bad(expected, "[0.9, 0.999] is usual"))?
        }
    };
    let config = OptimizerConfig {
        kind,
        lr: given.number(
            "optimizer.lr",
            default.lr,
            // In f32 too: the step is taken in single precision.
            |lr| lr as f32 > 0.0 && (lr as f32).is_finite(),
            "a finite number above 0",
            "0.001 is usual for adamw, 0.1 to 0.01 for sgd",
        )?,
        betas,
        eps: given.number(
            "optimizer.eps",
            default.eps,
            |eps| eps as f32 > 0.0,
            "a number above 0",
            "1e-8 is usual",
        )?,
        weight_decay: given.number(
            "optimizer.weight_decay",
            default.weight_decay,
            not_negative,
            "a number of 0 or above",
            "0 switches weight decay off",
        )?,
        momentum: given.number(
            "optimizer.momentum",
            default.momentum,
            below_one,
            "a number from 0 to below 1",
            "0 switches momentum off",
        )?,
        nesterov: given.bool("optimizer.nesterov", default.nesterov)?,
    };
    if config.kind == OptimizerKind::Sgd
        && config.nesterov
        && config.momentum == 0.0
        && let Some(setting) = given.get("optimizer.nesterov")
    {
        return Err(setting.bad("false where `optimizer.momentum` is 0", "give a momentum above 0"));
    }
    Ok(config)
}

fn train(given: &Given) -> Result<TrainConfig> {
    let epochs = || given.count("train.epochs", 30, 1, MAX_EPOCHS, "1 passes over the data once");
    let length = match given.get("train.steps") {
        Some(setting) => Length::Steps(setting.count(1, MAX_STEPS, "1 takes one optimiser step")? as usize),
        None => Length::Epochs(epochs()?),
    };
    let grad_accum_steps =
        given.count("train.grad_accum_steps", 1, 1, 1 << 20, "1 switches accumulation off")?;
    let rows_hint = "32 is a good start";
    let batch = match given.get("train.global_batch_size") {
        Some(setting) => {
            let rows = setting.count(1, MAX_ROWS, rows_hint)? as usize;
            if rows < grad_accum_steps {
                return Err(setting.bad(
                    format!("at least `train.grad_accum_steps`, {grad_accum_steps}"),
                    "each micro-batch needs a row: enlarge the batch or accumulate less",
                ));
            }
            Batch::Global(rows)
        }
        None => Batch::PerRank(given.count("train.batch_size", 32, 1, MAX_ROWS, rows_hint)?),
    };
    Ok(TrainConfig {
        length,
        batch,
        grad_accum_steps,
        clip_grad_norm: given.number(
            "train.clip_grad_norm",
            0.0,
            |norm| norm >= 0.0,
            "a number of 0 or above",
            "0 switches clipping off",
        )?,
        seed: given.get("train.seed").map_or(Ok(0), |setting| {
            setting.count(0, i64::MAX as u64, "any whole number that is not negative")
        })?,
        precision: given.get("train.precision").map_or(Ok(Precision::F32), Setting::one_of)?,
    })
}
