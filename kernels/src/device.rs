//! Where a tensor lives: a closed set, chosen at run time by name.

use std::fmt;
use std::str::FromStr;

use crate::{KernelError, Result};

/// A place that holds tensors and computes on them.
///
/// `Cuda` is a name that parses and compares; this build computes on the CPU only, and says so where a
/// tensor is asked for on a GPU ([`Device::ensure_available`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Device {
    /// The host's processor and memory.
    Cpu,
    /// The CUDA device of that index among the visible ones.
    Cuda(u32),
}

impl Device {
    /// Whether tensors can be made there by this build on this machine.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`] with the reason.
    pub fn ensure_available(self) -> Result<()> {
        match self {
            Device::Cpu => Ok(()),
            Device::Cuda(_) => Err(KernelError::DeviceUnavailable {
                device: self,
                reason: "this build computes on the CPU only",
                hint: "--device cpu, or --device auto, which takes the best device there is",
            }),
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

/// What a user asks for: a kind of device, from which each rank takes its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum DeviceRequest {
    /// The rank's GPU where there is one, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU with the rank's local index.
    Cuda,
    /// That very GPU.
    CudaIndex(u32),
}

impl DeviceRequest {
    /// The device of the rank with this local index.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`] where a GPU was asked for by name and cannot be used: such a wish
    /// never falls back to the CPU.
    pub fn resolve(self, local_rank: usize) -> Result<Device> {
        let device = match self {
            DeviceRequest::Auto | DeviceRequest::Cpu => Device::Cpu,
            DeviceRequest::Cuda => Device::Cuda(u32::try_from(local_rank).unwrap_or(u32::MAX)),
            DeviceRequest::CudaIndex(index) => Device::Cuda(index),
        };
        device.ensure_available()?;
        Ok(device)
    }
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
        for name in ["", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:99999999999", "CPU", "cpu:0", "mps"] {
            let message = name.parse::<DeviceRequest>().unwrap_err().to_string();
            assert!(message.contains(&format!("'{name}'")) && message.contains("cuda:N"), "{message}");
        }
    }

    #[test]
    fn a_gpu_by_name_never_falls_back() {
        assert_eq!(DeviceRequest::Auto.resolve(3).unwrap(), Device::Cpu);
        let message = DeviceRequest::Cuda.resolve(3).unwrap_err().to_string();
        assert!(message.contains("cuda:3") && message.contains("hint: --device cpu"), "{message}");
    }
}
