//! Tensors from and to safetensors files, which PyTorch reads and writes; the crate `ddp-tables` has those of NumPy.
//!
//! ```
//! use ddp::nn::{Sequential, Sizes};
//! use ddp::prelude::*;
//!
//! let path = std::env::temp_dir().join(format!("ddp_io_{}.safetensors", std::process::id()));
//! let model = Sequential::new(3).linear(2).build(Sizes::new(8, Device::Cpu), 1)?;
//! io::write_safetensors(&path, &model.state_dict(Device::Cpu)?)?;
//!
//! let mut other = Sequential::new(3).linear(2).build(Sizes::new(8, Device::Cpu), 2)?;
//! other.load_state_dict(&io::read_safetensors(&path, Device::Cpu)?, true)?;
//! # std::fs::remove_file(path)?;
//! # Ok::<(), ddp::Error>(())
//! ```
//!
//! Source: <https://github.com/huggingface/safetensors>, "Format".

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use ddp_kernels::{IntoDevice, Tensor};

use crate::error::Result;
use crate::storage::atomic_write::write_atomic_with;
pub use crate::storage::named_tensors::NamedTensors;
use crate::storage::tensor_file::{self, TensorToWrite, Values, dtype_name};
use crate::storage::user_file::{self, FileError, LFS_NAME, LFS_POINTER};

/// Reads all tensors of a safetensors file to a device, by name.
///
/// # Errors
/// [`Error::File`](crate::Error::File) for a file that is missing, not complete or holds a type that no tensor holds;
/// [`Error::Kernel`](crate::Error::Kernel) from the copies to the device.
pub fn read_safetensors(path: impl AsRef<Path>, device: impl IntoDevice) -> Result<BTreeMap<String, Tensor>> {
    let (path, device) = (path.as_ref(), device.into_device()?);
    let name = path.display().to_string();
    let read = tensor_file::read_all(name, user_file::open("tensor file", path)?);
    let tensors = read.map_err(|fault| {
        let begin = user_file::read_regular(path, LFS_POINTER.len() as u64);
        let is_pointer = begin.is_ok_and(|begin| begin == LFS_POINTER);
        let reason = if is_pointer { format!("it is {LFS_NAME}") } else { fault.reason() };
        FileError::NotTensors { path: path.to_owned(), reason, is_pointer }
    })?;
    tensors.into_iter().map(|(name, tensor)| Ok((name, tensor.to(device)?))).collect()
}

/// Writes tensors of any device as a safetensors file, atomically; a tensor without dimensions is written with one of length 1.
///
/// - `tensors`: such as a [state dict](crate::nn::Network::state_dict)
///
/// # Errors
/// [`Error::Write`](crate::Error::Write); [`Error::Kernel`](crate::Error::Kernel) from the copies to the host.
pub fn write_safetensors(path: impl AsRef<Path>, tensors: &(impl NamedTensors + ?Sized)) -> Result<()> {
    let mut hosts = Vec::new();
    for (name, tensor) in tensors.named_tensors() {
        hosts.push((name, tensor.cpu()?));
    }
    // So each begins at a multiple of its size.
    hosts.sort_by_key(|(_, host)| Reverse(host.dtype().size_bytes()));
    let mut entries = Vec::new();
    for (name, host) in &hosts {
        let dims = if host.dims().is_empty() { vec![1] } else { host.dims().to_vec() };
        let bytes = host.view().as_bytes("write_safetensors", "tensor")?;
        let values = Values::Bytes(dtype_name(host.dtype()), bytes);
        entries.push(TensorToWrite { name: (*name).to_owned(), dims, values });
    }
    Ok(write_atomic_with(path.as_ref(), |file| tensor_file::write_to(file, &entries, &HashMap::new()))?)
}
