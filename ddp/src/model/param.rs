//! Parameters as layers declare them: name, shape, kind and initial values.
//!
//! Two layers that share one weight:
//!
//! ```
//! use ddp::nn::{Init, Linear, LinearSpec, ParamKind, ParamLayout, ParamSpec, Sequential};
//!
//! let weight = ParamSpec::new("tied.weight", ParamKind::Weight, &[4, 4], Init::KaimingUniform(4)).shared();
//! let linear = || Linear::new(LinearSpec::from_params(weight.clone(), None));
//! let layers = Sequential::new(4).layer(linear()).layer(linear()).into_layers();
//! assert_eq!(ParamLayout::from_layers(&layers, 1).n_params(), 16);
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

/// Initial values of a parameter, a function of the run's seed and of the parameter's name.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Init {
    /// Every element is this value.
    Constant(f32),
    /// Uniform in `±1/sqrt(n)`, where `n` is the number of inputs that each output sums over: Kaiming uniform with `a = sqrt(5)`, as in
    /// PyTorch's `nn.Linear`.
    KaimingUniform(usize),
    /// Uniform in plus or minus this bound.
    Uniform(f32),
    /// Normal with mean 0 and this standard deviation.
    Normal(f32),
}

/// The random numbers of a parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RandomStream {
    /// By its name.
    Name,
    /// By a counter, as layers number them.
    Layer(u32),
    /// By a counter of tables.
    Table(u32),
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
    pub(super) stream: RandomStream,
}

impl ParamSpec {
    /// A parameter of one layer.
    pub fn new(name: impl Into<String>, kind: ParamKind, dims: &[usize], init: Init) -> Self {
        let (name, dims) = (name.into(), dims.to_vec());
        ParamSpec { name, kind, dims, init, is_shared: false, stream: RandomStream::Name }
    }

    /// The same with these random numbers.
    pub(super) fn on_stream(self, stream: RandomStream) -> Self {
        ParamSpec { stream, ..self }
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
    /// Whether steps leave it as it is ([`Network::freeze`](super::Network::freeze)).
    pub is_frozen: bool,
    pub(super) stream: RandomStream,
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
