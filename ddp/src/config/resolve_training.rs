//! Settings -> checked `[optimizer]`, `[schedule]`, `[train]`, `[comm]` and `[checkpoint]`.

use toml::Value;

use super::keys::{example as example_of, nearest};
use super::resolve::{Given, MAX_STEPS};
use super::setting::{Named, Setting};
use super::{
    Batch, CheckpointConfig, CommConfig, CommDtype, DataConfig, Determinism, EvalMetric, EvalSource, Length,
    OptimizerConfig, OptimizerKind, ParamGroup, Precision, ScheduleConfig, ScheduleShape, Span, TrainConfig,
    Warmup, ZeroStage,
};
use crate::error::Result;

const EVAL_HINT: &str =
    "give rows in `data.eval`, or take a part of the training rows with `data.eval_fraction`, such as 0.1";
const MAX_ROWS: u64 = 1 << 31;
const MAX_EPOCHS: u64 = 1_000_000_000;
const MAX_MICRO_SHARDS: u64 = 1 << 12;
const MAX_LOSS_SCALE: f64 = (1u64 << 30) as f64;

pub(super) fn optimizer(given: &Given) -> Result<OptimizerConfig> {
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
        decay_bias_norm: given.bool("optimizer.decay_bias_norm", default.decay_bias_norm)?,
        groups: given.get("optimizer.groups").map_or(Ok(Vec::new()), param_groups)?,
        ema_decay: given.number(
            "train.ema_decay",
            default.ema_decay,
            below_one,
            "a number from 0 to below 1",
            "0.999 is usual, 0 keeps no average",
        )?,
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

/// The list of tables in `optimizer.groups`.
fn param_groups(setting: &Setting) -> Result<Vec<ParamGroup>> {
    const KEYS: [&str; 3] = ["match", "lr_scale", "weight_decay"];
    let example = || format!("for example {}", example_of("optimizer.groups"));
    let Some(items) = setting.value.as_array() else {
        return Err(setting.bad("a list of groups", example()));
    };
    let group = |item: &Value| {
        let Some(table) = item.as_table() else {
            return Err(setting.bad("a list of groups, each in braces", example()));
        };
        if let Some(key) = table.keys().find(|key| !KEYS.contains(&key.as_str())) {
            let hint =
                nearest(key, KEYS.into_iter()).map_or_else(example, |key| format!("did you mean `{key}`?"));
            return Err(
                setting.bad(format!("groups of `{}`, and `{key}` is none of these", KEYS.join("`, `")), hint)
            );
        }
        let Some(pattern) = table.get("match").and_then(Value::as_str) else {
            return Err(setting.bad("groups that each `match` a pattern of names", example()));
        };
        if let Err(error) = glob::Pattern::new(pattern) {
            return Err(setting.bad(
                format!("patterns, and \"{pattern}\" is none: {} at character {}", error.msg, error.pos + 1),
                "`*` and `?` stand for anything, `[ab]` for one of these",
            ));
        }
        let number = |key: &str| {
            let Some(value) = table.get(key) else { return Ok(None) };
            let number = value.as_float().or_else(|| value.as_integer().map(|number| number as f64));
            match number.filter(|number| number.is_finite() && *number >= 0.0) {
                Some(number) => Ok(Some(number)),
                None => {
                    Err(setting.bad(format!("groups whose `{key}` is a number of 0 or above"), example()))
                }
            }
        };
        Ok(ParamGroup {
            pattern: pattern.to_owned(),
            lr_scale: number("lr_scale")?.unwrap_or(1.0),
            weight_decay: number("weight_decay")?,
        })
    };
    items.iter().map(group).collect()
}

pub(super) fn train(given: &Given, data: &DataConfig) -> Result<TrainConfig> {
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
    let deterministic = determinism(given, grad_accum_steps)?;
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
        loss_scale_init: given.number(
            "train.loss_scale_init",
            65536.0,
            // A power of two scales without rounding.
            |scale| (1.0..=MAX_LOSS_SCALE).contains(&scale) && scale.log2().fract() == 0.0,
            "a power of two from 1 to 2^30",
            "65536 is usual",
        )?,
        deterministic,
        micro_shards: micro_shards(given)?,
        early_stop_metric: early_stop_metric(given, data)?,
        early_stop_patience: early_stop_patience(given, data)?,
        early_stop_min_delta: given.number(
            "train.early_stop_min_delta",
            0.0,
            |delta| delta >= 0.0,
            "a number of 0 or above",
            "0 takes any improvement for one",
        )?,
        stop_after_steps: given
            .get("train.stop_after_steps")
            .map(|setting| setting.count(1, MAX_STEPS, "leave it out to train to the end"))
            .transpose()?,
    })
}

fn determinism(given: &Given, grad_accum_steps: usize) -> Result<Determinism> {
    let Some(setting) = given.get("train.deterministic") else { return Ok(Determinism::Off) };
    let bad = |hint: &str| setting.bad("false, true or \"world\"", hint);
    let deterministic = match &setting.value {
        Value::Boolean(false) => Determinism::Off,
        Value::Boolean(true) => Determinism::On,
        Value::String(text) if text == "world" => Determinism::World,
        Value::String(text) if nearest(text, ["world"].into_iter()).is_some() => {
            return Err(bad("did you mean \"world\"?"));
        }
        _ => return Err(bad("true repeats runs on one number of ranks, \"world\" on any")),
    };
    if deterministic == Determinism::World && grad_accum_steps > 1 {
        return Err(setting.bad(
            format!("false or true where `train.grad_accum_steps` is {grad_accum_steps}"),
            "its `train.micro_shards` cut the batch already: set `train.grad_accum_steps` to 1 and raise those",
        ));
    }
    Ok(deterministic)
}

fn micro_shards(given: &Given) -> Result<usize> {
    let n_shards =
        given.count("train.micro_shards", 8, 1, MAX_MICRO_SHARDS, "8 trains alike on 1, 2, 4 and 8 ranks")?;
    match given.get("train.micro_shards") {
        Some(setting) if !n_shards.is_power_of_two() => {
            Err(setting.bad("a power of two", format!("{} is the next one", n_shards.next_power_of_two())))
        }
        _ => Ok(n_shards),
    }
}

fn early_stop_metric(given: &Given, data: &DataConfig) -> Result<EvalMetric> {
    given
        .get("train.early_stop_metric")
        .map_or(Ok(EvalMetric::Loss), |setting| metric_of(setting, setting.one_of()?, data))
}

fn early_stop_patience(given: &Given, data: &DataConfig) -> Result<u64> {
    const KEY: &str = "train.early_stop_patience";
    let patience = given.count(KEY, 0, 0, MAX_EPOCHS, "0 never stops early")? as u64;
    match given.get(KEY) {
        Some(setting) if patience > 0 && data.eval == EvalSource::None => {
            Err(setting.bad("0 without rows to evaluate on", EVAL_HINT))
        }
        _ => Ok(patience),
    }
}

/// `metric`, if evaluations of the run give it.
fn metric_of(setting: &Setting, metric: EvalMetric, data: &DataConfig) -> Result<EvalMetric> {
    if metric.fits(data.task) {
        // The loss is the default, which resolved configs hold: it asks for nothing.
        return if metric == EvalMetric::Loss || data.eval != EvalSource::None {
            Ok(metric)
        } else {
            Err(setting.bad("absent without rows to evaluate on", EVAL_HINT))
        };
    }
    let fitting: Vec<_> =
        EvalMetric::ALL.iter().filter(|metric| metric.fits(data.task)).map(|metric| metric.name()).collect();
    Err(setting.bad(
        format!("\"{}\" for task \"{}\"", fitting.join("\" or \""), data.task),
        "evaluations of this task give no other number",
    ))
}

/// `checkpoint.keep_best`
impl Named for Option<EvalMetric> {
    const VALUES: &'static [(&'static str, Self)] = &[
        ("eval_loss", Some(EvalMetric::Loss)),
        ("eval_accuracy", Some(EvalMetric::Accuracy)),
        ("eval_r2", Some(EvalMetric::R2)),
        ("none", None),
    ];
}

/// The schedules by the names of `schedule.kind`.
#[derive(Clone, Copy, PartialEq)]
enum ScheduleKind {
    Constant,
    Linear,
    Cosine,
    OneCycle,
    Step,
    Wsd,
}

impl Named for ScheduleKind {
    const VALUES: &'static [(&'static str, Self)] = &[
        ("constant", Self::Constant),
        ("linear", Self::Linear),
        ("cosine", Self::Cosine),
        ("one_cycle", Self::OneCycle),
        ("step", Self::Step),
        ("wsd", Self::Wsd),
    ];
}

pub(super) fn schedule(given: &Given) -> Result<ScheduleConfig> {
    use ScheduleKind::{Constant, Cosine, Linear, OneCycle, Step, Wsd};
    let kind = given.one_of("schedule.kind", Constant)?;
    for (key, owners) in [
        ("schedule.final_fraction", &[Linear, Cosine, OneCycle, Wsd][..]),
        ("schedule.decay_steps", &[Wsd]),
        ("schedule.decay_fraction", &[Wsd]),
        ("schedule.step_every_steps", &[Step]),
        ("schedule.step_every_fraction", &[Step]),
        ("schedule.step_factor", &[Step]),
    ] {
        if !owners.contains(&kind)
            && let Some(setting) = given.get(key)
        {
            let names: Vec<_> = ScheduleKind::VALUES
                .iter()
                .filter(|(_, kind)| owners.contains(kind))
                .map(|(name, _)| *name)
                .collect();
            let names = names.join("\" or \"");
            return Err(setting.bad(
                format!("absent unless `schedule.kind` is \"{names}\""),
                format!("remove it, or set `schedule.kind` to \"{names}\""),
            ));
        }
    }
    let part = |key: &str, default: f64, hint: &str| {
        given.number(key, default, |part| (0.0..=1.0).contains(&part), "a fraction from 0 to 1", hint)
    };
    // Those of torch.optim.lr_scheduler.OneCycleLR: pct_start, 1 / div_factor, and that over final_div_factor.
    let (warmup, start, end) = match kind {
        OneCycle => (Span::Fraction(0.3), Some(1.0 / 25.0), 1.0 / 25.0 / 1e4),
        _ => (Span::Steps(0), None, 0.0),
    };
    let warmup = Warmup {
        length: span(given, ("schedule.warmup_steps", "schedule.warmup_fraction"), warmup, 0)?,
        start: match given.get("schedule.warmup_start") {
            Some(_) => Some(part("schedule.warmup_start", 0.0, "0.1 begins with a tenth of `optimizer.lr`")?),
            None => start,
        },
    };
    let final_fraction = || part("schedule.final_fraction", end, "0.1 ends with a tenth of `optimizer.lr`");
    let shape = match kind {
        Constant => ScheduleShape::Constant,
        Linear => ScheduleShape::Linear { final_fraction: final_fraction()? },
        Cosine => ScheduleShape::Cosine { final_fraction: final_fraction()? },
        OneCycle => ScheduleShape::OneCycle { final_fraction: final_fraction()? },
        Step => ScheduleShape::Step {
            every: span(
                given,
                ("schedule.step_every_steps", "schedule.step_every_fraction"),
                Span::Fraction(1.0 / 3.0),
                1,
            )?,
            factor: given.number(
                "schedule.step_factor",
                0.1,
                |factor| factor > 0.0 && factor <= 1.0,
                "a number above 0 and at most 1",
                "0.1 goes on with a tenth",
            )?,
        },
        Wsd => ScheduleShape::Wsd {
            decay: span(given, ("schedule.decay_steps", "schedule.decay_fraction"), Span::Fraction(0.2), 0)?,
            final_fraction: final_fraction()?,
        },
    };
    if let (Span::Fraction(up), ScheduleShape::Wsd { decay: Span::Fraction(down), .. }) =
        (warmup.length, shape)
        && up + down > 1.0
        && let Some(setting) = given.get("schedule.decay_fraction").or(given.get("schedule.warmup_fraction"))
    {
        return Err(setting.bad(
            format!(
                "a part of the run that the other one leaves: {up} for the warm-up and {down} for the decay"
            ),
            "together they may be 1 at most",
        ));
    }
    Ok(ScheduleConfig { warmup, shape })
}

/// A number of steps by one of two keys, at least `min_steps` of them.
fn span(given: &Given, (steps, fraction): (&str, &str), default: Span, min_steps: u64) -> Result<Span> {
    if let Some(setting) = given.get(steps) {
        return Ok(Span::Steps(setting.count(min_steps, MAX_STEPS, "steps of the optimiser")?));
    }
    let Some(setting) = given.get(fraction) else { return Ok(default) };
    let (expected, fits): (_, fn(f64) -> bool) = match min_steps {
        0 => ("a fraction from 0 to 1", |part| (0.0..=1.0).contains(&part)),
        _ => ("a fraction above 0 and at most 1", |part| part > 0.0 && part <= 1.0),
    };
    Ok(Span::Fraction(setting.number(fits, expected, "0.1 is a tenth of the run's steps")?))
}

pub(super) fn comm(given: &Given) -> Result<CommConfig> {
    const ZERO: &str = "comm.zero";
    Ok(CommConfig {
        bucket_mib: given.number(
            "comm.bucket_mib",
            32.0,
            |mib| mib > 0.0 && mib <= 1e6,
            "a size in MiB above 0 and at most 1e6",
            "32 is a good start",
        )?,
        overlap: given.bool("comm.overlap", true)?,
        dtype: given.one_of("comm.dtype", CommDtype::F32)?,
        zero: match given.count(
            ZERO,
            0,
            0,
            2,
            "0 divides nothing, 1 the optimiser's state, 2 also gradients",
        )? {
            0 => ZeroStage::Off,
            1 => ZeroStage::Optimizer,
            _ => ZeroStage::Gradients,
        },
    })
}

pub(super) fn checkpoint(given: &Given, data: &DataConfig) -> Result<CheckpointConfig> {
    let never = "0 writes none for that";
    Ok(CheckpointConfig {
        every_steps: given.count("checkpoint.every_steps", 0, 0, MAX_STEPS, never)? as u64,
        every_minutes: given.number(
            "checkpoint.every_minutes",
            0.0,
            |minutes| (0.0..=1e6).contains(&minutes),
            "a number of minutes from 0 to 1e6",
            never,
        )?,
        every_epochs: given.count("checkpoint.every_epochs", 1, 0, MAX_EPOCHS, never)? as u64,
        keep: given.count("checkpoint.keep", 3, 0, 1 << 20, "0 keeps all")?,
        keep_best: match given.get("checkpoint.keep_best") {
            None => Some(EvalMetric::Loss),
            Some(setting) => match setting.one_of::<Option<EvalMetric>>()? {
                None => None,
                Some(metric) => Some(metric_of(setting, metric, data)?),
            },
        },
        is_async: given.bool("checkpoint.async", true)?,
    })
}
