//! A tensor that a layer registers: it belongs to the model like a parameter but is not trained. It persists between passes,
//! moves with the model, and is saved unless it is `not_saved`.

use ddp_kernels::{DType, Tensor};

/// A tensor of a layer that is not a parameter, such as a mask or running statistics. It can have any shape and dtype.
///
/// The model keeps it on its device ([`super::Network::to`] moves it) and lends it to the layer's passes. A trainer copies rank
/// 0's values to all ranks when it is created. A layer that writes different values on different ranks must use
/// [`RegisteredBuffer::averaged`].
///
/// Source: `torch.nn.Module.register_buffer`.
///
/// ```
/// use ddp::nn::RegisteredBuffer;
/// use ddp::prelude::*;
/// let mask = Tensor::ones(&[8, 8], DType::Bool, Device::Cpu)?.triu(1)?;
/// let mask = RegisteredBuffer::new("attention.mask", mask).not_saved();
/// assert!(!mask.is_saved());
/// # Ok::<(), KernelError>(())
/// ```
#[derive(Debug)]
#[doc(alias("register_buffer"))]
pub struct RegisteredBuffer {
    pub(super) name: String,
    pub(super) values: Tensor,
    pub(super) is_saved: bool,
    pub(super) is_averaged: bool,
}

impl RegisteredBuffer {
    /// A buffer with these initial values, saved with the parameters.
    ///
    /// - `name`: unique in the model, also among the parameters
    pub fn new(name: impl Into<String>, values: Tensor) -> Self {
        RegisteredBuffer { name: name.into(), values, is_saved: true, is_averaged: false }
    }

    /// Excludes the buffer from state dicts and checkpoints, because its initial values are right for every run.
    #[must_use]
    pub fn not_saved(self) -> Self {
        RegisteredBuffer { is_saved: false, ..self }
    }

    /// Replaces the buffer by its mean over all ranks after each step: for statistics that the forward pass updates. All ranks count
    /// alike, so it must hold finite values on a rank without rows too.
    ///
    /// # Panics
    /// If the values are not f32.
    #[must_use]
    pub fn averaged(self) -> Self {
        assert_eq!(self.values.dtype(), DType::F32, "means over ranks are of f32");
        RegisteredBuffer { is_averaged: true, ..self }
    }

    /// Name in state dicts and checkpoints.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The values.
    pub fn values(&self) -> &Tensor {
        &self.values
    }

    /// Whether state dicts and checkpoints hold it.
    pub fn is_saved(&self) -> bool {
        self.is_saved
    }
}
