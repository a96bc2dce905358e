//! `[model]`: a multilayer perceptron.

use ddp_kernels::ops::Activation;

use super::error::Result;
use super::key::{Key, Kind, Range, key, number, one_of, switch};
use super::limits::MAX_WIDTH;
use super::raw::RawConfig;
use super::value::{ConfigEnum, config_enum};
use super::writer::Writer;

const MAX_LAYERS: usize = 1024;

/// `[model]`
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// Widths of the hidden layers; empty means a linear model.
    pub hidden: Vec<usize>,
    /// Activation after each hidden layer.
    pub activation: Activation,
    /// Probability in [0, 1) with which a hidden value is dropped in training.
    pub dropout: f64,
    /// Normalisation between layers.
    pub norm: Norm,
    /// Adds a hidden layer's input to its output where the widths are equal.
    pub residual: bool,
    /// Whether linear layers have a bias.
    pub bias: bool,
}

config_enum! {
    /// Normalisation between layers.
    pub enum Norm {
        /// None.
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
    key("model.hidden", Kind::Counts { min: 1, max: MAX_WIDTH })
        .help("Widths of the hidden layers; [] is a linear model")
        .default("[128, 64]")
        .hint("each number is the width of one hidden layer")
        .synonyms(&["layers", "hidden_sizes", "hidden_dims"]),
    one_of("model.activation", Activation::NAMES)
        .help("Activation after each hidden layer")
        .default(r#""relu""#),
    number("model.dropout", Range::from_below(0.0, 1.0, "a probability from 0 to below 1"))
        .help("Probability with which a hidden value is dropped in training")
        .default("0.0")
        .example("0.1")
        .hint("0 switches dropout off"),
    one_of("model.norm", Norm::NAMES)
        .help("Normalisation after each hidden linear layer")
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
        Ok(ModelConfig {
            hidden,
            activation: raw.get("model.activation")?,
            dropout: raw.get("model.dropout")?,
            norm: raw.get("model.norm")?,
            residual: raw.get("model.residual")?,
            bias: raw.get("model.bias")?,
        })
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        let ModelConfig { hidden, activation, dropout, norm, residual, bias } = self;
        writer.put("model.hidden", hidden);
        writer.put("model.activation", activation);
        writer.put("model.dropout", dropout);
        writer.put("model.norm", norm);
        writer.put("model.residual", residual);
        writer.put("model.bias", bias);
    }
}
