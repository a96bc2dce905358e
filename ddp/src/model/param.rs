//! Parameters as layers declare them: name, shape, kind and initial values.
//!
//! Two layers that share one weight:
//!
//! ```
//! use ddp::nn::{Init, Linear, LinearSpec, ParamKind, ParamLayout, ParamSpec, Sequential};
//!
//! let init = Init::KaimingUniform { in_features: 4, stream: 0 };
//! let weight = ParamSpec::new("tied.weight", ParamKind::Weight, &[4, 4], init).shared();
//! let linear = || Linear::new(LinearSpec::of_params(weight.clone(), None));
//! let layers = Sequential::new(4).layer(linear()).layer(linear()).into_layers();
//! assert_eq!(ParamLayout::of_layers(&layers, 1).n_params(), 16);
//! ```

use std::ops::Range;

/// Role of a parameter: weight decay and the order within a layer depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParamKind {
    /// Factor of a matmul, such as the weight of a linear layer, `[O, I]`.
    Weight,
    /// Offset after a matmul, `[O]`.
    Bias,
    /// Scale of a normalization, `[O]`.
    NormWeight,
    /// Shift of a normalization, `[O]`.
    NormBias,
    /// Table of an embedding, `[n_codes, dim]`.
    Embedding,
}

/// Initial values of a parameter, a function of the run's seed.
///
/// Parameters with different streams get independent random numbers: [`Init::normal`], [`Init::uniform`] and [`Init::kaiming`] take the
/// stream from the parameter's name. Two parameters with one stream would start equal, which is an error when the model is made.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Every element is this value.
    Constant(f32),
    /// Uniform in `±1/sqrt(in_features)`: Kaiming uniform with `a = sqrt(5)`, as in PyTorch's `nn.Linear`.
    KaimingUniform {
        /// Number of inputs that each output sums over.
        in_features: usize,
        /// Counter of the random stream.
        stream: u32,
    },
    /// Uniform in plus or minus this bound.
    Uniform {
        /// Largest value.
        bound: f32,
        /// Counter of the random stream.
        stream: u32,
    },
    /// Normal with mean 0.
    ScaledNormal {
        /// Standard deviation.
        std: f32,
        /// Counter of the random stream.
        stream: u32,
    },
    /// Standard normal, as in PyTorch's `nn.Embedding`.
    Normal {
        /// Counter of the random stream.
        stream: u32,
    },
    /// Normal with a standard deviation of 0.03, for tables next to other features: a row that few training rows have stays small.
    SmallNormal {
        /// Counter of the random stream.
        stream: u32,
    },
}

impl Init {
    /// The stream of a parameter whose numbers are drawn by its name.
    pub(super) const BY_NAME: u32 = u32::MAX;

    /// Normal with mean 0 and this standard deviation, by the parameter's name.
    pub fn normal(std: f32) -> Self {
        Init::ScaledNormal { std, stream: Self::BY_NAME }
    }

    /// Uniform in plus or minus `bound`, by the parameter's name.
    pub fn uniform(bound: f32) -> Self {
        Init::Uniform { bound, stream: Self::BY_NAME }
    }

    /// [`Init::KaimingUniform`] for outputs that each sum over `in_features`, by the parameter's name.
    pub fn kaiming(in_features: usize) -> Self {
        Init::KaimingUniform { in_features, stream: Self::BY_NAME }
    }

    /// The stream of random numbers, unless the values are constant.
    pub(super) fn stream(mut self) -> Option<u32> {
        self.stream_mut().copied()
    }

    /// [`Init::stream`], to be set.
    pub(super) fn stream_mut(&mut self) -> Option<&mut u32> {
        match self {
            Init::Constant(_) => None,
            Init::KaimingUniform { stream, .. }
            | Init::Uniform { stream, .. }
            | Init::ScaledNormal { stream, .. }
            | Init::Normal { stream }
            | Init::SmallNormal { stream } => Some(stream),
        }
    }
}

/// One parameter as its layer declares it.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamSpec {
    /// Name in checkpoints and model files, unique within the model.
    pub name: String,
    /// Role of the parameter.
    pub kind: ParamKind,
    /// Shape.
    pub dims: Vec<usize>,
    /// Initial values.
    pub init: Init,
    /// Whether several layers use it (tied weights); each of them declares the same spec.
    pub is_shared: bool,
}

impl ParamSpec {
    /// A parameter of one layer.
    pub fn new(name: impl Into<String>, kind: ParamKind, dims: &[usize], init: Init) -> Self {
        ParamSpec { name: name.into(), kind, dims: dims.to_vec(), init, is_shared: false }
    }

    /// Allows several layers to use the parameter.
    #[must_use]
    pub fn shared(self) -> Self {
        ParamSpec { is_shared: true, ..self }
    }
}

/// One named parameter and its place in the flat buffers.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamEntry {
    /// `layers.{i}.weight`, `layers.{i}.bias`, `norms.{i}.weight`, `norms.{i}.bias`,
    /// `embeddings.{key}.weight` with [`super::EmbeddingSpec::key`]; other layers choose their own names.
    pub name: String,
    /// Role of the parameter.
    pub kind: ParamKind,
    /// Shape.
    pub dims: Vec<usize>,
    /// Initial values.
    pub init: Init,
    /// Index of its layer in the forward pass; for a shared parameter, of the first layer.
    pub layer: usize,
    /// First element in the flat buffer.
    pub start: usize,
}

impl ParamEntry {
    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.dims.iter().product()
    }

    /// Range of its elements in the flat buffer.
    pub fn range(&self) -> Range<usize> {
        self.start..self.start + self.numel()
    }
}
