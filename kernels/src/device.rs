//! The devices that tensors live on: a closed set, chosen at run time by name.

use std::fmt;
use std::str::FromStr;

use crate::cuda::Gpu;
use crate::{KernelError, Result};

/// Names of devices that other programs compute on and this one does not.
pub const OTHER_DEVICES: [&str; 8] = ["mps", "metal", "rocm", "hip", "xpu", "tpu", "vulkan", "npu"];

/// A device that holds tensors and computes on them.
///
/// ```
/// use ddp_kernels::Device;
///
/// // The first GPU, or the CPU where there is none.
/// let device = Device::cuda(0).available_or_cpu();
/// assert!(device.is_available());
/// let error = "mps".parse::<Device>().unwrap_err().to_string();
/// assert!(error.contains("not supported by this build"));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Device {
    /// The host's processor and memory.
    Cpu,
    /// The CUDA device of this index among the visible ones.
    Cuda(u32),
}

impl Device {
    /// The host's processor and memory.
    pub fn cpu() -> Self {
        Device::Cpu
    }

    /// The GPU of this index among the visible ones.
    pub fn cuda(index: u32) -> Self {
        Device::Cuda(index)
    }

    /// Number of GPUs that this process can see; 0 without a driver.
    pub fn count() -> usize {
        Gpu::count()
    }

    /// Whether this machine has the device and it works; opens it if it is a GPU.
    pub fn is_available(self) -> bool {
        self.ensure_available().is_ok()
    }

    /// This device if it is available, else the CPU.
    pub fn available_or_cpu(self) -> Self {
        if self.is_available() { self } else { Device::Cpu }
    }

    /// The model name of a GPU as its driver reports it; "cpu" for the CPU.
    ///
    /// # Errors
    /// Same as [`Device::ensure_available`].
    pub fn current_name(self) -> Result<String> {
        match self {
            Device::Cpu => Ok("cpu".to_owned()),
            Device::Cuda(index) => Ok(Gpu::get(index)?.info().name.clone()),
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
    /// [`KernelError::DeviceUnavailable`]; [`KernelError::Cuda`] if the device does not start.
    pub fn ensure_available(self) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            Device::Cuda(index) => Gpu::get(index).map(|_| ()),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Device::Cpu => f.pad("cpu"),
            Device::Cuda(index) => f.pad(&format!("cuda:{index}")),
        }
    }
}

impl FromStr for Device {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Self> {
        let unknown = || KernelError::UnknownDevice { name: name.to_owned() };
        if OTHER_DEVICES.contains(&name.split(':').next().unwrap_or_default()) {
            return Err(KernelError::UnsupportedDevice { name: name.to_owned() });
        }
        match name.split_once(':') {
            None if name == "cpu" => Ok(Device::Cpu),
            None if name == "cuda" => Ok(Device::Cuda(0)),
            // `parse` alone would let "+1" through.
            Some(("cuda", index)) if index.bytes().all(|b| b.is_ascii_digit()) => {
                index.parse().map(Device::Cuda).map_err(|_| unknown())
            }
            _ => Err(unknown()),
        }
    }
}

/// A requested device: a kind, of which each process takes its own, or one by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DeviceRequest {
    /// A GPU if there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU.
    Cuda,
    /// The GPU of this index.
    CudaIndex(u32),
}

impl fmt::Display for DeviceRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceRequest::Auto => f.pad("auto"),
            DeviceRequest::Cpu => f.pad("cpu"),
            DeviceRequest::Cuda => f.pad("cuda"),
            DeviceRequest::CudaIndex(index) => f.pad(&format!("cuda:{index}")),
        }
    }
}

impl FromStr for DeviceRequest {
    type Err = KernelError;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "auto" => Ok(DeviceRequest::Auto),
            "cuda" => Ok(DeviceRequest::Cuda),
            _ => match name.parse()? {
                Device::Cpu => Ok(DeviceRequest::Cpu),
                Device::Cuda(index) => Ok(DeviceRequest::CudaIndex(index)),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for name in ["cpu", "cuda:0", "cuda:7"] {
            assert_eq!(name.parse::<Device>().unwrap().to_string(), name);
        }
        for name in ["auto", "cpu", "cuda", "cuda:0", "cuda:12"] {
            assert_eq!(name.parse::<DeviceRequest>().unwrap().to_string(), name);
        }
        assert_eq!("cuda".parse::<Device>().unwrap(), Device::Cuda(0));
    }

    #[test]
    fn wrong_names_are_refused_with_the_right_ones() {
        for name in ["", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:99999999999", "CPU", "cpu:0"] {
            let message = name.parse::<DeviceRequest>().unwrap_err().to_string();
            assert!(message.contains(&format!("'{name}'")) && message.contains("cuda:N"), "{message}");
        }
        for name in ["mps", "xpu:1"] {
            let message = name.parse::<DeviceRequest>().unwrap_err().to_string();
            assert!(
                message.starts_with(&format!("the device '{name}' is not supported by this build")),
                "{message}"
            );
        }
    }
}
