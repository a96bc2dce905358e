//! Pins each rank to a device of its host.

use ddp_kernels::cuda::{self, Gpu, Unavailable};
use ddp_kernels::{Device, DeviceRequest, KernelError};

use crate::{CommError, Result, World};

/// A rank's device, and the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceChoice {
    /// CPU, or the GPU that this rank computes on.
    pub device: Device,
    /// Why [`DeviceRequest::Auto`] chose the CPU.
    pub reason: Option<Unavailable>,
}

impl World {
    /// Chooses this rank's device: for [`DeviceRequest::Auto`] and [`DeviceRequest::Cuda`] the GPU of its local rank.
    ///
    /// [`DeviceRequest::Auto`] takes the CPU if there is no GPU or a library is missing, but not if there are GPUs that the driver
    /// cannot serve ([`Unavailable::is_fault`]).
    ///
    /// A rank that sees a single GPU takes that one: launchers assign one GPU to each rank through `CUDA_VISIBLE_DEVICES`.
    /// [`World::connect_device`] finds ranks that chose the same GPU.
    ///
    /// - `share_gpu`: ranks may share GPUs, assigned round-robin by local rank
    ///
    /// # Errors
    /// [`CommError::TooFewGpus`]; [`CommError::Kernel`] if a GPU that was requested by name cannot be used, or a library that
    /// it needs is missing: such a request never falls back to the CPU; or if [`DeviceRequest::Auto`] finds GPUs that the driver
    /// cannot serve.
    pub fn choose_device(&self, request: DeviceRequest, share_gpu: bool) -> Result<DeviceChoice> {
        let device = match request {
            DeviceRequest::Cpu => Device::Cpu,
            DeviceRequest::CudaIndex(index) => Device::Cuda(index),
            DeviceRequest::Auto | DeviceRequest::Cuda => {
                let usable = cuda::devices().and_then(|devices| cuda::ensure_libraries().map(|()| devices));
                let n_gpus = match usable {
                    Ok(devices) => devices.len(),
                    Err(why) if request == DeviceRequest::Auto && !why.is_fault => {
                        return Ok(DeviceChoice { device: Device::Cpu, reason: Some(why) });
                    }
                    // Without a driver that serves them there are none: opening the first one reports why.
                    Err(_) => Gpu::count().max(1),
                };
                Device::Cuda(gpu_index(n_gpus, self.local_rank().0, self.local_size(), share_gpu)?)
            }
        };
        if let Device::Cuda(index) = device {
            Gpu::get(index)?;
            cuda::ensure_libraries().map_err(|Unavailable { reason, hint, .. }| {
                KernelError::DeviceUnavailable { device, reason, hint }
            })?;
        }
        Ok(DeviceChoice { device, reason: None })
    }
}

/// The index of a rank's GPU on a host with `n_gpus` of them and `local_size` ranks.
fn gpu_index(n_gpus: usize, local_rank: usize, local_size: usize, share_gpu: bool) -> Result<u32> {
    let index = match n_gpus {
        1 => 0,
        _ if local_size <= n_gpus => local_rank,
        _ if share_gpu => local_rank % n_gpus,
        _ => return Err(CommError::TooFewGpus { n_gpus, n_ranks: local_size }),
    };
    Ok(index as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads;

    #[test]
    fn a_gpu_by_name_never_falls_back() {
        let choices = threads::run(4, |world| {
            if Gpu::count() > 0 {
                let choice = world.choose_device(DeviceRequest::Auto, true).unwrap();
                assert_eq!(choice.device, Device::Cuda((world.rank().0 % Gpu::count()) as u32));
                return;
            }
            let choice = world.choose_device(DeviceRequest::Auto, false).unwrap();
            assert_eq!(choice.device, Device::Cpu);
            let reason = choice.reason.expect("the reason for the CPU is reported");
            assert!(!reason.has_driver || !reason.reason.starts_with("no NVIDIA driver"), "{reason:?}");
            for request in [DeviceRequest::Cuda, DeviceRequest::CudaIndex(3)] {
                let message = ddp_kernels::hint::with_hint(&world.choose_device(request, false).unwrap_err());
                assert!(message.contains("cuda:") && message.contains("hint: "), "{message}");
            }
        });
        assert_eq!(choices.len(), 4);
    }

    #[test]
    fn more_ranks_than_gpus_are_refused_unless_they_share() {
        let message = gpu_index(2, 2, 3, false).unwrap_err().to_string();
        assert!(message.contains("2 GPUs and 3 ranks"), "{message}");
        let shared: Vec<u32> = (0..3).map(|rank| gpu_index(2, rank, 3, true).unwrap()).collect();
        assert_eq!(shared, [0, 1, 0]);
        assert_eq!(gpu_index(1, 2, 3, false), Ok(0), "a launcher that gives each rank one GPU");
    }
}
