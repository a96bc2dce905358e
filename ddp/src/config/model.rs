//! `[model]`: a multilayer perceptron, or a list of layers.

use ddp_kernels::ops::Activation;

use super::conflicts::{self, Values};
use super::error::Result;
use super::key::{Key, Kind, Range, key, number, one_of, switch};
use super::layers::{self, LAYER_KEYS, LayerEntry, MAX_LAYERS};
use super::limits::MAX_WIDTH;
use super::origin::Origin;
use super::presets::{ModelKind, Preset};
use super::raw::RawConfig;
use super::setting::Setting;
use super::value::{ConfigEnum, config_enum, list};
use super::writer::Writer;

/// `[model]`. If `layers` is not empty, all other fields except `bias` have their defaults and are ignored.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Widths of the hidden layers; empty means a linear model.
    pub hidden: Vec<usize>,
    /// Activation after each hidden layer.
    pub activation: Activation,
    /// Probability in [0, 1) with which a hidden value is dropped in training.
    pub dropout: f64,
    /// Normalization between layers.
    pub norm: Norm,
    /// Adds a hidden layer's input to its output where the widths are equal.
    pub residual: bool,
    /// Whether linear layers have a bias; with a list of layers, whether the output layer has one.
    pub bias: bool,
    /// Layers before the output layer; empty for a multilayer perceptron, which the other fields describe.
    pub layers: Vec<LayerEntry>,
}

config_enum! {
    /// Normalization between layers.
    pub enum Norm {
        /// No normalization.
        None = "none",
        /// Layer norm (arXiv:1607.06450) after each hidden linear layer.
        Layer = "layer",
    }
}

impl ConfigEnum for Activation {
    const NAMES: &'static [&'static str] = Activation::NAMES;
    const VALUES: &'static [Self] = Activation::ALL;
}

pub(super) const KEYS: &[Key] = &[
    one_of("model.kind", ModelKind::NAMES)
        .help("Architecture; resmlp and swiglu are residual blocks of the widths in model.hidden, and stand for a list of layers")
        .default(r#""mlp""#)
        .synonyms(&["arch", "architecture", "model_type"]),
    key("model.hidden", Kind::Counts { min: 1, max: MAX_WIDTH })
        .help("Widths of the hidden layers; [] is a linear model")
        .default("[128, 64]")
        .hint("each number is the width of one hidden layer")
        .synonyms(&["hidden_sizes", "hidden_dims"]),
    key("model.layers", Kind::Tables(LAYER_KEYS))
        .help("The layers in front of the output layer, in order, in place of all other keys of the model but bias")
        .absent("model.kind and model.hidden apply")
        .example(r#"[{ kind = "linear", out_features = 64, activation = "relu", bias = true }]"#)
        .instead_of("model.hidden", "`hidden` lists widths, `layers` tables with a `kind`"),
    one_of("model.activation", Activation::NAMES)
        .help("Activation after each hidden layer")
        .default(r#""relu""#),
    number("model.dropout", Range::from_below(0.0, 1.0, "a probability from 0 to below 1"))
        .help("Probability with which a hidden value is dropped in training")
        .default("0.0")
        .example("0.1")
        .hint("0 switches dropout off"),
    one_of("model.norm", Norm::NAMES)
        .help("Normalization after each hidden linear layer")
        .default(r#""none""#)
        .example(r#""layer""#),
    switch("model.residual")
        .help("Add a hidden layer's input to its output where the widths are equal")
        .default("false")
        .example("true"),
    switch("model.bias").help("Give linear layers a bias").default("true"),
];

impl ModelConfig {
    pub(super) fn read(raw: &RawConfig) -> Result<Self> {
        let hidden: Vec<usize> = raw.get("model.hidden")?;
        if let Some(setting) = raw.given("model.hidden")
            && hidden.len() > MAX_LAYERS
        {
            return Err(setting.bad(format!("at most {MAX_LAYERS} layers"), "use fewer, wider layers"));
        }
        let perceptron = ModelConfig {
            hidden,
            activation: raw.get("model.activation")?,
            dropout: raw.get("model.dropout")?,
            norm: raw.get("model.norm")?,
            residual: raw.get("model.residual")?,
            bias: raw.get("model.bias")?,
            layers: Vec::new(),
        };
        let kind = kind(raw)?;
        if let Some(setting) = raw.given("model.layers") {
            return Ok(ModelConfig::from_layers(layers::read(setting, perceptron.bias)?, perceptron.bias));
        }
        let ModelConfig { ref hidden, activation, dropout, bias, .. } = perceptron;
        let preset = Preset { hidden, activation, dropout, bias };
        let layers = match kind {
            ModelKind::Mlp => return Ok(perceptron),
            ModelKind::ResMlp => preset.res_mlp(),
            ModelKind::PeriodicMlp => preset.periodic_mlp(),
            ModelKind::SwiGlu => preset.swi_glu(),
        };
        Ok(ModelConfig::from_layers(layers, bias))
    }

    /// Makes a model of these layers followed by the output layer, with or without a bias.
    pub fn from_layers(layers: Vec<LayerEntry>, bias: bool) -> Self {
        ModelConfig {
            hidden: Vec::new(),
            activation: Activation::Relu,
            dropout: 0.0,
            norm: Norm::None,
            residual: false,
            bias,
            layers,
        }
    }

    /// Whether a layer computes statistics over the rows of a micro-batch, like batch norm.
    pub fn mixes_rows(&self) -> bool {
        self.least_momentum().is_some()
    }

    /// Smallest weight of a micro-batch in the running averages of such statistics.
    pub fn least_momentum(&self) -> Option<f64> {
        layers::least_momentum(&self.layers)
    }

    /// Number of linear layers before the output layer, whose weight is `layers.{n}.weight`.
    pub fn n_hidden_linear(&self) -> usize {
        self.hidden.len() + layers::n_linear(&self.layers)
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let ModelConfig { hidden, activation, dropout, norm, residual, bias, layers } = self;
        if !layers.is_empty() {
            writer.put_toml("model.layers", list(layers, LayerEntry::to_toml));
            return writer.put("model.bias", bias);
        }
        writer.put("model.kind", &ModelKind::Mlp);
        writer.put("model.hidden", hidden);
        writer.put("model.activation", activation);
        writer.put("model.dropout", dropout);
        writer.put("model.norm", norm);
        writer.put("model.residual", residual);
        writer.put("model.bias", bias);
    }
}

/// The preset; `realmlp` is the name that one of them had.
fn kind(raw: &RawConfig) -> Result<ModelKind> {
    match raw.given("model.kind") {
        Some(setting) if setting.value.as_str() == Some("realmlp") => Err(setting.bad(
            ModelKind::NAMES.join(", "),
            "\"periodic_mlp\" has these layers: it is the architecture of RealMLP without its training",
        )),
        _ => raw.get("model.kind"),
    }
}

/// Whether `model.kind` is the preset for tables and takes effect.
pub(super) fn is_periodic_mlp(raw: &RawConfig) -> Result<bool> {
    let kind = kind(raw)?;
    Ok(kind == ModelKind::PeriodicMlp && raw.given("model.layers").is_none())
}

/// Returns the settings without the keys of a file that the command line replaces by a list of layers, a preset, or
/// another way to hold rows out.
pub(super) fn without_replaced(raw: &RawConfig) -> RawConfig {
    let is_over = |upper: &str, lower: &str| match (raw.given(upper), raw.given(lower)) {
        (Some(upper), Some(lower)) => overrides(upper, lower),
        _ => false,
    };
    let is_by_kind = is_over("model.kind", "model.layers");
    let in_effect = if is_by_kind { raw.without("model.layers") } else { raw.clone() };
    let replaced = conflicts::excluded(&in_effect, &[]).filter(|(row, ..)| {
        row.key.starts_with("model.") && row.value == Values::Any && is_over(row.with, row.key)
    });
    let left = replaced.fold(in_effect.clone(), |left, (row, ..)| left.without(row.key));
    // Both may stand beside a split, so that they are no alternatives.
    let ways = [("data.fold", "data.eval_fraction"), ("data.eval_fraction", "data.fold")];
    let over = ways.into_iter().find(|(upper, lower)| is_over(upper, lower));
    over.map_or(left.clone(), |(_, lower)| left.without(lower))
}

/// Whether `upper` was given on the command line and `lower` in a file.
fn overrides(upper: &Setting, lower: &Setting) -> bool {
    let is_in_file = |setting: &Setting| matches!(setting.origin, Origin::File { .. });
    !is_in_file(upper) && is_in_file(lower)
}
