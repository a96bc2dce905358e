//! `[[model.layers]]`: a model as a list of layers.
//!
//! To add a kind of layer, add a row to the list in `layer_kinds!` and the file `model/layers/NAME.rs`, whose function `add` builds the
//! layers from the row's settings. A setting that no other kind has needs a key in [`SETTINGS`]. If the kind changes the width of rows,
//! takes statistics over rows or does not fit a block, extend the functions below the list.

use ddp_kernels::ops::{Activation, Gate};
use toml::Value;

use super::error::{ConfigError, Result};
use super::key::{Key, Kind, Range, count, key, number, one_of, switch};
use super::layer_kinds::{LayerSetting, LayerTable, layer_kinds};
use super::limits::MAX_WIDTH;
use super::nested::Place;
use super::setting::Setting;
use super::value::{ConfigEnum, list};

/// Maximum number of layers of a model, including repeats.
pub(super) const MAX_LAYERS: usize = 1024;

/// A layer or a block of layers, and its number of repeats.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerEntry {
    /// Kind and settings of the layer, or the block.
    pub layer: LayerConfig,
    /// Number of copies in a row, each with its own parameters; at least 1.
    pub repeat: usize,
}

layer_kinds! {
    /// `y = f(x·Wᵀ + b)`.
    linear: Linear {
        /// Width of the output.
        out_features: usize,
        /// The function `f`, if any.
        activation: Option<Activation>,
        /// Whether `b` is added.
        bias: bool,
    },
    /// Gated linear unit: `y = f(a) · b`, where `a` and `b` are the halves of a linear layer's output.
    glu: Glu {
        /// Width of the output, half that of the linear layer's.
        out_features: usize,
        /// The gate with its function `f`.
        gate: Gate,
        /// Whether the linear layer has a bias.
        bias: bool,
    },
    /// An activation on its own.
    activation: Activation(activation: Activation),
    /// Layer norm.
    layer_norm: LayerNorm,
    /// Root mean square norm.
    rms_norm: RmsNorm,
    /// Batch norm with statistics over a micro-batch across all ranks.
    batch_norm: BatchNorm {
        /// Constant added to the variance.
        eps: f64,
        /// Weight of a micro-batch's statistics in the running averages.
        momentum: f64,
    },
    /// Dropout.
    dropout: Dropout {
        /// Probability in [0, 1) with which a value is dropped in training.
        p: f64,
    },
    /// A learned factor for each column.
    scale: Scale,
    /// Periodic embeddings of each column; no block may precede them.
    numeric_embedding: NumericEmbedding {
        /// Number of output columns per input column, including the column itself; at least 2.
        dim: usize,
        /// Number of cosines per column.
        n_frequencies: usize,
        /// Standard deviation of the initial frequencies.
        sigma: f64,
    },
    /// A block with a skip connection: `y = x + layers(x)`.
    residual: Residual {
        /// The layers of the block; they can't be blocks themselves.
        layers: Vec<LayerEntry>,
    },
}

/// Whether a block may hold layers of this kind.
const fn fits_block(kind: &str) -> bool {
    !matches!(kind.as_bytes(), b"numeric_embedding" | b"residual")
}

impl LayerConfig {
    /// Makes an entry of this layer without repeats.
    pub fn once(self) -> LayerEntry {
        LayerEntry { layer: self, repeat: 1 }
    }

    /// Output width of the layer; `None` if it keeps its input width or multiplies it.
    pub fn out_features(&self) -> Option<usize> {
        match self {
            LayerConfig::Linear { out_features, .. } | LayerConfig::Glu { out_features, .. } => {
                Some(*out_features)
            }
            _ => None,
        }
    }

    /// Width of the rows after this layer if their width before it is `width`; `None` if it is not known.
    fn width_after(&self, width: Option<usize>) -> Option<usize> {
        match self {
            LayerConfig::NumericEmbedding { dim, .. } => width.map(|width| width.saturating_mul(*dim)),
            _ => self.out_features().or(width),
        }
    }

    /// Smallest momentum of the layer and its block, if they compute statistics over the rows of a micro-batch.
    fn least_momentum(&self) -> Option<f64> {
        match self {
            LayerConfig::BatchNorm { momentum, .. } => Some(*momentum),
            _ => least_momentum(self.block()),
        }
    }

    /// The kind of the layer and what is wrong with its settings, if no config may have them.
    pub(crate) fn fault(&self) -> Option<(&'static str, String)> {
        let (kind, settings) = self.settings();
        settings.into_iter().find_map(|(name, value)| {
            let key = LAYER_KEYS.iter().find(|key| key.short_name() == name)?;
            let number: f64 = value?.parse().ok()?;
            let is_right = match key.kind {
                Kind::Number(range) => range.contains(number),
                Kind::Count { min, max } => (min..=max).contains(&(number as u64)),
                _ => true,
            };
            (!is_right).then(|| (kind, format!("`{name}` is {number}, expected {}", key.kind.words())))
        })
    }

    /// Number of linear layers, each with parameters `layers.{i}.*`.
    fn n_linear(&self) -> usize {
        usize::from(self.out_features().is_some()) + n_linear(self.block())
    }

    /// The layers of the block; empty if the layer is not a block.
    fn block(&self) -> &[LayerEntry] {
        match self {
            LayerConfig::Residual { layers } => layers,
            _ => &[],
        }
    }
}

/// Number of linear layers of this list, including repeats.
pub(super) fn n_linear(layers: &[LayerEntry]) -> usize {
    layers.iter().map(|entry| entry.repeat * entry.layer.n_linear()).sum()
}

/// Smallest momentum of the layers in this list that compute statistics over the rows of a micro-batch.
pub(super) fn least_momentum(layers: &[LayerEntry]) -> Option<f64> {
    layers.iter().filter_map(|entry| entry.layer.least_momentum()).min_by(f64::total_cmp)
}

/// Number of layers, including repeats.
fn n_layers(layers: &[LayerEntry]) -> usize {
    let of_entry =
        |entry: &LayerEntry| n_layers(entry.layer.block()).saturating_add(1).saturating_mul(entry.repeat);
    layers.iter().map(of_entry).fold(0, usize::saturating_add)
}

impl ConfigEnum for Gate {
    const NAMES: &'static [&'static str] = Gate::NAMES;
    const VALUES: &'static [Self] = &Gate::ALL;
}

/// Keys of the kinds that a block may hold, in the order of the reference.
const SETTINGS: &[Key] = &[
    count("model.layers.out_features", 1, MAX_WIDTH)
        .help("Width of the output (linear, glu)")
        .hint("the width of the rows after this layer")
        .example("128"),
    one_of("model.layers.activation", Activation::NAMES)
        .help("Activation after a linear layer, or on its own (linear, activation)")
        .absent("none after a linear layer")
        .example(r#""relu""#),
    one_of("model.layers.gate", Gate::NAMES).help("Function of the gate (glu)").default(r#""swiglu""#),
    switch("model.layers.bias")
        .help("Give the linear layer a bias (linear, glu)")
        .default_depends("model.bias")
        .example("true"),
    number("model.layers.p", Range::from_below(0.0, 1.0, "a probability from 0 to below 1"))
        .help("Probability with which a value is dropped in training (dropout)")
        .hint("0 drops nothing")
        .example("0.1"),
    number("model.layers.eps", Range::above(0.0, "a number above 0"))
        .help("Added to the variance (batch_norm)")
        .hint("1e-5 is PyTorch's")
        .default("1e-5"),
    number("model.layers.momentum", Range::above_to(0.0, 1.0, "a number above 0, up to 1"))
        .help("Weight of a micro-batch's statistics in their running averages (batch_norm)")
        .hint("0.1 is PyTorch's; with 1 the last micro-batch decides")
        .default("0.1"),
];

/// Keys of the other kinds.
const OUTER_SETTINGS: &[Key] = &[
    count("model.layers.dim", 2, 1024)
        .help("Columns that each column becomes, the first of them itself (numeric_embedding)")
        .hint("4 is the paper's")
        .default("4"),
    count("model.layers.n_frequencies", 1, 1024)
        .help("Cosines of each column (numeric_embedding)")
        .hint("16 is the paper's")
        .default("16"),
    number("model.layers.sigma", Range::above(0.0, "a number above 0"))
        .help("Standard deviation of the initial frequencies (numeric_embedding)")
        .hint("0.1 is the paper's; larger values fit finer differences")
        .default("0.1"),
];

const REPEAT: Key = count("model.layers.repeat", 1, MAX_LAYERS as u64)
    .help("Number of such layers in a row, each with parameters of its own")
    .hint("1 is one layer")
    .default("1");

const LAYERS: Key = key("model.layers.layers", Kind::Tables(INNER_KEYS))
    .help("Layers of a block whose input is added to its output (residual)")
    .example(r#"[{ kind = "layer_norm" }, { kind = "linear", out_features = 128 }]"#);

const fn kind(names: &'static [&'static str]) -> Key {
    one_of("model.layers.kind", names).help("Kind of layer").example(r#""linear""#)
}

/// Keys of a layer within a block.
const INNER_KEYS: &[Key] = &join::<{ SETTINGS.len() + 2 }>(&[&[kind(INNER_NAMES)], SETTINGS, &[REPEAT]]);

/// Keys of a layer.
pub(super) const LAYER_KEYS: &[Key] = &join::<{ SETTINGS.len() + OUTER_SETTINGS.len() + 3 }>(&[
    &[kind(NAMES)],
    SETTINGS,
    OUTER_SETTINGS,
    &[REPEAT, LAYERS],
]);

/// Names of the kinds that a block may hold.
const INNER_NAMES: &[&str] = FITTING.0.split_at(FITTING.1).0;

/// The kinds that fit a block, at the front of an array, and their number.
const FITTING: ([&str; NAMES.len()], usize) = {
    let (mut names, mut n, mut index) = ([""; NAMES.len()], 0, 0);
    while index < NAMES.len() {
        if fits_block(NAMES[index]) {
            names[n] = NAMES[index];
            n += 1;
        }
        index += 1;
    }
    (names, n)
};

/// Concatenates `lists`, which hold `N` keys in total.
const fn join<const N: usize>(lists: &[&[Key]]) -> [Key; N] {
    let (mut keys, mut n, mut list) = ([REPEAT; N], 0, 0);
    while list < lists.len() {
        let mut index = 0;
        while index < lists[list].len() {
            keys[n] = lists[list][index];
            (n, index) = (n + 1, index + 1);
        }
        list += 1;
    }
    assert!(n == N);
    keys
}

/// A list of every kind of layer as TOML, each `width` wide: kinds that fit no block first, blocks of all kinds that fit one last. Keys
/// that name one of several values take the one with number `round`, in turn.
pub(super) fn example_of_every_kind(width: usize, round: usize) -> String {
    let layer = |kind: &str, names: &[&str], block: &str| {
        let mut text = format!("{{ kind = \"{kind}\"");
        for name in names {
            let key = LAYER_KEYS.iter().find(|key| key.short_name() == *name).expect("a key of layers");
            let value = match (key.kind, *name) {
                (Kind::OneOf(values), _) => format!("\"{}\"", values[round % values.len()]),
                (Kind::Tables(_), _) => block.to_owned(),
                (_, "out_features") => width.to_string(),
                _ => key.example.to_owned(),
            };
            text += &format!(", {name} = {value}");
        }
        text + " }"
    };
    let is_block = |names: &[&str]| names.contains(&"layers");
    let list = |is_listed: &dyn Fn(&str, &[&str]) -> bool, block: &str| {
        let kinds = KINDS.iter().filter(|(kind, names)| is_listed(kind, names));
        kinds.map(|(kind, names)| layer(kind, names, block)).collect::<Vec<_>>().join(", ")
    };
    let outer = list(&|kind, names| !fits_block(kind) && !is_block(names), "");
    let inner = list(&|kind, _| fits_block(kind), "");
    let blocks = list(&|_, names| is_block(names), &format!("[{inner}]"));
    format!("[{outer}, {inner}, {blocks}]")
}

/// The layers of a block.
impl LayerSetting for Vec<LayerEntry> {
    fn read(table: &LayerTable<'_>, name: &str) -> Result<Self> {
        let LayerTable { here, bias, .. } = table;
        read_list(here.setting, &table.require(name)?.value, INNER_KEYS, *bias, here.table)
    }

    fn write(&self) -> Option<String> {
        Some(list(self, LayerEntry::to_toml))
    }
}

/// Reads the list of layers; `bias` decides whether linear layers have a bias, unless they set it themselves.
pub(super) fn read(setting: &Setting, bias: bool) -> Result<Vec<LayerEntry>> {
    let layers = read_list(setting, &setting.value, LAYER_KEYS, bias, "model.layers")?;
    if layers.is_empty() {
        return Err(setting.bad("at least one layer", "`model.hidden = []` is a linear model"));
    }
    if n_layers(&layers) > MAX_LAYERS {
        return Err(setting.bad(format!("at most {MAX_LAYERS} layers"), "use fewer, wider layers"));
    }
    check_widths(setting, &layers)?;
    Ok(layers)
}

/// Reads a list of layers; errors refer to it as `list`.
fn read_list(
    setting: &Setting,
    value: &Value,
    keys: &'static [Key],
    bias: bool,
    list: &str,
) -> Result<Vec<LayerEntry>> {
    let tables = "a list of layers, each a table with a `kind`";
    let Some(items) = value.as_array() else { return Err(setting.bad(tables, setting.for_example())) };
    let read = |(index, item): (usize, &Value)| {
        let place = format!("layer {} of {list}", index + 1);
        let here = Place { setting, tables: "layers", table: &place };
        match item.as_table() {
            Some(values) => read_entry(LayerTable { values, keys, here, bias }),
            None if item.is_integer() => Err(setting.bad(tables, "`model.hidden` is a list of widths")),
            None => Err(setting.bad(tables, setting.for_example())),
        }
    };
    items.iter().enumerate().map(read).collect()
}

fn read_entry(table: LayerTable<'_>) -> Result<LayerEntry> {
    let Some(kind) = table.setting("kind") else {
        return Err(table.lacks("layers that each have a `kind`".to_owned()));
    };
    let kind = kind.name().map_err(|error| table.within(embedding_hint(error, &kind)))?;
    let tables = format!("`{kind}` layers");
    let table = LayerTable { here: Place { tables: &tables, ..table.here }, ..table };
    let (_, keys) = KINDS.iter().find(|row| row.0 == kind).expect("a name of the row");
    table.here.check_names(table.values, &[keys, ["kind", "repeat"].as_slice()].concat())?;
    let layer = LayerConfig::read(kind, &table)?;
    Ok(LayerEntry { layer, repeat: LayerSetting::read(&table, "repeat")? })
}

/// Embeddings of categories are not a layer of the list, because they have input columns of their own.
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

/// Checks that the output width of each block equals its input width.
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
        width = layer.width_after(width);
    }
    Ok(())
}

impl LayerEntry {
    /// The layer as a TOML table.
    pub(super) fn to_toml(&self) -> String {
        let (kind, settings) = self.layer.settings();
        let mut text = format!("{{ kind = \"{kind}\"");
        for (key, value) in settings.into_iter().filter_map(|(key, value)| Some((key, value?))) {
            text += &format!(", {key} = {value}");
        }
        if self.repeat > 1 {
            text += &format!(", repeat = {}", self.repeat);
        }
        text + " }"
    }
}
