//! Snapshot of a rank's weights and state, from which a checkpoint is written while training continues. Training waits only for
//! the snapshot.
//!
//! Its memory is allocated once, when checkpoints begin: page-locked memory is slow to allocate, as are pages that are touched
//! for the first time, which the [`Writer`](super::Writer)'s thread does during the first steps. The tensors are packed, so a snapshot is
//! one copy within host memory, or asynchronous copies from a GPU with one wait.

use std::sync::Arc;

use ddp_kernels::cuda::Gpu;
use ddp_kernels::{DType, Device, Download, KernelError, Tensor, TensorRef, ops};

/// Elements of a page: touching one of them maps it.
const PAGE_ELEMENTS: usize = 4096 / size_of::<f32>();

/// Host memory for snapshots, and the last one in it.
#[derive(Debug, Default)]
pub struct SnapshotBuffers {
    memory: Memory,
    /// Elements of the weights.
    n_weights: usize,
    /// Elements of each state tensor.
    n_state: Vec<usize>,
    /// Weights of the best evaluation, which are on the host already.
    best: Option<Arc<Vec<f32>>>,
    /// Saved buffers that layers registered, by name, in host memory.
    registered: Vec<(String, Tensor)>,
}

#[derive(Debug)]
enum Memory {
    Plain(Option<Tensor>),
    /// Page-locked memory that a GPU copies to.
    Pinned(Box<Download>),
}

impl Default for Memory {
    fn default() -> Self {
        Memory::Plain(None)
    }
}

impl SnapshotBuffers {
    /// Allocates buffers for a model on `device`: page-locked memory for a GPU, or pageable memory on the CPU and where no page-locked
    /// memory is left; see [`SnapshotBuffers::is_pinned`].
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`]; [`KernelError::Cuda`].
    pub fn for_device(device: Device, n_weights: usize, n_state: &[usize]) -> Result<Self, KernelError> {
        let n_elements = n_weights + n_state.iter().sum::<usize>();
        let pageable = || {
            Tensor::zeros(&[n_elements], DType::F32, Device::Cpu).map(|memory| Memory::Plain(Some(memory)))
        };
        let memory = match device {
            Device::Cpu => pageable()?,
            Device::Cuda(index) => {
                match Download::new(Gpu::get(index)?, n_elements.saturating_mul(DType::F32.size_bytes())) {
                    Ok(memory) => Memory::Pinned(Box::new(memory)),
                    Err(KernelError::OutOfMemory { .. }) => pageable()?,
                    Err(error) => return Err(error),
                }
            }
        };
        Ok(SnapshotBuffers { memory, ..Self::default() })
    }

    /// Touches pageable memory, so that copying to it causes no page fault.
    pub fn touch(&mut self) {
        if let Memory::Plain(Some(memory)) = &mut self.memory
            && let Ok(values) = memory.view_mut().into_slice::<f32>("snapshot", "memory")
        {
            values.iter_mut().step_by(PAGE_ELEMENTS).for_each(|value| *value = 1.0);
        }
    }

    /// Whether a GPU copies to the memory directly.
    pub fn is_pinned(&self) -> bool {
        matches!(self.memory, Memory::Pinned(_))
    }

    /// Takes a snapshot of these weights and states, f32, each given as slices in order. Returns when it is
    /// complete. Pageable memory grows if it is too small.
    ///
    /// # Errors
    /// See [`ops::cat`] and [`Download::start_all`]; the buffers then hold no snapshot.
    pub fn take(
        &mut self,
        weights: &[TensorRef<'_>],
        state: &[Vec<TensorRef<'_>>],
    ) -> Result<(), KernelError> {
        let len = |parts: &[TensorRef<'_>]| parts.iter().map(TensorRef::numel).sum::<usize>();
        (self.n_weights, self.n_state) = (0, Vec::new());
        let parts: Vec<TensorRef<'_>> = weights.iter().chain(state.iter().flatten()).copied().collect();
        if let Some(part) = parts.iter().find(|part| part.dtype() != DType::F32) {
            let operand = Box::new(part.operand("part"));
            return Err(KernelError::DTypeUnsupported { op: "snapshot", operand, takes: "f32" });
        }
        match &mut self.memory {
            Memory::Plain(memory) => {
                let n = len(&parts);
                if memory.as_ref().is_none_or(|memory| memory.numel() < n) {
                    // The smaller one is freed first.
                    *memory = None;
                    *memory = Some(Tensor::zeros(&[n], DType::F32, Device::Cpu)?);
                }
                if let Some(memory) = memory {
                    ops::cat(&parts, memory.view_mut().range(0, n)?)?;
                }
            }
            Memory::Pinned(memory) => {
                memory.start_all(&parts)?;
                memory.wait::<f32>()?;
            }
        }
        (self.n_weights, self.n_state) = (len(weights), state.iter().map(|parts| len(parts)).collect());
        Ok(())
    }

    /// Takes a snapshot of weights and states that lie in host memory.
    ///
    /// # Errors
    /// Same as [`SnapshotBuffers::take`].
    pub fn fill(&mut self, weights: Option<&[f32]>, state: &[&[f32]]) -> Result<(), KernelError> {
        let weights = weights.map(|weights| TensorRef::from_slice(weights, &[weights.len()])).transpose()?;
        let state = state.iter().map(|values| Ok(vec![TensorRef::from_slice(values, &[values.len()])?]));
        self.take(weights.as_slice(), &state.collect::<Result<Vec<_>, KernelError>>()?)
    }

    /// Adds the weights of the best evaluation to the next save; `None` for no such file.
    pub fn set_best(&mut self, best: Option<Arc<Vec<f32>>>) {
        self.best = best;
    }

    /// Copies the registered buffers of the model, which the next save adds. Waits for the work on them.
    ///
    /// # Errors
    /// [`KernelError::Cuda`] of that work; out of memory.
    pub fn take_registered(&mut self, buffers: &[(&str, &Tensor)]) -> Result<(), KernelError> {
        let copies = buffers.iter().map(|(name, values)| Ok(((*name).to_owned(), values.cpu()?)));
        self.registered = copies.collect::<Result<_, KernelError>>()?;
        Ok(())
    }

    /// The registered buffers, if some are saved.
    pub fn registered(&self) -> &[(String, Tensor)] {
        &self.registered
    }

    /// The weights of the best evaluation, if they are saved.
    pub fn best(&self) -> Option<&[f32]> {
        self.best.as_deref().map(Vec::as_slice)
    }

    /// The weights of the snapshot; empty on ranks that save none.
    pub fn weights(&self) -> &[f32] {
        &self.values()[..self.n_weights]
    }

    /// The tensors of state of the snapshot.
    pub fn state(&self) -> Vec<&[f32]> {
        let mut rest = &self.values()[self.n_weights..];
        let next = |&n: &usize| {
            let (values, after) = rest.split_at(n);
            rest = after;
            values
        };
        self.n_state.iter().map(next).collect()
    }

    fn values(&self) -> &[f32] {
        match &self.memory {
            Memory::Plain(None) => &[],
            Memory::Plain(Some(memory)) => {
                memory.view().as_slice("snapshot", "memory").expect("f32 in host memory")
            }
            // Without a completed snapshot the lengths are empty too.
            Memory::Pinned(memory) => memory.arrived().unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Vec<Device> {
        let gpus = (0..Gpu::count().min(1) as u32).map(Device::Cuda);
        std::iter::once(Device::Cpu).chain(gpus).collect()
    }

    #[test]
    fn a_snapshot_holds_what_was_there_when_it_was_taken() {
        for device in devices() {
            let arange = |n: usize| Tensor::arange(n, DType::F32, device).unwrap();
            let (mut weights, state) = (arange(1000), arange(70));
            let ranges = |tensor: &'static str| match tensor {
                "m" => vec![state.view().range(60, 70).unwrap(), state.view().range(3, 8).unwrap()],
                _ => vec![state.view().range(0, 0).unwrap(), state.view().range(1, 16).unwrap()],
            };
            let mut buffers = SnapshotBuffers::for_device(device, 1000, &[15, 15]).unwrap();
            assert_eq!(buffers.is_pinned(), device != Device::Cpu);
            assert!(buffers.weights().is_empty() && buffers.state().is_empty(), "there is none yet");
            let place = buffers.weights().as_ptr();
            for _ in 0..2 {
                buffers.take(&[weights.view()], &[ranges("m"), ranges("v")]).unwrap();
                let want: Vec<f32> = weights.to_vec().unwrap();
                ops::add_assign(weights.view_mut(), arange(1000).view()).unwrap();
                assert_eq!(buffers.weights(), want, "{device}");
                let numbers = |range: std::ops::Range<u8>| range.map(f32::from).collect::<Vec<_>>();
                assert_eq!(buffers.state(), [[numbers(60..70), numbers(3..8)].concat(), numbers(1..16)]);
                assert_eq!(buffers.weights().as_ptr(), place, "the memory is the same");
            }
            // A rank with less to save, and one without weights.
            buffers.take(&[], &[ranges("v")]).unwrap();
            assert_eq!(
                (buffers.weights().len(), buffers.state().len(), buffers.state()[0].len()),
                (0, 1, 15)
            );
        }
    }

    #[test]
    fn one_that_fails_leaves_none() {
        for device in devices() {
            let ones = |n: usize, dtype| Tensor::ones(&[n], dtype, device).unwrap();
            let (good, wide) = (ones(4, DType::F32), ones(2, DType::F64));
            let mut buffers = SnapshotBuffers::for_device(device, 4, &[]).unwrap();
            buffers.take(&[good.view()], &[]).unwrap();
            assert_eq!(buffers.weights(), [1.0; 4]);
            let error = buffers.take(&[wide.view()], &[]).unwrap_err();
            assert!(matches!(error, KernelError::DTypeUnsupported { op: "snapshot", .. }), "{error}");
            assert!(buffers.weights().is_empty() && buffers.state().is_empty());
            if buffers.is_pinned() {
                let error = buffers.take(&[ones(5, DType::F32).view()], &[]).unwrap_err();
                assert!(
                    matches!(error, KernelError::OutOfRange { .. }),
                    "page-locked memory does not grow: {error}"
                );
            }
        }
    }

    #[test]
    fn a_gpu_that_is_not_there_is_an_error() {
        let beyond = Device::Cuda(Gpu::count() as u32);
        let error = SnapshotBuffers::for_device(beyond, 4, &[]).unwrap_err();
        assert!(matches!(error, KernelError::DeviceUnavailable { .. }), "{error}");
    }
}
