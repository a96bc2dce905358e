//! Host memory that kernels write to directly: a few numbers that the host reads a step late.
//!
//! A copy to host memory costs a call of the driver or a node of a graph. Instead, a kernel that runs anyway writes a few numbers
//! to mapped memory, and the host waits for an event after it. Without [`GpuFeature::MappedOutcome`] it writes them to memory of the
//! device, from which the host copies them after the event.

use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::{result, sys};

use super::driver::check_driver;
use super::event::Event;
use super::feature::GpuFeature;
use super::gpu::Gpu;
use super::graphs::Unused;
use super::memory::DeviceBuffer;
use super::pinned::Pinned;
use super::slice::CudaSlice;
use crate::Result;
use crate::base::memory_use::MemoryUse;

/// Page-locked host memory at a device address.
#[derive(Debug)]
pub struct Mapped {
    /// Taken when it is dropped.
    host: Option<Pinned>,
    device_ptr: sys::CUdeviceptr,
    /// Memory at `device_ptr`, unless that is the address of `host`.
    device: Option<DeviceBuffer>,
    gpu: &'static Gpu,
    /// After the work that writes to it.
    written: Event,
    /// Whether all work that was given the address comes before the event.
    is_recorded: AtomicBool,
    /// Number of captures begun when it was allocated.
    n_captures: u64,
}

impl Mapped {
    /// Allocates `bytes` zero bytes.
    ///
    /// # Errors
    /// [`crate::KernelError::OutOfMemory`]; [`crate::KernelError::Cuda`].
    pub fn new(gpu: &'static Gpu, bytes: usize) -> Result<Self> {
        let n_captures = gpu.graphs.n_begun();
        let (host, device_ptr, device) = if gpu.uses(GpuFeature::MappedOutcome) {
            let (host, device_ptr) = Pinned::mapped(gpu.context, bytes)?;
            (host, device_ptr, None)
        } else {
            let device = DeviceBuffer::zeroed(gpu, bytes, MemoryUse::Workspace)?;
            (gpu.host_memory(bytes)?, device.ptr(), Some(device))
        };
        Ok(Mapped {
            host: Some(host),
            device_ptr,
            device,
            gpu,
            written: Event::untimed(gpu)?,
            is_recorded: AtomicBool::new(true),
            n_captures,
        })
    }

    /// The GPU whose kernels write to it.
    pub fn gpu(&self) -> &'static Gpu {
        self.gpu
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.host().len_bytes()
    }

    /// The device address of the first byte, for work on the compute stream.
    pub(crate) fn device_ptr(&self) -> sys::CUdeviceptr {
        self.is_recorded.store(false, Ordering::Relaxed);
        self.device_ptr
    }

    /// Enqueues a copy of `from` to byte `start` on, where no kernel writes these bytes.
    ///
    /// # Panics
    /// If it does not fit.
    pub(crate) fn copy_from(&self, from: CudaSlice<'_>, start: usize) -> Result<()> {
        assert!(start + from.len_bytes() <= self.len_bytes(), "{} bytes from {start} on", from.len_bytes());
        self.gpu.bind()?;
        self.is_recorded.store(false, Ordering::Relaxed);
        let stream = self.gpu.compute().raw();
        if self.device.is_some() {
            let to = self.device_ptr + start as sys::CUdeviceptr;
            // SAFETY: both sides hold that many bytes, and are freed and written after the copy in the stream.
            let copied = unsafe { result::memcpy_dtod_async(to, from.ptr(), from.len_bytes(), stream) };
            return check_driver(self.gpu.index(), "cuMemcpyDtoDAsync", copied);
        }
        let to = self.host().as_ptr().wrapping_add(start);
        // SAFETY: both sides hold that many bytes. This memory is freed after the copy, device memory freed and written after it in the
        // stream.
        let copied = unsafe { sys::cuMemcpyDtoHAsync_v2(to.cast(), from.ptr(), from.len_bytes(), stream) };
        check_driver(self.gpu.index(), "cuMemcpyDtoHAsync", copied.result())
    }

    /// Records that all work which writes to it was enqueued on the compute stream, or replayed there as part of a graph.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`].
    pub fn record(&mut self) -> Result<()> {
        self.written.record(self.gpu.compute())?;
        *self.is_recorded.get_mut() = true;
        Ok(())
    }

    /// Whether [`Mapped::wait`] would not block.
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`].
    pub fn is_there(&self) -> Result<bool> {
        self.written.is_done()
    }

    /// Waits for the work before the last [`Mapped::record`].
    ///
    /// # Errors
    /// [`crate::KernelError::Cuda`], also for failed earlier work of the device.
    pub fn wait(&mut self) -> Result<()> {
        self.written.synchronize()?;
        let Some(device) = &self.device else { return Ok(()) };
        self.gpu.bind()?;
        // SAFETY: both sides hold that many bytes; no work that writes to them is under way, and `&mut self` makes the access to the
        // host's exclusive.
        let copied =
            unsafe { sys::cuMemcpyDtoH_v2(self.host().as_ptr().cast(), device.ptr(), self.len_bytes()) };
        check_driver(self.gpu.index(), "cuMemcpyDtoH", copied.result())
    }

    /// Reads `N` elements from byte `start` on, as written by the last step whose work [`Mapped::wait`] covered.
    ///
    /// # Panics
    /// If they do not lie within the memory, or `start` is not a multiple of the element's size.
    pub fn read<T: bytemuck::Pod, const N: usize>(&self, start: usize) -> [T; N] {
        assert!(start + N * size_of::<T>() <= self.len_bytes(), "{N} elements from byte {start} on");
        let from = self.host().as_ptr().wrapping_add(start).cast::<T>();
        assert!(from.is_aligned(), "{start} is not a multiple of {}", size_of::<T>());
        // SAFETY: the elements lie within the memory, aligned, and any bytes are a value of a plain type. The access is volatile, because
        // a replayed graph may write to it at any time.
        std::array::from_fn(|i| unsafe { from.wrapping_add(i).read_volatile() })
    }

    fn host(&self) -> &Pinned {
        self.host.as_ref().expect("taken when dropped")
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // No kernel may write to freed memory; errors surface elsewhere.
        let _ = if *self.is_recorded.get_mut() {
            self.written.synchronize()
        } else {
            self.gpu.compute().synchronize()
        };
        if let Some(host) = self.host.take() {
            // A graph that may be replayed may use the address.
            self.gpu.graphs.free_or_keep(self.gpu.compute(), Unused::Host(host), self.n_captures);
        }
    }
}
