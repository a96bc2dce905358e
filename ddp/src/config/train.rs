//! `[train]`: length, batches, number format, determinism and early stopping.

use ddp_kernels::cuda::GpuFeature;
use toml::Value;

use super::bad_steps::{BadStep, BadSteps, Spike};
use super::data::DataConfig;
use super::data_values::Task;
use super::error::{ConfigError, Result};
use super::eval_metric::{self, EvalMetric, JudgeMetric, MetricSet};
use super::key::{Kind, Range, count, key, metric, number, one_of, switch};
use super::limits::{MAX_EPOCHS, MAX_STEPS};
use super::nearest::nearest;
use super::precision::Precision;
use super::raw::RawConfig;
use super::section::section;
use super::setting::Setting;
use super::value::{ConfigEnum, ConfigValue, config_enum};
use super::writer::Writer;

const MAX_ROWS: u64 = 1 << 31;
const MAX_MICRO_SHARDS: u64 = 1 << 12;
const MAX_LOSS_SCALE: f64 = (1u64 << 30) as f64;
const ROWS_HINT: &str = "32 is a good start";

/// Initialization of the weights of linear layers. All but the first initialize biases to 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightInit {
    /// Weights and biases uniform in `±1/sqrt(in_features)`, as in PyTorch's `nn.Linear`.
    Pytorch,
    /// Normal with a standard deviation of `sqrt(2/in_features)` (arXiv:1502.01852), as in `torch.nn.init.kaiming_normal_`.
    Kaiming,
    /// Uniform in `±sqrt(6/(in_features + out_features))` (Glorot and Bengio, 2010), as in `torch.nn.init.xavier_uniform_`.
    Xavier,
    /// Normal with a standard deviation of 0.02.
    Normal,
    /// Orthonormal rows or columns, whichever are fewer (arXiv:1312.6120), as in `torch.nn.init.orthogonal_`.
    Orthogonal,
}

/// Runs that produce identical bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Determinism {
    /// On the CPU, runs with the same number of ranks; on GPUs, none.
    Off,
    /// Runs with the same number of ranks, also on GPUs.
    On,
    /// Runs with any number of ranks.
    World,
}

/// Reaction if the replicas of the ranks differ in any bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnReplicaDifference {
    /// The run fails.
    Stop,
    /// The ranks copy the replica of the majority; without a majority the run ends, to be restarted from its newest checkpoint.
    Repair,
}

/// Weights that an evaluation of a run with averaged weights measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EmaEval {
    /// The averaged ones and the last ones; the best evaluation is the better of the two.
    Both,
    /// The averaged ones.
    Averaged,
}

/// When training ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// After this many epochs.
    Epochs(usize),
    /// After this many optimizer steps.
    Steps(usize),
}

/// Batch size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch {
    /// Rows per rank and micro-batch.
    PerRank(usize),
    /// Rows over all ranks and micro-batches.
    Global(usize),
}

config_enum!(impl Precision { F32 = "f32", F32x3 = "f32x3", Tf32 = "tf32", Bf16 = "bf16", F16 = "f16" });

config_enum!(impl WeightInit {
    Pytorch = "pytorch",
    Kaiming = "kaiming",
    Xavier = "xavier",
    Normal = "normal",
    Orthogonal = "orthogonal",
});

config_enum!(impl EmaEval { Both = "both", Averaged = "averaged" });

config_enum!(impl OnReplicaDifference { Stop = "stop", Repair = "repair" });

section! {
    /// `[train]`
    #[derive(Debug, Clone, PartialEq)]
    pub struct TrainConfig in "train", read(raw: &RawConfig, data: &DataConfig), write {
        /// End of training.
        length: Length { read_length(raw)?, write_length };

        key epochs = count(1, MAX_EPOCHS)
            .help("Passes over the training rows")
            .default("30")
            .hint("1 passes over the data once")
            .synonyms(&["num_epochs", "n_epochs", "max_epochs"])
            .may_change();

        key steps = count(1, MAX_STEPS)
            .help("Optimizer steps of the run")
            .absent("train.epochs applies")
            .example("1000")
            .hint("1 takes one optimizer step")
            .synonyms(&["num_steps", "n_steps", "max_steps"])
            .instead_of("train.epochs", "`epochs` counts passes over the data, `steps` counts optimizer steps")
            .may_change();

        /// Batch size.
        batch: Batch { read_batch(raw)?, write_batch };

        key batch_size = count(1, MAX_ROWS)
            .help("Rows per rank and micro-batch")
            .default("32")
            .hint(ROWS_HINT)
            .synonyms(&["batch", "bs", "micro_batch_size"])
            .may_change();

        key global_batch_size = count(1, MAX_ROWS)
            .help("Rows per optimizer step, over all ranks and micro-batches")
            .absent("train.batch_size applies")
            .example("256")
            .hint(ROWS_HINT)
            .synonyms(&["global_batch"])
            .instead_of(
                "train.batch_size",
                "`batch_size` is rows per rank and micro-batch, `global_batch_size` is rows per step over all ranks",
            )
            .may_change();

        /// Micro-batches per step; gradients are summed over them.
        grad_accum_steps: usize = count(1, 1 << 20)
            .help("Micro-batches per optimizer step; gradients are summed over them")
            .default("1")
            .example("4")
            .hint("1 switches accumulation off")
            .synonyms(&["gradient_accumulation_steps", "accumulate_grad_batches", "accumulate", "accumulation_steps"])
            .may_change();

        /// Largest 2-norm of the gradient; 0 means no clipping.
        clip_grad_norm: f64 = number(Range::at_least(0.0, "a number of 0 or above"))
            .help("Largest 2-norm of the gradient; 0 means no clipping")
            .default("0.0")
            .example("1.0")
            .hint("0 switches clipping off")
            .synonyms(&["grad_clip", "clip_norm", "max_grad_norm", "gradient_clip_val"]);

        /// Seed of the initial weights, the order of samples, dropout and the split.
        seed: u64 = count(0, i64::MAX as u64)
            .help("Seed of initial weights, order of samples, dropout and split")
            .default("0")
            .example("7")
            .hint("any number of this range will do; whole numbers in TOML end there");

        /// Initialization of the weights of linear layers.
        init: WeightInit = one_of(WeightInit::NAMES)
            .help("Initial weights of linear layers: those of PyTorch's nn.Linear, or others, whose biases start at 0")
            .default(r#""pytorch""#)
            .example(r#""kaiming""#)
            .synonyms(&["weight_init", "initializer", "init_method", "model.init"]);

        /// Number format of matmuls.
        precision: Precision = one_of(Precision::NAMES)
            .help("Number format of matmuls and activations")
            .default(r#""f32""#)
            .synonyms(&["dtype"]);

        /// Initial loss scale in f16, a power of two from 1 to 2^30.
        loss_scale_init: f64 = number(// A power of two scales without rounding.
            Range::from_to(1.0, MAX_LOSS_SCALE, "a power of two from 1 to 2^30")
                .also(|scale| scale.log2().fract() == 0.0),
        )
        .help("First loss scale in f16")
        .default("65536.0")
        .hint("65536 is usual")
        .synonyms(&["loss_scale", "init_scale"]);

        key ema_decay = number(Range::from_below(0.0, 1.0, "a number from 0 to below 1"))
            .help("Share of the weights' moving average that a step keeps; 0 for no average")
            .default("0.0")
            .example("0.999")
            .hint("0.999 is usual, 0 keeps no average")
            .synonyms(&["ema"]);

        key ema_warmup = switch()
            .help("Keep at most step / (step + 9) of the average in early steps, so that it forgets the first weights; false for PyTorch's average")
            .default("true");

        /// Weights that evaluations measure where an average is kept.
        ema_eval: EmaEval = one_of(EmaEval::NAMES)
            .help("Weights that evaluations measure with train.ema_decay: \"both\" the averaged and the last ones, of which checkpoint.keep_best keeps the better; \"averaged\" saves half the time")
            .default(r#""both""#)
            .example(r#""averaged""#)
            .may_change();

        /// Whether the statistics of batch norms are recomputed for the averaged weights.
        ema_statistics: bool = switch()
            .help("Recompute the statistics of batch norms for the averaged weights, on training rows, before they are evaluated or saved")
            .default("true")
            .example("false")
            .may_change();

        /// Runs that produce identical bits.
        deterministic: Determinism = key(Kind::BoolOr("world"))
            .help("Same bits in runs on the same number of ranks (true), or on any number (\"world\")")
            .default("false")
            .example("true")
            .hint("true repeats runs on one number of ranks, \"world\" on any")
            .synonyms(&["determinism"]);

        /// Number of shards of each global batch for [`Determinism::World`], a power of two; the maximum world size.
        micro_shards: usize [micro_shards(raw)?] = count(1, MAX_MICRO_SHARDS)
            .help("Shards of each global batch for deterministic = \"world\", a power of two; no more ranks than these")
            .default("8")
            .hint("8 trains alike on 1, 2, 4 and 8 ranks");

        /// Steps between two evaluations within an epoch; 0 evaluates only after epochs.
        eval_every_steps: u64 = count(0, MAX_STEPS)
            .help("Optimizer steps between two evaluations within an epoch; 0 evaluates after each epoch only")
            .default("0")
            .example("1000")
            .hint("0 evaluates after each epoch only")
            .synonyms(&["eval_steps", "eval_every", "val_check_interval"])
            .may_change();

        /// Names of the metrics that evaluations measure; already checked.
        eval_metrics: Vec<String> [eval_metrics(raw, data)?] = key(Kind::Texts { may_be_empty: false })
            .help("Metrics that evaluations measure: names of docs/metrics.md, \"default\" (four of the task), \"all\" (the costly ones at the end only)")
            .default(r#"["default"]"#)
            .example(r#"["default", "roc_auc"]"#)
            .synonyms(&["metrics", "metric"])
            .may_change();

        /// Whether the training rows are also evaluated after each epoch.
        train_metrics: bool = switch()
            .help("Evaluate the training rows too after each epoch, at the cost of a forward pass over them")
            .default("false")
            .may_change();

        /// Metric of early stopping.
        early_stop_metric: JudgeMetric [early_stop_metric(raw, data)?] = metric(EvalMetric::NAMES)
            .help("Metric of early stopping")
            .default(r#""eval_loss""#)
            .synonyms(&["monitor"]);

        /// Number of evaluations without improvement after which training stops; 0 disables early stopping.
        early_stop_patience: u64 = count(0, MAX_EPOCHS)
            .help("Evaluations without improvement after which training stops; 0 for never")
            .default("0")
            .example("5")
            .hint("0 never stops early")
            .synonyms(&["patience", "early_stopping", "early_stopping_patience"])
            .may_change();

        /// Smallest change that counts as an improvement, not negative.
        early_stop_min_delta: f64 = number(Range::at_least(0.0, "a number of 0 or above"))
            .help("Smallest change that counts as an improvement")
            .default("0.0")
            .example("0.001")
            .hint("0 takes any improvement for one")
            .synonyms(&["min_delta"])
            .may_change();

        /// Steps between two comparisons of the ranks' replicas; 0 disables them.
        replica_check_steps: u64 = count(0, MAX_STEPS)
            .help("Optimizer steps between two comparisons of the weights and state that must be equal on all ranks; 0 for none")
            .default("1000")
            .hint("0 never compares")
            .may_change();

        /// Reaction to replicas that differ.
        on_replica_difference: OnReplicaDifference = one_of(OnReplicaDifference::NAMES)
            .help("What ranks that hold different bits do: end the run, or copy them from the majority")
            .default(r#""stop""#)
            .may_change();

        /// Features of GPUs to do without.
        gpu_without: Vec<GpuFeature> = key(Kind::Texts { may_be_empty: true })
            .help("Features of GPUs to do without: names of the table in docs/gpus.md that have no setting of their own; --safe does without all")
            .default("[]")
            .example(r#"["memory-pool"]"#)
            .may_change();

        /// Treatment of steps that go wrong.
        bad_steps: BadSteps { BadSteps::read(raw)?, BadSteps::write };

        key on_nonfinite = one_of(BadStep::NAMES)
            .help("A step whose loss or gradient is not finite: end the run, leave its update out, or return to the newest checkpoint")
            .default(r#""stop""#)
            .example(r#""skip""#)
            .may_change();

        key on_spike = one_of(Spike::NAMES)
            .help("A step whose loss is far above the recent ones: no matter, end the run, leave its update out, or return to a checkpoint")
            .default(r#""off""#)
            .example(r#""skip""#)
            .may_change();

        key spike_window = count(8, 1000)
            .help("Recent steps whose losses train.on_spike compares; it begins when there are as many")
            .default("100")
            .hint("100 is a good start")
            .may_change();

        key spike_threshold = number(Range::above(0.0, "a number above 0"))
            .help("Distance of a spike's loss from the median of the recent ones, in robust standard deviations (1.4826 MAD)")
            .default("10.0")
            .hint("10 is a good start; less finds smaller spikes")
            .may_change();

        /// Optimizer steps that the learning-rate schedules span, where not those of the run.
        schedule_steps: Option<u64> [optional] = count(1, MAX_STEPS)
            .help("Optimizer steps that the learning-rate schedules span; later steps have the rate of the last of them")
            .absent("the schedules span the run")
            .example("1000")
            .hint("leave it out to span the run")
            .may_change();

        /// Global step after which the run stops as if it had received a signal.
        stop_after_steps: Option<u64> [optional] = count(1, MAX_STEPS)
            .help("Optimizer step after which the run saves a checkpoint and stops, to be resumed")
            .absent("the run trains to its end")
            .example("1000")
            .hint("leave it out to train to the end")
            .synonyms(&["stop_after"])
            .may_change();

        /// Epoch after which the run stops as if it had received a signal.
        stop_after_epochs: Option<u64> [optional] = count(1, MAX_EPOCHS)
            .help("Epoch after which the run saves a checkpoint and stops, to be resumed")
            .absent("the run trains to its end")
            .example("10")
            .hint("leave it out to train to the end")
            .may_change();
    }
}

impl TrainConfig {
    /// The metrics of each evaluation, and those of the last one. `"all"` measures costly metrics only in the last one.
    pub fn metrics(&self, task: Task) -> [MetricSet; 2] {
        // The names were checked when they were read.
        let of = |names: &[String]| MetricSet::from_names(names, task).unwrap_or_default();
        let (all, named): (Vec<String>, Vec<String>) =
            self.eval_metrics.iter().cloned().partition(|name| name == "all");
        let of_all = of(&all);
        [of(&named).union(of_all.without_costly()), of(&named).union(of_all)]
    }

    /// Rows of one optimizer step over all ranks and micro-batches, `G`; `None` if the product overflows.
    pub fn global_rows(&self, world_size: usize) -> Option<usize> {
        match self.batch {
            Batch::PerRank(rows) => rows.checked_mul(world_size)?.checked_mul(self.grad_accum_steps),
            Batch::Global(rows) => Some(rows),
        }
    }
}

fn read_length(raw: &RawConfig) -> Result<Length> {
    match raw.optional("train.steps")? {
        Some(steps) => Ok(Length::Steps(steps)),
        None => raw.get("train.epochs").map(Length::Epochs),
    }
}

fn write_length(length: &Length, writer: &mut Writer) {
    match length {
        Length::Epochs(epochs) => writer.put("train.epochs", epochs),
        Length::Steps(steps) => writer.put("train.steps", steps),
    }
}

fn write_batch(batch: &Batch, writer: &mut Writer) {
    match batch {
        Batch::PerRank(rows) => writer.put("train.batch_size", rows),
        Batch::Global(rows) => writer.put("train.global_batch_size", rows),
    }
}

fn read_batch(raw: &RawConfig) -> Result<Batch> {
    let Some(setting) = raw.setting("train.global_batch_size") else {
        return Ok(Batch::PerRank(raw.get("train.batch_size")?));
    };
    let (rows, grad_accum_steps) = (usize::read(&setting)?, raw.get("train.grad_accum_steps")?);
    if rows < grad_accum_steps {
        return Err(setting.bad(
            format!("at least `train.grad_accum_steps`, {grad_accum_steps}"),
            "each micro-batch needs a row: enlarge the batch or accumulate less",
        ));
    }
    Ok(Batch::Global(rows))
}

impl ConfigValue for Determinism {
    fn read(setting: &Setting) -> Result<Self> {
        let bad = |hint: &str| Err(setting.bad("false, true or \"world\"", hint));
        match &setting.value {
            Value::Boolean(false) => Ok(Determinism::Off),
            Value::Boolean(true) => Ok(Determinism::On),
            Value::String(text) if text == "world" => Ok(Determinism::World),
            Value::String(text) if nearest(text, ["world"].into_iter()).is_some() => {
                bad("did you mean \"world\"?")
            }
            _ => bad(setting.key.hint),
        }
    }

    fn write(&self) -> String {
        match self {
            Determinism::Off => "false",
            Determinism::On => "true",
            Determinism::World => "\"world\"",
        }
        .to_owned()
    }
}

fn micro_shards(raw: &RawConfig) -> Result<usize> {
    let n_shards: usize = raw.get("train.micro_shards")?;
    match raw.given("train.micro_shards") {
        Some(setting) if !n_shards.is_power_of_two() => {
            Err(setting.bad("a power of two", format!("{} is the next one", n_shards.next_power_of_two())))
        }
        _ => Ok(n_shards),
    }
}

fn eval_metrics(raw: &RawConfig, data: &DataConfig) -> Result<Vec<String>> {
    let names: Vec<String> = raw.get("train.eval_metrics")?;
    if let Some(setting) = raw.given("train.eval_metrics") {
        eval_metric::check_names(setting, &names, data.task)?;
    }
    Ok(names)
}

fn early_stop_metric(raw: &RawConfig, data: &DataConfig) -> Result<JudgeMetric> {
    match raw.given("train.early_stop_metric") {
        Some(setting) => check_metric(setting, JudgeMetric::read(setting)?, data),
        None => raw.get("train.early_stop_metric"),
    }
}

/// Returns `judge` if evaluations of the task give it.
pub(super) fn check_metric(setting: &Setting, judge: JudgeMetric, data: &DataConfig) -> Result<JudgeMetric> {
    let JudgeMetric { head, metric } = &judge;
    let (task, place) = match head {
        None => (data.task, String::new()),
        Some(name) => match data.heads.iter().find(|head| head.name == *name) {
            Some(head) => (head.task, format!("{name}.")),
            None => return Err(no_such_head(setting, name, data)),
        },
    };
    // All other metrics belong to single heads.
    let fits = |metric: EvalMetric| match task {
        Task::Heads => metric == EvalMetric::Loss,
        task => metric.fits(task),
    };
    // The metric is checked again once the targets have determined the task.
    if data.auto_task || fits(*metric) {
        return Ok(judge);
    }
    let fitting = EvalMetric::ALL.iter().filter(|metric| fits(**metric));
    let names: Vec<_> = fitting.map(|metric| format!("{place}{metric}")).collect();
    let hint = match (task, &data.heads[..]) {
        (Task::Heads, [head, ..]) => {
            format!("metrics of a head are written as \"{}.{metric}\"", head.name)
        }
        _ => "evaluations of this task give no other number".to_owned(),
    };
    Err(setting.bad(format!("a metric of task \"{task}\": {}", names.join(", ")), hint))
}

fn no_such_head(setting: &Setting, name: &str, data: &DataConfig) -> ConfigError {
    let names: Vec<&str> = data.heads.iter().map(|head| head.name.as_str()).collect();
    if names.is_empty() {
        return setting.bad("the name of a metric alone", format!("no `[[heads]]` has the name \"{name}\""));
    }
    let hint = match nearest(name, names.iter().copied()) {
        Some(name) => format!("did you mean \"{name}\"?"),
        None => "write the name of a head, a point and a metric".to_owned(),
    };
    setting.bad(format!("a metric of one of the heads {}", names.join(", ")), hint)
}
