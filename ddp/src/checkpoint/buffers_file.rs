//! The file of a model's registered buffers, of any dtype; models without saved buffers have none.

use ddp_kernels::Tensor;

use super::error::CheckpointError;
use super::opened::Checkpoint;
use crate::storage::fault::FileFault;
use crate::storage::tensor_file::{self, TensorToWrite, Values, dtype_name};
use crate::storage::user_file::open_regular;

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
        let damaged = |fault: FileFault| self.damaged(fault);
        let file = open_regular(&self.path().join(BUFFERS_FILE)).map_err(|error| {
            damaged(FileFault::Unreadable { name: BUFFERS_FILE.to_owned(), reason: error.to_string() })
        })?;
        tensor_file::read_all(BUFFERS_FILE.to_owned(), file).map_err(damaged)
    }
}
