//! All memory of a model in one list: the model allocates tensors from it, and reports add up its sizes.

use std::convert::Infallible;

use ddp_kernels::{DType, Device, MemoryUse};

use super::layer::{BufferSpec, Layer, Sizes};
use super::plan::{FlatFormats, Plan};
use super::{ModelSpec, ParamLayout, layers};
use crate::config::precision::Precision;

/// Settings that determine the sizes of the buffers.
#[derive(Debug, Clone, Copy)]
pub struct BufferPlan<'a> {
    /// Sizes and kinds of the layers.
    pub spec: &'a ModelSpec,
    /// Positions of the parameters.
    pub layout: &'a ParamLayout,
    /// Maximum number of rows of one pass.
    pub max_rows: usize,
    /// Device of the model.
    pub device: Device,
    /// Number formats.
    pub precision: Precision,
}

/// The buffers of a model, each of type `T`: a tensor, or only its size.
#[derive(Debug)]
pub(crate) struct Buffers<T> {
    /// Parameters that the optimizer updates: f32, or f64 if the model is in f64.
    pub(crate) master_weights: T,
    /// Parameters in the format of matmuls, if it differs.
    pub(crate) compute_weights: Option<T>,
    /// Outputs of the layers.
    pub(crate) values: Vec<T>,
    /// Buffers that each layer declares for itself.
    pub(crate) own: Vec<Vec<T>>,
    /// Gradients of values, which share these buffers in turn; the first one initially holds the gradient of the outputs.
    pub(crate) gradients: Vec<T>,
    /// Partial gradients of shared parameters.
    pub(crate) shares: Vec<T>,
    /// Scratch of all layers.
    pub(crate) workspace: T,
}

/// Bytes of a model's buffers by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModelBytes {
    /// Parameters in f32, as the optimizer updates them.
    pub parameters: usize,
    /// Copy of the parameters in a shorter format.
    pub compute_weights: usize,
    /// Results that a forward pass keeps for the backward pass, and their gradients.
    pub activations: usize,
    /// Scratch memory.
    pub workspace: usize,
    /// Registered buffers, such as the statistics of batch norms.
    pub registered: usize,
}

impl<T> Buffers<T> {
    /// Makes all buffers by calling `make` with the specification of each; returns the first error of `make`.
    pub(crate) fn make<E>(
        plan: &Plan,
        flat_len: usize,
        make: &mut impl FnMut(&BufferSpec) -> Result<T, E>,
    ) -> Result<Self, E> {
        let precision = plan.sizes.precision;
        let (format, master) = (precision.activations(), precision.master());
        let weights = |dtype| BufferSpec { kind: MemoryUse::Parameters, dims: vec![flat_len], dtype };
        let gradient = BufferSpec::activations(&[plan.gradient_len], format);
        let of_layer = |layer: &dyn Layer| layer.buffers(plan.sizes);
        Ok(Buffers {
            values: plan.values.iter().map(&mut *make).collect::<Result<_, E>>()?,
            own: plan
                .steps
                .iter()
                .map(|step| of_layer(&*step.layer).iter().map(&mut *make).collect())
                .collect::<Result<_, E>>()?,
            master_weights: make(&weights(master))?,
            compute_weights: precision.is_short().then(|| make(&weights(format))).transpose()?,
            gradients: (0..plan.n_gradients).map(|_| make(&gradient)).collect::<Result<_, E>>()?,
            shares: plan
                .shares
                .iter()
                .map(|&len| make(&BufferSpec::workspace(len, master)))
                .collect::<Result<_, E>>()?,
            workspace: make(&BufferSpec::workspace(plan.workspace_len, master))?,
        })
    }
}

impl BufferPlan<'_> {
    fn plan(&self) -> Plan {
        let sizes = Sizes { max_rows: self.max_rows, device: self.device, precision: self.precision };
        Plan::new(layers::from_spec(self.spec), self.layout, self.spec.n_features(), sizes, false)
    }

    /// Format of the input; see [`super::Network::input_format`].
    pub fn input_format(&self) -> DType {
        self.plan().short_input().unwrap_or(self.precision.master())
    }

    /// The formats of the flat buffers.
    pub fn flat_formats(&self) -> FlatFormats {
        self.plan().flat_formats()
    }
}

impl ModelBytes {
    /// Bytes of the model that [`super::Network::with_layout`] builds from this plan.
    pub fn of(plan: BufferPlan<'_>) -> Self {
        let (layout, plan) = (plan.layout, plan.plan());
        let mut bytes = ModelBytes::default();
        let mut count = |buffer: &BufferSpec| {
            let n = buffer.dims.iter().product::<usize>() * buffer.dtype.size_bytes();
            match buffer.kind {
                MemoryUse::Parameters => bytes.parameters += n,
                MemoryUse::Activations => bytes.activations += n,
                _ => bytes.workspace += n,
            }
            Ok::<usize, Infallible>(n)
        };
        let Ok(buffers) = Buffers::make(&plan, layout.flat_len(), &mut count);
        bytes.compute_weights = buffers.compute_weights.unwrap_or(0);
        bytes.parameters -= bytes.compute_weights;
        for step in &plan.steps {
            let buffers = step.layer.registered_buffers().unwrap_or_default();
            let sizes =
                buffers.iter().map(|buffer| buffer.values().numel() * buffer.values().dtype().size_bytes());
            bytes.registered += sizes.sum::<usize>();
        }
        bytes
    }
}
