//! Device memory: a stream-ordered caching pool, pinned host memory, and accounting by use.
//!
//! Memory of tensors comes from a pool of the driver (`cuMemPool`) with an unlimited release threshold, so freed memory is
//! kept for the next tensor until [`Gpu::empty_cache`]. Allocating and freeing are ordered on the compute stream and do not
//! wait. Memory to be mapped by another process comes from `cuMemAlloc` ([`SharedBuffer`]): memory of a pool cannot be exported
//! by `cuIpcGetMemHandle`. Memory that collectives use may come from another library ([`ForeignMemory`]).

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cudarc::driver::{result, sys};

use super::call::check_driver;
use super::foreign_memory::{ForeignMemory, Unused};
use super::{CudaSlice, CudaSliceMut, Gpu};
use crate::view::{TensorMut, TensorRef};
use crate::{DType, Device, KernelError, Result, Shape};

/// Uses of device memory, for reports and errors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryUse {
    /// Master weights, and compute weights in shorter formats.
    Parameters,
    /// Gradients of the weights.
    Gradients,
    /// The optimiser's state.
    Optimizer,
    /// Moving average of the weights.
    Average,
    /// Activations that backward needs, and their gradients.
    Activations,
    /// Scratch memory.
    Workspace,
    /// Rows for training or evaluation.
    Data,
    /// Anything else.
    Other,
}

impl MemoryUse {
    /// All uses.
    pub const ALL: [MemoryUse; 8] = [
        MemoryUse::Parameters,
        MemoryUse::Gradients,
        MemoryUse::Optimizer,
        MemoryUse::Average,
        MemoryUse::Activations,
        MemoryUse::Workspace,
        MemoryUse::Data,
        MemoryUse::Other,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            MemoryUse::Parameters => "parameters",
            MemoryUse::Gradients => "gradients",
            MemoryUse::Optimizer => "optimiser",
            MemoryUse::Average => "average",
            MemoryUse::Activations => "activations",
            MemoryUse::Workspace => "workspace",
            MemoryUse::Data => "data",
            MemoryUse::Other => "other",
        }
    }
}

/// Bytes in use on a device, by use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryInUse {
    /// Bytes of each [`MemoryUse`], in the order of [`MemoryUse::ALL`].
    pub bytes: [usize; MemoryUse::ALL.len()],
    /// Bytes that the device has free for any process.
    pub free: usize,
    /// Total bytes of the device.
    pub total: usize,
}

impl MemoryInUse {
    /// Bytes of all uses.
    pub fn allocated(&self) -> usize {
        self.bytes.iter().sum()
    }

    /// The use that takes the most bytes.
    pub fn largest(&self) -> MemoryUse {
        let of = |kind: &MemoryUse| self.bytes[*kind as usize];
        MemoryUse::ALL.into_iter().max_by_key(of).expect("there is more than one use")
    }

    /// Whether other processes hold most of the device's memory.
    pub fn is_held_by_others(&self) -> bool {
        self.allocated() < self.total / 4 && self.free < self.total / 4
    }
}

impl fmt::Display for MemoryInUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        write!(f, "{:.1} MiB in use", mib(self.allocated()))?;
        let mut uses: Vec<_> =
            MemoryUse::ALL.iter().zip(self.bytes).filter(|(_, bytes)| *bytes > 0).collect();
        uses.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        for (index, (kind, bytes)) in uses.iter().enumerate() {
            write!(f, "{}{} {:.1}", if index == 0 { " (" } else { ", " }, kind.name(), mib(*bytes))?;
        }
        let close = if uses.is_empty() { "" } else { ")" };
        write!(f, "{close}; {:.1} MiB of {:.1} MiB free on the device", mib(self.free), mib(self.total))
    }
}

/// The pool of a device and its accounting.
#[derive(Debug)]
pub(super) struct Memory {
    pool: sys::CUmemoryPool,
    account: Mutex<Account>,
}

#[derive(Debug, Default)]
struct Account {
    bytes: [usize; MemoryUse::ALL.len()],
    peak: usize,
    /// Bytes of tensors whose memory another library allocated.
    foreign: usize,
}

impl Account {
    fn add(&mut self, kind: MemoryUse, bytes: usize) {
        self.bytes[kind as usize] += bytes;
        self.peak = self.peak.max(self.bytes.iter().sum());
    }
}

impl Memory {
    /// Creates the pool of the device whose context is current.
    pub(super) fn new(index: u32) -> Result<Self> {
        // SAFETY: zero is a valid value of every field: an allocation without an exportable handle, of default size.
        let mut props: sys::CUmemPoolProps = unsafe { std::mem::zeroed() };
        props.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        props.handleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
        props.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        props.location.id = index as i32;
        // SAFETY: the properties are complete and outlive the call.
        let pool = check_driver(index, "cuMemPoolCreate", unsafe { result::mem_pool::create(&props) })?;
        let mut keep_all = u64::MAX;
        let threshold = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
        // SAFETY: the attribute is a 64-bit number.
        let set = unsafe { result::mem_pool::set_attribute(pool, threshold, (&raw mut keep_all).cast()) };
        check_driver(index, "cuMemPoolSetAttribute", set)?;
        Ok(Memory { pool, account: Mutex::default() })
    }

    fn account(&self) -> MutexGuard<'_, Account> {
        // The numbers are consistent even after a panic.
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn pool(&self) -> sys::CUmemoryPool {
        self.pool
    }
}

impl Gpu {
    /// Bytes that tensors of this device hold.
    pub fn memory_allocated(&self) -> usize {
        self.memory.account().bytes.iter().sum()
    }

    /// Peak of [`Gpu::memory_allocated`] since the start or [`Gpu::reset_peak_memory`].
    pub fn memory_peak(&self) -> usize {
        self.memory.account().peak
    }

    /// Resets the peak to the current use.
    pub fn reset_peak_memory(&self) {
        let mut account = self.memory.account();
        account.peak = account.bytes.iter().sum();
    }

    /// Bytes that the pool has reserved on the device, in use or cached, and those of tensors in memory of another library.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn memory_reserved(&self) -> Result<usize> {
        self.bind()?;
        let mut bytes = 0u64;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
        // SAFETY: the attribute is a 64-bit number.
        let got =
            unsafe { result::mem_pool::get_attribute(self.memory.pool, attribute, (&raw mut bytes).cast()) };
        check_driver(self.index(), "cuMemPoolGetAttribute", got)?;
        Ok(bytes as usize + self.memory.account().foreign)
    }

    /// Releases cached memory of the pool to the device, for other processes. Waits for the device.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn empty_cache(&self) -> Result<()> {
        self.synchronize()?;
        // SAFETY: the pool lives as long as the process.
        let trimmed = unsafe { result::mem_pool::trim_to(self.memory.pool, 0) };
        check_driver(self.index(), "cuMemPoolTrimTo", trimmed)
    }

    /// Memory in use, by kind.
    ///
    /// # Errors
    /// [`KernelError::Cuda`].
    pub fn memory_in_use(&self) -> Result<MemoryInUse> {
        self.bind()?;
        let (free, total) = check_driver(self.index(), "cuMemGetInfo", result::mem_get_info())?;
        Ok(MemoryInUse { bytes: self.memory.account().bytes, free, total })
    }
}

/// Memory of the pool, freed in the order of the compute stream, or of another library, to which it is returned.
#[derive(Debug)]
pub(crate) struct DeviceBuffer {
    gpu: &'static Gpu,
    ptr: sys::CUdeviceptr,
    bytes: usize,
    kind: MemoryUse,
    /// Set if another library allocated it.
    foreign: Option<ForeignMemory>,
    /// Number of captures begun when it was allocated.
    n_captures: u64,
}

impl DeviceBuffer {
    /// Allocates `bytes` uninitialised bytes.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`] with the memory in use; [`KernelError::Cuda`].
    pub(crate) fn new(gpu: &'static Gpu, bytes: usize, kind: MemoryUse) -> Result<Self> {
        gpu.bind()?;
        let n_captures = gpu.graphs.n_begun();
        if bytes == 0 {
            return Ok(DeviceBuffer { gpu, ptr: 0, bytes, kind, foreign: None, n_captures });
        }
        // SAFETY: pool and stream live as long as the process.
        let ptr = unsafe { result::mem_pool::alloc_async(gpu.memory.pool, bytes, gpu.compute().raw()) };
        let ptr = match ptr {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let in_use = gpu.memory_in_use().ok().map(Box::new);
                return Err(KernelError::OutOfMemory { device: gpu.device(), bytes, in_use });
            }
            other => check_driver(gpu.index(), "cuMemAllocFromPoolAsync", other)?,
        };
        gpu.memory.account().add(kind, bytes);
        Ok(DeviceBuffer { gpu, ptr, bytes, kind, foreign: None, n_captures })
    }

    /// Takes `bytes` of `memory`, as many as it has or fewer, and fills them with zeros.
    ///
    /// # Errors
    /// [`KernelError::Cuda`]; [`KernelError::OutOfRange`] (in bytes).
    pub(crate) fn zeroed_in(memory: ForeignMemory, bytes: usize, kind: MemoryUse) -> Result<Self> {
        let (gpu, ptr, len) = (memory.gpu(), memory.ptr(), memory.len_bytes());
        if bytes > len {
            return Err(KernelError::OutOfRange { op: "zeroed_in (bytes)", start: 0, end: bytes, len });
        }
        let n_captures = gpu.graphs.n_begun();
        let mut account = gpu.memory.account();
        account.add(kind, memory.held_bytes());
        account.foreign += memory.held_bytes();
        drop(account);
        let buffer = DeviceBuffer { gpu, ptr, bytes, kind, foreign: Some(memory), n_captures };
        buffer.fill_with_zeros()?;
        Ok(buffer)
    }

    /// Allocates `bytes` zero bytes.
    ///
    /// # Errors
    /// Same as [`DeviceBuffer::new`].
    pub(crate) fn zeroed(gpu: &'static Gpu, bytes: usize, kind: MemoryUse) -> Result<Self> {
        let buffer = Self::new(gpu, bytes, kind)?;
        buffer.fill_with_zeros()?;
        Ok(buffer)
    }

    fn fill_with_zeros(&self) -> Result<()> {
        let DeviceBuffer { gpu, ptr, bytes, .. } = *self;
        if bytes == 0 {
            return Ok(());
        }
        gpu.bind()?;
        // SAFETY: the memory is this buffer's and of that length.
        let set = unsafe { result::memset_d8_async(ptr, 0, bytes, gpu.compute().raw()) };
        check_driver(gpu.index(), "cuMemsetD8Async", set)
    }

    pub(crate) fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    pub(crate) fn ptr(&self) -> sys::CUdeviceptr {
        self.ptr
    }

    pub(crate) fn kind(&self) -> MemoryUse {
        self.kind
    }
}

impl Drop for DeviceBuffer {
    fn drop(&mut self) {
        let (memory, pooled, foreign) = match self.foreign.take() {
            None if self.bytes == 0 => return,
            None => (Unused::OfPool(self.ptr), self.bytes, 0),
            Some(memory) => {
                let held = memory.held_bytes();
                (Unused::Foreign(memory), 0, held)
            }
        };
        let mut account = self.gpu.memory.account();
        account.bytes[self.kind as usize] -= pooled + foreign;
        account.foreign -= foreign;
        drop(account);
        // A graph that may be replayed may use the address: then the memory stays allocated until no graph is left.
        self.gpu.graphs.free_or_keep(self.gpu, memory, self.n_captures);
    }
}

/// Device memory that another process of this host can map, allocated by `cuMemAlloc` outside the pool.
#[derive(Debug)]
pub struct SharedBuffer {
    gpu: &'static Gpu,
    ptr: sys::CUdeviceptr,
    bytes: usize,
}

impl SharedBuffer {
    /// Allocates `bytes` zero bytes. Waits for the device.
    ///
    /// # Errors
    /// [`KernelError::OutOfMemory`]; [`KernelError::Cuda`].
    pub fn zeroed(gpu: &'static Gpu, bytes: usize) -> Result<Self> {
        gpu.bind()?;
        // SAFETY: the context is current.
        let ptr = match unsafe { result::malloc_sync(bytes.max(1)) } {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                let in_use = gpu.memory_in_use().ok().map(Box::new);
                return Err(KernelError::OutOfMemory { device: gpu.device(), bytes, in_use });
            }
            other => check_driver(gpu.index(), "cuMemAlloc", other)?,
        };
        let buffer = SharedBuffer { gpu, ptr, bytes };
        // SAFETY: the memory belongs to this buffer and has at least that length.
        let set = unsafe { result::memset_d8_async(ptr, 0, bytes.max(1), gpu.compute().raw()) };
        check_driver(gpu.index(), "cuMemsetD8Async", set)?;
        gpu.compute().synchronize()?;
        Ok(buffer)
    }

    /// The device of the memory.
    pub fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    /// Address on the device.
    pub fn ptr(&self) -> sys::CUdeviceptr {
        self.ptr
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.bytes
    }

    /// Views the start of the buffer as a tensor of this shape.
    ///
    /// # Errors
    /// [`KernelError::BadShape`]; [`KernelError::OutOfRange`] (in bytes) if the tensor is larger than the buffer.
    pub fn view(&self, dims: &[usize], dtype: DType) -> Result<TensorRef<'_>> {
        let shape = self.fitting(dims, dtype)?;
        // SAFETY: the elements lie within the buffer, which is borrowed as long as the view; freeing waits for the device.
        let slice = unsafe { CudaSlice::from_raw(self.gpu, self.ptr, shape.numel(), dtype) };
        Ok(TensorRef::from_cuda(slice, shape))
    }

    /// Same as [`SharedBuffer::view`], for writing.
    ///
    /// # Errors
    /// Same as [`SharedBuffer::view`].
    pub fn view_mut(&mut self, dims: &[usize], dtype: DType) -> Result<TensorMut<'_>> {
        let shape = self.fitting(dims, dtype)?;
        // SAFETY: as in `view`, and `&mut self` makes the access exclusive within this process; another one only reads its mapping,
        // at times that both have agreed on.
        let slice = unsafe { CudaSliceMut::from_raw(self.gpu, self.ptr, shape.numel(), dtype) };
        Ok(TensorMut::from_cuda(slice, shape))
    }

    /// Checks that the buffer holds a tensor of this shape.
    fn fitting(&self, dims: &[usize], dtype: DType) -> Result<Shape> {
        let shape = Shape::new(dims)?;
        let bytes = shape.numel().saturating_mul(dtype.size_bytes());
        if bytes > self.bytes {
            return Err(KernelError::OutOfRange {
                op: "view (bytes)",
                start: 0,
                end: bytes,
                len: self.bytes,
            });
        }
        Ok(shape)
    }
}

impl Drop for SharedBuffer {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: allocated in `zeroed`, freed once; the call waits for the device.
            let _ = unsafe { result::free_sync(self.ptr) };
        }
    }
}

/// Page-locked host memory, which the device reads and writes directly: copies from and to it are asynchronous.
#[derive(Debug)]
pub(super) struct Pinned {
    gpu: &'static Gpu,
    ptr: *mut u8,
    bytes: usize,
}

// SAFETY: the memory has one owner.
unsafe impl Send for Pinned {}
// SAFETY: shared access only reads.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Allocates `bytes` zero bytes.
    pub(super) fn zeroed(gpu: &'static Gpu, bytes: usize) -> Result<Self> {
        // Not write-combined: the host gathers small pieces into it, and reads results from it.
        Self::with_flags(gpu, bytes, 0)
    }

    /// Allocates `bytes` zero bytes that kernels access too, and returns their address on the device.
    pub(super) fn mapped(gpu: &'static Gpu, bytes: usize) -> Result<(Self, sys::CUdeviceptr)> {
        let host = Self::with_flags(gpu, bytes, sys::CU_MEMHOSTALLOC_DEVICEMAP)?;
        let mut ptr = 0;
        // SAFETY: the memory is page-locked and mapped; the context is current.
        let got = unsafe { sys::cuMemHostGetDevicePointer_v2(&mut ptr, host.ptr.cast(), 0) };
        check_driver(gpu.index(), "cuMemHostGetDevicePointer", got.result())?;
        Ok((host, ptr))
    }

    fn with_flags(gpu: &'static Gpu, bytes: usize, flags: u32) -> Result<Self> {
        gpu.bind()?;
        // SAFETY: the context is current.
        let ptr = unsafe { result::malloc_host(bytes.max(1), flags) };
        let ptr = match ptr {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                return Err(KernelError::OutOfMemory { device: Device::Cpu, bytes, in_use: None });
            }
            other => check_driver(gpu.index(), "cuMemHostAlloc", other)?.cast::<u8>(),
        };
        // SAFETY: the memory belongs to `self` and has that length.
        unsafe { std::ptr::write_bytes(ptr, 0, bytes.max(1)) };
        Ok(Pinned { gpu, ptr, bytes })
    }

    pub(super) fn as_slice<T: bytemuck::Pod>(&self) -> &[T] {
        // SAFETY: the driver aligns to a page; the memory holds zeroed plain data and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.cast(), self.bytes / size_of::<T>()) }
    }

    pub(super) fn as_mut_slice<T: bytemuck::Pod>(&mut self) -> &mut [T] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.cast(), self.bytes / size_of::<T>()) }
    }

    pub(super) fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if self.gpu.bind().is_ok() {
            // SAFETY: allocated in `zeroed`, freed once; users of the memory wait for their copies first.
            let _ = unsafe { result::free_host(self.ptr.cast()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_names_the_largest_use_first() {
        let mut in_use = MemoryInUse { free: 3 << 20, total: 16 << 20, ..Default::default() };
        in_use.bytes[MemoryUse::Gradients as usize] = 1 << 20;
        in_use.bytes[MemoryUse::Activations as usize] = 8 << 20;
        assert_eq!(
            in_use.to_string(),
            "9.0 MiB in use (activations 8.0, gradients 1.0); 3.0 MiB of 16.0 MiB free on the device"
        );
        assert!(MemoryInUse::default().to_string().starts_with("0.0 MiB in use; "));
    }
}
