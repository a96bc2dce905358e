//! Tensors of the program in an expression.

use ddp_kernels::{DType, Device, MemoryUse, Tensor, TensorRef};
use xxhash_rust::xxh3::xxh3_128;

use super::graph::Result;

/// The tensors that an expression has met: each once, and for as long as the expression, because a captured step reads its memory.
#[derive(Debug, Default)]
pub(super) struct Constants {
    kept: Vec<(u128, Tensor)>,
}

impl Constants {
    /// The index of these values on `device`, which are kept if they are new; floats take the format `format`, if that is one.
    pub(super) fn find(&mut self, values: &Tensor, format: DType, device: Device) -> Result<usize> {
        let is_float = values.dtype().is_float() && format.is_float();
        let values = values.view().copy_to(MemoryUse::Workspace, Device::Cpu)?;
        let values = if is_float { values.to_dtype(format)? } else { values };
        let hash = xxh3_128(values.view().as_bytes("constant", "values")?);
        let is_same = |(other, kept): &(u128, Tensor)| {
            let (shapes, formats) = ([kept.shape(), values.shape()], [kept.dtype(), values.dtype()]);
            (*other, kept.device()) == (hash, device) && shapes[0] == shapes[1] && formats[0] == formats[1]
        };
        Ok(match self.kept.iter().position(is_same) {
            Some(index) => index,
            None => {
                self.kept.push((hash, values.view().copy_to(MemoryUse::Workspace, device)?));
                self.kept.len() - 1
            }
        })
    }

    pub(super) fn get(&self, index: usize) -> TensorRef<'_> {
        self.kept[index].1.view()
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Forgets all but the first `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        self.kept.truncate(len);
    }
}
