//! Tensors of the program in an expression.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ddp_kernels::{DType, Device, MemoryUse, Tensor};
use xxhash_rust::xxh3::xxh3_128;

use super::graph::Result;

/// Copies of the tensors that an expression uses, without duplicates. They live as long as the expression, because a captured CUDA graph
/// reads their memory.
#[derive(Debug, Clone, Default)]
pub(super) struct Constants(Arc<Mutex<Vec<(u128, Tensor)>>>);

impl Constants {
    /// Index and number format of a copy of `values` on `device`, which is added if there is none. Floats are converted to `format`, if it
    /// is a float format.
    pub(super) fn find(&self, values: &Tensor, format: DType, device: Device) -> Result<(usize, DType)> {
        let is_float = values.dtype().is_float() && format.is_float();
        let values = values.view().copy_to(MemoryUse::Workspace, Device::Cpu)?;
        let values = if is_float { values.to_dtype(format)? } else { values };
        let hash = xxh3_128(values.view().as_bytes("constant", "values")?);
        let is_same = |(other, kept): &(u128, Tensor)| {
            let (shapes, formats) = ([kept.shape(), values.shape()], [kept.dtype(), values.dtype()]);
            (*other, kept.device()) == (hash, device) && shapes[0] == shapes[1] && formats[0] == formats[1]
        };
        let mut kept = self.kept();
        let index = kept.iter().position(is_same).unwrap_or(kept.len());
        if index == kept.len() {
            kept.push((hash, values.view().copy_to(MemoryUse::Workspace, device)?));
        }
        Ok((index, values.dtype()))
    }

    /// Index of a tensor that keeps its memory.
    pub(super) fn add(&self, values: Tensor) -> usize {
        let mut kept = self.kept();
        // Its values are not compared with those of others.
        kept.push((0, values));
        kept.len() - 1
    }

    /// The tensors, by their indices.
    pub(super) fn kept(&self) -> MutexGuard<'_, Vec<(u128, Tensor)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `record` and, if it fails, removes the tensors that it added.
    pub(super) fn unless_failed<T>(&self, record: impl FnOnce() -> Result<T>) -> Result<T> {
        let n = self.kept().len();
        record().inspect_err(|_| self.kept().truncate(n))
    }
}
