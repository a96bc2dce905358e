//! The file of a model's registered buffers, of any dtype; models without saved buffers have none.

use ddp_kernels::hint::with_hint;
use ddp_kernels::{DType, Device, Tensor, TensorMut};
use safetensors::SafeTensors;

use super::error::CheckpointError;
use super::opened::Checkpoint;
use crate::storage::fault::FileFault;
use crate::storage::tensor_file::{TensorToWrite, Values, dtype_name};
use crate::storage::user_file::read_regular;

/// Name of the file.
pub(super) const BUFFERS_FILE: &str = "buffers.safetensors";

/// The tensors of the file, from buffers in host memory: the widest first, so that each begins at a multiple of its size.
pub(super) fn tensors(buffers: &[(String, Tensor)]) -> Vec<TensorToWrite<'_>> {
    let mut sorted: Vec<_> = buffers.iter().collect();
    sorted.sort_by_key(|(_, values)| std::cmp::Reverse(values.dtype().size_bytes()));
    sorted.into_iter().map(|(name, values)| tensor(name, values)).collect()
}

fn tensor<'a>(name: &str, values: &'a Tensor) -> TensorToWrite<'a> {
    let bytes = values.view().as_bytes("checkpoint", "buffer").expect("a snapshot is in host memory");
    let dims = values.dims().to_vec();
    TensorToWrite { name: name.to_owned(), dims, values: Values::Bytes(dtype_name(values.dtype()), bytes) }
}

impl Checkpoint {
    /// Reads the model's registered buffers. [`Checkpoint::load`] compares the file's checksum.
    ///
    /// # Errors
    /// [`CheckpointError::Damaged`].
    pub fn registered_buffers(&self) -> Result<Vec<(String, Tensor)>, CheckpointError> {
        if !self.manifest().files.iter().any(|entry| entry.name == BUFFERS_FILE) {
            return Ok(Vec::new());
        }
        let damaged =
            |reason: String| self.damaged(FileFault::Malformed { name: BUFFERS_FILE.to_owned(), reason });
        let bytes = read_regular(&self.path().join(BUFFERS_FILE), u64::MAX);
        let bytes = bytes.map_err(|error| damaged(error.to_string()))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.to_string()))?;
        let (_, header) = SafeTensors::read_metadata(&bytes).expect("it was read");
        let read = |name: String| {
            let view = file.tensor(&name).expect("the header lists it");
            let stored = format!("{:?}", view.dtype());
            let dtype = DType::ALL.into_iter().find(|dtype| dtype_name(*dtype) == stored);
            let dtype = dtype.ok_or_else(|| damaged(format!("no tensor holds {stored}")))?;
            let mut values = Tensor::zeros(view.shape(), dtype, Device::Cpu)
                .map_err(|error| damaged(with_hint(&error)))?;
            let out = TensorMut::into_bytes(values.view_mut(), "checkpoint", "buffer");
            let out = out.expect("it is in host memory");
            out.copy_from_slice(view.data());
            if dtype == DType::Bool {
                out.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            }
            Ok((name, values))
        };
        header.offset_keys().into_iter().map(read).collect()
    }
}
