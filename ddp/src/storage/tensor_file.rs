//! Safetensors files of f32 and f64 tensors, written and read in pieces without a second copy in memory.
//!
//! Format: the header's length as u64, the header as JSON (name -> dtype, shape, offsets), the values; little-endian.
//! Source: <https://github.com/huggingface/safetensors>, "Format".
//!
//! ```
//! use std::collections::HashMap;
//!
//! use ddp::storage::disk::OsDisk;
//! use ddp::storage::tensor_file::{self, TensorFile, TensorToWrite, Values};
//!
//! let folder = tempfile::tempdir()?;
//! let path = folder.path().join("bias.safetensors");
//! let bias = TensorToWrite { name: "bias".to_owned(), dims: vec![3], values: Values::F32(&[1.0, 2.0, 3.0]) };
//! let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
//! tensor_file::write(&OsDisk, &path, &[bias], &metadata)?;
//!
//! // A part of a tensor, without the rest.
//! let file = TensorFile::open(&path)?;
//! let mut part = [0.0; 2];
//! file.read("bias", 1..3, &mut part)?;
//! assert_eq!(part, [2.0, 3.0]);
//! assert_eq!(file.metadata(), metadata);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use ddp_kernels::hint::with_hint;
use ddp_kernels::{DType, Device, KernelError, Tensor, TensorMut};
use serde_json::{Map, Value, json};

use super::checksum::{Checksum, Hasher};
use super::disk::{Disk, DiskError, OpenFile, at};
use super::fault::{FileEntry, FileFault};
use super::stream::{self, CHUNK_BYTES, Caching};
use super::tensor_header::{Header, TensorInfo};
use super::user_file::open_regular;

/// A tensor to write.
#[derive(Debug, Clone)]
pub struct TensorToWrite<'a> {
    /// Name of the tensor.
    pub name: String,
    /// Shape.
    pub dims: Vec<usize>,
    /// Values in row-major order.
    pub values: Values<'a>,
}

/// Values of a tensor to write. Tensors of f64 must precede those of f32, so that all of them are aligned in the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Values<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Single precision, in parts that follow each other.
    F32Parts(&'a [&'a [f32]]),
    /// Double precision.
    F64(&'a [f64]),
    /// Elements of the format's dtype with this name, little-endian.
    Bytes(&'static str, &'a [u8]),
}

impl<'a> Values<'a> {
    /// The values as bytes, part by part.
    pub fn parts(self) -> impl Iterator<Item = &'a [u8]> {
        let (parts, one): (&[&[f32]], Option<&[u8]>) = match self {
            Values::F32(values) => (&[], Some(bytemuck::cast_slice(values))),
            Values::F32Parts(parts) => (parts, None),
            Values::F64(values) => (&[], Some(bytemuck::cast_slice(values))),
            Values::Bytes(_, bytes) => (&[], Some(bytes)),
        };
        parts.iter().map(|part| bytemuck::cast_slice(part)).chain(one)
    }

    /// Size in bytes.
    fn n_bytes(self) -> usize {
        self.parts().map(<[u8]>::len).sum()
    }

    fn dtype(self) -> &'static str {
        match self {
            Values::F32(_) | Values::F32Parts(_) => "F32",
            Values::F64(_) => "F64",
            Values::Bytes(dtype, _) => dtype,
        }
    }
}

/// The name of a dtype in safetensors files.
pub fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::F32 => "F32",
        DType::F64 => "F64",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I64 => "I64",
        DType::I32 => "I32",
        DType::U8 => "U8",
        DType::Bool => "BOOL",
    }
}

/// Builds the header of a file that holds `tensors` in this order: not by the format's library, which orders the metadata differently
/// each time.
fn header(tensors: &[TensorToWrite<'_>], metadata: &HashMap<String, String>) -> Vec<u8> {
    let mut entries = Map::new();
    if !metadata.is_empty() {
        entries.insert("__metadata__".to_owned(), json!(metadata));
    }
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.values.n_bytes();
        let entry =
            json!({ "dtype": tensor.values.dtype(), "shape": tensor.dims, "data_offsets": [start, end] });
        entries.insert(tensor.name.clone(), entry);
        start = end;
    }
    let mut text = Value::Object(entries).to_string().into_bytes();
    // The values start at a multiple of 8, as in the reference implementation.
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.append(&mut text);
    bytes
}

/// Writes the bytes of a file of `tensors`.
///
/// # Errors
/// Errors of `to`.
pub fn write_to(
    to: &mut impl Write,
    tensors: &[TensorToWrite<'_>],
    metadata: &HashMap<String, String>,
) -> io::Result<()> {
    to.write_all(&header(tensors, metadata))?;
    tensors.iter().flat_map(|tensor| tensor.values.parts()).try_for_each(|part| to.write_all(part))
}

/// Size in bytes of a file with these `tensors`.
pub fn file_bytes(tensors: &[TensorToWrite<'_>], metadata: &HashMap<String, String>) -> u64 {
    let values: usize = tensors.iter().map(|tensor| tensor.values.n_bytes()).sum();
    (header(tensors, metadata).len() + values) as u64
}

/// Writes a file of `tensors`; the caller syncs it. The checksum is computed from memory, not read back.
pub fn write(
    disk: &dyn Disk,
    path: &Path,
    tensors: &[TensorToWrite<'_>],
    metadata: &HashMap<String, String>,
) -> Result<(OpenFile, FileEntry), DiskError> {
    let mut file = disk.create(path).map_err(at("make", path))?;
    let header = header(tensors, metadata);
    let values = tensors.iter().flat_map(|tensor| tensor.values.parts());
    let parts: Vec<&[u8]> = std::iter::once(header.as_slice()).chain(values).collect();
    if parts.iter().map(|part| part.len()).sum::<usize>() >= CHUNK_BYTES {
        disk.bypass_cache(&mut file);
    }
    let (mut hasher, mut n_written) = (Hasher::new(), 0);
    let write_one = |chunk: &[u8]| {
        disk.write(&mut file, chunk).map_err(at("write", path))?;
        let before = n_written;
        n_written += chunk.len() as u64;
        if chunk.len() == CHUNK_BYTES {
            disk.begin_to_sync(&file, before..n_written);
        }
        Ok(())
    };
    let no_thread = at("start a thread that writes", path);
    stream::write(&parts, |bytes| hasher.update(bytes), write_one, no_thread)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok((file, FileEntry { name, bytes: hasher.n_bytes(), xxh3_128: hasher.checksum() }))
}

/// Reads a file and returns its length and checksum.
pub(crate) fn checksum(path: &Path, caching: Caching) -> io::Result<(u64, Checksum)> {
    let mut hasher = Hasher::new();
    stream::read(path, caching, |_, bytes| hasher.update(bytes))?;
    Ok((hasher.n_bytes(), hasher.checksum()))
}

/// Destination of the bytes of a file from offset `at`.
pub(crate) struct Target<'a> {
    pub(crate) at: u64,
    pub(crate) out: &'a mut [u8],
}

/// A safetensors file of f32 and f64 tensors, open for reading.
#[derive(Debug)]
pub struct TensorFile {
    name: String,
    file: File,
    header: Header,
    /// File offset of the first value.
    values_at: u64,
}

impl TensorFile {
    /// Opens the file and reads its header.
    pub fn open(path: &Path) -> Result<Self, FileFault> {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file = open_regular(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => FileFault::Missing { name: name.clone() },
            _ => FileFault::Unreadable { name: name.clone(), reason: error.to_string() },
        })?;
        let opened = Self::from_any_types(name, file)?;
        let infos = opened.header.tensors();
        if let Some((tensor, info)) =
            infos.iter().find(|(_, info)| !["F32", "F64"].contains(&&info.dtype[..]))
        {
            let reason = format!("{tensor} is {}, expected F32 or F64", info.dtype);
            return Err(FileFault::Malformed { name: opened.name, reason });
        }
        Ok(opened)
    }

    /// Reads the header of a file of tensors of any types.
    fn from_any_types(name: String, file: File) -> Result<Self, FileFault> {
        let unreadable =
            |error: io::Error| FileFault::Unreadable { name: name.clone(), reason: error.to_string() };
        let malformed = |reason: String| FileFault::Malformed { name: name.clone(), reason };
        let n_bytes = file.metadata().map_err(unreadable)?.len();
        let cut = || malformed("the header is truncated, or it is not a safetensors file".to_owned());
        if n_bytes < 8 {
            return Err(cut());
        }
        let mut begin = [0; 8];
        file.read_exact_at(&mut begin, 0).map_err(unreadable)?;
        let len = Header::length(&begin, n_bytes).map_err(|_| cut())?;
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, 8).map_err(unreadable)?;
        let header = Header::parse(&bytes).map_err(|error| malformed(error.to_string()))?;
        let values_at = 8 + len as u64;
        let expected = values_at + header.n_bytes() as u64;
        if n_bytes != expected {
            return Err(FileFault::Length { name, got: n_bytes, expected });
        }
        Ok(TensorFile { name, file, header, values_at })
    }

    /// Name within its folder.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// String metadata of the header.
    pub fn metadata(&self) -> HashMap<String, String> {
        self.header.texts().clone()
    }

    /// Names of the tensors, in the order of their values.
    pub fn names(&self) -> Vec<String> {
        self.header.tensors().iter().map(|(name, _)| name.clone()).collect()
    }

    /// Shape of a tensor, if it exists.
    pub fn dims(&self, name: &str) -> Option<&[usize]> {
        self.header.find(name).map(|info| info.dims.as_slice())
    }

    /// Whether a tensor exists and holds f64.
    pub fn is_f64(&self, name: &str) -> bool {
        self.header.find(name).is_some_and(|info| info.dtype == "F64")
    }

    /// File offset of elements `range` of the flattened f32 tensor `name`.
    ///
    /// # Errors
    /// [`FileFault::Malformed`] if there is no such tensor or it has fewer elements.
    pub(crate) fn place(&self, name: &str, range: Range<usize>) -> Result<u64, FileFault> {
        self.place_of(name, range, "F32", size_of::<f32>())
    }

    fn place_of(&self, name: &str, range: Range<usize>, dtype: &str, size: usize) -> Result<u64, FileFault> {
        let malformed = |reason: String| FileFault::Malformed { name: self.name.clone(), reason };
        let info = self.header.find(name).ok_or_else(|| malformed(format!("it holds no tensor {name}")))?;
        if info.dtype != dtype {
            return Err(malformed(format!("{name} is {}, expected {dtype}", info.dtype)));
        }
        let numel: usize = info.dims.iter().product();
        if range.end > numel {
            return Err(malformed(format!("{name} has {numel} elements, expected at least {}", range.end)));
        }
        Ok(self.values_at + (info.bytes.start + range.start * size) as u64)
    }

    /// Reads elements `range` of the flattened f32 tensor `name` into `out`.
    ///
    /// # Errors
    /// [`FileFault::Malformed`] if there is no such tensor or it has fewer elements; [`FileFault::Unreadable`].
    ///
    /// # Panics
    /// If the length of `out` differs from that of the range.
    pub fn read(&self, name: &str, range: Range<usize>, out: &mut [f32]) -> Result<(), FileFault> {
        assert_eq!(range.len(), out.len(), "elements to read, and room for them");
        self.read_at(self.place(name, range)?, bytemuck::cast_slice_mut(out))
    }

    /// Reads the whole file as [`stream::read`] does.
    pub(crate) fn stream(&self, caching: Caching, see: impl FnMut(u64, &[u8])) -> io::Result<u64> {
        stream::read_opened(&self.file, caching, see)
    }

    /// Reads the bytes from file offset `place`.
    pub(crate) fn read_at(&self, place: u64, out: &mut [u8]) -> Result<(), FileFault> {
        let unreadable =
            |error: io::Error| FileFault::Unreadable { name: self.name.clone(), reason: error.to_string() };
        self.file.read_exact_at(out, place).map_err(unreadable)
    }

    /// Reads a whole f32 tensor; same errors as [`read`](Self::read).
    pub fn tensor(&self, name: &str) -> Result<Vec<f32>, FileFault> {
        let numel = self.dims(name).map_or(0, |dims| dims.iter().product());
        let mut values = vec![0.0; numel];
        self.read(name, 0..numel, &mut values)?;
        Ok(values)
    }

    /// Reads a whole f64 tensor; same errors as [`read`](Self::read).
    pub fn tensor_f64(&self, name: &str) -> Result<Vec<f64>, FileFault> {
        let numel = self.dims(name).map_or(0, |dims| dims.iter().product());
        let mut values = vec![0.0; numel];
        let place = self.place_of(name, 0..numel, "F64", size_of::<f64>())?;
        self.read_at(place, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }
}

/// The tensors of an open file, in host memory, in the order of the file.
///
/// # Errors
/// [`FileFault`], also for a type that no tensor holds.
pub(crate) fn read_all(name: String, file: File) -> Result<Vec<(String, Tensor)>, FileFault> {
    let opened = TensorFile::from_any_types(name, file)?;
    let malformed = |reason: String| FileFault::Malformed { name: opened.name.clone(), reason };
    let read = |(name, info): &(String, TensorInfo)| {
        let dtype = DType::ALL.into_iter().find(|dtype| dtype_name(*dtype) == info.dtype);
        let dtype =
            dtype.ok_or_else(|| malformed(format!("{name} is {}, which no tensor holds", info.dtype)))?;
        let of_memory = |error: KernelError| malformed(format!("{name}: {}", with_hint(&error)));
        let mut values = Tensor::zeros(&info.dims, dtype, Device::Cpu).map_err(of_memory)?;
        let out = TensorMut::into_bytes(values.view_mut(), "read", "tensor").map_err(of_memory)?;
        opened.read_at(opened.values_at + info.bytes.start as u64, out)?;
        if dtype == DType::Bool {
            out.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
        }
        Ok((name.clone(), values))
    };
    opened.header.tensors().iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use safetensors::SafeTensors;

    use super::super::disk::OsDisk;
    use super::*;

    fn tensors<'a>(a: &'a [f32], b: &'a [f32]) -> Vec<TensorToWrite<'a>> {
        let tensor = |name: &str, dims, values| TensorToWrite {
            name: name.to_owned(),
            dims,
            values: Values::F32(values),
        };
        vec![tensor("b", vec![2, 3], b), tensor("a", vec![a.len()], a), tensor("none", vec![0], &[])]
    }

    #[test]
    fn is_read_by_the_formats_library_and_by_itself() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.safetensors");
        // More than a chunk; includes bit patterns that are NaN.
        let a: Vec<f32> = (0..400_000).map(|i| f32::from_bits(i * 10_007)).collect();
        let b = [f32::NAN, -0.0, 1.5, f32::INFINITY, 0.0, -1.0];
        let metadata = HashMap::from([("k".to_owned(), "v \"quoted\" ü".to_owned())]);
        let (_, entry) = write(&OsDisk, &path, &tensors(&a, &b), &metadata).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(entry.bytes, bytes.len() as u64);
        assert_eq!(entry.bytes, file_bytes(&tensors(&a, &b), &metadata));
        assert_eq!(entry.xxh3_128, Checksum::of(&bytes));
        assert_eq!(checksum(&path, Caching::Keep).unwrap(), (entry.bytes, entry.xxh3_128));

        let library = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(library.tensor("a").unwrap().data(), bytemuck::cast_slice::<f32, u8>(&a));
        assert_eq!(library.tensor("b").unwrap().shape(), [2, 3]);
        let file = TensorFile::open(&path).unwrap();
        assert_eq!(file.metadata(), metadata);
        assert_eq!(file.names(), ["b", "a", "none"]);
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&file.tensor("b").unwrap()), bits(&b));
        let mut part = [0.0; 3];
        file.read("a", 399_997..400_000, &mut part).unwrap();
        assert_eq!(bits(&part), bits(&a[399_997..]));
        assert!(matches!(file.read("a", 399_998..400_001, &mut part), Err(FileFault::Malformed { .. })));
        assert!(file.tensor("c").is_err());
    }

    #[test]
    fn doubles_are_written_before_singles_and_read_as_such() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.safetensors");
        let doubles = [1.7e18 + 256.0, 0.1, f64::MIN_POSITIVE];
        let double = TensorToWrite { name: "d".to_owned(), dims: vec![3], values: Values::F64(&doubles) };
        let mut all = vec![double];
        all.extend(tensors(&[1.0], &[0.5; 6]));
        write(&OsDisk, &path, &all, &HashMap::new()).unwrap();
        let file = TensorFile::open(&path).unwrap();
        assert!(file.is_f64("d") && !file.is_f64("a"));
        assert_eq!(file.tensor_f64("d").unwrap(), doubles);
        assert_eq!(file.tensor("b").unwrap(), [0.5; 6]);
        assert!(file.tensor("d").is_err() && file.tensor_f64("b").is_err());
        let bytes = std::fs::read(&path).unwrap();
        let library = SafeTensors::deserialize(&bytes).unwrap();
        assert_eq!(library.tensor("d").unwrap().data(), bytemuck::cast_slice::<f64, u8>(&doubles));
    }

    #[test]
    fn truncated_headers_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.safetensors");
        write(&OsDisk, &path, &tensors(&[1.0], &[0.0; 6]), &HashMap::new()).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        for len in 0..bytes.len() {
            std::fs::write(&path, &bytes[..len]).unwrap();
            assert!(TensorFile::open(&path).is_err(), "{len} bytes");
        }
    }
}
