//! `[optimizer]`: the update rule, and groups of parameters with their own settings.

use ddp_kernels::ops::{OptimizerDefaults, OptimizerKind, OptimizerParams};
use toml::Value;

use super::conflicts;
use super::error::Result;
use super::key::{Key, Kind, Range, key, number, one_of, switch, text};
use super::key_table::KeyTable;
use super::nested::Place;
use super::raw::RawConfig;
use super::schedule::{self, ScheduleConfig, ScheduleShape};
use super::setting::{Setting, as_number};
use super::value::{ConfigEnum, ConfigValue, list};
use super::writer::Writer;

/// Hint for a run whose loss, gradients or weights are not finite.
pub(crate) const AGAINST_DIVERGENCE: &str = "try a smaller `optimizer.lr` or `train.clip_grad_norm = 1.0`; features that are not normalized \
    need `data.normalize = \"standard\"`";

/// `[optimizer]`. Keys that the kind does not use are stored and ignored.
#[derive(Debug, Clone, PartialEq)]
pub struct OptimizerConfig {
    /// Update rule.
    pub kind: OptimizerKind,
    /// Learning rate, positive.
    pub lr: f64,
    /// Decay of the first and second moment (Adam, AdamW, LAMB, AdamW next to Muon), or of the momentum as used in the step and
    /// as stored (Lion), each in [0, 1).
    pub betas: [f64; 2],
    /// Constant added to the root of the second moment (Adam, AdamW, LAMB, AdamW next to Muon), positive.
    pub eps: f64,
    /// L2 penalty for SGD and Adam; decoupled for AdamW, Lion and the matrices of Muon; part of the direction for LAMB; not
    /// negative.
    pub weight_decay: f64,
    /// Momentum in [0, 1) (SGD, Muon).
    pub momentum: f64,
    /// Nesterov momentum (SGD, Muon).
    pub nesterov: bool,
    /// Learning rate of AdamW for the parameters that Muon does not update, positive; the schedule scales both rates alike.
    pub adamw_lr: f64,
    /// Weight decay of AdamW for these parameters, not negative.
    pub adamw_weight_decay: f64,
    /// Whether `weight_decay` also applies to biases and to the scales and shifts of norms.
    pub decay_bias_norm: bool,
    /// Groups of parameters with their own settings; the first group that matches a parameter's name applies.
    pub groups: Vec<ParamGroup>,
    /// `train.ema_decay`: fraction of the weights' moving average that a step keeps, in [0, 1); 0 disables the average.
    pub ema_decay: f64,
    /// Whether the decay is smaller in early steps.
    pub ema_warmup: bool,
}

/// Parameters with a learning rate, weight decay or schedule of their own.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamGroup {
    /// Names of parameters, as in `layers.0.*`: `*` and `?` match anything, `[ab]` one of these.
    pub pattern: String,
    /// Factor of the learning rate, not negative; 0 freezes the parameters.
    pub lr_scale: f64,
    /// Weight decay in place of `optimizer.weight_decay`, not negative.
    pub weight_decay: Option<f64>,
    /// Schedule in place of `[schedule]`.
    pub schedule: Option<ScheduleConfig>,
}

impl ParamGroup {
    /// Group of the parameters whose names match `pattern`, with default settings.
    pub fn new(pattern: &str) -> Self {
        ParamGroup { pattern: pattern.to_owned(), lr_scale: 1.0, weight_decay: None, schedule: None }
    }

    /// Sets the factor of the learning rate.
    #[must_use]
    pub fn lr_scale(self, lr_scale: f64) -> Self {
        ParamGroup { lr_scale, ..self }
    }

    /// Sets the weight decay.
    #[must_use]
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        ParamGroup { weight_decay: Some(weight_decay), ..self }
    }
}

impl ConfigEnum for OptimizerKind {
    const NAMES: &'static [&'static str] = OptimizerKind::NAMES;
    const VALUES: &'static [Self] = OptimizerKind::ALL;
}

const NOT_NEGATIVE: Range = Range::at_least(0.0, "a number of 0 or above");

pub(super) const KEYS: &[Key] = &[
    one_of("optimizer.kind", OptimizerKind::NAMES)
        .help("Update rule, with the semantics of PyTorch, for lion and lamb of their papers; muon is for hidden weight matrices, and adamw updates all else")
        .default(r#""adamw""#)
        .synonyms(&["optim", "optimizer", "optimizer.name", "optimizer.type"]),
    number(
        "optimizer.lr",
        // Positive in single precision too, because the update is computed in single precision.
        Range::above(0.0, "a finite number above 0").also(|lr| lr as f32 > 0.0 && (lr as f32).is_finite()),
    )
    .help("Learning rate")
    .default_from_table(|| by_kind(|defaults| defaults.lr))
    .example("0.001")
    .hint("0.001 is usual for adamw, 0.1 to 0.01 for sgd, 0.0001 for lion, 0.02 for muon")
    .synonyms(&["learning_rate"]),
    key(
        "optimizer.betas",
        Kind::Numbers {
            range: Range::from_below(0.0, 1.0, "two numbers from 0 to below 1"),
            len: Some(2),
        },
    )
    .help("Decay of the first and second moment (adam, adamw, lamb, adamw of muon), or of the momentum as it steps and as it is kept (lion)")
    .default_from_table(|| by_kind(|defaults| defaults.betas))
    .example("[0.9, 0.999]")
    .hint("[0.9, 0.999] is usual")
    .synonyms(&["beta1", "beta2"]),
    number("optimizer.eps", Range::above(0.0, "a number above 0").also(|eps| eps as f32 > 0.0))
        .help("Added to the root of the second moment (adam, adamw, lamb, adamw of muon)")
        .default_from_table(|| by_kind(|defaults| defaults.eps))
        .example("1e-8")
        .hint("1e-8 is usual"),
    number("optimizer.weight_decay", NOT_NEGATIVE)
        .help("Weight decay: L2 for sgd and adam, decoupled for adamw, lion and muon, part of the direction for lamb")
        .default_from_table(|| by_kind(|defaults| defaults.weight_decay))
        .example("0.01")
        .hint("0 switches weight decay off")
        .synonyms(&["wd"]),
    number("optimizer.momentum", Range::from_below(0.0, 1.0, "a number from 0 to below 1"))
        .help("Momentum (sgd, muon)")
        .default_from_table(|| by_kind(|defaults| defaults.momentum))
        .example("0.9")
        .hint("0 switches momentum off"),
    switch("optimizer.nesterov")
        .help("Nesterov momentum (sgd, muon)")
        .default_from_table(|| by_kind(|defaults| defaults.nesterov))
        .example("true"),
    number(
        "optimizer.adamw_lr",
        Range::above(0.0, "a finite number above 0").also(|lr| lr as f32 > 0.0 && (lr as f32).is_finite()),
    )
    .help("Learning rate of adamw for the parameters that muon leaves to it: biases, norms, embeddings and the last layer")
    .default("0.001")
    .hint("0.001 is usual"),
    number("optimizer.adamw_weight_decay", NOT_NEGATIVE)
        .help("Weight decay of adamw for these parameters")
        .default("0.01")
        .hint("0 switches it off"),
    switch("optimizer.decay_bias_norm")
        .help("Apply weight decay also to biases and to the scales and shifts of norms")
        .default("false")
        .example("true")
        .synonyms(&["no_decay"]),
    key("optimizer.groups", Kind::Tables(GROUP_KEYS))
        .help("Parameters with a learning rate, weight decay or schedule of their own; the first group that matches applies")
        .default("[]")
        .example(r#"[{ match = "layers.0.*", lr_scale = 0.1, weight_decay = 0.0 }]"#)
        .synonyms(&["param_groups"]),
];

/// Defaults of all optimizers in words: "0.0001 for lion, 0.1 for sgd and adam, else 0.001", where "else" covers the largest
/// group.
fn by_kind<V: PartialEq + ConfigValue>(value: impl Fn(OptimizerDefaults) -> V) -> String {
    let mut groups: Vec<(V, Vec<&str>)> = Vec::new();
    for kind in OptimizerKind::ALL {
        let value = value(kind.defaults());
        match groups.iter_mut().find(|(other, _)| *other == value) {
            Some((_, names)) => names.push(kind.name()),
            None => groups.push((value, vec![kind.name()])),
        }
    }
    let most = (0..groups.len()).max_by_key(|&i| groups[i].1.len()).expect("there are optimizers");
    let (usual, _) = groups.remove(most);
    let rules =
        groups.iter().map(|(value, names)| format!("{} for {}, ", value.write(), names.join(" and ")));
    rules.collect::<String>() + &format!("else {}", usual.write())
}

/// Keys of a group.
const GROUP_KEYS: &[Key] = &[
    text("optimizer.groups.match")
        .help("Names of parameters: `*` and `?` match anything, `[ab]` one of these")
        .example(r#""layers.0.*""#),
    number("optimizer.groups.lr_scale", NOT_NEGATIVE).help("Factor of the learning rate").default("1.0"),
    number("optimizer.groups.weight_decay", NOT_NEGATIVE)
        .help("Weight decay in place of optimizer.weight_decay")
        .example("0.0"),
    key("optimizer.groups.schedule", Kind::Table(schedule::KEYS))
        .help("Schedule in place of [schedule], with its keys and their defaults")
        .example(r#"{ kind = "linear", warmup_steps = 100 }"#),
];

/// The keys of `[schedule]`, which a group's schedule sets for itself.
static SCHEDULE: KeyTable = KeyTable::new(&[schedule::KEYS]);

impl OptimizerConfig {
    /// The first setting that no config may have: its key, what it takes, and its value.
    pub(crate) fn fault(&self) -> Option<(&'static str, &'static str, f64)> {
        let range = |name: &str, keys: &[Key]| {
            let kind = keys.iter().find(|key| key.name == name).map(|key| key.kind);
            match kind {
                Some(Kind::Number(range) | Kind::Numbers { range, .. }) => range,
                _ => unreachable!("a number"),
            }
        };
        let of_groups = self.groups.iter().flat_map(|group| {
            let decay = group.weight_decay.map(|decay| ("optimizer.groups.weight_decay", decay));
            [Some(("optimizer.groups.lr_scale", group.lr_scale)), decay].into_iter().flatten()
        });
        let own = [
            ("optimizer.lr", self.lr),
            ("optimizer.betas", self.betas[0]),
            ("optimizer.betas", self.betas[1]),
            ("optimizer.eps", self.eps),
            ("optimizer.weight_decay", self.weight_decay),
            ("optimizer.momentum", self.momentum),
            ("optimizer.adamw_lr", self.adamw_lr),
            ("optimizer.adamw_weight_decay", self.adamw_weight_decay),
        ];
        let own = own.into_iter().map(|(name, value)| (name, range(name, KEYS), value));
        let of_groups = of_groups.map(|(name, value)| (name, range(name, GROUP_KEYS), value));
        let average =
            ("train.ema_decay", Range::from_below(0.0, 1.0, "a number from 0 to below 1"), self.ema_decay);
        let mut all = own.chain(of_groups).chain([average]);
        all.find(|(_, range, value)| !range.contains(*value))
            .map(|(name, range, value)| (name, range.words, value))
    }

    /// Makes a config of this kind with its usual defaults: PyTorch's, except that weight decay spares biases and norms, a momentum of
    /// 0.9 for SGD, and a learning rate of 0.02 for Muon.
    pub fn new(kind: OptimizerKind, lr: f64) -> Self {
        let OptimizerDefaults { betas, eps, weight_decay, momentum, nesterov, .. } = kind.defaults();
        OptimizerConfig {
            kind,
            lr,
            betas,
            eps,
            weight_decay,
            momentum,
            nesterov,
            adamw_lr: 1e-3,
            adamw_weight_decay: 0.01,
            decay_bias_norm: false,
            groups: Vec::new(),
            ema_decay: 0.0,
            ema_warmup: true,
        }
    }

    /// The hyper-parameters of the first step, on parameters without a group of their own.
    pub fn params(&self) -> OptimizerParams {
        let OptimizerConfig { lr, betas, eps, weight_decay, momentum, nesterov, .. } = *self;
        OptimizerParams { lr, betas, eps, weight_decay, momentum, nesterov, ..OptimizerParams::default() }
    }

    pub(super) fn read(raw: &RawConfig) -> Result<Self> {
        let kind: OptimizerKind = raw.get("optimizer.kind")?;
        let defaults = kind.defaults();
        let config = OptimizerConfig {
            kind,
            betas: raw.get_or("optimizer.betas", defaults.betas)?,
            lr: raw.get_or("optimizer.lr", defaults.lr)?,
            eps: raw.get_or("optimizer.eps", defaults.eps)?,
            weight_decay: raw.get_or("optimizer.weight_decay", defaults.weight_decay)?,
            momentum: raw.get_or("optimizer.momentum", defaults.momentum)?,
            nesterov: raw.get_or("optimizer.nesterov", defaults.nesterov)?,
            adamw_lr: raw.get("optimizer.adamw_lr")?,
            adamw_weight_decay: raw.get("optimizer.adamw_weight_decay")?,
            decay_bias_norm: raw.get("optimizer.decay_bias_norm")?,
            groups: raw.setting("optimizer.groups").as_ref().map_or(Ok(Vec::new()), groups)?,
            ema_decay: raw.get("train.ema_decay")?,
            ema_warmup: raw.get("train.ema_warmup")?,
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
        let OptimizerConfig { nesterov, decay_bias_norm, groups, ema_decay, ema_warmup, .. } = self;
        writer.put("optimizer.nesterov", nesterov);
        writer.put("optimizer.adamw_lr", &self.adamw_lr);
        writer.put("optimizer.adamw_weight_decay", &self.adamw_weight_decay);
        writer.put("optimizer.decay_bias_norm", decay_bias_norm);
        writer.put_toml("optimizer.groups", list(groups, ParamGroup::to_toml));
        writer.put("train.ema_decay", ema_decay);
        writer.put("train.ema_warmup", ema_warmup);
    }
}

/// Reads the tables of `optimizer.groups`.
fn groups(setting: &Setting) -> Result<Vec<ParamGroup>> {
    match setting.value.as_array() {
        Some(items) => {
            let read = |(index, item)| group(setting, item, &format!("group {}", index + 1));
            items.iter().enumerate().map(read).collect()
        }
        None => Err(setting.bad("a list of groups", setting.for_example())),
    }
}

/// Reads a group; `name` is its position in the list.
fn group(setting: &Setting, item: &Value, name: &str) -> Result<ParamGroup> {
    let example = || setting.for_example();
    let Some(table) = item.as_table() else {
        return Err(setting.bad("a list of groups, each in braces", example()));
    };
    let place = Place { setting, tables: "groups", table: name };
    place.check_names(table, &GROUP_KEYS.iter().map(Key::short_name).collect::<Vec<_>>())?;
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
        schedule: table.get("schedule").map(|schedule| group_schedule(place, schedule)).transpose()?,
    })
}

/// Reads the schedule of a group in the same way as `[schedule]`.
fn group_schedule(place: Place<'_>, item: &Value) -> Result<ScheduleConfig> {
    let Some(table) = item.as_table() else {
        let hint = format!("for example schedule = {}", GROUP_KEYS[3].example);
        return Err(place.wrong("groups whose `schedule` is a table".to_owned(), &item.to_string(), hint));
    };
    let raw = place.section("schedule", table, &SCHEDULE)?;
    let schedule = ScheduleConfig::read(&raw)?;
    conflicts::check(&raw, &[])?;
    match raw.given("schedule.kind") {
        Some(setting) if matches!(schedule.shape, ScheduleShape::Plateau { .. }) => {
            let hint = "groups follow the reductions of `[schedule]` by their `lr_scale`";
            Err(setting.bad("another one than \"plateau\" in a group", hint))
        }
        _ => Ok(schedule),
    }
}

impl ParamGroup {
    fn to_toml(&self) -> String {
        let ParamGroup { pattern, lr_scale, weight_decay, schedule } = self;
        let decay = weight_decay.map_or(String::new(), |decay| format!(", weight_decay = {}", decay.write()));
        let schedule = schedule.map_or(String::new(), |schedule| {
            let mut writer = Writer::new(&SCHEDULE);
            schedule.write(&mut writer);
            let entries = writer.finish().into_iter();
            let entries: Vec<_> =
                entries.map(|entry| format!("{} = {}", entry.key.short_name(), entry.value)).collect();
            format!(", schedule = {{ {} }}", entries.join(", "))
        });
        format!("{{ match = {}, lr_scale = {}{decay}{schedule} }}", pattern.write(), lr_scale.write())
    }
}
