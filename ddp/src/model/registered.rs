//! The registered buffers of a model, by layer and by name.

use ddp_kernels::{DType, KernelError, MemoryUse, Tensor, ops};

use super::layer::{Layer, Sizes};
use super::registered_buffer::RegisteredBuffer;
use crate::config::precision::Precision;

type Result<T> = std::result::Result<T, KernelError>;

/// The registered buffers of a model, on its device.
#[derive(Debug, Default)]
pub(crate) struct Registered {
    /// Buffers of each layer, as the passes borrow them.
    pub(super) of_layers: Vec<Vec<Tensor>>,
    entries: Vec<Entry>,
}

/// Name, shape and kind of one buffer.
#[derive(Debug, Clone)]
struct Entry {
    name: String,
    layer: usize,
    index: usize,
    is_saved: bool,
    is_averaged: bool,
}

impl Registered {
    /// Copies the initial values of all layers to the device; f32 becomes f64 in a model in f64.
    ///
    /// # Panics
    /// If two buffers have the same name.
    pub(super) fn new<'a>(layers: impl Iterator<Item = &'a dyn Layer>, sizes: Sizes) -> Result<Self> {
        let mut registered = Registered::default();
        for (layer, this) in layers.enumerate() {
            let mut tensors = Vec::new();
            for (index, buffer) in this.registered_buffers()?.into_iter().enumerate() {
                let RegisteredBuffer { name, values, is_saved, is_averaged } = buffer;
                assert!(registered.find(&name).is_none(), "two registered buffers are named {name}");
                let values = match values.dtype() {
                    DType::F32 if sizes.precision == Precision::F64 => values.to_dtype(DType::F64)?,
                    _ => values,
                };
                let (dims, dtype) = (values.dims(), values.dtype());
                let mut own = Tensor::zeros_for(MemoryUse::Other, dims, dtype, sizes.device)?;
                ops::copy(values.view(), own.view_mut())?;
                tensors.push(own);
                registered.entries.push(Entry { name, layer, index, is_saved, is_averaged });
            }
            registered.of_layers.push(tensors);
        }
        Ok(registered)
    }

    /// All buffers in forward order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.entries.iter().map(|entry| (&entry.name[..], self.tensor(entry)))
    }

    /// The saved buffers in forward order.
    pub(super) fn saved(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        let saved = self.entries.iter().filter(|entry| entry.is_saved);
        saved.map(|entry| (&entry.name[..], self.tensor(entry)))
    }

    /// The buffers that are means over all ranks, in forward order.
    pub(super) fn averaged_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        let Registered { of_layers, entries } = self;
        let is_averaged = |layer, index| {
            entries.iter().any(|entry| entry.is_averaged && (entry.layer, entry.index) == (layer, index))
        };
        let all = of_layers.iter_mut().enumerate().flat_map(|(layer, tensors)| {
            tensors.iter_mut().enumerate().map(move |(index, tensor)| (layer, index, tensor))
        });
        all.filter(move |(layer, index, _)| is_averaged(*layer, *index)).map(|(_, _, tensor)| tensor)
    }

    /// All buffers in forward order, writable.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Tensor> {
        self.of_layers.iter_mut().flatten()
    }

    /// The saved buffer of this name, writable.
    pub(super) fn saved_mut(&mut self, name: &str) -> Option<&mut Tensor> {
        let Entry { layer, index, .. } =
            *self.entries.iter().find(|entry| entry.is_saved && entry.name == name)?;
        Some(&mut self.of_layers[layer][index])
    }

    /// Copies all values of another model of the same layers, from any device.
    pub(super) fn copy_from(&mut self, other: &Registered) -> Result<()> {
        let pairs = self.iter_mut().zip(other.iter());
        pairs.into_iter().try_for_each(|(to, (_, from))| ops::copy(from.view(), to.view_mut()))
    }

    fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    fn tensor(&self, entry: &Entry) -> &Tensor {
        &self.of_layers[entry.layer][entry.index]
    }
}
