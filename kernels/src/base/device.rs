//! The devices that tensors live on: a closed set, chosen at run time by name.

use std::fmt;

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

    /// The GPU of this index, of any integer type, among the visible ones.
    pub fn cuda(index: impl TryInto<u32>) -> Self {
        // No machine has so many GPUs that a number beyond u32 would name one.
        Device::Cuda(index.try_into().unwrap_or(u32::MAX))
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
