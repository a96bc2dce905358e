//! `[[model.layers]]`: a model as a list of layers, and the presets that stand for such lists.
//!
//! A kind of layer is a row of [`KINDS`], a variant of [`LayerConfig`], and an arm each in `read` and `settings`.

use ddp_kernels::ops::{Activation, Gate};
use toml::Value;

use super::error::{ConfigError, Result};
use super::key::{Key, KeyDefault, Kind, Range, count, key, number, one_of, switch};
use super::limits::MAX_WIDTH;
use super::nested::Place;
use super::setting::Setting;
use super::value::{ConfigEnum, ConfigValue, list, parse};

/// Most layers of a model, repeats counted.
pub(super) const MAX_LAYERS: usize = 1024;

/// A layer of the list, or a block of layers, with the number of times that it is repeated.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerEntry {
    /// Kind and settings of the layer, or the block.
    pub layer: LayerConfig,
    /// Number of such layers in a row, each with parameters of its own; at least 1.
    pub repeat: usize,
}

/// A layer of the list.
#[derive(Debug, Clone, PartialEq)]
pub enum LayerConfig {
    /// `y = f(x·Wᵀ + b)`.
    Linear {
        /// Width of the output.
        out_features: usize,
        /// The function `f`, if there is one.
        activation: Option<Activation>,
        /// Whether there is a `b`.
        bias: bool,
    },
    /// Gated linear unit: `y = f(a) · b`, where `a` and `b` are the halves of a linear layer's output.
    Glu {
        /// Width of the output, half that of the linear layer's.
        out_features: usize,
        /// The gate with its function `f`.
        gate: Gate,
        /// Whether the linear layer has a bias.
        bias: bool,
    },
    /// An activation on its own.
    Activation(Activation),
    /// Layer norm.
    LayerNorm,
    /// Root mean square norm.
    RmsNorm,
    /// Batch norm with statistics over a micro-batch of all ranks.
    BatchNorm {
        /// Added to the variance.
        eps: f64,
        /// Weight of a micro-batch's statistics in the running averages.
        momentum: f64,
    },
    /// Dropout.
    Dropout {
        /// Probability in [0, 1) with which a value is dropped in training.
        p: f64,
    },
    /// A learned factor for each column.
    Scale,
    /// Periodic embeddings of each column, in front of which there is no block.
    NumericEmbedding {
        /// Columns that each column becomes: itself and others; at least 2.
        dim: usize,
        /// Cosines of each column.
        n_frequencies: usize,
        /// Standard deviation of the initial frequencies.
        sigma: f64,
    },
    /// A block with a skip connection: `y = x + layers(x)`.
    Residual {
        /// The layers of the block, none of them a block.
        layers: Vec<LayerEntry>,
    },
}

/// Each kind of layer: its name, then the keys that it must have, and those that it may have besides `repeat`.
const KINDS: &[(&str, &[&str], &[&str])] = &[
    ("linear", &["out_features"], &["activation", "bias"]),
    ("glu", &["out_features"], &["gate", "bias"]),
    ("activation", &["activation"], &[]),
    ("layer_norm", &[], &[]),
    ("rms_norm", &[], &[]),
    ("batch_norm", &[], &["eps", "momentum"]),
    ("dropout", &["p"], &[]),
    ("scale", &[], &[]),
    (NUMERIC_EMBEDDING, &[], &["dim", "n_frequencies", "sigma"]),
    (RESIDUAL, &["layers"], &[]),
];

const NUMERIC_EMBEDDING: &str = "numeric_embedding";
const RESIDUAL: &str = "residual";

/// The names of [`KINDS`] without the last two: what a block may hold.
const INNER_NAMES: &[&str] = &name_kinds::<{ KINDS.len() - 2 }>();
/// The names of [`KINDS`].
const NAMES: &[&str] = &name_kinds::<{ KINDS.len() }>();

const fn name_kinds<const N: usize>() -> [&'static str; N] {
    let mut names = [""; N];
    let mut index = 0;
    while index < N {
        names[index] = KINDS[index].0;
        index += 1;
    }
    names
}

impl ConfigEnum for Gate {
    const NAMES: &'static [&'static str] = Gate::NAMES;
    const VALUES: &'static [Self] = Gate::ALL;
}

const OUT_FEATURES: Key = count("model.layers.out_features", 1, MAX_WIDTH)
    .help("Width of the output (linear, glu)")
    .hint("the width of the rows after this layer")
    .example("128");
const ACTIVATION: Key = one_of("model.layers.activation", Activation::NAMES)
    .help("Activation after a linear layer, or on its own (linear, activation)")
    .absent("none after a linear layer")
    .example(r#""relu""#);
const GATE: Key =
    one_of("model.layers.gate", Gate::NAMES).help("Function of the gate (glu)").default(r#""swiglu""#);
const BIAS: Key = switch("model.layers.bias")
    .help("Give the linear layer a bias (linear, glu)")
    .default_depends("model.bias")
    .example("true");
const P: Key = number("model.layers.p", Range::from_below(0.0, 1.0, "a probability from 0 to below 1"))
    .help("Probability with which a value is dropped in training (dropout)")
    .hint("0 drops nothing")
    .example("0.1");
const EPS: Key = number("model.layers.eps", Range::above(0.0, "a number above 0"))
    .help("Added to the variance (batch_norm)")
    .hint("1e-5 is PyTorch's")
    .default("1e-5");
const MOMENTUM: Key = number("model.layers.momentum", Range::above_to(0.0, 1.0, "a number above 0, up to 1"))
    .help("Weight of a micro-batch's statistics in their running averages (batch_norm)")
    .hint("0.1 is PyTorch's; with 1 the last micro-batch decides")
    .default("0.1");
const DIM: Key = count("model.layers.dim", 2, 1024)
    .help("Columns that each column becomes, the first of them itself (numeric_embedding)")
    .hint("4 is the paper's")
    .default("4");
const N_FREQUENCIES: Key = count("model.layers.n_frequencies", 1, 1024)
    .help("Cosines of each column (numeric_embedding)")
    .hint("16 is the paper's")
    .default("16");
const SIGMA: Key = number("model.layers.sigma", Range::above(0.0, "a number above 0"))
    .help("Standard deviation of the initial frequencies (numeric_embedding)")
    .hint("0.1 is the paper's; larger values fit finer differences")
    .default("0.1");
const REPEAT: Key = count("model.layers.repeat", 1, MAX_LAYERS as u64)
    .help("Number of such layers in a row, each with parameters of its own")
    .hint("1 is one layer")
    .default("1");

/// Keys of a layer within a block.
const INNER_KEYS: &[Key] = &[
    one_of("model.layers.kind", INNER_NAMES).help("Kind of layer").example(r#""linear""#),
    OUT_FEATURES,
    ACTIVATION,
    GATE,
    BIAS,
    P,
    EPS,
    MOMENTUM,
    REPEAT,
];

/// Keys of a layer.
pub(super) const LAYER_KEYS: &[Key] = &[
    one_of("model.layers.kind", NAMES).help("Kind of layer").example(r#""linear""#),
    OUT_FEATURES,
    ACTIVATION,
    GATE,
    BIAS,
    P,
    EPS,
    MOMENTUM,
    DIM,
    N_FREQUENCIES,
    SIGMA,
    REPEAT,
    key("model.layers.layers", Kind::Tables(INNER_KEYS))
        .help("Layers of a block whose input is added to its output (residual)")
        .example(r#"[{ kind = "layer_norm" }, { kind = "linear", out_features = 128 }]"#),
];

/// The keys that one layer gives.
struct Table<'a> {
    values: &'a toml::Table,
    keys: &'static [Key],
    at: &'a Setting,
    /// `model.bias`.
    bias: bool,
}

impl Table<'_> {
    /// The value of this key, or its default.
    fn setting(&self, name: &str) -> Option<Setting> {
        let key = self.keys.iter().find(|key| key.short_name() == name).expect("a key of layers");
        let default = || match key.default {
            KeyDefault::Value(text) => Some(parse(text)),
            KeyDefault::Depends(_) | KeyDefault::Absent(_) => None,
        };
        let value = self.values.get(name).cloned().or_else(default)?;
        Some(Setting { key, value, raw: None, origin: self.at.origin.clone() })
    }

    /// The same as a type of Rust.
    fn get<T: ConfigValue>(&self, name: &str) -> Result<Option<T>> {
        self.setting(name).as_ref().map(T::read).transpose()
    }

    /// The value of a key that the layer has, or that has a default.
    fn require<T: ConfigValue>(&self, name: &str) -> Result<T> {
        Ok(self.get(name)?.expect("checked with the keys of its kind"))
    }
}

/// Reads the list of layers; linear layers have a bias as `bias` says, unless they say otherwise.
pub(super) fn read(setting: &Setting, bias: bool) -> Result<Vec<LayerEntry>> {
    let layers = read_list(setting, &setting.value, LAYER_KEYS, bias, "")?;
    if layers.is_empty() {
        return Err(setting.bad("at least one layer", "`model.hidden = []` is a linear model"));
    }
    if n_layers(&layers) > MAX_LAYERS {
        return Err(setting.bad(format!("at most {MAX_LAYERS} layers"), "use fewer, wider layers"));
    }
    check_widths(setting, &layers)?;
    Ok(layers)
}

/// Reads a list of layers; `block` names the block that they belong to.
fn read_list(
    setting: &Setting,
    value: &Value,
    keys: &'static [Key],
    bias: bool,
    block: &str,
) -> Result<Vec<LayerEntry>> {
    let tables = "a list of layers, each a table with a `kind`";
    let Some(items) = value.as_array() else { return Err(setting.bad(tables, setting.for_example())) };
    let read = |(index, item): (usize, &Value)| {
        let place = format!("layer {} of {block}model.layers", index + 1);
        match item.as_table() {
            Some(values) => read_entry(Table { values, keys, at: setting, bias }, &place),
            None if item.is_integer() => Err(setting.bad(tables, "`model.hidden` is a list of widths")),
            None => Err(setting.bad(tables, setting.for_example())),
        }
    };
    items.iter().enumerate().map(read).collect()
}

fn read_entry(table: Table<'_>, place: &str) -> Result<LayerEntry> {
    let example = || table.at.for_example();
    let Some(kind) = table.setting("kind") else {
        let here = Place { setting: table.at, tables: "layers", table: place };
        return Err(here.wrong("layers that each have a `kind`".to_owned(), "none", example()));
    };
    let kind = kind.name().map_err(|error| within(embedding_hint(error, &kind), place))?;
    let &(_, required, optional) = KINDS.iter().find(|row| row.0 == kind).expect("a name of the row");
    let allowed = || required.iter().chain(optional).copied().chain(["kind", "repeat"]);
    let tables = format!("`{kind}` layers");
    let here = Place { setting: table.at, tables: &tables, table: place };
    here.check_names(table.values, &allowed().collect::<Vec<_>>())?;
    if let Some(missing) = required.iter().find(|name| !table.values.contains_key(**name)) {
        return Err(here.wrong(format!("`{kind}` layers with `{missing}`"), "none", example()));
    }
    let layer = read_layer(kind, &table, place).map_err(|error| within(error, place))?;
    let repeat = table.require("repeat").map_err(|error| within(error, place))?;
    Ok(LayerEntry { layer, repeat })
}

fn read_layer(kind: &str, table: &Table<'_>, place: &str) -> Result<LayerConfig> {
    Ok(match kind {
        "linear" => LayerConfig::Linear {
            out_features: table.require("out_features")?,
            activation: table.get("activation")?,
            bias: table.get("bias")?.unwrap_or(table.bias),
        },
        "glu" => LayerConfig::Glu {
            out_features: table.require("out_features")?,
            gate: table.require("gate")?,
            bias: table.get("bias")?.unwrap_or(table.bias),
        },
        "activation" => LayerConfig::Activation(table.require("activation")?),
        "layer_norm" => LayerConfig::LayerNorm,
        "rms_norm" => LayerConfig::RmsNorm,
        "batch_norm" => {
            LayerConfig::BatchNorm { eps: table.require("eps")?, momentum: table.require("momentum")? }
        }
        "dropout" => LayerConfig::Dropout { p: table.require("p")? },
        "scale" => LayerConfig::Scale,
        NUMERIC_EMBEDDING => LayerConfig::NumericEmbedding {
            dim: table.require("dim")?,
            n_frequencies: table.require("n_frequencies")?,
            sigma: table.require("sigma")?,
        },
        _ => {
            let Table { values, at, bias, .. } = *table;
            let layers = read_list(at, &values["layers"], INNER_KEYS, bias, &format!("{place}, "))?;
            LayerConfig::Residual { layers }
        }
    })
}

/// Embeddings of categories are not a layer of the list, for they take columns of their own.
fn embedding_hint(mut error: ConfigError, kind: &Setting) -> ConfigError {
    if let ConfigError::BadValue { hint, .. } = &mut error
        && kind.value.as_str() == Some("embedding")
    {
        *hint = "`data.categorical` names the columns of categories, and `data.encode = \"embedding\"` gives each a table in front \
                 of the layers; `numeric_embedding` is for numbers"
            .to_owned();
    }
    error
}

/// The error with the place of the layer.
fn within(mut error: ConfigError, place: &str) -> ConfigError {
    if let ConfigError::BadValue { got, key, .. } = &mut error
        && *key != "model.layers"
    {
        *got += &format!(" in {place}");
    } else if let ConfigError::WrongType { got, .. } = &mut error {
        *got += &format!(" in {place}");
    }
    error
}

/// Checks that each block gives rows of the width that it takes.
fn check_widths(setting: &Setting, layers: &[LayerEntry]) -> Result<()> {
    let mut width = None;
    for (index, LayerEntry { layer, .. }) in layers.iter().enumerate() {
        if let LayerConfig::Residual { layers } = layer
            && let Some(end) = layers.iter().filter_map(|entry| entry.layer.out_features()).next_back()
        {
            let place = format!("layer {} of model.layers", index + 1);
            let wrong = |expected: &str, got: String, hint: String| {
                let (at, key) = (setting.at(), "model.layers");
                let expected = expected.to_owned();
                Err(ConfigError::BadValue { at, key, expected, got: format!("{got} in {place}"), hint })
            };
            match width {
                None => {
                    let expected = "a list whose `residual` blocks come after a `linear` or `glu` layer";
                    let hint = "begin with a linear layer: it sets the width that the block keeps";
                    return wrong(expected, "a block of the features".to_owned(), hint.to_owned());
                }
                Some(width) if width != end => {
                    let expected = "a list whose `residual` blocks keep the width of their rows";
                    let hint =
                        format!("end the block with `{{ kind = \"linear\", out_features = {width} }}`");
                    return wrong(expected, format!("rows of {width} that become {end} wide"), hint);
                }
                Some(_) => {}
            }
        }
        width = match layer {
            LayerConfig::NumericEmbedding { dim, .. } => width.map(|width: usize| width.saturating_mul(*dim)),
            _ => layer.out_features().or(width),
        };
    }
    Ok(())
}

/// Number of layers, repeats counted.
fn n_layers(layers: &[LayerEntry]) -> usize {
    let of_layer = |layer: &LayerConfig| match layer {
        LayerConfig::Residual { layers } => n_layers(layers).saturating_add(1),
        _ => 1,
    };
    let counts = layers.iter().map(|LayerEntry { layer, repeat }| of_layer(layer).saturating_mul(*repeat));
    counts.fold(0, usize::saturating_add)
}

impl LayerConfig {
    /// This layer once.
    pub fn once(self) -> LayerEntry {
        LayerEntry { layer: self, repeat: 1 }
    }

    /// Width that the layer gives its rows; `None` if it keeps their width.
    pub fn out_features(&self) -> Option<usize> {
        match self {
            LayerConfig::Linear { out_features, .. } | LayerConfig::Glu { out_features, .. } => {
                Some(*out_features)
            }
            _ => None,
        }
    }

    /// Whether the layer, or one of its block, takes statistics over the rows of a micro-batch.
    fn mixes_rows(&self) -> bool {
        match self {
            LayerConfig::BatchNorm { .. } => true,
            LayerConfig::Residual { layers } => mixes_rows(layers),
            _ => false,
        }
    }

    /// Number of linear layers, each with parameters `layers.{i}.*`.
    fn n_linear(&self) -> usize {
        match self {
            LayerConfig::Residual { layers } => n_linear(layers),
            _ => usize::from(self.out_features().is_some()),
        }
    }

    /// The kind, and the other keys with their values as TOML.
    fn settings(&self) -> (&'static str, Vec<(&'static str, String)>) {
        match self {
            LayerConfig::Linear { out_features, activation, bias } => {
                let activation = activation.map(|activation| ("activation", activation.write()));
                let widths = [("out_features", out_features.write())].into_iter();
                ("linear", widths.chain(activation).chain([("bias", bias.write())]).collect())
            }
            LayerConfig::Glu { out_features, gate, bias } => {
                let gate = ("gate", gate.write());
                ("glu", vec![("out_features", out_features.write()), gate, ("bias", bias.write())])
            }
            LayerConfig::Activation(activation) => ("activation", vec![("activation", activation.write())]),
            LayerConfig::LayerNorm => ("layer_norm", Vec::new()),
            LayerConfig::RmsNorm => ("rms_norm", Vec::new()),
            LayerConfig::BatchNorm { eps, momentum } => {
                ("batch_norm", vec![("eps", eps.write()), ("momentum", momentum.write())])
            }
            LayerConfig::Dropout { p } => ("dropout", vec![("p", p.write())]),
            LayerConfig::Scale => ("scale", Vec::new()),
            LayerConfig::NumericEmbedding { dim, n_frequencies, sigma } => {
                let n_frequencies = ("n_frequencies", n_frequencies.write());
                (NUMERIC_EMBEDDING, vec![("dim", dim.write()), n_frequencies, ("sigma", sigma.write())])
            }
            LayerConfig::Residual { layers } => {
                (RESIDUAL, vec![("layers", list(layers, LayerEntry::to_toml))])
            }
        }
    }
}

/// Number of linear layers of this list, repeats counted.
pub(super) fn n_linear(layers: &[LayerEntry]) -> usize {
    layers.iter().map(|entry| entry.repeat * entry.layer.n_linear()).sum()
}

/// Whether a layer of this list takes statistics over the rows of a micro-batch.
pub(super) fn mixes_rows(layers: &[LayerEntry]) -> bool {
    layers.iter().any(|entry| entry.layer.mixes_rows())
}

impl LayerEntry {
    /// The layer as a table of TOML.
    pub(super) fn to_toml(&self) -> String {
        let (kind, settings) = self.layer.settings();
        let mut text = format!("{{ kind = \"{kind}\"");
        for (key, value) in settings {
            text += &format!(", {key} = {value}");
        }
        if self.repeat > 1 {
            text += &format!(", repeat = {}", self.repeat);
        }
        text + " }"
    }
}
