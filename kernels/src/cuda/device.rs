//! Devices in use: whether one is available, waiting for its work, and the time that work takes.

use std::time::{Duration, Instant};

use super::gpu::Gpu;
use super::info::{Link, link};
use crate::{Device, IntoDevice, Result};

impl Device {
    /// Number of GPUs that this process can see; 0 without a driver.
    pub fn count() -> usize {
        Gpu::count()
    }

    /// [`Device::count`] under PyTorch's name.
    pub fn device_count() -> usize {
        Self::count()
    }

    /// Whether the first GPU is available: [`Device::is_available`] under PyTorch's name.
    pub fn cuda_is_available() -> bool {
        Device::Cuda(0).is_available()
    }

    /// Whether this machine has the device and it works; opens it if it is a GPU.
    pub fn is_available(self) -> bool {
        self.ensure_available().is_ok()
    }

    /// This device if it is available, else the CPU.
    pub fn available_or_cpu(self) -> Self {
        if self.is_available() { self } else { Device::Cpu }
    }

    /// The model name of a GPU as its driver reports it; of the CPU, and of a GPU that is not available, the name of the device, such as
    /// `cpu`.
    #[doc(alias = "get_device_name")]
    pub fn name(self) -> String {
        match self {
            Device::Cuda(index) => {
                Gpu::get(index).map_or_else(|_| self.to_string(), |gpu| gpu.info().name.clone())
            }
            Device::Cpu => self.to_string(),
        }
    }

    /// Whether the driver copies from `peer` to this device directly, over NVLink or PCIe, instead of through host memory; false if one
    /// of them is the CPU or is not available.
    ///
    /// Source: `torch.cuda.can_device_access_peer`.
    #[doc(alias = "can_device_access_peer")]
    pub fn can_access_peer(self, peer: Device) -> bool {
        match (self, peer) {
            (Device::Cuda(own), Device::Cuda(other)) if self.is_available() && peer.is_available() => {
                matches!(link(own, other), Link::Peer | Link::PeerWithAtomics)
            }
            _ => false,
        }
    }

    /// Blocks until all work enqueued on the device is complete; returns at once for the CPU, which computes at the call.
    ///
    /// # Errors
    /// Same as [`Device::ensure_available`]; failures of earlier work.
    pub fn synchronize(self) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            Device::Cuda(index) => Gpu::get(index)?.synchronize(),
        }
    }

    /// Checks that this machine has the device and that it works; opens it if it is a GPU.
    ///
    /// # Errors
    /// [`crate::KernelError::DeviceUnavailable`]; [`crate::KernelError::Cuda`] if the device does not start.
    pub fn ensure_available(self) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            Device::Cuda(index) => Gpu::get(index).map(|_| ()),
        }
    }
}

/// Runs `work` and returns its result with the time that it took on `device`: waits for earlier work first, and for this work
/// before the clock is read. Without that, a clock shows how long it takes to enqueue work on a GPU.
///
/// ```
/// use ddp_kernels::{DType, Device, Tensor, timed};
/// let x = Tensor::ones(&[64, 64], DType::F32, Device::Cpu)?;
/// let (product, time) = timed(Device::Cpu, || x.matmul(&x))?;
/// println!("{:.1} us", time.as_secs_f64() * 1e6);
/// assert_eq!(product?.row(0)?.to_vec::<f32>()?[0], 64.0);
/// # Ok::<(), ddp_kernels::KernelError>(())
/// ```
///
/// # Errors
/// Errors of [`Device::synchronize`], among them failures of earlier work.
pub fn timed<R>(device: impl IntoDevice, work: impl FnOnce() -> R) -> Result<(R, Duration)> {
    let device = device.into_device()?;
    device.synchronize()?;
    let start = Instant::now();
    let result = work();
    device.synchronize()?;
    Ok((result, start.elapsed()))
}
