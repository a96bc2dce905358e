//! Devices and requests by name, such as `cpu` and `cuda:1`.

use std::str::FromStr;

use super::device::{Device, DeviceRequest};
use super::error::{KernelError, Result};

/// Names of devices that other programs compute on and this one does not.
pub const OTHER_DEVICES: [&str; 8] = ["mps", "metal", "rocm", "hip", "xpu", "tpu", "vulkan", "npu"];

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

/// A device, or its name: taken wherever a tensor is created on or moved to a device.
///
/// ```
/// use ddp_kernels::{Device, IntoDevice};
///
/// assert_eq!("cuda:1".into_device()?, Device::Cuda(1));
/// assert!("gpu".into_device().is_err());
/// # Ok::<(), ddp_kernels::KernelError>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no device",
    note = "`Device::Cpu`, `Device::cuda(0)` or a name such as \"cuda:0\"; `\"..\".parse()` needs no call: pass the name itself"
)]
pub trait IntoDevice {
    /// The device.
    ///
    /// # Errors
    /// [`KernelError::UnknownDevice`] or [`KernelError::UnsupportedDevice`] for a name.
    fn into_device(self) -> Result<Device>;
}

impl IntoDevice for Device {
    #[inline]
    fn into_device(self) -> Result<Device> {
        Ok(self)
    }
}

impl IntoDevice for &str {
    fn into_device(self) -> Result<Device> {
        self.parse()
    }
}

impl IntoDevice for &String {
    fn into_device(self) -> Result<Device> {
        self.parse()
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
    fn tensors_take_names_of_devices() {
        use crate::{DType, Tensor};
        let x = Tensor::ones(&[2], DType::F32, "cpu").unwrap();
        assert_eq!(x.to(&"cpu".to_owned()).unwrap().device(), Device::Cpu);
        let message = crate::hint::with_hint(&Tensor::zeros(&[2], DType::F32, "gpu").unwrap_err());
        assert!(message.contains("'gpu'") && message.contains("cuda:N"), "{message}");
        assert!(x.to("mps").unwrap_err().to_string().contains("not supported by this build"));
    }

    #[test]
    fn wrong_names_are_refused_with_the_right_ones() {
        for name in ["", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:99999999999", "CPU", "cpu:0"] {
            let message = crate::hint::with_hint(&name.parse::<DeviceRequest>().unwrap_err());
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
