//! Where a tensor lives: a closed set, chosen at run time by name.

use std::fmt;
use std::str::FromStr;

use crate::cuda::{self, Gpu};
use crate::{KernelError, Result};

/// A place that holds tensors and computes on them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Device {
    /// The host's processor and memory.
    Cpu,
    /// The CUDA device of that index among the visible ones.
    Cuda(u32),
}

impl Device {
    /// Whether tensors can be made there on this machine.
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`] with the reason.
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

/// A rank's device, and why that one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceChoice {
    /// The device.
    pub device: Device,
    /// Why not a GPU, where [`DeviceRequest::Auto`] came to the CPU.
    pub reason: Option<String>,
}

impl DeviceRequest {
    /// The device of the rank with this local index among `local_size` ranks of its host.
    ///
    /// A rank takes the GPU of its local index. Where a rank sees one GPU, that is its own: launchers give each rank one by
    /// `CUDA_VISIBLE_DEVICES`; whether two ranks then mean the same GPU is for the world to find out.
    ///
    /// - `share`: ranks may share a GPU, in turn by local index
    ///
    /// # Errors
    /// [`KernelError::DeviceUnavailable`] where a GPU was asked for by name and cannot be used (such a wish never falls back
    /// to the CPU), and where a host has fewer GPUs than ranks.
    pub fn resolve(self, local_rank: usize, local_size: usize, share: bool) -> Result<DeviceChoice> {
        let cpu = |reason| Ok(DeviceChoice { device: Device::Cpu, reason });
        match self {
            DeviceRequest::Cpu => cpu(None),
            DeviceRequest::Auto => match cuda::devices() {
                Err(why) => cpu(Some(why.reason)),
                Ok(devices) => own_gpu(devices.len(), local_rank, local_size, share),
            },
            // Without a driver the device itself says what is missing.
            DeviceRequest::Cuda => {
                own_gpu(Gpu::count().max(1), local_rank, local_size, share || Gpu::count() == 0)
            }
            DeviceRequest::CudaIndex(index) => {
                Gpu::get(index)?;
                Ok(DeviceChoice { device: Device::Cuda(index), reason: None })
            }
        }
    }
}

fn own_gpu(n_gpus: usize, local_rank: usize, local_size: usize, share: bool) -> Result<DeviceChoice> {
    let index = match n_gpus {
        1 => 0,
        _ if local_size <= n_gpus => local_rank,
        _ if share => local_rank % n_gpus,
        _ => {
            return Err(KernelError::DeviceUnavailable {
                device: Device::Cuda(local_rank as u32),
                reason: format!("this host has {n_gpus} GPUs and {local_size} ranks"),
                hint: format!("start {n_gpus} ranks on it, or, for tests, --share-gpu"),
            });
        }
    };
    Gpu::get(index as u32)?;
    Ok(DeviceChoice { device: Device::Cuda(index as u32), reason: None })
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
        if Gpu::count() > 0 {
            assert_eq!(DeviceRequest::Auto.resolve(0, 1, false).unwrap().device, Device::Cuda(0));
            return;
        }
        let choice = DeviceRequest::Auto.resolve(3, 4, false).unwrap();
        assert_eq!(choice.device, Device::Cpu);
        assert!(choice.reason.is_some(), "the reason for the CPU is told");
        for request in [DeviceRequest::Cuda, DeviceRequest::CudaIndex(3)] {
            let message = request.resolve(3, 4, false).unwrap_err().to_string();
            assert!(message.contains("cuda:") && message.contains("hint: "), "{message}");
        }
    }

    #[test]
    fn more_ranks_than_gpus_are_refused_unless_they_share() {
        let message = own_gpu(2, 2, 3, false).unwrap_err().to_string();
        assert!(message.contains("2 GPUs and 3 ranks") && message.contains("--share-gpu"), "{message}");
    }
}
