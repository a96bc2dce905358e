//! Tensors from and to files of NumPy; [`ddp::io`] has safetensors.
//!
//! Reads a whole file; rows of a file that are used as training data are mapped instead (`data.train` in a config). Files are
//! written atomically, and readers check what a header declares before they believe it. A tensor without dimensions is written
//! with one of length 1, since the readers take arrays.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use ddp::data::DataError;
use ddp::data::error::Result;
use ddp::storage::atomic_write::write_atomic_with;
use ddp_kernels::{DType, Device, IntoDevice, Tensor, TensorMut};

use crate::error::TableError;
use crate::formats::arrays::bytes::{Bytes, MemoryBudget};
use crate::formats::arrays::reader::NamedArrays;
use crate::formats::arrays::{RawArray, npy, npz};
use crate::values::element::RawType;

/// Rows that are read at a time.
const ROWS: usize = 1 << 16;

/// Reads a NumPy array to `device`.
///
/// # Errors
/// [`TableError::Rows`], [`TableError::NoTensor`] for a type that no tensor holds (such as u16 or texts);
/// [`DataError::Kernel`].
pub fn read_npy(path: impl AsRef<Path>, device: impl IntoDevice) -> Result<Tensor> {
    let (path, device) = (path.as_ref(), device.into_device()?);
    let array = npy::open(Bytes::map(path)?, &MemoryBudget::new(u64::MAX))?;
    tensor(path, "its array", &array, device)
}

/// Reads all arrays of a NumPy archive, by name.
///
/// # Errors
/// Same as [`read_npy`].
pub fn read_npz(path: impl AsRef<Path>, device: impl IntoDevice) -> Result<BTreeMap<String, Tensor>> {
    let device = device.into_device()?;
    let (bytes, budget) = (Bytes::map(path.as_ref())?, MemoryBudget::new(u64::MAX));
    named(path.as_ref(), &*npz::open(&bytes, &budget)?, device)
}

/// Writes a tensor of any device as a NumPy array; bf16, which NumPy lacks, is refused.
///
/// ```
/// use ddp_tables::io::{read_npy, write_npy};
/// use ddp::prelude::*;
/// let path = std::env::temp_dir().join(format!("ddp_io_{}.npy", std::process::id()));
/// let x = Tensor::eye(3, DType::F32, Device::Cpu)?;
/// write_npy(&path, &x)?;
/// assert_eq!(read_npy(&path, Device::Cpu)?.to_vec::<f32>()?, x.to_vec::<f32>()?);
/// # std::fs::remove_file(path)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`TableError::NoFileType`] for bf16; [`TableError::Rows`]; [`DataError::Kernel`].
pub fn write_npy(path: impl AsRef<Path>, tensor: &Tensor) -> Result<()> {
    let path = path.as_ref();
    let raw = numpy_type(path, "npy", tensor.dtype())?;
    let (host, dims) = (tensor.cpu()?, file_dims(tensor));
    let bytes = host.view().as_bytes("write_npy", "tensor")?;
    Ok(write_atomic_with(path, |file| {
        file.write_all(&npy::array_header(raw, &dims, 0))?;
        file.write_all(bytes)
    })?)
}

/// Writes tensors of any device as a NumPy archive, uncompressed as by `numpy.savez`.
///
/// # Errors
/// Same as [`write_npy`].
pub fn write_npz<N: AsRef<str>>(path: impl AsRef<Path>, tensors: &[(N, &Tensor)]) -> Result<()> {
    let path = path.as_ref();
    let hosts: Vec<Tensor> = tensors.iter().map(|(_, tensor)| tensor.cpu()).collect::<Result<_, _>>()?;
    let mut arrays = Vec::new();
    for ((name, _), host) in tensors.iter().zip(&hosts) {
        let raw = numpy_type(path, "npz", host.dtype())?;
        arrays.push((name.as_ref(), raw, file_dims(host), host.view().as_bytes("write_npz", "tensor")?));
    }
    Ok(write_atomic_with(path, |file| npz::write_archive(file, arrays).map(|_| ()))?)
}

fn named(path: &Path, arrays: &dyn NamedArrays, device: Device) -> Result<BTreeMap<String, Tensor>> {
    let read = |name: String| {
        let tensor = tensor(path, &name, &arrays.array(&name)?, device)?;
        Ok((name, tensor))
    };
    arrays.names().into_iter().map(read).collect()
}

/// The array `name` of the file as a tensor.
fn tensor(path: &Path, name: &str, array: &RawArray, device: Device) -> Result<Tensor> {
    let dtype = match array.raw {
        RawType::Bool => DType::Bool,
        RawType::I32 => DType::I32,
        raw => raw.dtype().ok_or_else(|| {
            DataError::from(TableError::NoTensor {
                path: path.to_owned(),
                name: name.to_owned(),
                found: raw.name(),
            })
        })?,
    };
    let dims = [&[array.n_rows()], &array.row_dims[..]].concat();
    let mut host = Tensor::zeros(&dims, dtype, Device::Cpu)?;
    let (row_bytes, n_rows) = (array.row_len() * dtype.size_bytes(), array.n_rows());
    if row_bytes > 0 {
        let out = TensorMut::into_bytes(host.view_mut(), "read", "tensor")?;
        for (chunk, out) in out.chunks_mut(ROWS * row_bytes).enumerate() {
            let rows: Vec<usize> = (chunk * ROWS..n_rows.min((chunk + 1) * ROWS)).collect();
            out.copy_from_slice(&array.numbers(&rows)?);
            if dtype == DType::Bool {
                out.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            }
        }
    }
    array.check_length()?;
    Ok(if device == Device::Cpu { host } else { host.to(device)? })
}

/// The dimensions in a file: at least one.
fn file_dims(tensor: &Tensor) -> Vec<u64> {
    if tensor.dims().is_empty() {
        return vec![1];
    }
    tensor.dims().iter().map(|&dim| dim as u64).collect()
}

fn numpy_type(path: &Path, format: &'static str, dtype: DType) -> Result<RawType> {
    Ok(match dtype {
        DType::F32 => RawType::F32,
        DType::F64 => RawType::F64,
        DType::F16 => RawType::F16,
        DType::I64 => RawType::I64,
        DType::I32 => RawType::I32,
        DType::U8 => RawType::U8,
        DType::Bool => RawType::Bool,
        DType::BF16 => {
            return Err(DataError::from(TableError::NoFileType { path: path.to_owned(), format, dtype }));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every device that is there.
    fn devices() -> Vec<Device> {
        std::iter::once(Device::Cpu).chain((Device::count() > 0).then_some(Device::Cuda(0))).collect()
    }

    fn same(a: &Tensor, b: &Tensor) {
        assert_eq!((a.dims(), a.dtype()), (b.dims(), b.dtype()));
        let bytes = |t: &Tensor| t.cpu().unwrap().view().as_bytes("test", "t").unwrap().to_vec();
        assert_eq!(bytes(a), bytes(b));
    }

    #[test]
    fn each_dtype_is_written_and_read_from_and_to_each_device() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for device in devices() {
            let mut all = Vec::new();
            for dtype in DType::ALL {
                let x = Tensor::arange(140_000, dtype, device).unwrap().into_shape(&[70_000, 2]).unwrap();
                if dtype == DType::BF16 {
                    let message = ddp_kernels::hint::with_hint(&write_npy(at("x.npy"), &x).unwrap_err());
                    assert!(
                        message.contains("npy has no type for bf16") && message.contains("to_dtype"),
                        "{message}"
                    );
                } else {
                    write_npy(at("x.npy"), &x).unwrap();
                    let read = read_npy(at("x.npy"), device).unwrap();
                    assert_eq!(read.device(), device);
                    same(&read, &x);
                }
                all.push((dtype.to_string(), x));
            }
            all.push(("one".to_owned(), Tensor::full(&[1], 7.0, DType::F32, device).unwrap()));
            all.push(("none".to_owned(), Tensor::zeros(&[0, 3], DType::I32, device).unwrap()));
            let named: Vec<(&str, &Tensor)> = all.iter().map(|(name, x)| (name.as_str(), x)).collect();
            ddp::io::write_safetensors(at("x.safetensors"), &named).unwrap();
            let numpy: Vec<_> = named.iter().copied().filter(|(name, _)| *name != "bf16").collect();
            write_npz(at("x.npz"), &numpy).unwrap();
            for (read, n) in [
                (ddp::io::read_safetensors(at("x.safetensors"), device).unwrap(), 10),
                (read_npz(at("x.npz"), device).unwrap(), 9),
            ] {
                assert_eq!(read.len(), n);
                for (name, x) in &read {
                    same(x, &all.iter().find(|(known, _)| known == name).unwrap().1);
                }
            }
            write_npy(at("scalar.npy"), &all[0].1.sum(None).unwrap()).unwrap();
            assert_eq!(read_npy(at("scalar.npy"), device).unwrap().dims(), [1]);
        }
    }

    #[test]
    fn types_that_no_tensor_holds_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npy");
        let mut file = npy::array_header(RawType::U16, &[2], 0);
        file.extend([1, 0, 2, 0]);
        std::fs::write(&path, file).unwrap();
        let message = read_npy(&path, Device::Cpu).unwrap_err().to_string();
        assert!(message.contains("an array of u16") && message.contains("x.npy"), "{message}");
        // Big-endian numbers are turned round.
        let mut file = npy::header::write(">f4", &[2], 0);
        file.extend(1.5f32.to_be_bytes());
        file.extend((-2.0f32).to_be_bytes());
        std::fs::write(&path, file).unwrap();
        assert_eq!(read_npy(&path, Device::Cpu).unwrap().to_vec::<f32>().unwrap(), [1.5, -2.0]);
    }
}
