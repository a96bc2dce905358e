//! Writes a model to one file, or its weights to a second file, because an ONNX file must be smaller than 2 GiB.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ddp::storage::atomic_write::write_atomic_with;
use prost::Message as _;

use crate::export::error::Result;
use crate::export::onnx::OnnxModel;
use crate::export::proto::{DataLocation, StringStringEntryProto, TensorProto};

/// Maximum message size that every reader accepts.
const MAX_MESSAGE_BYTES: usize = i32::MAX as usize;
/// Constants below this size stay in the model, since readers need their values to infer shapes.
const MIN_EXTERNAL_BYTES: usize = 1024;
/// Offsets of constants in the second file are multiples of a page, so that readers can map them.
const ALIGNMENT: u64 = 4096;

/// File that holds the weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WeightsPlace {
    /// The model's file if it stays below 2 GiB, else a second file.
    #[default]
    Auto,
    /// A second file, regardless of size.
    SecondFile,
}

impl OnnxModel {
    /// The second file that [`OnnxModel::write`] writes next to `path`, if any: `path` with `.data` appended.
    pub fn second_file(&self, path: &Path, place: WeightsPlace) -> Option<PathBuf> {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".data");
        let is_needed = place == WeightsPlace::SecondFile || self.proto.encoded_len() > MAX_MESSAGE_BYTES;
        is_needed.then(|| path.with_file_name(&name))
    }

    /// Writes the model to `path`, and its weights to a second file if they belong there. Existing files are replaced; `path`
    /// never names a file that is incomplete or refers to the weights of another model.
    ///
    /// # Errors
    /// [`super::ExportError::Write`].
    pub fn write(mut self, path: &Path, place: WeightsPlace) -> Result<()> {
        let Some(data_path) = self.second_file(path, place) else {
            return Ok(write_atomic_with(path, |file| file.write_all(&self.to_bytes()))?);
        };
        let name = data_path.file_name().unwrap_or_default().to_string_lossy();
        let moved = self.move_weights(&name);
        write_atomic_with(&data_path, |file| {
            let mut n_written = 0;
            for (start, bytes) in &moved {
                io::copy(&mut io::Read::take(io::repeat(0), start - n_written), file)?;
                file.write_all(bytes)?;
                n_written = start + bytes.len() as u64;
            }
            file.flush()?;
            // The old model is removed first, so that it never refers to the new weights.
            match fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            }
        })?;
        Ok(write_atomic_with(path, |file| file.write_all(&self.to_bytes()))?)
    }

    /// Moves the values of large constants out of the graph and makes it refer to the file `name`; returns the values and their
    /// offsets in that file, in order.
    fn move_weights(&mut self, name: &str) -> Vec<(u64, Bytes)> {
        let (mut moved, mut end) = (Vec::new(), 0u64);
        let graph = self.proto.graph.iter_mut();
        for tensor in graph.flat_map(|graph| &mut graph.initializer) {
            if tensor.raw_data.len() < MIN_EXTERNAL_BYTES {
                continue;
            }
            let start = end.next_multiple_of(ALIGNMENT);
            let bytes = std::mem::take(&mut tensor.raw_data);
            end = start + bytes.len() as u64;
            refer(tensor, name, start, bytes.len());
            moved.push((start, bytes));
        }
        moved
    }
}

/// Replaces the values of `tensor` by a reference to `len` bytes of the file `name`.
fn refer(tensor: &mut TensorProto, name: &str, start: u64, len: usize) {
    tensor.set_data_location(DataLocation::External);
    tensor.external_data = vec![
        StringStringEntryProto::new("location", name),
        StringStringEntryProto::new("offset", start.to_string()),
        StringStringEntryProto::new("length", len.to_string()),
    ];
}
