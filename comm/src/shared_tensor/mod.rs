//! Tensors in GPU memory that other processes can map, and the record of which rank has mapped which.
//!
//! # Ownership
//! The first copy out of a [`SharedTensor`] passes its address to the other process, which keeps it mapped for later copies.
//! From then on the memory belongs to the world: dropping the tensor leaves the memory allocated until `World::close` has made
//! all ranks unmap what they mapped, waited for all of them, and then frees it. If a world is dropped instead of closed, the
//! memory stays until the process ends.

mod ipc;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use ddp_kernels::cuda::{CudaSlice, Gpu};
use ddp_kernels::{DType, Device, KernelError, Shape, SharedBuffer, TensorMut, TensorRef};

use crate::{Group, Rank, Result};
use ipc::Mapping;

pub(crate) use ipc::Handle;

/// A tensor on a GPU, in memory that the other ranks of the host can map; see [`World::shared_zeros`](crate::World::shared_zeros).
///
/// Allocated by `cuMemAlloc`, outside the memory pool: create it once, not in every step. If another rank has mapped it, it is
/// freed when the world is closed.
pub struct SharedTensor<'world> {
    /// `None` only while it is dropped.
    buffer: Option<SharedBuffer>,
    shape: Shape,
    dtype: DType,
    peers: &'world Peers,
}

impl SharedTensor<'_> {
    /// A shared view of the whole tensor.
    pub fn view(&self) -> TensorRef<'_> {
        self.buffer().view(self.shape.dims(), self.dtype).expect("the buffer was allocated for this shape")
    }

    /// An exclusive view of the whole tensor. Other ranks read the memory only in [`peer::copy`](crate::peer::copy), which borrows
    /// it on this rank.
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        let (dims, dtype) = (self.shape, self.dtype);
        let buffer = self.buffer.as_mut().expect("the buffer is taken out in `drop` alone");
        buffer.view_mut(dims.dims(), dtype).expect("the buffer was allocated for this shape")
    }

    fn buffer(&self) -> &SharedBuffer {
        self.buffer.as_ref().expect("the buffer is taken out in `drop` alone")
    }
}

impl Drop for SharedTensor<'_> {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let mut allocations = self.peers.allocations.borrow_mut();
        let Some(index) = allocations.iter().position(|a| a.address == buffer.ptr()) else { return };
        if allocations.swap_remove(index).handle.is_some() {
            self.peers.kept.borrow_mut().push(buffer);
        }
    }
}

impl std::fmt::Debug for SharedTensor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedTensor {} {} on {}", self.shape, self.dtype, self.buffer().gpu().device())
    }
}

/// Memory of a [`SharedTensor`] that is alive.
struct Allocation {
    address: u64,
    bytes: usize,
    /// Set once another rank may have mapped it.
    handle: Option<Handle>,
}

/// Memory of this rank that other ranks can map, and memory of theirs that this rank has mapped.
#[derive(Default)]
pub(crate) struct Peers {
    allocations: RefCell<Vec<Allocation>>,
    /// Memory of dropped tensors that others may have mapped.
    kept: RefCell<Vec<SharedBuffer>>,
    /// By owner and handle.
    mapped: RefCell<HashMap<(usize, Handle), Mapping>>,
    /// Whether a rank can map memory of another, by owner, mapping rank and handle: the same on all ranks.
    outcomes: RefCell<HashMap<(usize, usize, Handle), bool>>,
    /// Whether any rank has mapped anything: the same on all ranks.
    is_used: Cell<bool>,
}

/// The data from which another process maps a view of a shared tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Export {
    /// Of the whole allocation.
    pub(crate) handle: Handle,
    /// Bytes from the start of the allocation to the view.
    pub(crate) offset_bytes: u64,
}

impl Peers {
    /// Zeros in memory that other ranks can map. Waits for the device.
    pub(crate) fn zeros(&self, dims: &[usize], dtype: DType, device: Device) -> Result<SharedTensor<'_>> {
        let Device::Cuda(index) = device else {
            let reason = "only the memory of a GPU can be mapped by other processes".to_owned();
            let hint = "use a tensor in host memory, which `peer::copy` copies too".to_owned();
            return Err(KernelError::DeviceUnavailable { device, reason, hint }.into());
        };
        let shape = Shape::new(dims).map_err(KernelError::from)?;
        let bytes = shape.numel().saturating_mul(dtype.size_bytes());
        let buffer = SharedBuffer::zeroed(Gpu::get(index)?, bytes)?;
        // A handle is of the whole allocation, so it is created when it is needed.
        let allocation = Allocation { address: buffer.ptr(), bytes: bytes.max(1), handle: None };
        self.allocations.borrow_mut().push(allocation);
        Ok(SharedTensor { buffer: Some(buffer), shape, dtype, peers: self })
    }

    /// Exports the memory of a view; `None` for memory that cannot be mapped. Waits until the work enqueued in the compute
    /// stream has reached that memory: streams of two processes are not ordered with each other.
    pub(crate) fn export(&self, slice: CudaSlice<'_>) -> Result<Option<Export>> {
        let mut allocations = self.allocations.borrow_mut();
        let holds = |a: &&mut Allocation| (a.address..a.address + a.bytes as u64).contains(&slice.ptr());
        let Some(allocation) = allocations.iter_mut().find(holds) else { return Ok(None) };
        slice.gpu().compute().synchronize()?;
        let handle = match allocation.handle {
            Some(handle) => handle,
            None => *allocation.handle.insert(ipc::export_at(slice.gpu(), allocation.address)?),
        };
        Ok(Some(Export { handle, offset_bytes: slice.ptr() - allocation.address }))
    }

    /// Whether rank `to` has mapped, or now maps, memory of rank `from`. Collective the first time for each handle.
    ///
    /// - `target`: index of the GPU of `to`
    pub(crate) fn can_map(
        &self,
        group: &Group,
        from: Rank,
        to: Rank,
        handle: &Handle,
        target: u32,
    ) -> Result<bool> {
        let key = (from.0, to.0, *handle);
        if let Some(&outcome) = self.outcomes.borrow().get(&key) {
            return Ok(outcome);
        }
        // Devices without peer access are not errors: another path is taken.
        let is_mapped =
            group.rank() == to && Gpu::get(target).is_ok_and(|gpu| self.mapping(from, handle, gpu).is_ok());
        let all = group.all_gather_bytes(&[u8::from(is_mapped)])?;
        let outcome = all[to.0] == [1];
        self.outcomes.borrow_mut().insert(key, outcome);
        self.is_used.set(self.is_used.get() || outcome);
        Ok(outcome)
    }

    /// The address of the memory of `owner` on this rank, mapped at the first call.
    pub(crate) fn mapping(&self, owner: Rank, handle: &Handle, gpu: &'static Gpu) -> Result<u64> {
        let mut mapped = self.mapped.borrow_mut();
        let key = (owner.0, *handle);
        if let Some(mapping) = mapped.get(&key) {
            return Ok(mapping.address());
        }
        let mapping = Mapping::open(gpu, handle)?;
        let address = mapping.address();
        mapped.insert(key, mapping);
        Ok(address)
    }

    /// Unmaps the memory that this rank has mapped, waits until all ranks have done so, and frees this rank's own. Collective.
    pub(crate) fn close(self, group: &Group) -> Result<()> {
        self.mapped.borrow_mut().clear();
        if self.is_used.get() {
            group.barrier()?;
        }
        self.kept.borrow_mut().clear();
        Ok(())
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // Other ranks may still have it mapped.
        for buffer in self.kept.borrow_mut().drain(..) {
            std::mem::forget(buffer);
        }
    }
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (n_own, n_mapped) = (self.allocations.borrow().len(), self.mapped.borrow().len());
        write!(f, "Peers({n_own} tensors shared, {n_mapped} mapped)")
    }
}
