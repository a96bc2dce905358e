//! Config -> TOML text, and the flat list that ranks compare at start.

use super::{
    Batch, CheckpointConfig, Config, Determinism, EvalSource, Length, Loss, OptimizerConfig, ParamGroup,
    ScheduleConfig, ScheduleShape, Span, TrainConfig,
};

/// Each key with its value as TOML text, sections together, in the order of `keys::KEYS`.
pub(super) fn entries(config: &Config) -> Vec<(String, String)> {
    let Config { name, data, model, loss, optimizer, schedule, train, comm, checkpoint, log } = config;
    let mut entries: Vec<(String, String)> = Vec::new();
    let mut put = |key: &str, value: String| entries.push((key.to_owned(), value));

    put("name", text(name));
    put("data.train", text(&data.train));
    if let Some(labels) = &data.labels {
        put("data.labels", text(labels));
    }
    match &data.eval {
        EvalSource::None => put("data.eval", text("none")),
        EvalSource::Source(source) => put("data.eval", text(source)),
        EvalSource::Fraction(fraction) => put("data.eval_fraction", number(*fraction)),
    }
    if let Some(labels) = &data.eval_labels {
        put("data.eval_labels", text(labels));
    }
    if let Some(weight) = &data.eval_weight {
        put("data.eval_weight", text(weight));
    }
    put("data.format", text(data.format.name()));
    put("data.features_key", text(&data.features_key));
    put("data.labels_key", text(&data.labels_key));
    match data.target.as_slice() {
        [one] => put("data.target", text(one)),
        several => put("data.target", list(several, |name| text(name))),
    }
    put("data.task", text(data.task.name()));
    if let Some(classes) = data.classes {
        put("data.classes", classes.to_string());
    }
    if let Some(weight) = &data.weight {
        put("data.weight", text(weight));
    }
    put("data.drop", list(&data.drop, |name| text(name)));
    put("data.categorical", list(&data.categorical, |name| text(name)));
    put("data.encode", text(data.encode.name()));
    put("data.embedding_dim", data.embedding_dim.unwrap_or(0).to_string());
    put("data.missing", text(data.missing.name()));
    put("data.normalize", text(data.normalize.name()));
    put("data.shuffle", data.shuffle.to_string());
    put("data.shuffle_mode", text(data.shuffle_mode.name()));
    put("data.shuffle_window_mib", data.shuffle_window_mib.to_string());
    put("data.placement", text(data.placement.name()));
    put("data.prefetch", data.prefetch.to_string());
    put("data.loader_threads", data.loader_threads.to_string());
    put("data.loader_memory_mib", data.loader_memory_mib.to_string());

    put("model.hidden", list(&model.hidden, usize::to_string));
    put("model.activation", text(&model.activation.to_string()));
    put("model.dropout", number(model.dropout));
    put("model.norm", text(model.norm.name()));
    put("model.residual", model.residual.to_string());
    put("model.bias", model.bias.to_string());

    put("loss.kind", text(loss.name()));
    match loss {
        Loss::CrossEntropy { label_smoothing, class_weights } => {
            put("loss.label_smoothing", number(*label_smoothing));
            if let Some(weights) = class_weights {
                put("loss.class_weights", list(weights, |weight| single(*weight)));
            }
        }
        Loss::Huber { delta } => put("loss.delta", number(*delta)),
        Loss::Bce | Loss::Mse => {}
    }

    put_optimizer(optimizer, &mut put);
    put_schedule(schedule, &mut put);
    put_train(train, optimizer, &mut put);
    put("comm.bucket_mib", number(comm.bucket_mib));
    put("comm.overlap", comm.overlap.to_string());
    put("comm.dtype", text(comm.dtype.name()));
    put("comm.zero", comm.zero.number().to_string());
    put_checkpoint(checkpoint, &mut put);
    put("log.every_steps", log.every_steps.to_string());
    entries
}

fn put_optimizer(optimizer: &OptimizerConfig, put: &mut impl FnMut(&str, String)) {
    put("optimizer.kind", text(optimizer.kind.name()));
    put("optimizer.lr", number(optimizer.lr));
    put("optimizer.betas", list(&optimizer.betas, |beta| number(*beta)));
    put("optimizer.eps", number(optimizer.eps));
    put("optimizer.weight_decay", number(optimizer.weight_decay));
    put("optimizer.momentum", number(optimizer.momentum));
    put("optimizer.nesterov", optimizer.nesterov.to_string());
    put("optimizer.decay_bias_norm", optimizer.decay_bias_norm.to_string());
    put("optimizer.groups", list(&optimizer.groups, group));
}

fn group(group: &ParamGroup) -> String {
    let ParamGroup { pattern, lr_scale, weight_decay } = group;
    let decay = weight_decay.map_or(String::new(), |decay| format!(", weight_decay = {}", number(decay)));
    format!("{{ match = {}, lr_scale = {}{decay} }}", text(pattern), number(*lr_scale))
}

fn put_schedule(schedule: &ScheduleConfig, put: &mut impl FnMut(&str, String)) {
    let ScheduleConfig { warmup, shape } = schedule;
    put("schedule.kind", text(shape.name()));
    put_span("schedule.warmup", warmup.length, put);
    if let Some(start) = warmup.start {
        put("schedule.warmup_start", number(start));
    }
    let end = "schedule.final_fraction";
    match *shape {
        ScheduleShape::Constant => {}
        ScheduleShape::Linear { final_fraction }
        | ScheduleShape::Cosine { final_fraction }
        | ScheduleShape::OneCycle { final_fraction } => put(end, number(final_fraction)),
        ScheduleShape::Step { every, factor } => {
            put_span("schedule.step_every", every, put);
            put("schedule.step_factor", number(factor));
        }
        ScheduleShape::Wsd { decay, final_fraction } => {
            put(end, number(final_fraction));
            put_span("schedule.decay", decay, put);
        }
    }
}

fn put_span(key: &str, span: Span, put: &mut impl FnMut(&str, String)) {
    match span {
        Span::Steps(steps) => put(&format!("{key}_steps"), steps.to_string()),
        Span::Fraction(fraction) => put(&format!("{key}_fraction"), number(fraction)),
    }
}

fn put_train(train: &TrainConfig, optimizer: &OptimizerConfig, put: &mut impl FnMut(&str, String)) {
    match train.length {
        Length::Epochs(epochs) => put("train.epochs", epochs.to_string()),
        Length::Steps(steps) => put("train.steps", steps.to_string()),
    }
    match train.batch {
        Batch::PerRank(rows) => put("train.batch_size", rows.to_string()),
        Batch::Global(rows) => put("train.global_batch_size", rows.to_string()),
    }
    put("train.grad_accum_steps", train.grad_accum_steps.to_string());
    put("train.clip_grad_norm", number(train.clip_grad_norm));
    put("train.seed", train.seed.to_string());
    put("train.precision", text(train.precision.name()));
    put("train.loss_scale_init", number(train.loss_scale_init));
    put("train.ema_decay", number(optimizer.ema_decay));
    let deterministic = match train.deterministic {
        Determinism::Off => "false".to_owned(),
        Determinism::On => "true".to_owned(),
        Determinism::World => text("world"),
    };
    put("train.deterministic", deterministic);
    put("train.micro_shards", train.micro_shards.to_string());
    put("train.early_stop_metric", text(train.early_stop_metric.name()));
    put("train.early_stop_patience", train.early_stop_patience.to_string());
    put("train.early_stop_min_delta", number(train.early_stop_min_delta));
    if let Some(steps) = train.stop_after_steps {
        put("train.stop_after_steps", steps.to_string());
    }
}

fn put_checkpoint(checkpoint: &CheckpointConfig, put: &mut impl FnMut(&str, String)) {
    put("checkpoint.every_steps", checkpoint.every_steps.to_string());
    put("checkpoint.every_minutes", number(checkpoint.every_minutes));
    put("checkpoint.every_epochs", checkpoint.every_epochs.to_string());
    put("checkpoint.keep", checkpoint.keep.to_string());
    put("checkpoint.keep_best", text(checkpoint.keep_best.map_or("none", |metric| metric.name())));
    put("checkpoint.async", checkpoint.is_async.to_string());
}

/// The entries as a TOML document.
pub(super) fn document(config: &Config) -> String {
    let mut document = String::new();
    let mut open_section = "";
    let entries = entries(config);
    for (key, value) in &entries {
        let (section, name) = key.split_once('.').unwrap_or(("", key));
        if section != open_section {
            document += &format!("\n[{section}]\n");
            open_section = section;
        }
        document += &format!("{name} = {value}\n");
    }
    document
}

impl Loss {
    /// The name in the config.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CrossEntropy { .. } => "cross_entropy",
            Self::Bce => "bce",
            Self::Mse => "mse",
            Self::Huber { .. } => "huber",
        }
    }
}

fn text(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

/// The shortest text that reads back as the same number; with a point or exponent, as TOML wants.
fn number(number: f64) -> String {
    format!("{number:?}")
}

/// The short text of an f32 where it survives the way through f64, which it nearly always does.
fn single(number: f32) -> String {
    let short = format!("{number:?}");
    if short.parse::<f64>().is_ok_and(|wide| wide as f32 == number) {
        short
    } else {
        format!("{:?}", f64::from(number))
    }
}

fn list<T>(items: &[T], show: impl Fn(&T) -> String) -> String {
    format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(", "))
}
