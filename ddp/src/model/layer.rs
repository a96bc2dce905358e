//! A layer: its properties that the model must know before a step, and its forward and backward pass.
//!
//! Layers own no tensors. They declare parameters and buffers; the model allocates them once and lends them to each pass
//! ([`super::pass`]), so that a step allocates nothing.
//!
//! A custom layer without parameters:
//!
//! ```
//! use ddp::ops;
//! use ddp::model::layer::Result;
//! use ddp::nn::{BackwardPass, ForwardPass, Layer, Precision, Sequential, Sizes};
//! use ddp::prelude::*;
//!
//! /// Passes its rows on; so does its backward pass, which works in place.
//! #[derive(Debug)]
//! struct Identity(usize);
//!
//! impl Layer for Identity {
//!     fn describe(&self) -> String {
//!         "identity".to_owned()
//!     }
//!
//!     fn out_features(&self) -> usize {
//!         self.0
//!     }
//!
//!     fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, _pass: ForwardPass<'_>) -> Result<()> {
//!         ops::copy(x, y)
//!     }
//!
//!     fn backward(&mut self, _d: TensorMut<'_>, _pass: BackwardPass<'_>) -> Result<()> {
//!         Ok(())
//!     }
//! }
//!
//! let sizes = Sizes { max_rows: 2, device: Device::Cpu, precision: Precision::F32 };
//! let x = Tensor::randn(&[2, 3], DType::F32, Device::Cpu, 1)?;
//! let outputs = |layers: Sequential| -> Result<Vec<f32>> {
//!     layers.build(sizes, 1)?.forward(&x)?.to_vec::<f32>()
//! };
//! let plain = Sequential::new(3).linear(4).linear(2);
//! let with_identity = Sequential::new(3).linear(4).layer(Identity(4)).linear(2);
//! assert_eq!(outputs(with_identity)?, outputs(plain)?);
//! # Ok::<(), KernelError>(())
//! ```

use std::fmt::Debug;

use ddp_kernels::ops::{Activation, ThroughActivation};
use ddp_kernels::{DType, Device, KernelError, MemoryUse, Tensor, TensorMut, TensorRef};

use super::EmbeddingSpec;
use super::linear_spec::LinearSpec;
use super::operator::Operator;
use super::param::{ParamEntry, ParamSpec};
use super::pass::{BackwardPass, ForwardPass, InputGradientPass};
pub use super::registered_buffer::RegisteredBuffer;
use crate::config::precision::Precision;

/// Result of the operations of a layer.
pub type Result<T> = std::result::Result<T, KernelError>;

/// One stage of a model: maps rows `[B, in_features]` to rows `[B, out_features]`.
///
/// On a GPU, the trainer may run a forward and a backward pass and discard the gradients before the first step of each batch
/// size, to choose the fastest matmuls. A pass must not change the results of later passes, except through buffers.
///
/// A layer of an unknown kind needs [`Layer::describe`], [`Layer::out_features`], [`Layer::forward`] and
/// [`Layer::backward`]; a layer without parameters that keeps the width of its rows needs nothing else.
#[doc(alias("Module"))]
pub trait Layer: Debug + Send {
    /// Kind and settings, for the passes over the plan that fuse neighbors. A layer that returns `Opaque` is never fused.
    fn kind(&self) -> LayerKind<'_> {
        LayerKind::Opaque
    }

    /// One line for reports.
    fn describe(&self) -> String;

    /// Width of the output rows.
    fn out_features(&self) -> usize;

    /// Parameters in the order in which [`Layer::backward`] takes their gradients.
    fn parameters(&self) -> &[ParamSpec] {
        &[]
    }

    /// Buffers that the layer needs for itself, kept from forward to backward.
    fn buffers(&self, _sizes: Sizes) -> Vec<BufferSpec> {
        Vec::new()
    }

    /// Tensors of the layer that are not parameters, with their initial values; called once, when the model is created.
    ///
    /// # Errors
    /// [`KernelError`] from making the tensors.
    fn registered_buffers(&self) -> Result<Vec<RegisteredBuffer>> {
        Ok(Vec::new())
    }

    /// Names and lengths of the registered buffers, f32 vectors, that model files store next to the weights, because the layer's
    /// output after training depends on them.
    fn statistics(&self) -> Vec<(String, usize)> {
        Vec::new()
    }

    /// Maximum number of elements (f64) that a training pass gathers from each rank at a time ([`ForwardPass::all_ranks`]); 0 for
    /// a layer whose rows do not depend on each other.
    fn exchanged_len(&self) -> usize {
        0
    }

    /// Number of elements (f64) that the forward and the backward pass of a micro-batch gather from each rank, for reports.
    fn exchanged_per_pass(&self) -> usize {
        2 * self.exchanged_len()
    }

    /// Whether a step on a GPU may be captured as a graph: its passes allocate no memory, wait for nothing, read no tensor on the
    /// host and enqueue the same work in every step. Otherwise the trainer runs steps kernel by kernel.
    fn is_capturable(&self) -> bool {
        self.kind() != LayerKind::Opaque
    }

    /// Number of elements (f32) of [`ForwardPass::workspace`] and its counterparts, scratch memory that all layers share.
    fn workspace_len(&self, _sizes: Sizes) -> usize {
        0
    }

    /// Multiply-adds per row of the layer's matmul; the forward pass computes one such matmul, the backward pass one for the
    /// gradient of the weight and one for the gradient of the input.
    fn matmul_size(&self) -> usize {
        0
    }

    /// Values per row that [`Layer::backward`] reads and writes, for reports: the input, the output and their gradients.
    fn backward_values(&self) -> usize {
        3 * self.out_features()
    }

    /// The layer after training as ONNX operators, the last of which computes the output; `None` if the layer can't be exported.
    /// Called only for layers of unknown kind.
    fn operators(&self) -> Option<Vec<Operator>> {
        None
    }

    /// Whether [`Layer::backward`] can write the gradients of all its parameters in the format of activations, each rounded once
    /// from a sum in f32. If so, the gradients passed to it are f32 or of that format; otherwise they are always f32.
    fn can_round_gradients(&self) -> bool {
        false
    }

    /// Whether the passes read parameter `index` in f32 ([`super::pass::ParamViews::master`]) if the layer's outputs have the
    /// format `outputs`, rather than only in the format of activations ([`super::pass::ParamViews::compute`]).
    fn reads_master(&self, _index: usize, _outputs: DType) -> bool {
        true
    }

    /// Prepares what the layer needs for passes of these sizes, such as constants on the device, before [`Layer::buffers`];
    /// `entries` are its parameters.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`], or out of memory.
    fn prepare(&mut self, _entries: &[&ParamEntry], _sizes: Sizes) -> Result<()> {
        Ok(())
    }

    /// Whether [`Layer::forward_in_place`] can replace [`Layer::forward`]: the output may overwrite the input.
    fn can_overwrite_input(&self) -> bool {
        false
    }

    /// Whether the backward pass reads the output, which must then not be overwritten.
    fn keeps_output(&self) -> bool {
        true
    }

    /// Whether [`Layer::backward`] turns the gradient of the output into that of the input in place. Otherwise
    /// [`Layer::backward_input`] writes it to another buffer.
    fn backward_is_in_place(&self) -> bool {
        true
    }

    /// Computes `y`, `[B, out_features]`, from `x`, `[B, in_features]`.
    ///
    /// # Errors
    /// [`KernelError`] from the operations.
    fn forward(&mut self, x: TensorRef<'_>, y: TensorMut<'_>, pass: ForwardPass<'_>) -> Result<()>;

    /// Computes the output over the input `y`; called only if [`Layer::can_overwrite_input`].
    ///
    /// # Errors
    /// [`KernelError`] from the operations.
    fn forward_in_place(&mut self, _y: TensorMut<'_>, _pass: ForwardPass<'_>) -> Result<()> {
        unreachable!("a layer that can overwrite its input implements it")
    }

    /// Writes the gradients of the parameters from `d`, the gradient of the output; if [`Layer::backward_is_in_place`], it also
    /// turns `d` into the gradient of the input.
    ///
    /// # Errors
    /// [`KernelError`] from the operations.
    fn backward(&mut self, d: TensorMut<'_>, pass: BackwardPass<'_>) -> Result<()>;

    /// Writes the gradient of the input, `d_x`, from `d` as [`Layer::backward`] left it; called only if
    /// [`Layer::backward_is_in_place`] is false, after the exchange of the parameters' gradients has started.
    ///
    /// # Errors
    /// [`KernelError`] from the operations.
    fn backward_input(
        &mut self,
        _d: TensorRef<'_>,
        _d_x: TensorMut<'_>,
        _pass: InputGradientPass<'_>,
    ) -> Result<()> {
        let remedy = "a layer whose backward pass is not in place implements `backward_input`";
        Err(KernelError::misuse(
            "backward_input",
            format!("{} has no gradient of its input", self.describe()),
            remedy,
        ))
    }

    /// The activation that computed the output `y` of the last forward pass, if the next layer computes its derivative
    /// ([`LinearSpec::derivative_in_next`]).
    ///
    /// # Errors
    /// [`KernelError::OutOfRange`] for more rows than the buffers can hold.
    fn activation_of<'a>(
        &'a self,
        _y: TensorRef<'a>,
        _buffers: &'a mut [Tensor],
    ) -> Result<Option<ThroughActivation<'a>>> {
        Ok(None)
    }
}

/// Most multiplications of a product for which another one beside it is tried: that of 1,024 inputs, outputs and 8,192 rows. Larger ones
/// fill a GPU.
const MOST_PRODUCTS: usize = 1 << 33;

/// Whether the products of these layers over `n_rows` rows are so small that gradients of weights may be computed beside those of inputs,
/// of which the first layer has none.
pub(crate) fn has_small_products<'a>(layers: impl Iterator<Item = &'a dyn Layer>, n_rows: usize) -> bool {
    let sizes: Vec<_> = layers.map(Layer::matmul_size).filter(|size| *size > 0).collect();
    sizes.len() > 1 && sizes.iter().all(|size| size.saturating_mul(n_rows) <= MOST_PRODUCTS)
}

/// Kind of a layer, with the settings that fusion needs.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum LayerKind<'a> {
    /// Any other layer, which is never fused.
    Opaque,
    /// Linear layer, with the activation that was fused into it.
    Linear(&'a LinearSpec),
    /// Elementwise activation.
    Activation(Activation),
    /// Tables of embeddings, before all other layers.
    Embedding(&'a [EmbeddingSpec]),
    /// Start of a skip connection: its input is added to the output of the matching end.
    SkipBegin,
    /// End of the innermost open skip connection.
    SkipEnd,
    /// Layer norm: its parameters are the scale and the shift.
    LayerNorm {
        /// Constant added to the variance.
        eps: f64,
    },
    /// Batch norm: its parameters are the scale and the shift, its statistics the running mean and variance.
    BatchNorm {
        /// Constant added to the variance.
        eps: f64,
    },
    /// Dropout, which has no effect after training.
    Dropout,
    /// Conversion between number formats.
    Cast,
}

/// Quantities that decide the sizes of buffers.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Maximum number of rows of one pass.
    pub max_rows: usize,
    /// Device of the model.
    pub device: Device,
    /// Number formats.
    pub precision: Precision,
}

impl Sizes {
    /// Passes over at most `max_rows` rows in f32.
    pub fn new(max_rows: usize, device: Device) -> Self {
        Sizes { max_rows, device, precision: Precision::F32 }
    }
}

/// Shape, format and memory category of one buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BufferSpec {
    /// Category in the memory report of the device.
    pub kind: MemoryUse,
    /// Shape.
    pub dims: Vec<usize>,
    /// Number format.
    pub dtype: DType,
}

impl BufferSpec {
    /// A buffer that the forward pass fills for the backward pass.
    pub fn activations(dims: &[usize], dtype: DType) -> Self {
        BufferSpec { kind: MemoryUse::Activations, dims: dims.to_vec(), dtype }
    }

    /// A scratch buffer.
    pub fn workspace(len: usize, dtype: DType) -> Self {
        BufferSpec { kind: MemoryUse::Workspace, dims: vec![len], dtype }
    }
}
