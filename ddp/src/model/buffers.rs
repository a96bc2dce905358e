//! All memory of a model in one list: the model makes tensors of it, and whoever only wants to know adds up their sizes.

use std::convert::Infallible;

use ddp_kernels::ops::{self, EmbeddingTables};
use ddp_kernels::{DType, Device, MemoryUse};

use super::layer_buffers::LayerBuffers;
use super::{ModelSpec, ParamLayout};
use crate::config::precision::Precision;

/// What decides how large the buffers are.
#[derive(Debug, Clone, Copy)]
pub struct BufferPlan<'a> {
    /// Sizes and kinds of the layers.
    pub spec: &'a ModelSpec,
    /// Where the parameters lie.
    pub layout: &'a ParamLayout,
    /// The most rows of one pass.
    pub max_rows: usize,
    /// Where the model computes.
    pub device: Device,
    /// Which number format is used for what.
    pub precision: Precision,
}

/// The buffers of a model but those of its embeddings, each a `T`.
#[derive(Debug)]
pub(crate) struct Buffers<T> {
    /// What is updated, f32.
    pub(crate) weights: T,
    /// What products take, where that is another format.
    pub(crate) working_copy: Option<T>,
    /// The first layer's input, where that is another than the model's.
    pub(crate) first_x: Option<T>,
    pub(crate) layers: Vec<LayerBuffers<T>>,
    /// Two gradients of activations in turn.
    pub(crate) d: [T; 2],
    /// Scratch of the products.
    pub(crate) workspace: T,
}

/// Bytes of a model's buffers by what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModelBytes {
    /// The weights that are updated.
    pub parameters: usize,
    /// Their copy in a shorter format.
    pub working_copy: usize,
    /// What a forward pass leaves, and gradients of it.
    pub activations: usize,
    /// Scratch.
    pub workspace: usize,
}

impl<T> Buffers<T> {
    /// All buffers, made by `make`, which is told what each is for, its shape and its format.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn make<E>(
        plan: BufferPlan<'_>,
        make: &mut impl FnMut(MemoryUse, &[usize], DType) -> Result<T, E>,
    ) -> Result<Self, E> {
        let BufferPlan { spec, layout, max_rows, device, precision } = plan;
        let layers = (0..spec.n_layers())
            .map(|layer| LayerBuffers::make(plan, layer, &mut *make))
            .collect::<Result<_, E>>()?;
        let format = precision.activations();
        let widest = spec.dims.iter().copied().max().unwrap_or(0);
        let workspace_len = (0..spec.n_layers())
            .map(|layer| {
                let (in_features, out_features) = spec.in_out(layer);
                ops::linear_workspace_len(max_rows, in_features, out_features, format, device)
            })
            .max()
            .unwrap_or(0);
        let is_cast = format != DType::F32;
        let d = [max_rows * widest];
        Ok(Buffers {
            weights: make(MemoryUse::Parameters, &[layout.flat_len()], DType::F32)?,
            working_copy: match is_cast {
                true => Some(make(MemoryUse::Parameters, &[layout.flat_len()], format)?),
                false => None,
            },
            first_x: match is_cast || !spec.embeddings.is_empty() {
                true => Some(make(MemoryUse::Activations, &[max_rows, spec.dims[0]], format)?),
                false => None,
            },
            layers,
            d: [make(MemoryUse::Activations, &d, format)?, make(MemoryUse::Activations, &d, format)?],
            workspace: make(MemoryUse::Workspace, &[workspace_len], DType::F32)?,
        })
    }
}

impl ModelBytes {
    /// Those of the model that [`super::Mlp`] makes of this plan.
    pub fn of(plan: BufferPlan<'_>) -> Self {
        let mut bytes = ModelBytes::default();
        let mut count = |kind, dims: &[usize], dtype: DType| {
            let n = dims.iter().product::<usize>() * dtype.size_bytes();
            match kind {
                MemoryUse::Parameters => bytes.parameters += n,
                MemoryUse::Activations => bytes.activations += n,
                _ => bytes.workspace += n,
            }
            Ok::<usize, Infallible>(n)
        };
        let Ok(buffers) = Buffers::make(plan, &mut count);
        bytes.working_copy = buffers.working_copy.unwrap_or(0);
        bytes.parameters -= bytes.working_copy;
        let n_tables = plan.spec.embeddings.len();
        let tables = EmbeddingTables::workspace_len_on(n_tables, plan.max_rows, plan.device);
        bytes.workspace += tables * DType::I64.size_bytes();
        bytes
    }
}
