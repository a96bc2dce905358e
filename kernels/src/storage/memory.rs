//! Memory that tensors hold on a device.
//!
//! ```
//! use ddp_kernels::{DType, Device, Tensor, memory};
//!
//! memory::reset_peak(Device::Cpu)?;
//! let x = Tensor::zeros(&[1024, 256], DType::F32, Device::Cpu)?;
//! assert!(memory::allocated(Device::Cpu)? >= x.size_bytes());
//! assert!(memory::peak(Device::Cpu)? >= memory::allocated(Device::Cpu)?);
//! println!("{}", memory::summary(Device::Cpu)?);
//! # Ok::<(), ddp_kernels::KernelError>(())
//! ```

use std::fmt;

use crate::base::host_buffer;
use crate::base::memory_use::MemoryInUse;
use crate::cuda::Gpu;
use crate::{Device, IntoDevice, Result};

/// Bytes that tensors hold on `device`.
///
/// # Errors
/// [`crate::KernelError::DeviceUnavailable`], as for every function here; [`crate::KernelError::Cuda`].
pub fn allocated(device: impl IntoDevice) -> Result<usize> {
    Ok(match device.into_device()? {
        Device::Cpu => host_buffer::allocated(),
        Device::Cuda(index) => Gpu::get(index)?.memory_allocated(),
    })
}

/// Bytes that are taken from the system or the device, in use or kept for the next tensor.
///
/// # Errors
/// Same as [`allocated`].
pub fn reserved(device: impl IntoDevice) -> Result<usize> {
    match device.into_device()? {
        Device::Cpu => Ok(host_buffer::allocated() + host_buffer::kept()),
        Device::Cuda(index) => Gpu::get(index)?.memory_reserved(),
    }
}

/// Peak of [`allocated`] since the start or [`reset_peak`].
///
/// # Errors
/// Same as [`allocated`].
pub fn peak(device: impl IntoDevice) -> Result<usize> {
    Ok(match device.into_device()? {
        Device::Cpu => host_buffer::peak(),
        Device::Cuda(index) => Gpu::get(index)?.memory_peak(),
    })
}

/// Resets the peak to the current use.
///
/// # Errors
/// Same as [`allocated`].
pub fn reset_peak(device: impl IntoDevice) -> Result<()> {
    match device.into_device()? {
        Device::Cpu => host_buffer::reset_peak(),
        Device::Cuda(index) => Gpu::get(index)?.reset_peak_memory(),
    }
    Ok(())
}

/// Returns memory that is kept for the next tensor to the system and to the GPUs in use, and waits for them.
///
/// # Errors
/// [`crate::KernelError::Cuda`].
///
/// Source: `torch.cuda.empty_cache`.
pub fn empty_cache() -> Result<()> {
    Gpu::opened().try_for_each(Gpu::empty_cache)?;
    empty_cache_of(Device::Cpu)
}

/// [`empty_cache`] of one device.
///
/// # Errors
/// Same as [`allocated`].
#[doc(hidden)]
pub fn empty_cache_of(device: Device) -> Result<()> {
    match device {
        Device::Cpu => {
            host_buffer::empty_cache();
            Ok(())
        }
        Device::Cuda(index) => Gpu::get(index)?.empty_cache(),
    }
}

/// Memory of a device; prints as one line, on a GPU with its uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// CPU or GPU whose memory is counted.
    pub device: Device,
    /// Same as [`allocated`].
    pub allocated: usize,
    /// Same as [`reserved`].
    pub reserved: usize,
    /// Same as [`peak`].
    pub peak: usize,
    /// Bytes by use, on a GPU.
    pub uses: Option<MemoryInUse>,
}

/// Reads all figures of `device`.
///
/// # Errors
/// Same as [`allocated`].
pub fn summary(device: impl IntoDevice) -> Result<Summary> {
    let device = device.into_device()?;
    Ok(Summary {
        device,
        allocated: allocated(device)?,
        reserved: reserved(device)?,
        peak: peak(device)?,
        uses: match device {
            Device::Cpu => None,
            Device::Cuda(index) => Some(Gpu::get(index)?.memory_in_use()?),
        },
    })
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: usize| bytes as f64 / f64::from(1 << 20);
        let (allocated, reserved, peak) = (mib(self.allocated), mib(self.reserved), mib(self.peak));
        write!(
            f,
            "{}: {allocated:.1} MiB allocated, {reserved:.1} MiB reserved, peak {peak:.1} MiB",
            self.device
        )?;
        self.uses.as_ref().map_or(Ok(()), |uses| write!(f, "; {uses}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::devices;
    use crate::{DType, Tensor};

    #[test]
    fn a_tensor_is_counted_as_long_as_it_lives() {
        // Other tests allocate at the same time, but not as much.
        const N: usize = 1 << 28;
        for device in devices() {
            let before = allocated(device).unwrap();
            let tensor = Tensor::zeros(&[N], DType::U8, device).unwrap();
            assert!(allocated(device).unwrap() >= before + N / 2 && peak(device).unwrap() >= N);
            assert!(reserved(device).unwrap() >= N);
            let text = summary(device).unwrap().to_string();
            assert!(text.starts_with(&format!("{device}: ")) && text.contains("MiB allocated"), "{text}");
            drop(tensor);
            empty_cache_of(device).unwrap();
            reset_peak(device).unwrap();
            assert!(allocated(device).unwrap() < N && peak(device).unwrap() < N);
        }
    }
}
