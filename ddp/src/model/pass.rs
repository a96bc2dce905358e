//! Memory that the model lends to a layer for one pass: views of parameters, buffers and gradients.
//!
//! The masks of dropout depend only on the pass's key:
//!
//! ```
//! use ddp::nn::{DropoutStep, Precision, Sequential, Sizes};
//! use ddp::prelude::*;
//!
//! let sizes = Sizes { max_rows: 4, device: Device::Cpu, precision: Precision::F32 };
//! let mut model = Sequential::new(8).linear(16).dropout(0.5).linear(3).build(sizes, 1)?;
//! let x = Tensor::randn(&[4, 8], DType::F32, Device::Cpu, 1)?;
//! let mut outputs = |dropout: Option<DropoutStep<'_>>| -> Result<Vec<f32>, KernelError> {
//!     model.forward_with(&x, dropout)?.to_vec::<f32>()
//! };
//!
//! let step = DropoutStep { seed: 1, step: 7, first_row: 0, scalars: None };
//! assert_eq!(outputs(Some(step))?, outputs(Some(step))?);
//! assert_ne!(outputs(Some(step))?, outputs(None)?);
//! # Ok::<(), KernelError>(())
//! ```

use std::cell::Cell;
use std::ops::Range;

use ddp_kernels::cuda::BesideMatmuls;
use ddp_kernels::ops::{self, DropoutKey, MatmulMode, ThroughActivation};
use ddp_kernels::{KernelError, Tensor, TensorMut, TensorRef};

use super::all_ranks::AllRanks;

/// Key of the dropout masks of one pass: masks differ per step and row.
#[derive(Debug, Clone, Copy)]
pub struct DropoutStep<'a> {
    /// Seed of the run.
    pub seed: u64,
    /// Optimizer step, from 0.
    pub step: u64,
    /// Index of the first row in the global batch; with `scalars`, relative to the first row given there.
    pub first_row: u64,
    /// [`ops::StepScalars`] on the device; they then hold seed, step and first row.
    pub scalars: Option<TensorRef<'a>>,
}

impl DropoutStep<'_> {
    pub(crate) fn apply(self, x: TensorMut<'_>, p: f64, layer: u16) -> Result<(), KernelError> {
        let DropoutStep { seed, step, first_row, scalars } = self;
        ops::dropout(x, p, DropoutKey { seed, step, layer, first_row }, scalars)
    }
}

/// Arguments of [`super::Layer::forward`].
#[derive(Debug)]
pub struct ForwardPass<'a> {
    /// Values of the layer's parameters.
    pub params: ParamViews<'a>,
    /// Buffers of the layer, each large enough for the maximum number of rows.
    pub buffers: &'a mut [Tensor],
    /// The tensors of [`super::Layer::registered_buffers`]. Training passes may write them; others must not.
    pub registered: &'a mut [Tensor],
    /// Scratch shared by all layers.
    pub workspace: TensorMut<'a>,
    /// Arithmetic of f32 matmuls.
    pub matmul_mode: MatmulMode,
    /// Key of the random masks; `None` in evaluation.
    pub dropout: Option<DropoutStep<'a>>,
    /// For the end of a skip connection: the value at its start.
    pub skip: Option<TensorRef<'a>>,
    /// The ranks that train together. `None` in evaluation, on a single rank, and in a pass whose results are discarded.
    pub all_ranks: Option<&'a mut dyn AllRanks>,
}

impl ForwardPass<'_> {
    /// Whether this is a pass of training, not of an evaluation, a prediction or a gradient check.
    pub fn is_training(&self) -> bool {
        self.dropout.is_some()
    }
}

/// Arguments of [`super::Layer::backward`].
#[derive(Debug)]
pub struct BackwardPass<'a> {
    /// Input of the forward pass.
    pub x: TensorRef<'a>,
    /// Output of the forward pass, if the layer [keeps it](super::Layer::keeps_output); else it may have been overwritten.
    pub y: TensorRef<'a>,
    /// Values of the layer's parameters.
    pub params: ParamViews<'a>,
    /// Gradients of the layer's parameters.
    pub grads: ParamGradients<'a>,
    /// The layer's own buffers as the forward pass left them.
    pub buffers: &'a mut [Tensor],
    /// The tensors of [`super::Layer::registered_buffers`].
    pub registered: &'a [Tensor],
    /// Scratch shared by all layers.
    pub workspace: TensorMut<'a>,
    /// Arithmetic of f32 matmuls.
    pub matmul_mode: MatmulMode,
    /// Dropout of the forward pass.
    pub dropout: Option<DropoutStep<'a>>,
    /// For both ends of a skip connection: the gradient along the shortcut. `None` if another layer adds it, or nothing needs it.
    pub skip: Option<TensorMut<'a>>,
    /// Exchange of the forward pass.
    pub all_ranks: Option<&'a mut dyn AllRanks>,
    /// Matmuls beside those that the next layer of the pass waits for.
    #[doc(hidden)]
    pub beside: Option<&'a BesideMatmuls>,
}

/// Arguments of [`super::Layer::backward_input`].
#[derive(Debug)]
pub struct InputGradientPass<'a> {
    /// Input of the forward pass.
    pub x: TensorRef<'a>,
    /// Values of the layer's parameters.
    pub params: ParamViews<'a>,
    /// The layer's own buffers as [`super::Layer::backward`] left them.
    pub buffers: &'a mut [Tensor],
    /// The tensors of [`super::Layer::registered_buffers`].
    pub registered: &'a [Tensor],
    /// Scratch shared by all layers.
    pub workspace: TensorMut<'a>,
    /// Arithmetic of f32 matmuls.
    pub matmul_mode: MatmulMode,
    /// Activation that gave the input, if its derivative is part of this layer's matmul.
    pub through: Option<ThroughActivation<'a>>,
    /// Whether to add to the values in the buffer: the gradient along the shortcut around this layer.
    pub accumulate: bool,
}

/// One of a layer's parameters in the flat buffers.
#[derive(Debug, Clone)]
pub(crate) struct ParamPlace {
    pub(crate) range: Range<usize>,
    pub(crate) dims: Vec<usize>,
    pub(crate) gradient: GradientPlace,
}

/// Destination of the gradient of a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GradientPlace {
    /// To its position in the flat buffer: this layer is the last one in the backward pass that uses the parameter.
    Flat,
    /// To its position in the flat buffer, added to these shares of the other layers that use the parameter.
    FlatOnShares(Vec<usize>),
    /// To a separate buffer: the share of a layer that is not the last to use the parameter.
    Share,
}

/// Values of a layer's parameters.
#[derive(Debug, Clone, Copy)]
pub struct ParamViews<'a> {
    pub(super) places: &'a [ParamPlace],
    pub(super) master: &'a Tensor,
    pub(super) compute: &'a Tensor,
}

impl<'a> ParamViews<'a> {
    /// Parameter `index` of the layer in f32, as the optimizer updates it.
    ///
    /// # Errors
    /// None if `index` is a parameter of the layer.
    ///
    /// # Panics
    /// If the layer has no such parameter.
    pub fn master(&self, index: usize) -> Result<TensorRef<'a>, KernelError> {
        self.of(self.master, index)
    }

    /// Parameter `index` of the layer in the format of activations, for matmuls.
    ///
    /// # Errors
    /// None if `index` is a parameter of the layer.
    ///
    /// # Panics
    /// If the layer has no such parameter.
    pub fn compute(&self, index: usize) -> Result<TensorRef<'a>, KernelError> {
        self.of(self.compute, index)
    }

    /// The f32 range from the layer's first parameter to the end of its last one.
    pub(crate) fn master_range(&self) -> Result<TensorRef<'a>, KernelError> {
        let end = self.places.last().map_or(0, |last| last.range.end);
        self.master.view().range(self.places.first().map_or(0, |first| first.range.start), end)
    }

    fn of(&self, flat: &'a Tensor, index: usize) -> Result<TensorRef<'a>, KernelError> {
        let ParamPlace { range, dims, .. } = &self.places[index];
        flat.view().range(range.start, range.end)?.reshape(dims)
    }
}

/// Destination of the gradient of one parameter.
#[derive(Debug)]
pub struct ParamGradient<'a> {
    /// The gradient, of the parameter's shape, in f32; or in the format of activations, if the layer
    /// [can round it](super::Layer::can_round_gradients).
    pub d: TensorMut<'a>,
    /// Whether to add to the values in `d`.
    pub accumulate: bool,
}

/// Gradients of a layer's parameters.
#[derive(Debug)]
pub struct ParamGradients<'a> {
    pub(super) places: &'a [ParamPlace],
    /// The rest of the layer's range of the flat buffer, and its first element.
    pub(super) flat: Option<(usize, TensorMut<'a>)>,
    /// The rest of the layer's buffers for shares of shared parameters.
    pub(super) shares: &'a mut [Tensor],
    pub(super) accumulate: bool,
    /// Gradients taken so far.
    pub(super) n_taken: &'a Cell<usize>,
}

impl<'a> ParamGradients<'a> {
    /// The gradient of the next parameter, in the order of [`super::Layer::parameters`].
    ///
    /// # Errors
    /// None if the layer has another parameter.
    ///
    /// # Panics
    /// If the layer has no more parameters.
    pub fn take(&mut self) -> Result<ParamGradient<'a>, KernelError> {
        let (ParamPlace { range, dims, gradient }, rest) =
            self.places.split_first().expect("one gradient per parameter");
        self.places = rest;
        self.n_taken.update(|n_taken| n_taken + 1);
        if *gradient == GradientPlace::Share {
            let (share, rest) =
                std::mem::take(&mut self.shares).split_first_mut().expect("a buffer per share");
            self.shares = rest;
            return Ok(ParamGradient { d: share.view_mut().reshape(dims)?, accumulate: false });
        }
        let (start, flat) = self.flat.take().expect("the layer's range of the flat buffer");
        let (_, flat) = flat.split_at(range.start - start)?;
        let (d, flat) = flat.split_at(range.len())?;
        self.flat = Some((range.end, flat));
        // The shares of other layers have already been added.
        let accumulate = self.accumulate || *gradient != GradientPlace::Flat;
        Ok(ParamGradient { d: d.reshape(dims)?, accumulate })
    }

    /// The gradients of all parameters as one contiguous range.
    pub(crate) fn whole_range(self) -> Option<ParamGradient<'a>> {
        let ParamGradients { flat, accumulate, places, n_taken, .. } = self;
        n_taken.update(|n_taken| n_taken + places.len());
        flat.map(|(_, d)| ParamGradient { d, accumulate })
    }
}
