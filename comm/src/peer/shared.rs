//! Tensors that other processes may map, and who has mapped what.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;

use ddp_kernels::cuda::{CudaSlice, Gpu, SharedBuffer};
use ddp_kernels::{DType, Device, KernelError, Shape, TensorMut, TensorRef};

use super::ipc::{self, Handle, Mapping};
use crate::{Rank, Result, World};

/// A tensor on a GPU, in memory that the other ranks of the host can map: see [`crate::peer`].
///
/// Of `cuMemAlloc`, outside the pool: made once, not in every step. Freed when the world ends, if another rank has mapped it.
pub struct SharedTensor<'world> {
    /// There until it is dropped.
    buffer: Option<SharedBuffer>,
    shape: Shape,
    dtype: DType,
    peers: &'world Peers,
}

impl World {
    /// Zeros in memory that other ranks can map. Waits for the device.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`], also for a CPU; [`KernelError::OutOfMemory`]; [`KernelError::BadShape`].
    pub fn shared_zeros(&self, dims: &[usize], dtype: DType, device: Device) -> Result<SharedTensor<'_>> {
        let Device::Cuda(index) = device else {
            let reason = "only a GPU's memory is mapped by other processes".to_owned();
            let hint = "take a tensor of the host, which `peer::copy` copies too".to_owned();
            return Err(KernelError::DeviceUnavailable { device, reason, hint }.into());
        };
        let shape = Shape::new(dims)?;
        let bytes = shape.numel().saturating_mul(dtype.size_bytes());
        let buffer = SharedBuffer::zeroed(Gpu::get(index)?, bytes)?;
        self.peers.own.borrow_mut().push(Own { address: buffer.ptr(), bytes: bytes.max(1), handle: None });
        // A handle is of the whole allocation, so it is asked for when it is needed.
        Ok(SharedTensor { buffer: Some(buffer), shape, dtype, peers: &self.peers })
    }
}

impl SharedTensor<'_> {
    /// A shared view of the whole.
    pub fn view(&self) -> TensorRef<'_> {
        self.buffer().view(self.shape.dims(), self.dtype).expect("the buffer was made for this shape")
    }

    /// An exclusive view of the whole. Other ranks read the memory in [`peer::copy`](crate::peer::copy) alone, to which this
    /// rank lends it.
    pub fn view_mut(&mut self) -> TensorMut<'_> {
        let (dims, dtype) = (self.shape, self.dtype);
        let buffer = self.buffer.as_mut().expect("the buffer is there until the tensor is dropped");
        buffer.view_mut(dims.dims(), dtype).expect("the buffer was made for this shape")
    }

    fn buffer(&self) -> &SharedBuffer {
        self.buffer.as_ref().expect("the buffer is there until the tensor is dropped")
    }
}

impl Drop for SharedTensor<'_> {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let mut own = self.peers.own.borrow_mut();
        let Some(index) = own.iter().position(|own| own.address == buffer.ptr()) else { return };
        if own.swap_remove(index).handle.is_some() {
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
struct Own {
    address: u64,
    bytes: usize,
    /// Once another rank may have mapped it.
    handle: Option<Handle>,
}

/// What a world's ranks have mapped of each other.
#[derive(Default)]
pub(crate) struct Peers {
    own: RefCell<Vec<Own>>,
    /// Memory of tensors that are no more, which others may have mapped.
    kept: RefCell<Vec<SharedBuffer>>,
    /// By owner and handle.
    mapped: RefCell<HashMap<(usize, Handle), Mapping>>,
    /// Whether a rank can map what another owns, by owner, that rank and handle: the same on all ranks.
    outcomes: RefCell<HashMap<(usize, usize, Handle), bool>>,
    /// Whether any rank has mapped anything: the same on all ranks.
    is_used: Cell<bool>,
}

impl Peers {
    /// How to map the memory of a view, and where in it the view begins; None for memory that cannot be mapped. Waits until
    /// what was asked of the compute stream is in that memory: streams of two processes know nothing of each other.
    pub(super) fn export(&self, slice: CudaSlice<'_>) -> Result<Option<(Handle, u64)>> {
        let mut own = self.own.borrow_mut();
        let holds = |own: &&mut Own| (own.address..own.address + own.bytes as u64).contains(&slice.ptr());
        let Some(own) = own.iter_mut().find(holds) else { return Ok(None) };
        slice.gpu().compute().synchronize()?;
        let handle = match own.handle {
            Some(handle) => handle,
            None => *own.handle.insert(ipc::export_at(slice.gpu(), own.address)?),
        };
        Ok(Some((handle, slice.ptr() - own.address)))
    }

    /// Whether rank `to` has mapped, or now maps, what rank `from` owns. Collective where it is asked for the first time.
    pub(super) fn can_map(
        &self,
        world: &World,
        from: Rank,
        to: Rank,
        handle: &Handle,
        target: u32,
    ) -> Result<bool> {
        let key = (from.0, to.0, *handle);
        if let Some(&outcome) = self.outcomes.borrow().get(&key) {
            return Ok(outcome);
        }
        // Devices that don't reach each other are no error: there is another way.
        let is_mapped =
            world.rank() == to && Gpu::get(target).is_ok_and(|gpu| self.mapping(from, handle, gpu).is_ok());
        let all = world.group().all_gather_bytes(&[u8::from(is_mapped)])?;
        let outcome = all[to.0] == [1];
        self.outcomes.borrow_mut().insert(key, outcome);
        self.is_used.set(self.is_used.get() || outcome);
        Ok(outcome)
    }

    /// Where the memory of `owner` begins for this rank, mapped at the first call.
    pub(super) fn mapping(&self, owner: Rank, handle: &Handle, gpu: &'static Gpu) -> Result<u64> {
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

    /// Unmaps what this rank has mapped, waits until all have, and frees what they had mapped of it. Collective.
    pub(crate) fn close(self, world: &crate::Group) -> Result<()> {
        self.mapped.borrow_mut().clear();
        if self.is_used.get() {
            world.barrier()?;
        }
        self.kept.borrow_mut().clear();
        Ok(())
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        // Nobody has said that the others unmapped it.
        for buffer in self.kept.borrow_mut().drain(..) {
            std::mem::forget(buffer);
        }
    }
}

impl std::fmt::Debug for Peers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Peers({} tensors shared, {} mapped)", self.own.borrow().len(), self.mapped.borrow().len())
    }
}
