//! `[optimizer]`: the update rule, and parameters with settings of their own.

use ddp_kernels::ops::{OptimizerKind, OptimizerParams};
use toml::Value;

use super::error::Result;
use super::key::{Key, Kind, Range, key, number, one_of, switch, text};
use super::nearest::nearest;
use super::raw::RawConfig;
use super::setting::{Setting, as_number};
use super::value::{ConfigEnum, ConfigValue as _, list};
use super::writer::Writer;

/// `[optimizer]`. Keys that the kind does not use are kept and ignored.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizerConfig {
    /// Update rule.
    pub kind: OptimizerKind,
    /// Learning rate, positive.
    pub lr: f64,
    /// Decay of the first and second moment (Adam, AdamW), or of the momentum as it steps and as it is kept (Lion), each in [0, 1).
    pub betas: [f64; 2],
    /// Added to the root of the second moment (Adam, AdamW), positive.
    pub eps: f64,
    /// L2 for SGD and Adam, decoupled for AdamW and Lion; not negative. Default: PyTorch's, 0.01 for AdamW and else 0.
    pub weight_decay: f64,
    /// In [0, 1) (SGD).
    pub momentum: f64,
    /// Nesterov momentum (SGD).
    pub nesterov: bool,
    /// Whether `weight_decay` also applies to biases and to the scales and shifts of norms.
    pub decay_bias_norm: bool,
    /// Parameters with settings of their own; the first group that matches a name applies.
    pub groups: Vec<ParamGroup>,
    /// `train.ema_decay`: share of the weights' moving average that a step keeps, in [0, 1); 0 for no average.
    pub ema_decay: f64,
}

/// Parameters with a learning rate or weight decay of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamGroup {
    /// Names of parameters, as `layers.0.*`: `*` and `?` match anything, `[ab]` one of these.
    pub pattern: String,
    /// Factor of the learning rate, not negative; 0 freezes the parameters.
    pub lr_scale: f64,
    /// Weight decay in place of `optimizer.weight_decay`, not negative.
    pub weight_decay: Option<f64>,
}

impl ConfigEnum for OptimizerKind {
    const NAMES: &'static [&'static str] = OptimizerKind::NAMES;
    const VALUES: &'static [Self] = OptimizerKind::ALL;
}

const NOT_NEGATIVE: Range = Range::at_least(0.0, "a number of 0 or above");

pub(super) const KEYS: &[Key] = &[
    one_of("optimizer.kind", OptimizerKind::NAMES)
        .help("Update rule, with the semantics of PyTorch, for lion of its paper")
        .default(r#""adamw""#)
        .synonyms(&["optim", "optimizer", "optimizer.name", "optimizer.type"]),
    number(
        "optimizer.lr",
        // In single precision too: that is how steps are taken.
        Range::above(0.0, "a finite number above 0").also(|lr| lr as f32 > 0.0 && (lr as f32).is_finite()),
    )
    .help("Learning rate")
    .default_depends("0.0001 for lion, else 0.001")
    .example("0.001")
    .hint("0.001 is usual for adamw, 0.1 to 0.01 for sgd, 0.0001 for lion")
    .synonyms(&["learning_rate"]),
    key(
        "optimizer.betas",
        Kind::Numbers {
            range: Range::from_below(0.0, 1.0, "two numbers from 0 to below 1"),
            len: Some(2),
        },
    )
    .help("Decay of the first and second moment (adam, adamw), or of the momentum as it steps and as it is kept (lion)")
    .default_depends("[0.9, 0.99] for lion, else [0.9, 0.999]")
    .example("[0.9, 0.999]")
    .hint("[0.9, 0.999] is usual")
    .synonyms(&["beta1", "beta2"]),
    number("optimizer.eps", Range::above(0.0, "a number above 0").also(|eps| eps as f32 > 0.0))
        .help("Added to the root of the second moment (adam, adamw)")
        .default("1e-8")
        .hint("1e-8 is usual"),
    number("optimizer.weight_decay", NOT_NEGATIVE)
        .help("Weight decay: L2 for sgd and adam, decoupled for adamw and lion")
        .default_depends("0.01 for adamw, else 0")
        .example("0.01")
        .hint("0 switches weight decay off")
        .synonyms(&["wd"]),
    number("optimizer.momentum", Range::from_below(0.0, 1.0, "a number from 0 to below 1"))
        .help("Momentum (sgd)")
        .default("0.9")
        .hint("0 switches momentum off"),
    switch("optimizer.nesterov").help("Nesterov momentum (sgd)").default("false").example("true"),
    switch("optimizer.decay_bias_norm")
        .help("Apply weight decay also to biases and to the scales and shifts of norms")
        .default("true")
        .synonyms(&["no_decay"]),
    key("optimizer.groups", Kind::Tables(GROUP_KEYS))
        .help("Parameters with a learning rate or weight decay of their own; the first group that matches applies")
        .default("[]")
        .example(r#"[{ match = "layers.0.*", lr_scale = 0.1, weight_decay = 0.0 }]"#)
        .synonyms(&["param_groups"]),
];

/// Keys of a group.
const GROUP_KEYS: &[Key] = &[
    text("optimizer.groups.match")
        .help("Names of parameters: `*` and `?` match anything, `[ab]` one of these")
        .example(r#""layers.0.*""#),
    number("optimizer.groups.lr_scale", NOT_NEGATIVE).help("Factor of the learning rate").default("1.0"),
    number("optimizer.groups.weight_decay", NOT_NEGATIVE)
        .help("Weight decay in place of optimizer.weight_decay")
        .example("0.0"),
];

impl OptimizerConfig {
    /// This kind with its usual defaults: PyTorch's, but a momentum of 0.9 for SGD.
    pub fn new(kind: OptimizerKind, lr: f64) -> Self {
        OptimizerConfig {
            kind,
            lr,
            betas: kind.default_betas(),
            eps: 1e-8,
            weight_decay: kind.default_weight_decay(),
            momentum: 0.9,
            nesterov: false,
            decay_bias_norm: true,
            groups: Vec::new(),
            ema_decay: 0.0,
        }
    }

    /// The hyper-parameters of the first step, on parameters without a group of their own.
    pub fn params(&self) -> OptimizerParams {
        let OptimizerConfig { lr, betas, eps, weight_decay, momentum, nesterov, .. } = *self;
        OptimizerParams { lr, betas, eps, weight_decay, momentum, nesterov, ..OptimizerParams::default() }
    }

    pub(super) fn read(raw: &RawConfig) -> Result<Self> {
        let kind = raw.get("optimizer.kind")?;
        let config = OptimizerConfig {
            kind,
            betas: raw.get_or("optimizer.betas", kind.default_betas())?,
            lr: raw.get_or("optimizer.lr", kind.default_lr())?,
            eps: raw.get("optimizer.eps")?,
            weight_decay: raw.get_or("optimizer.weight_decay", kind.default_weight_decay())?,
            momentum: raw.get("optimizer.momentum")?,
            nesterov: raw.get("optimizer.nesterov")?,
            decay_bias_norm: raw.get("optimizer.decay_bias_norm")?,
            groups: raw.setting("optimizer.groups").as_ref().map_or(Ok(Vec::new()), groups)?,
            ema_decay: raw.get("train.ema_decay")?,
        };
        match raw.given("optimizer.nesterov") {
            Some(setting) if kind == OptimizerKind::Sgd && config.nesterov && config.momentum == 0.0 => {
                Err(setting.bad("false where `optimizer.momentum` is 0", "give a momentum above 0"))
            }
            _ => Ok(config),
        }
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let OptimizerConfig { kind, lr, betas, eps, weight_decay, momentum, .. } = self;
        writer.put("optimizer.kind", kind);
        writer.put("optimizer.lr", lr);
        writer.put("optimizer.betas", betas);
        writer.put("optimizer.eps", eps);
        writer.put("optimizer.weight_decay", weight_decay);
        writer.put("optimizer.momentum", momentum);
        let OptimizerConfig { nesterov, decay_bias_norm, groups, ema_decay, .. } = self;
        writer.put("optimizer.nesterov", nesterov);
        writer.put("optimizer.decay_bias_norm", decay_bias_norm);
        writer.put_toml("optimizer.groups", list(groups, ParamGroup::to_toml));
        writer.put("train.ema_decay", ema_decay);
    }
}

/// Reads the list of tables in `optimizer.groups`.
fn groups(setting: &Setting) -> Result<Vec<ParamGroup>> {
    match setting.value.as_array() {
        Some(items) => items.iter().map(|item| group(setting, item)).collect(),
        None => Err(setting.bad("a list of groups", setting.for_example())),
    }
}

fn group(setting: &Setting, item: &Value) -> Result<ParamGroup> {
    let names = || GROUP_KEYS.iter().map(Key::short_name);
    let example = || setting.for_example();
    let Some(table) = item.as_table() else {
        return Err(setting.bad("a list of groups, each in braces", example()));
    };
    if let Some(key) = table.keys().find(|key| !names().any(|name| name == key.as_str())) {
        let hint = nearest(key, names()).map_or_else(example, |key| format!("did you mean `{key}`?"));
        let names = names().collect::<Vec<_>>().join("`, `");
        return Err(setting.bad(format!("groups of `{names}`, and `{key}` is none of these"), hint));
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
        match as_number(value).filter(|number| NOT_NEGATIVE.contains(*number)) {
            Some(number) => Ok(Some(number)),
            None => Err(setting.bad(format!("groups whose `{key}` is {}", NOT_NEGATIVE.words), example())),
        }
    };
    Ok(ParamGroup {
        pattern: pattern.to_owned(),
        lr_scale: number("lr_scale")?.unwrap_or(1.0),
        weight_decay: number("weight_decay")?,
    })
}

impl ParamGroup {
    fn to_toml(&self) -> String {
        let ParamGroup { pattern, lr_scale, weight_decay } = self;
        let decay = weight_decay.map_or(String::new(), |decay| format!(", weight_decay = {}", decay.write()));
        format!("{{ match = {}, lr_scale = {}{decay} }}", pattern.write(), lr_scale.write())
    }
}
