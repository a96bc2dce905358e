//! What the layers' forward passes leave: made once for the largest pass.

use ddp_kernels::ops::{self, Activation, SavedForBackward};
use ddp_kernels::{DType, Device, KernelError, MemoryUse, Tensor, TensorRef};

use super::ModelSpec;
use super::buffers::BufferPlan;

type Result<T> = std::result::Result<T, KernelError>;

/// What a layer's forward pass leaves for the next layer and for the backward pass.
#[derive(Debug)]
pub(crate) struct LayerBuffers<T = Tensor> {
    /// `x·Wᵀ + b`, where a norm or the derivative of the activation needs it.
    pub(crate) linear: Option<T>,
    /// The norm's output, where the derivative of the activation needs it.
    pub(crate) normed: Option<T>,
    /// Mean and reciprocal deviation of the rows, where there is a norm.
    pub(crate) stats: Option<(T, T)>,
    /// The activation's output, where what follows it changes it and the derivative needs it.
    pub(crate) activated: Option<T>,
    /// On a GPU, what of ReLU's output is positive, where the next product computes its derivative.
    pub(crate) relu_mask: Option<T>,
    /// Whether the last forward pass wrote it.
    pub(crate) is_masked: bool,
    /// The layer's output.
    pub(crate) y: T,
}

impl<T> LayerBuffers<T> {
    /// The buffers of layer `layer`, made by `make`.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn make<E>(
        plan: BufferPlan<'_>,
        layer: usize,
        make: &mut impl FnMut(MemoryUse, &[usize], DType) -> std::result::Result<T, E>,
    ) -> std::result::Result<Self, E> {
        let BufferPlan { spec, max_rows, device, precision, .. } = plan;
        let (_, out_features) = spec.in_out(layer);
        let mut zeros = |dims: &[usize], dtype| make(MemoryUse::Activations, dims, dtype);
        let hidden = spec.is_hidden(layer);
        // The outputs are f32 in every precision: the loss is computed from them.
        let dtype = if hidden { precision.activations() } else { DType::F32 };
        let norm = hidden && spec.layer_norm;
        let needs_input = hidden && spec.activation.saved_for_backward() == SavedForBackward::Input;
        let changed_later = hidden && (spec.dropout > 0.0 || spec.has_residual(layer));
        let masked = goes_through_product(spec, layer, device) && spec.activation == Activation::Relu;
        let dims = [max_rows, out_features];
        Ok(LayerBuffers {
            linear: (norm || needs_input).then(|| zeros(&dims, dtype)).transpose()?,
            normed: norm.then(|| zeros(&dims, dtype)).transpose()?,
            stats: match norm {
                true => Some((zeros(&[max_rows], DType::F32)?, zeros(&[max_rows], DType::F32)?)),
                false => None,
            },
            activated: (changed_later && !needs_input).then(|| zeros(&dims, dtype)).transpose()?,
            relu_mask: match masked {
                true => Some(zeros(&[ops::relu_mask_len(max_rows, out_features)], DType::I64)?),
                false => None,
            },
            is_masked: false,
            y: zeros(&dims, dtype)?,
        })
    }
}

impl LayerBuffers {
    /// What the derivative of `activation` is computed from.
    pub(crate) fn saved(&self, activation: Activation, n_rows: usize) -> Result<TensorRef<'_>> {
        let saved = match activation.saved_for_backward() {
            SavedForBackward::Output => self.activated.as_ref().unwrap_or(&self.y),
            SavedForBackward::Input => {
                self.normed.as_ref().or(self.linear.as_ref()).expect("kept for the derivative")
            }
        };
        saved.view().rows(0, n_rows)
    }
}

/// Whether the derivative of this layer's activation is part of the product that computes the gradient of the next layer's
/// input: on a GPU, where nothing but the activation stands between the two layers.
pub(crate) fn goes_through_product(spec: &ModelSpec, layer: usize, device: Device) -> bool {
    matches!(device, Device::Cuda(_))
        && spec.is_hidden(layer)
        && !spec.layer_norm
        && spec.dropout == 0.0
        && !spec.has_residual(layer)
        && !spec.has_residual(layer + 1)
}
